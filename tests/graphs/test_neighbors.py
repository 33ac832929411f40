import itertools

import numpy as np
import pytest
from examples import GRAPHS, UNEVEN

from jaxmrf.graphs import Graph, neighbor_blocks
from jaxmrf.graphs.neighbors import CLASS_COST, NODE_COST, degree_classes


@pytest.mark.parametrize("graph", GRAPHS.values(), ids=GRAPHS)
@pytest.mark.parametrize("max_blocks", [1, 4])
def test_blocks_list_every_neighbor_once_and_pad_with_the_edge_past_the_last(graph, max_blocks):
    blocks = neighbor_blocks(graph, np.arange(graph.num_nodes), max_blocks=max_blocks)
    seen = np.concatenate([block.nodes for block in blocks])
    assert sorted(seen.tolist()) == list(range(graph.num_nodes))
    network = graph.to_networkx()
    for block in blocks:
        for column, node in enumerate(block.nodes):
            is_real = block.edges[:, column] < graph.num_edges
            neighbors = block.neighbors[is_real, column]
            assert sorted(neighbors.tolist()) == sorted(network.neighbors(node))
            edges = graph.edges[block.edges[is_real, column]]
            own_end = block.is_second[is_real, column].astype(int)
            assert (edges[np.arange(len(edges)), own_end] == node).all()
            assert (edges[np.arange(len(edges)), 1 - own_end] == neighbors).all()
            assert (block.edges[~is_real, column] == graph.num_edges).all()
            assert not block.is_second[~is_real, column].any()
        assert block.neighbors.max(initial=0) < graph.num_nodes


def test_a_class_is_padded_to_its_own_largest_degree():
    for block in neighbor_blocks(UNEVEN, np.arange(9), max_blocks=9):
        assert block.edges.shape == (UNEVEN.degrees[block.nodes].max(), block.nodes.size)


def test_no_nodes_give_no_blocks():
    assert neighbor_blocks(UNEVEN, []) == ()


def table_cost(parts, degrees):
    return sum(part.size * (degrees[part].max() + NODE_COST) + CLASS_COST for part in parts)


def star_forest(degrees):
    """A graph with one hub for each degree."""
    edges, leaf = [], len(degrees)
    for hub, degree in enumerate(degrees):
        edges += [(hub, leaf + i) for i in range(degree)]
        leaf += degree
    return Graph(leaf, edges)


@pytest.mark.parametrize("max_classes", [1, 2, 3, 9])
def test_degree_classes_cost_least_of_all_cuts(max_classes):
    rng = np.random.default_rng(1)
    for case in range(6):
        graph = star_forest(rng.choice([1, 2, 9, 40, 90, 200], size=rng.integers(20, 60)).tolist())
        found = degree_classes(graph, np.arange(graph.num_nodes), max_classes=max_classes)
        assert np.array_equal(np.sort(np.concatenate(found)), np.arange(graph.num_nodes))
        order = np.argsort(graph.degrees, kind="stable")
        steps = np.flatnonzero(np.diff(graph.degrees[order])) + 1
        cheapest = min(
            table_cost(np.split(order, cuts), graph.degrees)
            for count in range(max_classes)
            for cuts in itertools.combinations(steps.tolist(), min(count, len(steps)))
        )
        assert len(found) <= max_classes
        assert table_cost(found, graph.degrees) == cheapest, case


def test_degree_classes_split_when_it_pays():
    graph = star_forest([100] * 100)
    found = degree_classes(graph, np.arange(graph.num_nodes), max_classes=4)
    assert [int(graph.degrees[part].max()) for part in found] == [1, 100]
