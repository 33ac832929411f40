r"""Gibbs sampling of binary fields of low degree, 32 chains in a word.

.. math:: p(x_i = 1 \mid x_{N(i)} = c) = \sigma(\ell_{ic}), \qquad c \in \{0, 1\}^{d}

A node of d neighbours has 2^d conditional probabilities, tabulated once per run. Logical operations
find, for 32 chains at a time, in which of the 2^d configurations the neighbours are, and compare
random numbers with the threshold of that configuration, bit by bit (`thresholds`).
"""

from functools import reduce
from operator import or_

import jax.numpy as jnp
import numpy as np

from jaxmrf.models import PairwiseModel
from jaxmrf.sampling._tiles import neighbor_logits, scan_tiles
from jaxmrf.sampling._walls import walled
from jaxmrf.sampling.philox import key_words, random_words
from jaxmrf.sampling.plans import SamplerPlan
from jaxmrf.sampling.thresholds import dither, draw_errors, errors_of_logits, planes
from jaxmrf.types import Array, Key, UInt

__all__ = ["run"]


def run(
    key: Key,
    words: UInt[Array, "rows words"],
    model: PairwiseModel,
    plan: SamplerPlan,
    *,
    num_sweeps: int,
) -> UInt[Array, "rows words"]:
    """Words after ``num_sweeps`` sweeps.

    Args:
        key: Random key.
        words: Current states, nodes in the order of the sweep plan, a chain in every bit.
        model: Pairwise model of two states.
        plan: Sampler plan of the form "tables".
        num_sweeps: Number of sweeps.
    """
    seed = key_words(key)

    def tabulate(block):
        # in configuration c the neighbour of slot k has bit k of c
        slots = np.arange(block.neighbors.shape[0])[:, None]
        configurations = np.arange(2 ** len(slots)) >> slots & 1
        errors, likelier = errors_of_logits(neighbor_logits(model, block, configurations).T)
        return block.neighbors.astype(np.uint32), errors, likelier

    def update(words, tables, start, sweep):
        return _update(seed, words, tables, start, sweep, plan)

    return scan_tiles(words, plan, tabulate, update, num_sweeps, axis=0)


def _update(seed, words, tables, start, sweep, plan):
    """New words of one tile."""
    neighbors, errors, likelier = tables
    size, width = neighbors.shape[1], words.shape[1]
    cases = [jnp.full((size, width), 0xFFFFFFFF, jnp.uint32)]
    for index in neighbors:
        other = words.at[index].get(mode="promise_in_bounds")
        cases = [case & ~other for case in cases] + [case & other for case in cases]
    outer = (start + jnp.arange(size)).astype(jnp.uint32)[:, None]
    random = random_words(
        *(seed, outer, sweep.astype(jnp.uint32), jnp.arange(width, dtype=jnp.uint32)),
        num_words=plan.num_bits,
        num_rounds=plan.num_rounds,
    )
    masks = _masks(seed, errors, outer[:, 0], sweep, plan)
    share = len(cases) // len(masks)

    def look_up(column):
        terms = (case & column(number)[:, None] for number, case in enumerate(cases))
        return reduce(or_, terms)

    thresholds = [
        look_up(lambda number, plane=plane: masks[number // share][:, plane, number % share])
        for plane in range(plan.num_bits)
    ]
    return look_up(lambda number: likelier[number]) ^ draw_errors(thresholds, random)


def _masks(seed, errors, outer, sweep, plan):
    """Planes of the thresholds, "block num_bits configurations", in a part for each random word."""
    num_parts = min(4, len(errors))
    parts = jnp.split(errors, num_parts)

    def rounded():
        random = random_words(
            *(seed, outer, sweep.astype(jnp.uint32)),
            jnp.arange(len(parts[0]), dtype=jnp.uint32)[:, None],
            num_words=num_parts,
            num_rounds=plan.num_rounds,
            stream=1,
        )
        return [dither(part, word, plan.num_bits) for part, word in zip(parts, random, strict=True)]

    # two walls: random numbers are not to be drawn again for every plane
    thresholds = walled(rounded, sweep, plan.backend)
    return walled(
        lambda: [planes(part.T, plan.num_bits, 1) for part in thresholds], sweep, plan.backend
    )
