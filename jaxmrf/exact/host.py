r"""Exact inference on a junction tree in NumPy and double precision, without compilation.

.. math:: m_c(x_{S_c}) = \sum_{x_{R_c}} \psi_c(x_c) \prod_{k} m_k(x_{S_k}), \qquad
          b_c(x_c) \propto \psi_c \prod_k m_k \, \frac{\sum b_{\mathrm{pa}(c)}}{m_c}

The way to go for one query, and the oracle of the compiled engines. One pass towards the roots
gives log Z, one back all marginals; with maxima in place of sums, the mode. Reference: Lauritzen &
Spiegelhalter, "Local computations with probabilities on graphical structures", JRSS B 50 (1988).
"""

import math
from dataclasses import dataclass

import numpy as np

from jaxmrf.exact._cliques import CliqueStep, clique_steps, product, read
from jaxmrf.graphs import EliminationPlan, Hypergraph
from jaxmrf.graphs.elimination import plan_for
from jaxmrf.models import Beliefs, FactorGraph, Tables
from jaxmrf.types import Float, Int

__all__ = ["mode", "sample", "solve"]

MERGE_BELOW = 128  # a table of this size costs as much as a call into NumPy
_NEGLIGIBLE = 1e-280  # what underflows is nothing beside this
_KEPT = 2**20  # larger clique tables are computed again rather than kept


def solve(factor_graph: FactorGraph, plan: EliminationPlan | None = None) -> Beliefs:
    """Exact log Z and all marginals of variables and factors, as NumPy arrays.

    Impossible evidence gives log Z minus infinity and marginals of zero.

    Args:
        factor_graph: The model, concrete.
        plan: Elimination plan; by default the cheapest of a few.

    Raises:
        ValueError: If the plan is of another model or its tables would be too large.
    """
    graph = factor_graph.hypergraph
    steps = clique_steps(plan_for("host", graph, plan), MERGE_BELOW)
    up = _pass_up(steps, factor_graph)
    if up is None:
        return _impossible(graph)
    nodes = np.zeros(graph.num_node_entries)
    factors = np.zeros(graph.num_entries)
    factors[_constants(graph)] = 1
    down: list = [None] * len(steps)
    for place in reversed(range(len(steps))):
        step = steps[place]
        belief = up.cells(place, step)
        if up.is_log:
            scale = up.messages[place] if down[place] is not None else belief.max()
            belief = np.exp(belief - np.where(scale == -np.inf, 0, scale))
        if down[place] is not None:
            belief = belief * down[place]
        belief = belief / belief.sum()
        up.kept[place] = down[place] = None
        for kind, index, axes, table in read(belief, step.reads):
            if kind == "node":
                start = graph.node_starts[index]
                nodes[start : start + table.size] = table
            elif kind == "factor":
                start = graph.table_starts[index]
                factors[start : start + table.size] = table.transpose(axes).ravel()
            elif up.is_log:
                down[index] = table
            else:
                message = up.messages[index]
                down[index] = np.divide(
                    table, message, out=np.zeros_like(message), where=message > 0
                )
    return _beliefs(graph, up.log_z, nodes, factors)


def mode(
    factor_graph: FactorGraph, plan: EliminationPlan | None = None
) -> tuple[Int[np.ndarray, " nodes"], float]:
    """The most probable configuration and its log potential, by maxima in place of sums.

    Of several equally probable ones it is one; if all are impossible, the log potential is minus
    infinity and the configuration arbitrary.

    Args:
        factor_graph: The model, concrete.
        plan: Elimination plan; by default the cheapest of a few.

    Raises:
        ValueError: If the plan is of another model or its tables would be too large.
    """
    graph = factor_graph.hypergraph
    steps = clique_steps(plan_for("host", graph, plan), MERGE_BELOW)
    tables, evidence, log_scale = _linear(factor_graph, is_log=True)
    messages: list = [None] * len(steps)
    value = log_scale
    for place, step in enumerate(steps):
        total = product(step, tables, evidence, messages, multiply=np.add)
        messages[place] = total.max(axis=tuple(range(len(step.clique.residual))))
        if step.clique.parent < 0:
            value += float(messages[place])
    states = np.zeros(graph.num_nodes, np.int64)
    for step in reversed(steps):
        total = product(step, tables, evidence, messages, multiply=np.add)
        number = len(step.clique.residual)
        rest = tuple(states[node] for node in step.clique.separator)
        here = total[(*(slice(None),) * number, *rest)]
        states[list(step.clique.residual)] = np.unravel_index(here.argmax(), here.shape)
    return states, value


def sample(
    rng: np.random.Generator,
    factor_graph: FactorGraph,
    *,
    num_samples: int,
    plan: EliminationPlan | None = None,
) -> Int[np.ndarray, "items nodes"]:
    """Exact independent draws: the roots first, then every clique given its parent.

    Args:
        rng: NumPy random generator.
        factor_graph: The model, concrete.
        num_samples: Number of draws.
        plan: Elimination plan; by default the cheapest of a few.

    Raises:
        ValueError: As for ``solve``, or if all configurations are impossible.
    """
    graph = factor_graph.hypergraph
    steps = clique_steps(plan_for("host", graph, plan), MERGE_BELOW)
    up = _pass_up(steps, factor_graph)
    if up is None:
        raise ValueError(
            "sample: expected a possible configuration, got none; mend the evidence or the "
            "zeros of the tables"
        )
    states = np.zeros((graph.num_nodes, num_samples), np.int32)
    for place, step in reversed(list(enumerate(steps))):
        number = len(step.clique.residual)
        cells = up.cells(place, step)
        if up.is_log:
            top = cells.max(axis=tuple(range(number)))
            cells = np.exp(cells - np.where(top == -np.inf, 0, top))
        sums = cells.reshape(-1, *step.shape[number:]).cumsum(axis=0)
        uniform = rng.random(num_samples)
        rest = tuple(states[node] for node in step.clique.separator)
        # one state of the separator after the other: its draws share their cumulative sums
        code = np.ravel_multi_index(rest, step.shape[number:]) if rest else np.zeros_like(uniform)
        code = code.astype(np.int64)
        sums = sums.reshape(len(sums), -1)
        drawn = np.empty(num_samples, np.int64)
        for value in np.unique(code):
            is_here = code == value
            column = sums[:, value]
            drawn[is_here] = np.searchsorted(column, uniform[is_here] * column[-1], side="right")
        states[list(step.clique.residual)] = np.unravel_index(drawn, step.shape[:number])
    return states.T


