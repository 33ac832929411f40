r"""Generalised belief propagation on a region graph, and Kikuchi's approximation of log Z.

Beliefs :math:`b_r` of regions that agree on what they share, at a stationary point of

.. math:: \log Z \approx \sum_r c_r \Big(\sum_{f \in r} \langle\theta_f\rangle_{b_r}
    + \sum_{i \in r} \langle\lambda_i\rangle_{b_r} + H(b_r)\Big)

All methods share these fixed points. Exact where the regions form a junction tree; belief
propagation on ``bethe_regions``; in general a bound from neither side. References: Yedidia,
Freeman & Weiss (2005) for messages from parents to children; Heskes, Albers & Kappen (2003),
"Approximate inference and constrained optimization", for the single and the double loop.
"""

from functools import lru_cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxmrf.graphs.region_layout import RegionLayout, region_layout
from jaxmrf.graphs.regions import RegionGraph
from jaxmrf.models import Beliefs, FactorGraph
from jaxmrf.models.beliefs import Tables
from jaxmrf.types import Array, Bool, Float, Int
from jaxmrf.variational._fixed_point import Stopping, fixed_point, value_with_gradient
from jaxmrf.variational._pooling import log_or_zero, normalize, pool

__all__ = ["METHODS", "solve"]

METHODS = ("auto", "single_loop", "double_loop", "parent_to_child")
"""What ``solve`` takes as ``method``."""

# steps of the inner loop after which the outer one goes on regardless
_MAX_INNER = 200


class _Run(NamedTuple):
    """Where a loop ended: messages, their largest change, and the number of steps."""

    messages: Float[Array, " message_entries"]
    gap: Float[Array, ""]
    num_iters: Int[Array, ""]


def solve(
    factor_graph: FactorGraph,
    region_graph: RegionGraph,
    *,
    method: str = "auto",
    damping: float = 0.7,
    tolerance: float | None = None,
    max_iters: int = 2000,
) -> Beliefs:
    """Beliefs of generalised belief propagation, and Kikuchi's log Z.

    The gradient of ``log_z`` is the beliefs; gradients of the beliefs come from the fixed point.
    What no consistent beliefs can hold is found first and stays at probability zero; if nothing is
    left, ``log_z`` is minus infinity and all beliefs are zero.

    Args:
        factor_graph: The model.
        region_graph: Regions of its hypergraph, from ``cluster_variation`` or ``bethe_regions``.
        method: "single_loop", messages between the outermost regions and all regions inside them;
            "double_loop", which increases the approximation of log Z in every outer step and
            converges on any model, more slowly; "auto", the single loop and, where that does not
            converge, the double loop from the start; or "parent_to_child", the messages of
            Yedidia, Freeman & Weiss.
        damping: Share of the old log message that is kept, in [0, 1); the double loop sets its own.
        tolerance: Largest change of a log message, before damping, that counts as none; by
            default 1e-5, or 1e-9 in double precision.
        max_iters: Steps after which to give up, for each loop of "auto".

    Returns:
        Kikuchi's log Z, beliefs of the variables and factors, whether the messages came to rest,
        and the steps that took.

    Raises:
        ValueError: If the region graph is of another hypergraph or an option out of range.

    >>> from jaxmrf.graphs.regions import bethe_regions
    >>> chain = FactorGraph.from_tables([2, 2], [(0, 1)], [np.log([[3.0, 1.0], [1.0, 3.0]])])
    >>> beliefs = solve(chain.observe({0: 1}), bethe_regions(chain.hypergraph))
    >>> print(beliefs.nodes[1].round(2), beliefs.log_z.round(3))
    [0.25 0.75] 1.386
    """
    _check(factor_graph, region_graph, method, damping, max_iters)
    layout = region_layout(region_graph, is_two_level=method != "parent_to_child")
    source = jnp.concatenate(
        [jnp.asarray(factor_graph.log_tables), jnp.asarray(factor_graph.log_evidence)]
    )
    potentials = pool(layout.potentials, source)
    is_possible = _possible(layout, potentials)
    parameters = jnp.where(is_possible, potentials, 0), is_possible
    if tolerance is None:
        tolerance = 1e-5 if jnp.finfo(source.dtype).bits <= 32 else 1e-9
    rule = Stopping(tolerance, max_iters)
    update = _parent_to_child if method == "parent_to_child" else _two_level
    # the loops are not differentiated: the fixed point that they find is
    known = jax.lax.stop_gradient(parameters)
    start = _Run(jnp.zeros(len(layout.message_of), source.dtype), _infinity(source), jnp.array(0))
    run = start
    if method != "double_loop":
        run = _single_loop(layout, update, known, start, rule, 1 - damping)
    if method in ("auto", "double_loop"):
        is_done = run.gap <= rule.tolerance
        other = _double_loop(layout, known, start, is_done, rule)
        num_iters = run.num_iters + other.num_iters
        run = jax.tree.map(lambda new, old: jnp.where(is_done, old, new), other, run)
        run = run._replace(num_iters=num_iters)
    messages = fixed_point(
        lambda _, messages: (messages, jnp.zeros((), messages.dtype)),
        lambda parameters, messages: messages + update(layout, parameters, messages)[1],
        Stopping(0.0, 1),
        parameters,
        run.messages,
    ).messages
    logs, _ = update(layout, parameters, messages)
    return _beliefs(factor_graph, layout, parameters, logs, run, rule)


