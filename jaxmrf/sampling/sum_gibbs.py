r"""Gibbs sampling of binary fields of any degree, 32 chains in a word and nodes last in memory.

.. math:: x_i = \Big[u < \sigma\big(a_i + \textstyle\sum_k b_{ik} s_{ik}\big)\Big]
             = \big[u + u\, e^{-(a_i + \sum_k b_{ik} s_{ik})} < 1\big], \qquad s_{ik} = \pm 1

Words of the neighbours are gathered once for 32 chains. A spin is a bit, so its product with a
coefficient is an exclusive or with the coefficient's sign. The uniform number u has 24 bits, as in
``jax.random.uniform``: 16 of its own, and 8 shared by 8 chains, which are the exclusive or of all
the bits those chains drew and so independent of any seven of them. Every chain has its exact
conditional probability, and the covariance of two chains is at most 4^-16 / 4; a plan for 32 random
bits shares none.
"""

import jax
import jax.numpy as jnp
import numpy as np

from jaxmrf.graphs import NeighborBlock
from jaxmrf.models import PairwiseModel
from jaxmrf.sampling._tiles import neighbor_logits, scan_tiles
from jaxmrf.sampling._walls import walled
from jaxmrf.sampling.philox import key_words, random_words
from jaxmrf.sampling.plans import SamplerPlan
from jaxmrf.types import Array, Float, Key, UInt

__all__ = ["run", "spin_coefficients", "uniform_numbers"]

# chains that one call of the generator serves, and calls for a word of 32 chains
_GROUP, _NUM_GROUPS = 8, 4
_SIGN = 0x80000000


def run(
    key: Key,
    words: UInt[Array, "words rows"],
    model: PairwiseModel,
    plan: SamplerPlan,
    *,
    num_sweeps: int,
) -> UInt[Array, "words rows"]:
    """Words after ``num_sweeps`` sweeps.

    Args:
        key: Random key.
        words: Current states, a chain in every bit, nodes in the order of the sweep plan.
        model: Pairwise model of two states.
        plan: Sampler plan of the form "sums".
        num_sweeps: Number of sweeps.
    """
    seed = key_words(key)

    def tabulate(block):
        constant, slopes = spin_coefficients(model, block)
        return block.neighbors.astype(np.uint32), constant, slopes

    def update(words, tables, start, sweep):
        return _update(seed, words, tables, start, sweep, plan)

    return scan_tiles(words, plan, tabulate, update, num_sweeps, axis=1)


def spin_coefficients(
    model: PairwiseModel, block: NeighborBlock
) -> tuple[Float[Array, " block"], Float[Array, "degree block"]]:
    """Log odds of state 1 of a block's nodes as a linear function of the neighbours' spins.

    Args:
        model: Pairwise model of two states.
        block: Its nodes.

    Returns:
        The constant, and the coefficient of the neighbour in every slot.
    """
    degree = block.neighbors.shape[0]
    # no neighbour in state 1, then one after the other
    logits = neighbor_logits(model, block, np.eye(degree, degree + 1, 1))
    slopes = (logits[:, 1:] - logits[:, :1]).T / 2
    return logits[:, 0] + slopes.sum(axis=0), slopes


def _update(seed, words, tables, start, sweep, plan):
    """New words of one tile."""
    neighbors, constant, slopes = tables
    num_words, size = len(words), neighbors.shape[1]
    # word by word with indices of its own: a gather along the second axis would be transposed
    # afterwards, one from the flat array could not be split over devices
    take = jax.vmap(lambda row, index: row.at[index].get(mode="promise_in_bounds"))
    places = jnp.broadcast_to(neighbors, (num_words, *neighbors.shape))
    # a wall: each word is read in four places
    gathered = walled(lambda: take(words, places), start, plan.backend)
    groups = jnp.arange(_NUM_GROUPS, dtype=jnp.uint32)[:, None]
    shifts = groups * jnp.uint32(_GROUP)

    outer = jnp.arange(num_words * _NUM_GROUPS, dtype=jnp.uint32).reshape(-1, _NUM_GROUPS, 1)

    def draw():
        random = random_words(
            seed,
            outer,
            sweep.astype(jnp.uint32),
            (start + jnp.arange(size)).astype(jnp.uint32),
            num_words=_GROUP if plan.num_bits == 32 else _GROUP // 2,
            num_rounds=plan.num_rounds,
        )
        others = [gathered[:, None, slot] >> shifts for slot in range(len(neighbors))]
        new = jnp.zeros((num_words, _NUM_GROUPS, size), jnp.uint32)
        for chain, uniform in enumerate(uniform_numbers(random)):
            exponent = -constant
            for other, slope in zip(others, slopes, strict=True):
                exponent = exponent + _negated_where(other << (31 - chain), slope)
            is_up = uniform + uniform * jnp.exp(exponent) < 1
            new |= is_up.astype(jnp.uint32) << chain
        return new << shifts

    drawn = walled(draw, start, plan.backend)
    return drawn[:, 0] | drawn[:, 1] | drawn[:, 2] | drawn[:, 3]


def uniform_numbers(random: list[Array]) -> list[Array]:
    """Eight uniform numbers in [0, 1), from eight words or from four.

    Args:
        random: Random words; of four words every half is one number's first 16 bits.
    """
    if len(random) == _GROUP:
        return [_unit_interval(word >> 8) for word in random]
    common = random[0] ^ random[1] ^ random[2] ^ random[3]
    common = ((common >> 8) ^ (common >> 24)) & 0xFF
    halves = (half for word in random for half in (word << 8, word >> 8))
    return [_unit_interval(half & 0xFFFF00 | common) for half in halves]


def _unit_interval(integer: Array) -> Array:
    """An integer of 24 bits as a part of 2^24; conversions of signed integers are the fast ones."""
    return integer.astype(jnp.int32).astype(jnp.float32) * 2.0**-24


def _negated_where(bits: Array, value: Array) -> Array:
    """The value with its sign changed where the first bit is 1."""
    pattern = jax.lax.bitcast_convert_type(value.astype(jnp.float32), jnp.uint32)
    return jax.lax.bitcast_convert_type(pattern ^ (bits & jnp.uint32(_SIGN)), jnp.float32)
