r"""Bernoulli draws 32 at a time: words of random bits compared with thresholds, plane by plane.

.. math:: P\big(r < \lfloor 2^K e + \xi \rfloor\big) = e, \qquad
          r \sim U\{0, \dots, 2^K - 1\}, \quad \xi \sim U[0, 1)

Bit k of 32 numbers r lies in one word, so K logical steps compare all of them. A binary variable
takes the likelier of its two values but for an error of probability e <= 1/2. Its threshold is
rounded up or down at random, afresh for every update, so a draw has its exact probability whatever
K. Draws that share the rounding are coupled: the covariance of two is at most 4^-K / 4. With K = 32
nothing is rounded and all draws are independent.
"""

import jax
import jax.numpy as jnp

from jaxmrf.types import Array, ArrayLike, Float, UInt

__all__ = ["dither", "draw_errors", "errors_of_logits", "planes"]

_ALL = 0xFFFFFFFF


def errors_of_logits(
    logits: Float[Array, "*rest"],
) -> tuple[UInt[Array, "*rest"], UInt[Array, "*rest"]]:
    """The probability of the less likely value, and a word that says which value is the likelier.

    Args:
        logits: Log odds of state 1.

    Returns:
        e = sigmoid(-|logit|) in units of 2^-32, to the precision of the logits; and all ones where
        state 1 is the likelier, else all zeros.
    """
    # in units of 2^-31 one half still fits the integers that conversions are fast for
    error = (jax.nn.sigmoid(-jnp.abs(logits)) * 2.0**31).astype(jnp.uint32) << 1
    return error, jnp.where(logits > 0, jnp.uint32(_ALL), jnp.uint32(0))


def dither(
    errors: UInt[Array, "..."], words: UInt[Array, "..."], num_bits: int
) -> UInt[Array, "..."]:
    """Thresholds of ``num_bits`` bits, rounded at random so that their mean is exact.

    Args:
        errors: Probabilities in units of 2^-32, at most 2^31.
        words: Random words that round them, of the same shape or one that broadcasts.
        num_bits: K, at most 32; at 32 the thresholds are the errors.
    """
    if num_bits == 32:
        return errors
    return (errors + (words >> num_bits)) >> (32 - num_bits)


def planes(thresholds: UInt[Array, "*rest"], num_bits: int, axis: int) -> UInt[Array, "*more"]:
    """The bits of thresholds as words of all zeros or all ones, least significant first.

    Args:
        thresholds: Thresholds.
        num_bits: Number of planes.
        axis: Where the axis of planes goes, as in ``jnp.expand_dims``.
    """
    spread = jnp.expand_dims(thresholds, axis)
    shape = [1] * spread.ndim
    shape[axis] = num_bits
    places = jax.lax.broadcasted_iota(jnp.uint32, shape, axis % spread.ndim)
    return jnp.uint32(0) - ((spread >> places) & jnp.uint32(1))


def draw_errors(thresholds: list[ArrayLike], words: list[Array]) -> Array:
    """Words with a one wherever the random number is below the threshold.

    Args:
        thresholds: Planes of the thresholds, least significant first, in the shape of the words.
        words: Planes of the random numbers.
    """
    below = jnp.zeros_like(words[0])
    for plane, word in zip(thresholds, words, strict=True):
        flipped = ~word
        below = (plane & flipped) | (below & (plane | flipped))
    return below
