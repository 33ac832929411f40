import networkx as nx
import numpy as np
import pytest

from jaxmrf.graphs import Graph, Hypergraph, complete_bipartite, grid
from jaxmrf.graphs.appearance import appearance_probabilities
from jaxmrf.graphs.messages import message_plan

MIXED = Hypergraph([2, 3, 2, 3, 1], [(0, 1), (2, 1), (0, 2), (3, 1, 0), (2,), (), (0, 1)])
STAR = Hypergraph([2] * 40, [(0, leaf) for leaf in range(1, 40)])


def pairs_of(graph):
    return Hypergraph([2] * graph.num_nodes, graph.edges.tolist())


@pytest.mark.parametrize("structure", [MIXED, STAR, Hypergraph([2, 2], [(0,)])])
@pytest.mark.parametrize("is_colored", [False, True])
def test_every_message_entry_is_in_the_inbox_of_its_state_once(structure, is_colored):
    plan = message_plan(structure, is_colored=is_colored)
    expected = sum(
        structure.num_states[node] for scope in structure.scopes if len(scope) > 1 for node in scope
    )
    assert plan.num_messages == expected
    seen = np.concatenate([np.zeros(0, int), *plan.slots, plan.rest])
    assert sorted(seen.tolist()) == list(range(expected))
    for slot in plan.slots:
        assert (plan.owner[slot] == np.arange(len(slot))).all()
    assert (plan.order[plan.place] == np.arange(structure.num_node_entries)).all()
    for stack in plan.stacks:
        for position, (start, stop) in enumerate(stack.messages):
            states = plan.order[plan.owner[start:stop]].reshape(stack.shape[position], -1)
            for factor, own in zip(stack.factors.tolist(), states.T, strict=True):
                node = structure.scopes[factor][position]
                first = structure.node_starts[node]
                assert own.tolist() == list(range(first, first + structure.num_states[node]))
            assert (
                plan.factor[start:stop].reshape(stack.shape[position], -1) == stack.factors
            ).all()


def test_blocks_share_no_variable_where_colors_allow():
    plan = message_plan(pairs_of(grid((4, 5))), is_colored=True)
    (stack,) = plan.stacks
    edges = grid((4, 5)).edges[stack.factors]
    assert [low for low, _ in stack.blocks] == [0, *(high for _, high in stack.blocks[:-1])]
    assert stack.blocks[-1][1] == len(edges) and len(stack.blocks) <= 7
    for low, high in stack.blocks:
        assert len(np.unique(edges[low:high])) == 2 * (high - low)
    (stack,) = message_plan(STAR, is_colored=True).stacks
    assert len(stack.blocks) == 16 and stack.blocks[-1][1] == 39
    assert sorted(stack.factors.tolist()) == list(range(39))


def test_plan_prints_its_sizes():
    assert "156 message entries, 1 table shapes, 1 blocks, 16 slots, 46 entries" in repr(
        message_plan(STAR)
    )


def tree_shares(graph):
    """Share of spanning trees that contain each edge, by Kirchhoff's count with and without it."""

    def count(edges):
        multigraph = nx.MultiGraph()
        multigraph.add_nodes_from(range(graph.num_nodes))
        multigraph.add_edges_from(edges)
        laplacian = nx.laplacian_matrix(multigraph).toarray()[1:, 1:]
        return np.linalg.det(laplacian)

    edges = graph.edges.tolist()
    total = count(edges)
    return [1 - count(edges[:place] + edges[place + 1 :]) / total for place in range(len(edges))]


@pytest.mark.parametrize(
    "graph", [grid((3, 3)), complete_bipartite(2, 3), Graph(4, [(0, 1), (1, 2), (0, 2), (2, 3)])]
)
def test_appearance_probabilities_count_spanning_trees(graph):
    found = appearance_probabilities(pairs_of(graph))
    np.testing.assert_allclose(found, tree_shares(graph), atol=1e-12)
    np.testing.assert_allclose(found.sum(), graph.num_nodes - 1)


def test_appearance_probabilities_of_parts_and_parallel_edges_are_known():
    # a triangle, a tree, an isolated node, factors of one variable and none, and a double edge
    scopes = [(0, 1), (1, 2), (2, 0), (3, 4), (4, 5), (2,), (), (7, 8), (8, 7)]
    found = appearance_probabilities(Hypergraph([2] * 9, scopes))
    np.testing.assert_allclose(found, [2 / 3] * 3 + [1] * 4 + [1 / 2] * 2, atol=1e-12)


def test_mixed_trees_are_near_the_uniform_ones():
    structure = pairs_of(grid((4, 4)))
    found = appearance_probabilities(structure, num_trees=200)
    assert (found > 0).all() and (found <= 1).all()
    np.testing.assert_allclose(found.sum(), 15, rtol=1e-12)
    assert np.abs(found - appearance_probabilities(structure)).max() < 0.25
    double = Hypergraph([2, 2, 2], [(0, 1), (1, 0), (1, 2)])
    np.testing.assert_allclose(appearance_probabilities(double, num_trees=4), [0.5, 0.5, 1])


def test_bad_graphs_have_no_spanning_trees():
    with pytest.raises(ValueError, match=r"at most two variables, got \(0, 1, 2\); spanning"):
        appearance_probabilities(Hypergraph([2] * 3, [(0, 1), (0, 1, 2)]))
    with pytest.raises(ValueError, match="got 1 trees that leave out 1 edges; mix more trees"):
        appearance_probabilities(pairs_of(Graph(3, [(0, 1), (1, 2), (0, 2)])), num_trees=1)
    large = Hypergraph([2] * 4001, [(node, (node + 1) % 4001) for node in range(4001)])
    with pytest.raises(ValueError, match="at most 4000 nodes, got one of 4001; pass num_trees"):
        appearance_probabilities(large)
