"""Observations below the last layer: log odds against brute force, updates against exact laws."""

import hierarchy_oracle as oracle
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from scipy.special import logsumexp

from jaxmrf.nonparametric.gaussian_factors import GaussianFactors, draw_gaussian_prior
from jaxmrf.nonparametric.noisy_or_factors import NoisyOrFactors, find_cells

NUM_OBJECTS, NUM_DIMS, CAPACITY = 4, 3, 5
NUM_DRAWS = 10_000
FEATURES = np.array(
    [[1, 1, 1, 0], [0, 0, 0, 0], [1, 0, 1, 0], [0, 0, 1, 0], [0, 0, 0, 0]], bool
)  # the last object has none
NOISE, SPREAD = 0.4, 1.3


def gaussian(rng, *, has_weights=False, **changes):
    loadings = rng.normal(size=(CAPACITY, NUM_DIMS)).astype(np.float32)
    activations = rng.normal(size=(CAPACITY, NUM_OBJECTS)).astype(np.float32)
    arguments = {
        "data": jnp.asarray(rng.normal(size=(NUM_OBJECTS, NUM_DIMS)), jnp.float32),
        "loadings": jnp.asarray(loadings),
        "activations": jnp.asarray(activations),
        "noise_variance": jnp.asarray(NOISE),
        "loading_variance": jnp.asarray(SPREAD),
        "has_weights": has_weights,
    }
    return GaussianFactors(**(arguments | changes))


def noisy_or(rng, total=3, *, is_missing=None):
    """Counts that the features can explain."""
    weights = rng.uniform(0.1, 0.8, (CAPACITY, NUM_DIMS)).astype(np.float32)
    weights[2] = 1e-6
    counts = np.where(FEATURES.any(axis=0)[:, None], rng.integers(0, total + 1, (4, 3)), 0)
    is_observed = np.ones(counts.shape, bool) if is_missing is None else ~is_missing
    successes = jnp.asarray(np.where(is_observed, counts, 0), jnp.float32)
    failures = jnp.asarray(np.where(is_observed, total - counts, 0), jnp.float32)
    cells = find_cells(counts, is_observed)
    logs = jnp.log(jnp.asarray(weights)), jnp.log1p(-jnp.asarray(weights))
    return NoisyOrFactors(successes, failures, cells, *logs, (1.2, 0.9)), weights.astype(float)


def log_marginal(likelihood, features, n, k, value):
    """Log-density of one object's data with a feature on or off, its own weight integrated out."""
    data, loadings = np.asarray(likelihood.data[n], float), np.asarray(likelihood.loadings, float)
    activations = np.where(features[:, n], likelihood.activations[:, n], 0.0).astype(float)
    if not likelihood.has_weights:
        activations = features[:, n].astype(float)
    activations[k] = 0
    rest = data - activations @ loadings
    if not value:
        return oracle.log_normal(rest, 0, NOISE)
    if not likelihood.has_weights:
        return oracle.log_normal(rest, loadings[k], NOISE)
    points, weights = np.polynomial.hermite_e.hermegauss(100)
    each = [oracle.log_normal(rest, g * loadings[k], NOISE) for g in points]
    return logsumexp(each, b=weights / weights.sum())


@pytest.mark.parametrize("has_weights", [False, True])
def test_gaussian_log_odds_are_those_of_brute_force(rng, has_weights):
    likelihood = gaussian(rng, has_weights=has_weights)
    cache = likelihood.prepare(jnp.asarray(FEATURES))
    for k in range(CAPACITY):
        found, _ = likelihood.log_odds(cache, k, jnp.asarray(FEATURES[k]))
        expected = [
            log_marginal(likelihood, FEATURES, n, k, 1)
            - log_marginal(likelihood, FEATURES, n, k, 0)
            for n in range(NUM_OBJECTS)
        ]
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("has_weights", [False, True])
def test_gaussian_residuals_stay_right_when_columns_are_replaced(key, rng, has_weights):
    likelihood = gaussian(rng, has_weights=has_weights)
    features = jnp.asarray(FEATURES)
    cache = likelihood.prepare(features)
    for i, k in enumerate([1, 0, 2, 4, 1, 3]):
        if i == 4:  # a column is replaced once; a second time needs the cache anew
            likelihood = likelihood.store(cache)
            cache = likelihood.prepare(features)
        proposed = jax.random.bernoulli(jax.random.fold_in(key, i), 0.5, (NUM_OBJECTS,))
        _, notes = likelihood.log_odds(cache, k, features[k])
        key_weight = jax.random.fold_in(key, 10 + i)
        cache, taken = likelihood.replace(key_weight, cache, notes, k, features[k], proposed)
        np.testing.assert_array_equal(taken, proposed)
        features = features.at[k].set(taken)
    activations = np.asarray(cache.activations)
    if not has_weights:
        np.testing.assert_array_equal(activations, features)
    assert (activations[~np.asarray(features)] == 0).all()
    expected = likelihood.data - activations.T @ likelihood.loadings
    np.testing.assert_allclose(cache.residual, expected, atol=1e-5)
    anew = likelihood.store(cache).prepare(features)
    np.testing.assert_allclose(anew.residual, cache.residual, atol=1e-5)


