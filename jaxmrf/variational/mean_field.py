r"""Mean field: the best bound on log Z by distributions that factorise over variables or trees.

.. math:: \log Z \ge \max_{q = \prod_T q_T} \sum_f \langle\theta_f\rangle_q
    + \sum_i \langle\lambda_i\rangle_q + \sum_T H(q_T)

Coordinate ascent: each factor :math:`q_T` in turn is set to the best one given the others, those
that share no averaged factor at once, so that the bound never decreases. With no factor kept every
variable is a tree by itself (naive mean field); with the kept factors of a forest every tree is
solved exactly (structured mean field). References: Saul & Jordan (1996), "Exploiting tractable
substructures in intractable networks"; Wainwright & Jordan (2008), section 5.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jaxmrf.models import Beliefs, FactorGraph
from jaxmrf.models.beliefs import Tables
from jaxmrf.types import Array, Float, Key
from jaxmrf.variational._fixed_point import Stopping, fixed_point, value_with_gradient
from jaxmrf.variational._mean_field_plan import MeanFieldPlan, induced_forest, mean_field_plan
from jaxmrf.variational._trees import forest_beliefs
from jaxmrf.variational.free_energy import entropy as _entropy

__all__ = ["induced_forest", "solve"]


def solve(
    factor_graph: FactorGraph,
    *,
    tractable: Sequence[int] = (),
    key: Key | None = None,
    num_starts: int = 1,
    tolerance: float | None = None,
    max_iters: int = 1000,
) -> Beliefs:
    """Mean-field beliefs; ``log_z`` is a lower bound on log Z, and its gradient the beliefs.

    A bound of minus infinity means that the beliefs give weight to what is impossible. Such weight
    is removed before anything else: a state leaves a belief if it is more often impossible than
    another one. Where factors that forbid much hold several variables together that can end in a
    dead end; keep them exact, or start at random.

    Args:
        factor_graph: The model.
        tractable: Numbers of the factors to keep exact, each of two variables, which form a forest;
            no other factor may have several variables of one of its trees. ``induced_forest``
            finds some; the rows of a grid are another choice.
        key: Random key of the starts; by default beliefs start uniform, which in a model with a
            symmetry between states stays so.
        num_starts: Random starts, of which the best is returned; needs a key if above 1.
        tolerance: Largest change of a probability in a sweep that counts as none; by default 1e-5,
            or 1e-9 in double precision.
        max_iters: Sweeps after which to give up.

    Returns:
        The bound, beliefs of the variables and of the factors (products for those averaged), and
        whether and when the sweeps came to rest.

    Raises:
        ValueError: If the tractable factors are not such a forest, or an option is out of range.

    >>> pair = FactorGraph.from_tables([2, 2], [(0, 1)], [np.log([[3.0, 1.0], [1.0, 3.0]])])
    >>> naive, exact = solve(pair), solve(pair, tractable=[0])
    >>> print(f"{naive.log_z:.3f} {exact.log_z:.3f} {np.log(8):.3f}")
    1.936 2.079 2.079
    """
    _check(key, num_starts, max_iters, tolerance)
    plan = mean_field_plan(factor_graph.hypergraph, tuple(int(factor) for factor in tractable))
    dtype = jnp.asarray(factor_graph.log_tables).dtype
    if tolerance is None:
        tolerance = 1e-5 if jnp.finfo(dtype).bits <= 32 else 1e-9
    if key is None:
        weights = jnp.ones((1, *plan.states.shape), dtype)
    else:
        weights = jax.random.exponential(key, (num_starts, *plan.states.shape), dtype)
    evidence = jnp.append(jnp.asarray(factor_graph.log_evidence), -jnp.inf)[plan.states]
    weights = jnp.where(evidence > -jnp.inf, weights, 0)
    starts = weights / jnp.maximum(weights.sum(axis=2, keepdims=True), jnp.finfo(dtype).tiny)
    rule = Stopping(tolerance, max_iters)
    if len(starts) == 1:
        return _solve(factor_graph, plan, starts[0], rule)
    answers = jax.vmap(lambda start: _solve(factor_graph, plan, start, rule))(starts)
    best = jnp.argmax(answers.log_z)
    return jax.tree.map(lambda leaf: leaf[best], answers)


def _solve(factor_graph: FactorGraph, plan: MeanFieldPlan, start: Array, rule: Stopping) -> Beliefs:
    structure = factor_graph.hypergraph

    def update(parameters, nodes):
        return _sweep(structure, plan, parameters, nodes)[0]

    def sweep(parameters, nodes):
        new = update(parameters, nodes)
        return new, jnp.abs(new - nodes).max(initial=0)

    tables = jnp.asarray(factor_graph.log_tables), jnp.asarray(factor_graph.log_evidence)
    end = fixed_point(sweep, update, rule, tables, start)
    # once more for the trees, whose last fields are not among the messages
    nodes, fields = _sweep(structure, plan, tables, end.messages)
    _, joints = forest_beliefs(plan.trees, _edge_tables(plan, tables[0]), fields)
    return _beliefs(factor_graph, plan, nodes, jnp.exp(joints), end, rule)


def _sweep(structure, plan: MeanFieldPlan, tables, nodes):
    """Node beliefs after updating one colour after the other, and the fields they come from."""
    log_tables, log_evidence = tables
    evidence = jnp.append(log_evidence, -jnp.inf)[plan.states].at[-1].set(0)
    edge_tables = _edge_tables(plan, log_tables)
    is_barred = log_tables == -jnp.inf
    finite = jnp.where(is_barred, 0, log_tables)
    parts = jnp.stack([finite, is_barred.astype(finite.dtype)], axis=-1)
    colors = np.append(plan.colors, -1)[:, None]

    def take_turn(color, state):
        nodes, fields = state
        sums = jnp.zeros((*nodes.shape, 2), nodes.dtype)
        for group in plan.averaged:
            stack = structure.stacks[group.stack]
            factors, own = jnp.asarray(group.factors)[color], jnp.asarray(group.nodes)[color]
            shape = (len(stack.factors), *stack.shape, 2)
            mean = parts[stack.start : stack.stop].reshape(shape)[factors]
            scopes = jnp.asarray(stack.nodes)[factors]
            for axis in reversed(range(len(stack.shape))):
                if axis != group.axis:
                    belief = nodes[scopes[:, axis], : stack.shape[axis]]
                    belief = _along(belief, axis, len(stack.shape))[..., None]
                    mean = (mean * belief).sum(axis=axis + 1, keepdims=True)
            size = stack.shape[group.axis]
            sums = sums.at[own, :size].add(mean.reshape(len(factors), size, 2))
        new = _without_impossible(evidence + sums[..., 0], jax.lax.stop_gradient(sums[..., 1]))
        logs, _ = forest_beliefs(plan.trees, edge_tables, new)
        is_mine = (colors == color) & (logs > -jnp.inf).any(axis=1, keepdims=True)
        return jnp.where(is_mine, jnp.exp(logs), nodes), jnp.where(colors == color, new, fields)

    num_colors = int(plan.colors.max(initial=-1)) + 1
    return jax.lax.fori_loop(0, num_colors, take_turn, (nodes, evidence))


def _without_impossible(fields: Array, barred: Array) -> Array:
    """Fields without the states that are impossible more often than the best one of their node."""
    barred = jnp.where(fields > -jnp.inf, barred, jnp.inf)
    least = barred.min(axis=1, keepdims=True)
    return jnp.where(barred > 1.0001 * least, -jnp.inf, fields)


def _edge_tables(plan: MeanFieldPlan, log_tables: Array) -> Array:
    return jnp.append(log_tables, -jnp.inf)[plan.entries]


def _along(rows: Array, axis: int, num_axes: int) -> Array:
    """Rows laid along one of the axes after the first."""
    shape = [1] * num_axes
    shape[axis] = rows.shape[1]
    return rows.reshape(len(rows), *shape)


def _beliefs(factor_graph, plan: MeanFieldPlan, nodes, joints, end, rule: Stopping) -> Beliefs:
    structure, trees = factor_graph.hypergraph, plan.trees
    parts = [jnp.zeros(0, nodes.dtype)]
    for stack in structure.stacks:
        product = jnp.ones((len(stack.factors), *stack.shape), nodes.dtype)
        for axis, size in enumerate(stack.shape):
            belief = nodes[stack.nodes[:, axis], :size]
            product = product * _along(belief, axis, len(stack.shape))
        parts.append(product.ravel())
    factors = jnp.concatenate(parts).at[plan.entries].set(joints, mode="drop")
    flat = nodes[structure.node_owners, structure.node_levels]
    tables = jnp.asarray(factor_graph.log_tables), jnp.asarray(factor_graph.log_evidence)
    # an edge's entropy replaces those of its ends
    ends = np.concatenate([trees.parents.ravel(), trees.children.ravel()])
    extra = 1.0 - np.bincount(ends, minlength=structure.num_nodes + 1)[: structure.num_nodes]
    extra = extra.astype(nodes.dtype)
    entropy = (extra * _entropy(nodes[:-1], axis=1)).sum() + _entropy(joints, axis=(2, 3)).sum()
    is_edge = trees.parents < structure.num_nodes
    is_alive = (nodes[:-1].sum(axis=1) > 0).all() & ((joints.sum(axis=(2, 3)) > 0) | ~is_edge).all()
    bound = _mean(factors, tables[0]) + _mean(flat, tables[1]) + entropy
    bound = jax.lax.stop_gradient(jnp.where(is_alive, bound, -jnp.inf))
    return Beliefs(
        log_z=value_with_gradient(bound, tables, (factors, flat)),
        nodes=Tables(flat, structure, is_of_factors=False),
        factors=Tables(factors, structure, is_of_factors=True),
        is_converged=end.residual <= rule.tolerance,
        num_iters=end.num_iters,
    )


def _mean(probabilities: Array, logs: Array) -> Float[Array, ""]:
    """Mean of logs; minus infinity if such a log has a positive probability."""
    return jnp.where(probabilities > 0, probabilities * logs, 0).sum()


def _check(key, num_starts: int, max_iters: int, tolerance: float | None) -> None:
    if num_starts < 1 or (num_starts > 1 and key is None):
        raise ValueError(
            f"mean_field.solve: expected one start, or several with a key, got {num_starts} and "
            f"{'no key' if key is None else 'a key'}; pass key=jax.random.key(0)"
        )
    if max_iters < 1 or (tolerance is not None and not tolerance >= 0):
        raise ValueError(
            "mean_field.solve: expected max_iters of at least 1 and a tolerance of at least 0, got "
            f"{max_iters} and {tolerance}; leave them out"
        )
