"""Every public distribution of discrete values keeps every law of the conformance suite."""

from functools import partial
from itertools import product

import jax
import numpy as np
import pytest

import jaxmrf.distributions
from jaxmrf.distributions import (
    ChineseRestaurantProcess,
    DiscreteFactorGraph,
    IndianBuffetProcess,
    Ising,
    MarkovRandomField,
    NoisyOr,
    NoisyOrBinomial,
    NoisyOrWeights,
    OtherFeatures,
    PairwiseMRF,
    Potts,
)
from jaxmrf.graphs import Graph, Hypergraph
from jaxmrf.testing import DISTRIBUTION_CHECKS, DistributionCase

PAW = Graph(4, [(0, 1), (1, 2), (0, 2), (2, 3)])  # a triangle with a tail: two degrees, a cycle
EDGE = Graph(2, [(0, 1)])
PARTITIONS_OF_4 = [
    (0, b, c, d) for b in range(2) for c in range(max(0, b) + 2) for d in range(max(0, b, c) + 2)
]


def normal(*shape, seed=0):
    return (0.5 * np.random.default_rng(seed).standard_normal(shape)).astype(np.float32)


def vectors(num_values, length):
    """All vectors of so many values, on a leading axis that broadcasts against a batch axis."""
    return lambda fn: np.reshape(
        list(product(range(num_values), repeat=length)), (-1, *(1,) * len(fn.batch_shape), length)
    )


# variables of 2, 3, 2 and 1 states; a cycle, a factor of three and a constant
MIXED = Hypergraph([2, 3, 2, 1], [(0, 1), (2, 1), (2, 0), (1, 3, 0), (), (2,)])
POSSIBLE = [(a, b, c, 0) for a in range(2) for b in range(3) for c in range(2)]

NOISY = np.array([[0.3, 0.1, 0.05], [0.2, 0.3, 0.1]], dtype=np.float32)
UNTABLED = {  # an abstract class, and those whose values cannot be listed, which have other tests
    MarkovRandomField,
    IndianBuffetProcess,
    NoisyOrWeights,
    OtherFeatures,
}
CASES = {
    "ising": DistributionCase(
        partial(Ising, PAW), {"couplings": normal(4), "fields": normal(4, seed=1)}
    ),
    "ising_batched": DistributionCase(
        partial(Ising, PAW), {"couplings": normal(2, 1, 4), "fields": normal(3, 4, seed=1)}
    ),
    "potts": DistributionCase(
        partial(Potts, EDGE, num_states=3),
        {"couplings": normal(1), "fields": normal(2, 2, 3, seed=1)},
    ),
    "pairwise": DistributionCase(
        partial(PairwiseMRF, EDGE),
        {"edge_tables": normal(1, 3, 3), "node_tables": normal(2, 3, seed=1)},
    ),
    "factor_graph": DistributionCase(
        partial(DiscreteFactorGraph, MIXED),
        {
            "log_tables": normal(2, 1, MIXED.num_entries),
            "log_evidence": normal(2, MIXED.num_node_entries, seed=1),
        },
        values=lambda fn: np.reshape(POSSIBLE, (-1, *(1,) * len(fn.batch_shape), 4)),
    ),
    "noisy_or": DistributionCase(
        NoisyOr,
        {"parents": np.array([[1, 1], [1, 0]], dtype=np.float32), "weights": NOISY},
        values=vectors(2, 3),
    ),
    "noisy_or_binomial": DistributionCase(
        partial(NoisyOrBinomial, total_count=2),
        {"features": np.array([1, 1], dtype=np.float32), "weights": NOISY[:, :2]},
        values=vectors(3, 2),
    ),
    "chinese_restaurant": DistributionCase(
        partial(ChineseRestaurantProcess, size=4),
        {"concentration": np.array([0.6, 2.0], dtype=np.float32)},
        values=lambda fn: np.reshape(PARTITIONS_OF_4, (-1, *(1,) * len(fn.batch_shape), 4)),
    ),
}


@pytest.mark.parametrize("check", DISTRIBUTION_CHECKS)
@pytest.mark.parametrize("case", CASES)
def test_distribution_keeps_the_law(case, check):
    DISTRIBUTION_CHECKS[check](CASES[case], jax.random.key(7))


def test_every_public_distribution_has_a_case():
    public = {
        value
        for value in vars(jaxmrf.distributions).values()
        if isinstance(value, type) and hasattr(value, "arg_constraints")
    }
    covered = {type(case.build()) for case in CASES.values()}
    assert public - covered == UNTABLED
