import itertools
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from random_factor_graphs import (
    STRUCTURES,
    check_beliefs,
    evidence_rows,
    exact,
    log_values,
    structure,
    with_tables,
)

from jaxmrf.exact import junction_tree
from jaxmrf.graphs import Hypergraph, elimination_plan, gather
from jaxmrf.models import Beliefs, FactorGraph, Tables

# 0: all cliques are contracted in linear space; 30: a part of them; 2048: none of so small models
LIMITS = (0, 30)


def beliefs_of(graph, parts):
    """Beliefs from log Z and flat marginals."""
    log_z, nodes, factors = parts
    sequences = Tables(nodes, graph.hypergraph, False), Tables(factors, graph.hypergraph, True)
    return Beliefs(log_z, *sequences, is_converged=True, num_iters=0)


def covariance(graph):
    """Covariances of all indicators of states of variables, by brute force."""
    weights = np.exp(log_values(graph) - exact(graph)[0])
    indicators = [
        np.broadcast_to(
            np.eye(number)[level].reshape([-1 if i == node else 1 for i in range(weights.ndim)]),
            weights.shape,
        ).ravel()
        for node, number in enumerate(graph.num_states)
        for level in range(number)
    ]
    return np.cov(np.array(indicators), aweights=weights.ravel(), ddof=0)


def split_at(monkeypatch, max_cells):
    """Let the compiled engine gather buckets up to another size."""
    split = partial(gather.split_plan, max_cells=max_cells)
    monkeypatch.setattr(junction_tree, "split_plan", split)


@pytest.mark.parametrize("name", STRUCTURES)
def test_beliefs_of_all_kinds_of_evidence_equal_brute_force(x64, name):
    """One compiled program, three models of one structure, four rows of evidence each."""
    for seed in range(3):
        graph = structure(name, seed)
        rows = evidence_rows(graph, seed)
        batch = junction_tree.solve_batch(graph, rows)
        assert batch.log_z.shape == batch.is_converged.shape == batch.num_iters.shape == (4,)
        assert batch.log_z.dtype == batch.nodes.flat.dtype == jnp.float64
        for item, row in enumerate(rows):
            here = batch.log_z[item], batch.nodes.flat[item], batch.factors.flat[item]
            model = replace(graph, log_evidence=row)
            check_beliefs(beliefs_of(graph, here), model, tolerance=1e-9)


@pytest.mark.parametrize("max_cells", LIMITS)
@pytest.mark.parametrize("name", ["mixed", "components", "hub"])
def test_contracted_and_gathered_parts_agree(x64, monkeypatch, name, max_cells):
    graph = structure(name)
    plan = elimination_plan(graph.hypergraph)
    split_at(monkeypatch, max_cells)
    solve = jax.jit(partial(junction_tree._solve_plain, plan))
    for seed in range(3):
        graph = structure(name, seed)
        rows = evidence_rows(graph, seed)
        log_z, nodes, factors = solve(graph.log_tables, rows.T)
        for item, row in enumerate(rows):
            here = log_z[item], nodes[:, item], factors[:, item]
            model = replace(graph, log_evidence=row)
            check_beliefs(beliefs_of(graph, here), model, tolerance=1e-9)


def test_one_at_a_time_vmap_and_batch_agree(x64):
    graph = structure("mixed")
    rows = evidence_rows(graph)
    batch = junction_tree.solve_batch(graph, rows)
    mapped = jax.vmap(lambda row: junction_tree.solve(replace(graph, log_evidence=row)))(rows)
    assert jax.tree.structure(batch) == jax.tree.structure(mapped)
    for item, row in enumerate(rows):
        model = replace(graph, log_evidence=row)
        one = junction_tree.solve(model)
        check_beliefs(one, model, tolerance=1e-9)
        for left, right, middle in zip(*map(jax.tree.leaves, (one, batch, mapped)), strict=True):
            assert left.dtype == right.dtype == middle.dtype
            np.testing.assert_allclose(left, right[item], atol=1e-12)
            np.testing.assert_allclose(left, middle[item], atol=1e-12)
        np.testing.assert_allclose(junction_tree.log_z(model), one.log_z, atol=1e-12)
    assert batch.nodes[2].shape == (4, 4) and batch.factors[1].shape == (4, 4, 3, 2)


def test_single_precision_is_kept_and_close():
    graph = structure("mixed", dtype=np.float32)
    beliefs = junction_tree.solve(graph)
    for leaf in (beliefs.log_z, beliefs.nodes.flat, beliefs.factors.flat):
        assert leaf.dtype == jnp.float32
    check_beliefs(beliefs, graph, tolerance=3e-6)
    double = structure("mixed")
    assert junction_tree.log_z(double).dtype == jnp.float32  # the precision that jax gives


