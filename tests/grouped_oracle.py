"""Exact posteriors of grouped agreements on graphs with few cycles, in plain NumPy.

With t = 2 theta - 1 the normaliser is ``2 ** (nodes - edges)`` times the sum, over the subgraphs
in which every node has an even degree, of the product of t over their edges.
"""

import itertools
from functools import lru_cache

import numpy as np
from scipy import stats
from scipy.special import gammaln, roots_legendre


def partitions(num_items):
    """All vectors of canonical labels."""
    vectors = [(0,)]
    for _ in range(num_items - 1):
        vectors = [(*v, g) for v in vectors for g in range(max(v) + 2)]
    return np.array(vectors, dtype=np.int32)


def even_subgraphs(edges, num_nodes):
    """Edge masks of all subgraphs of even degrees, the empty one included."""
    found = []
    for mask in itertools.product((0, 1), repeat=len(edges)):
        degrees = np.zeros(num_nodes, int)
        np.add.at(degrees, edges[np.array(mask, bool)].ravel(), 1)
        if (degrees % 2 == 0).all():
            found.append(mask)
    return np.array(found, bool)


@lru_cache
def _rule(num_points):
    nodes, weights = roots_legendre(num_points)
    return (nodes + 1) / 2, np.log(weights / 2)


def posterior(edges, num_nodes, agreements, num_items, concentration, budget, log_base=None):
    """Partitions, their posterior probabilities, and posterior mean of every edge's agreement.

    The values are integrated out by Gauss-Legendre rules of at most ``budget`` points in all, and
    at most 64 a group.
    """
    table = partitions(len(edges))
    cycles = even_subgraphs(np.asarray(edges), num_nodes)
    log_evidence, means = [], []
    for labels in table:
        num_groups = labels.max() + 1
        num_points = min(64, int(budget ** (1 / num_groups) + 1e-9))
        points, log_weights = _rule(num_points)
        if log_base is not None:
            log_weights = log_weights + log_base(points)
        grids = np.meshgrid(*[np.arange(num_points)] * num_groups, indexing="ij")
        index = np.stack([grid.ravel() for grid in grids])
        theta = points[index][labels]  # edges x points
        log_values = log_weights[index].sum(axis=0)
        log_values += agreements @ np.log(theta) + (num_items - agreements) @ np.log1p(-theta)
        factors = [np.prod(2 * theta[mask] - 1, axis=0) for mask in cycles]
        log_values -= num_items * np.log(np.sum(factors, axis=0))
        top = log_values.max()
        weights = np.exp(log_values - top)
        sizes = np.bincount(labels)
        prior = num_groups * np.log(concentration) + gammaln(sizes).sum()
        log_evidence.append(prior + top + np.log(weights.sum()))
        means.append(theta @ weights / weights.sum())
    probabilities = np.exp(np.array(log_evidence) - np.max(log_evidence))
    probabilities /= probabilities.sum()
    return table, probabilities, probabilities @ np.array(means)


def inclusion_posterior(edges, num_nodes, agreements, num_items, concentration, inclusion, budget):
    """Posterior probabilities of partitions and presence patterns, and of the agreements.

    Returns:
        Table of partitions, table of presence patterns, their joint posterior "partitions
        patterns", and the posterior mean of every edge's agreement, 1/2 where it is absent.
    """
    table = partitions(len(edges))
    patterns = np.array(list(itertools.product((False, True), repeat=len(edges))))
    cycles = even_subgraphs(np.asarray(edges), num_nodes)
    log_evidence, means = np.empty((len(table), len(patterns))), []
    for i, labels in enumerate(table):
        for j, pattern in enumerate(patterns):
            # groups without a present edge integrate to one
            used, place = np.unique(labels[pattern], return_inverse=True)
            num_points = min(64, int(budget ** (1 / max(used.size, 1)) + 1e-9))
            points, log_weights = _rule(num_points)
            grids = np.meshgrid(*[np.arange(num_points)] * used.size, indexing="ij")
            index = np.stack([grid.ravel() for grid in grids] or [np.zeros(1, int)])
            theta = np.full((len(edges), index.shape[1]), 0.5)
            theta[pattern] = points[index][place]
            log_values = log_weights[index].sum(axis=0) if used.size else np.zeros(1)
            log_values += agreements @ np.log(theta) + (num_items - agreements) @ np.log1p(-theta)
            factors = [np.prod(2 * theta[mask] - 1, axis=0) for mask in cycles]
            log_values -= num_items * np.log(np.sum(factors, axis=0))
            top = log_values.max()
            weights = np.exp(log_values - top)
            sizes = np.bincount(labels)
            prior = sizes.size * np.log(concentration) + gammaln(sizes).sum()
            prior += np.where(pattern, np.log(inclusion), np.log1p(-inclusion)).sum()
            log_evidence[i, j] = prior + top + np.log(weights.sum())
            means.append(theta @ weights / weights.sum())
    probabilities = np.exp(log_evidence - log_evidence.max())
    probabilities /= probabilities.sum()
    return table, patterns, probabilities, probabilities.ravel() @ np.array(means)


def partition_p_value(labels, table, probabilities):
    """Chi-square of drawn canonical labels; rare partitions are pooled."""
    labels = np.asarray(labels)
    powers = table.shape[1] ** np.arange(table.shape[1], dtype=np.int64)
    position = {code: i for i, code in enumerate(table.astype(np.int64) @ powers)}
    counts = np.zeros(len(table))
    for code, count in zip(*np.unique(labels @ powers, return_counts=True), strict=True):
        counts[position[code]] = count  # KeyError: the labels are not canonical
    return pooled_p_value(counts, probabilities * len(labels))


def pooled_p_value(counts, expected):
    """Chi-square of counts against expected ones; the rare are pooled."""
    is_common = expected >= 8
    pooled = [counts[is_common], [counts[~is_common].sum()]]
    pooled_expected = [expected[is_common], [expected[~is_common].sum()]]
    observed, expected = np.concatenate(pooled), np.concatenate(pooled_expected)
    keep = expected > 0
    return stats.chisquare(observed[keep], expected[keep] * observed.sum() / expected.sum()).pvalue
