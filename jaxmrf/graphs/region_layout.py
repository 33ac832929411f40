"""Where the tables of regions, and the messages between them, lie in flat arrays.

Every step of an algorithm on a region graph is a pooling: each entry of the result is the sum of
some entries of a flat source. Results with about equally many sources form one block, so that an
algorithm is a handful of gathers whatever the number of regions.
"""

import math
from collections.abc import Iterable, Sequence
from functools import cached_property, lru_cache
from itertools import groupby
from typing import NamedTuple

import numpy as np

from jaxmrf.graphs.regions import RegionGraph

__all__ = ["Pooling", "RegionLayout", "region_layout"]


class Pooling(NamedTuple):
    """For every entry of a result, the entries of a flat source that it pools.

    Attributes:
        blocks: Places in the source, each block ``[results, width]``; the length of the source
            stands for no entry.
        order: Place of every result in the concatenated blocks; None where that is its own.
    """

    blocks: tuple[np.ndarray, ...]
    order: np.ndarray | None


class RegionLayout:
    """Flat places of region tables and messages of one region graph.

    Attributes:
        starts: First entry of the table of every region, ``[regions]``; the outermost regions come
            first.
        region_of: Region of every entry, ``[entries]``.
        num_outer: Number of entries of outermost regions.
        runs: (number of tables, entries of each) of consecutive tables of equal size.
        num_outer_runs: How many of these are of outermost regions.
        message_of: Message of every message entry, ``[message_entries]``.
        potentials: Region entries from factor entries, then node entries.
        to_child: Message entries from the entries of the parent's table.
        child_entry: Region entry of the child for every message entry.
        into_outer: Entries of outermost regions from the message entries multiplied into them.
        into_inner: Entries of the other regions, counted from ``num_outer``, likewise.
        factors: Factor entries from region entries.
        nodes: Node entries from region entries.
    """

    def __init__(self, graph: RegionGraph, edges: Sequence[tuple[int, int]], incoming):
        self.graph = graph
        sizes = [math.prod(shape) for shape in graph.shapes]
        # entries with equally many messages next to each other, so that their sums need no sorting
        ranks = [
            (bool(above), _bucket(len(messages)), size)
            for above, messages, size in zip(graph.ancestors, incoming, sizes, strict=True)
        ]
        self.starts = np.zeros(graph.num_regions, np.int64)
        order = sorted(range(graph.num_regions), key=lambda region: ranks[region])
        num_outermost = sum(not above for above in graph.ancestors)
        self.num_outer = sum(sizes[region] for region in order[:num_outermost])
        outer, inner = _runs(sizes, order[:num_outermost]), _runs(sizes, order[num_outermost:])
        self.runs, self.num_outer_runs = (*outer, *inner), len(outer)
        self.starts[order] = np.cumsum([0, *(sizes[region] for region in order)])[:-1]
        self.region_of = np.repeat(order, [sizes[region] for region in order])
        fibres = [self._fibres(parent, graph.regions[child]) for parent, child in edges]
        by_width = sorted(range(len(edges)), key=lambda edge: _bucket(fibres[edge].shape[1]))
        lengths = [sizes[edges[edge][1]] for edge in by_width]
        message_starts = np.zeros(len(edges), np.int64)
        message_starts[by_width] = np.cumsum([0, *lengths])[:-1]
        self.message_of = np.repeat(np.array(by_width, np.int64), lengths)
        self.to_child = _pool([fibres[edge] for edge in by_width], graph.num_entries)
        children = [edges[edge][1] for edge in by_width]
        self.child_entry = _concatenate(
            [self.starts[child] + np.arange(sizes[child]) for child in children]
        ).astype(np.int32)
        columns = []
        for region in order:
            parts = [
                message_starts[message] + self._project(region, graph.regions[edges[message][1]])
                for message in incoming[region]
            ]
            columns.append(_stack(parts, sizes[region]))
        self.into_outer = _pool(columns[:num_outermost], len(self.message_of))
        self.into_inner = _pool(columns[num_outermost:], len(self.message_of))

    @cached_property
    def potentials(self) -> Pooling:
        """Region entries from factor entries, then node entries."""
        structure, columns = self.graph.hypergraph, []
        for region in np.argsort(self.starts, kind="stable").tolist():
            nodes = self.graph.regions[region]
            parts = [
                structure.table_starts[factor] + self._project(region, structure.scopes[factor])
                for factor in self.graph.factors[region]
            ]
            parts += [
                structure.num_entries + structure.node_starts[node] + self._project(region, (node,))
                for node in nodes
            ]
            columns.append(_stack(parts, math.prod(self.graph.shapes[region])))
        return _pool(columns, structure.num_entries + structure.num_node_entries)

    @cached_property
    def factors(self) -> Pooling:
        """Factor entries from region entries; factors without variables have no source."""
        structure, smallest = self.graph.hypergraph, self._smallest
        homes = [-1] * structure.num_factors
        for region in smallest:
            for factor in self.graph.factors[region]:
                if homes[factor] < 0:
                    homes[factor] = region
        order = [factor for stack in structure.stacks for factor in stack.factors]
        return _pool(
            [
                self._fibres(homes[factor], structure.scopes[factor])
                if structure.scopes[factor]
                else np.zeros((1, 0), np.int64)
                for factor in order
            ],
            self.graph.num_entries,
        )

    @cached_property
    def nodes(self) -> Pooling:
        """Node entries from region entries."""
        homes: dict[int, int] = {}
        for region in self._smallest:
            for node in self.graph.regions[region]:
                homes.setdefault(node, region)
        number = self.graph.hypergraph.num_nodes
        return _pool(
            [self._fibres(homes[node], (node,)) for node in range(number)], self.graph.num_entries
        )

    @property
    def _smallest(self) -> list[int]:
        sizes = [math.prod(shape) for shape in self.graph.shapes]
        return sorted(range(self.graph.num_regions), key=lambda region: sizes[region])

    def _project(self, region: int, nodes: Sequence[int]) -> np.ndarray:
        """For every entry of a region, the entry of a table on some of its variables."""
        place = self.graph.regions[region].index
        return _project(self.graph.shapes[region], tuple(map(place, nodes)))

    def _fibres(self, region: int, nodes: Sequence[int]) -> np.ndarray:
        """Entries of a region that share each entry of a table on some of its variables."""
        place = self.graph.regions[region].index
        return self.starts[region] + _fibres(self.graph.shapes[region], tuple(map(place, nodes)))