@pytest.mark.parametrize("scale", [100, 10_000])
def test_gathers_stay_exact_far_from_linear_space(scale):
    """Single precision, log potentials of hundreds and thousands: no NaN, no lost state."""
    for seed in range(4):
        graph = structure("mixed", seed, scale=scale, dtype=np.float32)
        beliefs = junction_tree.solve(graph)
        log_z, nodes, factors = exact(graph)
        np.testing.assert_allclose(beliefs.log_z, log_z, rtol=1e-6)
        np.testing.assert_allclose(beliefs.nodes.flat, nodes, atol=3e-7 * scale)
        np.testing.assert_allclose(beliefs.factors.flat, factors, atol=3e-7 * scale)


def test_many_conflicting_large_tables_do_not_underflow(monkeypatch):
    """Their plain product is below the smallest single-precision number everywhere."""
    split_at(monkeypatch, 0)
    scopes = list(itertools.combinations(range(6), 3))  # too large to be joined in logs beforehand
    graph = with_tables([7] * 6, scopes, seed=1, scale=4.0, zeros=0, dtype=np.float32)
    plan = elimination_plan(graph.hypergraph)
    tables = [graph.log_table(factor) for factor in range(len(scopes))]
    assert sum(table.max() for table in tables) - exact(graph)[0] > 110
    parts = jax.jit(partial(junction_tree._solve_plain, plan))(
        jnp.asarray(graph.log_tables), jnp.asarray(graph.log_evidence)
    )
    check_beliefs(beliefs_of(graph, parts), graph, tolerance=2e-5)


@pytest.mark.parametrize("max_cells", [*LIMITS, 2048])
def test_derivatives_are_marginals_and_covariances(x64, monkeypatch, max_cells):
    split_at(monkeypatch, max_cells)
    graph = structure("mixed", 1, zeros=0.15)
    assert np.isinf(graph.log_tables).any()
    plan = elimination_plan(graph.hypergraph)
    log_z = partial(junction_tree._log_z, plan)

    @jax.jit
    def derivatives(tables, evidence):
        gradient = jax.grad(log_z, argnums=(0, 1))
        hessian = jax.jacfwd(gradient, argnums=(0, 1))(tables, evidence)
        direction = jnp.cos(jnp.arange(len(evidence)))
        moved = jax.jvp(lambda row: log_z(tables, row), (evidence,), (direction,))
        return gradient(tables, evidence), hessian, moved

    for row in evidence_rows(graph, seed=3):
        model = replace(graph, log_evidence=row)
        found = derivatives(jnp.asarray(graph.log_tables), jnp.asarray(row))
        assert all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(found[:2]))
        (by_tables, by_evidence), hessian, moved = found
        value, nodes, factors = exact(model)
        np.testing.assert_allclose(by_tables, factors, atol=1e-9)
        np.testing.assert_allclose(by_evidence, nodes, atol=1e-9)
        np.testing.assert_allclose(moved[0], value, atol=1e-9)
        np.testing.assert_allclose(moved[1], nodes @ np.cos(np.arange(len(row))), atol=1e-9)
        if value == -np.inf:
            continue
        np.testing.assert_allclose(hessian[1][1], covariance(model), atol=1e-9)
        np.testing.assert_allclose(hessian[0][1], hessian[1][0].T, atol=1e-9)
        # finite differences of marginals of factors along one direction of their tables
        step = 1e-5 * np.sin(np.arange(len(factors)))
        sides = [
            exact(replace(model, log_tables=graph.log_tables + sign * step))[2] for sign in (1, -1)
        ]
        direct = np.asarray(hessian[0][0]) @ step
        np.testing.assert_allclose(direct, (sides[0] - sides[1]) / 2, atol=1e-13)


def test_third_derivatives_are_finite_and_symmetric(x64):
    graph = structure("hub", 2)
    log_z = partial(junction_tree._log_z, elimination_plan(graph.hypergraph))

    def directional(shift):
        start = jnp.asarray(graph.log_evidence)
        return log_z(jnp.asarray(graph.log_tables), start + shift * jnp.sin(jnp.arange(len(start))))

    third = jax.jit(jax.grad(jax.grad(jax.grad(directional))))(0.0)
    weights = np.exp(log_values(graph) - exact(graph)[0])
    starts = graph.hypergraph.node_starts
    levels = np.indices(weights.shape).reshape(weights.ndim, -1)
    total = np.sin(levels + starts[:, None]).sum(axis=0)
    mean = weights.ravel() @ total
    np.testing.assert_allclose(third, weights.ravel() @ (total - mean) ** 3, atol=1e-9)


