"""What the distribution of a factor graph adds to the conformance suite."""

import itertools
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import MCMC, NUTS, Predictive
from numpyro.infer.util import log_density

from jaxmrf.distributions import DiscreteFactorGraph, IntractableNormalizerError, StatesBelow
from jaxmrf.graphs import Graph, Hypergraph, elimination_plan, grid
from jaxmrf.models import FactorGraph

NUM_STATES = (2, 3, 2)
SCOPES = ((0, 1), (2, 1), (0,))
STRUCTURE = Hypergraph(NUM_STATES, SCOPES)
CONFIGURATIONS = np.array(list(itertools.product(*map(range, NUM_STATES))))
NOT_BOTH = np.array([[0.0, -np.inf, 0.3], [-np.inf, -np.inf, 1.0]])  # state 1 of variable 1 never
TABLES = [NOT_BOTH, np.array([[0.5, 0.0, -1.0], [-np.inf, 0.2, 0.1]]), np.array([0.3, -0.3])]
GRAPH = FactorGraph.from_tables(NUM_STATES, SCOPES, TABLES)
LARGE = Hypergraph([2] * 36, [tuple(edge) for edge in grid((6, 6)).edges.tolist()])


def log_potentials_by_hand(tables=TABLES):
    return np.array(
        [
            sum(
                table[tuple(x[node] for node in scope)]
                for table, scope in zip(tables, SCOPES, strict=True)
            )
            for x in CONFIGURATIONS
        ]
    )


def intractable():
    return DiscreteFactorGraph(LARGE, jnp.zeros(LARGE.num_entries), max_memory=256)


def test_log_prob_and_moments_match_loops():
    expected = log_potentials_by_hand()
    probs = np.exp(expected) / np.exp(expected).sum()
    fn = DiscreteFactorGraph.from_factor_graph(GRAPH)
    np.testing.assert_allclose(fn.unnormalized_log_prob(CONFIGURATIONS), expected, atol=1e-6)
    np.testing.assert_allclose(fn.log_normalizer, np.log(np.exp(expected).sum()), rtol=1e-6)
    np.testing.assert_allclose(np.exp(fn.log_prob(CONFIGURATIONS)), probs, atol=1e-6)
    np.testing.assert_allclose(fn.mean, probs @ CONFIGURATIONS, rtol=1e-5)
    variance = probs @ CONFIGURATIONS**2 - (probs @ CONFIGURATIONS) ** 2
    np.testing.assert_allclose(fn.variance, variance, rtol=1e-5)


def test_evidence_conditions(key):
    fn = DiscreteFactorGraph.from_factor_graph(GRAPH.observe({1: 2, 0: [0.5, 1.0]}))
    weights = np.exp(log_potentials_by_hand()) * (CONFIGURATIONS[:, 1] == 2)
    weights *= np.array([0.5, 1.0])[CONFIGURATIONS[:, 0]]
    log_probs = fn.log_prob(CONFIGURATIONS)
    np.testing.assert_allclose(np.exp(log_probs), weights / weights.sum(), atol=1e-6)
    assert (fn.sample(key, (20,))[:, 1] == 2).all()


def test_draws_never_are_impossible(key):
    drawn = np.asarray(DiscreteFactorGraph.from_factor_graph(GRAPH).sample(key, (2000,)))
    assert not (drawn[:, 1] == 1)[drawn[:, 0] == 0].any()
    assert {tuple(x) for x in drawn.tolist()} == {
        tuple(x)
        for x, value in zip(CONFIGURATIONS.tolist(), log_potentials_by_hand(), strict=True)
        if value > -np.inf
    }


def test_impossible_model_is_minus_infinity_and_never_nan():
    tables = jnp.full(STRUCTURE.num_entries, -jnp.inf)
    value, gradient = jax.jit(
        jax.value_and_grad(lambda t: DiscreteFactorGraph(STRUCTURE, t).log_prob([0, 0, 0]))
    )(tables)
    assert value == -np.inf and np.isfinite(gradient).all()


