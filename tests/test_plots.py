import itertools
import sys

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.colors import to_hex

from jaxmrf.graphs import Graph, grid
from jaxmrf.plots import (
    PARTY_COLORS,
    co_clustering,
    groups_histogram,
    lattice_agreements,
    voting_network,
)

EDGES = np.array([(0, 1), (1, 2), (0, 2), (3, 4)])
SENATORS = ("MCCAIN_AZ", "NELSON_FL", "NELSON_NE", "KYL_AZ", "BYRD_WV", "LOTT_MS")
PARTIES = ("R", "D", "D", "R", "D", "R")
LABELS = np.array([7, 2, 7, 4])
THETA = np.array([0.8, 0.6, 0.8, 0.7])


@pytest.fixture
def ax():
    figure = plt.figure()
    yield figure.add_subplot()
    plt.close(figure)


@pytest.fixture(autouse=True)
def close_figures():
    yield
    plt.close("all")


def entries(ax):
    return [text.get_text() for text in ax.get_legend().texts]


def dots_and_lines(ax):
    lines = {item.get_label(): item for item in ax.collections if hasattr(item, "get_segments")}
    dots = {item.get_label(): item for item in ax.collections if item not in lines.values()}
    return dots, lines


def test_voting_network_lists_parties_then_groups_by_falling_theta(ax):
    assert voting_network(EDGES, SENATORS, PARTIES, LABELS, THETA, ax) is ax
    assert entries(ax) == [
        "Democrat",
        "Republican",
        r"$\theta$ = 0.800  (2 edges)",
        r"$\theta$ = 0.700  (1 edge)",
        r"$\theta$ = 0.600  (1 edge)",
    ]


def test_voting_network_lists_the_largest_groups_and_counts_the_rest(ax):
    pairs = np.array([(i, j) for i in range(6) for j in range(i)])
    labels = np.minimum(np.arange(15), 13)  # group 13 holds two edges
    voting_network(pairs, SENATORS, PARTIES, labels, np.linspace(0.1, 0.8, 15), ax)
    listed = entries(ax)
    assert listed[-1] == "and 2 smaller groups"
    assert sum("edge" in entry for entry in listed) == 12
    assert any("(2 edges)" in entry for entry in listed)


def test_voting_network_draws_each_edge_between_its_senators(ax):
    voting_network(EDGES, SENATORS, PARTIES, LABELS, THETA, ax)
    place = {text.get_text(): np.array(text.xy) for text in ax.texts}
    assert list(place) == ["McCain", "Nelson FL", "Nelson NE", "Kyl", "Byrd", "Lott"]
    place = list(place.values())
    _, lines = dots_and_lines(ax)
    for label, theta in ((7, "0.800"), (4, "0.700"), (2, "0.600")):
        (item,) = (item for name, item in lines.items() if theta in name)
        expected = [[place[u], place[v]] for u, v in EDGES[LABELS == label]]
        np.testing.assert_allclose(item.get_segments(), expected)
    colors = [tuple(item.get_colors()[0]) for item in lines.values()]
    assert len(set(colors)) == 3


def test_voting_network_colors_senators_by_party(ax):
    voting_network(EDGES, SENATORS, PARTIES, LABELS, THETA, ax)
    place = np.array([text.xy for text in ax.texts])
    dots, _ = dots_and_lines(ax)
    for party, name in (("D", "Democrat"), ("R", "Republican")):
        members = [node for node in range(6) if PARTIES[node] == party]
        np.testing.assert_allclose(dots[name].get_offsets(), place[members])
        assert to_hex(dots[name].get_facecolor()[0]) == PARTY_COLORS[party]


def test_voting_network_draws_a_graph_as_its_edges():
    positions = []
    for graph in (EDGES, Graph(6, EDGES)):
        drawn = voting_network(graph, SENATORS, PARTIES, LABELS, THETA)
        positions.append([text.xy for text in drawn.texts])
    np.testing.assert_array_equal(*positions)


def test_voting_network_without_edges_draws_the_senators_apart(ax):
    voting_network(np.zeros((0, 2), int), SENATORS, PARTIES, [], [], ax)
    for a, b in itertools.combinations([text.xy for text in ax.texts], 2):
        assert np.abs(np.subtract(a, b)).max() > 0.5


