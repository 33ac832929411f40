r"""The plan of a frontier pass: one edge a step, and the nodes to remember between steps.

.. math:: F_k = \{i : i \text{ has an edge among } e_1..e_k \text{ and one among } e_{k+1}..e_E\}

The nodes are laid out in a line and the edges taken in the order of their later end; the largest
frontier is the pathwidth of the layout, and the cost of an exact pass grows exponentially in it.
Reference: Kinnersley, "The vertex separation number of a graph equals its path-width" (1992); the
order of an ``R x C`` grid is the transfer matrix of statistical physics, one site at a time.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import jax
import numpy as np
import scipy.sparse as sp

from jaxmrf.graphs.graph import Graph
from jaxmrf.types import Leaf

__all__ = ["FrontierPlan", "frontier_plan", "is_narrow"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class FrontierPlan:
    """The order in which a frontier pass takes the edges, and the slots of the nodes it remembers.

    A node holds a slot from its first edge to its last one, after which it is summed out and the
    slot is free again. Nodes without edges hold none.

    Attributes:
        edges: Edge taken at every step, shape ``[edges]``.
        nodes: Its smaller and its larger node, shape ``[edges, 2]``.
        slots: The slots of these two nodes, shape ``[edges, 2]``.
        is_last: Whether this is the last edge of the node, shape ``[edges, 2]``.
        degrees: Number of edges of every node, shape ``[nodes]``.
        width: Number of slots.
        num_nodes: Number of nodes of the graph.
        num_edges: Number of edges of the graph.
    """

    edges: Leaf
    nodes: Leaf
    slots: Leaf
    is_last: Leaf
    degrees: Leaf
    width: int = field(metadata={"static": True})
    num_nodes: int = field(metadata={"static": True})
    num_edges: int = field(metadata={"static": True})

    def __str__(self) -> str:
        size = 2**self.width
        return (
            f"FrontierPlan: {self.num_nodes} nodes, {self.num_edges} edges; width {self.width}, "
            f"tables of {size} entries for 2 states, {_memory(4 * size * self.num_edges)} of them"
        )


def frontier_plan(
    graph: Graph, *, order: Sequence[int] | np.ndarray | None = None, max_width: int = 20
) -> FrontierPlan:
    """The plan of a frontier pass; equal arguments give the same object.

    Args:
        graph: The graph.
        order: The line of nodes, a permutation of 0..num_nodes-1; by default the best of a few
            heuristics, which on a grid is the order of its shorter side.
        max_width: Largest number of nodes remembered at once.

    Raises:
        ValueError: If the order is not a permutation or needs more than ``max_width`` slots.

    >>> from jaxmrf.graphs import grid
    >>> print(frontier_plan(grid((4, 4))))
    FrontierPlan: 16 nodes, 24 edges; width 5, tables of 32 entries for 2 states, 3 kB of them
    """
    if order is not None:
        order = np.asarray(order)
        nodes = np.arange(graph.num_nodes)
        if order.shape != nodes.shape or (np.sort(order) != nodes).any():
            raise ValueError(
                "frontier_plan: expected order to be a permutation of "
                f"0..{graph.num_nodes - 1}, got {order.tolist()[:8]}; name every node once"
            )
        order = tuple(order.tolist())
    return _frontier_plan(graph, order, max_width)


def is_narrow(graph: Graph, max_width: int) -> bool:
    """Whether ``frontier_plan`` finds a plan of at most this width.

    Args:
        graph: The graph.
        max_width: Largest number of nodes remembered at once.
    """
    try:
        frontier_plan(graph, max_width=max_width)
    except ValueError:
        return False
    return True


@lru_cache(maxsize=64)
def _frontier_plan(graph: Graph, order: tuple | None, max_width: int) -> FrontierPlan:
    """The plan, kept because NumPyro rebuilds its distributions at every trace."""
    if order is None:
        best = _best_order(graph, max_width)
    else:
        best = np.array(order, dtype=np.int64)
    edges = _edge_order(graph, best)
    first, last = _spans(graph, edges)
    width = _width(first, last)
    if width > max_width:
        raise ValueError(
            f"frontier_plan: expected a frontier of at most {max_width} nodes, got {width}; pass "
            "a better order or a larger max_width, or sample the model instead"
        )
    nodes = graph.edges[edges]
    is_last = last[nodes] == np.arange(graph.num_edges)[:, None]
    return FrontierPlan(
        edges=edges.astype(np.int32),
        nodes=nodes,
        slots=_slots(nodes, is_last, graph.num_nodes, width),
        is_last=is_last,
        degrees=graph.degrees.astype(np.int32),
        width=width,
        num_nodes=graph.num_nodes,
        num_edges=graph.num_edges,
    )


def _edge_order(graph: Graph, order: np.ndarray) -> np.ndarray:
    """Edges by the position of their later end, then of their earlier one."""
    position = np.empty(graph.num_nodes, np.int64)
    position[order] = np.arange(graph.num_nodes)
    ends = position[graph.edges]
    return np.lexsort((ends.min(axis=1), ends.max(axis=1)))


def _spans(graph: Graph, edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """First and last step of every node; an empty span for nodes without edges."""
    steps = np.arange(graph.num_edges)[:, None]
    first = np.full(graph.num_nodes, graph.num_edges)
    last = np.full(graph.num_nodes, graph.num_edges - 1)
    nodes = graph.edges[edges]
    np.minimum.at(first, nodes, steps)
    last[graph.degrees > 0] = -1
    np.maximum.at(last, nodes, steps)
    return first, last


def _width(first: np.ndarray, last: np.ndarray) -> int:
    """Largest number of spans that overlap."""
    change = np.bincount(first, minlength=1).astype(np.int64)
    ends = np.bincount(last + 1, minlength=change.size)
    change = np.pad(change, (0, ends.size - change.size)) - ends
    return int(change.cumsum().max(initial=0))


def _slots(nodes: np.ndarray, is_last: np.ndarray, num_nodes: int, width: int) -> np.ndarray:
    """Slots handed out step by step, the lowest free one first."""
    free = list(range(width))
    slot = [-1] * num_nodes
    slots = np.zeros(nodes.shape, np.int32)
    for step, (pair, lasts) in enumerate(zip(nodes.tolist(), is_last.tolist(), strict=True)):
        for node in pair:
            if slot[node] < 0:
                slot[node] = heapq.heappop(free)
        slots[step] = [slot[node] for node in pair]
        for node, is_done in zip(pair, lasts, strict=True):
            if is_done:
                heapq.heappush(free, slot[node])
    return slots


def _best_order(graph: Graph, max_width: int) -> np.ndarray:
    """The best of: nodes as numbered, breadth first from the rim, and two greedy layouts."""
    natural = np.arange(graph.num_nodes)
    if graph.num_edges == 0:
        return natural
    width_of = lambda order: _width(*_spans(graph, _edge_order(graph, order)))  # noqa: E731
    breadth_first = sp.csgraph.reverse_cuthill_mckee(graph.to_scipy(), symmetric_mode=True)
    width, best = min(((width_of(order), order) for order in (natural, breadth_first)), key=_first)
    for is_newest_first in (False, True):
        if width > 2:
            order = _greedy_order(graph, min(width, max_width), is_newest_first)
            if order is not None and width_of(order) < width:
                width, best = width_of(order), order
    return best


def _first(pair: tuple) -> int:
    return pair[0]


def _greedy_order(graph: Graph, limit: int, is_newest_first: bool) -> np.ndarray | None:
    """Always the neighbour of the frontier that leaves it smallest; None beyond the limit.

    Ties go to the neighbour of the oldest node (good on lattices) or of the newest (on trees).
    """
    adjacency = graph.to_scipy()
    neighbors = np.split(adjacency.indices, adjacency.indptr[1:-1])
    neighbors = [part.tolist() for part in neighbors]
    num_left = graph.degrees.tolist()  # neighbours not in the line yet
    num_closed = [0] * graph.num_nodes  # nodes of the line that wait for this one alone
    age = [0] * graph.num_nodes
    in_line = [False] * graph.num_nodes
    heap, order, size = [], [], 0

    def rank(node):
        return (num_left[node] > 0) - num_closed[node], age[node], node

    def close(node):
        last = next(other for other in neighbors[node] if not in_line[other])
        num_closed[last] += 1
        heapq.heappush(heap, rank(last))

    for start in np.argsort(graph.degrees, kind="stable").tolist():
        if not in_line[start]:
            heap = [rank(start)]
        while heap:
            entry = heapq.heappop(heap)
            node = entry[-1]
            if in_line[node] or entry != rank(node):
                continue
            in_line[node] = True
            order.append(node)
            size += num_left[node] > 0
            for other in neighbors[node]:
                num_left[other] -= 1
                if not in_line[other]:
                    if is_newest_first:
                        age[other] = -len(order)
                    elif age[other] == 0:
                        age[other] = len(order)
                    heapq.heappush(heap, rank(other))
                elif num_left[other] == 0:
                    size -= 1
                elif num_left[other] == 1:
                    close(other)
            if num_left[node] == 1:
                close(node)
            if size > limit:
                return None
    return np.array(order)


def _memory(size: int) -> str:
    """A number of bytes for a person."""
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"
