"""Pictures of grouped random fields: the network with its groups, who groups with whom, how many.

Edge e is drawn in the colour of its group g_e, and groups are ordered by their mean agreement
parameter theta_g = mean{theta_e : g_e = g}. Reference: Liu & Page, "Bayesian estimation of
latently-grouped parameters in undirected graphical models", NIPS 2013, section 5.
"""

import re
from collections.abc import Sequence
from typing import Any

import networkx as nx
import numpy as np
from numpy.typing import ArrayLike
from scipy.cluster.hierarchy import leaves_list, linkage
from scipy.spatial.distance import squareform

__all__ = ["co_clustering", "groups_histogram", "lattice_agreements", "voting_network"]

PARTY_COLORS = {"D": "#3b6fb6", "R": "#c8443c", "I": "#e0a526"}
PARTY_NAMES = {"D": "Democrat", "R": "Republican", "I": "independent"}
OTHER_COLOR = "#8a8a8a"
MAX_LEGEND_GROUPS = 12
LONE_SIDE = 0.6  # side of the box of a node without edges; a component of n nodes has sqrt(n)


def voting_network(
    graph: Any,
    senators: Sequence[str],
    parties: Sequence[str],
    labels: ArrayLike,
    theta: ArrayLike,
    ax: Any = None,
) -> Any:
    """Draws who is tied to whom: nodes coloured by party, edges by the group of their parameter.

    Args:
        graph: A `Graph` whose nodes are the senators, or its edges, integers "edges 2".
        senators: One name a node; what follows an underscore (the state) is not drawn.
        parties: One party a node: "D", "R", "I"; any other is drawn grey under its own name.
        labels: Group of every edge, integers "edges".
        theta: Agreement parameter of every edge, in (0, 1).
        ax: Matplotlib axes to draw on; new ones if None.

    Returns:
        The axes.

    Raises:
        ImportError: If matplotlib is not installed.
        ValueError: If the lengths of the arguments do not match.
    """
    plt = _matplotlib("voting_network")
    from matplotlib import patheffects
    from matplotlib.lines import Line2D

    edges = np.asarray(getattr(graph, "edges", graph)).reshape(-1, 2)
    labels, theta = np.asarray(labels), np.asarray(theta)
    _check_network(edges, senators, parties, labels, theta)
    if ax is None:
        ax = plt.figure(figsize=(12, 9), layout="constrained").add_subplot()

    network = nx.Graph()
    network.add_nodes_from(range(len(senators)))
    network.add_edges_from(edges.tolist())
    positions = _layout(network)
    style = {"pos": positions, "ax": ax}

    by_theta = sorted(set(labels.tolist()), key=lambda group: theta[labels == group].mean())
    colors = plt.get_cmap("viridis_r")(np.linspace(0.05, 1.0, len(by_theta)))
    lines, sizes = [], []
    for color, group in zip(colors, by_theta, strict=True):
        chosen = labels == group
        drawn = edges[chosen].tolist()
        lines.append(nx.draw_networkx_edges(network, edgelist=drawn, edge_color=[color], **style))
        sizes.append(int(chosen.sum()))
        unit = "edge" if sizes[-1] == 1 else "edges"
        lines[-1].set(linewidth=1.6, alpha=0.9)
        lines[-1].set_label(rf"$\theta$ = {theta[chosen].mean():.3f}  ({sizes[-1]} {unit})")
    dots = []
    for party in sorted(set(parties), key=list(PARTY_NAMES | dict.fromkeys(parties)).index):
        drawn = [node for node in network if parties[node] == party]
        color = PARTY_COLORS.get(party, OTHER_COLOR)
        dots.append(nx.draw_networkx_nodes(network, nodelist=drawn, node_color=color, **style))
        dots[-1].set(sizes=[55], edgecolor="white", linewidth=0.8, zorder=3)
        dots[-1].set_label(PARTY_NAMES.get(party, str(party)))
    halo = [patheffects.withStroke(linewidth=1.6, foreground="white")]
    text = {"textcoords": "offset points", "ha": "center", "fontsize": 6.5, "zorder": 4}
    for position, name in zip(positions, _display_names(senators), strict=True):
        ax.annotate(name, position, xytext=(0, 5), path_effects=halo, **text)
    legend = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0), "frameon": False}
    largest = np.sort(np.argsort(sizes, kind="stable")[-MAX_LEGEND_GROUPS:])[::-1]
    shown = [lines[number] for number in largest]
    num_left = len(lines) - len(shown)
    rest = [Line2D([], [], alpha=0, label=f"and {num_left} smaller groups")] if num_left else []
    ax.legend(handles=[*dots, *shown, *rest], **legend)
    ax.set_axis_off()
    return ax


