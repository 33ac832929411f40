"""Which variables each factor touches, and where its table lies in memory.

A factor graph's structure: variables with their numbers of states, and one scope (a tuple of
variables) per factor. All tables of a factor graph are kept in one flat array, tables of equal
shape one after another, so that they can be read as stacks. Reference: Kschischang, Frey & Loeliger
(2001), "Factor graphs and the sum-product algorithm".
"""

import math
from collections.abc import Iterable
from functools import cached_property
from typing import NamedTuple, SupportsIndex

import jax
import numpy as np

from jaxmrf.graphs.graph import Graph

__all__ = ["Hypergraph", "Stack"]


class Stack(NamedTuple):
    """Factors whose tables have the same shape.

    Attributes:
        shape: Shape of one table.
        factors: Numbers of the factors, in the order of the stack.
        nodes: Their scopes, shape ``[factors, arity]``.
        start: Place of the first entry in the flat array of all tables.
        stop: Place after the last entry.
    """

    shape: tuple[int, ...]
    factors: np.ndarray
    nodes: np.ndarray
    start: int
    stop: int


class Hypergraph:
    """Scopes of factors over variables; immutable and hashable by content.

    Args:
        num_states: Number of states of every variable, each at least 1.
        scopes: Variables of every factor, in the order of its table's axes; an empty scope is a
            constant.

    Raises:
        ValueError: If a number of states is not positive, or a scope names a variable that does
            not exist or one twice.

    >>> structure = Hypergraph([2, 3], [(0,), (1, 0)])
    >>> structure.table_shape(1), structure.num_entries
    ((3, 2), 8)
    """

    num_states: tuple[int, ...]
    scopes: tuple[tuple[int, ...], ...]

    def __init__(self, num_states: Iterable, scopes: Iterable):
        num_states = tuple(int(number) for number in num_states)
        scopes = tuple(tuple(int(node) for node in scope) for scope in scopes)
        _check(num_states, scopes)
        object.__setattr__(self, "num_states", num_states)
        object.__setattr__(self, "scopes", scopes)
        object.__setattr__(self, "_hash", hash((num_states, scopes)))

    @property
    def num_nodes(self) -> int:
        """Number of variables."""
        return len(self.num_states)

    @property
    def num_factors(self) -> int:
        """Number of factors."""
        return len(self.scopes)

    def table_shape(self, factor: SupportsIndex) -> tuple[int, ...]:
        """Shape of a factor's table."""
        return tuple(self.num_states[node] for node in self.scopes[factor])

    @cached_property
    def stacks(self) -> tuple[Stack, ...]:
        """Factors grouped by the shape of their tables, in the order of the flat array."""
        groups: dict[tuple[int, ...], list[int]] = {}
        for factor in range(self.num_factors):
            groups.setdefault(self.table_shape(factor), []).append(factor)
        stacks, start = [], 0
        for shape in sorted(groups, key=lambda shape: (len(shape), shape)):
            factors = np.array(groups[shape])
            nodes = np.array([self.scopes[factor] for factor in factors], np.int32)
            stop = start + len(factors) * math.prod(shape)
            stacks.append(Stack(shape, factors, nodes.reshape(len(factors), -1), start, stop))
            start = stop
        return tuple(stacks)

    @cached_property
    def table_starts(self) -> np.ndarray:
        """Place of the first entry of every factor's table in the flat array, ``[factors]``."""
        starts = np.zeros(self.num_factors, np.int64)
        for stack in self.stacks:
            size = math.prod(stack.shape)
            starts[stack.factors] = stack.start + size * np.arange(len(stack.factors))
        return starts

    @cached_property
    def num_entries(self) -> int:
        """Number of entries of all tables."""
        return self.stacks[-1].stop if self.stacks else 0

    @cached_property
    def node_starts(self) -> np.ndarray:
        """Place of the first state of every variable in a flat array of all states, ``[nodes]``."""
        return np.cumsum((0, *self.num_states))[:-1]

    @cached_property
    def num_node_entries(self) -> int:
        """Number of states of all variables together."""
        return sum(self.num_states)

    @cached_property
    def node_owners(self) -> np.ndarray:
        """Variable of every place in a flat array of all states, ``[node_entries]``."""
        return np.repeat(np.arange(self.num_nodes, dtype=np.int32), self.num_states)

    @cached_property
    def node_levels(self) -> np.ndarray:
        """State at every place in a flat array of all states, ``[node_entries]``."""
        places = np.arange(self.num_node_entries)
        return (places - self.node_starts[self.node_owners]).astype(np.int32)

    @cached_property
    def neighbors(self) -> tuple[frozenset[int], ...]:
        """For every variable, the others that share a factor with it."""
        found: list[set[int]] = [set() for _ in self.num_states]
        for scope in self.scopes:
            for node in scope:
                found[node].update(scope)
        return tuple(frozenset(others - {node}) for node, others in enumerate(found))

    def primal_graph(self) -> Graph:
        """The graph that joins variables of a common factor (the moral graph of a network)."""
        pairs = (
            (node, other)
            for node, others in enumerate(self.neighbors)
            for other in sorted(others)
            if node < other
        )
        return Graph(self.num_nodes, pairs)

    def __setattr__(self, name, value):
        raise AttributeError(
            f"Hypergraph: expected no assignment, got {name}; build another Hypergraph"
        )

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other) -> bool:
        return self is other or (
            isinstance(other, Hypergraph)
            and self._hash == other._hash
            and self.num_states == other.num_states
            and self.scopes == other.scopes
        )

    def __reduce__(self):
        return (Hypergraph, (self.num_states, self.scopes))

    def __repr__(self) -> str:
        return f"Hypergraph(num_nodes={self.num_nodes}, num_factors={self.num_factors})"


def _check(num_states: tuple[int, ...], scopes: tuple[tuple[int, ...], ...]) -> None:
    for node, number in enumerate(num_states):
        if number < 1:
            raise ValueError(
                f"Hypergraph: expected every variable to have at least one state, got {number} for "
                f"variable {node}; pass its number of states"
            )
    for factor, scope in enumerate(scopes):
        missing = [node for node in scope if not 0 <= node < len(num_states)]
        if missing:
            raise ValueError(
                f"Hypergraph: expected variables in 0..{len(num_states) - 1}, got {missing[0]} in "
                f"factor {factor}; raise the number of variables or mend the scope"
            )
        if len(set(scope)) < len(scope):
            raise ValueError(
                f"Hypergraph: expected every variable once in a scope, got {scope} in factor "
                f"{factor}; take the diagonal of its table instead"
            )


jax.tree_util.register_static(Hypergraph)
