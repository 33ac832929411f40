"""Belief propagation on grids and between layers against the general one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from examples import random_model

from jaxmrf.graphs import complete_bipartite, grid
from jaxmrf.models import FactorGraph, Ising, Pairwise
from jaxmrf.variational import (
    belief_propagation,
    bipartite_belief_propagation,
    grid_belief_propagation,
)

# name: graph, solver, its plan, number of states
LAYOUTS = {
    "grid": (grid((4, 5)), grid_belief_propagation.solve, (4, 5), 3),
    "line": (grid((6,)), grid_belief_propagation.solve, (6,), 2),
    "thin": (grid((1, 4)), grid_belief_propagation.solve, (1, 4), 2),
    "cube": (grid((2, 3, 2)), grid_belief_propagation.solve, (2, 3, 2), 2),
    "layers": (complete_bipartite(3, 4), bipartite_belief_propagation.solve, 3, 2),
}


def general(model, graph, weights=None, **options):
    """The general method, with weights of edges, and beliefs in the shape of a pairwise model."""
    factor_graph = FactorGraph.from_pairwise(model, graph)
    if weights is not None:
        weights = jnp.concatenate([jnp.ones(graph.num_nodes), weights])
    beliefs = belief_propagation.solve(factor_graph, weights=weights, **options)
    num_states, place = model.num_states, graph.num_nodes * model.num_states
    return beliefs._replace(
        nodes=beliefs.nodes.flat.reshape(-1, num_states),
        factors=beliefs.factors.flat[place:].reshape(-1, num_states, num_states),
    )


def assert_same(found, expected, atol=1e-6):
    assert found.is_converged and expected.is_converged
    np.testing.assert_allclose(found.log_z, expected.log_z, atol=10 * atol)
    np.testing.assert_allclose(found.nodes, expected.nodes, atol=atol)
    np.testing.assert_allclose(found.factors, expected.factors, atol=atol)


@pytest.mark.slow
@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("kind", ["plain", "weighted", "max"])
def test_layout_is_the_general_method(name, kind, x64):
    graph, solve, plan, num_states = LAYOUTS[name]
    rng = np.random.default_rng(0)
    model = Pairwise(
        jnp.asarray(rng.normal(0, 0.4, (graph.num_edges, num_states, num_states))),
        jnp.asarray(rng.normal(0, 1, (graph.num_nodes, num_states))),
    )
    options = {
        "plain": {},
        "weighted": {"weights": jnp.asarray(rng.uniform(0.5, 1, graph.num_edges)), "damping": 0.3},
        "max": {"is_max": True, "damping": 0.3},
    }[kind]
    found = solve(model, plan, tolerance=1e-11, **options)
    assert_same(found, general(model, graph, tolerance=1e-11, **options), atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["grid", "layers"])
def test_gradients_are_those_of_the_general_method(name, x64):
    graph, solve, plan, _ = LAYOUTS[name]
    rng = np.random.default_rng(1)
    couplings, fields = rng.normal(0, 0.4, graph.num_edges), rng.normal(0, 0.5, graph.num_nodes)
    at = jnp.asarray(couplings), jnp.asarray(fields), jnp.full(graph.num_edges, 0.8)

    def log_z_and_belief(solve, plan, couplings, fields, weights):
        beliefs = solve(Ising(couplings, fields), plan, weights=weights, tolerance=1e-12)
        return beliefs.log_z + 3 * beliefs.nodes[1, 1] * beliefs.factors[0, 0, 1]

    def gradient(solve, plan):
        def function(*own):
            return log_z_and_belief(solve, plan, *own)

        return jax.jit(jax.grad(function, argnums=(0, 1, 2)))(*at)

    for own, expected in zip(gradient(solve, plan), gradient(general, graph), strict=True):
        np.testing.assert_allclose(own, expected, atol=1e-9)
        assert np.abs(expected).max() > 1e-3


@pytest.mark.slow
def test_large_grid_in_single_precision_is_the_general_method():
    graph = grid((30, 40))
    for num_states, is_log_domain in ((2, False), (4, False), (4, True)):
        model = random_model("potts", graph, num_states=num_states, scale=0.5)
        found = grid_belief_propagation.solve(model, (30, 40), is_log_domain=is_log_domain)
        expected = general(model, graph)
        np.testing.assert_allclose(found.log_z, expected.log_z, rtol=1e-6)
        assert_same(found._replace(log_z=0.0), expected._replace(log_z=0.0), atol=2e-5)


def test_strong_couplings_between_layers_do_not_overflow():
    for strength in (50.0, 500.0):
        model = Ising(jnp.array([strength, -strength]), jnp.array([30.0, 0.0, 0.5]))
        found = bipartite_belief_propagation.solve(model, 1)
        np.testing.assert_allclose(found.log_z, 2 * strength + 29.5, rtol=1e-6)
        np.testing.assert_allclose(found.nodes[:, 1], [1, 1, 0], atol=1e-6)


def test_free_spins_between_layers_have_the_gradient_of_spins_with_fields():
    # log odds of exactly 0, where the message is written with two branches
    def pair(fields):
        model = Ising(jnp.array([0.5]), fields)
        return bipartite_belief_propagation.solve(model, 1).nodes[1, 1]

    gradient = jax.jit(jax.grad(pair))(jnp.zeros(2))
    np.testing.assert_allclose(gradient, [np.tanh(0.5) / 2, 0.5], rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "plan", "options", "message"),
    [
        ("grid", (4, 4), {}, r"a model of 16 nodes and 24 edges, as graphs.grid\(\(4, 4\)\) has"),
        ("grid", (4, 5), {"damping": 1.5}, r"grid_belief_propagation.solve: expected damping in"),
        ("grid", (4, 5), {"max_iters": 0}, r"grid_belief_propagation.solve: expected max_iters"),
        ("layers", 2, {}, "from each of 2 first nodes to each of 5 others, got 12 edges"),
        ("layers", 7, {}, "from each of 7 first nodes to each of 0 others, got 12 edges"),
        ("layers", 3, {"damping": -1.0}, "bipartite_belief_propagation.solve: expected damping"),
    ],
)
def test_bad_options_raise(name, plan, options, message):
    graph, solve, _, _ = LAYOUTS[name]
    with pytest.raises(ValueError, match=message):
        solve(random_model("ising", graph), plan, **options)


def test_layers_need_two_states():
    with pytest.raises(ValueError, match="expected two states, got 3; use belief_propagation"):
        bipartite_belief_propagation.solve(random_model("potts", complete_bipartite(3, 4)), 3)
