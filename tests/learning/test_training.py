from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxmrf.learning.training import fit, minimize, running_mean


def noisy_step(key, state, target=0.0, *, optimizer=None):
    """One step of a quadratic with a noisy gradient."""
    parameter, optimizer_state = state
    gradient = parameter - target + jax.random.normal(key)
    updates, optimizer_state = optimizer.update(gradient, optimizer_state, parameter)
    return (optax.apply_updates(parameter, updates), optimizer_state), gradient


OPTIMIZER = optax.adam(0.1)
STEP = partial(noisy_step, optimizer=OPTIMIZER)


def start():
    return jnp.array(1.0), OPTIMIZER.init(jnp.array(1.0))


def test_fit_equals_a_python_loop(key):
    state, infos = fit(key, start(), STEP, 5, args=(2.0,))
    expected = start()
    for number, key_step in enumerate(jax.random.split(key, 5)):
        expected, info = STEP(key_step, expected, 2.0)
        np.testing.assert_allclose(infos[number], info, rtol=1e-5)
    np.testing.assert_allclose(state[0], expected[0], rtol=1e-5)


@pytest.mark.parametrize("num_steps", [1, 103])
def test_progress_bar_does_not_change_the_result(key, capsys, num_steps):
    state, infos = fit(key, start(), STEP, num_steps, progress=True)
    assert f"{num_steps}/{num_steps}" in capsys.readouterr().err
    expected_state, expected_infos = fit(key, start(), STEP, num_steps)
    assert "training" not in capsys.readouterr().err
    np.testing.assert_array_equal(infos, expected_infos)
    np.testing.assert_array_equal(state[0], expected_state[0])


def test_fit_traces_a_step_once_for_two_data_sets(key):
    traces = []

    def step(key, state, data):
        traces.append(data.shape)
        return state + data.sum(), state

    fit(key, jnp.array(0.0), step, 3, args=(jnp.ones(2),))
    state, _ = fit(key, jnp.array(0.0), step, 3, args=(jnp.zeros(2),))
    assert traces == [(2,)]
    assert state == 0.0


@pytest.mark.parametrize("num_steps", [0, -2])
def test_fit_refuses_an_impossible_number_of_steps(key, num_steps):
    with pytest.raises(ValueError, match=r"fit: expected num_steps to be a positive integer, got"):
        fit(key, start(), STEP, num_steps)


def test_running_mean_starts_at_count_zero():
    values = jnp.array([5.0, 1.0, 2.0, 6.0])
    mean = {"x": jnp.array(100.0)}
    for count, value in enumerate(values, start=-1):
        mean = running_mean(mean, {"x": value}, count)
    assert mean["x"] == pytest.approx(3.0)


def rosenbrock(parameters, scale):
    x, y = parameters["x"], parameters["y"]
    return (1 - x) ** 2 + scale * (y - x**2) ** 2


def test_minimize_finds_the_minimum_of_a_curved_valley():
    point = {"x": jnp.array(-1.2), "y": jnp.array(1.0)}
    found, gap, num_iters = minimize(
        rosenbrock, point, args=(100.0,), tolerance=1e-4, max_iters=100
    )
    assert gap <= 1e-4 and 10 < num_iters < 100
    np.testing.assert_allclose([found["x"], found["y"]], 1.0, atol=1e-3)


def test_minimize_stops_at_the_largest_number_of_iterations():
    point = {"x": jnp.array(-1.2), "y": jnp.array(1.0)}
    found, gap, num_iters = minimize(rosenbrock, point, args=(100.0,), tolerance=1e-4, max_iters=3)
    assert num_iters == 3
    gradient = jax.grad(rosenbrock)(found, 100.0)
    np.testing.assert_allclose(gap, max(abs(gradient["x"]), abs(gradient["y"])), rtol=1e-4)
    assert gap > 1e-4
