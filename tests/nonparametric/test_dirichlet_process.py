"""The partition prior against sums over all partitions, and the concentration's conditional."""

import itertools
from math import lgamma

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from jaxmrf.nonparametric import dirichlet_process

BELL_NUMBERS = {1: 1, 2: 2, 3: 5, 4: 15, 5: 52}


def partitions(num_items):
    """All canonical label vectors."""
    vectors = itertools.product(range(num_items), repeat=num_items)
    return np.array(
        [v for v in vectors if all(v[i] <= max(v[:i], default=-1) + 1 for i in range(num_items))],
        dtype=np.int32,
    )


def sequential_log_prob(labels, concentration):
    """The probability of seating item after item (plain loop)."""
    total, seen = 0.0, []
    for position, label in enumerate(labels):
        weight = seen.count(label) or concentration
        total += np.log(weight / (concentration + position))
        seen.append(label)
    return total


@pytest.mark.parametrize("concentration", [0.3, 1.0, 4.0])
def test_log_prob_equals_sequential_seating_and_sums_to_one(concentration):
    table = partitions(5)
    assert len(table) == BELL_NUMBERS[5]
    found = jax.vmap(lambda v: dirichlet_process.log_prob(v, concentration))(table)
    expected = [sequential_log_prob(v.tolist(), concentration) for v in table]
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    np.testing.assert_allclose(np.exp(found).sum(), 1.0, rtol=1e-5)


def test_log_prob_is_exchangeable(rng):
    labels = jnp.array([0, 1, 1, 2, 0, 3], dtype=jnp.int32)
    shuffled = jnp.asarray(rng.permutation(np.asarray(labels)))
    relabelled = dirichlet_process.canonical_labels(shuffled)
    np.testing.assert_allclose(
        dirichlet_process.log_prob(relabelled, 1.5),
        dirichlet_process.log_prob(labels, 1.5),
        rtol=1e-6,
    )


def test_draw_follows_log_prob(key):
    table = partitions(4)
    num_draws = 20_000
    draws = jax.vmap(lambda k: dirichlet_process.draw(k, 1.3, 4))(jax.random.split(key, num_draws))
    codes = np.asarray(draws) @ 4 ** np.arange(4)
    counts = np.array([(codes == v @ 4 ** np.arange(4)).sum() for v in table])
    assert counts.sum() == num_draws
    expected = np.exp([sequential_log_prob(v.tolist(), 1.3) for v in table]) * num_draws
    assert stats.chisquare(counts, expected, sum_check=False).pvalue > 1e-3


def test_canonical_labels_number_groups_by_first_item():
    labels = jnp.array([3, 3, 1, 0, 1], dtype=jnp.int32)
    canonical = dirichlet_process.canonical_labels(labels)
    assert canonical.tolist() == [0, 0, 1, 2, 1]
    assert bool(dirichlet_process.is_canonical(canonical))
    assert not bool(dirichlet_process.is_canonical(labels))
    assert not bool(dirichlet_process.is_canonical(jnp.array([0, -1, 1])))


def test_group_sizes_and_first_items_count_every_slot():
    labels = jnp.array([0, 1, 0, 2], dtype=jnp.int32)
    assert dirichlet_process.group_sizes(labels, 5).tolist() == [2, 1, 1, 0, 0]
    assert dirichlet_process.first_items(labels, 5).tolist() == [0, 1, 3, 4, 4]


@pytest.mark.slow
def test_draw_concentration_leaves_the_posterior_invariant(key):
    """From exact posterior draws (grid inverse CDF), one step; the law must stay the same."""
    num_groups, num_items, shape, rate = 3, 12, 2.0, 0.7
    grid = np.linspace(1e-4, 40, 200_001)
    log_density = (
        (shape - 1 + num_groups) * np.log(grid)
        - rate * grid
        + np.vectorize(lgamma)(grid)
        - np.vectorize(lgamma)(grid + num_items)
    )
    cdf = np.cumsum(np.exp(log_density - log_density.max()))
    cdf /= cdf[-1]
    key_start, key_step = jax.random.split(key)
    start = np.interp(np.asarray(jax.random.uniform(key_start, (20_000,))), cdf, grid)

    def step(key, value):
        return dirichlet_process.draw_concentration(
            key, value, jnp.array(num_groups), num_items, shape=shape, rate=rate
        )

    after = jax.vmap(step)(jax.random.split(key_step, len(start)), jnp.asarray(start, jnp.float32))
    assert stats.kstest(np.asarray(after), lambda x: np.interp(x, grid, cdf)).pvalue > 1e-3
    # the step moves: an identity would pass the law above
    assert np.corrcoef(start, after)[0, 1] < 0.9
