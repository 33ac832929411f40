import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hierarchy_oracle import (
    expected_present,
    inactive_mass,
    log_absence,
    poisson_binomial,
    shares,
)
from scipy import stats

from jaxmrf.nonparametric import indian_buffet, noisy_or_features
from jaxmrf.sampling import rejection

NUM_USES, NUM_OBJECTS = (3, 7, 1, 10), 12
LAWS = [(1.0, 1.0), (0.4, 1.0), (2.5, 0.0)]  # strength, offset
STICKS = np.array([1e-20, 1e-6, 0.03, 0.5, 0.999], np.float32)
NUM_DRAWS = 10_000


def used(num_uses=NUM_USES, num_objects=NUM_OBJECTS):
    return noisy_or_features.num_parents_used(jnp.array(num_uses), num_objects)


def test_num_parents_used_counts_parents_with_at_least_so_many_objects():
    expected = [sum(n >= i for n in NUM_USES) for i in range(1, NUM_OBJECTS + 1)]
    np.testing.assert_array_equal(used(), expected)


@pytest.mark.parametrize(("strength", "offset"), LAWS)
def test_log_absence_is_the_product_over_all_uses(strength, offset):
    expected = [log_absence(float(u), NUM_USES, strength, offset) for u in STICKS]
    found = noisy_or_features.log_absence(jnp.log(STICKS), used(), strength, offset)
    np.testing.assert_allclose(found, expected, rtol=2e-5)


@pytest.mark.parametrize(("strength", "offset"), LAWS)
def test_log_absence_is_the_chance_of_nobody_with_beta_weights(strength, offset, rng):
    stick, draws = 0.3, 200_000
    off = np.ones(draws)
    for n in NUM_USES:
        on = strength * stick
        off *= (1 - rng.beta(on, strength * (1 - stick) + offset, draws)) ** n
    found = math.exp(log_absence(stick, NUM_USES, strength, offset))
    assert abs(off.mean() - found) < 4.5 * off.std() / math.sqrt(draws)


@pytest.mark.parametrize(("strength", "offset"), LAWS)
def test_the_table_adds_what_one_parent_adds(strength, offset):
    table = noisy_or_features.log_absence_table(jnp.log(STICKS), NUM_OBJECTS, strength, offset)
    assert table.shape == (NUM_OBJECTS + 1, len(STICKS))
    for count in range(NUM_OBJECTS + 1):
        expected = [log_absence(float(u), [count], strength, offset) for u in STICKS]
        np.testing.assert_allclose(table[count], expected, rtol=2e-5)


@pytest.mark.parametrize(("strength", "offset"), LAWS)
def test_mean_uses_is_minus_the_slope_at_zero(strength, offset):
    found = noisy_or_features.mean_uses(used(), strength, offset)
    np.testing.assert_allclose(found, math.fsum(shares(NUM_USES, strength, offset)), rtol=1e-6)


@pytest.mark.parametrize(("strength", "offset"), LAWS)
@pytest.mark.parametrize("num_uses", [NUM_USES, (1,), (12, 12, 12), (0, 0)])
def test_expected_present_is_the_mean_harmonic_number(num_uses, strength, offset):
    arguments = (used(num_uses), strength, offset)
    found = indian_buffet.expected_present(
        lambda logs: noisy_or_features.log_absence(logs, *arguments),
        noisy_or_features.mean_uses(*arguments),
    )
    expected = expected_present(num_uses, strength, offset)
    np.testing.assert_allclose(found, expected, rtol=5e-6, atol=2e-6)


def test_expected_present_of_four_parents_is_the_number_in_the_notes():
    np.testing.assert_allclose(expected_present(NUM_USES, 1.0, 1.0), 2.280306, atol=1e-6)


@pytest.mark.parametrize(("strength", "offset"), LAWS)
def test_inactive_sticks_are_the_points_of_the_thinned_process(key, strength, offset):
    concentration, arguments = 1.3, (used(), strength, offset)

    def draw(key):
        return indian_buffet.draw_inactive_sticks(
            key,
            lambda logs: noisy_or_features.log_absence(logs, *arguments),
            concentration,
            noisy_or_features.mean_uses(*arguments),
            3,
        )

    logs, is_complete = jax.jit(jax.vmap(draw))(jax.random.split(key, NUM_DRAWS))
    assert is_complete.all()
    weights = poisson_binomial(shares(NUM_USES, strength, offset))
    masses = concentration * inactive_mass(np.exp(np.asarray(logs, np.float64)), weights)
    for mass in np.diff(masses, axis=1, prepend=0).T:
        assert stats.kstest(mass, stats.expon.cdf).pvalue > 1e-3