def test_gradient_with_impossible_entries_is_state_minus_marginals():
    fn = DiscreteFactorGraph.from_factor_graph(GRAPH)
    gradient = jax.grad(lambda t: DiscreteFactorGraph(STRUCTURE, t).log_prob([0, 2, 1]))(
        jnp.asarray(GRAPH.log_tables)
    )
    assert np.isfinite(gradient).all()
    probs = np.exp(np.asarray(fn.log_prob(CONFIGURATIONS)))
    expected = np.array([1.0, 0.0]) - probs @ np.eye(2)[CONFIGURATIONS[:, 0]]
    start = STRUCTURE.table_starts[2]
    np.testing.assert_allclose(gradient[start : start + 2], expected, atol=1e-6)


def model(data=None):
    strength = numpyro.sample("strength", dist.Normal(0.0, 1.0))
    agree = jnp.stack([strength, 0.0 * strength, 0.0 * strength, strength])
    structure = Hypergraph([2, 2, 2], [(0, 1), (1, 2)])
    with numpyro.plate("items", 5 if data is None else len(data)):
        numpyro.sample("x", DiscreteFactorGraph(structure, jnp.tile(agree, 2)), obs=data)


@pytest.mark.slow
def test_model_predicts_and_scores(key):
    drawn = Predictive(model, num_samples=3)(key)["x"]
    assert drawn.shape == (3, 5, 3) and drawn.dtype == jnp.int32
    data = np.array([[0, 0, 0], [0, 1, 1]])
    found, gradient = jax.value_and_grad(
        lambda strength: log_density(model, (data,), {}, {"strength": strength})[0]
    )(0.7)
    agreements = 3  # of the four pairs of neighbours in the data
    by_hand = agreements * 0.7 - 2 * np.log(2 * (1 + np.exp(0.7)) ** 2)
    np.testing.assert_allclose(found, by_hand + dist.Normal(0, 1).log_prob(0.7), rtol=1e-6)
    slope = agreements - 4 / (1 + np.exp(-0.7)) - 0.7
    np.testing.assert_allclose(gradient, slope, rtol=1e-5)


@pytest.mark.slow
def test_nuts_finds_the_strength(key):
    data = np.array([[0, 0, 0]] * 6 + [[0, 1, 1]] * 3 + [[1, 0, 1]] * 2)
    mcmc = MCMC(NUTS(model), num_warmup=300, num_samples=2000, progress_bar=False)
    mcmc.run(key, data)
    grid_points = np.linspace(-4, 4, 801)
    same = 15
    log_post = same * grid_points - 11 * 2 * np.log1p(np.exp(grid_points)) - grid_points**2 / 2
    weights = np.exp(log_post - log_post.max())
    mean = weights @ grid_points / weights.sum()
    std = np.sqrt(weights @ (grid_points - mean) ** 2 / weights.sum())
    draws = np.asarray(mcmc.get_samples()["strength"])
    assert abs(draws.mean() - mean) < 5 * std / np.sqrt(400)  # at least 400 effective draws


def test_copies_keep_plan_and_structure():
    plan = elimination_plan(STRUCTURE, order=(2, 1, 0))
    fn = DiscreteFactorGraph.from_factor_graph(GRAPH, plan=plan, max_memory=2**20)
    other = pickle.loads(pickle.dumps(fn))
    assert (other.plan, other.max_memory, other.hypergraph) == (plan, 2**20, STRUCTURE)
    np.testing.assert_array_equal(other.log_prob([0, 2, 1]), fn.log_prob([0, 2, 1]))
    np.testing.assert_array_equal(fn.factor_graph.log_tables, np.float32(GRAPH.log_tables))


