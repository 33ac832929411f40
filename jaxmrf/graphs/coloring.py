"""Node colourings: nodes of one colour share no edge, so a Gibbs sweep updates them at once."""

from collections.abc import Sequence

import networkx as nx
import numpy as np
import scipy.sparse as sp

from jaxmrf.graphs.graph import Graph

__all__ = ["check_colors", "color"]

# networkx's DSATUR looks at every node for each node it colours
_MAX_NODES_DSATUR = 2000


def color(graph: Graph) -> np.ndarray:
    """A proper colouring with few colours, shape ``[nodes]``, colours 0, 1, ...

    A bipartite graph (a grid, a tree, an even torus) gets its two colours, the checkerboard.
    Others get DSATUR (Brelaz 1979) from networkx, or, past 2,000 nodes, smallest-last order.

    >>> from jaxmrf.graphs import grid
    >>> color(grid((2, 2))).tolist()
    [0, 1, 1, 0]
    """
    sides = _two_colors(graph)
    if sides is not None:
        return sides
    strategy = "DSATUR" if graph.num_nodes <= _MAX_NODES_DSATUR else "smallest_last"
    assignment = nx.greedy_color(graph.to_networkx(), strategy=strategy)
    return np.array([assignment[node] for node in range(graph.num_nodes)])


def _two_colors(graph: Graph) -> np.ndarray | None:
    """Sides of a bipartite graph, 0 for the first node of each component; None if not bipartite.

    In the double cover every edge u-v becomes u-v' and u'-v. A node and its copy are then in one
    component exactly if an odd cycle passes through the node's component.
    """
    adjacency = graph.to_scipy()
    cover = sp.block_array([[None, adjacency], [adjacency, None]])
    _, labels = sp.csgraph.connected_components(cover, directed=False)
    own, copy = np.split(labels, 2)
    if (own == copy).any():
        return None
    _, first, member = np.unique(np.minimum(own, copy), return_index=True, return_inverse=True)
    return (own != own[first][member]).astype(int)


def check_colors(graph: Graph, colors: Sequence[int] | np.ndarray) -> np.ndarray:
    """The colours as an integer array, checked against the graph.

    Raises:
        ValueError: If the length is wrong or an edge joins two nodes of one colour.
    """
    colors = np.asarray(colors)
    if colors.shape != (graph.num_nodes,):
        raise ValueError(
            f"check_colors: expected one colour per node, shape ({graph.num_nodes},), got "
            f"{colors.shape}; pass colors=graphs.color(graph)"
        )
    same = np.flatnonzero(colors[graph.edges[:, 0]] == colors[graph.edges[:, 1]])
    if same.size:
        edge = tuple(graph.edges[same[0]].tolist())
        raise ValueError(
            f"check_colors: expected every edge to join two colours, got edge {edge} inside colour "
            f"{colors[edge[0]]}; pass colors=graphs.color(graph)"
        )
    return colors