def test_inactive_sticks_are_those_that_the_prior_leaves_unused(key, rng):
    """Against sticks, weights and features drawn by brute force."""
    concentration, strength, offset, num_draws, num_sticks = 1.3, 0.7, 1.0, 5000, 30
    num_uses = (2, 4)
    shape = (num_draws, num_sticks)
    prior = np.exp(-np.cumsum(rng.exponential(1 / concentration, shape), axis=1))
    is_absent = np.ones(shape, bool)
    for n in num_uses:
        weights = rng.beta(strength * prior, strength * (1 - prior) + offset)
        is_absent &= rng.uniform(size=shape) < (1 - weights) ** n
    largest = np.sort(np.where(is_absent, prior, 0), axis=1)[:, ::-1][:, :2]
    arguments = (used(num_uses, 4), strength, offset)

    def draw(key):
        return indian_buffet.draw_inactive_sticks(
            key,
            lambda logs: noisy_or_features.log_absence(logs, *arguments),
            concentration,
            noisy_or_features.mean_uses(*arguments),
            2,
        ).log_sticks

    logs = np.asarray(jax.jit(jax.vmap(draw))(jax.random.split(key, num_draws)))
    for found, expected in zip(logs.T, np.log(largest).T, strict=True):
        assert stats.ks_2samp(found, expected).pvalue > 1e-3


@pytest.mark.parametrize(
    ("concentration", "first", "num_trials"),
    [(0.3, 0.0, 5), (2.0, 1.0, 40), (1e-3, 1.0, 2000), (5.0, 0.5, 200), (40.0, 0.0, 60)],
)
def test_num_tables_is_poisson_binomial(key, concentration, first, num_trials):
    trials = first + np.arange(num_trials)
    exact = poisson_binomial(concentration / (concentration + trials)) * NUM_DRAWS
    found = noisy_or_features.draw_num_tables(
        key,
        jnp.full((NUM_DRAWS, 1), concentration),
        jnp.asarray(first),
        jnp.full((NUM_DRAWS, 1), float(num_trials)),
    )
    observed = np.bincount(np.asarray(found[:, 0], int), minlength=len(exact))
    is_common = exact > 5
    observed = [*observed[is_common], observed[~is_common].sum()]
    expected = [*exact[is_common], exact[~is_common].sum()]
    statistic = sum((o - e) ** 2 / max(e, 1) for o, e in zip(observed, expected, strict=True))
    assert stats.chi2(len(expected) - 1).sf(statistic) > 1e-3


def test_few_trials_have_their_certain_number_of_tables(key):
    found = noisy_or_features.draw_num_tables(
        key, jnp.full((3, 1), 1e-6), jnp.zeros(()), jnp.array([[0.0], [1.0], [2.0]])
    )
    np.testing.assert_array_equal(found[:, 0], [0, 1, 1])


COUNTS = [
    ([1.0], [0.0], 0.8, 1.0),
    ([3.0, 0.0, 1.0], [2.0, 5.0, 0.0], 0.8, 1.0),
    ([20.0, 4.0], [1.0, 300.0], 2.0, 1.0),
    ([1.0, 0.0], [40.0, 40.0], 0.3, 0.0),
]


def density(stick, successes, failures, strength, offset):
    """p(assignments | frequency) / frequency, one Bernoulli trial at a time."""
    total = -math.log(stick)
    for m, n in zip(successes, failures, strict=True):
        on, off = strength * stick, strength * (1 - stick) + offset
        total += sum(math.log(on + i) for i in range(int(m)))
        total += sum(math.log(off + i) for i in range(int(n)))
    return total


