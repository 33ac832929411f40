"""Base measures against scipy and the posteriors they leave invariant."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from jaxmrf.nonparametric.base_measures import (
    LARGEST_LOGIT,
    BaseMeasure,
    BetaBase,
    GeneralBase,
    draw_logits,
    update,
)

GENERAL = GeneralBase(
    log_density=lambda t: jax.scipy.stats.beta.logpdf(t, 2.0, 3.0),
    sample=lambda key, shape: jax.random.beta(key, 2.0, 3.0, shape),
)


@pytest.mark.parametrize(("a", "b"), [(1.0, 1.0), (2.0, 0.5)])
def test_beta_base_is_the_beta_distribution(key, a, b):
    values = jnp.array([0.01, 0.3, 0.98])
    found = BetaBase(a, b).log_density(values)
    np.testing.assert_allclose(found, stats.beta(a, b).logpdf(values), rtol=1e-4, atol=1e-4)
    draws = np.asarray(BetaBase(a, b).sample(key, (4000,)))
    assert stats.kstest(draws, stats.beta(a, b).cdf).pvalue > 1e-3


def test_draw_logits_follow_the_beta_within_bounds(key):
    draws = np.asarray(draw_logits(key, jnp.full(4000, 2.0), jnp.full(4000, 7.0)))
    assert stats.kstest(1 / (1 + np.exp(-draws)), stats.beta(2, 7).cdf).pvalue > 1e-3
    extreme = draw_logits(key, jnp.full(100, 1e-3), jnp.full(100, 1.0))
    assert np.abs(extreme).max() <= LARGEST_LOGIT


@pytest.mark.slow
@pytest.mark.parametrize("base", [BetaBase(2.0, 3.0), GENERAL])
def test_update_leaves_the_posterior_invariant_and_moves(key, base):
    assert isinstance(base, BaseMeasure)
    key_start, key_step = jax.random.split(key)
    posterior = stats.beta(2 + 6, 3 + 4)
    start = jax.random.beta(key_start, 2.0 + 6, 3.0 + 4, (8000,))
    after = update(key_step, start, jnp.full_like(start, 6.0), jnp.full_like(start, 4.0), base)
    assert stats.kstest(np.asarray(after), posterior.cdf).pvalue > 1e-3
    is_moved = np.mean(np.asarray(after) != np.asarray(start))
    assert is_moved == 1.0 if base is not GENERAL else 0.5 < is_moved < 1.0
