import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmrf.graphs import Graph
from jaxmrf.learning.moments import (
    check_start,
    identity,
    largest_entry,
    mean_over_items,
    mean_statistics,
    no_fields,
    pull_back,
    tied_couplings,
)
from jaxmrf.models import Ising, Pairwise, Potts

GRAPH = Graph(4, [(0, 1), (1, 2), (2, 3), (0, 3), (0, 2)])


def test_mean_statistics_of_ising_equal_numpy_means(rng):
    states = rng.integers(0, 2, (37, 4))
    model = Ising(jnp.zeros(5), jnp.zeros(4))
    mean = mean_statistics(model, GRAPH, states)
    spins = 2 * states - 1
    pairs = [np.mean(spins[:, u] * spins[:, v]) for u, v in GRAPH.edges]
    np.testing.assert_allclose(mean.couplings, pairs, atol=1e-6)
    np.testing.assert_allclose(mean.fields, spins.mean(axis=0), atol=1e-6)


def test_mean_statistics_of_potts_and_tables_equal_numpy_means(rng):
    states = rng.integers(0, 3, (50, 4))
    first, second = GRAPH.edges.T
    potts = mean_statistics(Potts(jnp.zeros(5), jnp.zeros((4, 3))), GRAPH, states)
    agree = np.mean(states[:, first] == states[:, second], axis=0)
    np.testing.assert_allclose(potts.couplings, agree, atol=1e-6)
    tables = mean_statistics(Pairwise(jnp.zeros((5, 3, 3)), jnp.zeros((4, 3))), GRAPH, states)
    for edge, (u, v) in enumerate(GRAPH.edges):
        counts = np.zeros((3, 3))
        np.add.at(counts, (states[:, u], states[:, v]), 1 / 50)
        np.testing.assert_allclose(tables.edge_tables[edge], counts, atol=1e-6)
    np.testing.assert_allclose(tables.node_tables, potts.fields)


@pytest.mark.parametrize("batch_size", [1, 7, 10, 64])
def test_mean_over_items_does_not_depend_on_the_batches(rng, batch_size):
    states = rng.integers(0, 9, (20, 3))
    mean = mean_over_items(lambda row: {"x": 1.0 * row}, states, batch_size=batch_size)
    np.testing.assert_allclose(mean["x"], states.mean(axis=0), rtol=1e-6)


def test_tied_couplings_of_equal_labels_are_one_function():
    build = tied_couplings([0, 1, 1, 0, 2], 4)
    assert build is tied_couplings(np.array([0, 1, 1, 0, 2]), 4)
    assert build is not tied_couplings([0, 1, 1, 0, 1], 4)
    model = build(jnp.array([0.5, -1.0, 2.0]))
    assert model.couplings.tolist() == [0.5, -1.0, -1.0, 0.5, 2.0]
    assert model.fields.tolist() == [0.0] * 4
    assert no_fields(GRAPH)(jnp.arange(5.0)).couplings.tolist() == [0, 1, 2, 3, 4]


def test_pull_back_sums_the_gradient_of_tied_couplings():
    model, carry = pull_back(tied_couplings([0, 1, 1, 0, 2], 4), jnp.array([0.5, -1.0, 2.0]))
    gradient = Ising(couplings=jnp.array([1.0, 2.0, 3.0, 4.0, 5.0]), fields=jnp.ones(4))
    assert carry(gradient).tolist() == [5.0, 5.0, 5.0]
    assert model.couplings.shape == (5,)


def test_pull_back_casts_statistics_to_the_type_of_the_model(x64):
    start = Ising(jnp.zeros(5, jnp.float32), jnp.zeros(4, jnp.float32))
    model, carry = pull_back(identity, start)
    wide = jax.tree.map(lambda leaf: leaf.astype(jnp.float64) + 0.5, model)
    assert carry(wide).couplings.dtype == jnp.float32


def test_largest_entry_reads_every_leaf():
    assert largest_entry({"a": jnp.array([1.0, -3.0]), "b": jnp.zeros((0,))}) == 3.0


@pytest.mark.parametrize("labels", [[0.5, 1.0], [[0, 1]], [0, -1]])
def test_tied_couplings_refuse_labels_that_are_not_indices(labels):
    with pytest.raises(ValueError, match=r"tied_couplings: expected labels .* number the groups"):
        tied_couplings(labels, 3)


def test_start_refuses_build_without_parameters():
    with pytest.raises(ValueError, match=r"fit: expected parameters together with build, got None"):
        check_start(np.zeros((3, 4)), GRAPH, None, no_fields(GRAPH), caller="fit")


@pytest.mark.parametrize(
    "parameters",
    [
        Ising(jnp.zeros(4), jnp.zeros(4)),
        Ising(jnp.zeros(5), jnp.zeros(3)),
        Potts(jnp.zeros(5), jnp.zeros((5, 2))),
    ],
)
def test_start_refuses_a_model_of_another_graph(parameters):
    with pytest.raises(ValueError, match=r"fit: expected a model of 5 edges and 4 nodes .* pass"):
        check_start(np.zeros((3, 4)), GRAPH, parameters, identity, caller="fit")


def test_start_checks_and_codes_the_data():
    with pytest.raises(ValueError, match=r"fit: expected data of shape \[items, 4\], got \(3, 5\)"):
        check_start(np.zeros((3, 5)), GRAPH, None, identity, caller="fit")
    parameters, states = check_start(-np.ones((3, 4)), GRAPH, None, identity, caller="fit")
    assert states.tolist() == [[0] * 4] * 3
    assert parameters.couplings.tolist() == [0.0] * 5
