import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

from jaxmrf.logspace import draw_from_relative_logits, draw_log_gamma, log_softmax_relative

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
