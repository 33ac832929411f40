r"""Base measures of grouped agreement parameters.

A sampler of groups proposes from a reference :math:`\mathrm{Beta}(a, b)` updated by counts and
weighs by the density of :math:`G_0` on (0, 1), so any base distribution is exact, and a Beta base
never rejects.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jax.scipy.special import betaln, xlog1py, xlogy

from jaxmrf.logspace import draw_log_gamma
from jaxmrf.types import Array, Float, Key

__all__ = ["LARGEST_LOGIT", "BaseMeasure", "BetaBase", "GeneralBase", "draw_logits", "update"]

# float32 rounds 1 - 1e-8 to 1, where the logit is infinite
LARGEST_LOGIT = 13.8
"""Logits of group values are kept within this distance of 0, values 1e-6 away from 0 and 1."""


@runtime_checkable
class BaseMeasure(Protocol):
    """What a sampler of groups asks of G0; a and b are the shapes of its reference."""

    a: Float[Array, ""] | float
    b: Float[Array, ""] | float

    def log_density(self, values: Array) -> Array:
        """Log density of G0 at values in (0, 1)."""

    def sample(self, key: Key, shape: tuple[int, ...]) -> Array:
        """Independent draws from G0."""


class BetaBase(NamedTuple):
    """G0 = Beta(a, b); Beta(1, 1) is the uniform of Liu & Page.

    Attributes:
        a: First shape, positive.
        b: Second shape, positive.
    """

    a: Float[Array, ""] | float = 1.0
    b: Float[Array, ""] | float = 1.0

    def log_density(self, values: Float[Array, "*rest"]) -> Float[Array, "*rest"]:
        """Log density at values in (0, 1)."""
        log_kernel = xlogy(self.a - 1, values) + xlog1py(self.b - 1, -values)
        return log_kernel - betaln(self.a, self.b)

    def sample(self, key: Key, shape: tuple[int, ...]) -> Float[Array, "*rest"]:
        """Independent draws."""
        ones = jnp.ones(shape)
        return jax.nn.sigmoid(draw_logits(key, self.a * ones, self.b * ones))


class GeneralBase(NamedTuple):
    """Any G0 on (0, 1): logit-normal, a mixture, a histogram.

    Attributes:
        log_density: Log density of G0 at an array of values.
        sample: ``sample(key, shape)``, independent draws from G0.
        a: First shape of the reference.
        b: Second shape of the reference.
    """

    log_density: Callable[[Array], Array]
    sample: Callable[[Key, tuple[int, ...]], Array]
    a: float = 1.0
    b: float = 1.0


def update(
    key: Key,
    values: Float[Array, " groups"],
    successes: Float[Array, " groups"],
    failures: Float[Array, " groups"],
    base: BaseMeasure,
) -> Float[Array, " groups"]:
    """Values after a transition that leaves the posterior of binomial counts invariant.

    An independence Metropolis step from the reference's posterior; for a Beta base an exact draw.

    Args:
        key: Random key.
        values: Current values.
        successes: Count of successes of every group, 0 without data.
        failures: Count of failures of every group.
        base: G0.
    """
    key_propose, key_accept = jax.random.split(key)
    proposals = jax.nn.sigmoid(draw_logits(key_propose, base.a + successes, base.b + failures))
    if isinstance(base, BetaBase):
        return proposals
    reference = BetaBase(base.a, base.b)
    log_weight = lambda x: base.log_density(x) - reference.log_density(x)  # noqa: E731
    log_uniform = -jax.random.exponential(key_accept, values.shape)
    is_accepted = log_uniform < log_weight(proposals) - log_weight(values)
    return jnp.where(is_accepted, proposals, values)


def draw_logits(
    key: Key, a: Float[Array, "*rest"], b: Float[Array, "*rest"]
) -> Float[Array, "*rest"]:
    """Logits of Beta(a, b) draws, kept within ``LARGEST_LOGIT``."""
    log_first, log_second = draw_log_gamma(key, jnp.stack([a, b]))
    return jnp.clip(log_first - log_second, -LARGEST_LOGIT, LARGEST_LOGIT)
