import jax
import jax.numpy as jnp
import networkx as nx
import numpy as np
import pytest

from jaxmrf.datasets import senate109
from jaxmrf.exact import enumeration
from jaxmrf.graphs import binary_tree
from jaxmrf.learning import neighborhood_graph, sparse_graph, structure
from jaxmrf.models import Ising

LEARNERS = {
    "sparse": sparse_graph,
    "and": lambda data, **options: neighborhood_graph(data, rule="and", **options),
    "or": lambda data, **options: neighborhood_graph(data, rule="or", **options),
}


@pytest.fixture(scope="module")
def planted_tree():
    """A tree of 15 nodes, couplings of both signs, and data."""
    graph = binary_tree(3)
    signs = np.random.default_rng(1).choice([-1.0, 1.0], graph.num_edges)
    model = Ising(jnp.asarray(0.6 * signs, jnp.float32), jnp.full(15, 0.1))
    return graph, np.asarray(enumeration.sample(jax.random.key(0), model, graph, num_samples=1500))


def covariance(data):
    spins = 2.0 * data - 1
    spins -= spins.mean(axis=0)
    return spins.T @ spins / len(data)


def log_determinant_solution(matrix, penalty):
    """Minimiser of tr(PM) - log det P + penalty * sum of off-diagonal |P|, by ADMM."""
    P = Z = np.eye(len(matrix))
    U = np.zeros_like(matrix)
    off_diagonal = penalty * (1 - np.eye(len(matrix)))
    for _ in range(2000):
        values, vectors = np.linalg.eigh(Z - U - matrix)
        P = vectors @ np.diag((values + np.sqrt(values**2 + 4)) / 2) @ vectors.T
        Z = np.sign(P + U) * np.maximum(np.abs(P + U) - off_diagonal, 0)
        U = U + P - Z
    return Z


@pytest.mark.parametrize("name", LEARNERS)
def test_planted_tree_is_recovered(planted_tree, name):
    graph, data = planted_tree
    found = LEARNERS[name](data, num_edges=graph.num_edges)
    assert set(map(tuple, found.graph.edges)) == set(map(tuple, graph.edges))
    assert found.num_edges == graph.num_edges and found.is_exact_count


def test_sparse_graph_is_the_pattern_of_the_log_determinant_relaxation(rng):
    data = rng.integers(0, 2, (30, 6))
    data[:, 1::2] = np.where(rng.random((30, 3)) < 0.7, data[:, ::2], data[:, 1::2])
    found = sparse_graph(data, num_edges=10)

    def pattern(matrix):
        precision = log_determinant_solution(matrix, found.penalty)
        return np.argwhere(np.triu(np.abs(precision) > 1e-8, 1)).tolist()

    assert found.graph.edges.tolist() == pattern(covariance(data) + np.eye(6) / 3)
    # the third on the diagonal matters for these data
    assert found.graph.edges.tolist() != pattern(covariance(data))


def test_neighborhoods_meet_the_optimality_conditions(planted_tree):
    _, data = planted_tree
    spins = 2.0 * data - 1
    penalty = 0.1
    start = jnp.zeros((16, 15))
    solution = np.asarray(structure._neighborhoods(jnp.asarray(spins, jnp.float32), start, penalty))
    intercepts, weights = solution[0], solution[1:]
    residual = spins - np.tanh(intercepts + spins @ weights)
    np.testing.assert_allclose(residual.mean(axis=0), 0, atol=5e-4)
    gradient = spins.T @ residual / len(spins)
    np.testing.assert_array_equal(np.diag(weights), 0)
    is_on = weights != 0
    is_off = ~is_on & ~np.eye(15, dtype=bool)
    assert is_on.sum() > 10 and is_off.sum() > 10
    np.testing.assert_allclose(gradient[is_on], penalty * np.sign(weights[is_on]), atol=5e-4)
    assert np.abs(gradient[is_off]).max() < penalty + 5e-4


@pytest.mark.parametrize("name", LEARNERS)
@pytest.mark.parametrize("num_edges", [0, 1, 30, 105])
def test_wanted_number_of_edges_is_hit(planted_tree, name, num_edges):
    _, data = planted_tree
    found = LEARNERS[name](data, num_edges=num_edges)
    assert found.graph.num_edges == found.num_edges == num_edges
    assert found.graph.num_nodes == 15
    assert found.graph.edges.tolist() == sorted(found.graph.edges.tolist())


@pytest.mark.parametrize("name", LEARNERS)
def test_exchange_of_nodes_permutes_the_graph(planted_tree, name, rng):
    _, data = planted_tree
    order = rng.permutation(15)
    found = LEARNERS[name](data, num_edges=14)
    moved = LEARNERS[name](data[:, order], num_edges=14)
    back = {tuple(sorted(pair)) for pair in order[moved.graph.edges].tolist()}
    assert back == set(map(tuple, found.graph.edges.tolist()))


@pytest.mark.parametrize("name", LEARNERS)
def test_tie_is_cut_back_to_the_wanted_number(name):
    data = np.array([[0, 0, 0, 0], [0, 0, 1, 1], [1, 1, 0, 0], [1, 1, 1, 1]])
    found = LEARNERS[name](data, num_edges=1)
    assert found.graph.edges.tolist() in ([[0, 1]], [[2, 3]])
    assert not found.is_exact_count and found.num_edges == 1


@pytest.mark.parametrize("name", LEARNERS)
def test_constant_data_give_no_edge_and_say_so(name):
    found = LEARNERS[name](np.ones((5, 3), int), num_edges=2)
    assert found.num_edges == 0 and found.graph.num_nodes == 3
    assert not found.is_exact_count


@pytest.mark.parametrize("name", LEARNERS)
def test_spins_and_states_give_one_graph(planted_tree, name):
    _, data = planted_tree
    found = LEARNERS[name](data, num_edges=5)
    assert found.graph == LEARNERS[name](2 * data - 1, num_edges=5).graph


@pytest.mark.slow
@pytest.mark.parametrize("name", LEARNERS)
def test_senate_gets_279_edges_within_parties(name):
    votes = senate109()
    data = np.concatenate([votes.session1, votes.session2])
    graph = LEARNERS[name](data, num_edges=279).graph
    assert graph.num_edges == 279
    parties = np.array(votes.parties)[graph.edges]
    assert np.mean(parties[:, 0] == parties[:, 1]) > 0.9
    assert nx.density(graph.to_networkx()) < 0.06


@pytest.mark.parametrize("name", LEARNERS)
@pytest.mark.parametrize("num_edges", [-1, 4])
def test_impossible_number_of_edges_is_refused(name, num_edges):
    message = rf"_graph: expected num_edges in 0..3, the pairs of 3 nodes, got {num_edges}; ask"
    with pytest.raises(ValueError, match=message):
        LEARNERS[name](np.eye(3, dtype=int), num_edges=num_edges)


@pytest.mark.parametrize("data", [np.zeros(4), np.full((3, 3), 2), np.array([[0.5, 1.0]])])
def test_data_that_are_not_binary_rows_are_refused(data):
    with pytest.raises(ValueError, match=r"sparse_graph: expected"):
        sparse_graph(data, num_edges=1)


def test_unknown_rule_is_refused():
    message = r"neighborhood_graph: expected rule to be 'and' or 'or', got 'xor'; name one"
    with pytest.raises(ValueError, match=message):
        neighborhood_graph(np.eye(3, dtype=int), num_edges=1, rule="xor")
