import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hierarchy_oracle import harmonic, inactive_mass
from scipy import integrate, stats

from jaxmrf.nonparametric import factor_hierarchy, indian_buffet
from jaxmrf.nonparametric.factor_hierarchy import LayerPrior
from jaxmrf.nonparametric.indian_buffet import LOG_SMALLEST_STICK

NUM_DRAWS = 10_000


@pytest.mark.parametrize("num_objects", [1, 7, 60_000])
def test_log_absence_is_that_of_independent_objects(num_objects):
    sticks = np.array([1e-25, 1e-6, 0.3, 0.99], np.float32)
    expected = num_objects * np.log1p(-sticks.astype(np.float64))
    found = indian_buffet.log_absence(jnp.log(jnp.asarray(sticks)), num_objects)
    np.testing.assert_allclose(found, expected, rtol=2e-5)
    assert np.isfinite(indian_buffet.log_absence(jnp.zeros(()), num_objects))


@pytest.mark.parametrize("num_objects", [1, 2, 30, 1000])
def test_expected_features_is_the_harmonic_number(num_objects):
    exact = harmonic(num_objects)
    np.testing.assert_allclose(indian_buffet.expected_features(num_objects), exact, rtol=1e-6)


@pytest.mark.parametrize("num_objects", [1, 2, 30, 1000, 60_000])
def test_expected_present_is_the_harmonic_number(num_objects):
    absence = partial(indian_buffet.log_absence, num_objects=num_objects)
    found = indian_buffet.expected_present(absence, float(num_objects))
    np.testing.assert_allclose(found, harmonic(num_objects), rtol=5e-6)


def test_expected_present_is_exact_to_eight_digits_in_double_precision(x64):
    absence = partial(indian_buffet.log_absence, num_objects=1000)
    found = indian_buffet.expected_present(absence, 1000.0)
    np.testing.assert_allclose(found, harmonic(1000), atol=2e-8)


@pytest.mark.parametrize("upper", [1e-9, 1e-3, 0.2])
def test_expected_present_below_a_frequency_is_its_integral(upper):
    num_objects = 50
    integrand = lambda u: -math.expm1(num_objects * math.log1p(-u)) / u  # noqa: E731
    exact, _ = integrate.quad(integrand, 0, upper, epsabs=0, epsrel=1e-10)
    absence = partial(indian_buffet.log_absence, num_objects=num_objects)
    found = indian_buffet.expected_present(absence, float(num_objects), math.log(upper))
    np.testing.assert_allclose(found, exact, rtol=1e-5)


def test_sticks_are_products_of_beta_variables(key):
    concentration = 1.7
    keys = jax.random.split(key, NUM_DRAWS)
    logs = jax.vmap(lambda k: indian_buffet.draw_sticks(k, concentration, 4))(keys)
    ratios = np.diff(np.asarray(logs), axis=1, prepend=0)
    assert (ratios <= 0).all()
    for ratio in ratios.T:  # of Beta(alpha, 1)
        assert stats.kstest(-ratio, stats.expon(scale=1 / concentration).cdf).pvalue > 1e-3
    assert abs(np.corrcoef(ratios.T) - np.eye(4)).max() < 4.5 / np.sqrt(NUM_DRAWS)


def test_sticks_stop_at_the_smallest(key):
    logs = indian_buffet.draw_sticks(key, 0.05, 20)
    assert logs.min() == LOG_SMALLEST_STICK


@pytest.mark.slow
def test_first_draws_do_not_depend_on_how_many_are_asked(key):
    np.testing.assert_array_equal(
        indian_buffet.draw_sticks(key, 1.3, 5), indian_buffet.draw_sticks(key, 1.3, 11)[:5]
    )
    absence = partial(indian_buffet.log_absence, num_objects=40)
    few = indian_buffet.draw_inactive_sticks(key, absence, 2.0, 40.0, 6)
    many = indian_buffet.draw_inactive_sticks(key, absence, 2.0, 40.0, 24)
    assert few.is_complete
    np.testing.assert_array_equal(few.log_sticks, many.log_sticks[:6])


@pytest.mark.parametrize(("num", "concentration"), [(1, 0.7), (1, 3.0), (2, 0.7), (2, 2.5)])
def test_log_prob_sticks_integrates_to_one(num, concentration):
    # substituting mu = u^3 tames the pole at zero
    nodes, weights = np.polynomial.legendre.leggauss(400)
    nodes, weights = (nodes + 1) / 2, weights / 2
    logs, measure = 3 * np.log(nodes), weights * 3 * nodes**2
    grids = np.stack(np.meshgrid(*[logs] * num, indexing="ij"), -1).reshape(-1, num)
    volume = math.prod(np.meshgrid(*[measure] * num, indexing="ij")).reshape(-1)
    log_prob = partial(indian_buffet.log_prob_sticks, concentration=concentration)
    density = np.exp(np.asarray(jax.vmap(log_prob)(jnp.asarray(grids)), np.float64))
    missing = math.exp(LOG_SMALLEST_STICK * concentration)
    np.testing.assert_allclose((density * volume).sum() + missing, 1, atol=3e-3)


def test_log_prob_sticks_does_not_depend_on_the_order(rng):
    logs = np.log(rng.uniform(0, 1, 6)).astype(np.float32)
    found = indian_buffet.log_prob_sticks(jnp.asarray(logs), 1.3)
    shuffled = indian_buffet.log_prob_sticks(jnp.asarray(rng.permutation(logs)), 1.3)
    np.testing.assert_allclose(found, shuffled, rtol=1e-6)


