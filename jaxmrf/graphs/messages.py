"""Where the messages of belief propagation lie in memory, and how they are added up at the nodes.

A message goes from a factor of two or more variables to each of its variables. All messages are one
flat array: stack by stack, position by position of a scope, and there states first and factors
last, so that arithmetic runs along the factors. The inbox of every node is a list of slots:
slot d holds the d-th message of all nodes that have so many, so a sum over messages is a few
gathers and no scatter. Reference: Kschischang, Frey & Loeliger (2001).
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from jaxmrf.graphs.hypergraph import Hypergraph, Stack

__all__ = ["MessagePlan", "MessageStack", "message_plan"]

_MAX_SLOTS = 16  # messages beyond these, of hubs, are scattered
_MAX_COLORS = 16


class MessageStack(NamedTuple):
    """Factors of two or more variables whose tables have the same shape.

    Attributes:
        shape: Shape of one table.
        factors: Numbers of the factors, blocks of one colour after another.
        order: Place of each of them in the stack of the hypergraph.
        start: Place of the stack's first table entry in the flat array of all tables.
        stop: Place after the last.
        messages: First and last place of the messages to every position of a scope.
        blocks: First and last factor of every colour.
    """

    shape: tuple[int, ...]
    factors: np.ndarray
    order: np.ndarray
    start: int
    stop: int
    messages: tuple[tuple[int, int], ...]
    blocks: tuple[tuple[int, int], ...]


@dataclass(frozen=True, eq=False)
class MessagePlan:
    """The layout of all messages of a factor graph; states of nodes are sorted by degree.

    Attributes:
        hypergraph: Variables and scopes.
        stacks: Factors of two or more variables.
        order: State of a variable (in the hypergraph's flat order) at every place, shape
            ``[node_entries]``, nodes with most messages first.
        place: The inverse permutation.
        owner: Place of the state that every message entry speaks of.
        factor: Factor that every message entry comes from.
        slots: For each slot, the message entry of the first so many places.
        rest: Message entries beyond the slots.
        unary: Table entries of factors of one variable, and the places they speak of.
        constants: Table entries of factors of no variable.
        groups: For every number of states, the places of the states of those nodes, states first.
        group_nodes: The nodes of every group.
        incidence: Node and factor of every message.
    """

    hypergraph: Hypergraph
    stacks: tuple[MessageStack, ...]
    order: np.ndarray
    place: np.ndarray
    owner: np.ndarray
    factor: np.ndarray
    slots: tuple[np.ndarray, ...]
    rest: np.ndarray
    unary: tuple[np.ndarray, np.ndarray]
    constants: np.ndarray
    groups: tuple[np.ndarray, ...]
    group_nodes: tuple[np.ndarray, ...]
    incidence: tuple[np.ndarray, np.ndarray]

    @property
    def num_messages(self) -> int:
        """Number of message entries."""
        return len(self.owner)

    def __repr__(self) -> str:
        return (
            f"MessagePlan({self.num_messages} message entries, {len(self.stacks)} table shapes, "
            f"{sum(len(stack.blocks) for stack in self.stacks)} blocks, {len(self.slots)} slots, "
            f"{len(self.rest)} entries beyond them)"
        )


@lru_cache(maxsize=32)
def message_plan(hypergraph: Hypergraph, *, is_colored: bool = False) -> MessagePlan:
    """The layout of the messages of a factor graph.

    Args:
        hypergraph: Variables and scopes.
        is_colored: Whether to divide every stack into blocks of factors that share no variable,
            as far as 16 blocks allow; otherwise a stack is one block.

    >>> message_plan(Hypergraph([2, 2, 2], [(0, 1), (1, 2)]))
    MessagePlan(8 message entries, 1 table shapes, 1 blocks, 2 slots, 0 entries beyond them)
    """
    owners, factors, stacks, incidence, size = [], [], [], [], 0
    for stack in hypergraph.stacks:
        if len(stack.shape) < 2:
            continue
        order, blocks = _blocks(stack, hypergraph.num_nodes, is_colored)
        # 32 bits, as jax indexes: it mistakes larger ones after its precision is switched
        order, numbers = order.astype(np.int32), stack.factors[order].astype(np.int32)
        nodes, ranges = stack.nodes[order], []
        for position, num_states in enumerate(stack.shape):
            starts = hypergraph.node_starts[nodes[:, position]]
            owners.append((starts + np.arange(num_states)[:, None]).ravel())
            factors.append(np.tile(numbers, num_states))
            incidence.append((nodes[:, position], numbers))
            ranges.append((size, size + num_states * len(numbers)))
            size = ranges[-1][1]
        stacks.append(
            MessageStack(
                stack.shape, numbers, order, stack.start, stack.stop, tuple(ranges), blocks
            )
        )
    state = np.concatenate(owners) if owners else np.zeros(0, np.int64)
    degrees = np.bincount(state, minlength=hypergraph.num_node_entries)
    order = np.argsort(-degrees, kind="stable")
    place = np.argsort(order)
    owner = place[state]
    slots, rest = _slots(owner, degrees[order])
    groups, group_nodes = _groups(hypergraph, place)
    return MessagePlan(
        hypergraph=hypergraph,
        stacks=tuple(stacks),
        order=order.astype(np.int32),
        place=place.astype(np.int32),
        owner=owner.astype(np.int32),
        factor=np.concatenate([np.zeros(0, np.int32), *factors]).astype(np.int32),
        slots=slots,
        rest=rest,
        unary=_unary(hypergraph, place),
        constants=np.array(
            [
                entry
                for stack in hypergraph.stacks
                if not stack.shape
                for entry in range(stack.start, stack.stop)
            ],
            np.int32,
        ),
        groups=groups,
        group_nodes=group_nodes,
        incidence=tuple(
            np.concatenate([np.zeros(0, np.int32), *parts]).astype(np.int32)
            for parts in ([pair[0] for pair in incidence], [pair[1] for pair in incidence])
        ),
    )


def _slots(owner: np.ndarray, degrees: np.ndarray) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
    """For each slot the message entries of the places that reach it; and the entries beyond."""
    entries = np.argsort(owner, kind="stable").astype(np.int32)
    starts = np.cumsum(degrees) - degrees
    num_slots = min(_MAX_SLOTS, int(degrees.max(initial=0)))
    slots = tuple(entries[starts[degrees > slot] + slot] for slot in range(num_slots))
    rank = np.arange(len(entries)) - np.repeat(starts, degrees)
    return slots, entries[rank >= num_slots]


def _groups(hypergraph: Hypergraph, place: np.ndarray):
    """Nodes by their number of states, with the places of these."""
    numbers = np.array(hypergraph.num_states, np.int64)
    groups, nodes = [], []
    for number in np.unique(numbers):
        own = np.flatnonzero(numbers == number)
        nodes.append(own.astype(np.int32))
        states = hypergraph.node_starts[own] + np.arange(number)[:, None]
        groups.append(place[states].astype(np.int32))
    return tuple(groups), tuple(nodes)


def _unary(hypergraph: Hypergraph, place: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Table entries of the factors of one variable, and the places they speak of."""
    entries, places = [np.zeros(0, np.int32)], [np.zeros(0, np.int32)]
    for stack in hypergraph.stacks:
        if len(stack.shape) == 1:
            starts = hypergraph.node_starts[stack.nodes[:, 0]]
            states = starts[:, None] + np.arange(stack.shape[0])
            entries.append(np.arange(stack.start, stack.stop))
            places.append(place[states.ravel()])
    return np.concatenate(entries).astype(np.int32), np.concatenate(places).astype(np.int32)


def _blocks(stack: Stack, num_nodes: int, is_colored: bool):
    """An order of a stack's factors by colour, and the first and last factor of every colour.

    Greedy; a factor that finds none of the colours free joins the smallest block, whose factors
    are then updated at once although they share a variable.
    """
    if not is_colored:
        return np.arange(len(stack.factors)), ((0, len(stack.factors)),)
    used, sizes, colors = [0] * num_nodes, [0] * _MAX_COLORS, []
    for scope in stack.nodes.tolist():
        taken = 0
        for node in scope:
            taken |= used[node]
        color = (~taken & (taken + 1)).bit_length() - 1  # the lowest bit not taken
        if color >= _MAX_COLORS:
            color = sizes.index(min(sizes))
        for node in scope:
            used[node] |= 1 << color
        sizes[color] += 1
        colors.append(color)
    stops = np.cumsum([size for size in sizes if size]).tolist()
    blocks = tuple(zip([0, *stops[:-1]], stops, strict=True))
    return np.argsort(colors, kind="stable"), blocks
