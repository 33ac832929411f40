import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmrf.graphs import Graph, grid
from jaxmrf.learning import fit_likelihood, fit_pseudolikelihood, no_fields
from jaxmrf.models import Potts

GRAPH = grid((2, 3))


def gradient(graph, model, states):
    """Gradient of the mean log pseudo-likelihood of an Ising model, by loops."""
    pairs, singles = np.zeros(graph.num_edges), np.zeros(graph.num_nodes)
    for row in 2.0 * states - 1:
        local = np.array(model.fields, dtype=float)
        for (u, v), coupling in zip(graph.edges, np.asarray(model.couplings), strict=True):
            local[u] += coupling * row[v]
            local[v] += coupling * row[u]
        residual = row - np.tanh(local)
        singles += residual
        pairs += [residual[u] * row[v] + residual[v] * row[u] for u, v in graph.edges]
    return pairs / len(states), singles / len(states)


@pytest.fixture(scope="module")
def coin_flips():
    return np.random.default_rng(0).integers(0, 2, (60, 6))


def test_gradient_vanishes_at_the_estimate(coin_flips):
    fit = fit_pseudolikelihood(coin_flips, GRAPH)
    pairs, singles = gradient(GRAPH, fit.model, coin_flips)
    np.testing.assert_allclose(pairs, 0, atol=3e-5)
    np.testing.assert_allclose(singles, 0, atol=3e-5)
    assert fit.is_converged and fit.moment_mismatch <= 1e-5


def test_mismatch_is_the_gradient_where_the_iterations_ran_out(coin_flips):
    fit = fit_pseudolikelihood(coin_flips, GRAPH, max_iters=2)
    expected = max(np.abs(part).max() for part in gradient(GRAPH, fit.model, coin_flips))
    np.testing.assert_allclose(fit.moment_mismatch, expected, rtol=1e-3)
    assert not fit.is_converged and fit.num_iters == 2


def test_ridge_penalty_balances_the_gradient(coin_flips):
    fit = fit_pseudolikelihood(coin_flips, GRAPH, l2=0.3)
    pairs, singles = gradient(GRAPH, fit.model, coin_flips)
    np.testing.assert_allclose(pairs, 0.3 * fit.model.couplings, atol=3e-5)
    np.testing.assert_allclose(singles, 0.3 * fit.model.fields, atol=3e-5)
    assert np.abs(fit.model.couplings).max() > 0.01


def test_one_edge_without_fields_has_its_closed_form():
    data = np.array([[0, 0]] * 30 + [[1, 0]] * 10)
    graph = Graph(2, [(0, 1)])
    fit = fit_pseudolikelihood(data, graph, parameters=jnp.zeros(1), build=no_fields(graph))
    np.testing.assert_allclose(fit.parameters, np.arctanh([0.5]), atol=1e-4)


def test_potts_edge_with_fields_of_its_own_is_recovered(rng):
    # x_1 copies x_0 half the time and is uniform else: odds of agreement (1/2 + 1/6) / (1/6) = 4
    data = rng.integers(0, 3, (20_000, 2))
    copies = rng.random(len(data)) < 0.5
    data[copies, 1] = data[copies, 0]
    start = Potts(jnp.zeros(1), jnp.zeros((2, 3)))
    fit = fit_pseudolikelihood(data, Graph(2, [(0, 1)]), parameters=start)
    # standard error of the log odds: (n p (1 - p)) ** -0.5 = 0.015
    np.testing.assert_allclose(fit.model.couplings, np.log([4.0]), atol=0.06)
    np.testing.assert_allclose(fit.model.fields - fit.model.fields[:, :1], 0, atol=0.08)


@pytest.mark.parametrize("name", ["grid", pytest.param("random", marks=pytest.mark.slow)])
def test_couplings_are_recovered_as_by_maximum_likelihood(planted, rms_error, name):
    graph, truth, data = planted(name)
    exact = fit_likelihood(data, graph).model
    fit = fit_pseudolikelihood(data, graph)
    assert rms_error(fit.model, truth) < 1.1 * rms_error(exact, truth)
    # 2000 observations: a standard error of 1 / sqrt(2000 * (1 - m^2)) is below 0.035 for m < 0.75
    assert rms_error(exact, truth) < 0.04


def test_fit_inside_a_compiled_function_is_the_same():
    data, graph = np.array([[0, 0]] * 30 + [[1, 0]] * 10), Graph(2, [(0, 1)])

    def fit(start):
        return fit_pseudolikelihood(
            data, graph, parameters=start, build=no_fields(graph)
        ).parameters

    np.testing.assert_allclose(jax.jit(fit)(jnp.zeros(1)), np.arctanh([0.5]), atol=1e-4)


def test_negative_penalty_is_refused():
    message = r"fit_pseudolikelihood: expected l2 to be 0 or more, got -1.0; raise it"
    with pytest.raises(ValueError, match=message):
        fit_pseudolikelihood(np.zeros((2, 6)), GRAPH, l2=-1.0)


def test_data_of_another_width_are_refused():
    with pytest.raises(ValueError, match=r"fit_pseudolikelihood: expected data of shape"):
        fit_pseudolikelihood(np.zeros((2, 5)), GRAPH)
