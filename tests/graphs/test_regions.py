"""Region graphs: intersections, counting numbers, sizes, errors."""

import itertools

import numpy as np
import pytest

from jaxmrf.graphs import Graph, Hypergraph, grid
from jaxmrf.graphs import regions as region_graphs
from jaxmrf.graphs.regions import bethe_regions, cluster_variation, loops, plaquettes


def structure_of(graph, num_states=2):
    unary = [(node,) for node in range(graph.num_nodes)]
    return Hypergraph([num_states] * graph.num_nodes, unary + graph.edges.tolist())


def random_clusters(seed, num_nodes=9, number=8):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(2, 5, number)
    return [rng.choice(num_nodes, size, replace=False).tolist() for size in sizes]


def check_counting(graph, parts):
    """Counting numbers of the regions around any of these sets of variables sum to one."""
    for part in parts:
        around = [set(part) <= set(region) for region in graph.regions]
        assert graph.counting_numbers[around].sum() == 1


@pytest.mark.parametrize("seed", range(4))
def test_closed_under_intersection_every_region_counts_once(seed):
    structure = Hypergraph([2] * 9, [(0, 1), (3, 4), ()])
    graph = cluster_variation(structure, random_clusters(seed))
    regions = set(graph.regions)
    for one, other in itertools.combinations(graph.regions, 2):
        common = tuple(sorted(set(one) & set(other)))
        assert not common or common in regions
    check_counting(graph, [*graph.regions, *[(node,) for node in range(9)], (0, 1), (3, 4)])


def test_edges_are_the_inclusions_with_nothing_between():
    graph = cluster_variation(Hypergraph([2] * 9, []), random_clusters(1))
    inside = {
        (a, b)
        for a, one in enumerate(graph.regions)
        for b, other in enumerate(graph.regions)
        if set(other) < set(one)
    }
    between = {(a, c) for a, b in inside for b2, c in inside if b == b2}
    assert set(graph.edges) == inside - between
    assert {(a, b) for b, above in enumerate(graph.ancestors) for a in above} == inside
    assert {(a, b) for a, below in enumerate(graph.descendants) for b in below} == inside


def test_plaquettes_of_a_grid_are_counted_as_in_kikuchis_method():
    structure = structure_of(grid((4, 5)))
    graph = cluster_variation(structure, plaquettes((4, 5)))
    sizes = np.array([len(region) for region in graph.regions])
    counts = graph.counting_numbers
    # edges and nodes of the border are inside one plaquette only and no regions
    assert [(sizes == size).sum() for size in (4, 2, 1)] == [12, 17, 6]
    assert [set(counts[sizes == size]) for size in (4, 2, 1)] == [{1}, {-1}, {1}]
    assert str(graph).splitlines() == [
        "region graph of 35 regions, 58 edges, 272 entries",
        "  12 regions of 4 variables (16 entries), counting number 1",
        "  17 regions of 2 variables (4 entries), counting number -1",
        "  6 regions of 1 variables (2 entries), counting number 1",
    ]


def test_regions_have_the_factors_inside_them():
    structure = structure_of(grid((3, 3)))
    graph = cluster_variation(structure, plaquettes((3, 3)))
    for region, factors in zip(graph.regions, graph.factors, strict=True):
        inside = [f for f, scope in enumerate(structure.scopes) if set(scope) <= set(region)]
        assert list(factors) == inside
    check_counting(graph, structure.scopes)


def test_bethe_regions_count_factors_once_and_variables_by_degree():
    structure = Hypergraph([2, 3, 2], [(0, 1), (0, 1), (2, 0, 1), (1,), ()])
    graph = bethe_regions(structure)
    assert graph.counting_numbers.tolist() == [1, 1, 1, -2, -2, 0]
    assert graph.factors == ((0, 3), (1, 3), (2, 3), (), (3,), ())
    assert graph.regions[:3] == ((0, 1), (0, 1), (0, 1, 2))


def test_scopes_and_lone_variables_become_clusters():
    graph = cluster_variation(Hypergraph([2] * 5, [(0, 1), (1, 2), (0,)]), [(0, 1)])
    assert set(graph.regions) == {(0, 1), (1, 2), (1,), (3,), (4,)}


def test_loops_are_the_short_cycles():
    square = Graph(5, [(0, 1), (1, 2), (2, 3), (0, 3), (0, 2), (3, 4)])
    assert loops(square, 3) == [(0, 1, 2), (0, 2, 3)]
    assert loops(square, 4) == [(0, 1, 2), (0, 1, 2, 3), (0, 2, 3)]
    assert loops(grid((4, 5)), 4) == sorted(plaquettes((4, 5)))


def test_plaquettes_of_a_cube():
    assert plaquettes((2, 2, 2)) == [tuple(range(8))]
    assert plaquettes((1, 4)) == []


def test_equal_content_is_equal_and_frozen():
    structure = structure_of(grid((2, 3)))
    one, other = (cluster_variation(structure, plaquettes((2, 3))) for _ in range(2))
    assert one == other and hash(one) == hash(other) and one != bethe_regions(structure)
    with pytest.raises(AttributeError, match="expected no assignment"):
        one.regions = ()


def test_bad_clusters_are_named(monkeypatch):
    structure = structure_of(grid((2, 2)))
    with pytest.raises(ValueError, match=r"expected variables in 0..3, got 4 in cluster \(1, 4\)"):
        cluster_variation(structure, [(4, 1)])
    with pytest.raises(ValueError, match="expected max_length of at least 3, got 2"):
        loops(grid((2, 2)), 2)
    monkeypatch.setattr(region_graphs, "MAX_ENTRIES", 15)
    with pytest.raises(ValueError, match="at most 15 entries in all regions, got 16"):
        cluster_variation(structure, [(0, 1, 2, 3)])
    with pytest.raises(ValueError, match="bethe_regions: expected at most 15 entries"):
        bethe_regions(structure)
