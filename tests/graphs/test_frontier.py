import jax
import networkx as nx
import numpy as np
import pytest
from examples import GRAPHS

from jaxmrf.graphs import Graph, binary_tree, frontier_plan, grid, is_narrow, random_regular, torus

RANDOM = Graph.from_networkx(nx.gnm_random_graph(30, 45, seed=1))
CASES = {**GRAPHS, "random": RANDOM, "two parts": Graph(7, [(5, 6), (0, 1), (1, 2), (0, 2)])}


@pytest.mark.parametrize("graph", CASES.values(), ids=CASES)
@pytest.mark.parametrize("is_shuffled", [False, True])
def test_every_node_holds_one_slot_of_its_own_from_first_to_last_edge(graph, is_shuffled):
    order = np.random.default_rng(0).permutation(graph.num_nodes) if is_shuffled else None
    plan = frontier_plan(graph, order=order)
    assert sorted(plan.edges) == list(range(graph.num_edges))
    np.testing.assert_array_equal(plan.nodes, graph.edges[plan.edges])
    np.testing.assert_array_equal(plan.degrees, graph.degrees)
    assert (plan.num_nodes, plan.num_edges) == (graph.num_nodes, graph.num_edges)
    owner, seen, used = {}, {node: 0 for node in range(graph.num_nodes)}, set()
    for nodes, slots, is_last in zip(plan.nodes, plan.slots, plan.is_last, strict=True):
        for node, slot in zip(nodes, slots, strict=True):
            assert owner.setdefault(slot, node) == node
            assert seen[node] == 0 or sum(other == node for other in owner.values()) == 1
            seen[node] += 1
            used.add(slot)
        for node, slot, is_done in zip(nodes, slots, is_last, strict=True):
            assert is_done == (seen[node] == graph.degrees[node])
            if is_done:
                del owner[slot]
    assert owner == {} and used == set(range(plan.width))


@pytest.mark.parametrize("shape", [(4, 4), (3, 9), (9, 3), (6, 5)])
def test_grid_is_as_wide_as_its_shorter_side_and_one(shape):
    assert frontier_plan(grid(shape)).width == min(shape) + 1


def test_grid_with_shuffled_nodes_is_no_wider():
    graph = grid((5, 12))
    name = np.random.default_rng(0).permutation(graph.num_nodes)
    assert frontier_plan(Graph(graph.num_nodes, name[graph.edges])).width == 6


@pytest.mark.parametrize(
    ("graph", "width"),
    [
        (grid((1, 30)), 2),
        (torus((30,)), 3),
        (Graph(300, [(150, i) for i in range(300) if i != 150]), 2),
        (Graph(6, [(u, v) for v in range(6) for u in range(v)]), 6),
        (Graph(4, []), 0),
    ],
    ids=["path", "ring", "star", "complete", "no edges"],
)
def test_width_of_known_graphs(graph, width):
    assert frontier_plan(graph).width == width


@pytest.mark.parametrize("depth", [4, 9])
def test_tree_is_at_most_as_wide_as_deep(depth):
    assert frontier_plan(binary_tree(depth)).width <= depth


def test_order_given_is_the_order_taken():
    path = grid((1, 6))
    plan = frontier_plan(path, order=[0, 2, 4, 1, 3, 5])
    # the later ends are node 1 of both first edges, node 3 of the next two, node 5 of the last
    assert plan.edges.tolist() == [0, 1, 2, 3, 4]
    assert frontier_plan(path, order=[1, 3, 5, 0, 2, 4]).edges.tolist() == [0, 1, 2, 3, 4]
    plan = frontier_plan(path, order=[5, 4, 3, 2, 1, 0])
    assert plan.edges.tolist() == [4, 3, 2, 1, 0] and plan.width == 2
    ends_first = frontier_plan(grid((3, 4)), order=[0, 4, 8, 3, 7, 11, 1, 5, 9, 2, 6, 10])
    assert ends_first.width > 4


def test_plan_prints_its_cost():
    assert str(frontier_plan(grid((12, 12)))) == (
        "FrontierPlan: 144 nodes, 264 edges; width 13, tables of 8192 entries for 2 states, "
        "9 MB of them"
    )
    assert str(frontier_plan(grid((19, 19)))).endswith("2.9 GB of them")


def test_equal_arguments_give_the_same_plan():
    graph, again = grid((2, 3)), Graph(6, grid((2, 3)).edges.copy())
    assert frontier_plan(graph) is frontier_plan(again)
    order = [5, 4, 3, 2, 1, 0]
    assert frontier_plan(graph, order=order) is frontier_plan(again, order=np.array(order))


def test_plans_of_equal_sizes_have_one_structure_and_others_do_not():
    def kind(graph):
        leaves, structure = jax.tree.flatten(frontier_plan(graph))
        return structure, [np.shape(leaf) for leaf in leaves]

    other = Graph(6, [(0, 3), (3, 1), (1, 4), (4, 2), (2, 5), (5, 0)])
    assert kind(torus((6,))) == kind(other)
    assert kind(torus((6,))) != kind(grid((2, 3)))


def test_graph_that_is_too_wide_raises():
    message = (
        r"frontier_plan: expected a frontier of at most 20 nodes, got 31; pass a better order or a"
    )
    with pytest.raises(ValueError, match=message):
        frontier_plan(grid((30, 30)))
    with pytest.raises(ValueError, match=r"at most 20 nodes, got \d+"):
        frontier_plan(random_regular(3, 400, seed=0))
    with pytest.raises(ValueError, match="at most 3 nodes, got 4"):
        frontier_plan(grid((3, 3)), max_width=3)
    assert frontier_plan(grid((21, 21)), max_width=22).width == 22


@pytest.mark.parametrize("order", [[0, 1], [0, 1, 1], [1, 2, 3], np.array([[0, 1, 2]])])
def test_order_that_is_no_permutation_raises(order):
    message = r"frontier_plan: expected order to be a permutation of 0\.\.2, got .*every node once"
    with pytest.raises(ValueError, match=message):
        frontier_plan(Graph(3, [(0, 1)]), order=order)


def test_grid_is_as_narrow_as_its_plan():
    assert is_narrow(grid((4, 4)), 5) and not is_narrow(grid((4, 4)), 4)