@pytest.mark.parametrize(("successes", "failures", "strength", "offset"), COUNTS)
def test_log_prob_sticks_is_that_of_polya_urns(successes, failures, strength, offset):
    log_prob = jax.vmap(
        lambda stick: noisy_or_features.log_prob_sticks(
            stick, jnp.array(successes), jnp.array(failures), strength, offset
        )
    )
    sticks = np.array([1e-4, 0.1, 0.5, 0.9], np.float32)
    expected = [density(float(u), successes, failures, strength, offset) for u in sticks]
    found = np.asarray(log_prob(jnp.asarray(sticks)))
    np.testing.assert_allclose(found - found[0], np.array(expected) - expected[0], atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(("successes", "failures", "strength", "offset"), COUNTS)
def test_active_sticks_keep_their_density(key, successes, failures, strength, offset):
    """Exact draws, by inversion and by adaptive rejection, stay so after steps by counts."""
    grid = np.linspace(0, 1, 4001)[1:-1] ** 2
    logs = [density(u, successes, failures, strength, offset) for u in grid]
    mass = np.exp(np.array(logs) - max(logs))
    mass = np.concatenate([[0], np.cumsum((mass[1:] + mass[:-1]) / 2 * np.diff(grid))])
    cdf = lambda u: np.interp(u, grid, mass / mass[-1])  # noqa: E731

    def by_rejection(key):
        return rejection.draw(
            key,
            lambda u: noisy_or_features.log_prob_sticks(
                u, jnp.array(successes), jnp.array(failures), strength, offset
            ),
            jnp.array([0.1, 0.5, 0.9]),
            lower=0.0,
            upper=1.0,
        )

    key_start, key_step = jax.random.split(key)
    start = jax.jit(jax.vmap(by_rejection))(jax.random.split(key_start, NUM_DRAWS))
    assert start.is_ok.all()
    assert stats.kstest(np.asarray(start.value, np.float64), cdf).pvalue > 1e-3
    wide = [jnp.broadcast_to(jnp.array(n), (NUM_DRAWS, len(n))) for n in (successes, failures)]
    step = jax.jit(noisy_or_features.draw_active_sticks)
    logs = jnp.log(start.value)
    for i in range(2):
        logs = step(jax.random.fold_in(key_step, i), *wide, logs, strength, offset)
    assert stats.kstest(np.exp(np.asarray(logs, np.float64)), cdf).pvalue > 1e-3
    # and from far away they get there
    logs = jnp.full(NUM_DRAWS, math.log(1e-3))
    for i in range(12):
        logs = step(jax.random.fold_in(key_start, i), *wide, logs, strength, offset)
    assert stats.kstest(np.exp(np.asarray(logs, np.float64)), cdf).pvalue > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stick", "successes", "failures"), [(0.3, 0.0, 0.0), (0.3, 2.0, 5.0), (0.9, 0.0, 30.0)]
)
def test_weights_are_beta(key, stick, successes, failures):
    strength, offset = 0.8, 1.0
    logs = jnp.full(NUM_DRAWS, math.log(stick))
    counts = [jnp.full((NUM_DRAWS, 1), n) for n in (successes, failures)]
    weights = noisy_or_features.draw_weights(key, logs, *counts, strength, offset)
    law = stats.beta(strength * stick + successes, strength * (1 - stick) + offset + failures)
    draws = np.exp(np.asarray(weights.log_weights[0], np.float64))
    assert stats.kstest(draws, law.cdf).pvalue > 1e-3
    np.testing.assert_allclose(-np.expm1(weights.log_failures[0]), draws, rtol=1e-3, atol=1e-6)


@pytest.mark.slow
def test_weights_of_the_rarest_features_are_finite(key):
    logs = jnp.full(1000, indian_buffet.LOG_SMALLEST_STICK)
    none = jnp.zeros((1000, 2))
    weights = noisy_or_features.draw_weights(key, logs, none, none, 1.0, 1.0)
    assert all(np.isfinite(x).all() for x in weights)
    assert (weights.log_failures < 0).all()


@pytest.mark.slow
def test_weights_do_not_depend_on_the_number_of_features_and_parents(key):
    logs = jnp.log(jnp.linspace(0.1, 0.9, 6))
    counts = jnp.ones((6, 4))
    many = noisy_or_features.draw_weights(key, logs, counts, counts, 1.0, 1.0)
    few = noisy_or_features.draw_weights(key, logs[:3], counts[:3, :2], counts[:3, :2], 1.0, 1.0)
    for x, y in zip(few, many, strict=True):
        np.testing.assert_array_equal(x, y[:2, :3])
