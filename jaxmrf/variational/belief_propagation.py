r"""Sum- and max-product belief propagation on any factor graph, with weights for tree reweighting.

.. math:: m_{a \to i}(x_i) \propto \sum_{x_a \setminus x_i} e^{\theta_a(x_a) / \rho_a}
    \prod_{j \in a \setminus i} \frac{b_j(x_j)}{m_{a \to j}(x_j)}, \qquad
    b_i(x_i) \propto e^{\lambda_i(x_i)} \prod_{a \ni i} m_{a \to i}(x_i)^{\rho_a}

A fixed point is a stationary point of the free energy of ``free_energy``: Bethe's if all weights
:math:`\rho` are one (exact on trees), and if they are the probabilities with which a random
spanning tree contains each edge, a convex one that bounds log Z from above. Max-product puts a
maximum for the sum. References: Yedidia, Freeman & Weiss (2005); Wainwright, Jaakkola & Willsky
(2005), "A new class of upper bounds on the log partition function"; Elidan, McGraw & Koller (2006)
for the residual schedule.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxmrf.graphs import Hypergraph
from jaxmrf.graphs.appearance import appearance_probabilities
from jaxmrf.graphs.messages import MessagePlan, MessageStack, message_plan
from jaxmrf.models import Beliefs, FactorGraph
from jaxmrf.models.beliefs import Tables
from jaxmrf.types import Array, ArrayLike, Bool, Float, Int, Key
from jaxmrf.variational._fixed_point import (
    FixedPoint,
    Stopping,
    fixed_point,
    stopping,
    value_with_gradient,
)
from jaxmrf.variational._messages import (
    IMPOSSIBLE,
    Potentials,
    add_messages,
    incoming,
    join,
    kernel_of,
    normalised,
    outgoing,
    split,
    sweep_of,
    times,
    update,
)
from jaxmrf.variational.free_energy import entropy

__all__ = ["Decoding", "appearance_probabilities", "decode", "solve"]

SCHEDULES = ("flooding", "sequential", "residual")
_SHARE = 0.25  # of the factors that an iteration of the residual schedule updates


class Decoding(NamedTuple):
    """A configuration read off max-product beliefs.

    Attributes:
        states: The likeliest state of every node.
        is_consistent: Whether it has the largest belief in every node and factor, without ties. A
            consistent configuration at a fixed point is a mode: of a tree, and of any graph under
            tree-reweighted weights; otherwise it cannot be improved by changing a tree of nodes.
    """

    states: Int[Array, " nodes"]
    is_consistent: Bool[Array, ""]


class _Options(NamedTuple):
    is_max: bool
    is_log_domain: bool
    schedule: str
    damping: float


def solve(
    factor_graph: FactorGraph,
    *,
    is_max: bool = False,
    weights: Float[ArrayLike, " factors"] | None = None,
    schedule: str = "flooding",
    damping: float = 0.0,
    tolerance: float | None = None,
    max_iters: int = 1000,
    is_log_domain: bool = False,
    key: Key | None = None,
) -> Beliefs:
    """Beliefs at a fixed point of belief propagation.

    ``log_z`` is the Bethe value of log Z, or with weights the tree-reweighted one; under
    max-product it is the value of the beliefs: the largest log potential on a tree, and an upper
    bound on it under tree-reweighted weights. Its gradient is the beliefs; gradients of the beliefs
    come from the fixed point, not from the iterations. Evidence that no configuration can meet, as
    far as propagating impossible states shows it, gives a ``log_z`` of minus infinity and beliefs
    of zero.

    Args:
        factor_graph: The model; tables may hold minus infinity.
        is_max: Max-product, whose beliefs are max-marginals, each scaled to sum to one.
        weights: Positive weight of every factor, as from ``appearance_probabilities``; those of
            factors of one variable or none have no effect. By default ones.
        schedule: ``"flooding"`` computes all messages from all messages. ``"sequential"`` takes
            blocks of factors that share no variable, each from the latest messages: fewer
            iterations, larger programs. ``"residual"`` computes all and sends those of the factors
            that change most, about a quarter: for models where flooding does not converge.
        damping: Part of the old log message that is kept, in [0, 1).
        tolerance: The largest change of a message, its largest entry 1, that counts as none; by
            default 1e-5, or 1e-9 in double precision.
        max_iters: Iterations after which to give up, ``is_converged`` being false.
        is_log_domain: Sum logs and not probabilities: two to three times slower, for tables whose
            entries differ by more than 80 (in double precision, 700) in their logs.
        key: Random key of the first messages; by default they are uniform.

    Raises:
        ValueError: If an option is out of range.

    >>> chain = FactorGraph.from_tables([2, 2], [(0, 1)], [np.log([[3.0, 1.0], [1.0, 3.0]])])
    >>> beliefs = solve(chain.observe({0: 1}))
    >>> print(beliefs.nodes[1].round(2), beliefs.log_z.round(3))
    [0.25 0.75] 1.386
    """
    dtype = jax.dtypes.canonicalize_dtype(jnp.result_type(factor_graph.log_tables, jnp.float32))
    if schedule not in SCHEDULES:
        raise ValueError(
            f"belief_propagation.solve: expected a schedule among {', '.join(SCHEDULES)}, got "
            f"{schedule!r}; flooding is the fastest where it converges"
        )
    check_damping("belief_propagation.solve", damping)
    graph = factor_graph.hypergraph
    weights = _checked_weights(weights, graph)
    rule = stopping("belief_propagation.solve", tolerance, max_iters, dtype)
    options = _Options(bool(is_max), bool(is_log_domain), schedule, float(damping))
    return _solve(
        jnp.asarray(factor_graph.log_tables, dtype),
        jnp.asarray(factor_graph.log_evidence, dtype),
        None if weights is None else jnp.asarray(weights, dtype),
        key,
        rule,
        graph,
        options,
    )


@jax.jit
def decode(beliefs: Beliefs) -> Decoding:
    """The configuration of the largest beliefs of the nodes, and whether the factors agree.

    Args:
        beliefs: Of ``solve`` with ``is_max``.
    """
    plan = message_plan(beliefs.nodes.hypergraph)
    graph = plan.hypergraph
    flat = beliefs.nodes.flat[plan.order]
    states = jnp.zeros(graph.num_nodes, jnp.int32)
    is_consistent = jnp.array(True)
    chosen = jnp.zeros(graph.num_node_entries, flat.dtype)
    for group, nodes in zip(plan.groups, plan.group_nodes, strict=True):
        own = flat[group]
        best = own.argmax(axis=0)
        states = states.at[nodes].set(best.astype(jnp.int32))
        is_best = jnp.arange(len(own))[:, None] == best
        chosen = chosen.at[group].set(is_best.astype(flat.dtype))
        # a tie up to rounding decides nothing
        second = jnp.where(is_best, -jnp.inf, own).max(axis=0)
        is_consistent &= (second < own.max(axis=0) * (1 - 1e-4)).all()
    for stack, picks in zip(plan.stacks, split(plan, chosen[plan.owner]), strict=True):
        table = stack_tables(beliefs.factors.flat, stack)
        picked = outgoing(table, picks, times)[0]
        picked = (picked * picks[0]).sum(axis=0)
        top = table.max(axis=tuple(range(len(stack.shape))))
        is_consistent &= (picked >= top * (1 - 1e-4)).all()
    return Decoding(states, is_consistent)


def check_damping(caller: str, damping: float) -> None:
    """Raise for a damping outside [0, 1)."""
    if not 0 <= damping < 1:
        raise ValueError(
            f"{caller}: expected damping in [0, 1), got {damping}; it is the part of the old "
            "message that is kept"
        )


def _checked_weights(weights, graph: Hypergraph):
    if weights is None:
        return None
    if np.shape(weights) != (graph.num_factors,):
        raise ValueError(
            f"belief_propagation.solve: expected {graph.num_factors} weights, one per factor, got "
            f"shape {np.shape(weights)}; pass weights=appearance_probabilities(hypergraph)"
        )
    if not isinstance(weights, jax.core.Tracer) and not (np.asarray(weights) > 0).all():
        raise ValueError(
            "belief_propagation.solve: expected positive weights, got "
            f"{np.asarray(weights).min()}; every edge must have a chance to be in a tree"
        )
    if isinstance(weights, np.ndarray) and (weights == 1).all():
        return None
    return weights


@partial(jax.jit, static_argnames=("graph", "options"))
def _solve(
    log_tables, log_evidence, weights, key, rule: Stopping, graph: Hypergraph, options: _Options
) -> Beliefs:
    plan = message_plan(graph, is_colored=options.schedule == "sequential")
    logs = [stack_tables(log_tables, stack) for stack in plan.stacks]
    evidence = log_evidence[plan.order].at[plan.unary[1]].add(log_tables[plan.unary[0]])
    constant = log_tables[plan.constants].sum()
    is_alive = possible_states(plan, logs, evidence)
    is_possible = (constant > -jnp.inf) & jnp.stack(
        [is_alive[group].any(axis=0).all() for group in plan.groups]
    ).all()
    # of an impossible model the finite part is solved, and the answer put right at the end
    evidence = jnp.where(is_alive, evidence, IMPOSSIBLE)
    evidence = jnp.where(evidence > -jnp.inf, evidence, 0)
    pairs = zip(logs, per_stack(plan, weights), strict=True)
    logs = [_scaled(table, is_possible, rho) for table, rho in pairs]
    kernel = kernel_of(options.is_max, options.is_log_domain)
    potentials = Potentials(
        tables=[kernel.prepare(table, table.ndim - 1) for table in logs],
        evidence=evidence,
        weights=None if weights is None else weights[plan.factor],
    )
    end = _iterate(plan, kernel, options, potentials, key, rule)
    read = _read(plan, potentials, logs, weights, end.messages, options.is_max)
    nodes, factors, value, slopes = read
    value = jnp.where(is_possible, value + constant, -jnp.inf)
    nodes, factors, slopes = (
        jax.tree.map(lambda part: jnp.where(is_possible, part, 0), part)
        for part in (nodes, factors, slopes)
    )
    parameters = (log_evidence, log_tables, *(() if weights is None else (weights,)))
    return Beliefs(
        log_z=value_with_gradient(value, parameters, slopes),
        nodes=Tables(nodes, graph, is_of_factors=False),
        factors=Tables(factors, graph, is_of_factors=True),
        is_converged=end.residual <= rule.tolerance,
        num_iters=end.num_iters,
    )


def stack_tables(flat: Array, stack: MessageStack) -> Array:
    """The tables of one stack, its factors last."""
    tables = flat[stack.start : stack.stop].reshape(-1, *stack.shape)
    return jnp.moveaxis(tables[stack.order], 0, -1)


def per_stack(plan: MessagePlan, weights: Array | None) -> list:
    """The weights of the factors of every stack."""
    return [None if weights is None else weights[stack.factors] for stack in plan.stacks]


def _scaled(table: Array, is_possible: Array, weights: Array | None) -> Array:
    """Log tables over weights; minus infinity stays, and meets no arithmetic."""
    is_finite = table > -jnp.inf
    scaled = jnp.where(is_finite, table, 0)
    if weights is not None:
        scaled = scaled / weights
    return jnp.where(is_finite | ~is_possible, scaled, -jnp.inf)


def possible_states(plan: MessagePlan, logs: list[Array], evidence: Array) -> Array:
    """At every place whether the state survives the propagation of impossible ones."""
    supports = [(table > -jnp.inf).astype(evidence.dtype) for table in logs]

    def remove(state):
        alive, _ = state
        entering = split(plan, alive[plan.owner])
        lost = [
            [(left == 0).astype(alive.dtype) for left in outgoing(support, parts, times)]
            for support, parts in zip(supports, entering, strict=True)
        ]
        new = jnp.where(add_messages(plan, join(lost), jnp.zeros_like(alive)) > 0, 0, alive)
        return new, (new != alive).any()

    start = (evidence > -jnp.inf).astype(evidence.dtype)
    if not plan.stacks:
        return start > 0
    return jax.lax.while_loop(lambda state: state[1], remove, (start, jnp.array(True)))[0] > 0


def _iterate(plan, kernel, options: _Options, potentials: Potentials, key, rule) -> FixedPoint:
    dtype = potentials.evidence.dtype
    if not plan.stacks:
        return FixedPoint(jnp.zeros(0, dtype), jnp.zeros((), dtype), jnp.zeros((), jnp.int32))
    start = jnp.zeros(plan.num_messages, dtype)
    if key is not None:
        start = -jax.random.exponential(key, start.shape, dtype)
    return fixed_point(
        sweep_of(options.schedule, plan, kernel, options.damping, _SHARE),
        partial(update, plan, kernel),
        rule,
        potentials,
        start,
    )


def _read(plan, potentials: Potentials, logs, weights, messages, is_max: bool):
    """Beliefs of nodes and factors, the value, and its gradient, from messages."""
    sums = incoming(plan, potentials, messages)
    graph, dtype = plan.hypergraph, sums.dtype
    norms = jnp.zeros(graph.num_nodes, dtype)
    nodes = picks = jnp.zeros_like(sums)
    for group, numbers in zip(plan.groups, plan.group_nodes, strict=True):
        belief, pick, norm = normalised(sums[group], 1, is_max)
        nodes, picks = nodes.at[group].set(belief), picks.at[group].set(pick)
        norms = norms.at[numbers].set(norm)
    rho = jnp.ones(graph.num_factors, dtype) if weights is None else weights
    if weights is None:  # in NumPy, as XLA would fold a scatter of constants for seconds
        counts = 1 - np.bincount(plan.incidence[0], minlength=graph.num_nodes).astype(dtype)
    else:
        counts = jnp.ones(graph.num_nodes, dtype)
        counts = counts.at[plan.incidence[0]].add(-rho[plan.incidence[1]])
    value = (counts * norms).sum()
    factors = factor_picks = jnp.ones(graph.num_entries, dtype)
    factors = factors.at[plan.unary[0]].set(nodes[plan.unary[1]])
    factor_picks = factor_picks.at[plan.unary[0]].set(picks[plan.unary[1]])
    mutual = jnp.zeros(graph.num_factors, dtype)
    cavity = split(plan, sums[plan.owner] - messages)
    for stack, table, parts in zip(plan.stacks, logs, cavity, strict=True):
        for axis, part in enumerate(parts):
            table = table + part.reshape(_along(axis, table.ndim, part.shape))
        arity = table.ndim - 1
        belief, pick, norm = normalised(table, arity, is_max)
        value += (rho[stack.factors] * norm).sum()
        factors = _put_stack(factors, stack, belief)
        factor_picks = _put_stack(factor_picks, stack, pick)
        if weights is not None and not is_max:
            mutual = mutual.at[stack.factors].set(-mutual_information(belief))
    slopes = (picks[plan.place], factor_picks, *(() if weights is None else (mutual,)))
    return nodes[plan.place], factors, value, slopes


def mutual_information(beliefs: Array) -> Array:
    """Entropies of the single axes less that of all, for tables with the factors last."""
    axes = range(beliefs.ndim - 1)
    ends = (beliefs.sum(axis=[other for other in axes if other != axis]) for axis in axes)
    return sum(entropy(end, 0) for end in ends) - entropy(beliefs, tuple(axes))


def _along(axis: int, ndim: int, shape: tuple[int, ...]) -> list[int]:
    """The shape that puts [states, factors] along one axis and the last."""
    return [shape[0] if place == axis else 1 for place in range(ndim - 1)] + [shape[1]]


def _put_stack(flat: Array, stack: MessageStack, tables: Array) -> Array:
    """The flat array of all tables with those of one stack replaced."""
    ordered = jnp.moveaxis(tables, -1, 0)[np.argsort(stack.order).astype(np.int32)]
    return flat.at[stack.start : stack.stop].set(ordered.ravel())
