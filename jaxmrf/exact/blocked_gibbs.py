r"""Gibbs sampling whose blocks are drawn exactly, each by elimination given the rest.

.. math:: x_B \sim p(x_B \mid x_{-B})

Blocks that form forests cost a pass over their variables and move long branches at once, where
single variables would be held by their neighbours. Reference: Hamze & de Freitas, "From fields to
trees", UAI (2004); Jensen, Kong & Kjaerulff, "Blocking Gibbs sampling" (1995).
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxmrf.exact.draws import draw
from jaxmrf.graphs import EliminationPlan, Hypergraph, elimination_plan
from jaxmrf.graphs.conditionals import ConditionalPlan, conditional_plan, forest_blocks
from jaxmrf.models import FactorGraph
from jaxmrf.types import Array, Int, Key

__all__ = ["BlockedPlan", "blocked_plan", "run", "sweep"]


class BlockedPlan(NamedTuple):
    """Blocks of a sweep.

    Attributes:
        conditionals: Each block given the rest.
        eliminations: How each is summed out.
    """

    conditionals: tuple[ConditionalPlan, ...]
    eliminations: tuple[EliminationPlan, ...]


def blocked_plan(
    hypergraph: Hypergraph,
    blocks: Sequence[Sequence[int]] | None = None,
    *,
    max_memory: float | int = 2**24,
) -> BlockedPlan:
    """The plan of a sweep.

    Args:
        hypergraph: Structure of the model.
        blocks: Variables of every block; by default forests that cover all.
        max_memory: Largest table of a block, in bytes of double precision.

    Raises:
        ValueError: If a block names a variable twice or needs larger tables.
    """
    blocks = forest_blocks(hypergraph) if blocks is None else blocks
    conditionals = tuple(conditional_plan(hypergraph, block) for block in blocks)
    eliminations = tuple(
        elimination_plan(one.hypergraph, max_memory=max_memory) for one in conditionals
    )
    return BlockedPlan(conditionals, eliminations)


def sweep(
    key: Key, states: Int[Array, "nodes chains"], factor_graph: FactorGraph, plan: BlockedPlan
) -> Int[Array, "nodes chains"]:
    """Draw every block of every chain once, given the rest.

    Start from ``sampling.factor_gibbs.init``.

    Args:
        key: Random key.
        states: Current states.
        factor_graph: The model.
        plan: Its plan.

    Returns:
        New states; the distribution of the model is left invariant.
    """
    log_tables = jnp.asarray(factor_graph.log_tables)
    log_evidence = jnp.asarray(factor_graph.log_evidence)
    num_chains = states.shape[1]
    for number, (block, elimination) in enumerate(zip(*plan, strict=True)):
        known = states[block.others].astype(jnp.int32)
        shift = (block.strides[..., None] * known).sum(axis=1)
        tables = log_tables[block.places[:, None] + shift[block.owners]]
        evidence = log_evidence[block.evidence]
        evidence = jnp.broadcast_to(evidence[:, None], (len(evidence), num_chains))
        drawn = draw(jax.random.fold_in(key, number), elimination, tables, evidence, num_chains)
        states = states.at[block.nodes].set(drawn.astype(states.dtype))
    return states


def run(
    key: Key,
    states: Int[Array, "nodes chains"],
    factor_graph: FactorGraph,
    plan: BlockedPlan,
    *,
    num_sweeps: int,
) -> Int[Array, "nodes chains"]:
    """States after ``num_sweeps`` sweeps.

    Args:
        key: Random key.
        states: Current states.
        factor_graph: The model.
        plan: Its plan.
        num_sweeps: Number of sweeps.
    """

    def body(number, states):
        return sweep(jax.random.fold_in(key, number), states, factor_graph, plan)

    return jax.lax.fori_loop(0, num_sweeps, body, states)
