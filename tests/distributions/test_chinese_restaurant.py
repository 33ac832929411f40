"""The Chinese restaurant process: a law over partitions, whatever the order of the items."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmrf.distributions import ChineseRestaurantProcess
from jaxmrf.nonparametric import dirichlet_process


def partitions(size):
    """Canonical labels of all partitions, by filtering all label vectors."""
    rows = itertools.product(range(size), repeat=size)
    return np.array(
        [
            row
            for row in rows
            if all(label <= max(row[:i], default=-1) + 1 for i, label in enumerate(row))
        ]
    )


def sequential_log_prob(labels, alpha):
    """Log-probability by seating the items one after another."""
    total, sizes = 0.0, {}
    for seated, label in enumerate(labels):
        total += np.log(sizes.get(label, alpha) / (seated + alpha))
        sizes[label] = sizes.get(label, 0) + 1
    return total


def test_log_prob_sums_to_one_over_all_fifteen_partitions_of_four():
    values = partitions(4)
    assert len(values) == 15
    found = ChineseRestaurantProcess(np.array([[0.3], [5.0]]), 4).log_prob(values)
    np.testing.assert_allclose(jnp.exp(found).sum(axis=1), [1.0, 1.0], rtol=1e-5)


def test_log_prob_is_the_sequential_scheme():
    values = partitions(4)
    found = ChineseRestaurantProcess(1.7, 4).log_prob(values)
    np.testing.assert_allclose(found, [sequential_log_prob(v, 1.7) for v in values], atol=1e-5)


def test_log_prob_does_not_depend_on_the_order_of_the_items():
    prior = ChineseRestaurantProcess(0.8, 4)
    values = partitions(4)
    for order in itertools.permutations(range(4)):
        permuted = jax.vmap(dirichlet_process.canonical_labels)(values[:, order])
        np.testing.assert_allclose(prior.log_prob(permuted), prior.log_prob(values), atol=1e-5)


def test_dropping_the_last_item_leaves_the_law_of_the_rest():
    values = partitions(4)
    probs = np.exp(ChineseRestaurantProcess(0.8, 4).log_prob(values))
    for rest in partitions(3):
        total = probs[(values[:, :3] == rest).all(axis=1)].sum()
        expected = np.exp(ChineseRestaurantProcess(0.8, 3).log_prob(rest))
        np.testing.assert_allclose(total, expected, rtol=1e-5)


def test_sample_equals_the_core_bit_for_bit(key):
    drawn = ChineseRestaurantProcess(1.5, 6).sample(key)
    expected = dirichlet_process.draw(key, jnp.float32(1.5), 6)
    np.testing.assert_array_equal(drawn, expected)
    assert drawn.dtype == jnp.int32
    keys = jax.random.split(key, 4)
    batch = ChineseRestaurantProcess(np.array([1.5, 0.2]), 6).sample(key, (2,))
    expected = [
        dirichlet_process.draw(keys[i], jnp.float32((1.5, 0.2)[i % 2]), 6) for i in range(4)
    ]
    np.testing.assert_array_equal(batch, np.reshape(expected, (2, 2, 6)))


@pytest.mark.parametrize("size", [0, 2.5])
def test_bad_size_names_rule_value_and_mend(size):
    with pytest.raises(ValueError, match=f"size to be a positive integer, got {size}; pass the"):
        ChineseRestaurantProcess(1.0, size)


@pytest.mark.parametrize("concentration", [0.0, -1.0, np.nan])
def test_bad_concentration_is_refused(concentration):
    with pytest.raises(ValueError, match="invalid concentration parameter"):
        ChineseRestaurantProcess(concentration, 3)