def _single_loop(layout, update, parameters, start: _Run, rule: Stopping, step: float) -> _Run:
    """Damped updates of all messages at once."""

    def is_moving(run):
        return (run.gap > rule.tolerance) & (run.num_iters < rule.max_iters)

    def advance(run):
        _, changes = update(layout, parameters, run.messages, step)
        return _Run(run.messages + step * changes, _largest(changes), run.num_iters + 1)

    return jax.lax.while_loop(is_moving, advance, start)


def _double_loop(layout, parameters, start: _Run, is_done: Bool[Array, ""], rule: Stopping) -> _Run:
    """Negative counting numbers made linear in the outer loop, so that the inner one is concave.

    A step of the inner loop is the mean of steps that would be exact alone, hence it increases the
    concave dual of the inner problem.
    """
    potentials, is_possible = parameters
    split, tiny = layout.num_outer, rule.tolerance
    own, is_own = potentials[split:], is_possible[split:]
    child = layout.child_entry - split
    num_parents, counts = _numbers_of_inner(layout)
    share = (np.maximum(-counts, 0) / num_parents).astype(own.dtype)
    step = 1 / _most_inside(layout.graph)

    def linear_part(logs):
        return jnp.where(is_own, share * (logs - own), 0)[child]

    def inner_loop(outer, start, reached):
        def is_moving(state):
            run, _ = state
            has_time = run.num_iters < jnp.minimum(start.num_iters + _MAX_INNER, rule.max_iters)
            return (run.gap > reached) & has_time

        def advance(state):
            run, _ = state
            logs, changes = _two_level(layout, (outer, is_possible), run.messages, is_convex=True)
            run = _Run(run.messages + step * changes, _largest(changes), run.num_iters + 1)
            return run, logs[split:]

        return jax.lax.while_loop(is_moving, advance, (start, jnp.zeros_like(own)))

    def is_moving(state):
        run, _ = state
        return ~is_done & (run.gap > tiny) & (run.num_iters < rule.max_iters)

    def advance(state):
        run, old = state
        outer = potentials.at[:split].add(pool(layout.into_outer, linear_part(old)))
        reached = jnp.clip(0.1 * run.gap, tiny, 0.1)
        inner, new = inner_loop(outer, run._replace(gap=_infinity(own)), reached)
        change = _largest(jnp.where(is_own, new - jnp.where(is_own, old, 0), 0))
        return inner._replace(gap=jnp.maximum(change, inner.gap)), new

    uniform = jnp.where(is_own, 0, -jnp.inf).astype(own.dtype)
    uniform = normalize(layout.runs[layout.num_outer_runs :], uniform)
    run, logs = jax.lax.while_loop(is_moving, advance, (start, uniform))
    # the same beliefs in terms of the single loop's messages
    return run._replace(messages=run.messages + linear_part(logs))


def _two_level(layout: RegionLayout, parameters, messages, step: float = 1, is_convex=False):
    """Log beliefs for the messages of Heskes, Albers & Kappen, and how they should change."""
    potentials, is_possible = parameters
    split, runs = layout.num_outer, layout.runs
    num_parents, counts = _numbers_of_inner(layout)
    counts = np.maximum(counts, 0) if is_convex else counts
    total = (num_parents + counts).astype(potentials.dtype)
    is_sent = is_possible[layout.child_entry]
    logs = potentials[:split] + pool(layout.into_outer, messages)
    logs = jnp.where(is_possible[:split], logs, -jnp.inf)
    logs = normalize(runs[: layout.num_outer_runs], logs)
    sums = log_or_zero(pool(layout.to_child, jnp.exp(logs)))
    sent = pool(layout.into_inner, jnp.where(is_sent, sums - messages, 0))
    own = (sent + counts * potentials[split:]) / total
    own = jnp.where(is_possible[split:], own, -jnp.inf)
    own = normalize(runs[layout.num_outer_runs :], own)
    changes = jnp.where(is_sent, own[layout.child_entry - split] - sums, 0)
    return jnp.concatenate([logs, own]), changes


