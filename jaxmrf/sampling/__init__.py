"""Draw: pure kernels, each an ``init`` and a ``step``."""

from jaxmrf.sampling import gibbs, perfect

__all__ = ["gibbs", "perfect"]
