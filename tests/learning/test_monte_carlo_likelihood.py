import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmrf.exact import transfer
from jaxmrf.graphs import Graph, grid, sweep_plan
from jaxmrf.learning import (
    contrastive,
    fit_likelihood,
    fit_monte_carlo_likelihood,
    monte_carlo_likelihood,
    no_fields,
    tied_couplings,
)
from jaxmrf.models import Ising, Potts, couplings_from_agreements
from jaxmrf.sampling import sampler_plan

GRAPH = grid((3, 3))
FIRST, SECOND = GRAPH.edges.T
PLAN = sweep_plan(GRAPH)
BUILD = no_fields(GRAPH)
STEP = jax.jit(
    monte_carlo_likelihood.step,
    static_argnames=("build", "num_sweeps", "min_effective_fraction", "average_from"),
)


@pytest.fixture(scope="module")
def data():
    """Exact draws of couplings of size 0.5."""
    couplings = 0.5 * np.random.default_rng(3).normal(size=12)
    truth = Ising(jnp.asarray(couplings, jnp.float32), jnp.zeros(9))
    return np.asarray(transfer.sample(jax.random.key(7), truth, GRAPH, num_samples=400))


def products(states):
    """Spin products of neighbours, "items edges"."""
    spins = 2.0 * np.asarray(states) - 1
    return spins[:, FIRST] * spins[:, SECOND]


def one_step(data, *, num_particles=2000, min_effective_fraction=0.5):
    """Old parameters (zero), new state and Info of one round."""
    start = jnp.zeros(12)
    state = monte_carlo_likelihood.init(
        jax.random.key(1), start, PLAN, build=BUILD, num_particles=num_particles
    )
    target = contrastive.target(data, GRAPH, start, build=BUILD)
    options = {"build": BUILD, "num_sweeps": 2, "min_effective_fraction": min_effective_fraction}
    return STEP(jax.random.key(2), state, target, GRAPH, PLAN, **options)


@pytest.mark.slow
def test_round_matches_the_moments_of_weighted_particles_to_the_data(data):
    weak = np.concatenate([data, np.random.default_rng(0).integers(0, 2, (1200, 9))])
    new, info = one_step(weak)
    table = products(new.particles.T)
    weights = np.exp(table @ np.asarray(new.parameters, np.float64))
    fraction = weights.sum() ** 2 / (weights**2).sum() / len(weights)
    np.testing.assert_allclose(info.effective_fraction, fraction, rtol=1e-4)
    assert fraction > 0.5 and not info.is_truncated
    mean = products(weak).mean(axis=0)
    np.testing.assert_allclose(weights @ table / weights.sum(), mean, atol=2e-3)
    gain = mean @ np.asarray(new.parameters) - np.log(weights.mean())
    np.testing.assert_allclose(info.gain, gain, atol=1e-5)
    # at the anchor all particles weigh the same
    gap = np.abs(mean - table.mean(axis=0)).max()
    np.testing.assert_allclose(info.moment_mismatch, gap, rtol=1e-4)


def test_round_stops_where_the_weights_degenerate(data):
    new, info = one_step(data, min_effective_fraction=0.9)
    weights = np.exp(products(new.particles.T) @ np.asarray(new.parameters, np.float64))
    fraction = weights.sum() ** 2 / (weights**2).sum() / len(weights)
    assert info.is_truncated and 0.9 <= fraction < 0.95
    assert info.gain > 0.05


