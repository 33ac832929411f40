r"""Arithmetic on log-probabilities.

A variable with ``states`` values is described by its logits relative to value 0,
:math:`\ell_k = \log p_k - \log p_0` for :math:`k = 1..K-1`, so a binary variable costs one number.
"""

from itertools import accumulate

import jax
import jax.numpy as jnp

from jaxmrf.types import Array, Float, Int, Key

__all__ = ["draw_from_relative_logits", "log_softmax_relative"]


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
