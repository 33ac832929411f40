import jax
import jax.numpy as jnp
import networkx as nx
import numpy as np
import pytest
from factor_models import NUM_STATES, counts_of, distribution, draws, mixed, p_value

from jaxmrf.exact import blocked_gibbs
from jaxmrf.graphs import Hypergraph, blanket_plan, conditional_plan, forest_blocks, grid
from jaxmrf.models import FactorGraph
from jaxmrf.sampling import factor_gibbs

LEVEL = 1e-4
NUM_DRAWS = 20_000


def tables_given(graph, plan, states):
    """The smaller model's tables as the sweep reads them."""
    shift = (np.asarray(plan.strides) * states[np.asarray(plan.others)]).sum(axis=1)
    return np.asarray(graph.log_tables)[plan.places + shift[plan.owners]]


def test_conditional_plan_reads_the_tables_that_condition_slices():
    graph, block = mixed(), [4, 0]
    plan = conditional_plan(graph.hypergraph, block)
    states = np.array([1, 2, 1, 0, 0])
    smaller = FactorGraph(tables_given(graph, plan, states), np.zeros(5), plan.hypergraph)
    sliced = graph.condition({node: int(states[node]) for node in (1, 2, 3)})
    inside = [one for one, scope in enumerate(graph.scopes) if set(scope) & set(block)]
    for row, factor in enumerate(inside):
        assert [block[node] for node in plan.hypergraph.scopes[row]] == list(sliced.scopes[factor])
        np.testing.assert_array_equal(smaller.log_table(row), sliced.log_table(factor))


@pytest.mark.slow
@pytest.mark.parametrize("blocks", [None, [[0, 1], [2, 3, 4]], [[0, 1, 2, 3, 4]]])
def test_sweep_leaves_the_exact_distribution(blocks, key):
    graph = mixed(has_zeros=True).observe({0: [0.3, 0.7]})
    exact = distribution(graph)
    plan = blocked_gibbs.blocked_plan(graph.hypergraph, blocks)
    start = draws(exact, NUM_DRAWS, seed=1)
    after = blocked_gibbs.sweep(key, jnp.asarray(start), graph, plan)
    assert p_value(counts_of(after, NUM_STATES), exact) > LEVEL
    assert (np.asarray(after) != start).any()
    if blocks is not None and len(blocks) == 1:  # independent draws, wherever it starts
        again = blocked_gibbs.sweep(key, jnp.zeros_like(after), graph, plan)
        assert p_value(counts_of(again, NUM_STATES), exact) > LEVEL


def test_forests_cross_what_single_variables_cannot(key):
    # two variables that must agree: no single one can move
    with np.errstate(divide="ignore"):
        tables = [np.log(np.eye(2)), np.log(np.array([0.3, 0.7]))]
    graph = FactorGraph.from_tables([2, 2], [(0, 1), (1,)], tables)
    start = jnp.zeros((2, 2000), jnp.int8)
    plan = blanket_plan(graph.hypergraph)
    stuck = factor_gibbs.run(key, start, graph, plan, num_sweeps=5)
    assert (stuck == 0).all()
    free = blocked_gibbs.run(
        key, start, graph, blocked_gibbs.blocked_plan(graph.hypergraph), num_sweeps=1
    )
    assert (free[0] == free[1]).all()
    assert abs(free[0].mean() - 0.7) < 4.5 * np.sqrt(0.21 / 2000)


@pytest.mark.parametrize("seed", [0, 1])
def test_forest_blocks_partition_the_variables_in_forests(seed):
    graph = grid((7, 9))
    hypergraph = Hypergraph([2] * 63, graph.edges)
    blocks = forest_blocks(hypergraph, seed=seed)
    assert sorted(node for block in blocks for node in block) == list(range(63))
    assert all(nx.is_forest(graph.to_networkx().subgraph(block)) for block in blocks)
    assert len(blocks) <= 3


def test_blocks_that_name_a_variable_twice_are_refused():
    with pytest.raises(ValueError, match=r"conditional_plan: expected different variables in 0..4"):
        blocked_gibbs.blocked_plan(mixed().hypergraph, [[0, 0]])
    with pytest.raises(ValueError, match="elimination_plan: expected a table of at most 8 B"):
        blocked_gibbs.blocked_plan(mixed().hypergraph, [[0, 1, 2]], max_memory=8)


def test_chains_do_not_depend_on_their_number_of_companions(key):
    plan = blocked_gibbs.blocked_plan(mixed().hypergraph)
    start = factor_gibbs.init(key, mixed(), blanket_plan(mixed().hypergraph), num_chains=6)
    states = jax.jit(lambda key, x: blocked_gibbs.run(key, x, mixed(), plan, num_sweeps=2))
    found = states(key, start)
    assert found.shape == start.shape and found.dtype == start.dtype