def test_gradient_of_an_impossible_model_is_zero(x64):
    differ = np.array([[-np.inf, 0.0], [0.0, -np.inf]])
    scopes = [(0, 1), (1, 2), (2, 0)]
    graph = FactorGraph.from_tables([2] * 3, scopes, [differ] * 3)
    value, gradient = jax.value_and_grad(
        lambda tables: junction_tree.log_z(replace(graph, log_tables=tables))
    )(jnp.asarray(graph.log_tables))
    assert value == -np.inf and (gradient == 0).all()


def test_traced_tables_and_states_are_arguments_of_one_program(x64):
    graph = structure("mixed", 4, zeros=0)
    traces = []

    @jax.jit
    def log_z(tables, state):
        traces.append(1)
        given = replace(graph, log_tables=tables).condition({4: state})
        return junction_tree.log_z(given)

    values = log_values(graph)
    for state in (0, 1, 2):
        found = log_z(jnp.asarray(graph.log_tables), state)
        given = np.exp(values[:, :, :, :, state % 2]).sum() if state < 2 else 0
        wanted = np.log(given) if given else -np.inf
        np.testing.assert_allclose(found, wanted, atol=1e-9)
    twice = log_z(2 * jnp.asarray(graph.log_tables), 0)
    np.testing.assert_allclose(twice, np.log(np.exp(2 * values[:, :, :, :, 0]).sum()), atol=1e-9)
    assert len(traces) == 1


def test_renumbered_model_has_the_same_beliefs(x64):
    graph = structure("mixed")
    order = [3, 5, 0, 4, 1, 2]  # new number -> old number
    scopes = [tuple(order.index(node) for node in scope) for scope in graph.scopes][::-1]
    tables = [graph.log_table(factor) for factor in range(len(scopes))][::-1]
    turned = FactorGraph.from_tables([graph.num_states[node] for node in order], scopes, tables)
    before, after = junction_tree.solve(graph), junction_tree.solve(turned)
    np.testing.assert_allclose(after.log_z, before.log_z)
    for new, old in enumerate(order):
        np.testing.assert_allclose(after.nodes[new], before.nodes[old], atol=1e-12)
    for factor in range(len(scopes)):
        np.testing.assert_allclose(after.factors[-1 - factor], before.factors[factor], atol=1e-12)


def test_evidence_of_another_length_is_refused():
    graph = structure("mixed")
    rule = r"solve_batch: expected rows of 15 log likelihoods, one per state, got shape \(2, 6\)"
    with pytest.raises(ValueError, match=rule):
        junction_tree.solve_batch(graph, np.zeros((2, 6)))


def test_plan_of_another_model_is_refused():
    graph = structure("mixed")
    plan = elimination_plan(Hypergraph([2, 2], [(0, 1)]))
    calls = {
        "log_z": lambda: junction_tree.log_z(graph, plan),
        "solve": lambda: junction_tree.solve(graph, plan),
        "solve_batch": lambda: junction_tree.solve_batch(graph, np.zeros((2, 15)), plan),
    }
    for name, call in calls.items():
        with pytest.raises(ValueError, match=rf"{name}: expected a plan of .*num_nodes=6.*; pass"):
            call()


@pytest.mark.parametrize("strength", [30.0, 300.0])
def test_strong_potentials_in_single_precision_equal_brute_force(monkeypatch, strength):
    """Contracted cliques hold logs there: no product is too small, no derivative is NaN."""
    split_at(monkeypatch, 0)
    hypergraph = Hypergraph([2] * 5, list(itertools.combinations(range(5), 2)))
    plan = elimination_plan(hypergraph)
    rows = jnp.zeros(hypergraph.num_node_entries)
    solve = jax.jit(partial(junction_tree._solve_plain, plan))
    second = jax.jit(jax.hessian(lambda tables: junction_tree._log_z(plan, tables, rows)))
    for seed in range(5):
        tables = strength * np.random.default_rng(seed).normal(size=hypergraph.num_entries)
        graph = FactorGraph(tables, np.zeros(10), hypergraph)
        log_z, nodes, _ = solve(tables.astype(np.float32), rows)
        expected, marginals, _ = exact(graph)
        assert log_z == pytest.approx(expected, rel=1e-5)
        np.testing.assert_allclose(nodes, marginals, atol=2e-3)  # of sums with errors of 1e-4
        assert np.isfinite(second(tables.astype(np.float32))).all()
