"""The smaller model that some variables form given the rest, as a gather from the tables.

Its structure does not depend on the states of the rest, only the places its tables are read from
do: entry e of factor f lies at ``places[e] + sum_o strides[f, o] x[others[f, o]]``.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import jax
import numpy as np

from jaxmrf.graphs.hypergraph import Hypergraph
from jaxmrf.types import Leaf

__all__ = ["ConditionalPlan", "conditional_plan", "forest_blocks"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class ConditionalPlan:
    """Some variables given the rest.

    Attributes:
        nodes: The variables, as numbered in the whole model, ``[block]``.
        evidence: Places of their states in its log evidence.
        places: Place of every entry of the smaller model's tables if the rest is in state 0.
        owners: Factor of the smaller model that every entry belongs to.
        others: The rest's variables in each of these factors, ``[factors, others]``.
        strides: Distance between two states of theirs, ``[factors, others]``.
        hypergraph: Structure of the smaller model.
    """

    nodes: Leaf
    evidence: Leaf
    places: Leaf
    owners: Leaf
    others: Leaf
    strides: Leaf
    hypergraph: Hypergraph = field(metadata={"static": True})


def conditional_plan(hypergraph: Hypergraph, nodes: Sequence[int]) -> ConditionalPlan:
    """The plan of some variables given the rest.

    Args:
        hypergraph: Structure of the whole model.
        nodes: Variables of the smaller one.

    Raises:
        ValueError: If a variable does not exist or is named twice.
    """
    nodes = [int(node) for node in nodes]
    if len(set(nodes)) < len(nodes) or not set(nodes) <= set(range(hypergraph.num_nodes)):
        raise ValueError(
            f"conditional_plan: expected different variables in 0..{hypergraph.num_nodes - 1}, got "
            f"{nodes[:8]}; name each once"
        )
    number = {node: place for place, node in enumerate(nodes)}
    factors = [
        factor
        for factor, scope in enumerate(hypergraph.scopes)
        if any(node in number for node in scope)
    ]
    sizes = hypergraph.num_states
    scopes = [
        [number[node] for node in hypergraph.scopes[factor] if node in number] for factor in factors
    ]
    smaller = Hypergraph([sizes[node] for node in nodes], scopes)
    width = max((len(hypergraph.scopes[factor]) for factor in factors), default=0)
    others = np.zeros((len(factors), width), np.int32)
    strides = np.zeros((len(factors), width), np.int32)
    places = np.zeros(smaller.num_entries, np.int32)
    owners = np.zeros(smaller.num_entries, np.int32)
    for row, factor in enumerate(factors):
        scope, column = hypergraph.scopes[factor], 0
        levels = np.indices(smaller.table_shape(row)).reshape(len(scopes[row]), -1)
        place = np.full(levels.shape[1], hypergraph.table_starts[factor])
        for axis, node in enumerate(scope):
            stride = math.prod(sizes[one] for one in scope[axis + 1 :])
            if node in number:
                place += stride * levels[scopes[row].index(number[node])]
            else:
                others[row, column], strides[row, column] = node, stride
                column += 1
        start = smaller.table_starts[row]
        places[start : start + len(place)] = place
        owners[start : start + len(place)] = row
    parts = [hypergraph.node_starts[node] + np.arange(sizes[node]) for node in nodes]
    return ConditionalPlan(
        nodes=np.array(nodes, np.int32),
        evidence=np.concatenate(parts).astype(np.int32),
        places=places,
        owners=owners,
        others=others,
        strides=strides,
        hypergraph=smaller,
    )


def forest_blocks(hypergraph: Hypergraph, *, seed: int = 0) -> list[list[int]]:
    """A partition of the variables in few blocks, each without a cycle given the rest.

    Args:
        hypergraph: Variables and scopes.
        seed: Seed of the order in which variables are taken.

    >>> square = Hypergraph([2] * 4, [(0, 1), (1, 2), (2, 3), (3, 0)])
    >>> sorted(map(len, forest_blocks(square)))
    [1, 3]
    """
    left = list(range(hypergraph.num_nodes))
    random.Random(seed).shuffle(left)
    blocks = []
    while left:
        tree: dict[int, int] = {}  # variables of the block and the next on the way to their root

        def root(node: int, tree=tree) -> int:
            while tree[node] != node:
                tree[node] = node = tree[tree[node]]
            return node

        # from a variable to its neighbours: blocks of long branches rather than of crumbs
        stack, rest, seen = list(left), [], set()
        while stack:
            node = stack.pop()
            if node in seen:
                continue
            seen.add(node)
            inside = [root(other) for other in hypergraph.neighbors[node] if other in tree]
            if len(set(inside)) < len(inside):
                rest.append(node)
                continue
            tree[node] = node
            for other in inside:
                tree[other] = node
            waiting = hypergraph.neighbors[node] & set(left) - seen
            stack.extend(sorted(waiting))
        blocks.append(sorted(tree))
        left = rest
    return blocks
