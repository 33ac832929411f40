"""Draw: pure kernels, each an ``init`` and a ``step``."""

from jaxmrf.sampling import (
    annealing,
    factor_gibbs,
    gibbs,
    packed,
    perfect,
    philox,
    rejection,
    slice,
    tempering,
)
from jaxmrf.sampling.plans import SamplerPlan, sampler_plan

__all__ = [
    "SamplerPlan",
    "annealing",
    "factor_gibbs",
    "gibbs",
    "packed",
    "perfect",
    "philox",
    "rejection",
    "sampler_plan",
    "slice",
    "tempering",
]
