import networkx as nx
import numpy as np
import pytest

from jaxmrf.graphs import (
    Graph,
    binary_tree,
    color,
    coloring,
    grid,
    random_regular,
    sweep_plan,
    torus,
)

CYCLE5 = Graph(5, [(i, (i + 1) % 5) for i in range(5)])
COMPLETE = Graph.from_networkx(nx.complete_graph(5))
GRAPHS = {
    "grid": (grid((4, 5)), 2),
    "tree": (binary_tree(3), 2),
    "even torus": (torus((4, 6)), 2),
    "odd cycle": (CYCLE5, 3),
    "odd torus": (torus((3, 5)), 4),
    "complete": (COMPLETE, 5),
    "no edges": (Graph(4, []), 1),
    "cubic": (random_regular(3, 20, seed=0), 4),
}


def is_proper(graph, colors):
    return all(colors[u] != colors[v] for u, v in graph.edges)


@pytest.mark.parametrize(("graph", "most"), GRAPHS.values(), ids=GRAPHS)
def test_color_is_proper_with_few_colors(graph, most):
    colors = color(graph)
    assert is_proper(graph, colors)
    assert np.array_equal(np.unique(colors), np.arange(colors.max() + 1))
    assert colors.max() + 1 <= most


def test_lattice_gets_the_checkerboard():
    row, column = np.indices((4, 6))
    assert np.array_equal(color(torus((4, 6))), ((row + column) % 2).ravel())


def test_every_component_of_a_bipartite_graph_starts_with_color_zero():
    graph = Graph(7, [(5, 1), (1, 3), (4, 2)])
    assert color(graph).tolist() == [0, 0, 0, 1, 1, 1, 0]


def test_color_is_proper_beyond_the_size_for_dsatur(monkeypatch):
    monkeypatch.setattr(coloring, "_MAX_NODES_DSATUR", 10)
    graph = random_regular(5, 30, seed=1)
    assert is_proper(graph, color(graph))
    assert color(graph).max() < 6


def test_colors_of_the_wrong_length_raise():
    with pytest.raises(ValueError, match=r"one colour per node, shape \(5,\), got \(4,\)"):
        sweep_plan(CYCLE5, colors=np.zeros(4))


def test_colors_that_join_an_edge_raise_naming_it():
    with pytest.raises(ValueError, match=r"got edge \(0, 4\) inside colour 7; pass colors="):
        sweep_plan(CYCLE5, colors=[7, 1, 2, 1, 7])
