"""One question, whatever the model: the cheapest exact engine answers it.

Observed variables are sliced out of the tables first. One query of known numbers is answered in
NumPy, which compiles nothing; a traced model goes to the compiled junction tree. Reference: Jordan,
"Graphical models", Statistical Science 19 (2004), section 2.2.
"""

import heapq
from dataclasses import replace
from typing import NamedTuple

import jax
import numpy as np

from jaxmrf.exact import conditioning, host, junction_tree
from jaxmrf.graphs import elimination_plan
from jaxmrf.graphs.elimination import MAX_MEMORY
from jaxmrf.models import Beliefs, FactorGraph
from jaxmrf.types import Int

__all__ = ["Mode", "m_best", "mode", "solve"]


class Mode(NamedTuple):
    """A most probable configuration.

    Attributes:
        states: State of every variable.
        log_potential: Its unnormalised log-probability, evidence included; minus infinity if
            every configuration is impossible.
    """

    states: Int[np.ndarray, " nodes"]
    log_potential: float


def solve(factor_graph: FactorGraph, *, max_memory: float | int = MAX_MEMORY) -> Beliefs:
    """Exact log Z (natural log) and marginals of all variables and factors.

    Impossible evidence gives log Z minus infinity and marginals of zero.

    Args:
        factor_graph: The model with its evidence.
        max_memory: Largest table allowed, in bytes of double precision.

    Raises:
        ValueError: If the tables would be too large, by more than a small cutset can mend.

    >>> agree = np.log([[3.0, 1.0], [1.0, 3.0]])
    >>> graph = FactorGraph.from_tables([2, 2], [(0, 1)], [agree])
    >>> solve(graph.observe({0: 1})).nodes[1].round(3).tolist()
    [0.25, 0.75]
    """
    if _is_traced(factor_graph):
        plan = elimination_plan(factor_graph.hypergraph, max_memory=max_memory)
        return junction_tree.solve(factor_graph, plan)
    given = factor_graph.observed()
    model = factor_graph.condition(given) if given else factor_graph
    plan = elimination_plan(model.hypergraph, max_memory=np.inf)
    if plan.memory <= max_memory:
        beliefs = host.solve(model, plan)
    else:
        beliefs = conditioning.solve(model, max_memory=max_memory)
    return conditioning.reduced_beliefs(factor_graph, given, beliefs) if given else beliefs


def mode(factor_graph: FactorGraph, *, max_memory: float | int = MAX_MEMORY) -> Mode:
    """A most probable configuration given the evidence, exactly.

    Args:
        factor_graph: The model with its evidence, concrete.
        max_memory: Largest table allowed, in bytes of double precision.

    Raises:
        ValueError: If the tables would be too large.

    >>> agree = np.log([[3.0, 1.0], [1.0, 3.0]])
    >>> graph = FactorGraph.from_tables([2, 2], [(0, 1)], [agree])
    >>> mode(graph.observe({0: 1})).states.tolist()
    [1, 1]
    """
    given = factor_graph.observed()
    model = factor_graph.condition(given) if given else factor_graph
    plan = elimination_plan(model.hypergraph, max_memory=max_memory)
    states, value = host.mode(model, plan)
    states[list(given)] = list(given.values())
    return Mode(states, value)


def m_best(
    factor_graph: FactorGraph, number: int, *, max_memory: float | int = MAX_MEMORY
) -> list[Mode]:
    """The most probable configurations, in order; fewer if fewer are possible.

    The space is split around each one found (Lawler 1972): it agrees with it on some leading
    variables and differs on the next.

    Args:
        factor_graph: The model with its evidence, concrete.
        number: How many, at least 1.
        max_memory: Largest table allowed, in bytes of double precision.

    Raises:
        ValueError: If the number is not positive or the tables would be too large.
    """
    if number < 1:
        raise ValueError(
            f"m_best: expected a positive number of configurations, got {number}; ask for one at "
            "least"
        )
    plan = elimination_plan(factor_graph.hypergraph, max_memory=max_memory)
    graph = factor_graph.hypergraph
    found: list[Mode] = []
    count = 0
    heap: list[tuple] = []

    def push(allowed: np.ndarray, first: int) -> None:
        """Queue the best configuration among those allowed; leading variables are fixed."""
        nonlocal count
        evidence = np.where(allowed, np.asarray(factor_graph.log_evidence, np.float64), -np.inf)
        states, value = host.mode(replace(factor_graph, log_evidence=evidence), plan)
        if value > -np.inf:
            count += 1
            heapq.heappush(heap, (-value, count, states, allowed, first))

    push(np.ones(graph.num_node_entries, bool), 0)
    while heap and len(found) < number:
        value, _, states, allowed, first = heapq.heappop(heap)
        found.append(Mode(states, -value))
        if len(found) == number:
            break
        fixed = allowed.copy()
        for node in range(first, graph.num_nodes):
            start = int(graph.node_starts[node])
            stop = start + graph.num_states[node]
            other = fixed.copy()
            other[start + states[node]] = False
            if other[start:stop].any():
                push(other, node)
            fixed[start:stop] = False
            fixed[start + states[node]] = True
    return found


def _is_traced(factor_graph: FactorGraph) -> bool:
    leaves = (factor_graph.log_tables, factor_graph.log_evidence)
    return any(isinstance(leaf, jax.core.Tracer) for leaf in leaves)
