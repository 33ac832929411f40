from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from random_factor_graphs import evidence_rows, exact, log_values, structure, with_tables
from scipy.stats import chisquare

from jaxmrf.exact import draws
from jaxmrf.graphs import Hypergraph, elimination_plan
from jaxmrf.models import FactorGraph

RING = [(0, 1), (1, 2), (2, 3), (3, 4), (4, 0), (1,), ()]
HUB = [(0, leaf) for leaf in range(1, 5)] + [(0,), (2, 0)]  # more tables than one row reads
MODELS = {
    "ring": with_tables([3, 2, 2, 1, 2], RING, seed=5, zeros=0.2, dtype=np.float32),
    "hub": with_tables([2] * 5, HUB, seed=1, zeros=0.2, dtype=np.float32),
    "clique": structure("clique", 2, dtype=np.float32),
    "isolated": structure("isolated", 1, dtype=np.float32),
}
NUM = 20_000


@pytest.mark.parametrize("name", MODELS)
def test_draws_have_the_exact_distribution(key, name):
    """Chi-square at level 1e-3 with fixed keys, four kinds of evidence; nothing impossible."""
    num_possible = 0
    for item, row in enumerate(evidence_rows(MODELS[name], seed=4).astype(np.float32)):
        graph = replace(MODELS[name], log_evidence=row)
        log_z, *_ = exact(graph)
        if log_z == -np.inf:
            continue
        num_possible += 1
        probabilities = np.exp(log_values(graph) - log_z).ravel()
        assert probabilities.size <= 64
        drawn = draws.sample(jax.random.fold_in(key, item), graph, num_samples=NUM)
        assert drawn.shape == (NUM, graph.num_nodes) and drawn.dtype == jnp.int32
        codes = np.ravel_multi_index(np.asarray(drawn).T, graph.num_states)
        counts = np.bincount(codes, minlength=probabilities.size)
        assert counts[probabilities == 0].sum() == 0
        often = probabilities * NUM > 5
        observed = np.append(counts[often], counts[~often].sum())
        expected = np.append(probabilities[often], probabilities[~often].sum()) * NUM
        few = expected < 5
        assert (observed[few] <= 20).all()
        observed, expected = observed[~few], expected[~few]
        if len(expected) > 1:
            scaled = expected * observed.sum() / expected.sum()
            assert chisquare(observed, scaled).pvalue > 1e-3
    assert num_possible >= 3


def test_long_chain_keeps_its_pairs(key):
    """Neighbours of a chain of 12-state variables, five standard errors."""
    graph = with_tables([12] * 4, [(0, 1), (1, 2), (3, 2)], seed=3, dtype=np.float32)
    drawn = np.asarray(draws.sample(key, graph, num_samples=NUM))
    _, _, factors = exact(graph)
    for factor, scope in enumerate(graph.scopes):
        start = graph.hypergraph.table_starts[factor]
        wanted = factors[start : start + 144].reshape(12, 12)
        found = np.zeros((12, 12))
        np.add.at(found, tuple(drawn[:, list(scope)].T), 1 / NUM)
        assert (found[wanted == 0] == 0).all()
        assert (abs(found - wanted) <= 5 * np.sqrt(wanted / NUM) + 2e-4).all()


def test_same_key_draws_the_same_and_another_does_not(key):
    graph = MODELS["ring"]
    first, second = (draws.sample(key, graph, num_samples=50) for _ in range(2))
    assert (first == second).all()
    assert (draws.sample(jax.random.key(1), graph, num_samples=50) != first).any()


def test_draws_under_vmap_and_jit_follow_the_evidence(key):
    graph = with_tables([2] * 5, HUB, seed=1, zeros=0, dtype=np.float32)
    states = jnp.array([[0, -1, -1, -1, -1], [1, -1, 0, -1, -1], [-1, 1, 1, 1, 1]])

    @jax.jit
    @jax.vmap
    def given(key, states):
        return draws.sample(key, graph.observe_states(states), num_samples=30)

    drawn = given(jax.random.split(key, 3), states)
    for item in range(3):
        seen = states[item] >= 0
        assert (drawn[item][:, seen] == states[item][seen]).all()


def test_draws_of_an_impossible_model_are_states_that_exist(key):
    """The compiled form cannot raise; what it returns can still be used as an index."""
    graph = with_tables([2, 4, 1], [(0, 1), ()], zeros=0)
    for row in (np.full(7, -np.inf), np.array([0, 0, -np.inf, -np.inf, -np.inf, -np.inf, 0])):
        drawn = np.asarray(draws.sample(key, replace(graph, log_evidence=row), num_samples=5))
        assert ((drawn >= 0) & (drawn < np.array([2, 4, 1]))).all()


def test_models_without_variables_or_draws_are_empty(key):
    assert draws.sample(key, structure("empty"), num_samples=3).shape == (3, 0)
    assert draws.sample(key, MODELS["ring"], num_samples=0).shape == (0, 5)


def test_plans_of_another_model_or_too_large_are_refused(key):
    plan = elimination_plan(Hypergraph([2, 2], [(0, 1)]))
    with pytest.raises(ValueError, match=r"sample: expected a plan of .*num_nodes=5.*; pass"):
        draws.sample(key, MODELS["ring"], plan, num_samples=1)
    scopes = [(one, two) for one in range(23) for two in range(one)]
    graph = FactorGraph.from_tables([2] * 23, scopes, [np.zeros((2, 2))] * len(scopes))
    rule = r"sample: expected an elimination of at most 4194304 config.*, got 1.68e\+07; use exact"
    with pytest.raises(ValueError, match=rule):
        draws.sample(key, graph, num_samples=1)
