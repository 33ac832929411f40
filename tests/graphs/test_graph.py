import copy
import pickle

import jax
import networkx as nx
import numpy as np
import pytest
import scipy.sparse as sp

from jaxmrf.graphs import Graph

EDGES = [(0, 1), (3, 1), (1, 2)]


@pytest.mark.parametrize(
    "edges",
    [EDGES, iter(EDGES), tuple(EDGES), np.array(EDGES), np.array(EDGES, np.uint8)],
    ids=["list", "iterator", "tuple", "int64", "uint8"],
)
def test_edges_of_any_kind_keep_their_order_and_put_the_smaller_node_first(edges):
    graph = Graph(4, edges)
    assert graph.edges.tolist() == [[0, 1], [1, 3], [1, 2]]
    assert graph.edges.dtype == np.int32
    assert (graph.num_nodes, graph.num_edges) == (4, 3)


@pytest.mark.parametrize("edges", [[], np.zeros((0, 2), int)])
def test_graph_without_edges_has_isolated_nodes(edges):
    graph = Graph(2, edges)
    assert graph.edges.shape == (0, 2)
    assert graph.degrees.tolist() == [0, 0]
    assert graph.is_forest


@pytest.mark.parametrize("num_nodes", [0, -1])
def test_number_of_nodes_that_is_no_positive_integer_raises(num_nodes):
    with pytest.raises(ValueError, match="num_nodes to be a positive integer, got"):
        Graph(num_nodes, [])


@pytest.mark.parametrize("edge", [(0, 3), (-1, 0)])
def test_edge_to_a_missing_node_raises(edge):
    with pytest.raises(ValueError, match=r"expected nodes in 0\.\.2, got edge \(.*raise num_nodes"):
        Graph(3, [(0, 1), edge])


def test_self_loop_raises():
    with pytest.raises(ValueError, match=r"two different ends, got self-loop \(2, 2\)"):
        Graph(3, [(0, 1), (2, 2)])


def test_repeated_edge_raises_naming_the_repetition():
    with pytest.raises(ValueError, match=r"every edge once, got \(1, 0\) again"):
        Graph(3, [(0, 1), (1, 2), (1, 0)])


@pytest.mark.parametrize("edges", [[(0, 1, 2)], [(0.0, 1.0)], [0, 1], np.zeros((1, 2, 2), int)])
def test_edges_that_are_no_integer_pairs_raise(edges):
    with pytest.raises(ValueError, match=r"integer pairs of shape \[edges, 2\], got shape"):
        Graph(3, edges)


def test_from_networkx_numbers_nodes_in_their_order():
    network = nx.Graph([("c", "a"), ("a", "b")])
    assert Graph.from_networkx(network) == Graph(3, [(0, 1), (1, 2)])


def test_from_networkx_multigraph_raises_for_the_parallel_edge():
    with pytest.raises(ValueError, match="every edge once"):
        Graph.from_networkx(nx.MultiGraph([(0, 1), (0, 1)]))


def test_conversions_to_networkx_and_scipy_keep_the_graph():
    graph = Graph(5, EDGES)
    back = Graph.from_networkx(graph.to_networkx())
    assert sorted(back.edges.tolist()) == sorted(graph.edges.tolist())
    assert back.num_nodes == 5
    matrix = graph.to_scipy()
    assert (matrix != matrix.T).nnz == 0
    assert Graph.from_adjacency(matrix).num_edges == 3
    np.testing.assert_array_equal(matrix.toarray(), nx.to_numpy_array(graph.to_networkx()))


@pytest.mark.parametrize("build", [np.array, sp.csr_matrix, sp.coo_array], ids=str)
def test_from_adjacency_reads_the_pattern_only(build):
    weights = [[0, -0.5, 0], [2, 0, 0.1], [0, 7, 0]]
    assert Graph.from_adjacency(build(weights)) == Graph(3, [(0, 1), (1, 2)])


def test_from_adjacency_ignores_stored_zeros():
    matrix = sp.coo_array(([1, -1, 1, 1], ([0, 0, 0, 2], [1, 1, 2, 0])), shape=(3, 3))
    assert Graph.from_adjacency(matrix) == Graph(3, [(0, 2)])


def test_from_adjacency_that_is_not_square_raises():
    with pytest.raises(ValueError, match=r"a square matrix, got shape \(2, 3\)"):
        Graph.from_adjacency(np.ones((2, 3)))


def test_from_adjacency_that_is_not_symmetric_raises():
    with pytest.raises(ValueError, match="a symmetric pattern"):
        Graph.from_adjacency([[0, 1], [0, 0]])


def test_from_adjacency_with_a_diagonal_entry_raises():
    with pytest.raises(ValueError, match=r"self-loop \(1, 1\)"):
        Graph.from_adjacency([[0, 1], [1, 1]])


def test_degrees_and_is_forest_agree_with_networkx():
    for edges in (EDGES, [*EDGES, (2, 3)], [(0, 1), (2, 3)], [(0, 1), (1, 2), (2, 0)]):
        graph = Graph(6, edges)
        network = graph.to_networkx()
        assert graph.degrees.tolist() == [network.degree[node] for node in range(6)]
        assert graph.is_forest == nx.is_forest(network)


def test_graph_cannot_be_changed():
    graph = Graph(4, EDGES)
    with pytest.raises(AttributeError, match="expected no assignment, got num_nodes"):
        graph.num_nodes = 5
    with pytest.raises(ValueError, match="read-only"):
        graph.edges[0, 0] = 2
    with pytest.raises(ValueError, match="read-only"):
        graph.degrees[0] = 2


def test_graph_keeps_no_view_of_the_callers_array():
    edges = np.array(EDGES, np.int32)
    graph = Graph(4, edges)
    edges[0] = (2, 3)
    assert graph == Graph(4, EDGES)


def test_equal_content_is_equal_and_different_content_is_not():
    graph = Graph(4, EDGES)
    same = Graph(4, [(1, 0), (1, 3), (2, 1)])
    assert graph == same and hash(graph) == hash(same)
    for other in (Graph(5, EDGES), Graph(4, EDGES[:2]), Graph(4, EDGES[::-1]), "graph"):
        assert graph != other


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda g: pickle.loads(pickle.dumps(g))]
)
def test_copies_are_equal_and_stay_unchangeable(copied):
    graph = Graph(4, EDGES)
    other = copied(graph)
    assert other == graph and hash(other) == hash(graph)
    assert not other.edges.flags.writeable


def test_graph_is_a_pytree_without_leaves():
    graph = Graph(4, EDGES)
    assert jax.tree.leaves(graph) == []
    assert jax.tree.structure(graph) == jax.tree.structure(Graph(4, EDGES))


def test_equal_graphs_share_one_trace_and_another_graph_gets_its_own():
    traces = []

    @jax.jit
    def count(graph, x):
        traces.append(graph)
        return x + graph.num_edges

    assert count(Graph(4, EDGES), 1.0) == count(Graph(4, EDGES), 1.0) == 4.0
    assert len(traces) == 1
    assert count(Graph(4, EDGES[:2]), 1.0) == 3.0
    assert len(traces) == 2


def test_representation_names_the_sizes():
    assert repr(Graph(4, EDGES)) == "Graph(num_nodes=4, num_edges=3)"
