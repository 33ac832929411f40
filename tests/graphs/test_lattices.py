import itertools

import networkx as nx
import numpy as np
import pytest

from jaxmrf.graphs import Graph, binary_tree, complete_bipartite, grid, random_regular, torus

SHAPES = [
    shape
    for dimensions in (1, 2, 3)
    for shape in itertools.product((1, 2, 3, 4), repeat=dimensions)
    if max(shape) < 4 or dimensions < 3
]


def edge_set(graph: Graph) -> set:
    return {tuple(edge) for edge in graph.edges.tolist()}


def lattice_edges(shape, periodic) -> set:
    """The lattice's edges from networkx, nodes in row-major order."""
    network = nx.grid_graph(shape[::-1], periodic=periodic)
    number = lambda node: int(np.ravel_multi_index(np.atleast_1d(node), shape))  # noqa: E731
    pairs = {tuple(sorted((number(u), number(v)))) for u, v in network.edges}
    return {(u, v) for u, v in pairs if u != v}


@pytest.mark.parametrize(("build", "periodic"), [(grid, False), (torus, True)])
def test_lattice_has_the_edges_of_networkx(build, periodic):
    for shape in SHAPES:
        graph = build(shape)
        assert graph.num_nodes == np.prod(shape)
        assert edge_set(graph) == lattice_edges(shape, periodic), shape


def test_torus_counts():
    assert torus((30, 30)).num_edges == 1800
    assert set(torus((3, 4, 5)).degrees) == {6}


@pytest.mark.parametrize("build", [grid, torus])
@pytest.mark.parametrize("shape", [(0, 3), (2, -1), ()])
def test_lattice_with_a_side_below_one_raises(build, shape):
    with pytest.raises(ValueError, match=r"every side of shape to be at least 1, got"):
        build(shape)


@pytest.mark.parametrize("depth", [0, 1, 4])
def test_binary_tree_is_the_balanced_tree(depth):
    tree = binary_tree(depth)
    assert tree.num_nodes == 2 ** (depth + 1) - 1
    assert edge_set(tree) == set(nx.balanced_tree(2, depth).edges)


def test_binary_tree_of_negative_depth_raises():
    with pytest.raises(ValueError, match=r"depth \+ 1 to be at least 1, got 0"):
        binary_tree(-1)


def test_random_regular_has_equal_degrees_and_follows_its_seed():
    graph = random_regular(3, 10, seed=0)
    assert set(graph.degrees) == {3}
    assert graph == random_regular(3, 10, seed=0)
    assert graph != random_regular(3, 10, seed=1)
    assert random_regular(0, 3, seed=0).num_edges == 0


@pytest.mark.parametrize(("degree", "num_nodes"), [(3, 5), (5, 5), (-1, 4)])
def test_random_regular_that_cannot_exist_raises(degree, num_nodes):
    with pytest.raises(ValueError, match="0 <= degree < num_nodes with an even"):
        random_regular(degree, num_nodes, seed=0)


def test_complete_bipartite_joins_every_pair():
    assert edge_set(complete_bipartite(2, 3)) == set(nx.complete_bipartite_graph(2, 3).edges)


@pytest.mark.parametrize(("sizes", "name"), [((0, 3), "num_first"), ((3, 0), "num_second")])
def test_complete_bipartite_with_an_empty_side_raises(sizes, name):
    with pytest.raises(ValueError, match=f"{name} to be at least 1, got 0"):
        complete_bipartite(*sizes)
