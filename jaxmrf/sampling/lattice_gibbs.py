r"""Gibbs sampling of an Ising model on a torus, 32 spins of one chain in a word.

.. math:: p(x_i = 1 \mid x_{-i}) = \sigma\big(2h + 4 J_v (n_v - 1) + 4 J_h (n_h - 1)\big)

n_v and n_h count the neighbours in state 1 of the two directions, so there are nine conditional
probabilities, and only two apart from one half where the couplings are equal and the field is zero;
logical operations sort spins into these cases, 32 at a time. Reference: Block, Virnau & Preis,
Computer Physics Communications 181 (2010), who flip by Metropolis; thresholds as in `thresholds`.
"""

from functools import reduce
from operator import or_

import jax
import jax.numpy as jnp
import numpy as np

from jaxmrf.models import Ising
from jaxmrf.sampling._walls import walled
from jaxmrf.sampling.philox import key_words, random_words
from jaxmrf.sampling.plans import SamplerPlan
from jaxmrf.sampling.thresholds import dither, draw_errors, errors_of_logits, planes
from jaxmrf.types import Array, Float, Int, Key, UInt

__all__ = ["log_potentials", "pack", "run", "unpack"]


def pack(
    states: Int[Array, "nodes chains"], plan: SamplerPlan
) -> UInt[Array, "2 chains block_rows words"]:
    """States in words, one array a colour."""
    board = plan.layout
    rows, half = board.num_rows // 32, board.num_columns // 2
    bits = states.astype(jnp.uint32).T.reshape(-1, 32, rows, half, 2)
    words = (bits << jnp.arange(32, dtype=jnp.uint32)[:, None, None, None]).sum(1, dtype=jnp.uint32)
    is_odd = (jnp.arange(rows) % 2 == 1)[:, None]
    even, odd = words[..., 0], words[..., 1]
    return jnp.stack([jnp.where(is_odd, odd, even), jnp.where(is_odd, even, odd)])


def unpack(
    fields: UInt[Array, "2 chains block_rows words"], plan: SamplerPlan
) -> Int[Array, "nodes chains"]:
    """States of the words; the inverse of `pack`."""
    first, second = fields
    is_odd = (jnp.arange(first.shape[1]) % 2 == 1)[:, None]
    words = jnp.stack([jnp.where(is_odd, second, first), jnp.where(is_odd, first, second)], -1)
    places = jnp.arange(32, dtype=jnp.uint32)[:, None, None, None]
    bits = (words[:, None] >> places) & 1
    return bits.reshape(len(words), plan.layout.num_nodes).T.astype(jnp.int8)


def run(
    key: Key,
    fields: UInt[Array, "2 chains block_rows words"],
    model: Ising,
    plan: SamplerPlan,
    *,
    num_sweeps: int,
) -> UInt[Array, "2 chains block_rows words"]:
    """Fields after ``num_sweeps`` sweeps; read are one coupling of each direction and one field.

    Args:
        key: Random key.
        fields: Current states.
        model: Ising model whose couplings of a direction, and whose fields, are all alike.
        plan: Sampler plan of the form "lattice".
        num_sweeps: Number of sweeps.
    """
    down, across = model.couplings[0], model.couplings[plan.layout.num_nodes]
    field = model.fields[0]
    counts = jnp.arange(3) - 1
    logits = 2 * field + 4 * (down * counts[:, None] + across * counts)
    errors, likelier = errors_of_logits(logits)
    seed = key_words(key)

    def sweeps(classes):
        def half_sweep(number, colors):
            _, other = colors
            return other, _update(seed, other, errors, likelier, plan, number, classes)

        # one colour an iteration: a loop's boundary keeps XLA from drawing a word five times
        return lambda: jax.lax.fori_loop(0, 2 * num_sweeps, half_sweep, (fields[0], fields[1]))

    is_symmetric = (down == across) & (field == 0)
    return jnp.stack(jax.lax.cond(is_symmetric, sweeps(_symmetric), sweeps(_general)))


def log_potentials(
    fields: UInt[Array, "2 chains block_rows words"], model: Ising, plan: SamplerPlan
) -> Float[Array, " chains"]:
    """Log potential of every chain, from counts of bits.

    Args:
        fields: Current states.
        model: Ising model as for `run`.
        plan: Sampler plan of the form "lattice".
    """

    def count(words):
        return jax.lax.population_count(words).astype(jnp.int32).sum(axis=(-2, -1))

    own, other = fields
    num_nodes = plan.layout.num_nodes
    above, below, side, across = (
        count(own ^ neighbor) for neighbor in _neighbors(other, jnp.uint32(0))
    )
    num_up = count(own) + count(other)
    return (
        model.couplings[0] * (num_nodes - 2 * (above + below))
        + model.couplings[num_nodes] * (num_nodes - 2 * (side + across))
        + model.fields[0] * (2 * num_up - num_nodes)
    )


