r"""Probabilities with which a random spanning tree of a pairwise factor graph contains each edge.

For the uniform distribution over spanning trees they are effective resistances,

.. math:: \rho_{uv} = (e_u - e_v)^\top L^+ (e_u - e_v),

with L the Laplacian (Kirchhoff). They are the weights of tree-reweighted belief propagation
(Wainwright, Jaakkola & Willsky 2005).
"""

import numpy as np
import scipy.sparse as sp

from jaxmrf.graphs.hypergraph import Hypergraph

__all__ = ["appearance_probabilities"]

_MAX_DENSE = 4000


def appearance_probabilities(
    hypergraph: Hypergraph, *, num_trees: int | None = None, seed: int = 0
) -> np.ndarray:
    """For every factor the probability that a random spanning tree contains it.

    Ones for factors of one variable or none, and for the edges of a forest. Factors on the same two
    variables are parallel edges, of which a tree contains at most one.

    Args:
        hypergraph: Variables and scopes of at most two variables.
        num_trees: Mix so many trees, of random order but such that every edge is in some tree,
            in place of the exact probabilities of a uniform one; for graphs of many nodes.
        seed: Seed of the trees.

    Raises:
        ValueError: If a scope has more than two variables, if too few trees were asked for to
            contain every edge, or if a component has more than 4,000 nodes and no number of trees
            is given.

    >>> appearance_probabilities(Hypergraph([2, 2, 2], [(0, 1), (1, 2), (0, 2)])).round(4).tolist()
    [0.6667, 0.6667, 0.6667]
    """
    sizes = np.array([len(scope) for scope in hypergraph.scopes], int)
    if (sizes > 2).any():
        raise ValueError(
            f"appearance_probabilities: expected scopes of at most two variables, got "
            f"{hypergraph.scopes[int(sizes.argmax())]}; spanning trees are those of a graph"
        )
    found = np.ones(hypergraph.num_factors)
    pairs = np.flatnonzero(sizes == 2)
    if not len(pairs):
        return found
    edges = np.array([hypergraph.scopes[factor] for factor in pairs])
    if num_trees is not None:
        found[pairs] = _mixed(edges, hypergraph.num_nodes, num_trees, seed)
        return found
    found[pairs] = _resistances(edges, hypergraph.num_nodes)
    return found


def _resistances(edges: np.ndarray, num_nodes: int) -> np.ndarray:
    """Effective resistance of every edge, component by component."""
    adjacency = sp.coo_array((np.ones(len(edges)), edges.T), (num_nodes, num_nodes))
    _, labels = sp.csgraph.connected_components(adjacency, directed=False)
    sizes = np.bincount(labels)
    edge_labels = labels[edges[:, 0]]
    found = np.ones(len(edges))
    is_tree = np.bincount(edge_labels, minlength=len(sizes)) == sizes - 1
    for label in np.flatnonzero(~is_tree):
        if sizes[label] > _MAX_DENSE:
            raise ValueError(
                f"appearance_probabilities: expected components of at most {_MAX_DENSE} nodes, got "
                f"one of {sizes[label]}; pass num_trees, such as 100"
            )
        inside = np.flatnonzero(edge_labels == label)
        _, local = np.unique(edges[inside], return_inverse=True)
        first, second = local.reshape(-1, 2).T
        laplacian = np.zeros((sizes[label],) * 2)
        np.add.at(laplacian, (first, first), 1)
        np.add.at(laplacian, (second, second), 1)
        np.add.at(laplacian, (first, second), -1)
        np.add.at(laplacian, (second, first), -1)
        # the kernel is the constants: adding them to it changes no resistance
        inverse = np.linalg.inv(laplacian + 1 / sizes[label])
        found[inside] = inverse[first, first] + inverse[second, second] - 2 * inverse[first, second]
    return np.minimum(found, 1)


def _mixed(edges: np.ndarray, num_nodes: int, num_trees: int, seed: int) -> np.ndarray:
    """Share of trees that contain each edge; every tree prefers edges that are in few so far."""
    rng = np.random.default_rng(seed)
    ends = np.sort(edges, axis=1)
    counts = np.zeros(len(edges))
    for _ in range(num_trees):
        weights = 1 + counts + rng.uniform(size=len(edges))
        order = np.lexsort((weights, ends[:, 1], ends[:, 0]))
        is_first = np.append(True, (np.diff(ends[order], axis=0) != 0).any(axis=1))
        lightest = order[is_first]  # of parallel edges
        matrix = sp.coo_array((lightest + 1, ends[lightest].T), (num_nodes, num_nodes)).tocsr()
        weighted = matrix.copy().astype(float)
        weighted.data = weights[matrix.data - 1]
        tree = sp.csgraph.minimum_spanning_tree(weighted).tocoo()
        counts[np.asarray(matrix.tocsr()[tree.row, tree.col]).ravel() - 1] += 1
    if (counts == 0).any():
        raise ValueError(
            f"appearance_probabilities: expected every edge to be in some tree, got {num_trees} "
            f"trees that leave out {int((counts == 0).sum())} edges; mix more trees"
        )
    return counts / num_trees
