"""An undirected simple graph as an immutable, hashable, static value.

``Graph`` carries structure only; parameters live in arrays aligned with ``Graph.edges``. Equal
content means equal hash, so a graph may be a static argument of ``jax.jit``, auxiliary data of a
pytree, or an argument of a NumPyro model, without retracing when it is built again.
"""

from collections.abc import Iterable
from functools import cached_property
from numbers import Integral
from typing import SupportsIndex

import jax
import networkx as nx
import numpy as np
import scipy.sparse as sp

__all__ = ["Graph"]


class Graph:
    """An undirected graph without loops or repeated edges.

    Args:
        num_nodes: Number of nodes, at least 1.
        edges: Pairs of nodes, shape ``[edges, 2]``. Their order is kept (edge parameters are
            aligned with it); each pair is stored with its smaller node first.

    Raises:
        ValueError: If a node is missing, an edge is a self-loop, or an edge is repeated.

    >>> graph = Graph(3, [(0, 1), (2, 1)])
    >>> graph.edges.tolist()
    [[0, 1], [1, 2]]
    """

    num_nodes: int
    edges: np.ndarray

    def __init__(self, num_nodes: SupportsIndex, edges: Iterable):
        if not isinstance(num_nodes, Integral) or num_nodes < 1:
            raise ValueError(
                f"Graph: expected num_nodes to be a positive integer, got {num_nodes}; "
                "pass the number of variables"
            )
        edges = _as_edges(edges)
        _check_edges(int(num_nodes), edges)
        edges = np.sort(edges, axis=1).astype(np.int32)
        edges.setflags(write=False)
        object.__setattr__(self, "num_nodes", int(num_nodes))
        object.__setattr__(self, "edges", edges)
        object.__setattr__(self, "_hash", hash((int(num_nodes), edges.tobytes())))

    @classmethod
    def from_networkx(cls, graph: nx.Graph) -> "Graph":
        """The same graph with nodes numbered in the order in which ``graph`` lists them."""
        number = {node: i for i, node in enumerate(graph.nodes)}
        return cls(len(number), [(number[u], number[v]) for u, v in graph.edges()])

    @classmethod
    def from_adjacency(cls, adjacency) -> "Graph":
        """The graph whose edges are the non-zero entries of a symmetric matrix.

        Args:
            adjacency: Square dense or scipy sparse matrix; only the pattern is read.

        Raises:
            ValueError: If the matrix is not square, not symmetric, or has a diagonal entry.
        """
        matrix = sp.coo_matrix(adjacency)
        if matrix.shape[0] != matrix.shape[1]:
            raise ValueError(
                f"Graph.from_adjacency: expected a square matrix, got shape {matrix.shape}; "
                "pass one row and one column per node"
            )
        pattern = matrix.tocsr().astype(bool)
        if (pattern != pattern.T).nnz:
            raise ValueError(
                "Graph.from_adjacency: expected a symmetric pattern, got an entry (i, j) without "
                "(j, i); pass adjacency + adjacency.T"
            )
        rows, columns = pattern.nonzero()
        upper = rows <= columns
        return cls(matrix.shape[0], np.stack([rows[upper], columns[upper]], axis=1))

    @property
    def num_edges(self) -> int:
        """Number of edges."""
        return len(self.edges)

    @cached_property
    def degrees(self) -> np.ndarray:
        """Number of neighbours of every node, shape ``[nodes]``."""
        degrees = np.bincount(self.edges.ravel(), minlength=self.num_nodes)
        degrees.setflags(write=False)
        return degrees

    @cached_property
    def is_forest(self) -> bool:
        """Whether the graph has no cycle."""
        components, _ = sp.csgraph.connected_components(self.to_scipy(), directed=False)
        return self.num_edges == self.num_nodes - components

    def to_networkx(self) -> nx.Graph:
        """The graph as a ``networkx.Graph`` on nodes 0..num_nodes-1."""
        graph = nx.empty_graph(self.num_nodes)
        graph.add_edges_from(self.edges.tolist())
        return graph

    def to_scipy(self) -> sp.csr_matrix:
        """The symmetric adjacency matrix with unit entries."""
        first, second = self.edges.T
        ones = np.ones(2 * self.num_edges, dtype=np.int8)
        ends = (np.concatenate([first, second]), np.concatenate([second, first]))
        return sp.csr_matrix((ones, ends), shape=(self.num_nodes, self.num_nodes))

    def __setattr__(self, name, value):
        raise AttributeError(f"Graph: expected no assignment, got {name}; build another Graph")

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other) -> bool:
        return self is other or (
            isinstance(other, Graph)
            and self._hash == other._hash
            and self.num_nodes == other.num_nodes
            and np.array_equal(self.edges, other.edges)
        )

    def __reduce__(self):
        return (Graph, (self.num_nodes, np.asarray(self.edges)))

    def __copy__(self) -> "Graph":
        return self

    def __deepcopy__(self, memo) -> "Graph":
        return self

    def __repr__(self) -> str:
        return f"Graph(num_nodes={self.num_nodes}, num_edges={self.num_edges})"


def _as_edges(edges) -> np.ndarray:
    """Edges as an integer array of shape [edges, 2]."""
    array = np.asarray(list(edges) if not isinstance(edges, np.ndarray) else edges)
    if array.size == 0:
        return np.zeros((0, 2), dtype=np.int64)
    if array.ndim != 2 or array.shape[1] != 2 or not np.issubdtype(array.dtype, np.integer):
        raise ValueError(
            f"Graph: expected edges as integer pairs of shape [edges, 2], got shape {array.shape} "
            f"and type {array.dtype}; pass a list of (node, node)"
        )
    return array.astype(np.int64)


def _check_edges(num_nodes: int, edges: np.ndarray) -> None:
    """Raise for a missing node, a self-loop or a repeated edge, naming the first one."""
    missing = np.flatnonzero((edges < 0).any(1) | (edges >= num_nodes).any(1))
    if missing.size:
        raise ValueError(
            f"Graph: expected nodes in 0..{num_nodes - 1}, got edge {_pair(edges, missing)}; "
            "raise num_nodes or number the nodes from 0"
        )
    loops = np.flatnonzero(edges[:, 0] == edges[:, 1])
    if loops.size:
        raise ValueError(
            f"Graph: expected two different ends, got self-loop {_pair(edges, loops)}; "
            "drop it (a field on the node does its work)"
        )
    codes = edges.min(axis=1) * num_nodes + edges.max(axis=1)
    order = np.argsort(codes, kind="stable")
    repeated = np.sort(order[1:][np.diff(codes[order]) == 0])
    if repeated.size:
        raise ValueError(
            f"Graph: expected every edge once, got {_pair(edges, repeated)} again; "
            "pass numpy.unique(numpy.sort(edges, axis=1), axis=0)"
        )


def _pair(edges: np.ndarray, rows: np.ndarray) -> tuple[int, int]:
    return tuple(edges[rows[0]].tolist())


jax.tree_util.register_static(Graph)