def test_voting_network_keeps_components_apart(ax):
    """The boxes around the triangle, the pair and the lone senator do not meet."""
    voting_network(EDGES, SENATORS, PARTIES, LABELS, THETA, ax)
    place = np.array([text.xy for text in ax.texts])
    boxes = [(place[nodes].min(axis=0), place[nodes].max(axis=0)) for nodes in ([0, 1, 2], [3, 4])]
    for (low_a, high_a), (low_b, high_b) in itertools.combinations([*boxes, (place[5],) * 2], 2):
        assert np.any(low_a > high_b) or np.any(low_b > high_a)


def test_voting_network_names_an_unknown_party(ax):
    voting_network(EDGES, SENATORS, ("Whig", *PARTIES[1:]), LABELS, THETA, ax)
    assert entries(ax)[:3] == ["Democrat", "Republican", "Whig"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"parties": ("D",)}, "one party a senator, got 1 parties and 6 senators; pass both"),
        ({"labels": LABELS[:3]}, r"labels of shape \(4,\), one an edge, got \(3,\); pass a"),
        ({"theta": THETA[None]}, r"theta of shape \(4,\), one an edge, got \(1, 4\); pass a"),
        ({"graph": EDGES + 2}, "edges between 6 senators, got node 6; pass one senator a node"),
    ],
)
def test_voting_network_with_lengths_that_differ_raises(change, message):
    arguments = {
        "graph": EDGES,
        "senators": SENATORS,
        "parties": PARTIES,
        "labels": LABELS,
        "theta": THETA,
    }
    with pytest.raises(ValueError, match=f"voting_network: expected {message}"):
        voting_network(**{**arguments, **change})


def test_co_clustering_sorts_items_into_blocks(ax, rng):
    labels = rng.permutation(np.repeat([0, 1, 2], [5, 3, 2]))
    matrix = 0.9 * (labels[:, None] == labels) + 0.1 * np.eye(10)
    drawn = co_clustering(matrix, ax).images[0].get_array()
    num_changes = np.count_nonzero(np.diff(np.argmax(drawn > 0.5, axis=1)))
    assert num_changes == 2
    np.testing.assert_allclose(np.sort(drawn, axis=None), np.sort(matrix, axis=None))


@pytest.mark.parametrize("num_items", [1, 2])
def test_co_clustering_of_few_items_is_drawn_as_it_is(num_items):
    matrix = np.full((num_items, num_items), 0.5)
    np.testing.assert_array_equal(co_clustering(matrix).images[0].get_array(), matrix)


def test_co_clustering_of_a_rectangle_raises():
    with pytest.raises(ValueError, match=r"a square matrix, got shape \(2, 3\); pass diag"):
        co_clustering(np.zeros((2, 3)))


def test_groups_histogram_shows_shares_of_draws(ax):
    bars = groups_histogram([[3, 5], [3, 4], [3, 3]], ax).patches
    shares = {bar.get_x() + bar.get_width() / 2: bar.get_height() for bar in bars}
    assert shares == pytest.approx({3.0: 4 / 6, 4.0: 1 / 6, 5.0: 1 / 6})


def test_groups_histogram_without_draws_raises():
    with pytest.raises(
        ValueError, match="at least one draw, got none; pass diagnostics.num_groups"
    ):
        groups_histogram([])


@pytest.mark.parametrize(
    "call",
    [
        lambda: voting_network(EDGES, SENATORS, PARTIES, LABELS, THETA),
        lambda: co_clustering(np.eye(3)),
        lambda: groups_histogram([3]),
    ],
)
def test_plots_without_matplotlib_name_the_extra(monkeypatch, call):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(ImportError, match=r"found none; pip install .jaxmrf\[plots\]"):
        call()


def test_lattice_agreements_draws_every_edge_in_its_place_with_its_value():
    graph = grid((2, 3))
    values = np.linspace(0.1, 0.9, graph.num_edges)
    ax = lattice_agreements(graph.edges, (2, 3), values)
    lines = ax.collections[0]
    np.testing.assert_allclose(lines.get_array(), values)
    lengths = [np.abs(np.diff(segment, axis=0)).sum() for segment in lines.get_segments()]
    np.testing.assert_allclose(lengths, 1)
    assert len(ax.collections[1].get_offsets()) == 6


def test_lattice_agreements_refuses_draws():
    graph = grid((2, 3))
    with pytest.raises(ValueError, match=r"one agreement an edge \(7\), got shape \(5, 7\)"):
        lattice_agreements(graph.edges, (2, 3), np.ones((5, 7)))