def test_weights_of_an_object_follow_their_posterior(key, rng):
    likelihood = gaussian(rng, has_weights=True)
    features, k, n = jnp.asarray(FEATURES), 2, 0
    cache = likelihood.prepare(features)
    _, notes = likelihood.log_odds(cache, k, features[k])
    everyone = jnp.ones(NUM_OBJECTS, bool)
    draw = lambda key: likelihood.replace(key, cache, notes, k, features[k], everyone)  # noqa: E731
    caches, _ = jax.vmap(draw)(jax.random.split(key, NUM_DRAWS))
    loading = np.asarray(likelihood.loadings[k], float)
    rest = cache.residual[n] + cache.activations[k, n] * loading
    precision = 1 + loading @ loading / NOISE
    law = stats.norm(loading @ rest / NOISE / precision, precision**-0.5)
    assert stats.kstest(np.asarray(caches.activations[:, k, n]), law.cdf).pvalue > 1e-3


def test_loadings_of_a_single_feature_follow_their_posterior(key, rng):
    features = jnp.zeros((CAPACITY, NUM_OBJECTS), bool).at[3].set(jnp.array([1, 0, 1, 1], bool))
    likelihood = gaussian(rng, has_weights=True)
    cache = likelihood.prepare(features)
    weights = np.where(features[3], likelihood.activations[3], 0).astype(float)
    draw = jax.jit(jax.vmap(lambda key: likelihood.update(key, cache, features).loadings))
    loadings = np.asarray(draw(jax.random.split(key, NUM_DRAWS)))
    precision = weights @ weights / NOISE + 1 / SPREAD
    for d in range(NUM_DIMS):
        mean = weights @ np.asarray(likelihood.data[:, d], float) / NOISE / precision
        law = stats.norm(mean, precision**-0.5)
        assert stats.kstest(loadings[:, 3, d], law.cdf).pvalue > 1e-3
    np.testing.assert_array_equal(
        loadings[:, :3], np.broadcast_to(likelihood.loadings[:3], (NUM_DRAWS, 3, NUM_DIMS))
    )


def test_variances_follow_their_posterior(key, rng):
    priors = {"noise_prior": (2.0, 1.5), "loading_prior": (3.0, 0.7)}
    likelihood = gaussian(rng, is_learned=False, **priors)
    features = jnp.asarray(FEATURES)
    cache = likelihood.prepare(features)

    def draw(key):
        new = likelihood.update(key, cache, features)
        return new.noise_variance, new.loading_variance

    noise, spread = jax.jit(jax.vmap(draw))(jax.random.split(key, NUM_DRAWS))
    residual = likelihood.data - FEATURES.T.astype(np.float32) @ likelihood.loadings
    law = stats.invgamma(2 + residual.size / 2, scale=1.5 + (residual**2).sum() / 2)
    assert stats.kstest(np.asarray(noise), law.cdf).pvalue > 1e-3
    active = likelihood.loadings[FEATURES.any(axis=1)]
    law = stats.invgamma(3 + active.size / 2, scale=0.7 + (active**2).sum() / 2)
    assert stats.kstest(np.asarray(spread), law.cdf).pvalue > 1e-3


def test_known_parameters_stay_as_they_are(key, rng):
    likelihood = gaussian(rng, is_learned=False)
    features = jnp.asarray(FEATURES)
    new = likelihood.renew(key, features.any(axis=1))
    new = new.update(key, new.prepare(features), features)
    for name in ("loadings", "noise_variance", "loading_variance"):
        np.testing.assert_array_equal(getattr(new, name), getattr(likelihood, name))