@lru_cache(maxsize=16)
def region_layout(graph: RegionGraph, is_two_level: bool = False) -> RegionLayout:
    """Places for messages from parents to children, or from outermost regions to all inside them.

    Args:
        graph: The region graph.
        is_two_level: Whether every outermost region sends to every region inside it, and receives
            only what it sent; else the messages of Yedidia, Freeman & Weiss, in which a region
            receives what enters it, or a region inside it, from outside.
    """
    if is_two_level:
        edges = [
            (outer, inner)
            for outer, above in enumerate(graph.ancestors)
            if not above
            for inner in sorted(graph.descendants[outer])
        ]
        incoming: list[list[int]] = [[] for _ in graph.regions]
        for number, (outer, inner) in enumerate(edges):
            incoming[outer].append(number)
            incoming[inner].append(number)
        return RegionLayout(graph, edges, incoming)
    into: list[list[int]] = [[] for _ in graph.regions]
    for number, (_, child) in enumerate(graph.edges):
        into[child].append(number)
    incoming = []
    for region in range(graph.num_regions):
        inside = graph.descendants[region] | {region}
        incoming.append(
            [
                number
                for inner in sorted(inside)
                for number in into[inner]
                if graph.edges[number][0] not in inside
            ]
        )
    return RegionLayout(graph, graph.edges, incoming)


def _bucket(width: int) -> int:
    """Next power of two, so that there are few different widths."""
    return 1 << (width - 1).bit_length() if width else 0


def _pool(rows: Sequence[np.ndarray], source: int) -> Pooling:
    """Blocks of equal bucket from one matrix of places per group of results."""
    widths = np.array([_bucket(matrix.shape[1]) for matrix in rows], np.int64)
    blocks = []
    for width in np.unique(widths):
        padded = [
            np.pad(matrix, ((0, 0), (0, width - matrix.shape[1])), constant_values=source)
            for matrix, own in zip(rows, widths, strict=True)
            if own == width
        ]
        blocks.append(np.concatenate(padded).astype(np.int32))
    counts = [len(matrix) for matrix in rows]
    by_width = np.argsort(np.repeat(widths, counts), kind="stable")
    if (np.diff(by_width) > 0).all():
        return Pooling(tuple(blocks), None)
    order = np.empty(len(by_width), np.int32)
    order[by_width] = np.arange(len(by_width))
    return Pooling(tuple(blocks), order)


def _runs(sizes: list[int], regions: list[int]) -> list[tuple[int, int]]:
    return [(len(list(run)), size) for size, run in groupby(sizes[region] for region in regions)]


def _stack(parts: list[np.ndarray], size: int) -> np.ndarray:
    return np.stack(parts, axis=1) if parts else np.zeros((size, 0), np.int64)


def _concatenate(parts: Iterable[np.ndarray]) -> np.ndarray:
    parts = list(parts)
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)


@lru_cache(maxsize=4096)
def _project(shape: tuple[int, ...], axes: tuple[int, ...]) -> np.ndarray:
    places = np.indices(shape).reshape(len(shape), -1)
    result = np.zeros(math.prod(shape), np.int64)
    for axis in axes:
        result = result * shape[axis] + places[axis]
    return result


@lru_cache(maxsize=4096)
def _fibres(shape: tuple[int, ...], axes: tuple[int, ...]) -> np.ndarray:
    size = math.prod(shape[axis] for axis in axes)
    return np.argsort(_project(shape, axes), kind="stable").reshape(size, -1)
