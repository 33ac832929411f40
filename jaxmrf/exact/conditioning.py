r"""Exact inference when the tables are a little too large: sum over a few variables outside.

.. math:: Z = \sum_{x_C} Z(x_C), \qquad p(x_i) = \sum_{x_C} p(x_i \mid x_C) \frac{Z(x_C)}{Z}

Every state of the cutset C leaves a model of smaller width, all of one structure. Reference: Pearl,
"A constraint-propagation approach to probabilistic reasoning", UAI (1985).
"""

import itertools
import math

import numpy as np

from jaxmrf.exact import host
from jaxmrf.graphs import EliminationPlan, Hypergraph, elimination_plan
from jaxmrf.graphs.elimination import MAX_MEMORY, as_bytes
from jaxmrf.models import Beliefs, FactorGraph, Tables

__all__ = ["MAX_CONFIGURATIONS", "cutset", "reduced_beliefs", "solve"]

MAX_CONFIGURATIONS = 2**10
"""Refuse cutsets with more configurations."""


def solve(
    factor_graph: FactorGraph,
    nodes: tuple[int, ...] | None = None,
    *,
    max_memory: float | int = MAX_MEMORY,
) -> Beliefs:
    """Exact log Z and all marginals, one state of the cutset after the other, in NumPy.

    Args:
        factor_graph: The model, concrete.
        nodes: The cutset; by default a greedy one that brings the tables within ``max_memory``.
        max_memory: Largest table allowed, in bytes of double precision.

    Raises:
        ValueError: If no cutset of at most ``MAX_CONFIGURATIONS`` is found.
    """
    if nodes is None:
        nodes = cutset(factor_graph.hypergraph, max_memory=max_memory)
    levels = [range(factor_graph.num_states[node]) for node in nodes]
    parts = []
    for states in itertools.product(*levels):
        given = dict(zip(nodes, states, strict=True))
        model = factor_graph.condition(given)
        plan = elimination_plan(model.hypergraph, max_memory=max_memory)
        parts.append(reduced_beliefs(factor_graph, given, host.solve(model, plan)))
    logs = np.array([part.log_z for part in parts])
    top = logs.max()
    weights = np.exp(logs - top) if top > -np.inf else np.zeros(len(logs))
    total = weights.sum()
    shares = weights / total if total > 0 else weights
    mean = lambda rows: sum(w * row.flat for w, row in zip(shares, rows, strict=True))  # noqa: E731
    graph = factor_graph.hypergraph
    return Beliefs(
        log_z=np.asarray(top + math.log(total) if total > 0 else -np.inf),
        nodes=Tables(mean([part.nodes for part in parts]), graph, is_of_factors=False),
        factors=Tables(mean([part.factors for part in parts]), graph, is_of_factors=True),
        is_converged=np.asarray(True),
        num_iters=np.asarray(0),
    )


def cutset(hypergraph: Hypergraph, *, max_memory: float | int = MAX_MEMORY) -> tuple[int, ...]:
    """Variables whose states, once given, leave a model within the memory, found greedily.

    Args:
        hypergraph: Variables and scopes.
        max_memory: Largest table allowed, in bytes of double precision.

    Raises:
        ValueError: If the variables found have more than ``MAX_CONFIGURATIONS`` configurations,
            or not even one variable fits into the memory.
    """
    smallest = 8 * max(hypergraph.num_states, default=1)
    if max_memory < smallest:
        raise ValueError(
            f"cutset: expected memory for the largest variable, {as_bytes(smallest)}, got "
            f"{as_bytes(max_memory)}; allow more"
        )
    nodes: list[int] = []
    while True:
        scopes = [[one for one in scope if one not in nodes] for scope in hypergraph.scopes]
        plan = elimination_plan(Hypergraph(hypergraph.num_states, scopes), max_memory=math.inf)
        if plan.memory <= max_memory:
            return tuple(nodes)
        nodes.append(_most_needed(plan))
        number = math.prod(hypergraph.num_states[node] for node in nodes)
        if number > MAX_CONFIGURATIONS:
            raise ValueError(
                f"cutset: expected at most {MAX_CONFIGURATIONS} configurations of a cutset, got "
                f"{number} and still tables of 2^{plan.width:.1f} entries; observe more variables, "
                "allow more memory, or use a method of jaxmrf.variational or jaxmrf.sampling"
            )


def _most_needed(plan: EliminationPlan) -> int:
    """The variable in the largest total number of cells of the largest tables."""
    score = np.zeros(plan.hypergraph.num_nodes)
    for cells, bucket in zip(plan.num_cells, plan.buckets, strict=True):
        score[[*bucket.separator, bucket.node]] += cells
    return int(score.argmax())


def reduced_beliefs(factor_graph: FactorGraph, given: dict[int, int], beliefs: Beliefs) -> Beliefs:
    """Beliefs of a model from those of the same model conditioned on some variables.

    Args:
        factor_graph: The model.
        given: States of the variables it was conditioned on.
        beliefs: Beliefs of ``factor_graph.condition(given)``, as NumPy arrays.
    """
    graph = factor_graph.hypergraph
    flat = np.zeros(graph.num_entries)
    factors = Tables(flat, graph, is_of_factors=True)
    for table, scope, found in zip(factors, graph.scopes, beliefs.factors, strict=True):
        table[tuple(given.get(node, slice(None)) for node in scope)] = found
    nodes = Tables(beliefs.nodes.flat, graph, is_of_factors=False)
    return beliefs._replace(nodes=nodes, factors=factors)
