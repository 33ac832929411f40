r"""Exact log Z and all marginals of a factor graph, compiled: one pass up the tree and one down.

.. math:: \frac{\partial \log Z}{\partial \theta_f(x_f)} = p(x_f), \qquad
          \frac{\partial^2 \log Z}{\partial \theta_f\, \partial \theta_g} = \mathrm{Cov}

Small buckets are gathers in log space in one scanned body, so that compilation does not grow with
the model; the few large ones are products of two tables at a time. The pass down gives all
derivatives of log Z at once. Reference: Darwiche, "A differential approach to inference in Bayesian
networks", JACM 50 (2003).
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from jaxmrf.exact._contraction import contract_all
from jaxmrf.graphs import EliminationPlan, Hypergraph
from jaxmrf.graphs.elimination import plan_for
from jaxmrf.graphs.gather import GatherPlan, split_plan
from jaxmrf.models import Beliefs, FactorGraph, Tables
from jaxmrf.types import Array, ArrayLike, Float

__all__ = ["gather_up", "log_z", "solve", "solve_batch"]


def log_z(factor_graph: FactorGraph, plan: EliminationPlan | None = None) -> Float[Array, ""]:
    """Natural log of the normaliser, minus infinity if all configurations are impossible.

    Differentiable to any order, forwards and backwards; its gradient costs one pass more.

    Args:
        factor_graph: The model.
        plan: Elimination plan; by default the cheapest of a few.

    Raises:
        ValueError: If the plan is of another model or its tables would be too large.

    >>> agree = jnp.log(jnp.array([[3.0, 1.0], [1.0, 3.0]]))
    >>> graph = FactorGraph.from_tables([2, 2, 2], [(0, 1), (1, 2)], [agree, agree])
    >>> round(float(jnp.exp(log_z(graph))), 3)
    32.0
    """
    plan = plan_for("log_z", factor_graph.hypergraph, plan)
    return _jitted_log_z(plan, *_arrays(factor_graph))


def solve(factor_graph: FactorGraph, plan: EliminationPlan | None = None) -> Beliefs:
    """Exact log Z and all marginals of variables and factors.

    Impossible evidence gives log Z minus infinity and marginals of zero.

    Args:
        factor_graph: The model.
        plan: Elimination plan; by default the cheapest of a few.

    Raises:
        ValueError: As for ``log_z``.
    """
    plan = plan_for("solve", factor_graph.hypergraph, plan)
    return _beliefs(factor_graph.hypergraph, *_solve(plan, *_arrays(factor_graph)))


def solve_batch(
    factor_graph: FactorGraph,
    log_evidence: Float[ArrayLike, "items node_entries"],
    plan: EliminationPlan | None = None,
) -> Beliefs:
    """Exact beliefs for many settings of the evidence at once; items lead in all of them.

    Equal to ``jax.vmap`` of ``solve``, with the items last in memory inside, which is several
    times faster.

    Args:
        factor_graph: The model; its own evidence is not used.
        log_evidence: Log likelihood of every state of every variable, one row an item.
        plan: Elimination plan; by default the cheapest of a few.

    Raises:
        ValueError: As for ``log_z``, or if a row has not one entry per state.
    """
    plan = plan_for("solve_batch", factor_graph.hypergraph, plan)
    number = factor_graph.hypergraph.num_node_entries
    if np.ndim(log_evidence) != 2 or np.shape(log_evidence)[1] != number:
        raise ValueError(
            f"solve_batch: expected rows of {number} log likelihoods, one per state, got shape "
            f"{np.shape(log_evidence)}; stack the log_evidence of factor_graph.observe(...)"
        )
    log_tables = jnp.asarray(factor_graph.log_tables)
    found = _solve_batch(plan, log_tables, jnp.asarray(log_evidence, log_tables.dtype))
    return _beliefs(factor_graph.hypergraph, *found)


def _arrays(factor_graph: FactorGraph) -> tuple[Array, Array]:
    return jnp.asarray(factor_graph.log_tables), jnp.asarray(factor_graph.log_evidence)


def _beliefs(graph: Hypergraph, log_z, nodes, factors) -> Beliefs:
    return Beliefs(
        log_z=log_z,
        nodes=Tables(nodes, graph, is_of_factors=False),
        factors=Tables(factors, graph, is_of_factors=True),
        is_converged=jnp.ones(jnp.shape(log_z), bool),
        num_iters=jnp.zeros(jnp.shape(log_z), jnp.int32),
    )


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _log_z(plan: EliminationPlan, log_tables: Array, log_evidence: Array) -> Array:
    split = split_plan(plan)
    buffer, _ = gather_up(split.gather, log_tables, log_evidence)
    total = buffer[split.gather.roots].sum()
    if split.rest.order:
        total += contract_all(split.rest, buffer[split.tables])
    return total


@_log_z.defjvp
def _log_z_jvp(plan, primals, tangents):
    value, nodes, factors = _solve_plain(plan, *primals)
    tables_dot, evidence_dot = tangents
    return value, (factors * tables_dot).sum() + (nodes * evidence_dot).sum()


_jitted_log_z = jax.jit(_log_z, static_argnums=0)


def _solve_plain(plan: EliminationPlan, log_tables, log_evidence) -> tuple[Array, Array, Array]:
    """Log Z, marginals of variables and of factors; items, if any, on the last axis of evidence."""
    split = split_plan(plan)
    buffer, shares = gather_up(split.gather, log_tables, log_evidence)
    adjoint = jnp.zeros_like(buffer)
    total = buffer[split.gather.roots].sum(axis=0)
    if split.rest.order:
        dense = jax.value_and_grad(partial(contract_all, split.rest))
        if buffer.ndim == 2:
            dense = jax.vmap(dense, in_axes=1, out_axes=(0, 1))
        value, factors = dense(buffer[split.tables])
        total += value
        adjoint = adjoint.at[split.tables].set(factors)
    is_possible = total > -jnp.inf
    adjoint = adjoint.at[split.gather.roots].set(1)
    adjoint = _gather_down(split.gather, shares, jnp.where(is_possible, adjoint, 0))
    num_tables, num_states = len(log_tables), len(log_evidence)
    return total, adjoint[num_tables : num_tables + num_states], adjoint[:num_tables]


_solve = jax.jit(_solve_plain, static_argnums=0)


@partial(jax.jit, static_argnums=0)
def _solve_batch(plan: EliminationPlan, log_tables, log_evidence):
    value, nodes, factors = _solve_plain(plan, log_tables, log_evidence.T)
    return value, nodes.T, factors.T


def gather_up(gather: GatherPlan, log_tables: Array, log_evidence: Array) -> tuple[Array, Array]:
    """The buffer of a partial elimination with all rows filled, and every state's share of its row.

    Args:
        gather: Rows of the elimination.
        log_tables: Log tables of all factors, the same for all items or one column each.
        log_evidence: Log likelihood of every state; items, if any, on the last axis of it and of
            both results.
    """
    items = log_evidence.shape[1:]
    if log_tables.ndim < log_evidence.ndim:
        log_tables = jnp.broadcast_to(log_tables[:, None], (len(log_tables), *items))
    dtype = jnp.result_type(log_tables, log_evidence)
    one, zero = jnp.zeros((1, *items), dtype), jnp.full((1, *items), -jnp.inf, dtype)
    rows = jnp.zeros((gather.size - gather.start, *items), dtype)
    buffer = jnp.concatenate([log_tables, log_evidence, one, zero, rows])

    def step(buffer, xs):
        place, index = xs
        logs = buffer.at[index].get(mode="promise_in_bounds").sum(axis=2)
        top = jax.lax.stop_gradient(logs.max(axis=1))
        top = jnp.where(top == -jnp.inf, 0, top)
        weights = jnp.exp(logs - top[:, None])
        total = weights.sum(axis=1)
        # without NaN in derivatives where all states are impossible
        is_possible, total = total > 0, jnp.where(total > 0, total, 1)
        row = jnp.where(is_possible, top + jnp.log(total), -jnp.inf)
        buffer = jax.lax.dynamic_update_slice_in_dim(buffer, row, place, 0)
        return buffer, weights / total[:, None]

    return jax.lax.scan(step, buffer, (gather.step_starts, gather.index))


def _gather_down(gather: GatherPlan, shares: Array, adjoint: Array) -> Array:
    """Derivatives of log Z by all entries of the buffer, given those used elsewhere."""

    def step(adjoint, xs):
        place, index, share = xs
        weight = jax.lax.dynamic_slice_in_dim(adjoint, place, index.shape[0])
        share = (share * weight[:, None])[:, :, None]
        share = jnp.broadcast_to(share, (*index.shape, *share.shape[3:]))
        return adjoint.at[index].add(share, mode="promise_in_bounds"), None

    xs = (gather.step_starts, gather.index, shares)
    return jax.lax.scan(step, adjoint, xs, reverse=True)[0]
