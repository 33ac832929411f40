r"""Base measures of grouped agreement parameters under a binomial-shaped likelihood.

A sampler of groups asks two things of a base measure :math:`G_0` on (0, 1), given likelihoods
:math:`L(\theta) = \theta^{S} (1 - \theta)^{n - S}`: the integral of each together with a draw from
the normalised integrand, and a transition of a group's value that leaves its posterior invariant.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jax.scipy.special import betaln, logsumexp, xlog1py, xlogy

from jaxmrf.logspace import draw_log_gamma
from jaxmrf.types import Array, Float, Key

__all__ = ["BaseMeasure", "BetaBase", "MonteCarloBase"]


@runtime_checkable
class BaseMeasure(Protocol):
    """What a sampler of groups asks of G0."""

    def new_groups(self, key: Key, successes: Array, failures: Array) -> tuple[Array, Array]:
        """Log integral of each likelihood under G0, and a draw from each posterior."""

    def update(self, key: Key, values: Array, successes: Array, failures: Array) -> Array:
        """Values after a transition that leaves each posterior invariant."""


class BetaBase(NamedTuple):
    """G0 = Beta(a, b); every answer in closed form. Beta(1, 1) is the uniform of Liu & Page.

    Attributes:
        a: First shape, positive.
        b: Second shape, positive.
    """

    a: Float[Array, ""] | float = 1.0
    b: Float[Array, ""] | float = 1.0

    def new_groups(
        self, key: Key, successes: Float[Array, " edges"], failures: Float[Array, " edges"]
    ) -> tuple[Float[Array, " edges"], Float[Array, " edges"]]:
        """Log integral of each likelihood under G0, and a draw from each posterior."""
        a, b = self.a + successes, self.b + failures
        return betaln(a, b) - betaln(self.a, self.b), _draw_beta(key, a, b)

    def update(
        self,
        key: Key,
        values: Float[Array, " groups"],
        successes: Float[Array, " groups"],
        failures: Float[Array, " groups"],
    ) -> Float[Array, " groups"]:
        """Independent draws from the posteriors; the current values are not read."""
        return _draw_beta(key, self.a + successes, self.b + failures)


class MonteCarloBase(NamedTuple):
    """Any G0 on (0, 1), its integrals by Monte Carlo (Liu & Page, section 3.2).

    Attributes:
        log_density: Log density of G0 at an array of values.
        sample: ``sample(key, num_draws)``, independent draws from G0.
        num_draws: Draws behind each integral.
    """

    log_density: Callable[[Array], Array]
    sample: Callable[[Key, int], Array]
    num_draws: int = 256

    def new_groups(
        self, key: Key, successes: Float[Array, " edges"], failures: Float[Array, " edges"]
    ) -> tuple[Float[Array, " edges"], Float[Array, " edges"]]:
        """Monte Carlo integral of each likelihood, and one of its draws by weight."""
        key_draws, key_choice = jax.random.split(key)
        draws = self.sample(key_draws, self.num_draws)
        log_weights = _log_likelihood(successes[:, None], failures[:, None], draws)
        chosen = jax.random.categorical(key_choice, log_weights, axis=1)
        return logsumexp(log_weights, axis=1) - jnp.log(self.num_draws), draws[chosen]

    def update(
        self,
        key: Key,
        values: Float[Array, " groups"],
        successes: Float[Array, " groups"],
        failures: Float[Array, " groups"],
    ) -> Float[Array, " groups"]:
        """Independence Metropolis: propose from the uniform base's posterior, weigh by G0."""
        key_propose, key_accept = jax.random.split(key)
        proposals = _draw_beta(key_propose, 1 + successes, 1 + failures)
        log_ratio = self.log_density(proposals) - self.log_density(values)
        log_uniform = jnp.log(jax.random.uniform(key_accept, values.shape))
        return jnp.where(log_uniform < log_ratio, proposals, values)


def _log_likelihood(successes: Array, failures: Array, values: Array) -> Array:
    return xlogy(successes, values) + xlog1py(failures, -values)


def _draw_beta(key: Key, a: Array, b: Array) -> Array:
    log_first, log_second = draw_log_gamma(key, jnp.stack([a, b]))
    return jax.nn.sigmoid(log_first - log_second)
