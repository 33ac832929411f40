r"""Philox 4x32, a counter-based generator that a kernel evaluates inside its own fused loop.

.. math:: \text{word} = f_{\text{key}}(\text{counter}), \qquad
          f = (\text{multiply, split, xor with the key})^{\text{rounds}}

A word depends on its counter alone, so nothing is stored between updates, no two of them need to
agree on an order, and arrays split over devices hold the numbers they would hold on one. Reference:
Salmon, Moraes, Dror & Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC (2011): ten rounds
are their default, seven the fewest that pass every test of BigCrush.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from jaxmrf.types import Array, ArrayLike, Key

__all__ = ["key_words", "philox4x32", "random_words"]

_MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
_KEY_STEPS = 0x9E3779B9, 0xBB67AE85

Words = tuple[Array, Array, Array, Array]
"""Four arrays of one shape, of unsigned 32-bit integers."""


def key_words(key: Key) -> tuple[Array, Array]:
    """The two words that key the generator, from a JAX key of any kind."""
    first, second = jax.random.bits(key, (2,), jnp.uint32)
    return first, second


def philox4x32(
    counter: Sequence[ArrayLike | int],
    key: Sequence[ArrayLike | int],
    *,
    num_rounds: int = 10,
) -> Words:
    """Four random words for every counter.

    Args:
        counter: Four unsigned 32-bit integers or arrays of them that broadcast to one shape.
        key: Two words.
        num_rounds: Number of rounds; 10, or 7 where speed counts.

    >>> [hex(word) for word in philox4x32((0, 0, 0, 0), (0, 0))]
    ['0x6627e8d5', '0xe169c58d', '0xbc57ac4c', '0x9b00dbd8']
    """
    first, second, third, fourth = map(_word, counter)
    left, right = map(_word, key)
    for _ in range(num_rounds):
        high, low = _wide_product(first, _MULTIPLIERS[0])
        other_high, other_low = _wide_product(third, _MULTIPLIERS[1])
        first, second = other_high ^ second ^ left, other_low
        third, fourth = high ^ fourth ^ right, low
        left, right = left + _word(_KEY_STEPS[0]), right + _word(_KEY_STEPS[1])
    return first, second, third, fourth


def random_words(
    key: Sequence[ArrayLike | int],
    outer: ArrayLike | int,
    step: ArrayLike | int,
    inner: ArrayLike | int,
    *,
    num_words: int,
    num_rounds: int = 10,
    stream: int = 0,
) -> list[Array]:
    """Random words for every triple of counters, as many as are asked for.

    Where ``inner`` varies along the last axis and the others do not, most of the first three rounds
    is the same for a whole row or for all words, and computed once: the counters stand where
    multiplication reaches them last. So ``inner`` is mixed by one round less than a counter in the
    first word would be.

    Args:
        key: Two words.
        outer: Counter, unsigned 32-bit integers; the three broadcast to one shape.
        step: Counter.
        inner: Counter.
        num_words: Number of words for each triple.
        num_rounds: Number of rounds.
        stream: Kind of use, below 256; words of different streams are independent.
    """
    words: list[Array] = []
    for block in range(-(-num_words // 4)):
        counter = outer, stream << 24 | block, step, inner
        words += philox4x32(counter, key, num_rounds=num_rounds)
    return words[:num_words]


def _word(value: ArrayLike | int) -> Array:
    return jnp.asarray(value, jnp.uint32)


def _wide_product(value: Array, multiplier: int) -> tuple[Array, Array]:
    """High and low word of a product."""
    low = value * jnp.full_like(value, multiplier)
    if not hasattr(jax, "enable_x64"):  # JAX before 0.8
        return _high_word(value, multiplier), low
    # as fast as jax.lax.mulhi, which XLA cannot split over devices
    with jax.enable_x64(True):
        wide = value.astype(jnp.uint64)
        high = (wide * jnp.full_like(wide, multiplier)) >> jnp.full_like(wide, 32)
        return high.astype(jnp.uint32), low


def _high_word(value: Array, multiplier: int) -> Array:
    """High word of a product, from four products of half words."""
    high, low = value >> 16, value & 0xFFFF
    left, right = _word(multiplier >> 16), _word(multiplier & 0xFFFF)
    middle = high * right + (low * right >> 16)
    return high * left + (middle >> 16) + (low * left + (middle & 0xFFFF) >> 16)
