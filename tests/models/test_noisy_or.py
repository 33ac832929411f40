import math
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hierarchy_oracle import assignment_probabilities
from scipy import stats

from jaxmrf.models import noisy_or
from jaxmrf.models.noisy_or import CauseSums

add, remove = jax.jit(noisy_or.add_cause), jax.jit(noisy_or.remove_cause)
assign = jax.jit(noisy_or.draw_assignments)
ON, OFF = jnp.ones((1,), bool), jnp.zeros((1,), bool)


def test_log_failure_is_log1p_and_finite_at_a_weight_of_one():
    weights = np.array([0, 1e-30, 1e-7, 0.3, 0.999], np.float32)
    expected = np.log1p(-weights.astype(np.float64))
    np.testing.assert_allclose(noisy_or.log_failure(jnp.asarray(weights)), expected, rtol=1e-5)
    assert np.isfinite(noisy_or.log_failure(jnp.ones(1)))


def test_log_off_is_the_sum_over_the_parents_that_are_on(rng):
    parents = rng.integers(0, 2, (5, 4)).astype(np.float32)
    failures = np.log1p(-rng.uniform(0, 0.9, (4, 3))).astype(np.float32)
    expected = [[math.fsum(row * failures[:, k]) for k in range(3)] for row in parents]
    found = noisy_or.log_off(jnp.asarray(parents), jnp.asarray(failures))
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("log_off", [-1e-30, -1e-10, -1e-3, -0.69, -0.7, -5.0, -80.0])
def test_log_odds_have_full_relative_precision(log_off):
    log_off = np.float32(log_off)
    expected = math.log(-math.expm1(log_off)) - float(log_off)
    np.testing.assert_allclose(noisy_or.log_odds(jnp.asarray(log_off)), expected, 1e-6, 1e-7)


def test_a_child_without_parents_is_off_for_certain():
    assert noisy_or.log_odds(jnp.zeros(())) == -jnp.inf


@pytest.mark.parametrize("log_off", [-1e-30, -1e-10, -1e-3, -2.0, -80.0])
@pytest.mark.parametrize("log_weight", [-70.0, -20.0, -0.5])
def test_log_on_ratio_is_the_ratio_of_the_chances(log_off, log_weight):
    log_off, log_weight = np.float32(log_off), np.float32(log_weight)
    ratio = math.exp(log_weight) * math.exp(log_off) / -math.expm1(log_off)
    found = noisy_or.log_on_ratio(jnp.asarray(log_off), jnp.asarray(log_weight))
    np.testing.assert_allclose(found, math.log1p(ratio), rtol=1e-5, atol=1e-37)


def test_a_first_cause_is_infinitely_more_likely_than_none():
    nothing = add(noisy_or.no_causes((1,), (1,)), jnp.full(1, -0.3), ON)
    nothing = remove(nothing, jnp.full(1, -0.3), ON)
    assert noisy_or.log_on_ratio(nothing.log_off(), jnp.full(1, -70.0)) == jnp.inf


@pytest.mark.parametrize("strong", [-1e-3, -1.0, -80.0])
@pytest.mark.parametrize("ratio", [1e-3, 1e-10])
def test_a_weak_cause_survives_the_removal_of_a_strong_one(strong, ratio):
    weak = jnp.full(1, strong * ratio)
    strong = jnp.full(1, strong)
    for first, second in ((weak, strong), (strong, weak)):
        sums = add(add(noisy_or.no_causes((1,), (1,)), first, ON), second, ON)
        left = remove(sums, strong, ON)
        np.testing.assert_allclose(left.log_off(), weak, rtol=1e-3)
        assert remove(left, weak, ON).log_off() == 0


def test_a_cause_too_weak_for_both_floats_still_counts():
    weak, strong = jnp.full(1, -1e-30), jnp.full(1, -3.0)
    sums = add(add(noisy_or.no_causes((1,), (1,)), strong, ON), weak, ON)
    left = remove(sums, strong, ON)
    assert left.log_off() < 0
    assert np.isfinite(noisy_or.log_on_ratio(left.log_off(), jnp.full(1, -70.0)))