def _update(seed, other, errors, likelier, plan, number, classes):
    """New words of one colour from those of the other."""
    chains, rows, half = other.shape
    block, num_bits = plan.layout.block, plan.num_bits
    step = number.astype(jnp.uint32)
    shape = chains, rows, half // block, block
    neighbors = [part.reshape(shape) for part in _neighbors(other, step)]
    cases, halves, is_up, chosen = classes(*neighbors, likelier)
    outer = jnp.arange(chains * rows, dtype=jnp.uint32).reshape(chains, rows, 1, 1)
    inner = jnp.arange(half, dtype=jnp.uint32).reshape(shape[2:])
    random = random_words(seed, outer, step, inner, num_words=num_bits, num_rounds=plan.num_rounds)
    masks = _masks(seed, [errors[case] for case in chosen], shape[:3], plan, number)
    thresholds = []
    for plane in range(num_bits):
        terms = [case & mask[plane][..., None] for case, mask in zip(cases, masks, strict=True)]
        thresholds.append(reduce(or_, terms))
    thresholds[-1] |= halves
    return (is_up ^ draw_errors(thresholds, random)).reshape(other.shape)


def _masks(seed, errors, shape, plan, number):
    """Planes of the thresholds of every case, "num_bits chains rows blocks"."""
    step, num_bits = number.astype(jnp.uint32), plan.num_bits

    def rounded():
        chains, rows, blocks = shape
        random = random_words(
            seed,
            jnp.arange(chains * rows, dtype=jnp.uint32).reshape(chains, rows, 1),
            step,
            jnp.arange(blocks, dtype=jnp.uint32),
            num_words=len(errors),
            num_rounds=plan.num_rounds,
            stream=1,
        )
        return [dither(error, word, num_bits) for error, word in zip(errors, random, strict=True)]

    thresholds = walled(rounded, number, plan.backend)
    return walled(
        lambda: [planes(jnp.broadcast_to(part, shape), num_bits, 0) for part in thresholds],
        *(number, plan.backend),
    )


def _neighbors(other: Array, step: Array) -> tuple[Array, Array, Array, Array]:
    """Words of the neighbours above and below, and of the two at the sides."""
    num_rows = other.shape[1]
    rows = np.arange(num_rows)
    # only the first row looks up into another bit, and only the last one down
    first, last = ((rows == row).astype(np.uint32)[:, None] for row in (0, num_rows - 1))
    above = _rotate(other[:, (rows - 1) % num_rows], first)
    below = _rotate(other[:, (rows + 1) % num_rows], 31 * last)
    ringed = jnp.concatenate([other[..., -1:], other, other[..., :1]], axis=2)
    is_even = (jnp.asarray(rows, jnp.uint32)[:, None] + step) % 2 == 0
    return above, below, other, jnp.where(is_even, ringed[..., :-2], ringed[..., 2:])


def _rotate(words: Array, places: np.ndarray) -> Array:
    return (words << places) | (words >> (-places % 32))


def _symmetric(above, below, side, across, likelier):
    """Cases of equal couplings without a field: all or three neighbours alike, or two and two."""
    odd_vertical, odd_horizontal = above ^ below, side ^ across
    both_vertical, both_horizontal = above & below, side & across
    ones = odd_vertical ^ odd_horizontal
    twos = both_vertical ^ both_horizontal ^ (odd_vertical & odd_horizontal)
    is_most = (both_vertical & both_horizontal) | (ones & twos)
    halves = twos & ~ones
    cases = [~(ones | twos), ones]
    return cases, halves, is_most ^ ~likelier[2, 2], [(0, 0), (0, 1)]


def _general(above, below, side, across, likelier):
    """Nine cases: none, one or both up of the two vertical and the two horizontal neighbours."""
    vertical = ~(above | below), above ^ below, above & below
    horizontal = ~(side | across), side ^ across, side & across
    chosen = [(i, j) for i in range(3) for j in range(3)]
    cases = [vertical[i] & horizontal[j] for i, j in chosen]
    is_up = reduce(or_, (case & likelier[at] for case, at in zip(cases, chosen, strict=True)))
    return cases, jnp.uint32(0), is_up, chosen