def _parent_to_child(layout: RegionLayout, parameters, messages, step: float = 1):
    """Log beliefs for the messages of Yedidia, Freeman & Weiss, and how they should change.

    A message is divided by the new messages into smaller regions, which therefore come before.
    """
    potentials, is_possible = parameters
    is_sent = is_possible[layout.child_entry]
    turns = _turns(layout)

    def beliefs(messages):
        into = [pool(layout.into_outer, messages), pool(layout.into_inner, messages)]
        logs = jnp.where(is_possible, potentials + jnp.concatenate(into), -jnp.inf)
        return normalize(layout.runs, logs)

    logs = beliefs(messages)
    sums = log_or_zero(pool(layout.to_child, jnp.exp(logs)))

    changes = jnp.zeros_like(messages)
    for turn in range(int(turns.max(initial=-1)) + 1):
        own = beliefs(messages + step * changes)[layout.child_entry]
        changes += jnp.where(is_sent & (turns == turn), sums - own, 0)
    return logs, changes


def _beliefs(factor_graph, layout, parameters, logs, run: _Run, rule: Stopping) -> Beliefs:
    potentials, is_possible = parameters
    graph, structure = layout.graph, factor_graph.hypergraph
    probabilities = jnp.exp(logs)
    nodes = pool(layout.nodes, probabilities)
    factors = pool(layout.factors, probabilities)
    constants = [factor for factor, scope in enumerate(structure.scopes) if not scope]
    constants = structure.table_starts[constants]
    is_alive = is_possible.any()
    factors = factors.at[constants].set(is_alive.astype(factors.dtype))
    # energies counted as entropies are, so that they cancel where beliefs do not quite agree
    counts = graph.counting_numbers[layout.region_of]
    inside = counts * jnp.where(is_possible, probabilities * (potentials - logs), 0)
    tables = jnp.asarray(factor_graph.log_tables), jnp.asarray(factor_graph.log_evidence)
    log_z = jnp.where(is_alive, inside.sum() + tables[0][constants].sum(), -jnp.inf)
    log_z = value_with_gradient(jax.lax.stop_gradient(log_z), tables, (factors, nodes))
    return Beliefs(
        log_z=log_z,
        nodes=Tables(nodes, structure, is_of_factors=False),
        factors=Tables(factors, structure, is_of_factors=True),
        is_converged=run.gap <= rule.tolerance,
        num_iters=run.num_iters,
    )


def _possible(layout: RegionLayout, potentials: Array) -> Bool[Array, " entries"]:
    """Entries left after removing, again and again, those that contradict another region."""

    def narrow(state):
        old, _ = state
        sums = pool(layout.to_child, old.astype(potentials.dtype))
        new = old.at[layout.child_entry].min(sums > 0)
        start = 0
        for block in layout.to_child.blocks:
            child = layout.child_entry[start : start + len(block)]
            new = new.at[block].min(new[child][:, None], mode="drop")
            start += len(block)
        return new, (new != old).any()

    start = potentials > -jnp.inf
    return jax.lax.while_loop(lambda state: state[1], narrow, (start, ~start.all()))[0]


@lru_cache(maxsize=16)
def _numbers_of_inner(layout: RegionLayout) -> tuple[np.ndarray, np.ndarray]:
    """Number of outermost regions around, and counting number, for every inner region entry."""
    graph = layout.graph
    around = np.array([sum(not graph.ancestors[a] for a in above) for above in graph.ancestors])
    regions = layout.region_of[layout.num_outer :]
    return around[regions], graph.counting_numbers[regions]


def _most_inside(graph: RegionGraph) -> int:
    """The most regions inside one."""
    return max(1, *map(len, graph.descendants))


@lru_cache(maxsize=16)
def _turns(layout: RegionLayout) -> np.ndarray:
    """For every message entry the longest way down from the region that gets it."""
    graph = layout.graph
    height = np.zeros(graph.num_regions, np.int64)
    for parent, child in sorted(graph.edges, reverse=True):
        height[parent] = max(height[parent], height[child] + 1)
    children = np.array([child for _, child in graph.edges], np.int64)
    return height[children[layout.message_of]]


def _largest(changes: Array) -> Float[Array, ""]:
    return jnp.abs(changes).max(initial=0)


def _infinity(like: Array) -> Float[Array, ""]:
    return jnp.array(jnp.inf, like.dtype)


def _check(
    factor_graph: FactorGraph, region_graph: RegionGraph, method: str, damping: float, most: int
) -> None:
    if region_graph.hypergraph != factor_graph.hypergraph:
        raise ValueError(
            f"generalized.solve: expected regions of {factor_graph.hypergraph}, got regions of "
            f"{region_graph.hypergraph}; build them from factor_graph.hypergraph"
        )
    if method not in METHODS:
        raise ValueError(
            f"generalized.solve: expected a method among {', '.join(METHODS)}, got {method!r}; "
            "leave it out for auto"
        )
    if not 0 <= damping < 1:
        raise ValueError(
            f"generalized.solve: expected damping in [0, 1), got {damping}; it is the share of the "
            "old message that is kept"
        )
    if most < 1:
        raise ValueError(
            f"generalized.solve: expected max_iters of at least 1, got {most}; allow some steps"
        )
