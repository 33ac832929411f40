"""The loop over the tiles of a coloured sweep, for states in words."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxmrf.graphs import NeighborBlock
from jaxmrf.models import PairwiseModel
from jaxmrf.sampling._walls import walled
from jaxmrf.sampling.plans import SamplerPlan
from jaxmrf.types import Array, Float, UInt

__all__ = ["neighbor_logits", "scan_tiles"]


def neighbor_logits(
    model: PairwiseModel, block: NeighborBlock, configurations: np.ndarray
) -> Float[Array, "block configurations"]:
    """Log odds of state 1 of a block's nodes, for given states of their neighbours.

    Args:
        model: Pairwise model of two states.
        block: Its nodes.
        configurations: State of the neighbour in every slot, "degree configurations".
    """
    slots = np.arange(len(configurations), dtype=np.int32)[:, None]
    block = replace(block, neighbors=np.broadcast_to(slots, block.neighbors.shape))
    return model.relative_logits(block, jnp.asarray(configurations, jnp.int8))[0]


def scan_tiles(
    words: UInt[Array, "_ _"],
    plan: SamplerPlan,
    tabulate: Callable[[NeighborBlock], Any],
    update: Callable[[Array, Any, Array, Array], Array],
    num_sweeps: int,
    *,
    axis: int,
) -> UInt[Array, "_ _"]:
    """Words after some sweeps, tile after tile, one an iteration.

    Args:
        words: Current states, nodes in the order of the tiles along ``axis``.
        plan: Sampler plan on a sweep plan.
        tabulate: What the update of a tile needs to know of the model, computed once.
        update: New words of a tile, from all words, its tables, its first row and the number of
            the sweep.
        num_sweeps: Number of sweeps.
        axis: Axis of the nodes.
    """
    stacks, first_row = [], 0
    for stack in plan.layout.tiles:
        num_tiles, size = stack.nodes.shape
        starts = first_row + size * np.arange(num_tiles, dtype=np.int32)
        stacks.append((starts, jax.lax.map(tabulate, stack)))
        first_row += num_tiles * size

    def sweep_once(sweep, words):
        def step(words, tile):
            start, tables = tile
            new = walled(lambda: update(words, tables, start, sweep), start, plan.backend)
            # outside of the wall: a fusion that ends in this is not vectorised
            return jax.lax.dynamic_update_slice_in_dim(words, new, start, axis), None

        for stack in stacks:
            words, _ = jax.lax.scan(step, words, stack)
        return words

    return jax.lax.fori_loop(0, num_sweeps, sweep_once, words)
