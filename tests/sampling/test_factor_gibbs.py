import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from factor_models import NUM_STATES, counts_of, distribution, draws, mixed, p_value

from jaxmrf.graphs import Hypergraph, blanket_plan
from jaxmrf.models import FactorGraph, log_potential_of
from jaxmrf.sampling import factor_gibbs
from jaxmrf.testing.kernels import exact_stationarity

GRAPH = mixed()
PLAN = blanket_plan(GRAPH.hypergraph)
NUM_DRAWS = 20_000
LEVEL = 1e-4


def sweep_matrix(graph, plan, power=1.0):
    """The sweep as a matrix over configurations, from the kernel's own conditionals."""
    shape = graph.num_states
    size = int(np.prod(shape))
    states = np.array(np.unravel_index(np.arange(size), shape), np.int8)
    tables = jnp.append(jnp.asarray(graph.log_tables), 0)
    matrix = np.eye(size)
    for block in plan.blocks:
        logits = factor_gibbs._logits(
            tables, jnp.asarray(graph.log_evidence), block, jnp.asarray(states)
        )
        weights = np.exp(power * np.asarray(logits, np.float64))
        chances = weights / weights.sum(axis=0)
        for row, node in enumerate(np.asarray(block.nodes)):
            move = np.zeros((size, size))
            for level in range(shape[node]):
                after = states.copy()
                after[node] = level
                target = np.ravel_multi_index(after, shape)
                move[np.arange(size), target] += chances[level, row]
            matrix = matrix @ move
    return matrix


@pytest.mark.parametrize("power", [1.0, 0.4])
@pytest.mark.parametrize("has_zeros", [False, True])
def test_sweep_leaves_the_exact_distribution(has_zeros, power):
    graph = mixed(has_zeros=has_zeros)
    matrix = sweep_matrix(graph, PLAN, power)
    possible = distribution(graph).ravel() > 0
    chain = matrix[np.ix_(possible, possible)]
    assert exact_stationarity(chain, distribution(graph, power).ravel()[possible]) < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("power", [1.0, 0.4])
def test_draws_after_a_sweep_from_the_exact_distribution_follow_it(power, key):
    exact = distribution(mixed(has_zeros=True), power)
    start = draws(exact, NUM_DRAWS, seed=1)
    after = factor_gibbs.sweep(
        key, jnp.asarray(start), mixed(has_zeros=True), PLAN, inverse_temperature=power
    )
    assert p_value(counts_of(after, NUM_STATES), exact) > LEVEL
    assert (np.asarray(after) != start).any()
    wrong = distribution(mixed(has_zeros=True), 0.7)
    assert p_value(counts_of(after, NUM_STATES), wrong) < LEVEL


def test_run_from_uniform_states_reaches_the_distribution_given_evidence(key):
    graph = GRAPH.observe({1: 2, 4: [0.5, 0.0, 1.0]})
    start = factor_gibbs.init(key, graph, PLAN, num_chains=NUM_DRAWS)
    assert (start[1] == 2).all() and (start[4] != 1).all() and start.dtype == jnp.int8
    states = factor_gibbs.run(jax.random.key(1), start, graph, PLAN, num_sweeps=30)
    assert p_value(counts_of(states, NUM_STATES), distribution(graph)) > LEVEL


def test_variables_left_out_of_the_plan_keep_their_states(key):
    plan = blanket_plan(GRAPH.hypergraph, nodes=[0, 4])
    start = factor_gibbs.init(key, GRAPH, PLAN, num_chains=50)
    after = factor_gibbs.run(jax.random.key(1), start, GRAPH, plan, num_sweeps=5)
    np.testing.assert_array_equal(after[1:4], start[1:4])
    assert (after[jnp.array([0, 4])] != start[jnp.array([0, 4])]).any()


def test_state_without_a_possible_neighbour_stays(key):
    with np.errstate(divide="ignore"):
        tables = [np.log(np.array([[0.0, 0.0], [0.0, 1.0]])), np.log(np.zeros(2))]
    graph = FactorGraph.from_tables([2, 2], [(0, 1), (1,)], tables)
    start = jnp.zeros((2, 3), jnp.int8)
    after = factor_gibbs.sweep(key, start, graph, blanket_plan(graph.hypergraph))
    np.testing.assert_array_equal(after, start)


def test_log_potentials_equal_brute_force():
    graph = mixed(has_zeros=True).observe({4: [0.5, 0.1, 1.0]})
    states = np.array(np.unravel_index(np.arange(np.prod(NUM_STATES)), NUM_STATES), np.int8)
    with np.errstate(divide="ignore"):
        expected = np.log(distribution(graph).ravel())
    found = np.asarray(log_potential_of(graph, jnp.asarray(states)))
    possible = np.isfinite(expected)
    np.testing.assert_array_equal(np.isfinite(found), possible)
    gap = found[possible] - expected[possible]
    np.testing.assert_allclose(gap, gap[0], atol=2e-6)


def test_temperatures_of_single_chains_are_their_own(key):
    start = factor_gibbs.init(key, GRAPH, PLAN, num_chains=4)
    powers = jnp.array([1.0, 0.5, 1.0, 0.5])
    both = factor_gibbs.run(key, start, GRAPH, PLAN, num_sweeps=3, inverse_temperature=powers)
    one = factor_gibbs.run(key, start, GRAPH, PLAN, num_sweeps=3)
    np.testing.assert_array_equal(both[:, ::2], one[:, ::2])


def test_pairwise_sweep_matches_brute_force_conditionals():
    rng = np.random.default_rng(2)
    hypergraph = Hypergraph([2] * 6, [(i, (i + 1) % 6) for i in range(6)])
    graph = FactorGraph(rng.normal(size=24), rng.normal(size=12), hypergraph)
    plan = blanket_plan(hypergraph)
    pi = distribution(graph).ravel()
    assert np.abs(pi @ sweep_matrix(graph, plan) - pi).max() < 1e-6
    assert len(oracles.configurations(6, 2)) == len(pi)


def test_plan_prints_its_padding_and_refuses_bad_arguments():
    assert "5 variables" in str(PLAN) and "padding" in str(PLAN)
    with pytest.raises(ValueError, match="expected every edge to join two colours"):
        blanket_plan(GRAPH.hypergraph, colors=[0] * 5)
    with pytest.raises(ValueError, match=r"blanket_plan: expected variables in 0..4, got 9"):
        blanket_plan(GRAPH.hypergraph, nodes=[0, 9])
