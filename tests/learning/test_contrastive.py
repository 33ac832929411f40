import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxmrf.exact import enumeration
from jaxmrf.graphs import Graph, grid, sweep_plan
from jaxmrf.learning import (
    contrastive,
    fit_contrastive,
    fit_likelihood,
    no_fields,
    tied_couplings,
)
from jaxmrf.models import Ising, Potts

GRAPH = grid((2, 3))
PLAN = sweep_plan(GRAPH)
FIRST, SECOND = GRAPH.edges.T
SGD = optax.sgd(1.0)
OPTIONS = ("build", "optimizer", "num_sweeps", "average_from", "fast_rate", "fast_decay")
JITTED_STEP = jax.jit(contrastive.step, static_argnames=OPTIONS)


@pytest.fixture(scope="module")
def data():
    draws = np.random.default_rng(0).integers(0, 2, (40, 6))
    draws[:, 1] |= draws[:, 0]
    return draws


def moments(particles):
    """Mean spin products and spins of states "nodes chains"."""
    spins = 2.0 * np.asarray(particles) - 1
    return (spins[FIRST] * spins[SECOND]).mean(axis=1), spins.mean(axis=1)


def start(data, *, parameters=None, num_chains=30, is_persistent=True, **options):
    """A state, and ``step`` with its options."""
    build = options.get("build", contrastive.identity)
    parameters = Ising(jnp.zeros(7), jnp.zeros(6)) if parameters is None else parameters
    target = contrastive.target(data, GRAPH, parameters, build=build, is_persistent=is_persistent)
    state = contrastive.init(
        jax.random.key(1), parameters, PLAN, build=build, optimizer=SGD, num_chains=num_chains
    )

    def step(key, state):
        return JITTED_STEP(key, state, target, GRAPH, PLAN, optimizer=SGD, **options)

    return state, step


def test_step_follows_the_difference_of_moments_over_the_variances(key, data):
    state, step = start(data)
    new, info = step(key, state)
    wanted = moments(data.T)
    gaps = [mean - model for mean, model in zip(wanted, moments(new.particles), strict=True)]
    np.testing.assert_allclose(new.parameters.couplings, gaps[0] / (1 - wanted[0] ** 2), rtol=1e-4)
    np.testing.assert_allclose(new.parameters.fields, gaps[1] / (1 - wanted[1] ** 2), rtol=1e-4)
    np.testing.assert_allclose(info.moment_mismatch, np.abs(np.concatenate(gaps)).max(), rtol=1e-5)
    np.testing.assert_allclose(info.gradient_norm, np.linalg.norm(np.concatenate(gaps)), rtol=1e-5)
    assert np.any(new.particles != state.particles)


def test_statistic_that_never_varies_takes_a_bounded_step(key, data):
    constant = np.array(data)
    constant[:, 5] = 1
    state, step = start(constant)
    new, _ = step(key, state)
    gap = 1 - moments(new.particles)[1][5]
    np.testing.assert_allclose(new.parameters.fields[5], gap / 0.01, rtol=1e-4)


def test_tied_parameters_follow_the_sum_of_their_gradients(key, data):
    build = tied_couplings([0, 1, 0, 1, 0, 1, 0], 6)
    state, step = start(data, parameters=jnp.zeros(2), build=build)
    new, _ = step(key, state)
    gap = moments(data.T)[0] - moments(new.particles)[0]
    spins = 2.0 * data - 1
    products = spins[:, FIRST] * spins[:, SECOND]
    for group in (0, 1):
        variance = products[:, group::2].sum(axis=1).var()
        np.testing.assert_allclose(new.parameters[group], gap[group::2].sum() / variance, rtol=1e-4)


def test_contrastive_divergence_restarts_at_rows_of_the_data(key):
    # under huge couplings that agree with the row, it stays, and a random start seldom gets there
    row = np.array([[0, 1, 1, 0, 0, 1]])
    spins = 2.0 * row[0] - 1
    frozen = Ising(jnp.asarray(50 * spins[FIRST] * spins[SECOND], jnp.float32), jnp.zeros(6))
    state, step = start(row, parameters=frozen, is_persistent=False)
    new, _ = step(key, state)
    assert (np.asarray(new.particles) == row.T).all()
    persistent, step = start(row, parameters=frozen)
    assert not (np.asarray(step(key, persistent)[0].particles) == row.T).all()


def test_contrastive_divergence_draws_fresh_rows_for_both_sides(key):
    rows = np.repeat([[0], [1]], 6, axis=1)
    strong = Ising(jnp.full(7, 50.0), jnp.zeros(6))
    state, step = start(rows, parameters=strong, is_persistent=False, num_chains=400)
    results = [step(jax.random.key(seed), state) for seed in (0, 1)]
    counts = [int(new.particles[0].sum()) for new, _ in results]
    # binomial(400, 1/2), standard deviation 10
    assert counts[0] != counts[1] and all(abs(count - 200) < 45 for count in counts)
    # the rows do not move, so their unequal counts would show against the mean of all data
    assert all(info.moment_mismatch < 1e-6 for _, info in results)


def test_fast_weights_follow_the_gradient_and_decay(key, data):
    state, step = start(data, fast_rate=0.5, fast_decay=0.9)
    state = state._replace(fast=Ising(jnp.full(7, 0.1), jnp.zeros(6)))
    new, _ = step(key, state)
    gradient = new.parameters.couplings - state.parameters.couplings
    np.testing.assert_allclose(new.fast.couplings, 0.9 * 0.1 + 0.5 * gradient, rtol=1e-4)


