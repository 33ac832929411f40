"""Padded neighbour tables: for a block of nodes and slot by slot, a neighbour and its edge.

Nodes are classed by degree and each class is padded to its own largest degree; on a graph with
uneven degrees this halves the work of one table for all nodes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import numpy as np

from jaxmrf.graphs.graph import Graph
from jaxmrf.types import Leaf

__all__ = ["NeighborBlock", "degree_classes", "neighbor_block", "neighbor_blocks"]

# In units of one neighbour slot of one node, measured on a CPU with 100 chains: the work on a
# node apart from its neighbours, and one more class (mostly its share of the compile time).
NODE_COST, CLASS_COST = 20, 1000


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class NeighborBlock:
    """Some nodes and, slot by slot, their neighbours.

    A slot beyond a node's degree points at any row and at the edge number ``num_edges``, one past
    the last, where callers append a parameter of zero.

    Attributes:
        nodes: Nodes of the block, shape ``[block]``.
        neighbors: Row of the states that holds the neighbour, shape ``[degree, block]``: its
            number, unless a plan keeps the states in another order.
        edges: Edge to that neighbour, shape ``[degree, block]``.
        is_second: Whether the block's node is the edge's second end, shape ``[degree, block]``.
    """

    nodes: Leaf
    neighbors: Leaf
    edges: Leaf
    is_second: Leaf


def neighbor_blocks(
    graph: Graph, nodes: Sequence[int] | np.ndarray, *, max_blocks: int = 4
) -> tuple[NeighborBlock, ...]:
    """Neighbour tables of the given nodes, one for each class of degrees.

    Args:
        graph: The graph.
        nodes: Nodes to tabulate, each once.
        max_blocks: Largest number of tables; more tables pad less and compile longer.
    """
    classes = degree_classes(graph, nodes, max_classes=max_blocks)
    return tuple(neighbor_block(graph, members) for members in classes)


def neighbor_block(graph: Graph, nodes: np.ndarray) -> NeighborBlock:
    """One table, padded to the largest degree.

    Args:
        graph: The graph.
        nodes: Nodes of the block; -1 stands for padding, a node 0 without neighbours.
    """
    is_node = nodes >= 0
    nodes = np.where(is_node, nodes, 0)
    degrees = np.where(is_node, graph.degrees[nodes], 0)
    slot = np.arange(degrees.max())[:, None]
    is_real = slot < degrees
    # ends of edges sorted by node; end e is the first of edge e, end num_edges + e the second
    order = np.argsort(graph.edges.T.ravel(), kind="stable")
    starts = np.cumsum(graph.degrees) - graph.degrees
    ends = order[np.where(is_real, starts[nodes] + slot, 0)] if slot.size else slot + nodes
    others = graph.edges[:, ::-1].T.ravel()
    return NeighborBlock(
        nodes=nodes.astype(np.int32),
        neighbors=np.where(is_real, others[ends], 0).astype(np.int32),
        edges=np.where(is_real, ends % max(graph.num_edges, 1), graph.num_edges).astype(np.int32),
        is_second=is_real & (ends >= graph.num_edges),
    )


def degree_classes(
    graph: Graph, nodes: Sequence[int] | np.ndarray, *, max_classes: int
) -> list[np.ndarray]:
    """The nodes sorted by degree and cut where tables of the classes cost least (exact, by DP)."""
    nodes = np.asarray(nodes, dtype=np.int64)
    if not nodes.size:
        return []
    nodes = nodes[np.argsort(graph.degrees[nodes], kind="stable")]
    values, first = np.unique(graph.degrees[nodes], return_index=True)
    ends = np.append(first[1:], nodes.size)
    # cost[i, j]: one class that holds the degrees values[i], ..., values[j]
    cost = (ends - first[:, None]) * (values + NODE_COST) + float(CLASS_COST)
    cost[np.tril_indices(values.size, -1)] = np.inf
    best, cuts = [cost[0]], []
    for _ in range(min(max_classes, values.size) - 1):
        # total[i, j]: one class fewer up to degree i - 1, then one class i..j
        total = np.vstack([np.full(values.size, np.inf), best[-1][:-1, None] + cost[1:]])
        cuts.append(total.argmin(axis=0))
        best.append(total.min(axis=0))
    last, positions = values.size - 1, []
    for cut in reversed(cuts[: int(np.argmin([row[-1] for row in best]))]):
        positions.append(first[cut[last]])
        last = cut[last] - 1
    return np.split(nodes, positions[::-1])
