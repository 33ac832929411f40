"""Grouped agreements on a tree of four edges under Beta(a, b): exact draws, and what checks them.

Agreement counts on a tree are independent binomials, so a group's value is integrated out in
closed form.
"""

from functools import lru_cache

import grouped_oracle
import numpy as np
from scipy import stats
from scipy.special import betaln, gammaln

NUM_ITEMS, CONCENTRATION = 6.0, 1.2
AGREEMENTS = np.array([1.0, 5.0, 6.0, 2.0])


@lru_cache
def exact_partitions(a=1.0, b=1.0):
    """All partitions and their posterior probabilities."""
    table = grouped_oracle.partitions(len(AGREEMENTS))
    log_weights = np.zeros(len(table))
    for row, labels in enumerate(table):
        for group in set(labels):
            is_member = labels == group
            shapes = a + AGREEMENTS[is_member].sum(), b + (NUM_ITEMS - AGREEMENTS)[is_member].sum()
            log_weights[row] += np.log(CONCENTRATION) + gammaln(is_member.sum())
            log_weights[row] += betaln(*shapes) - betaln(a, b)
    weights = np.exp(log_weights - log_weights.max())
    return table, weights / weights.sum()


def exact_draws(rng, num_draws, a=1.0, b=1.0, *, max_groups):
    """Independent draws of labels and values from the exact posterior."""
    table, probabilities = exact_partitions(a, b)
    labels = table[rng.choice(len(table), num_draws, p=probabilities)]
    one_hot = labels[:, :, None] == np.arange(max_groups)
    successes = (AGREEMENTS[:, None] * one_hot).sum(1)
    values = rng.beta(a + successes, b + NUM_ITEMS * one_hot.sum(1) - successes)
    return labels, np.clip(values, 1e-6, 1 - 1e-6).astype(np.float32)


def canonical(labels, values):
    """Canonical labels, and the value of every edge."""
    labels, values = np.asarray(labels), np.asarray(values)
    is_same = labels[:, :, None] == labels[:, None, :]
    first = is_same.argmax(axis=2)  # first edge of the group of every edge
    is_first = first == np.arange(labels.shape[1])
    rank = np.cumsum(is_first, axis=1) - 1
    order = np.take_along_axis(rank, first, axis=1)
    return order, np.take_along_axis(values, labels, axis=1)


def value_p_value(labels, theta, a=1.0, b=1.0):
    """Of the values of two edges given the partition, which make uniforms of independent draws."""
    p_values = []
    for edge in (0, 3):
        is_member = labels == labels[:, [edge]]
        successes = (is_member * AGREEMENTS).sum(1)
        failures = (is_member * (NUM_ITEMS - AGREEMENTS)).sum(1)
        uniforms = stats.beta(a + successes, b + failures).cdf(theta[:, edge])
        p_values.append(stats.kstest(uniforms, "uniform").pvalue)
    return min(p_values)
