r"""Exact log Z, marginals and draws of fields of small pathwidth, by one pass along a frontier.

.. math:: T_k = S_k D_k T_{k-1}, \qquad T_0 = 1, \qquad T_E = Z

The table T holds a weight for every configuration of the plan's slots. Step k multiplies it by the
factor of one edge (D, diagonal), then sums out the ends whose last edge this was (S) and spreads
the sum over both states of the slot, so the table never depends on a free slot and the next node
enters it without work. Steps differ only in numbers, so one compiled body serves them all. This is
the transfer matrix of Kramers & Wannier (1941), one edge at a time, on any graph.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax.scipy.special import logsumexp

from jaxmrf.graphs import FrontierPlan, Graph, frontier_plan
from jaxmrf.logspace import draw_from_relative_logits
from jaxmrf.models import Beliefs, Pairwise, PairwiseModel
from jaxmrf.types import Array, Float, Int, Key

__all__ = ["MAX_TABLE", "log_z", "sample", "solve"]

MAX_TABLE = 2**24
"""Refuse tables of more entries."""


def log_z(model: PairwiseModel, graph: Graph, plan: FrontierPlan | None = None) -> Float[Array, ""]:
    """Natural log of the normaliser.

    Differentiable: its gradient is the mean statistics, its Hessian their covariance. The gradient
    keeps one table for every edge.

    Args:
        model: Pairwise model.
        graph: Its graph.
        plan: Frontier plan; by default ``graphs.frontier_plan(graph)``.

    Raises:
        ValueError: If the graph has no plan of small width, the plan is of another graph, or the
            tables would be too large.

    >>> from jaxmrf.graphs import grid
    >>> from jaxmrf.models import Ising
    >>> model = Ising(couplings=jnp.zeros(264), fields=jnp.zeros(144))
    >>> round(float(log_z(model, grid((12, 12)))) / 144, 4)
    0.6931
    """
    return _log_z(model.tables(), _plan_for("log_z", model, graph, plan))


def solve(model: PairwiseModel, graph: Graph, plan: FrontierPlan | None = None) -> Beliefs:
    """Exact log Z, node marginals and edge marginals, by the gradient of log Z.

    Args:
        model: Pairwise model.
        graph: Its graph.
        plan: Frontier plan; by default ``graphs.frontier_plan(graph)``.

    Raises:
        ValueError: As for ``log_z``.
    """
    value, means = _solve(model.tables(), _plan_for("solve", model, graph, plan))
    return Beliefs(
        log_z=value,
        nodes=means.node_tables,
        factors=means.edge_tables,
        is_converged=jnp.array(True),
        num_iters=jnp.array(0),
    )


def sample(
    key: Key,
    model: PairwiseModel,
    graph: Graph,
    *,
    num_samples: int,
    plan: FrontierPlan | None = None,
) -> Int[Array, "items nodes"]:
    """Exact independent draws: a pass forwards, then every node at its last edge backwards.

    Args:
        key: Random key.
        model: Pairwise model.
        graph: Its graph.
        num_samples: Number of draws.
        plan: Frontier plan; by default ``graphs.frontier_plan(graph)``.

    Raises:
        ValueError: As for ``log_z``.
    """
    return _sample(key, model.tables(), _plan_for("sample", model, graph, plan), num_samples)


def _plan_for(caller: str, model: PairwiseModel, graph: Graph, plan) -> FrontierPlan:
    """The plan, checked against graph and model."""
    plan = frontier_plan(graph) if plan is None else plan
    if (plan.num_nodes, plan.num_edges) != (graph.num_nodes, graph.num_edges):
        raise ValueError(
            f"{caller}: expected a plan of {graph.num_nodes} nodes and {graph.num_edges} edges, "
            f"got {plan.num_nodes} and {plan.num_edges}; pass frontier_plan(graph)"
        )
    tables = jax.eval_shape(lambda model: model.tables(), model)
    sizes = tables.node_tables.shape[0], tables.edge_tables.shape[0]
    if sizes != (graph.num_nodes, graph.num_edges):
        raise ValueError(
            f"{caller}: expected a model of {graph.num_nodes} nodes and {graph.num_edges} edges, "
            f"got {sizes[0]} and {sizes[1]}; pass the model's own graph"
        )
    if model.num_states**plan.width > MAX_TABLE:
        raise ValueError(
            f"{caller}: expected tables of at most {MAX_TABLE} entries, got "
            f"{model.num_states}**{plan.width}; pass a narrower plan, or sample the model instead"
        )
    return plan


@jax.jit
def _log_z(tables: Pairwise, plan: FrontierPlan) -> Float[Array, ""]:
    # kept for the gradient: one table a step, from which the step is computed again
    log_total, _ = _pass(tables, plan, wrap=jax.checkpoint, is_kept=False)
    isolated = jnp.where(plan.degrees == 0, logsumexp(tables.node_tables, axis=1), 0)
    return log_total + isolated.sum()


_solve = jax.jit(jax.value_and_grad(_log_z))


@partial(jax.jit, static_argnames="num_samples")
def _sample(
    key: Key, tables: Pairwise, plan: FrontierPlan, num_samples: int
) -> Int[Array, "items nodes"]:
    _, kept = _pass(tables, plan, wrap=lambda body: body, is_kept=True)
    if tables.num_states == 2 and plan.num_edges > 0:
        return _draw_binary(key, tables, plan, kept, num_samples).T
    num_states, powers = tables.num_states, _powers(tables, plan)
    key_isolated, key_steps = jax.random.split(key)
    levels = jnp.arange(num_states)

    def draw(code, step):
        """Draw again the ends that are summed out here; keep those that are known already."""
        key, table, slots, is_last = step
        place = powers[slots]
        known = code // place[:, None] % num_states
        clear = code - (known * place[:, None]).sum(axis=0)
        offsets = levels[:, None] * place[0] + levels * place[1]
        weights = table[clear + offsets[..., None]]
        is_open = is_last[:, None, None] | (levels[:, None] == known[:, None])
        weights = jnp.where(is_open[0][:, None] & is_open[1], weights, 0)
        # the number of partial sums at or below the target; never a pair of weight zero
        sums = jnp.cumsum(weights.reshape(-1, num_samples), axis=0)
        target = jax.random.uniform(key, (num_samples,), sums.dtype) * sums[-1]
        pair = (sums <= target).sum(axis=0)
        ends = jnp.stack([pair // num_states, pair % num_states])
        return clear + (ends * place[:, None]).sum(axis=0), ends

    steps = (jax.random.split(key_steps, plan.num_edges), kept, plan.slots, plan.is_last)
    _, ends = jax.lax.scan(draw, jnp.zeros(num_samples, powers.dtype), steps, reverse=True)
    odds = tables.node_tables[:, 1:] - tables.node_tables[:, :1]
    odds = jnp.broadcast_to(odds.T[..., None], (*odds.T.shape, num_samples))
    states = draw_from_relative_logits(key_isolated, odds)
    # every edge has its ends' final states, so it does not matter which one is written last
    return states.at[plan.nodes].set(ends.astype(states.dtype)).T


def _draw_binary(
    key: Key,
    tables: Pairwise,
    plan: FrontierPlan,
    kept: Float[Array, "edges entries"],
    num_samples: int,
) -> Int[Array, "nodes items"]:
    """Every node at its last edge backwards, isolated ones at the end.

    Its probability given every configuration of the slots is tabulated before the draws, so that
    one costs a look-up and a comparison.
    """
    # a step that closes both its nodes draws the first with the second summed out
    ranks = 2 * jnp.arange(plan.num_edges)[::-1, None] + jnp.arange(2)
    beyond = 2 * plan.num_edges
    ranks = (
        jnp.full(plan.num_nodes, beyond).at[plan.nodes].min(jnp.where(plan.is_last, ranks, beyond))
    )
    nodes = jnp.argsort(ranks)
    is_isolated = ranks[nodes] == beyond
    step = jnp.maximum(plan.num_edges - 1 - ranks[nodes] // 2, 0)
    is_first = ranks[nodes] % 2 == 0
    powers = _powers(tables, plan)[jnp.asarray(plan.slots)[step]]
    place = jnp.where(is_isolated, 0, jnp.where(is_first, powers[:, 0], powers[:, 1]))
    is_both = is_first & jnp.asarray(plan.is_last)[step, 1]
    index = jnp.arange(kept.shape[1])
    weights = kept[step]
    other = jnp.take_along_axis(weights, index ^ powers[:, 1:], axis=1)
    weights += jnp.where(is_both[:, None], other, 0)
    down = jnp.take_along_axis(weights, index & ~place[:, None], axis=1)
    up = jnp.take_along_axis(weights, index | place[:, None], axis=1)
    alone = jax.nn.sigmoid(tables.node_tables[nodes, 1] - tables.node_tables[nodes, 0])
    chances = jnp.where(is_isolated[:, None], alone[:, None], up / (up + down))

    def draw(code, step):
        chance, place, uniform = step
        is_up = uniform < chance[code]
        return jnp.where(is_up, code | place, code & ~place), is_up

    uniforms = jax.random.uniform(key, (plan.num_nodes, num_samples), chances.dtype)
    code = jnp.zeros(num_samples, place.dtype)
    _, states = jax.lax.scan(draw, code, (chances, place, uniforms))
    return states[jnp.argsort(nodes)].astype(jnp.int8)


def _pass(tables: Pairwise, plan: FrontierPlan, *, wrap, is_kept: bool):
    """Log of the final table, isolated nodes aside, and the tables before each summing out."""
    factors, log_scale = _factors(tables, plan)
    num_states, powers = tables.num_states, _powers(tables, plan)
    index = jnp.arange(num_states**plan.width, dtype=powers.dtype)
    digits = (index // powers[:, None] % num_states).astype(jnp.int8)

    @wrap
    def body(table, step):
        factor, slots, is_last = step
        ends = digits[slots]
        table = table * _spread(factor, ends)
        product = table
        for end in (0, 1):
            sum_out = partial(_sum_out, num_states=num_states)
            power = powers[slots[end]]
            table = jax.lax.cond(is_last[end], sum_out, _leave, table, ends[end], power)
        # any constant will do, and all derivatives with it
        scale = jax.lax.stop_gradient(table.max())
        return table / scale, (jnp.log(scale), product if is_kept else None)

    start = jnp.ones(index.shape, factors.dtype)
    steps = (factors, plan.slots, plan.is_last)
    table, (log_scales, kept) = jax.lax.scan(body, start, steps)
    return jnp.log(table[0]) + log_scales.sum() + log_scale, kept


def _factors(tables: Pairwise, plan: FrontierPlan):
    """Factors of the steps, the largest entry 1, and the log of what they were divided by.

    A node's table is shared out evenly among its edges, which keeps the tables' range small.
    """
    shares = tables.node_tables / jnp.maximum(plan.degrees, 1)[:, None]
    first, second = plan.nodes.T
    logs = tables.edge_tables[plan.edges] + shares[first][:, :, None] + shares[second][:, None, :]
    tops = jax.lax.stop_gradient(logs.max(axis=(1, 2), keepdims=True))
    return jnp.exp(logs - tops), tops.sum()


def _powers(tables: Pairwise, plan: FrontierPlan) -> Int[Array, " slots"]:
    """Distance in the table between two states of a slot; one slot at least, to be traced."""
    return jnp.array([tables.num_states**slot for slot in range(plan.width or 1)], jnp.int32)


def _spread(factor: Float[Array, "states states"], ends: Int[Array, "2 entries"]) -> Array:
    """The factor at every entry, by selection: the gradient of a gather would be a slow scatter."""
    value = jnp.zeros(ends.shape[1], factor.dtype)
    for first in range(len(factor)):
        for second in range(len(factor)):
            is_here = (ends[0] == first) & (ends[1] == second)
            value = jnp.where(is_here, factor[first, second], value)
    return value


def _sum_out(table, digit, power, num_states):
    """Sum over the states of one slot, given to every entry.

    The table shifted as a whole: on a CPU twice as fast with its gradient as gathering.
    """
    size = table.shape[0]
    twice = jnp.concatenate([table, table])
    total = table
    for step in range(1, num_states):
        above = jax.lax.dynamic_slice_in_dim(twice, step * power, size)
        below = jax.lax.dynamic_slice_in_dim(twice, size - step * power, size)
        total += jnp.where(digit < num_states - step, above, 0)
        total += jnp.where(digit >= step, below, 0)
    return total


def _leave(table, digit, power):
    """The table as it is: the node has edges to come."""
    return table