@dataclass
class _Up:
    """What the pass towards the roots leaves behind, in linear space or in logs."""

    is_log: bool
    tables: Tables
    evidence: Tables
    log_z: float
    messages: list  # largest entry 1
    tops: list  # log of what they were divided by, of logs alone
    kept: list  # cells of the cliques, if not too large

    def cells(self, place: int, step: CliqueStep) -> np.ndarray:
        """The product of all that a clique was given; logs on the scale of its message."""
        if self.kept[place] is not None:
            return self.kept[place]
        multiply = np.add if self.is_log else np.multiply
        cells = product(step, self.tables, self.evidence, self.messages, multiply=multiply)
        return cells - self.tops[place] if self.is_log else cells


def _pass_up(steps: tuple[CliqueStep, ...], factor_graph: FactorGraph) -> _Up | None:
    """Messages of all cliques; None if all configurations are impossible.

    Linear space is several times faster; what is too small for it may be all that is left of a
    state that later evidence makes probable, so then all is done again in logs.
    """
    lost: list = []  # one item for every underflow
    try:
        with np.errstate(under="call", call=lambda *_: lost.append(1)):
            return _try_up(steps, factor_graph, is_log=False, lost=lost)
    except FloatingPointError:
        return _try_up(steps, factor_graph, is_log=True, lost=[])


def _try_up(steps, factor_graph: FactorGraph, is_log: bool, lost: list) -> _Up | None:
    tables, evidence, log_z = _linear(factor_graph, is_log)
    is_lossy = bool(lost)
    empty = lambda: [None] * len(steps)  # noqa: E731
    up = _Up(is_log, tables, evidence, log_z, empty(), empty(), empty())
    if log_z == -math.inf:
        return None
    for place, step in enumerate(steps):
        up.tops[place] = 0
        cells = up.cells(place, step)
        axes = tuple(range(len(step.clique.residual)))
        message = _log_sum(cells, axes) if is_log else cells.sum(axis=axes)
        top = message.max()
        if top == (-np.inf if is_log else 0) and not lost:
            return None
        if is_log:
            up.log_z += float(top)
            up.tops[place] = top
            up.messages[place] = message - top
            cells = cells - top
        else:
            up.messages[place] = message = message / top if top > 0 else message
            if lost and message.min() < _NEGLIGIBLE:
                raise FloatingPointError("sums so small may lack what was lost")
            if not is_lossy:
                lost.clear()
            up.log_z += math.log(top)
        up.kept[place] = cells if cells.size <= _KEPT else None
    return up


def _log_sum(logs: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    """Log of the sum of exponentials."""
    top = logs.max(axis=axes)
    top = np.where(top == -np.inf, 0, top)
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(np.exp(logs - top).sum(axis=axes)) + top)


def _linear(factor_graph: FactorGraph, is_log: bool = False):
    """Tables and evidence with largest entry 1 (or their logs), and the log of the scale."""
    graph = factor_graph.hypergraph
    starts = np.sort(graph.table_starts)
    logs = np.asarray(factor_graph.log_tables, np.float64)
    tops = np.maximum.reduceat(logs, starts) if len(starts) else np.zeros(0)
    tops = np.where(np.isfinite(tops), tops, 0)
    sizes = np.diff(np.append(starts, graph.num_entries))
    evidence = np.asarray(factor_graph.log_evidence, np.float64)
    log_scale = float(tops.sum()) + float((logs - np.repeat(tops, sizes))[_constants(graph)].sum())
    logs = logs - np.repeat(tops, sizes)
    if is_log:
        return Tables(logs, graph, True), Tables(evidence, graph, False), log_scale
    peaks = np.maximum.reduceat(evidence, graph.node_starts)
    peaks = np.where(np.isfinite(peaks), peaks, 0)
    evidence = np.exp(evidence - np.repeat(peaks, graph.num_states))
    log_scale += float(peaks.sum())
    return Tables(np.exp(logs), graph, True), Tables(evidence, graph, False), log_scale


def _constants(graph: Hypergraph) -> slice:
    """Where the factors without variables lie."""
    stop = graph.stacks[0].stop if graph.stacks and graph.stacks[0].shape == () else 0
    return slice(0, stop)


def _impossible(graph: Hypergraph) -> Beliefs:
    return _beliefs(graph, -np.inf, np.zeros(graph.num_node_entries), np.zeros(graph.num_entries))


def _beliefs(
    graph: Hypergraph,
    log_z: float,
    nodes: Float[np.ndarray, " node_entries"],
    factors: Float[np.ndarray, " entries"],
) -> Beliefs:
    return Beliefs(
        log_z=np.asarray(log_z),
        nodes=Tables(nodes, graph, is_of_factors=False),
        factors=Tables(factors, graph, is_of_factors=True),
        is_converged=np.asarray(True),
        num_iters=np.asarray(0),
    )