def test_average_is_the_mean_of_the_last_parameters(key, data):
    target = contrastive.target(data, GRAPH, jnp.zeros(12), build=BUILD)
    state = monte_carlo_likelihood.init(key, jnp.zeros(12), PLAN, build=BUILD, num_particles=50)
    seen = []
    for number in range(4):
        state, _ = STEP(
            jax.random.fold_in(key, number), state, target, GRAPH, PLAN, build=BUILD, average_from=1
        )
        seen.append(np.asarray(state.parameters))
    assert state.count == 4
    np.testing.assert_allclose(state.average, np.mean(seen[1:], axis=0), rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("labels", [None, np.arange(12) % 3], ids=["blind", "tied"])
def test_estimate_is_the_maximum_of_the_likelihood(key, data, labels):
    build = BUILD if labels is None else tied_couplings(labels, 9)
    start = jnp.zeros(12 if labels is None else 3)
    exact = fit_likelihood(data, GRAPH, parameters=start, build=build)
    fit = fit_monte_carlo_likelihood(key, data, GRAPH, parameters=start, build=build)
    curvature = jax.hessian(lambda values: transfer.log_z(build(values), GRAPH))(exact.parameters)
    # the error of one round of independent particles; ten rounds are averaged
    deviation = np.sqrt(np.diag(np.linalg.inv(curvature)) / 2000)
    difference = np.asarray(fit.parameters - exact.parameters)
    assert np.abs(difference / deviation).max() < 2
    assert np.sqrt(np.mean((difference / deviation) ** 2)) < 0.8
    assert fit.is_converged and fit.moment_mismatch < 0.1
    assert not fit.history.is_truncated[-10:].any()
    assert fit.num_iters == len(fit.history.gain) == 20


@pytest.mark.slow
def test_start_of_an_ising_model_is_zero_and_fields_are_fitted(key):
    graph = Graph(2, [(0, 1)])
    data = np.array([[0, 0]] * 30 + [[1, 1]] * 40 + [[1, 0]] * 20 + [[0, 1]] * 10)
    exact = fit_likelihood(data, graph)
    fit = fit_monte_carlo_likelihood(key, data, graph, num_sweeps=10)
    np.testing.assert_allclose(fit.model.couplings, exact.model.couplings, atol=0.03)
    np.testing.assert_allclose(fit.model.fields, exact.model.fields, atol=0.03)
    again = fit_monte_carlo_likelihood(key, 2 * data - 1, graph, num_sweeps=10)
    np.testing.assert_array_equal(fit.model.couplings, again.model.couplings)


@pytest.mark.slow
def test_build_need_not_be_linear_and_models_may_have_three_states(key):
    graph = Graph(4, [(0, 1), (1, 2), (2, 3), (0, 3)])
    data = np.random.default_rng(0).integers(0, 3, (200, 4))
    data[:120, 1] = data[:120, 0]

    def build(agreements):
        return Potts(2 * couplings_from_agreements(agreements), jnp.zeros((4, 3)))

    options = {"parameters": jnp.full(4, 0.5), "build": build}
    exact = fit_likelihood(data, graph, **options)
    fit = fit_monte_carlo_likelihood(key, data, graph, **options)
    np.testing.assert_allclose(fit.parameters, exact.parameters, atol=0.01)
    assert fit.is_converged


@pytest.mark.slow
def test_particles_too_few_for_the_parameters_are_reported(key, data, capsys):
    options = {"parameters": jnp.zeros(12), "build": BUILD, "num_particles": 12}
    fit = fit_monte_carlo_likelihood(key, data, GRAPH, progress=True, **options)
    assert fit.history.is_truncated[-5:].all() and not fit.is_converged
    # a round moves no parameter by more than 1: rounds 11 to 20 average to 15.5 at most
    assert np.abs(fit.parameters).max() <= 15.5
    assert "20/20" in capsys.readouterr().err
    plan = sampler_plan(GRAPH, Ising(None, None), num_chains=12, form="plain")
    again = fit_monte_carlo_likelihood(key, data, GRAPH, plan=plan, **options)
    np.testing.assert_array_equal(fit.parameters, again.parameters)


@pytest.mark.slow
def test_estimate_at_infinity_takes_bounded_steps(key):
    copies = np.repeat([[0], [1]], 9, axis=1)
    fit = fit_monte_carlo_likelihood(key, copies, GRAPH, parameters=jnp.zeros(12), build=BUILD)
    assert 1 < fit.last_parameters.min() and fit.last_parameters.max() < 10
    assert fit.moment_mismatch < 0.05


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_particles": 0}, r"expected num_particles to be at least 1, got 0; raise it"),
        ({"num_sweeps": 0}, r"expected num_sweeps to be at least 1, got 0; raise it"),
        (
            {"min_effective_fraction": 1.0},
            r"min_effective_fraction to be in \(0, 1\), got 1.0; 0.5",
        ),
        ({"average_fraction": 0.0}, r"expected average_fraction to be in \(0, 1\], got 0.0; 0.5"),
        ({"num_rounds": 0}, r"expected num_steps to be a positive integer, got 0"),
    ],
)
def test_option_out_of_range_is_refused(key, data, options, message):
    with pytest.raises(ValueError, match=message):
        fit_monte_carlo_likelihood(key, data, GRAPH, **options)


def test_data_of_another_width_are_refused(key, data):
    message = r"fit_monte_carlo_likelihood: expected data of shape \[items, 9\]"
    with pytest.raises(ValueError, match=message):
        fit_monte_carlo_likelihood(key, data[:, :5], GRAPH)
