import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

from jaxmrf.logspace import (
    draw_from_relative_logits,
    draw_log_beta,
    draw_log_gamma,
    log1mexp,
    log_softmax_relative,
)

draw = jax.jit(draw_from_relative_logits)


@pytest.mark.parametrize("shape", [(1, 4), (3, 2, 5), (2,)])
def test_log_softmax_relative_is_scipys_with_a_zero_in_front(shape, rng):
    logits = rng.normal(0, 3, shape).astype(np.float32)
    expected = special.log_softmax(np.concatenate([np.zeros_like(logits[:1]), logits]), axis=0)
    np.testing.assert_allclose(log_softmax_relative(jnp.asarray(logits)), expected, atol=1e-5)


def test_log_softmax_relative_of_huge_logits_stays_finite():
    found = log_softmax_relative(jnp.array([[1e4, -1e4]]))
    np.testing.assert_allclose(found, [[-1e4, 0], [0, -1e4]])


@pytest.mark.parametrize("logits", [[0.8], [-0.5, 1.0], [2.0, -1.0, 0.3, 0.0]])
def test_draws_have_the_softmax_probabilities(logits, key):
    num_draws = 100_000
    wide = jnp.broadcast_to(jnp.array(logits)[:, None], (len(logits), num_draws))
    states = draw(key, wide)
    assert states.dtype == jnp.int8
    counts = np.bincount(states, minlength=len(logits) + 1)
    expected = special.softmax([0.0, *logits]) * num_draws
    assert stats.chisquare(counts, expected).pvalue > 1e-4


@pytest.mark.parametrize(
    ("logits", "possible"),
    [
        ([1e3], {1}),
        ([-1e3], {0}),
        ([-np.inf], {0}),
        ([np.inf], {1}),
        ([-np.inf, 0.0], {0, 2}),
        ([0.0, -np.inf], {0, 1}),
        ([1e4, 1e4, -1e4], {1, 2}),
        ([-1e4, -1e4, -1e4], {0}),
    ],
)
def test_draws_at_extreme_logits_take_possible_states_only(logits, possible, key):
    wide = jnp.broadcast_to(jnp.array(logits)[:, None], (len(logits), 20_000))
    assert set(np.unique(draw(key, wide)).tolist()) == possible


def test_more_than_128_states_do_not_overflow(key):
    states = draw(key, jnp.zeros((199, 5000)))
    assert states.dtype == jnp.int32
    assert (states.min(), states.max()) == (0, 199)


def test_draws_follow_the_key(key):
    logits = jnp.zeros((2, 50))
    np.testing.assert_array_equal(draw(key, logits), draw(key, logits))
    assert (draw(key, logits) != draw(jax.random.key(1), logits)).any()


@pytest.mark.parametrize("shape", [0.3, 1.0, 2.5, 300.0])
def test_log_gamma_draws_follow_the_gamma_law(key, shape):
    draws = np.exp(np.asarray(draw_log_gamma(key, jnp.full(20_000, shape))))
    assert stats.kstest(draws, stats.gamma(shape).cdf).pvalue > 1e-3


@pytest.mark.parametrize(
    "log_prob", [-1e-37, -1e-10, -1e-3, -0.5, -0.693, -0.694, -1.0, -10.0, -80.0]
)
def test_log1mexp_has_full_relative_precision(log_prob):
    log_prob = np.float32(log_prob)
    expected = np.log(-np.expm1(np.float64(log_prob)))
    if log_prob < -1:
        expected = np.log1p(-np.exp(np.float64(log_prob)))
    np.testing.assert_allclose(log1mexp(jnp.asarray(log_prob)), expected, rtol=1e-6)


def test_log1mexp_at_certainty_and_impossibility():
    np.testing.assert_array_equal(log1mexp(jnp.array([0.0, -jnp.inf])), [-np.inf, 0])


@pytest.mark.parametrize("log_prob", [-1e-3, -0.6, -0.8, -30.0])
def test_log1mexp_has_its_gradient(log_prob):
    expected = -1 / np.expm1(-log_prob)
    np.testing.assert_allclose(jax.grad(log1mexp)(jnp.asarray(log_prob)), expected, rtol=1e-4)


@pytest.mark.parametrize(("on", "off"), [(0.4, 1.3), (1.0, 1.0), (30.0, 4.0)])
def test_log_beta_draws_follow_the_beta_law(key, on, off):
    log_p, log_q = draw_log_beta(key, jnp.full(20_000, on), jnp.full(20_000, off))
    assert stats.kstest(np.exp(np.asarray(log_p, float)), stats.beta(on, off).cdf).pvalue > 1e-3
    np.testing.assert_allclose(np.exp(log_p) + np.exp(log_q), 1, rtol=1e-5)


@pytest.mark.slow
def test_log_beta_draws_of_tiny_parameters_stay_finite(key):
    log_p, log_q = draw_log_beta(key, jnp.full(1000, 1e-12), jnp.ones(1000))
    assert np.isfinite(log_p).all()
    assert (log_p < -1e4).mean() > 0.99
    assert (log_q <= 0).all()
