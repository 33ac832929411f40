"""Draw: pure kernels, each an ``init`` and a ``step``."""

from jaxmrf.sampling import (
    annealing,
    cluster,
    factor_gibbs,
    gibbs,
    packed,
    pairwise_annealing,
    pairwise_tempering,
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
    "cluster",
    "factor_gibbs",
    "gibbs",
    "packed",
    "pairwise_annealing",
    "pairwise_tempering",
    "perfect",
    "philox",
    "rejection",
    "sampler_plan",
    "slice",
    "tempering",
]