def test_causes_that_come_and_go_leave_the_exact_sum(rng):
    values = -np.exp(rng.uniform(-15, 3, 12)).astype(np.float32)
    sums, present = noisy_or.no_causes((1,), (1,)), set()
    largest = 0.0
    for i in rng.integers(0, 12, 300).tolist():
        change = remove if i in present else add
        sums = change(sums, jnp.full(1, values[i]), ON)
        present ^= {i}
        exact = sum(Fraction(float(values[j])) for j in present)
        largest = max(largest, -float(exact))
        assert sums.num_causes == len(present)
        np.testing.assert_allclose(sums.log_off(), float(exact), rtol=1e-6, atol=1e-12 * largest)
    for i in present:
        sums = remove(sums, jnp.full(1, values[i]), ON)
    assert sums.log_off() == 0


def test_a_cause_that_is_off_changes_nothing():
    sums = CauseSums(jnp.full(1, -0.5), jnp.full(1, -1e-9), jnp.ones(1, int))
    for change in (add, remove):
        for new, old in zip(change(sums, jnp.full(1, -2.0), OFF), sums, strict=True):
            assert new == old


@pytest.mark.parametrize(
    ("weights", "order", "expected"),
    [
        ([0.1, 0.1], [0, 1], [0.526, 0.474]),
        ([0.1, 0.1], [1, 0], [0.474, 0.526]),
        ([0.7, 0.2, 0.4], [2, 0, 1], None),
        ([1e-3, 1e-9, 2e-3], [1, 0, 2], None),
    ],
)
def test_assignments_have_their_exact_probabilities(key, weights, order, expected):
    num_children = 20_000
    exact = assignment_probabilities(np.ones(len(weights)), weights, order)
    if expected is not None:
        np.testing.assert_allclose(exact, expected, atol=1e-3)
    parents = jnp.ones((len(weights), num_children), bool)
    failures = jnp.log1p(-jnp.array(weights))[:, None]
    children = jnp.ones((1, num_children), bool)
    successes, missed = assign(key, parents, children, failures, jnp.array(order), len(weights))
    is_possible = exact * num_children > 1
    observed = np.asarray(successes[0], np.float64)
    assert observed.sum() == num_children
    expected_counts = exact[is_possible] / exact[is_possible].sum() * observed[is_possible].sum()
    assert stats.chisquare(observed[is_possible], expected_counts).pvalue > 1e-3
    asked_before = num_children - np.cumsum(observed[order])  # whose success comes later
    np.testing.assert_array_equal(missed[0][jnp.array(order)], asked_before)


def test_assignments_ask_only_parents_that_are_on(key):
    parents = jnp.array([[1, 0, 1, 0], [0, 1, 1, 0], [0, 0, 1, 1]], bool)
    failures = jnp.log1p(-jnp.full((3, 2), 0.4))
    children = jnp.array([[1, 1, 0, 0], [0, 0, 0, 1]], bool)
    successes, missed = assign(key, parents, children, failures, jnp.array([2, 0, 1]), 3)
    np.testing.assert_array_equal(successes, [[1, 1, 0], [0, 0, 1]])
    np.testing.assert_array_equal(missed, [[1, 1, 2], [2, 2, 1]])


def test_a_weight_that_underflows_to_no_failure_is_never_blamed_alone(key):
    # the partial sums do not move, so rounding must not leave a child without a cause
    parents = jnp.ones((2, 1000), bool)
    failures = jnp.array([[-1e-30], [-0.2]])
    successes, _ = assign(key, parents, jnp.ones((1, 1000), bool), failures, jnp.arange(2), 2)
    assert successes.sum() == 1000
    assert successes[0, 0] == 0


def test_a_child_with_a_single_cause_has_that_cause_however_weak(key):
    parents = jnp.array([[True] * 50, [False] * 50])
    failures = jnp.array([[-1e-35], [-0.5]])
    children = jnp.ones((1, 50), bool)
    successes, missed = assign(key, parents, children, failures, jnp.array([1, 0]), 2)
    np.testing.assert_array_equal(successes, [[50, 0]])
    np.testing.assert_array_equal(missed, [[0, 0]])
