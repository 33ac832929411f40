"""The plan of a coloured sweep: tiles of nodes that share no edge.

All tiles of one degree class have one shape "degree block", so that one compiled loop runs through
them whatever the number of colours; padding fills a colour's last tile.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

import jax
import numpy as np

from jaxmrf.graphs.coloring import check_colors, color
from jaxmrf.graphs.graph import Graph
from jaxmrf.graphs.neighbors import NODE_COST, NeighborBlock, degree_classes, neighbor_block
from jaxmrf.types import Leaf

__all__ = ["SweepPlan", "sweep_plan"]

# entering a tile, in the units of NODE_COST: with chains last in memory, and with nodes last
TILE_COST, ALIGNED_TILE_COST = 100, 1000
MAX_CLASSES = 4


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class SweepPlan:
    """The order in which one sweep updates a field, tile after tile.

    While sweeps run the states are held in the order of the tiles, so that a tile is read once
    and written to consecutive rows. Padding rows are written and never read. Clamped nodes come
    last: they are read and never written.

    Attributes:
        tiles: For each degree class a stack of blocks: a ``NeighborBlock`` with a leading axis
            of tiles, whose neighbours are rows.
        rows: Row of every node, shape ``[nodes]``.
        nodes: Node of every row, shape ``[num_rows]``; 0 in padding rows.
        num_nodes: Number of nodes of the graph.
        num_edges: Number of edges of the graph.
        num_clamped: Number of clamped nodes.
    """

    tiles: tuple[NeighborBlock, ...]
    rows: Leaf
    nodes: Leaf
    num_nodes: int = field(metadata={"static": True})
    num_edges: int = field(metadata={"static": True})
    num_clamped: int = field(metadata={"static": True})

    @property
    def num_rows(self) -> int:
        """Rows of the states while sweeps run: tiles with their padding, then clamped nodes."""
        return np.shape(self.nodes)[0]

    def __str__(self) -> str:
        num_slots = sum(np.size(stack.edges) for stack in self.tiles)
        num_used = sum(int((stack.edges < self.num_edges).sum()) for stack in self.tiles)
        lines = [
            f"SweepPlan: {self.num_nodes - self.num_clamped} of {self.num_nodes} nodes updated, "
            f"{self.num_edges} edges; padding {_percent(self.num_rows, self.num_nodes)} of rows, "
            f"{_percent(num_slots, num_used)} of slots"
        ]
        for stack in self.tiles:
            num_tiles, num_slots, num_block = np.shape(stack.edges)
            lines.append(f"  {num_tiles} tiles of {num_block} nodes x {num_slots} neighbours")
        return "\n".join(lines)


def sweep_plan(
    graph: Graph,
    *,
    colors: Sequence[int] | np.ndarray | None = None,
    clamped: Iterable[int] = (),
    multiple: int = 1,
) -> SweepPlan:
    """The plan of a coloured Gibbs sweep; equal arguments give the same object.

    Args:
        graph: The graph.
        colors: A proper colouring, shape ``[nodes]``; no tile mixes its colours. By default each
            degree class is coloured by ``graphs.color``, which takes fewer colours.
        clamped: Nodes that keep their state.
        multiple: Number that divides the size of every tile, for kernels that hold nodes in the
            lanes of a vector; their tiles are larger too, as each costs them more to enter.

    Raises:
        ValueError: If the colouring is not proper or a clamped node does not exist.

    >>> from jaxmrf.graphs import grid
    >>> print(sweep_plan(grid((1, 6))))
    SweepPlan: 6 of 6 nodes updated, 5 edges; padding 0 % of rows, 17 % of slots
      2 tiles of 3 nodes x 2 neighbours
    """
    clamped = tuple(sorted({int(node) for node in clamped}))
    if clamped and not 0 <= clamped[0] <= clamped[-1] < graph.num_nodes:
        raise ValueError(
            f"sweep_plan: expected clamped nodes in 0..{graph.num_nodes - 1}, got {clamped}; "
            "name nodes of the graph"
        )
    if colors is not None:
        colors = tuple(check_colors(graph, colors).tolist())
    return _sweep_plan(graph, colors, clamped, multiple)


@lru_cache(maxsize=64)
def _sweep_plan(
    graph: Graph, colors: tuple | None, clamped: tuple[int, ...], multiple: int
) -> SweepPlan:
    """The plan, kept because NumPyro rebuilds its distributions at every trace."""
    rows = np.zeros(graph.num_nodes, np.int32)
    stacks, num_rows = [], 0
    is_free = np.ones(graph.num_nodes, bool)
    is_free[list(clamped)] = False
    for members in degree_classes(graph, np.flatnonzero(is_free), max_classes=MAX_CLASSES):
        assignment = color(_induced(graph, members)) if colors is None else np.take(colors, members)
        tiles = _tiles(members, assignment, int(graph.degrees[members].max()), multiple)
        rows[tiles[tiles >= 0]] = num_rows + np.flatnonzero(tiles >= 0)
        num_rows += tiles.size
        stacks.append(_stack(neighbor_block(graph, tiles.ravel()), tiles.shape))
    rows[list(clamped)] = num_rows + np.arange(len(clamped))
    nodes = np.zeros(num_rows + len(clamped), np.int32)
    nodes[rows] = np.arange(graph.num_nodes)
    return SweepPlan(
        tiles=tuple(replace(stack, neighbors=rows[stack.neighbors]) for stack in stacks),
        rows=rows,
        nodes=nodes,
        num_nodes=graph.num_nodes,
        num_edges=graph.num_edges,
        num_clamped=len(clamped),
    )


def _induced(graph: Graph, members: np.ndarray) -> Graph:
    """The graph between the members, numbered in their order."""
    number = np.full(graph.num_nodes, -1)
    number[members] = np.arange(members.size)
    edges = number[graph.edges]
    return Graph(members.size, edges[(edges >= 0).all(axis=1)])


def _tiles(members: np.ndarray, assignment: np.ndarray, degree: int, multiple: int) -> np.ndarray:
    """Members of one colour a row, shape [tiles, block], padded by -1; the cheapest block size."""
    colors = [members[assignment == number] for number in np.unique(assignment)]
    sizes = np.array([part.size for part in colors])
    block = np.arange(multiple, sizes.max() + multiple, multiple)
    num_tiles = sum(-(-size // block) for size in sizes)
    entry = TILE_COST if multiple == 1 else ALIGNED_TILE_COST
    cost = num_tiles * (block * (degree + NODE_COST) + entry)
    block = int(block[cost.argmin()])
    padded = [np.pad(part, (0, -part.size % block), constant_values=-1) for part in colors]
    return np.concatenate(padded).reshape(-1, block)


def _stack(block: NeighborBlock, shape: tuple[int, int]) -> NeighborBlock:
    """A table of tiles one after another, given a leading axis of tiles."""

    def split(table):
        return np.ascontiguousarray(table.reshape(len(table), *shape).swapaxes(0, 1))

    tables = split(block.neighbors), split(block.edges), split(block.is_second)
    return NeighborBlock(block.nodes.reshape(shape), *tables)


def _percent(total: int, used: int) -> str:
    return f"{100 * (total - used) / max(total, 1):.0f} %"
