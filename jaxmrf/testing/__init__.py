"""Laws for distributions and kernels, to be run by the tests of this and of other packages."""

from jaxmrf.testing.distribution_case import DistributionCase
from jaxmrf.testing.distributions import DISTRIBUTION_CHECKS, check_distribution
from jaxmrf.testing.kernels import (
    KERNEL_CHECKS,
    KernelCase,
    exact_stationarity,
    prior_invariance,
)

__all__ = [
    "DISTRIBUTION_CHECKS",
    "KERNEL_CHECKS",
    "DistributionCase",
    "KernelCase",
    "check_distribution",
    "exact_stationarity",
    "prior_invariance",
]