def test_fast_weights_move_the_particles_alone(key, data):
    state, step = start(data)
    frozen = Ising(jnp.zeros(7), jnp.full(6, 50.0))
    new, _ = step(key, state._replace(fast=frozen))
    assert (np.asarray(new.particles) == 1).all()
    gap = moments(data.T)[1] - 1
    np.testing.assert_allclose(
        new.parameters.fields, gap / (1 - moments(data.T)[1] ** 2), rtol=1e-4
    )


def test_average_is_the_mean_of_the_last_parameters(key, data):
    state, step = start(data, average_from=2)
    seen = []
    for number in range(5):
        state, _ = step(jax.random.fold_in(key, number), state)
        seen.append(np.asarray(state.parameters.couplings))
    assert state.count == 5
    np.testing.assert_allclose(state.average.couplings, np.mean(seen[2:], axis=0), rtol=1e-4)


@pytest.mark.parametrize("name", ["grid", pytest.param("random", marks=pytest.mark.slow)])
def test_couplings_are_recovered_as_by_maximum_likelihood(planted, rms_error, key, name):
    graph, truth, data = planted(name)
    exact = fit_likelihood(data, graph).model
    fit = fit_contrastive(key, data, graph)
    error = rms_error(exact, truth)
    assert rms_error(fit.model, truth) < 1.1 * error
    # Monte Carlo error of the estimate itself
    assert rms_error(fit.model, exact) < 0.25 * error
    assert fit.is_converged and fit.moment_mismatch < 0.03
    assert fit.num_iters == len(fit.history.gradient_norm) == 1000
    assert fit.history.moment_mismatch[-100:].mean() < fit.history.moment_mismatch[:10].mean() / 2


@pytest.mark.slow
@pytest.mark.parametrize("name", ["grid", "random"])
@pytest.mark.parametrize(
    ("method", "num_sweeps", "bound"), [("fast_pcd", 1, 0.3), ("pcd", 5, 0.25), ("cd", 5, 0.5)]
)
def test_variants_stay_close_to_maximum_likelihood(
    planted, rms_error, key, name, method, num_sweeps, bound
):
    graph, truth, data = planted(name)
    exact = fit_likelihood(data, graph).model
    fit = fit_contrastive(key, data, graph, method=method, num_sweeps=num_sweeps)
    assert rms_error(fit.model, exact) < bound * rms_error(exact, truth)
    assert rms_error(fit.model, truth) < 1.1 * rms_error(exact, truth)


@pytest.mark.slow
def test_tied_potts_couplings_are_recovered(key):
    graph = Graph(5, [(0, 1), (1, 2), (2, 3), (3, 4), (0, 4)])
    labels = np.array([0, 1, 0, 1, 0])

    def build(values):
        return Potts(couplings=values[labels], fields=jnp.zeros((5, 3)))

    data = enumeration.sample(key, build(jnp.array([0.8, -0.4])), graph, num_samples=2000)
    options = {"parameters": jnp.zeros(2), "build": build}
    exact = fit_likelihood(data, graph, **options)
    fit = fit_contrastive(key, data, graph, **options)
    np.testing.assert_allclose(fit.parameters, exact.parameters, atol=0.02)
    np.testing.assert_allclose(exact.parameters, [0.8, -0.4], atol=0.15)


@pytest.mark.slow
def test_progress_bar_and_any_optax_transform_give_the_same_result_twice(key, data, capsys):
    optimizer = optax.chain(optax.clip(1.0), optax.adam(0.05))
    options = {"parameters": jnp.zeros(7), "build": no_fields(GRAPH), "optimizer": optimizer}
    options |= {"num_chains": 20, "num_steps": 20, "average_fraction": 0.25}
    fit = fit_contrastive(key, data, GRAPH, progress=True, **options)
    assert "20/20" in capsys.readouterr().err
    again = fit_contrastive(key, 2 * data - 1, GRAPH, **options)
    np.testing.assert_array_equal(fit.parameters, again.parameters)
    np.testing.assert_array_equal(fit.moment_mismatch, again.moment_mismatch)
    assert np.any(fit.parameters != fit.last_parameters)
    assert np.all(fit.model.fields == 0)


def test_one_step_from_zero_is_reported_as_unconverged(key):
    copies = np.repeat([[0], [1]], 6, axis=1)
    options = {"parameters": jnp.zeros(7), "build": no_fields(GRAPH)}
    fit = fit_contrastive(
        key, copies, GRAPH, optimizer=optax.sgd(1e-3), num_chains=20, num_steps=1, **options
    )
    assert not fit.is_converged
    assert fit.moment_mismatch > 0.5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "mcd"}, r"expected method to be one of .*, got 'mcd'; name one"),
        ({"num_chains": 0}, r"expected num_chains to be at least 1, got 0; raise it"),
        ({"num_sweeps": 0}, r"expected num_sweeps to be at least 1, got 0; raise it"),
        ({"average_fraction": 0.0}, r"expected average_fraction to be in \(0, 1\], got 0.0; 0.5"),
        ({"fast_decay": 1.0}, r"expected fast_decay to be in \[0, 1\), got 1.0; the paper"),
        ({"num_steps": 0}, r"expected num_steps to be a positive integer, got 0"),
    ],
)
def test_option_out_of_range_is_refused(key, data, options, message):
    with pytest.raises(ValueError, match=message):
        fit_contrastive(key, data, GRAPH, **options)


def test_data_of_another_width_are_refused(key, data):
    with pytest.raises(ValueError, match=r"fit_contrastive: expected data of shape \[items, 6\]"):
        fit_contrastive(key, data[:, :5], GRAPH)
