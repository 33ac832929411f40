"""Draw: pure kernels, each an ``init`` and a ``step``."""

from jaxmrf.sampling import gibbs

__all__ = ["gibbs"]