def test_log_prob_sticks_is_the_product_of_the_stick_breaking_densities():
    alpha, sticks = 1.3, np.array([0.6, 0.5, 0.11])
    ratios = sticks / np.array([1, *sticks[:-1]])
    # Beta(alpha, 1) of each ratio, the Jacobian, and 3! orders
    density = alpha**3 * np.prod(ratios ** (alpha - 1)) / np.prod([1, *sticks[:-1]]) / 6
    found = indian_buffet.log_prob_sticks(jnp.log(jnp.asarray(sticks, jnp.float32)), alpha)
    np.testing.assert_allclose(found, math.log(density), rtol=1e-5)


def test_slots_at_the_smallest_stick_say_that_no_more_points_are_above_it():
    alpha, log_stick = 0.1, math.log(0.4)
    logs = jnp.array([LOG_SMALLEST_STICK, log_stick, LOG_SMALLEST_STICK])
    # one point at 0.4 in one of three slots, and none in the rest of (exp(-64), 1]
    expected = math.log(alpha / 0.4 / 3) + alpha * LOG_SMALLEST_STICK
    np.testing.assert_allclose(indian_buffet.log_prob_sticks(logs, alpha), expected, rtol=1e-5)


@pytest.mark.parametrize(("users", "num_objects"), [(1, 1), (1, 5), (5, 5), (3, 50)])
def test_active_sticks_are_beta(key, users, num_objects):
    num_users = jnp.full(NUM_DRAWS, users)
    logs = indian_buffet.draw_active_sticks(key, num_users, num_objects)
    law = stats.beta(users, 1 + num_objects - users)
    assert stats.kstest(np.exp(np.asarray(logs, np.float64)), law.cdf).pvalue > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize(("concentration", "num_objects"), [(0.8, 1), (1.5, 6), (4.0, 500)])
def test_inactive_sticks_are_the_points_of_the_thinned_process(key, concentration, num_objects):
    """Masses between neighbours are exponential; the mass of (1 - u)^N / u is known."""
    absence = partial(indian_buffet.log_absence, num_objects=num_objects)

    def draw(key):
        return indian_buffet.draw_inactive_sticks(key, absence, concentration, num_objects, 4)

    logs, is_complete = jax.vmap(draw)(jax.random.split(key, NUM_DRAWS))
    assert is_complete.all()
    weights = np.eye(num_objects + 1)[num_objects]
    sticks = np.exp(np.asarray(logs, np.float64))
    assert (np.diff(sticks, axis=1) < 0).all()
    masses = np.diff(concentration * inactive_mass(sticks, weights), axis=1, prepend=0)
    for mass in masses.T:
        assert stats.kstest(mass, stats.expon.cdf).pvalue > 1e-3
    assert abs(np.corrcoef(masses.T) - np.eye(4)).max() < 4.5 / np.sqrt(NUM_DRAWS)


@pytest.mark.slow
def test_inactive_sticks_are_prior_sticks_that_nobody_has(key, rng):
    concentration, num_objects, num_draws = 1.5, 6, 5000
    absence = partial(indian_buffet.log_absence, num_objects=num_objects)

    def draw(key):
        return indian_buffet.draw_inactive_sticks(key, absence, concentration, num_objects, 2)

    logs = np.asarray(jax.vmap(draw)(jax.random.split(key, num_draws)).log_sticks)
    prior = np.exp(-np.cumsum(rng.exponential(1 / concentration, (num_draws, 40)), axis=1))
    is_absent = (rng.uniform(size=(num_draws, 40, num_objects)) >= prior[..., None]).all(axis=2)
    largest = np.sort(np.where(is_absent, prior, 0), axis=1)[:, ::-1][:, :2]
    for found, expected in zip(logs.T, np.log(largest).T, strict=True):
        assert stats.ks_2samp(found, expected).pvalue > 1e-3


def test_inactive_sticks_admit_that_too_few_candidates_survived(key):
    # nobody has a feature that everybody has for certain: of the first candidates none survives
    absence = partial(indian_buffet.log_absence, num_objects=1e9)
    found = indian_buffet.draw_inactive_sticks(key, absence, 1e3, 1.0, 4)
    assert not found.is_complete


@pytest.mark.slow
@pytest.mark.parametrize(("concentration", "num_objects"), [(0.8, 3), (2.0, 10)])
def test_prior_has_a_poisson_number_of_features(key, concentration, num_objects):
    """Poisson(alpha H_N) in all, alpha N in use, alpha / m of them by m objects."""

    def draw(key):
        (layer,) = factor_hierarchy.draw_prior(
            key, num_objects, (60,), (LayerPrior(),), (concentration,)
        )
        return layer.features.sum(axis=1)

    uses = np.asarray(jax.vmap(draw)(jax.random.split(key, NUM_DRAWS)))
    num_active, mean = (uses > 0).sum(axis=1), concentration * harmonic(num_objects)
    error = math.sqrt(mean / NUM_DRAWS)
    assert abs(num_active.mean() - mean) < 4.5 * error
    fourth = mean + 3 * mean**2  # central moment
    error = math.sqrt((fourth - mean**2) / NUM_DRAWS)
    assert abs(num_active.var() - mean) < 4.5 * error
    for m in range(1, num_objects + 1):
        rate = concentration / m
        found = (uses == m).sum(axis=1).mean()
        assert abs(found - rate) < 4.5 * math.sqrt(rate / NUM_DRAWS)
