"""What mean field updates together: trees that share no averaged factor, and those factors."""

from collections.abc import Sequence
from functools import lru_cache
from itertools import combinations
from typing import NamedTuple

import numpy as np

from jaxmrf.graphs import Graph, Hypergraph, color
from jaxmrf.variational._trees import Forest, forest

__all__ = ["MeanFieldPlan", "induced_forest", "mean_field_plan"]


class Averaged(NamedTuple):
    """For one axis of the averaged factors of one stack, those that each colour needs.

    Attributes:
        stack: Number of the stack.
        axis: Axis of the tables, whose node is updated.
        factors: Places in the stack, ``[colors, width]``; padding is 0.
        nodes: Node on the axis; padding is one past the last.
    """

    stack: int
    axis: int
    factors: np.ndarray
    nodes: np.ndarray


class MeanFieldPlan(NamedTuple):
    """Structure of a mean-field approximation.

    Attributes:
        kept: Numbers of the factors that are kept exact.
        trees: The forest of the kept factors.
        colors: Colour of every node; nodes of one tree have the same.
        averaged: Averaged factors by stack and axis.
        entries: Place in the flat tables of every entry of the tables of the forest's edges,
            ``[levels, width, states, states]``; padding is past the last.
        states: Place in the flat states of every state of a node, ``[nodes + 1, states]``; padding
            is past the last.
    """

    kept: np.ndarray
    trees: Forest
    colors: np.ndarray
    averaged: tuple[Averaged, ...]
    entries: np.ndarray
    states: np.ndarray


@lru_cache(maxsize=16)
def mean_field_plan(structure: Hypergraph, tractable: tuple[int, ...]) -> MeanFieldPlan:
    """The plan for a factor graph's structure and the factors kept exact.

    Raises:
        ValueError: If these are not factors of two variables without a cycle, or if another factor
            has several variables of one of their trees.
    """
    scopes = structure.scopes
    for factor in tractable:
        if not 0 <= factor < len(scopes) or len(scopes[factor]) != 2:
            what = f"factor {factor}"
            if 0 <= factor < len(scopes):
                what += f" of {len(scopes[factor])} variables"
            raise ValueError(
                f"mean_field.solve: expected tractable factors of two variables, got {what}; "
                "the others are averaged"
            )
    kept = np.array(sorted(set(tractable)), np.int64)
    pairs = np.array([scopes[factor] for factor in kept], np.int64).reshape(-1, 2)
    trees = forest(structure.num_nodes, pairs)
    if trees is None:
        raise ValueError(
            f"mean_field.solve: expected tractable factors without a cycle, got {len(kept)} with "
            "one; leave out a factor of every cycle, as induced_forest does"
        )
    joined = set()
    for factor in set(range(len(scopes))) - set(kept.tolist()):
        touched = trees.trees[list(scopes[factor])].tolist()
        if len(set(touched)) < len(touched):
            raise ValueError(
                "mean_field.solve: expected averaged factors with at most one variable in each "
                f"tree of tractable ones, got factor {factor} on {scopes[factor]}; cut the tree "
                "between its variables, as induced_forest does"
            )
        joined |= {tuple(sorted(pair)) for pair in combinations(touched, 2)}
    num_trees = int(trees.trees.max(initial=-1)) + 1
    colors = color(Graph(num_trees, sorted(joined)))[trees.trees]
    entries = _edge_entries(structure, trees, kept)
    most = max(structure.num_states, default=1)
    numbers = np.array([*structure.num_states, 0])[:, None]
    states = np.append(structure.node_starts, 0)[:, None] + np.arange(most)
    states = np.where(np.arange(most) < numbers, states, structure.num_node_entries)
    states, entries = states.astype(np.int32), entries.astype(np.int32)
    averaged = _averaged(structure, set(kept.tolist()), colors)
    return MeanFieldPlan(kept, trees, colors, averaged, entries, states)


def induced_forest(structure: Hypergraph) -> tuple[int, ...]:
    """Factors of two variables that can be kept exact together, chosen greedily in their order.

    Their trees have no other factor with several variables in one of them.

    Args:
        structure: Structure of the factor graph.

    >>> square = Hypergraph([2] * 4, [(0, 1), (2, 3), (0, 2), (1, 3)])
    >>> induced_forest(square)
    (0, 1)
    """
    tree_of = list(range(structure.num_nodes))
    members = {node: {node} for node in tree_of}
    around: list[list[int]] = [[] for _ in tree_of]
    for factor, scope in enumerate(structure.scopes):
        for node in scope:
            around[node].append(factor)
    chosen = []
    for factor, scope in enumerate(structure.scopes):
        if len(scope) != 2 or tree_of[scope[0]] == tree_of[scope[1]]:
            continue
        small, large = sorted((tree_of[node] for node in scope), key=lambda t: len(members[t]))
        between = {
            other
            for node in members[small]
            for other in around[node]
            if any(tree_of[neighbor] == large for neighbor in structure.scopes[other])
        }
        if between == {factor}:
            chosen.append(factor)
            for node in members[small]:
                tree_of[node] = large
            members[large] |= members.pop(small)
    return tuple(chosen)


def _edge_entries(structure: Hypergraph, trees: Forest, kept: np.ndarray) -> np.ndarray:
    """Places of the tables of the forest's edges, parent's states first."""
    most = max(structure.num_states, default=1)
    shape = (*trees.parents.shape, most, most)
    entries = np.full(shape, structure.num_entries, np.int64)
    for level, slot in np.argwhere(trees.edges < len(kept)):
        factor = int(kept[trees.edges[level, slot]])
        rows, columns = structure.table_shape(factor)
        own = structure.table_starts[factor] + np.arange(rows * columns).reshape(rows, columns)
        own = own.T if trees.is_flipped[level, slot] else own
        entries[level, slot, : own.shape[0], : own.shape[1]] = own
    return entries


def _averaged(structure: Hypergraph, kept: set[int], colors: np.ndarray) -> tuple[Averaged, ...]:
    num_colors = int(colors.max(initial=-1)) + 1
    found = []
    for number, stack in enumerate(structure.stacks):
        is_averaged = np.array([factor not in kept for factor in stack.factors.tolist()])
        for axis in range(len(stack.shape)):
            lists: list[Sequence[int]] = [
                np.flatnonzero(is_averaged & (colors[stack.nodes[:, axis]] == shade)).tolist()
                for shade in range(num_colors)
            ]
            width = max(map(len, lists))
            factors = np.zeros((num_colors, width), np.int32)
            nodes = np.full((num_colors, width), structure.num_nodes, np.int32)
            for shade, own in enumerate(lists):
                factors[shade, : len(own)] = own
                nodes[shade, : len(own)] = stack.nodes[own, axis]
            if width:
                found.append(Averaged(number, axis, factors, nodes))
    return tuple(found)