def co_clustering(matrix: ArrayLike, ax: Any = None) -> Any:
    """Draws a co-clustering matrix with its items sorted so that groups appear as blocks.

    Args:
        matrix: Probability of every two items to be in one group, symmetric "items items", as
            `diagnostics.co_clustering` returns it.
        ax: Matplotlib axes to draw on; new ones if None.

    Returns:
        The axes.

    Raises:
        ImportError: If matplotlib is not installed.
        ValueError: If the matrix is not square.
    """
    plt = _matplotlib("co_clustering")
    matrix = np.asarray(matrix)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise ValueError(
            f"co_clustering: expected a square matrix, got shape {matrix.shape}; "
            "pass diagnostics.co_clustering(draws)"
        )
    if ax is None:
        ax = plt.figure(figsize=(6, 5), layout="constrained").add_subplot()
    order = _leaf_order(matrix)
    image = ax.imshow(matrix[np.ix_(order, order)], vmin=0, vmax=1, cmap="magma_r")
    ax.figure.colorbar(image, ax=ax, label="probability of one group")
    ax.set(xlabel="item (sorted)", ylabel="item (sorted)")
    return ax


def groups_histogram(counts: ArrayLike, ax: Any = None) -> Any:
    """Draws the posterior of the number of groups.

    Args:
        counts: Number of groups in every draw, as `diagnostics.num_groups` returns it.
        ax: Matplotlib axes to draw on; new ones if None.

    Returns:
        The axes.

    Raises:
        ImportError: If matplotlib is not installed.
        ValueError: If there is no draw.
    """
    plt = _matplotlib("groups_histogram")
    counts = np.asarray(counts).ravel()
    if counts.size == 0:
        raise ValueError(
            "groups_histogram: expected at least one draw, got none; "
            "pass diagnostics.num_groups(draws)"
        )
    if ax is None:
        ax = plt.figure(figsize=(5, 3.5), layout="constrained").add_subplot()
    values, frequencies = np.unique(counts, return_counts=True)
    ax.bar(values, frequencies / counts.size, width=0.85, color="#3b6fb6")
    ax.set(xlabel="number of groups", ylabel="posterior probability")
    ax.xaxis.get_major_locator().set_params(integer=True)
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def lattice_agreements(
    edges: ArrayLike, shape: tuple[int, int], agreements: ArrayLike, ax: Any = None
) -> Any:
    """Draws the edges of a two-dimensional grid in the colours of their agreement parameters.

    Args:
        edges: Pairs of nodes, "edges 2", numbered row by row as in `graphs.grid`.
        shape: Rows and columns of the grid.
        agreements: Agreement parameter of every edge, in [0, 1]; 1/2, independence, is pale.
        ax: Matplotlib axes to draw on; new ones if None.

    Returns:
        The axes.

    Raises:
        ImportError: If matplotlib is not installed.
        ValueError: If there is not one agreement an edge.
    """
    plt = _matplotlib("lattice_agreements")
    from matplotlib.collections import LineCollection

    edges, agreements = np.asarray(edges), np.asarray(agreements)
    if agreements.shape != (len(edges),):
        raise ValueError(
            f"lattice_agreements: expected one agreement an edge ({len(edges)}), got shape "
            f"{agreements.shape}; average the draws first"
        )
    if ax is None:
        ax = plt.figure(figsize=(4, 4), layout="constrained").add_subplot()
    rows, columns = np.divmod(np.arange(shape[0] * shape[1]), shape[1])
    points = np.stack([columns, -rows], axis=1)
    lines = LineCollection(points[edges], array=agreements, cmap="RdBu", linewidths=5)
    lines.set_clim(0, 1)
    ax.add_collection(lines)
    ax.scatter(*points.T, s=12, color="black", zorder=2)
    ax.set_aspect("equal")
    ax.set_axis_off()
    return ax


