import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from examples import GRAPHS, KINDS, SMALL_UNEVEN, UNEVEN, potential_of, random_model
from scipy import stats

from jaxmrf.exact import enumeration
from jaxmrf.graphs import Graph, grid
from jaxmrf.models import Ising, Potts

CASES = [(kind, name) for kind in KINDS for name in ("grid", "single", "empty")]


def test_configurations_change_node_0_fastest():
    for num_nodes, num_states in [(3, 2), (2, 3), (1, 4)]:
        expected = oracles.configurations(num_nodes, num_states)
        assert enumeration.configurations(num_nodes, num_states).tolist() == list(
            map(list, expected)
        )


def test_configurations_cannot_be_changed():
    with pytest.raises(ValueError, match="read-only"):
        enumeration.configurations(2, 2)[0, 0] = 1


def test_too_many_configurations_raise():
    message = r"configurations: expected at most 1048576 configurations, got 2\*\*21; sample"
    with pytest.raises(ValueError, match=message):
        enumeration.configurations(21, 2)
    graph = Graph(21, [])
    with pytest.raises(ValueError, match=message):
        enumeration.log_z(Ising(jnp.zeros(0), jnp.zeros(21)), graph)


def test_is_enumerable_counts_configurations():
    assert enumeration.is_enumerable(20, 2) and not enumeration.is_enumerable(21, 2)
    assert enumeration.is_enumerable(4, 3, limit=81) and not enumeration.is_enumerable(
        4, 3, limit=80
    )


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_solve_is_the_oracle(kind, name):
    graph = GRAPHS[name]
    model = random_model(kind, graph)
    size = graph.num_nodes, model.num_states
    potential = potential_of(model, graph)
    probabilities = oracles.distribution(potential, *size)
    beliefs = enumeration.solve(model, graph)
    np.testing.assert_allclose(beliefs.log_z, oracles.log_z(potential, *size), rtol=1e-5)
    nodes = oracles.node_marginals(probabilities, *size)
    np.testing.assert_allclose(beliefs.nodes, nodes, atol=2e-6)
    edges = oracles.pair_marginals(probabilities, graph.edges.tolist(), *size)
    np.testing.assert_allclose(beliefs.factors, edges, atol=2e-6)
    assert bool(beliefs.is_converged) and int(beliefs.num_iters) == 0


def test_log_z_over_several_batches_is_the_log_z_of_independent_parts(monkeypatch):
    model = random_model("ising", UNEVEN)
    expected = enumeration.log_z(model, UNEVEN)
    monkeypatch.setattr(enumeration, "_BATCH", 100)  # 512 configurations: five and a rest
    np.testing.assert_allclose(enumeration.log_z(model, UNEVEN), expected, rtol=1e-6)
    gradient = jax.grad(enumeration.log_z)(model, UNEVEN)
    marginals = enumeration.solve(model, UNEVEN).nodes
    np.testing.assert_allclose(gradient.fields, marginals[:, 1] - marginals[:, 0], atol=1e-5)


def test_log_z_of_free_spins_is_known():
    fields = jnp.array([0.3, -1.2, 0.0])
    found = enumeration.log_z(Ising(jnp.zeros(0), fields), Graph(3, []))
    np.testing.assert_allclose(found, np.log(2 * np.cosh(fields)).sum(), rtol=1e-6)


def test_log_z_stays_finite_at_huge_couplings():
    graph = grid((2, 3))
    model = Potts(jnp.full(graph.num_edges, 500.0), jnp.zeros((6, 3)))
    np.testing.assert_allclose(enumeration.log_z(model, graph), 500 * 7 + np.log(3), rtol=1e-6)


@pytest.mark.parametrize("num_nodes", [4, 5])
def test_draws_have_the_exact_probabilities(num_nodes, key):
    graph = Graph(num_nodes, SMALL_UNEVEN.edges[: num_nodes - 2] % num_nodes)
    model = random_model("pairwise", graph)
    draws = enumeration.sample(key, model, graph, num_samples=50_000)
    assert draws.shape == (50_000, num_nodes)
    probabilities = oracles.distribution(potential_of(model, graph), num_nodes, 3)
    counts = np.bincount(np.asarray(draws) @ 3 ** np.arange(num_nodes), minlength=3**num_nodes)
    assert stats.chisquare(counts, probabilities / probabilities.sum() * 50_000).pvalue > 1e-4
