"""Ways through the wrappers that plates, ``to_event`` and masks put around a distribution."""

import copy
from collections.abc import Callable

from numpyro.distributions import (
    Distribution,
    ExpandedDistribution,
    Independent,
    MaskedDistribution,
)

__all__ = ["base_distribution", "map_base"]

_WRAPPERS = (ExpandedDistribution, Independent, MaskedDistribution)


def base_distribution(fn: Distribution) -> Distribution:
    """The distribution inside any number of expanded, independent and masked wrappers.

    Args:
        fn: What a NumPyro trace holds as ``site["fn"]``.
    """
    while isinstance(fn, _WRAPPERS):
        fn = fn.base_dist
    return fn


def map_base(fn: Distribution, function: Callable[[Distribution], Distribution]) -> Distribution:
    """The same wrappers around ``function`` of the inner distribution.

    Args:
        fn: What a NumPyro trace holds as ``site["fn"]``.
        function: A change that keeps the batch and event shapes.
    """
    if not isinstance(fn, _WRAPPERS):
        return function(fn)
    new = copy.copy(fn)
    new.base_dist = map_base(fn.base_dist, function)
    return new
