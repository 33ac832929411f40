import numpy as np
import pytest

from jaxmrf.datasets import grouped_agreements


def test_theta_is_one_value_a_group(rng):
    theta, groups = grouped_agreements(rng, 500, 5)
    assert theta.shape == groups.shape == (500,)
    assert set(groups) == set(range(5))
    for group in range(5):
        assert len(set(theta[groups == group])) == 1
    assert len(set(theta)) == 5
    assert np.all((theta > 0) & (theta < 1))


def test_groups_and_values_are_uniform(rng):
    """Counts within 4.5 standard errors; values by the Kolmogorov-Smirnov bound at 1e-5."""
    theta, groups = grouped_agreements(rng, 100_000, 10)
    error = np.sqrt(100_000 * 0.1 * 0.9)
    assert np.all(np.abs(np.bincount(groups, minlength=10) - 10_000) < 4.5 * error)
    theta, _ = grouped_agreements(rng, 200_000, 10_000)
    values = np.unique(theta)
    distance = np.max(np.abs(values - (np.arange(len(values)) + 0.5) / len(values)))
    assert distance < 2.47 / np.sqrt(len(values)) + 1 / len(values)


def test_base_function_gives_the_values(rng):
    theta, groups = grouped_agreements(rng, 50, 3, base=lambda rng, count: [0.2, 0.5, 0.9])
    np.testing.assert_array_equal(theta, np.array([0.2, 0.5, 0.9])[groups])


@pytest.mark.parametrize(
    ("num_edges", "num_groups", "base", "message"),
    [
        (0, 2, "uniform", "expected num_edges >= 1, got 0; pass a positive count"),
        (3, 0, "uniform", "expected num_groups >= 1, got 0; pass a positive count"),
        (3, 2, lambda rng, count: [0.2, 1.0], r"values in \(0, 1\), got \[0.2 1. \]; pass"),
        (3, 2, lambda rng, count: [0.2], r"2 values in \(0, 1\), got \[0.2\]; pass"),
    ],
)
def test_bad_arguments_raise(rng, num_edges, num_groups, base, message):
    with pytest.raises(ValueError, match=message):
        grouped_agreements(rng, num_edges, num_groups, base)
