"""Draw: pure kernels, each an ``init`` and a ``step``."""

from jaxmrf.sampling import gibbs, perfect, rejection, slice

__all__ = ["gibbs", "perfect", "rejection", "slice"]
