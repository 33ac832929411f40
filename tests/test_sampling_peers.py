"""The samplers that Gibbs sampling is timed beside draw from the model, and the checks of them."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import sampling_checks, sampling_peers
from benchmarks.case_sampling import random_graph, random_ising, uniform_ising
from benchmarks.sampling_peers import LATTICE_PEERS, PEERS, Sampler
from jaxmrf.graphs import torus
from jaxmrf.models import Ising

SPINS = np.array(list(itertools.product([-1, 1], repeat=16)), float)


def moments(graph, model):
    """Weights of all configurations of 16 spins, by their definition."""
    first, second = graph.edges.T
    log_weights = SPINS @ np.asarray(model.fields, float)
    log_weights += (SPINS[:, first] * SPINS[:, second]) @ np.asarray(model.couplings, float)
    weights = np.exp(log_weights)
    return weights / weights.sum()


@pytest.mark.slow
@pytest.mark.parametrize("method", ["thrml", "dwave-samplers", "numba", "plain JAX"])
@pytest.mark.parametrize("graph", [torus((4, 4)), random_graph(16, 40)], ids=["torus", "random"])
def test_peer_draws_from_the_model(method, graph):
    if method not in PEERS:
        pytest.skip(f"{method} is not installed")
    model = random_ising(graph)
    sampler = PEERS[method](graph, model, 4096, 20)
    z = sampling_checks.enumeration_z_scores(sampler, model, graph, 4)
    assert z.shape == (16 + 120,)
    assert np.abs(z).max() < 4.5
    assert 0.6 < np.sqrt((z**2).mean()) < 1.4


@pytest.mark.parametrize("method", ["numba", pytest.param("plain JAX", marks=pytest.mark.slow)])
def test_peer_of_the_lattice_draws_from_the_model(method):
    if method not in LATTICE_PEERS:
        pytest.skip(f"{method} is not installed")
    graph = torus((4, 4))
    model = Ising(jnp.full(graph.num_edges, 0.2), jnp.zeros(graph.num_nodes))
    sampler = LATTICE_PEERS[method](graph, model, 1, 20)
    z = sampling_checks.enumeration_z_scores(sampler, model, graph, 1500)
    assert np.abs(z).max() < 4.5
    assert 0.6 < np.sqrt((z**2).mean()) < 1.4


def test_numba_draws_the_published_numbers_of_xoshiro():
    pytest.importorskip("numba")
    drawn = np.zeros(6, np.uint32)
    sampling_peers.numba_kernels()[2](np.arange(1, 5, dtype=np.uint32), drawn)
    assert drawn.tolist() == [641, 1573767, 3222811527, 3517856514, 836907274, 4247214768]


@pytest.mark.slow
def test_gradient_of_thrml_is_the_gap_of_moments():
    pytest.importorskip("thrml")
    graph = torus((4, 4))
    model = random_ising(graph)
    data = np.random.default_rng(0).integers(0, 2, (512, 16))
    gradient, chains = sampling_peers.build_thrml_gradient(graph, model, data, 4096, 20)
    weights, (first, second) = moments(graph, model), graph.edges.T
    spins = 2.0 * data - 1
    found = [np.asarray(part) for part in gradient(0, chains)]
    expected = [
        weights @ (SPINS[:, first] * SPINS[:, second])
        - (spins[:, first] * spins[:, second]).mean(0),
        weights @ SPINS - spins.mean(0),
    ]
    for part, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(part, wanted, atol=5 / np.sqrt(4096))


def test_check_by_enumeration_tells_models_apart():
    graph = torus((4, 4))
    model = random_ising(graph)
    weights = moments(graph, model)

    def draw(seed, _):
        index = np.random.default_rng(seed).choice(len(SPINS), 4096, p=weights)
        return (SPINS[index].T > 0).astype(np.int8)

    sampler = Sampler(start=lambda seed: None, run=draw, states=lambda states: states)
    z = sampling_checks.enumeration_z_scores(sampler, model, graph, 4)
    assert np.abs(z).max() < 4.5
    assert 0.7 < np.sqrt((z**2).mean()) < 1.3
    other = Ising(model.couplings, model.fields.at[3].add(0.1))
    z = sampling_checks.enumeration_z_scores(sampler, other, graph, 4)
    assert np.abs(z[3]) > 8


def test_correlations_of_a_torus_equal_those_by_enumeration():
    graph = torus((4, 4))
    weights = moments(graph, uniform_ising(graph))
    spins = SPINS.reshape(-1, 4, 4)
    expected = [
        weights @ (spins[:, 0, 0] * spins[:, down % 4, right % 4])
        for down, right in sampling_checks.OFFSETS
    ]
    coupling = float(uniform_ising(graph).couplings[0])
    found = sampling_checks.torus_correlations(4, 4, coupling)
    np.testing.assert_allclose(found, expected, atol=1e-10)


def test_products_of_offsets_are_those_of_the_correlations():
    spins = np.random.default_rng(0).choice([-1.0, 1.0], (5, 6))
    expected = [
        np.mean([
            spins[i, j] * spins[(i + down) % 5, (j + right) % 6]
            for i in range(5)
            for j in range(6)
        ])
        for down, right in sampling_checks.OFFSETS
    ]  # fmt: skip
    found = sampling_checks.offset_products(jnp.asarray(spins))
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_standard_errors_of_batches_cover_correlated_values():
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(40_000, 200))
    values = np.zeros_like(noise)
    for i in range(1, len(noise)):  # variance of the mean 100 times that of independent values
        values[i] = 0.9 * values[i - 1] + noise[i]
    z = sampling_checks.batch_z_scores(values, np.zeros(200))
    assert 0.85 < np.sqrt((z**2).mean()) < 1.2
    assert np.abs(sampling_checks.batch_z_scores(values, np.full(200, 0.5))).min() > 5