def test_double_precision_is_kept(x64):
    expected = log_potentials_by_hand()
    expected -= np.log(np.exp(expected).sum())
    found = DiscreteFactorGraph.from_factor_graph(GRAPH).log_prob(CONFIGURATIONS)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_support_has_each_variable_its_own_states():
    support = StatesBelow(NUM_STATES)
    values = [[1, 2, 1], [2, 2, 1], [0, 3, 0], [0, -1, 0], [0.5, 0, 0], [np.nan, 0, 0]]
    for convert in (np.asarray, jnp.asarray):
        found = support(convert(values))
        np.testing.assert_array_equal(found, [True, False, False, False, False, False])
    assert support == StatesBelow([2, 3, 2]) and support != StatesBelow([2, 3, 3])
    assert hash(jax.tree.structure(support)) == hash(jax.tree.structure(StatesBelow([2, 3, 2])))


REFUSED = {
    "log_prob": lambda fn: fn.log_prob(np.zeros(36, int)),
    "log_normalizer": lambda fn: fn.log_normalizer,
    "sample": lambda fn: fn.sample(jax.random.key(0)),
    "mean": lambda fn: fn.mean,
    "variance": lambda fn: fn.variance,
}


@pytest.mark.parametrize("method", REFUSED)
def test_intractable_graph_refuses(method):
    message = rf"Graph.{method}: expected tables of at most 256 bytes, got 1.02e.03 .*treewidth 6"
    with pytest.raises(IntractableNormalizerError, match=message):
        REFUSED[method](intractable())


def test_intractable_graph_has_its_unnormalized_log_prob():
    assert not intractable().is_tractable
    assert intractable().unnormalized_log_prob(np.zeros(36, int)) == 0
    assert DiscreteFactorGraph.from_factor_graph(GRAPH).is_tractable


ENTRIES = STRUCTURE.num_entries
BAD = [
    (
        lambda: DiscreteFactorGraph(Graph(2, [(0, 1)]), np.zeros(4)),
        r"expected hypergraph to be a jaxmrf.graphs.Hypergraph, got Graph; pass Hypergraph\(",
    ),
    (
        lambda: DiscreteFactorGraph(STRUCTURE, np.zeros(3)),
        r"log_tables of shape \[..., entries\] = \[..., 14\], got \(3,\); align",
    ),
    (
        lambda: DiscreteFactorGraph(STRUCTURE, np.zeros(ENTRIES), np.zeros((2, 3))),
        r"log_evidence of shape \[..., node_entries\] = \[..., 7\], got \(2, 3\); align",
    ),
    (
        lambda: DiscreteFactorGraph(STRUCTURE, np.zeros((2, ENTRIES)), np.zeros((3, 7))),
        r"expected leading axes that broadcast, got shapes .*\(2, 14\).*; align the batch axes",
    ),
    (
        lambda: DiscreteFactorGraph(STRUCTURE, np.full(ENTRIES, np.nan), validate_args=True),
        r"expected log_tables below infinity, got nan at index \(0,\); pass logs of finite",
    ),
    (
        lambda: DiscreteFactorGraph(
            STRUCTURE, np.zeros(ENTRIES), jnp.full(7, jnp.inf), validate_args=True
        ),
        r"expected log_evidence below infinity, got inf at index \(0,\)",
    ),
    (
        lambda: DiscreteFactorGraph(
            STRUCTURE, np.zeros(ENTRIES), plan=elimination_plan(Hypergraph([2], []))
        ),
        r"expected a plan of Hypergraph\(num_nodes=3.*pass elimination_plan\(hypergraph\)",
    ),
    (
        lambda: DiscreteFactorGraph(STRUCTURE, np.zeros((2, ENTRIES))).factor_graph,
        r"factor_graph: expected batch shape \(\), got \(2,\); vmap over the parameters",
    ),
]


@pytest.mark.parametrize(("build", "message"), BAD)
def test_bad_argument_names_rule_value_and_mend(build, message):
    with pytest.raises(ValueError, match=message):
        build()
