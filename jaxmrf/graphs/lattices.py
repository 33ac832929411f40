"""Regular graphs: grids and tori of any dimension, trees, random regular, complete bipartite."""

from collections.abc import Sequence

import networkx as nx
import numpy as np

from jaxmrf.graphs.graph import Graph

__all__ = ["binary_tree", "complete_bipartite", "grid", "random_regular", "torus"]


def grid(shape: Sequence[int]) -> Graph:
    """The lattice with free boundaries; nodes are numbered in row-major order.

    Args:
        shape: Side lengths, for example ``(rows, columns)``; any number of dimensions.

    >>> grid((2, 3)).num_edges
    7
    """
    return _lattice("grid", shape, periodic=False)


def torus(shape: Sequence[int]) -> Graph:
    """The lattice with periodic boundaries.

    A side of length 2 has one edge between its two layers, not two; a side of length 1 has none.

    Args:
        shape: Side lengths; any number of dimensions.
    """
    return _lattice("torus", shape, periodic=True)


def binary_tree(depth: int) -> Graph:
    """The perfect binary tree with ``2 ** (depth + 1) - 1`` nodes; node i has parent (i - 1) // 2.

    Args:
        depth: Number of edges between the root and a leaf, at least 0.
    """
    _check_positive("binary_tree", "depth + 1", depth + 1)
    child = np.arange(1, 2 ** (depth + 1) - 1)
    return Graph(2 ** (depth + 1) - 1, np.stack([(child - 1) // 2, child], axis=1))


def random_regular(degree: int, num_nodes: int, seed: int) -> Graph:
    """A graph drawn uniformly (networkx) from those in which every node has ``degree`` neighbours.

    Raises:
        ValueError: If ``degree * num_nodes`` is odd or ``degree >= num_nodes``.
    """
    if degree * num_nodes % 2 or not 0 <= degree < num_nodes:
        raise ValueError(
            "random_regular: expected 0 <= degree < num_nodes with an even degree * num_nodes, got "
            f"degree {degree} and num_nodes {num_nodes}; change one of them by 1"
        )
    edges = sorted(tuple(sorted(e)) for e in nx.random_regular_graph(degree, num_nodes, seed).edges)
    return Graph(num_nodes, edges)


def complete_bipartite(num_first: int, num_second: int) -> Graph:
    """The graph that joins each of the first nodes to each of the second nodes."""
    _check_positive("complete_bipartite", "num_first", num_first)
    _check_positive("complete_bipartite", "num_second", num_second)
    first, second = np.indices((num_first, num_second)).reshape(2, -1)
    return Graph(num_first + num_second, np.stack([first, num_first + second], axis=1))


def _lattice(name: str, shape: Sequence[int], *, periodic: bool) -> Graph:
    shape = tuple(int(side) for side in shape)
    for side in shape or (0,):
        _check_positive(name, "every side of shape", side)
    nodes = np.arange(np.prod(shape)).reshape(shape)
    pairs = []
    for axis, side in enumerate(shape):
        first = np.take(nodes, np.arange(side - 1), axis)
        pairs.append(np.stack([first.ravel(), np.take(nodes, np.arange(1, side), axis).ravel()], 1))
        if periodic and side > 2:
            ends = np.take(nodes, 0, axis), np.take(nodes, side - 1, axis)
            pairs.append(np.stack([ends[0].ravel(), ends[1].ravel()], axis=1))
    return Graph(nodes.size, np.concatenate(pairs))


def _check_positive(name: str, what: str, value: int) -> None:
    if value < 1:
        raise ValueError(f"{name}: expected {what} to be at least 1, got {value}; raise it")
