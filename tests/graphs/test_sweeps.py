import jax
import numpy as np
import pytest
from examples import GRAPHS, UNEVEN, tiles_of

from jaxmrf.graphs import Graph, color, grid, random_regular, sweep_plan


@pytest.mark.parametrize("graph", GRAPHS.values(), ids=GRAPHS)
@pytest.mark.parametrize("clamped", [(), (0,)])
@pytest.mark.parametrize("colored", [False, True])
def test_every_free_node_stands_in_one_tile_of_nodes_without_edges(graph, clamped, colored):
    colors = color(graph) if colored else None
    plan = sweep_plan(graph, colors=colors, clamped=clamped)
    network, seen = graph.to_networkx(), []
    for nodes, block in tiles_of(plan):
        assert nodes.size
        assert network.subgraph(nodes.tolist()).number_of_edges() == 0
        assert colors is None or len(set(colors[nodes])) == 1
        for column, node in enumerate(nodes):
            assert block.nodes[column] == node
            is_real = block.edges[:, column] < graph.num_edges
            rows = plan.rows[sorted(network.neighbors(node))]
            assert sorted(block.neighbors[is_real, column]) == sorted(rows)
        # padding nodes have no neighbours
        assert (block.edges[:, nodes.size :] == graph.num_edges).all()
        seen += nodes.tolist()
    assert sorted(seen) == sorted(set(range(graph.num_nodes)) - set(clamped))
    assert len(set(plan.rows.tolist())) == graph.num_nodes
    assert plan.rows.max() < plan.num_rows


def test_clamped_nodes_come_last():
    plan = sweep_plan(UNEVEN, clamped=[3, 0, 3])
    assert plan.num_clamped == 2
    assert plan.rows[[0, 3]].tolist() == [plan.num_rows - 2, plan.num_rows - 1]


def test_all_nodes_clamped_give_no_tiles():
    plan = sweep_plan(Graph(2, [(0, 1)]), clamped=[0, 1])
    assert plan.tiles == () and plan.num_rows == 2


@pytest.mark.parametrize("clamped", [[-1], [2, 9]])
def test_clamped_node_outside_the_graph_raises(clamped):
    with pytest.raises(ValueError, match=r"clamped nodes in 0\.\.8, got \(.*name nodes of the"):
        sweep_plan(UNEVEN, clamped=clamped)


def test_even_grid_is_two_tiles_without_padding():
    plan = sweep_plan(grid((4, 4)))
    assert [stack.nodes.shape for stack in plan.tiles] == [(2, 8)]
    assert plan.num_rows == 16


def test_hub_does_not_widen_the_table_of_the_other_nodes():
    edges = [(0, i) for i in range(1, 400)]
    plan = sweep_plan(Graph(400, edges))
    assert [stack.edges.shape for stack in plan.tiles] == [(1, 1, 399), (1, 399, 1)]


def test_plan_prints_its_cost():
    lines = str(sweep_plan(UNEVEN, clamped=[8])).splitlines()
    assert lines == [
        "SweepPlan: 8 of 9 nodes updated, 9 edges; padding 0 % of rows, 62 % of slots",
        "  4 tiles of 2 nodes x 6 neighbours",
    ]


def test_equal_arguments_give_the_same_plan():
    again = Graph(9, UNEVEN.edges.copy())
    assert sweep_plan(UNEVEN, clamped=[1, 2]) is sweep_plan(again, clamped=(2, 1))
    assert sweep_plan(UNEVEN) is not sweep_plan(UNEVEN, clamped=[1])


def test_plans_of_equal_sizes_have_one_structure_and_others_do_not():
    cycle = Graph(6, [(i, (i + 1) % 6) for i in range(6)])
    other = Graph(6, [(0, 3), (3, 1), (1, 4), (4, 2), (2, 5), (5, 0)])

    def kind(graph):
        leaves, structure = jax.tree.flatten(sweep_plan(graph))
        return structure, [np.shape(leaf) for leaf in leaves]

    assert kind(cycle) == kind(other)
    assert kind(cycle) != kind(random_regular(3, 6, seed=0))