def _matplotlib(name: str) -> Any:
    """`matplotlib.pyplot`, or an error that names the extra."""
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ImportError(
            f'{name}: expected matplotlib to be installed, found none; pip install "jaxmrf[plots]"'
        ) from error
    return plt


def _check_network(edges, senators, parties, labels, theta) -> None:
    """Raises unless there is one party a senator, and one label and theta an edge."""
    if len(parties) != len(senators):
        raise ValueError(
            f"voting_network: expected one party a senator, got {len(parties)} parties and "
            f"{len(senators)} senators; pass both for every node"
        )
    for name, values in (("labels", labels), ("theta", theta)):
        if values.shape != (len(edges),):
            raise ValueError(
                f"voting_network: expected {name} of shape ({len(edges)},), one an edge, "
                f"got {values.shape}; pass a single draw or a posterior mean"
            )
    if len(edges) and edges.max() >= len(senators):
        raise ValueError(
            f"voting_network: expected edges between {len(senators)} senators, "
            f"got node {edges.max()}; pass one senator a node"
        )


def _display_names(senators: Sequence[str]) -> list[str]:
    """Surnames in ordinary spelling, with the state where two share one: "Nelson FL"."""
    surnames = [name.split("_")[0] for name in senators]
    shown = [
        name.replace("_", " ") if surnames.count(surname) > 1 else surname
        for name, surname in zip(senators, surnames, strict=True)
    ]
    spelled = [
        " ".join([first.capitalize(), *rest])
        for first, *rest in (name.split(" ") for name in shown)
    ]
    return [re.sub("^Mc(.)", lambda match: "Mc" + match[1].upper(), name) for name in spelled]


def _layout(network: nx.Graph) -> np.ndarray:
    """Positions "nodes 2": every component laid out by itself, packed on shelves by size."""
    components = sorted(
        nx.connected_components(network), key=lambda nodes: (-len(nodes), min(nodes))
    )
    sides = [np.sqrt(len(nodes)) if len(nodes) > 1 else LONE_SIDE for nodes in components]
    shelf_width = max(1.25 * sides[0], 0.8 * np.sqrt(len(network)))
    positions, left, top, height = {}, 0.0, 0.0, 0.0
    for nodes, side in zip(components, sides, strict=True):
        if left > 0 and left + side > shelf_width:
            left, top, height = 0.0, top - height, 0.0
        part = nx.kamada_kawai_layout(network.subgraph(sorted(nodes)))
        points = np.array(list(part.values()))
        points -= (points.min(axis=0) + points.max(axis=0)) / 2  # then fill the box
        points *= 0.45 * side / np.maximum(np.abs(points).max(axis=0), 1e-3)
        points += (left + side / 2, top - side / 2)
        positions |= dict(zip(part, points, strict=True))
        left, height = left + side, max(height, side)
    return np.array([positions[node] for node in range(len(network))])


def _leaf_order(matrix: np.ndarray) -> np.ndarray:
    """Items in the leaf order of average linkage on 1 - probability."""
    if len(matrix) < 3:
        return np.arange(len(matrix))
    distance = 1.0 - (matrix + matrix.T) / 2.0
    np.fill_diagonal(distance, 0.0)
    return leaves_list(
        linkage(squareform(distance, checks=False), "average", optimal_ordering=True)
    )
