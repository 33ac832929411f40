"""Exact inference on a forest of pair tables, level by level, all trees at once."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxmrf.logspace import log_sum
from jaxmrf.types import Array, Float

__all__ = ["Forest", "forest", "forest_beliefs"]


class Forest(NamedTuple):
    """Edges of a forest by the depth of their lower end, from the roots down.

    Attributes:
        parents: Upper end of every edge, ``[levels, width]``; padding is one past the last node.
        children: Lower ends, likewise.
        edges: Number of every edge in the order given; padding is one past the last.
        is_flipped: Whether the edge was given from child to parent.
        trees: Number of the tree of every node, ``[nodes]``.
    """

    parents: np.ndarray
    children: np.ndarray
    edges: np.ndarray
    is_flipped: np.ndarray
    trees: np.ndarray


def forest(num_nodes: int, pairs: np.ndarray) -> Forest | None:
    """The forest with these edges; None if they close a cycle.

    Args:
        num_nodes: Number of nodes.
        pairs: Ends of the edges, ``[edges, 2]``.
    """
    around: list[list[tuple[int, int, bool]]] = [[] for _ in range(num_nodes)]
    for edge, (one, other) in enumerate(pairs.tolist()):
        around[one].append((edge, other, False))
        around[other].append((edge, one, True))
    trees = np.full(num_nodes, -1)
    levels: dict[int, list[tuple[int, int, int, bool]]] = {}
    num_trees = num_seen = 0
    for root in range(num_nodes):
        if trees[root] >= 0:
            continue
        trees[root], waiting, depth = num_trees, [root], 0
        while waiting:
            found = []
            for parent in waiting:
                for edge, child, is_flipped in around[parent]:
                    if trees[child] < 0:
                        trees[child] = num_trees
                        found.append(child)
                        levels.setdefault(depth, []).append((parent, child, edge, is_flipped))
            num_seen += len(found)
            waiting, depth = found, depth + 1
        num_trees += 1
    if num_seen < len(pairs):
        return None
    width = max(map(len, levels.values()), default=0)
    table = np.tile(np.array([num_nodes, num_nodes, len(pairs), 0]), (len(levels), width, 1))
    for depth, own in levels.items():
        table[depth, : len(own)] = own
    parents, children, edges, is_flipped = np.moveaxis(table.astype(np.int32), -1, 0)
    return Forest(parents, children, edges, is_flipped.astype(bool), trees)


def forest_beliefs(
    trees: Forest,
    log_tables: Float[Array, "levels width states states"],
    fields: Float[Array, "nodes_and_padding states"],
) -> tuple[Array, Array]:
    """Log marginals of nodes and of edges (parent's state first); minus infinity if impossible.

    Args:
        trees: The forest.
        log_tables: Log table of every edge, parent's state first, minus infinity beyond a node's
            own states.
        fields: Log potential of every state of every node, minus infinity likewise.
    """
    is_edge = (trees.parents < len(fields) - 1)[..., None]
    levels = (trees.parents, trees.children, log_tables, is_edge)
    if not trees.parents.size:
        return _scaled(fields, (1,)), log_tables

    def climb(below, level):
        parents, children, table, is_edge = level
        up = log_sum(table + below[children][:, None], axis=2)
        return below.at[parents].add(jnp.where(is_edge, up, 0)), up

    def descend(total, level):
        (parents, children, table, is_edge), up = level
        is_open = up > -jnp.inf
        rest = jnp.where(is_open, total[parents] - jnp.where(is_open, up, 0), -jnp.inf)
        joint = table + rest[:, :, None]
        down = jnp.where(is_edge, log_sum(joint, axis=1), 0)
        return total.at[children].add(down), joint + below[children][:, None]

    below, ups = jax.lax.scan(climb, fields, levels, reverse=True)
    total, joints = jax.lax.scan(descend, below, (levels, ups))
    return _scaled(total, (1,)), _scaled(joints, (2, 3))


def _scaled(logs: Array, axes: tuple[int, ...]) -> Array:
    total = jnp.expand_dims(log_sum(logs, axes), axes)
    return logs - jnp.where(total > -jnp.inf, total, 0)
