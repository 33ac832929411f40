"""The infinite factor hierarchy by loops over everything, in plain NumPy and float64.

A layer is a dictionary of ``sticks`` [features], ``features`` [features, objects], ``weights``
[parents, features] (or None in the top layer), ``concentration``, ``strength``, ``offset`` and
``represented``, which features are written out.
"""

import itertools
import math

import numpy as np


def harmonic(num):
    """H_n."""
    return math.fsum(1 / i for i in range(1, num + 1))


def shares(num_uses, strength, offset):
    """All p_i = c / (c + b + i), once for each use of each parent but for the order."""
    return [strength / (strength + offset + i) for n in num_uses for i in range(n)]


def poisson_binomial(probabilities):
    """P(I = i) of a sum of independent Bernoulli variables."""
    pmf = np.ones(1)
    for p in probabilities:
        pmf = np.convolve(pmf, [1 - p, p])
    return pmf


def log_absence(stick, num_uses, strength, offset):
    """Log-probability that nobody has a feature of a frequency."""
    return math.fsum(math.log1p(-stick * p) for p in shares(num_uses, strength, offset))


def expected_present(num_uses, strength, offset):
    """psi = E H_I, I the number of successes behind f(u) = E (1 - u)^I."""
    weights = poisson_binomial(shares(num_uses, strength, offset))
    return math.fsum(w * harmonic(i) for i, w in enumerate(weights))


def inactive_mass(sticks, weights):
    """The integral of f(u) / u from each stick to 1, with f(u) = sum_i w_i (1 - u)^i."""
    sticks = np.asarray(sticks, np.float64)
    total, inner = -np.log(sticks), np.zeros_like(sticks)
    for i, weight in enumerate(weights):
        if i:
            inner = inner + (1 - sticks) ** i / i
        total = total - weight * inner
    return total


def assignment_probabilities(parents, weights, order):
    """P(A = j) of a child that is on: the first parent, in an order, that succeeds."""
    probabilities, missed = np.zeros(len(weights)), 1.0
    for j in order:
        probabilities[j] = missed * parents[j] * weights[j]
        missed *= 1 - parents[j] * weights[j]
    return probabilities / probabilities.sum()


def log_beta(value, a, b):
    """Log-density of Beta(a, b)."""
    normaliser = math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
    return (a - 1) * math.log(value) + (b - 1) * math.log1p(-value) - normaliser


def parents_of(above, layer):
    """Rows of parents: the leak if the weights have a row for it, then the features above."""
    if len(layer["weights"]) == len(above["features"]):
        return above["features"]
    return np.concatenate([np.ones_like(above["features"][:1]), above["features"]])


def chance(above, layer, k, n):
    """Probability that object n has feature k."""
    if above is None:
        return layer["sticks"][k]
    parents = parents_of(above, layer)
    off = 1.0
    for j in range(len(parents)):
        off *= 1 - parents[j, n] * layer["weights"][j, k]
    return 1 - off


def log_joint(layers):
    """Log-density of what is written out, everything else integrated out."""
    total, above = 0.0, None
    for layer in layers:
        num_objects = layer["features"].shape[1]
        if above is None:
            present = harmonic(num_objects)
        else:
            num_uses = parents_of(above, layer).sum(axis=1)
            present = expected_present(num_uses, layer["strength"], layer["offset"])
        total -= layer["concentration"] * present
        for k in np.flatnonzero(layer["represented"]):
            stick = layer["sticks"][k]
            total += math.log(layer["concentration"] / stick)
            for n in range(num_objects):
                p = chance(above, layer, k, n)
                p = p if layer["features"][k, n] else 1 - p
                total += math.log(p) if p > 0 else -np.inf
            if above is not None:
                a = layer["strength"] * stick
                b = layer["strength"] * (1 - stick) + layer["offset"]
                total += math.fsum(log_beta(v, a, b) for v in layer["weights"][:, k])
        total -= math.lgamma(layer["represented"].sum() + 1)
        above = layer
    return total


def log_normal(x, mean, variance):
    """Log-density of independent normal variables."""
    square = (np.asarray(x) - mean) ** 2 / variance
    return -0.5 * (square + np.log(2 * np.pi * variance)).sum()


def log_binomial_noisy_or(successes, totals, features, weights):
    """Log-probability of one object's counts but for the binomial coefficients."""
    total = 0.0
    for t in range(len(successes)):
        off = 1.0
        for k in range(len(features)):
            off *= 1 - features[k] * weights[k, t]
        x, rest = successes[t], totals[t] - successes[t]
        total += rest * math.log(off)
        if x:
            total += x * math.log(1 - off) if off < 1 else -np.inf
    return total


def columns(num_objects):
    """All columns that a feature can have."""
    return np.array(list(itertools.product((0, 1), repeat=num_objects)))
