r"""Arithmetic on log-probabilities.

A variable with ``states`` values is described by its logits relative to value 0,
:math:`\ell_k = \log p_k - \log p_0` for :math:`k = 1..K-1`, so a binary variable costs one number.
"""

from itertools import accumulate

import jax
import jax.numpy as jnp

from jaxmrf.types import Array, Float, Int, Key

__all__ = [
    "draw_from_relative_logits",
    "draw_log_beta",
    "draw_log_gamma",
    "log1mexp",
    "log_softmax_relative",
    "log_sum",
]


def log1mexp(log_prob: Float[Array, "*rest"]) -> Float[Array, "*rest"]:
    """Log of 1 - p from log p <= 0, at full relative precision at both ends; -inf at p = 1."""
    is_large = log_prob > -0.6931472
    # each branch sees a harmless argument where the other is taken, or gradients would be NaN
    large = jnp.log(-jnp.expm1(jnp.where(is_large, log_prob, -1)))
    return jnp.where(is_large, large, jnp.log1p(-jnp.exp(jnp.where(is_large, -1, log_prob))))


def log_sum(logs: Float[Array, "*rest"], axis: int | tuple[int, ...]) -> Float[Array, "*left"]:
    """Log of the sum of exponentials along axes; no NaN in derivatives where all are zero.

    Args:
        logs: Logs of the terms; minus infinity is a term of zero.
        axis: Axis or axes to sum.
    """
    top = jax.lax.stop_gradient(logs.max(axis=axis, keepdims=True))
    top = jnp.where(top == -jnp.inf, 0, top)
    total = jnp.exp(logs - top).sum(axis=axis)
    is_possible = total > 0
    total = jnp.log(jnp.where(is_possible, total, 1)) + top.squeeze(axis)
    return jnp.where(is_possible, total, -jnp.inf)


def log_softmax_relative(
    logits: Float[Array, "states_minus_one *rest"],
) -> Float[Array, "states *rest"]:
    """Log-probabilities of all states from logits relative to state 0 (leading axis)."""
    zero = jnp.zeros_like(logits[:1])
    return jax.nn.log_softmax(jnp.concatenate([zero, logits]), axis=0)


def draw_from_relative_logits(
    key: Key, logits: Float[Array, "states_minus_one *rest"]
) -> Int[Array, "*rest"]:
    """States drawn from logits relative to state 0, with one uniform number per variable.

    Args:
        key: Random key.
        logits: Log odds of states 1..K-1 against state 0, on the leading axis.

    Returns:
        States in 0..K-1, int8 if they fit.
    """
    dtype = jnp.int8 if len(logits) < 128 else jnp.int32
    uniform = jax.random.uniform(key, logits.shape[1:], logits.dtype)
    if len(logits) == 1:
        return (uniform < jax.nn.sigmoid(logits[0])).astype(dtype)
    # state k is the number of partial sums p_0 + ... + p_j, j < K - 1, at or below the uniform;
    # unrolled, so that the uniform is drawn once inside one fused loop
    top = jnp.maximum(logits.max(axis=0), 0)
    weights = [jnp.exp(-top), *(jnp.exp(row - top) for row in logits)]
    *below, total = accumulate(weights)
    target = uniform * total
    return sum((target >= bound).astype(dtype) for bound in below)


def draw_log_gamma(key: Key, shape: Float[Array, "*rest"]) -> Float[Array, "*rest"]:
    """Logs of Gamma(shape, 1) draws, all elements of an array in one rejection loop.

    The method of Marsaglia & Tsang (2000), as in ``jax.random.loggamma``, which on a CPU takes
    one element after the other.

    Args:
        key: Random key.
        shape: Shapes of the gamma distributions, positive.
    """
    key_boost, key_loop = jax.random.split(key)
    is_small = shape < 1
    third = jnp.where(is_small, shape + 1, shape) - 1 / 3
    scale = jax.lax.rsqrt(9 * third)

    def propose(carry):
        key, logs, is_done = carry
        key, key_normal, key_uniform = jax.random.split(key, 3)
        normal = jax.random.normal(key_normal, shape.shape, shape.dtype)
        log_uniform = jnp.log(jax.random.uniform(key_uniform, shape.shape, shape.dtype))
        cube = (1 + scale * normal) ** 3
        log_cube = jnp.log(jnp.where(cube > 0, cube, 1))
        bound = normal**2 / 2 + third * (1 - cube + log_cube)
        is_accepted = (cube > 0) & (log_uniform < bound)
        logs = jnp.where(is_done, logs, jnp.log(third) + log_cube)
        return key, logs, is_done | is_accepted

    start = (key_loop, jnp.zeros_like(shape), jnp.zeros(shape.shape, bool))
    _, logs, _ = jax.lax.while_loop(lambda carry: ~carry[2].all(), propose, start)
    # Gamma(a) = Gamma(a + 1) U^(1 / a)
    log_uniform = -jax.random.exponential(key_boost, shape.shape, shape.dtype)
    return logs + jnp.where(is_small, log_uniform / shape, 0)


def draw_log_beta(
    key: Key, on: Float[Array, "*rest"], off: Float[Array, "*rest"]
) -> tuple[Float[Array, "*rest"], Float[Array, "*rest"]]:
    """Logs of p and of 1 - p, p from Beta(on, off); small parameters do not make p underflow.

    Args:
        key: Random key.
        on: First parameters, positive.
        off: Second parameters, positive.
    """
    key_on, key_off = jax.random.split(key)
    log_on, log_off = draw_log_gamma(key_on, on), draw_log_gamma(key_off, off)
    log_sum = jnp.logaddexp(log_on, log_off)
    return log_on - log_sum, log_off - log_sum
