"""Cluster updates against the transition matrix by brute force over all sets of open edges."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from examples import UNEVEN, potential_of, random_model, random_states
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from jaxmrf.graphs import Graph, grid, random_regular
from jaxmrf.models import Ising, Potts
from jaxmrf.sampling import cluster
from jaxmrf.testing.statistics import chi_square_p_value

# a triangle with a tail, and a node alone
GRAPH = Graph(5, [(0, 1), (2, 1), (2, 0), (3, 2)])
NUM_CHAINS, LEVEL = 30_000, 1e-4
jitted = jax.jit(cluster.step, static_argnames="graph")

components = jax.jit(cluster.components, static_argnames="graph")


def step(*arguments):
    return jax.tree.map(np.asarray, jitted(*arguments))


def attractive(kind, graph=GRAPH, num_states=None):
    model = random_model(kind, graph, num_states)
    return type(model)(jnp.abs(model.couplings), model.fields)


def cluster_matrix(model):
    """The step as a matrix over configurations, by summing over all sets of open edges."""
    num_nodes, num_states = GRAPH.num_nodes, model.num_states
    states = oracles.configurations(num_nodes, num_states)
    factor = 2 if isinstance(model, Ising) else 1
    open_prob = 1 - np.exp(-factor * np.asarray(model.couplings, np.float64))
    fields = np.asarray(model.fields, np.float64)
    if isinstance(model, Ising):
        fields = np.stack([-fields, fields], axis=1)
    matrix = np.zeros((len(states), len(states)))
    for bonds in itertools.product((False, True), repeat=GRAPH.num_edges):
        opened = GRAPH.edges[list(bonds)]
        pattern = coo_matrix((np.ones(len(opened)), opened.T), (num_nodes, num_nodes))
        labels = connected_components(pattern, directed=False)[1]
        after = np.ones(len(states))
        for label in range(labels.max() + 1):
            members = np.flatnonzero(labels == label)
            weights = np.exp(fields[members].sum(axis=0))
            for number, x in enumerate(states):
                is_one = len({x[node] for node in members}) == 1
                after[number] *= weights[x[members[0]]] / weights.sum() if is_one else 0
        for number, x in enumerate(states):
            probability = 1.0
            for (u, v), is_open, p in zip(GRAPH.edges, bonds, open_prob, strict=True):
                p = p * (x[u] == x[v])
                probability *= p if is_open else 1 - p
            matrix[number] += probability * after
    return matrix


def counts(states, num_states):
    powers = num_states ** np.arange(len(states))
    return np.bincount(powers @ np.asarray(states, np.int64), minlength=num_states ** len(states))


def exact_draws(target, num_states):
    states = np.array(oracles.configurations(GRAPH.num_nodes, num_states), np.int8)
    chosen = np.random.default_rng(0).choice(len(states), NUM_CHAINS, p=target / target.sum())
    return jnp.asarray(states[chosen].T)


@pytest.mark.parametrize("kind", ["ising", "potts"])
def test_step_draws_from_its_transition_matrix(kind, key):
    """From one configuration, and from the exact distribution, in 30,000 chains."""
    model = attractive(kind)
    size = GRAPH.num_nodes, model.num_states
    matrix = cluster_matrix(model)
    target = oracles.distribution(potential_of(model, GRAPH), *size)
    np.testing.assert_allclose(matrix.sum(axis=1), 1, atol=1e-12)
    np.testing.assert_allclose(target @ matrix, target, atol=1e-12)

    states = np.array(oracles.configurations(*size), np.int8)
    for start in (0, 9):  # all nodes agree, so every edge may open; some agree
        repeated = jnp.asarray(np.repeat(states[start : start + 1].T, NUM_CHAINS, axis=1))
        found, _ = step(jax.random.fold_in(key, start), repeated, model, GRAPH)
        assert chi_square_p_value(counts(found, size[1]), matrix[start]) > LEVEL

    exact = exact_draws(target, size[1])
    found, _ = step(key, exact, model, GRAPH)
    assert chi_square_p_value(counts(found, size[1]), target) > LEVEL
    halved, opposed = model.couplings / 2, -model.fields
    for bug in (type(model)(halved, model.fields), type(model)(model.couplings, opposed)):
        # edges that open as exp(-J) has it, and fields of the wrong sign
        found, _ = step(key, exact, bug, GRAPH)
        assert chi_square_p_value(counts(found, size[1]), target) < 1e-8


def test_ising_is_potts_of_two_states(key):
    ising = attractive("ising")
    potts = Potts(2 * ising.couplings, jnp.stack([-ising.fields, ising.fields], axis=1))
    states = jnp.asarray(random_states(GRAPH, 2, NUM_CHAINS).T)
    for one, other in zip(
        jax.tree.leaves(step(key, states, ising, GRAPH)),
        jax.tree.leaves(step(key, states, potts, GRAPH)),
        strict=True,
    ):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    "graph", [UNEVEN, grid((1, 300)), random_regular(3, 200, seed=0)], ids=["uneven", "path", "3"]
)
def test_components_are_those_of_scipy(graph, rng):
    num_chains = 6
    open_prob = np.array([0.0, 0.3, 0.5, 0.7, 0.95, 1.0])
    is_open = rng.random((graph.num_edges, num_chains)) < open_prob
    labels = np.asarray(components(jnp.asarray(is_open), graph))
    for chain in range(num_chains):
        opened = graph.edges[is_open[:, chain]].T
        pattern = coo_matrix((np.ones(opened.shape[1]), opened), (graph.num_nodes,) * 2)
        _, first, group = np.unique(
            connected_components(pattern, directed=False)[1], return_index=True, return_inverse=True
        )
        np.testing.assert_array_equal(labels[:, chain], first[group])


def test_components_do_not_depend_on_the_numbering_of_a_long_path(rng):
    order = rng.permutation(1000)
    graph = Graph(1000, np.stack([order[:-1], order[1:]], axis=1))
    assert not np.asarray(components(jnp.ones((999, 1), bool), graph)).any()


def test_clusters_are_single_nodes_without_coupling_and_all_nodes_when_it_is_strong(key):
    fields = jnp.array([-0.5, 0.0, 0.5, 1.0, 0.2])
    start = jnp.zeros((5, NUM_CHAINS), jnp.int8)
    states, info = step(key, start, Ising(jnp.zeros(4), fields), GRAPH)
    assert (info.num_clusters == 5).all() and (info.labels == np.arange(5)[:, None]).all()
    error = 4.5 * 0.5 / NUM_CHAINS**0.5
    expected = 1 / (1 + np.exp(-2 * np.asarray(fields)))
    np.testing.assert_allclose(states.mean(axis=1, dtype=float), expected, atol=error)

    states, info = step(key, start, Ising(jnp.full(4, 50.0), fields), GRAPH)
    assert (info.num_clusters == 2).all() and (info.labels == np.array([[0, 0, 0, 0, 4]]).T).all()
    assert (states[:4] == states[0]).all() and bool(info.is_attractive)
    assert abs(states[0].mean(dtype=float) - 1 / (1 + np.exp(-2.0))) < error


def test_shapes_and_types_are_kept_and_no_key_is_used_twice(key):
    model = attractive("potts")
    with jax.debug_key_reuse(True):
        states = cluster.init(jax.random.key(1), model, GRAPH, num_chains=3)
        new, info = jitted(key, states, model, GRAPH)
    assert states.shape == new.shape == info.labels.shape == (5, 3)
    assert states.dtype == new.dtype == jnp.int8


def test_negative_couplings_are_refused_or_told(key):
    model = Ising(jnp.array([1.0, -0.5, 1.0, 1.0]), jnp.zeros(5))
    states = jnp.zeros((5, 2), jnp.int8)
    with pytest.raises(ValueError, match="init: expected couplings of at least 0, got -0.5"):
        cluster.init(key, model, GRAPH, num_chains=2)
    with pytest.raises(ValueError, match="step: expected couplings of at least 0, got -0.5"):
        cluster.step(key, states, model, GRAPH)
    many = jnp.zeros((5, NUM_CHAINS), jnp.int8)
    assert not step(key, many, model, GRAPH)[1].is_attractive


def test_general_tables_are_refused(key):
    with pytest.raises(ValueError, match="expected an Ising or a Potts model, got Pairwise"):
        cluster.init(key, random_model("pairwise", GRAPH), GRAPH, num_chains=2)
