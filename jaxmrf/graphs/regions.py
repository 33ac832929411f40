r"""Region graphs: overlapping clusters of variables, their intersections, and counting numbers.

The entropy of a model is approximated by those of its regions, each counted as often as makes
every variable count once in all:

.. math:: c_r = 1 - \sum_{s \supset r} c_s, \qquad
    \log Z \approx \max_b \sum_f \langle\theta_f\rangle_b + \sum_r c_r H(b_r)

``cluster_variation`` closes clusters under intersection (Kikuchi's method); ``bethe_regions`` has
one region per factor and one per variable, which is belief propagation. Reference: Yedidia,
Freeman & Weiss (2005), "Constructing free-energy approximations and generalized belief propagation
algorithms".
"""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from functools import cached_property
from itertools import product

import jax
import networkx as nx
import numpy as np

from jaxmrf.graphs.graph import Graph
from jaxmrf.graphs.hypergraph import Hypergraph

__all__ = ["RegionGraph", "bethe_regions", "cluster_variation", "loops", "plaquettes"]

MAX_ENTRIES = 2**26
"""Refuse beliefs of more entries than this in all."""


class RegionGraph:
    """Regions of variables, which is inside which; immutable and hashable by content.

    Build one with ``cluster_variation`` or ``bethe_regions``. ``print`` it to see its size.

    Attributes:
        hypergraph: Structure of the factor graph.
        regions: Variables of every region, in increasing order; a region comes before those
            inside it.
        edges: Pairs (parent, child) of regions, child directly inside parent.
        counting_numbers: Counting number of every region.
        factors: Factors of every region: those of its own and of the regions inside it.
    """

    hypergraph: Hypergraph
    regions: tuple[tuple[int, ...], ...]
    edges: tuple[tuple[int, int], ...]
    factors: tuple[tuple[int, ...], ...]

    def __init__(self, hypergraph: Hypergraph, regions, edges, factors):
        for name, value in (
            ("hypergraph", hypergraph),
            ("regions", tuple(map(tuple, regions))),
            ("edges", tuple(map(tuple, edges))),
            ("factors", tuple(map(tuple, factors))),
        ):
            object.__setattr__(self, name, value)
        content = (self.hypergraph, self.regions, self.edges, self.factors)
        object.__setattr__(self, "_hash", hash(content))

    @property
    def num_regions(self) -> int:
        """Number of regions."""
        return len(self.regions)

    @cached_property
    def ancestors(self) -> tuple[frozenset[int], ...]:
        """For every region, the regions it lies inside of."""
        found: list[set[int]] = [set() for _ in self.regions]
        # parents come first, so that theirs are complete
        for parent, child in sorted(self.edges):
            found[child] |= found[parent] | {parent}
        return tuple(map(frozenset, found))

    @cached_property
    def descendants(self) -> tuple[frozenset[int], ...]:
        """For every region, the regions inside it."""
        found: list[set[int]] = [set() for _ in self.regions]
        for region, above in enumerate(self.ancestors):
            for ancestor in above:
                found[ancestor].add(region)
        return tuple(map(frozenset, found))

    @cached_property
    def counting_numbers(self) -> np.ndarray:
        """Counting number of every region, ``[regions]``: one less all those of its ancestors."""
        counts = np.zeros(self.num_regions, np.int64)
        for region, above in enumerate(self.ancestors):
            counts[region] = 1 - sum(counts[ancestor] for ancestor in above)
        return counts

    @cached_property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Shape of the table of every region."""
        number = self.hypergraph.num_states
        return tuple(tuple(number[node] for node in region) for region in self.regions)

    @cached_property
    def num_entries(self) -> int:
        """Number of entries of the tables of all regions."""
        return sum(map(math.prod, self.shapes))

    def __str__(self) -> str:
        kinds = Counter(
            (len(region), math.prod(shape), int(count))
            for region, shape, count in zip(
                self.regions, self.shapes, self.counting_numbers, strict=True
            )
        )
        lines = [
            f"region graph of {self.num_regions} regions, {len(self.edges)} edges, "
            f"{self.num_entries} entries"
        ]
        lines += [
            f"  {number} regions of {size} variables ({entries} entries), counting number {count}"
            for (size, entries, count), number in sorted(kinds.items(), reverse=True)
        ]
        return "\n".join(lines)

    def __setattr__(self, name, value):
        raise AttributeError(f"RegionGraph: expected no assignment, got {name}; build another one")

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other) -> bool:
        return self is other or (
            isinstance(other, RegionGraph)
            and self._hash == other._hash
            and (self.hypergraph, self.regions) == (other.hypergraph, other.regions)
            and (self.edges, self.factors) == (other.edges, other.factors)
        )

    def __reduce__(self):
        return (RegionGraph, (self.hypergraph, self.regions, self.edges, self.factors))

    def __repr__(self) -> str:
        return f"RegionGraph(num_regions={self.num_regions}, num_edges={len(self.edges)})"


def cluster_variation(
    hypergraph: Hypergraph, clusters: Iterable[Collection[int]] = ()
) -> RegionGraph:
    """The region graph of clusters and all their intersections (Kikuchi's cluster variation).

    Args:
        hypergraph: Structure of the factor graph; the scopes of factors that fit into no cluster
            are clusters of their own, and so are variables in none.
        clusters: Sets of variables, for example ``plaquettes`` or ``loops``.

    Returns:
        Regions, an edge for every region directly inside another, and counting numbers.

    Raises:
        ValueError: If a cluster names a variable that does not exist, or the tables of all regions
            would have more than ``MAX_ENTRIES`` entries.

    >>> square = Hypergraph([2] * 4, [(0, 1), (1, 2), (2, 3), (0, 3)])
    >>> cluster_variation(square).counting_numbers.tolist()
    [1, 1, 1, 1, -1, -1, -1, -1]
    """
    given = {frozenset(int(node) for node in cluster) for cluster in clusters}
    nodes = range(hypergraph.num_nodes)
    for cluster in given:
        missing = [node for node in cluster if node not in nodes]
        if missing:
            raise ValueError(
                f"cluster_variation: expected variables in 0..{len(nodes) - 1}, got {missing[0]} "
                f"in cluster {tuple(sorted(cluster))}; pass variables of the factor graph"
            )
    given |= {frozenset(scope) for scope in hypergraph.scopes} | {frozenset((n,)) for n in nodes}
    maximal = _maximal(given - {frozenset()}, len(nodes))
    regions = sorted(_closure(maximal, len(nodes)), key=lambda r: (-len(r), tuple(sorted(r))))
    _check_size(hypergraph, regions, "cluster_variation")
    holders = _holders(regions, len(nodes))
    edges = []
    for child, region in enumerate(regions):
        above = [other for other in _supersets(region, holders) if other != child]
        edges += [
            (parent, child)
            for parent in above
            if not any(regions[other] < regions[parent] for other in above)
        ]
    inside: list[list[int]] = [[] for _ in regions]
    for factor, scope in enumerate(hypergraph.scopes):
        for region in _supersets(frozenset(scope), holders) if scope else ():
            inside[region].append(factor)
    return RegionGraph(hypergraph, map(sorted, regions), edges, inside)


def bethe_regions(hypergraph: Hypergraph) -> RegionGraph:
    """The region graph of belief propagation: one region per factor and one per variable.

    Factors of one variable belong to its region.

    Args:
        hypergraph: Structure of the factor graph.
    """
    large = [factor for factor, scope in enumerate(hypergraph.scopes) if len(scope) > 1]
    regions = [tuple(sorted(hypergraph.scopes[factor])) for factor in large]
    _check_size(hypergraph, regions, "bethe_regions")
    unary: list[list[int]] = [[] for _ in range(hypergraph.num_nodes)]
    for factor, scope in enumerate(hypergraph.scopes):
        if len(scope) == 1:
            unary[scope[0]].append(factor)
    factors = [
        [factor, *(other for node in region for other in unary[node])]
        for factor, region in zip(large, regions, strict=True)
    ]
    edges = [(place, len(large) + node) for place, region in enumerate(regions) for node in region]
    nodes = [(node,) for node in range(hypergraph.num_nodes)]
    return RegionGraph(hypergraph, [*regions, *nodes], edges, [*factors, *unary])


def plaquettes(shape: Sequence[int]) -> list[tuple[int, ...]]:
    """The unit cells of a grid with free boundaries, nodes numbered as by ``grid``.

    Args:
        shape: Side lengths of the grid, any number of dimensions.

    >>> plaquettes((2, 3))
    [(0, 1, 3, 4), (1, 2, 4, 5)]
    """
    number = np.arange(math.prod(shape)).reshape(shape)
    corners = list(product((0, 1), repeat=len(shape)))
    cells = product(*(range(side - 1) for side in shape))
    return [tuple(int(number[tuple(np.add(cell, c))]) for c in corners) for cell in cells]


def loops(graph: Graph, max_length: int) -> list[tuple[int, ...]]:
    """The nodes of every simple cycle of at most ``max_length`` edges.

    Args:
        graph: A graph, for example ``hypergraph.primal_graph()``.
        max_length: Longest cycle, at least 3.

    Raises:
        ValueError: If ``max_length`` is below 3.

    >>> loops(Graph(4, [(0, 1), (1, 2), (2, 3), (0, 3), (0, 2)]), 3)
    [(0, 1, 2), (0, 2, 3)]
    """
    if max_length < 3:
        raise ValueError(
            f"loops: expected max_length of at least 3, got {max_length}; a cycle has three edges"
        )
    network = nx.Graph(np.asarray(graph.edges).tolist())
    cycles = nx.simple_cycles(network, length_bound=max_length)
    return sorted({tuple(sorted(cycle)) for cycle in cycles})


def _holders(regions: Sequence[frozenset[int]], num_nodes: int) -> list[set[int]]:
    """For every variable, the numbers of the regions that have it."""
    found: list[set[int]] = [set() for _ in range(num_nodes)]
    for number, region in enumerate(regions):
        for node in region:
            found[node].add(number)
    return found


def _supersets(region: frozenset[int], holders: list[set[int]]) -> list[int]:
    """Numbers of the regions that have all the variables of this one, itself included."""
    sets = sorted((holders[node] for node in region), key=len)
    return sorted(set.intersection(*sets))


def _maximal(clusters: set[frozenset[int]], num_nodes: int) -> list[frozenset[int]]:
    listed = sorted(clusters, key=lambda cluster: tuple(sorted(cluster)))
    holders = _holders(listed, num_nodes)
    return [cluster for cluster in listed if len(_supersets(cluster, holders)) == 1]


def _closure(maximal: list[frozenset[int]], num_nodes: int) -> set[frozenset[int]]:
    """All non-empty intersections of clusters: those found so far with every cluster, repeated."""
    holders = _holders(maximal, num_nodes)
    found, waiting = set(maximal), list(maximal)
    while waiting:
        region = waiting.pop()
        for number in set().union(*(holders[node] for node in region)):
            common = region & maximal[number]
            if common not in found:
                found.add(common)
                waiting.append(common)
    return found


def _check_size(hypergraph: Hypergraph, regions: Iterable[Iterable[int]], name: str) -> None:
    sizes = [math.prod(hypergraph.num_states[node] for node in region) for region in regions]
    if sum(sizes) > MAX_ENTRIES:
        raise ValueError(
            f"{name}: expected at most {MAX_ENTRIES} entries in all regions, got {sum(sizes)}, the "
            f"largest with {max(sizes)}; pass smaller clusters"
        )


jax.tree_util.register_static(RegionGraph)
