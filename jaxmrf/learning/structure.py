r"""The graph of a binary field from data, by two convex programs with an l1 penalty.

.. math:: \max_{P \succ 0} \log\det P - \mathrm{tr}\big(P (S + \tfrac13 I)\big)
          - \lambda \sum_{i \ne j} |P_{ij}|

is the log-determinant relaxation of the sparse likelihood, S the covariance of spins -1, +1: a
graphical lasso with 1/3 added to the diagonal (Banerjee, El Ghaoui & d'Aspremont, JMLR 9, 2008,
section 4).

.. math:: \min_{w_i} \frac1n \sum_m \log\big(1 + e^{-2 s_i^m (b_i + \sum_j w_{ij} s_j^m)}\big)
          + \lambda \lVert w_i \rVert_1

predicts each node from all others, an l1-penalised pseudo-likelihood (Ravikumar, Wainwright &
Lafferty, Annals of Statistics 38, 2010). Both search the penalty that leaves a wanted number of
edges.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.covariance import graphical_lasso

from jaxmrf.graphs import Graph
from jaxmrf.models import as_states
from jaxmrf.types import Array, Float

__all__ = ["SparseGraphResult", "neighborhood_graph", "sparse_graph"]

_MAX_PENALTIES = 40
# of a neighbourhood regression: iterations, and gradient left over at the end
_MAX_ITERS, _TOLERANCE = 10_000, 1e-4


class SparseGraphResult(NamedTuple):
    """A graph learned from data.

    Attributes:
        graph: The graph.
        penalty: Weight of the l1 penalty that gave it.
        num_edges: Number of its edges.
        is_exact_count: Whether this penalty alone gave the wanted number of edges; if not, the
            graph holds the strongest of the edges that it gave.
    """

    graph: Graph
    penalty: float
    num_edges: int
    is_exact_count: bool


def sparse_graph(data, *, num_edges: int) -> SparseGraphResult:
    """The sparse binary graph of Banerjee et al. with a wanted number of edges.

    Args:
        data: Observations "items nodes": states 0, 1 or spins -1, +1.
        num_edges: Wanted number of edges.

    Returns:
        The graph, its edges in lexicographic order, and the penalty.

    Raises:
        ValueError: If the data are not binary observations, or the number of edges is impossible.

    >>> votes = np.random.default_rng(0).integers(0, 2, (200, 4))
    >>> votes[:, 3] = votes[:, 1]
    >>> sparse_graph(votes, num_edges=1).graph.edges.tolist()
    [[1, 3]]
    """
    spins = _as_spins(data, num_edges, caller="sparse_graph")
    covariance = np.cov(spins.T, bias=True)
    relaxed = covariance + np.eye(len(covariance)) / 3

    def strengths(penalty: float) -> np.ndarray:
        # at the default tolerances weak edges are missed, or the outer loop never ends
        tolerance = 1e-8 * len(relaxed)
        _, precision = graphical_lasso(
            relaxed, penalty, tol=tolerance, enet_tol=tolerance / 1e4, max_iter=500
        )
        return np.abs(precision)

    return _search(strengths, covariance, num_edges)


def neighborhood_graph(data, *, num_edges: int, rule: str = "and") -> SparseGraphResult:
    """The graph of l1-penalised neighbourhood regressions with a wanted number of edges.

    Args:
        data: Observations "items nodes": states 0, 1 or spins -1, +1.
        num_edges: Wanted number of edges.
        rule: ``"and"`` keeps an edge if both ends choose it, ``"or"`` if one does.

    Returns:
        The graph, its edges in lexicographic order, and the penalty.

    Raises:
        ValueError: If the data are not binary observations, the number of edges is impossible, or
            the rule is unknown.
    """
    if rule not in ("and", "or"):
        raise ValueError(
            f"neighborhood_graph: expected rule to be 'and' or 'or', got {rule!r}; name one"
        )
    spins = _as_spins(data, num_edges, caller="neighborhood_graph")
    combine = np.minimum if rule == "and" else np.maximum
    # an intercept alone reproduces the mean; a constant node has its intercept at infinity
    intercepts = np.arctanh(np.clip(spins.mean(axis=0), -1 + 1e-5, 1 - 1e-5))
    solution = jnp.asarray(np.vstack([intercepts, np.zeros((len(intercepts),) * 2)]), jnp.float32)
    design = jnp.asarray(spins, jnp.float32)

    def strengths(penalty: float) -> np.ndarray:
        nonlocal solution  # the start at the next penalty
        solution = _neighborhoods(design, solution, penalty)
        weights = np.abs(np.asarray(solution[1:]))
        return combine(weights, weights.T)

    # where only intercepts stand, a node's gradient towards another is their covariance
    return _search(strengths, np.cov(spins.T, bias=True), num_edges)


@jax.jit
def _neighborhoods(
    spins: Float[Array, "items nodes"],
    start: Float[Array, "nodes_plus_one nodes"],
    penalty: Float[Array, ""] | float,
) -> Float[Array, "nodes_plus_one nodes"]:
    """Intercepts (first row) and weights of all regressions, a column a node.

    FISTA with restarts (Beck & Teboulle 2009; O'Donoghue & Candes 2015), all nodes at once.
    """
    num_items, num_nodes = spins.shape
    design = jnp.concatenate([jnp.ones((num_items, 1)), spins], axis=1)
    is_free = jnp.concatenate([jnp.ones((1, num_nodes)), 1 - jnp.eye(num_nodes)])
    # the logistic loss of 2 f has curvature at most 1 in f
    step = 1 / jnp.linalg.eigvalsh(design.T @ design / num_items)[-1]
    threshold = step * penalty * is_free.at[0].set(0)

    def proximal_step(point):
        slope = -2 * spins * jax.nn.sigmoid(-2 * spins * (design @ point)) / num_items
        moved = (point - step * (design.T @ slope)) * is_free
        return jnp.sign(moved) * jnp.maximum(jnp.abs(moved) - threshold, 0)

    def go_on(carry):
        _, _, _, change, num_iters = carry
        return (change > _TOLERANCE * step) & (num_iters < _MAX_ITERS)

    def iterate(carry):
        weights, point, momentum, _, num_iters = carry
        new = proximal_step(point)
        change = jnp.max(jnp.abs(new - point))
        is_uphill = jnp.sum((point - new) * (new - weights)) > 0
        momentum = jnp.where(is_uphill, 1.0, momentum)
        next_momentum = (1 + jnp.sqrt(1 + 4 * momentum**2)) / 2
        point = new + (momentum - 1) / next_momentum * (new - weights)
        return new, point, next_momentum, change, num_iters + 1

    carry = (start, start, 1.0, jnp.inf, 0)
    return jax.lax.while_loop(go_on, iterate, carry)[0]


def _search(
    strengths: Callable[[float], np.ndarray], covariance: np.ndarray, num_edges: int
) -> SparseGraphResult:
    """The graph at a penalty that leaves the wanted number of edges, found by bisection.

    The number of edges need not fall steadily in the penalty; the best seen is kept.

    Args:
        strengths: Function of the penalty; non-zero entries of its matrix are edges.
        covariance: Of the spins; no edge is left at its largest entry off the diagonal.
        num_edges: Wanted number of edges.
    """
    upper = float(np.abs(np.triu(covariance, 1)).max())
    low, high = 0.0, upper
    best = (num_edges > 0, num_edges), upper, np.zeros_like(covariance)
    for _ in range(_MAX_PENALTIES):
        if best[0] == (False, 0) or high - low <= 1e-6 * upper:
            break
        penalty = (low + high) / 2
        matrix = np.triu(strengths(penalty), 1)
        count = int(np.count_nonzero(matrix))
        # too many edges can be cut back, the fewer the better; too few cannot
        score = (count < num_edges, abs(count - num_edges))
        best = min(best, (score, penalty, matrix), key=lambda seen: seen[0])
        low, high = (penalty, high) if count > num_edges else (low, penalty)
    (_, distance), penalty, matrix = best
    order = np.argsort(-matrix, axis=None, kind="stable")[:num_edges]
    chosen = np.sort(order[matrix.ravel()[order] > 0])
    graph = Graph(len(matrix), np.stack(np.unravel_index(chosen, matrix.shape), axis=1))
    return SparseGraphResult(graph, penalty, graph.num_edges, distance == 0)


def _as_spins(data, num_edges: int, *, caller: str) -> np.ndarray:
    """Spins -1, +1 as floats, and the wanted number of edges checked."""
    shape = np.shape(data)
    num_nodes = shape[1] if len(shape) == 2 else -1
    states = as_states(data, 2, num_nodes, caller=caller)
    most = num_nodes * (num_nodes - 1) // 2
    if not 0 <= num_edges <= most:
        raise ValueError(
            f"{caller}: expected num_edges in 0..{most}, the pairs of {num_nodes} nodes, got "
            f"{num_edges}; ask for fewer"
        )
    return 2.0 * states - 1.0
