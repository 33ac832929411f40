"""For every variable of a factor graph, where its conditional distribution is read from the tables.

A block holds variables of one colour that are in about equally many factors; their conditionals
given the rest depend on disjoint sets of variables, so they are drawn at once. Reference: Pearl,
"Probabilistic Reasoning in Intelligent Systems" (1988), section 3.2 (the Markov blanket).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import jax
import numpy as np

from jaxmrf.graphs.coloring import check_colors, color
from jaxmrf.graphs.hypergraph import Hypergraph
from jaxmrf.types import Leaf

__all__ = ["BlanketBlock", "BlanketPlan", "blanket_plan"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class BlanketBlock:
    """Variables drawn at once, and the tables each is in, padded with tables of the log of one.

    Attributes:
        nodes: The variables, shape ``[block]``.
        evidence: Place of each one's first state in the log evidence, ``[block]``.
        levels: Whether a variable has that many states, ``[states, block]``.
        places: First entry of each table, ``[tables, block]``.
        own: Distance between two states of the variable in it, ``[tables, block]``.
        others: The table's other variables, ``[tables, others, block]``.
        strides: Distance between two states of theirs, ``[tables, others, block]``.
    """

    nodes: Leaf
    evidence: Leaf
    levels: Leaf
    places: Leaf
    own: Leaf
    others: Leaf
    strides: Leaf


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class BlanketPlan:
    """Blocks of a Gibbs sweep over a factor graph, in the order in which they are drawn.

    Attributes:
        blocks: The blocks.
        hypergraph: The structure they belong to.
    """

    blocks: tuple[BlanketBlock, ...]
    hypergraph: Hypergraph = field(metadata={"static": True})

    def __str__(self) -> str:
        used = sum(
            (np.asarray(one.places) < self.hypergraph.num_entries).sum() for one in self.blocks
        )
        held = sum(np.asarray(one.places).size for one in self.blocks)
        sizes = [len(one.nodes) for one in self.blocks]
        return (
            f"BlanketPlan: {sum(sizes)} variables in {len(sizes)} blocks of "
            f"{min(sizes, default=0)} to {max(sizes, default=0)}, "
            f"{1 - used / max(held, 1):.0%} padding"
        )


def blanket_plan(
    hypergraph: Hypergraph,
    *,
    colors: Sequence[int] | np.ndarray | None = None,
    nodes: Sequence[int] | None = None,
) -> BlanketPlan:
    """The plan of a Gibbs sweep.

    Args:
        hypergraph: Variables and scopes.
        colors: Colour of every variable, no two alike in one scope; by default
            ``graphs.color`` of the primal graph.
        nodes: Variables to draw; by default all. The others keep their states.

    Raises:
        ValueError: If two variables of one scope have the same colour, or a variable does not
            exist.

    >>> print(blanket_plan(Hypergraph([2] * 4, [(0, 1), (1, 2), (2, 3)])))
    BlanketPlan: 4 variables in 4 blocks of 1 to 1, 0% padding
    """
    graph = hypergraph.primal_graph()
    colors = color(graph) if colors is None else check_colors(graph, colors)
    wanted = range(hypergraph.num_nodes) if nodes is None else sorted(set(nodes))
    bad = [node for node in wanted if not 0 <= node < hypergraph.num_nodes]
    if bad:
        raise ValueError(
            f"blanket_plan: expected variables in 0..{hypergraph.num_nodes - 1}, got {bad[0]}; "
            "variables are numbered from 0"
        )
    factors: list[list[int]] = [[] for _ in range(hypergraph.num_nodes)]
    for factor, scope in enumerate(hypergraph.scopes):
        for node in scope:
            factors[node].append(factor)
    # one block for each colour and each power of two of the number of tables: little padding
    groups: dict[tuple[int, int], list[int]] = {}
    for node in wanted:
        groups.setdefault((int(colors[node]), len(factors[node]).bit_length()), []).append(node)
    blocks = tuple(_block(hypergraph, groups[key], factors) for key in sorted(groups))
    return BlanketPlan(blocks, hypergraph)


def _block(graph: Hypergraph, nodes: list[int], factors: list[list[int]]) -> BlanketBlock:
    num_tables = max(len(factors[node]) for node in nodes)
    num_others = max(
        (len(graph.scopes[one]) - 1 for node in nodes for one in factors[node]), default=0
    )
    places = np.full((num_tables, len(nodes)), graph.num_entries, np.int32)
    own = np.zeros_like(places)
    others = np.zeros((num_tables, num_others, len(nodes)), np.int32)
    strides = np.zeros_like(others)
    for row, node in enumerate(nodes):
        for table, factor in enumerate(factors[node]):
            scope = graph.scopes[factor]
            places[table, row] = graph.table_starts[factor]
            column = 0
            for axis, other in enumerate(scope):
                stride = math.prod(graph.num_states[one] for one in scope[axis + 1 :])
                if other == node:
                    own[table, row] = stride
                else:
                    others[table, column, row], strides[table, column, row] = other, stride
                    column += 1
    sizes = np.array([graph.num_states[node] for node in nodes])
    return BlanketBlock(
        nodes=np.array(nodes, np.int32),
        evidence=graph.node_starts[nodes].astype(np.int32),
        levels=np.arange(sizes.max())[:, None] < sizes,
        places=places,
        own=own,
        others=others,
        strides=strides,
    )
