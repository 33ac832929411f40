"""Padded neighbour tables, and the plan of a coloured sweep built from them.

A colour's nodes are sorted by degree and cut into a few buckets, each padded to its own largest
degree; on a graph with uneven degrees this halves the work of one table for all nodes.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache

import jax
import numpy as np

from jaxmrf.graphs.coloring import check_colors, color
from jaxmrf.graphs.graph import Graph
from jaxmrf.types import Leaf

__all__ = ["NeighborBlock", "SweepPlan", "neighbor_blocks", "sweep_plan"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class NeighborBlock:
    """Some nodes and, slot by slot, their neighbours.

    A slot beyond a node's degree points at node 0 and at the edge number ``num_edges``, one past
    the last, where callers append a parameter of zero.

    Attributes:
        nodes: Nodes of the block, shape ``[block]``.
        neighbors: Neighbour in each slot, shape ``[degree, block]``.
        edges: Edge to that neighbour, shape ``[degree, block]``.
        is_second: Whether the block's node is the edge's second end, shape ``[degree, block]``.
    """

    nodes: Leaf
    neighbors: Leaf
    edges: Leaf
    is_second: Leaf


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class SweepPlan:
    """The order in which one sweep updates a field: colour after colour, bucket after bucket.

    Nodes that stand in no block are clamped: a sweep reads them and never changes them.

    Attributes:
        colors: For each colour, its blocks. Blocks of one colour are updated together.
        num_nodes: Number of nodes of the graph.
        num_edges: Number of edges of the graph.
    """

    colors: tuple[tuple[NeighborBlock, ...], ...]
    num_nodes: int = field(metadata={"static": True})
    num_edges: int = field(metadata={"static": True})

    def __str__(self) -> str:
        blocks = [block for blocks in self.colors for block in blocks]
        slots = sum(np.size(block.edges) for block in blocks)
        padded = sum(int(np.sum(np.asarray(block.edges) == self.num_edges)) for block in blocks)
        num_free = sum(np.size(block.nodes) for block in blocks)
        lines = [
            f"SweepPlan: {num_free} of {self.num_nodes} nodes updated, {self.num_edges} edges, "
            f"{len(self.colors)} colours, {100 * padded / max(slots, 1):.0f} % of slots padding"
        ]
        for number, parts in enumerate(self.colors):
            sizes = ", ".join(f"{np.size(b.nodes)} x {np.shape(b.edges)[0]}" for b in parts)
            lines.append(f"  colour {number}: nodes x slots {sizes}")
        return "\n".join(lines)


def neighbor_blocks(
    graph: Graph, nodes: np.ndarray, *, max_blocks: int = 4
) -> tuple[NeighborBlock, ...]:
    """Neighbour tables of the given nodes, sorted by degree and cut where it saves most padding.

    Args:
        graph: The graph.
        nodes: Nodes to tabulate, each once.
        max_blocks: Largest number of tables; more tables pad less and compile longer.
    """
    nodes = np.asarray(nodes, dtype=np.int32)
    nodes = nodes[np.argsort(graph.degrees[nodes], kind="stable")]
    cuts = _degree_cuts(graph.degrees[nodes], max_blocks)
    incidence = _incidence(graph)
    return tuple(_block(graph, incidence, part) for part in np.split(nodes, cuts) if part.size)


def sweep_plan(
    graph: Graph, *, colors: np.ndarray | None = None, clamped: Iterable[int] = ()
) -> SweepPlan:
    """The plan of a coloured Gibbs sweep.

    Args:
        graph: The graph.
        colors: A proper colouring, shape ``[nodes]``; by default ``graphs.color(graph)``.
        clamped: Nodes that keep their state.

    Raises:
        ValueError: If the colouring is not proper or a clamped node does not exist.

    >>> from jaxmrf.graphs import grid
    >>> len(sweep_plan(grid((4, 4))).colors)
    2
    """
    clamped = tuple(sorted({int(node) for node in clamped}))
    if clamped and not 0 <= clamped[0] <= clamped[-1] < graph.num_nodes:
        raise ValueError(
            f"sweep_plan: expected clamped nodes in 0..{graph.num_nodes - 1}, got {clamped}; "
            "name nodes of the graph"
        )
    if colors is None:
        return _sweep_plan(graph, None, clamped)
    return _sweep_plan(graph, tuple(check_colors(graph, colors).tolist()), clamped)


@lru_cache(maxsize=64)
def _sweep_plan(graph: Graph, colors: tuple | None, clamped: tuple[int, ...]) -> SweepPlan:
    """The plan, kept because NumPyro rebuilds its distributions at every trace."""
    assignment = color(graph) if colors is None else np.array(colors)
    is_free = ~np.isin(np.arange(graph.num_nodes), clamped)
    members = (np.flatnonzero(is_free & (assignment == c)) for c in np.unique(assignment))
    blocks = tuple(neighbor_blocks(graph, nodes) for nodes in members if nodes.size)
    return SweepPlan(blocks, num_nodes=graph.num_nodes, num_edges=graph.num_edges)


def _incidence(graph: Graph) -> tuple[np.ndarray, np.ndarray]:
    """Ends of edges sorted by node: positions into the doubled edge list, and row starts."""
    owners = graph.edges.T.ravel()
    starts = np.concatenate([[0], np.cumsum(graph.degrees)])
    return np.argsort(owners, kind="stable"), starts


def _block(graph: Graph, incidence, nodes: np.ndarray) -> NeighborBlock:
    order, starts = incidence
    degree = max(int(graph.degrees[nodes].max()), 1)
    slot = np.arange(degree)[:, None]
    is_real = slot < graph.degrees[nodes]
    position = np.where(is_real, starts[nodes] + slot, 0)
    ends = order[position] if order.size else np.zeros_like(position)
    edge, is_second = ends % max(graph.num_edges, 1), ends >= graph.num_edges
    others = graph.edges[:, ::-1].T.ravel() if graph.num_edges else np.zeros(1, np.int32)
    return NeighborBlock(
        nodes=nodes,
        neighbors=np.where(is_real, others[ends], 0).astype(np.int32),
        edges=np.where(is_real, edge, graph.num_edges).astype(np.int32),
        is_second=is_real & is_second,
    )


def _degree_cuts(degrees: np.ndarray, max_blocks: int) -> np.ndarray:
    """Positions at which to cut sorted degrees into blocks with least padding (exact, by DP)."""
    values, first = np.unique(degrees, return_index=True)
    ends = np.append(first[1:], len(degrees))
    num_values = len(values)
    # cost[i][j]: slots of one block that holds the degree values i..j
    cost = (ends[None, :] - first[:, None]) * np.maximum(values, 1)[None, :]
    best = cost[0].astype(float)
    choices = []
    for _ in range(min(max_blocks, num_values) - 1):
        total = np.full((num_values, num_values), np.inf)
        for last in range(1, num_values):
            total[1 : last + 1, last] = best[:last] + cost[1 : last + 1, last]
        choices.append(total.argmin(axis=0))
        best = total.min(axis=0)
    cuts, last = [], num_values - 1
    for choice in reversed(choices):
        start = int(choice[last])
        cuts.append(int(first[start]))
        last = start - 1
    return np.array(sorted(cuts), dtype=int)
