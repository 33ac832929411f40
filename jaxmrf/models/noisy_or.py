r"""Noisy-or: a child is on unless every parent that is on fails to switch it on.

.. math:: P(\text{off} \mid y) = \prod_j (1 - V_j)^{y_j} = e^L, \quad
          L = \sum_j y_j \log(1 - V_j)

Sums of log-failures L are kept as pairs of floats, so that a cause can be taken out of a sum and
put back without losing causes that are many orders of magnitude weaker. References: Pearl,
*Probabilistic Reasoning in Intelligent Systems* (1988), section 4.3; Courville, Eck & Bengio, "An
infinite factor model hierarchy via a noisy-or mechanism", NIPS 2009.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxmrf.logspace import log1mexp
from jaxmrf.types import Array, ArrayLike, Bool, Float, Int, Key

__all__ = [
    "CauseSums",
    "add_cause",
    "draw_assignments",
    "draw_counts",
    "log_failure",
    "log_odds",
    "log_off",
    "log_on_ratio",
    "no_causes",
    "remove_cause",
]


def log_failure(weights: Float[Array, "*rest"]) -> Float[Array, "*rest"]:
    """log(1 - V), finite also for a weight of one."""
    return jnp.log1p(-jnp.minimum(weights, 1 - jnp.finfo(weights.dtype).epsneg))


def log_off(
    parents: Float[Array, "*objects parents"], log_failures: Float[Array, "parents children"]
) -> Float[Array, "*objects children"]:
    """L, the log-probability that a child is off.

    Args:
        parents: 1 where a parent is on.
        log_failures: log(1 - V), finite.
    """
    return jnp.matmul(parents, log_failures, precision="highest")


def log_odds(log_off: Float[Array, "*rest"]) -> Float[Array, "*rest"]:
    """Log odds of on against off from L; -inf where no parent is on."""
    return log1mexp(log_off) - log_off


class CauseSums(NamedTuple):
    """Sums L of log-failures over the causes that are on, as unevaluated pairs of floats.

    Attributes:
        high: The sums.
        low: What rounding took from them.
        num_causes: Number of terms, of a shape that broadcasts to the sums. It tells an empty sum
            from one that rounding made zero.
    """

    high: Array
    low: Array
    num_causes: Array

    def log_off(self) -> Array:
        """L; zero only if there is no cause, below zero otherwise."""
        below = -jnp.finfo(self.high.dtype).tiny
        return jnp.where(self.num_causes > 0, jnp.minimum(self.high, below), 0)


def no_causes(shape: tuple[int, ...], num_shape: tuple[int, ...], dtype=float) -> CauseSums:
    """Empty sums of a shape, with counts of another."""
    zeros = jnp.zeros(shape, dtype)
    return CauseSums(zeros, zeros, jnp.zeros(num_shape, int))


def add_cause(sums: CauseSums, log_failures: Array, is_on: Array) -> CauseSums:
    """The sums with one more cause where it is on; shapes broadcast to the sums."""
    return _add(sums, jnp.where(is_on, log_failures, 0), is_on.reshape(sums.num_causes.shape))


def remove_cause(sums: CauseSums, log_failures: Array, is_on: Array) -> CauseSums:
    """The sums without a cause that was added, where it is on."""
    is_counted = -is_on.reshape(sums.num_causes.shape).astype(int)
    return _add(sums, jnp.where(is_on, -log_failures, 0), is_counted)


def _add(sums: CauseSums, value: Array, count: Array) -> CauseSums:
    # Knuth's error-free sum, then the pair is made disjoint again
    total = sums.high + value
    rest = total - sums.high
    low = sums.low + ((sums.high - (total - rest)) + (value - rest))
    high = total + low
    return CauseSums(high, low - (high - total), sums.num_causes + count)


def log_on_ratio(log_off: Array, log_weights: Array) -> Array:
    r"""Log of P(on with one more cause) / P(on): log1p(V e^L / (1 - e^L)).

    Args:
        log_off: L of the other causes.
        log_weights: log V of the additional one.

    Returns:
        Non-negative; inf where there is no other cause.
    """
    # the absolute value, not a sign: minus the zero of an empty sum would be a negative zero
    return jnp.log1p(jnp.exp(log_weights + log_off) / jnp.abs(jnp.expm1(log_off)))


def draw_counts(key: Key, log_off: Float[Array, "*rest"], num_trials) -> Float[Array, "*rest"]:
    """Binomial counts of independent trials of children that are off with log-probability L.

    Args:
        key: Random key.
        log_off: L.
        num_trials: How many trials, of a shape that broadcasts.
    """
    # jax.random.binomial does not return for a probability of minus zero
    probability = jnp.abs(jnp.expm1(log_off))
    return jax.random.binomial(key, num_trials, probability, shape=log_off.shape)


def draw_assignments(
    key: Key,
    parents: Bool[Array, "parents objects"],
    children: Bool[Array, "features objects"],
    log_failures: Float[ArrayLike, "parents features"],
    order: Int[Array, " parents"],
    num_parents: Int[Array, ""] | int,
) -> tuple[Float[Array, "features parents"], Float[Array, "features parents"]]:
    r"""Draws which parent switched each child on, and counts.

    Parents are asked in an order. Given that the child is on, the first to succeed is j with

    .. math:: P(A = j) = \frac{y_j V_j \prod_{i < j} (1 - y_i V_i)}{1 - \prod_i (1 - y_i V_i)}

    (Courville et al. 2009, eq. 9, with the normaliser and the factor y that the print leaves
    out). It is found where the partial sums of L fall below ``log1p(u expm1(L))``, u uniform.

    Args:
        key: Random key.
        parents: Which parents are on.
        children: Which children are on.
        log_failures: log(1 - V).
        order: Parents in the order of asking; it must not depend on when they were born.
        num_parents: Leading entries of the order to ask; all that are on for any object.

    Returns:
        Successes M, how often a parent switched on the child, and failures N, how often it was on
        and asked before the child was switched on by another, or stayed off.
    """
    uniform = jax.random.uniform(key, children.shape, log_failures.dtype)
    zeros = jnp.zeros(children.shape, log_failures.dtype)

    def partial_sum(i, sums):
        j = order[i]
        return sums + jnp.where(parents[j], log_failures[j][:, None], 0)

    total = jax.lax.fori_loop(0, num_parents, partial_sum, zeros)
    # rounding must not put the target below the last partial sum
    target = jnp.maximum(jnp.log1p(uniform * jnp.expm1(total)), total)

    def ask(i, carry):
        sums, is_open, successes, failures = carry
        j = order[i]
        sums = partial_sum(i, sums)
        is_hit = is_open & (sums <= target) & parents[j]
        is_open = is_open & ~is_hit
        is_asked = parents[j] & (is_open | ~children)
        successes = successes.at[j].set(is_hit.sum(axis=1).astype(successes.dtype))
        failures = failures.at[j].set(is_asked.sum(axis=1).astype(failures.dtype))
        return sums, is_open, successes, failures

    counts = jnp.zeros(log_failures.shape, log_failures.dtype)
    *_, successes, failures = jax.lax.fori_loop(
        0, num_parents, ask, (zeros, children, counts, counts)
    )
    return successes.T, failures.T
