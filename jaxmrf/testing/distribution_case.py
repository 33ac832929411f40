r"""A distribution to check, its exact moments, and assertions that say what was expected.

.. math:: \mathrm{E}\,x = \sum_x x\,p(x)

The values are enumerated, so nothing here depends on how the distribution draws.
"""

import pickle
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

__all__ = ["DistributionCase", "assert_equal", "assert_raises"]


class DistributionCase(NamedTuple):
    """A distribution to check.

    Attributes:
        make: A class, or a ``functools.partial`` of one that binds what is not an array.
        parameters: Arrays by name, in full event shape; multiplied by 3 they must stay valid.
        values: Maps a distribution to all its values, on a leading axis that broadcasts against
            the batch shape; by default its ``enumerate_configurations()``.
        outside: A number that, in every coordinate, makes a value outside the support.
    """

    make: Callable[..., dist.Distribution]
    parameters: dict[str, Any]
    values: Callable[[dist.Distribution], Any] | None = None
    outside: int = -7

    def build(self, **options) -> dist.Distribution:
        """The distribution."""
        return self.make(**self.parameters, **options)

    def rebuild(self) -> dist.Distribution:
        """The distribution from equal, not identical arguments, as another run makes it."""
        return pickle.loads(pickle.dumps(self.make))(**self.parameters)

    def enumerate(self, distribution: dist.Distribution) -> jax.Array:
        """All values of a distribution that ``make`` built."""
        if self.values is None:
            return distribution.enumerate_configurations()
        return jnp.asarray(self.values(distribution))

    def moments(self, distribution: dist.Distribution) -> tuple[np.ndarray, np.ndarray]:
        """Exact mean and variance of every coordinate of a distribution that ``make`` built."""
        values = self.enumerate(distribution)
        probs = np.exp(np.asarray(distribution.log_prob(values), dtype=np.float64))
        probs = probs.reshape(probs.shape + (1,) * distribution.event_dim)
        values = np.asarray(values, dtype=np.float64)
        mean = (probs * values).sum(axis=0)
        return mean, (probs * values**2).sum(axis=0) - mean**2


def assert_equal(found, expected, what: str) -> None:
    """Raise ``AssertionError`` with both values unless they are equal.

    Args:
        found: What the distribution gave.
        expected: What the law says.
        what: Name of the quantity.
    """
    assert found == expected, f"expected {what} {expected}, got {found}"


def assert_raises(error: type[Exception], word: str, function: Callable) -> None:
    """Raise ``AssertionError`` unless the function raises.

    Args:
        error: Class of the error that is expected.
        word: What its message must contain.
        function: Called without arguments.
    """
    try:
        function()
    except error as raised:
        assert word in str(raised), f"expected {word!r} in the message, got {raised}"
    else:
        raise AssertionError(f"expected {error.__name__} ({word}), got no error")
