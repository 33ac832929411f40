"""Draw: pure kernels, each an ``init`` and a ``step``."""

from jaxmrf.sampling import (
    annealing,
    factor_gibbs,
    gibbs,
    perfect,
    rejection,
    slice,
    tempering,
)

__all__ = ["annealing", "factor_gibbs", "gibbs", "perfect", "rejection", "slice", "tempering"]
