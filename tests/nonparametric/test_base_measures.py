"""Base measures against quadrature and against each other."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, stats

from jaxmrf.nonparametric.base_measures import BetaBase, MonteCarloBase

SUCCESSES = jnp.array([0.0, 3.0, 9.0])
FAILURES = jnp.array([10.0, 7.0, 1.0])


def integral(success, failure, density):
    return integrate.quad(lambda t: t**success * (1 - t) ** failure * density(t), 0, 1)[0]


@pytest.mark.parametrize(("a", "b"), [(1.0, 1.0), (2.0, 0.5)])
def test_beta_base_integral_equals_quadrature(key, a, b):
    log_integrals, _ = BetaBase(a, b).new_groups(key, SUCCESSES, FAILURES)
    density = stats.beta(a, b).pdf
    expected = [integral(s, f, density) for s, f in zip(SUCCESSES, FAILURES, strict=True)]
    np.testing.assert_allclose(np.exp(log_integrals), expected, rtol=1e-4)


def test_beta_base_draws_follow_the_posterior(key):
    draw = jax.vmap(lambda k: BetaBase(2.0, 1.0).new_groups(k, SUCCESSES, FAILURES)[1])
    draws = np.asarray(draw(jax.random.split(key, 4000)))
    for column, success, failure in zip(draws.T, SUCCESSES, FAILURES, strict=True):
        cdf = stats.beta(2 + float(success), 1 + float(failure)).cdf
        assert stats.kstest(column, cdf).pvalue > 1e-3


def monte_carlo(num_draws):
    return MonteCarloBase(
        log_density=lambda t: jax.scipy.stats.beta.logpdf(t, 2.0, 3.0),
        sample=lambda k, n: jax.random.beta(k, 2.0, 3.0, (n,)),
        num_draws=num_draws,
    )


def test_monte_carlo_base_integral_approaches_the_closed_form(key):
    num_draws = 200_000
    found, _ = monte_carlo(num_draws).new_groups(key, SUCCESSES, FAILURES)
    exact, _ = BetaBase(2.0, 3.0).new_groups(key, SUCCESSES, FAILURES)
    squares, _ = BetaBase(2.0, 3.0).new_groups(key, 2 * SUCCESSES, 2 * FAILURES)
    relative_error = np.sqrt(np.expm1(squares - 2 * exact) / num_draws)
    assert (np.abs(np.expm1(found - exact)) < 4.5 * relative_error).all()


def test_monte_carlo_base_update_leaves_the_posterior_invariant(key):
    key_start, key_step = jax.random.split(key)
    posterior = stats.beta(2 + 6, 3 + 4)
    start = jax.random.beta(key_start, 2.0 + 6, 3.0 + 4, (8000,))
    after = monte_carlo(2).update(
        key_step, start, jnp.full_like(start, 6.0), jnp.full_like(start, 4.0)
    )
    assert stats.kstest(np.asarray(after), posterior.cdf).pvalue > 1e-3
    assert 0.5 < np.mean(np.asarray(after) != np.asarray(start)) < 1.0