def test_loadings_that_nobody_uses_come_from_the_prior(key, rng):
    likelihood = gaussian(rng)
    is_active = jnp.asarray(FEATURES.any(axis=1))
    draw = jax.vmap(lambda key: likelihood.renew(key, is_active).loadings)
    loadings = np.asarray(draw(jax.random.split(key, NUM_DRAWS // 5)))
    kept = np.broadcast_to(likelihood.loadings, loadings.shape)
    np.testing.assert_array_equal(loadings[:, is_active], kept[:, is_active])
    law = stats.norm(0, SPREAD**0.5)
    assert stats.kstest(loadings[:, ~np.asarray(is_active)].ravel(), law.cdf).pvalue > 1e-3


def test_prior_data_have_the_variance_of_noise_and_loadings(key, rng):
    likelihood = gaussian(rng, has_weights=True)

    def draw(key):
        return draw_gaussian_prior(key, jnp.asarray(FEATURES), likelihood).data

    squares = np.asarray(jax.vmap(draw)(jax.random.split(key, NUM_DRAWS)), float) ** 2
    expected = NOISE + SPREAD * FEATURES.sum(axis=0)  # with g of variance one
    error = squares.std(axis=0) / NUM_DRAWS**0.5
    assert (abs(squares.mean(axis=0) - expected[:, None]) < 4.5 * error).all()


@pytest.mark.parametrize("total", [1, 3])
def test_binomial_log_odds_are_those_of_brute_force(rng, total):
    likelihood, weights = noisy_or(rng, total)
    cache = likelihood.prepare(jnp.asarray(FEATURES))
    totals = np.asarray(likelihood.successes + likelihood.failures)
    for k in range(CAPACITY):
        found, _ = likelihood.log_odds(cache, k, jnp.asarray(FEATURES[k]))
        for n in range(NUM_OBJECTS):
            on, off = FEATURES[:, n].astype(int), FEATURES[:, n].astype(int)
            on[k], off[k] = 1, 0
            counts = np.asarray(likelihood.successes[n], int)
            expected = oracle.log_binomial_noisy_or(
                counts, totals[n], on, weights
            ) - oracle.log_binomial_noisy_or(counts, totals[n], off, weights)
            np.testing.assert_allclose(found[n], expected, rtol=1e-4, atol=1e-5)


def test_a_success_without_another_cause_forces_its_feature(rng):
    likelihood, _ = noisy_or(rng)
    features = jnp.zeros((CAPACITY, NUM_OBJECTS), bool).at[1].set(True)
    found, _ = likelihood.log_odds(likelihood.prepare(features), 1, features[1])
    has_success = np.asarray((likelihood.successes > 0).any(axis=1))
    assert has_success.any()
    np.testing.assert_array_equal(np.isposinf(found), has_success)
    assert np.isfinite(found[~has_success]).all()


def test_missing_cells_say_nothing(rng):
    is_missing = np.zeros((NUM_OBJECTS, NUM_DIMS), bool)
    is_missing[:, 1], is_missing[1] = True, True
    likelihood, weights = noisy_or(rng, is_missing=is_missing)
    assert not is_missing[likelihood.cells.rows, likelihood.cells.columns].any()
    assert (likelihood.cells.counts > 0).all()
    found, _ = likelihood.log_odds(
        likelihood.prepare(jnp.asarray(FEATURES)), 0, jnp.asarray(FEATURES[0])
    )
    assert found[1] == 0
    counts, totals = (np.asarray(likelihood.successes[2], int), np.array([3, 0, 3]))
    on, off = FEATURES[:, 2].astype(int), FEATURES[:, 2].astype(int)
    off[0] = 0
    expected = oracle.log_binomial_noisy_or(
        counts, totals, on, weights
    ) - oracle.log_binomial_noisy_or(counts, totals, off, weights)
    np.testing.assert_allclose(found[2], expected, rtol=1e-4)


def test_causes_stay_right_when_columns_are_replaced(key, rng):
    likelihood, _ = noisy_or(rng)
    features = jnp.asarray(FEATURES)
    cache = likelihood.prepare(features)
    for i, k in enumerate([1, 0, 2, 1, 4, 0]):
        proposed = jax.random.bernoulli(jax.random.fold_in(key, i), 0.5, (NUM_OBJECTS,))
        _, notes = likelihood.log_odds(cache, k, features[k])
        cache, taken = likelihood.replace(key, cache, notes, k, features[k], proposed)
        np.testing.assert_array_equal(taken, proposed)
        features = features.at[k].set(taken)
    anew = likelihood.prepare(features)
    np.testing.assert_array_equal(cache.num_causes, anew.num_causes)
    np.testing.assert_allclose(cache.log_off(), anew.log_off(), rtol=1e-6)


@pytest.mark.slow
def test_weights_of_a_single_feature_follow_their_posterior(key, rng):
    """Every success is its own, so its weights are Beta(a + successes, b + failures)."""
    likelihood, _ = noisy_or(rng)
    users = jnp.asarray(FEATURES.any(axis=0))
    features = jnp.zeros((CAPACITY, NUM_OBJECTS), bool).at[2].set(users)
    cache = likelihood.prepare(features)
    draw = jax.jit(jax.vmap(lambda key: likelihood.update(key, cache, features).log_weights))
    weights = np.exp(np.asarray(draw(jax.random.split(key, NUM_DRAWS)), float))
    a, b = likelihood.prior
    for t in range(NUM_DIMS):
        law = stats.beta(
            a + float(likelihood.successes[users, t].sum()),
            b + float(likelihood.failures[users, t].sum()),
        )
        assert stats.kstest(weights[:, 2, t], law.cdf).pvalue > 1e-3
        assert stats.kstest(weights[:, 0, t], stats.beta(a, b).cdf).pvalue > 1e-3


@pytest.mark.parametrize("kind", ["gaussian", "weighted", "noisy-or"])
def test_larger_buffers_give_the_same_odds(rng, kind):
    likelihood = (
        noisy_or(rng)[0] if kind == "noisy-or" else gaussian(rng, has_weights=kind == "weighted")
    )
    grown = likelihood.grow(8)
    features = jnp.asarray(FEATURES)
    padded = jnp.pad(features, ((0, 3), (0, 0)))
    for k in (0, 1):
        found, _ = grown.log_odds(grown.prepare(padded), k, padded[k])
        expected, _ = likelihood.log_odds(likelihood.prepare(features), k, features[k])
        np.testing.assert_array_equal(found, expected)
