r"""Exact independent draws from a factor graph, compiled: one pass up, then one variable at a time.

.. math:: x_v \sim p(x_v \mid x_{S_v}) \propto \prod_{f \in B_v} f(x_v, x_{S_v})

The variables are drawn in the reverse of the order in which they were summed out, each from the
product of its bucket at the states drawn before, all in one scanned body. Reference: Dechter,
"Bucket elimination", Artificial Intelligence 113 (1999).
"""

from functools import lru_cache, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxmrf.exact.junction_tree import gather_up
from jaxmrf.graphs import EliminationPlan
from jaxmrf.graphs.elimination import plan_for
from jaxmrf.graphs.gather import split_plan
from jaxmrf.models import FactorGraph
from jaxmrf.types import Array, Int, Key

__all__ = ["MAX_CELLS", "draw", "sample"]

MAX_CELLS = 2**22
"""Refuse eliminations that visit more configurations; ``host.sample`` has no such limit."""


class _Steps(NamedTuple):
    """The variables in the order in which they are drawn, their tables padded to equal numbers."""

    nodes: np.ndarray  # [steps]
    levels: np.ndarray  # [steps, states], whether the variable has that many
    places: np.ndarray  # [steps, tables]
    others: np.ndarray  # [steps, separator]
    strides: np.ndarray  # [steps, tables, separator]
    own: np.ndarray  # [steps, tables]


def sample(
    key: Key, factor_graph: FactorGraph, plan: EliminationPlan | None = None, *, num_samples: int
) -> Int[Array, "items nodes"]:
    """Independent draws of all variables.

    If all configurations are impossible, so are the draws, of states that exist all the same.

    Args:
        key: Random key.
        factor_graph: The model.
        plan: Elimination plan; by default the cheapest of a few.
        num_samples: Number of draws.

    Raises:
        ValueError: If the plan is of another model or visits more than ``MAX_CELLS``
            configurations.

    >>> agree = jnp.array([[0.0, -jnp.inf], [-jnp.inf, 0.0]])
    >>> graph = FactorGraph.from_tables([2, 2], [(0, 1)], [agree])
    >>> bool((sample(jax.random.key(0), graph, num_samples=9).sum(axis=1) % 2 == 0).all())
    True
    """
    plan = plan_for("sample", factor_graph.hypergraph, plan)
    if plan.total_cells > MAX_CELLS:
        raise ValueError(
            f"sample: expected an elimination of at most {MAX_CELLS} configurations, got "
            f"{plan.total_cells:.3g}; use exact.host.sample, or sample the model by Gibbs"
        )
    arrays = jnp.asarray(factor_graph.log_tables), jnp.asarray(factor_graph.log_evidence)
    return _sample(key, plan, *arrays, num_samples)


@partial(jax.jit, static_argnames=("plan", "num_samples"))
def _sample(key: Key, plan: EliminationPlan, log_tables, log_evidence, num_samples: int):
    return draw(key, plan, log_tables, log_evidence, num_samples).T


def draw(
    key: Key, plan: EliminationPlan, log_tables: Array, log_evidence: Array, num_items: int
) -> Int[Array, "nodes items"]:
    """Draws of one model, or one draw each of many models of one structure.

    Args:
        key: Random key.
        plan: Elimination plan.
        log_tables: Log tables of the factors; those of many models on the last axis.
        log_evidence: Log likelihood of every state; likewise.
        num_items: Number of draws, or of models.
    """
    if not plan.order:
        return jnp.zeros((0, num_items), jnp.int32)
    split = split_plan(plan, MAX_CELLS)
    buffer, _ = gather_up(split.gather, log_tables, log_evidence)
    steps = _steps(plan)
    num_states = np.arange(steps.levels.shape[1])

    def read(index):
        return buffer[index] if buffer.ndim == 1 else buffer[index, np.arange(num_items)]

    def visit(states, xs):
        key, step = xs
        place = step.places + step.own * num_states[:, None]  # [states, tables]
        known = states[step.others]  # [separator, items]
        shift = jnp.einsum("td,di->ti", step.strides, known)
        logs = read(place[..., None] + shift).sum(axis=1)
        logs = jnp.where(step.levels[:, None], logs, -jnp.inf)
        # no state of probability zero: uniforms are below one, and sums are compared as they are
        top = logs.max(axis=0)
        sums = jnp.cumsum(jnp.exp(logs - jnp.where(top == -jnp.inf, 0, top)), axis=0)
        uniform = jax.random.uniform(key, (num_items,), sums.dtype)
        drawn = (sums[:-1] <= uniform * sums[-1]).sum(axis=0)
        drawn = jnp.minimum(drawn, step.levels.sum() - 1)  # where all states are impossible
        return states.at[step.nodes].set(drawn.astype(states.dtype)), None

    states = jnp.zeros((plan.hypergraph.num_nodes, num_items), jnp.int32)
    xs = (jax.random.split(key, len(steps.nodes)), steps)
    return jax.lax.scan(visit, states, xs)[0]


@lru_cache(maxsize=64)
def _steps(plan: EliminationPlan) -> _Steps:
    split, graph = split_plan(plan, MAX_CELLS), plan.hypergraph
    reads = split.reads[::-1]
    number = max((len(tables) for _, tables in reads), default=1)
    depth = max(plan.treewidth, 1)
    size = len(reads)
    one = split.gather.start - 2  # a place that holds the log of one
    places = np.full((size, number), one, np.int32)
    own = np.zeros((size, number), np.int32)
    others = np.zeros((size, depth), np.int32)
    strides = np.zeros((size, number, depth), np.int32)
    for step, (node, tables) in enumerate(reads):
        known = sorted({other for _, scope in tables for other in scope} - {node})
        others[step, : len(known)] = known
        for column, (place, scope) in enumerate(tables):
            places[step, column] = place
            stride = 1
            for other in reversed(scope):
                if other == node:
                    own[step, column] = stride
                else:
                    strides[step, column, known.index(other)] = stride
                stride *= graph.num_states[other]
    nodes = np.array([node for node, _ in reads], np.int32)
    sizes = np.array(graph.num_states)[nodes]
    levels = np.arange(sizes.max(initial=1)) < sizes[:, None]
    return _Steps(nodes, levels, places, others, strides, own)
