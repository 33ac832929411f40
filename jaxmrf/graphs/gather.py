"""An elimination as one list of gathers, whose compiled form does not grow with the model.

Every entry of every message is a row ``sum_j prod_k buffer[index[j, k]]``: j runs over the states
of the variable summed out, k over the tables multiplied. Rows are packed in steps of equal size, a
row never before the rows it reads, so one scanned body does the whole elimination. Buckets of more
than a few tables are multiplied in several rows. It suits the many small buckets of a model; the
few large ones are left over as a smaller model (``split_plan``).
"""

import heapq
import math
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

import jax
import numpy as np

from jaxmrf.graphs.elimination import EliminationPlan
from jaxmrf.graphs.hypergraph import Hypergraph
from jaxmrf.graphs.junction import junction_tree
from jaxmrf.types import Leaf

__all__ = ["MERGE_BELOW", "GatherPlan", "SplitPlan", "split_plan"]

MERGE_BELOW = 512
"""Cliques of the rest are merged up to this number of entries."""

_NUM_TABLES = 3  # multiplied in one row
_SMALL = 256  # entries up to which tables of a large bucket are multiplied first
_STEP_COST = 400  # gathered entries that cost as much as starting a step


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class GatherPlan:
    """Rows of a partial elimination.

    The buffer holds the log tables, the log evidence, a one, a zero, then the rows.

    Attributes:
        index: Places in the buffer read by each row, shape ``[steps, rows, states, tables]``.
        roots: Places of the constants left by eliminated components, shape ``[roots]``.
        start: Place of the first row.
    """

    index: Leaf
    roots: Leaf
    start: int = field(metadata={"static": True})

    @property
    def size(self) -> int:
        """Length of the buffer."""
        num_steps, num_rows = self.index.shape[:2]
        return self.start + num_steps * num_rows

    @property
    def step_starts(self) -> np.ndarray:
        """Place of the first row of every step, ``[steps]``."""
        num_steps, num_rows = self.index.shape[:2]
        return self.start + num_rows * np.arange(num_steps, dtype=np.int32)


class SplitPlan(NamedTuple):
    """An elimination in two parts, the small buckets by gathers and the rest as a smaller model.

    Attributes:
        gather: Rows of the small buckets.
        rest: Plan of the variables left over, numbered anew in the order of their elimination.
        tables: Places in the buffer of the tables of ``rest``, in the order of its flat array;
            the evidence is among them.
        reads: For every variable of the gathers, in the order of elimination, the tables that its
            distribution given its separator is the product of: pairs of place and scope.
    """

    gather: GatherPlan
    rest: EliminationPlan
    tables: np.ndarray
    reads: tuple[tuple[int, tuple[tuple[int, tuple[int, ...]], ...]], ...]


class _Table(NamedTuple):
    scope: tuple[int, ...]
    place: int  # first entry of a table that is given; else the row operation that makes it
    is_given: bool


class _Operation(NamedTuple):
    tables: tuple[_Table, ...]
    scope: tuple[int, ...]  # of the result
    node: int | None  # variable summed out


@lru_cache(maxsize=64)
def split_plan(plan: EliminationPlan, max_cells: int = 2048) -> SplitPlan:
    """The two parts of a plan.

    Args:
        plan: Elimination plan.
        max_cells: Largest bucket that goes to the gathers, with all buckets below it.
    """
    graph = plan.hypergraph
    is_small = np.zeros(graph.num_nodes, bool)
    for step, bucket in enumerate(plan.buckets):
        is_small[step] = plan.num_cells[step] <= max_cells and all(
            is_small[child] for child in bucket.children
        )
    operations: list[_Operation] = []
    messages: dict[int, _Table] = {}
    roots, left = [], []
    given = {
        factor: _Table(scope, int(graph.table_starts[factor]), True)
        for factor, scope in enumerate(graph.scopes)
    }
    for step, bucket in enumerate(plan.buckets):
        inputs = [given[factor] for factor in bucket.factors]
        inputs += [messages.pop(child) for child in bucket.children if child in messages]
        evidence = graph.num_entries + int(graph.node_starts[bucket.node])
        inputs.append(_Table((bucket.node,), evidence, True))
        if not is_small[step]:
            left += inputs
            continue
        inputs = _combine(inputs, graph.num_states, operations)
        operations.append(_Operation(tuple(inputs), bucket.separator, bucket.node))
        message = _Table(bucket.separator, len(operations) - 1, False)
        if bucket.separator:
            messages[step] = message
        else:
            roots.append(message)
    left = _combine_left(plan, is_small, left, operations)
    start = graph.num_entries + graph.num_node_entries + 2
    index, places = _pack(operations, graph.num_states, start)
    constants = [given[factor] for factor, scope in enumerate(graph.scopes) if not scope]
    find = lambda table: table.place if table.is_given else places[table.place]  # noqa: E731
    gather = GatherPlan(
        index=index,
        roots=np.array([find(table) for table in roots + constants], np.int32),
        start=start,
    )
    rest = _rest(plan, is_small, left)
    tables = np.empty(rest.hypergraph.num_entries, np.int32)
    for factor, table in enumerate(left):
        first = rest.hypergraph.table_starts[factor]
        size = math.prod(rest.hypergraph.table_shape(factor))
        tables[first : first + size] = find(table) + np.arange(size)
    reads = tuple(
        (one.node, tuple((find(table), table.scope) for table in one.tables))
        for one in operations
        if one.node is not None
    )
    return SplitPlan(gather, rest, tables, reads)


def _combine(inputs: list[_Table], num_states, operations: list[_Operation]) -> list[_Table]:
    """At most a few tables with the same product, made by operations that sum nothing out."""
    while len(inputs) > _NUM_TABLES:
        inputs = sorted(inputs, key=lambda one: math.prod(num_states[v] for v in one.scope))
        number = min(_NUM_TABLES, len(inputs) - _NUM_TABLES + 1)
        taken = inputs[:number]
        scope = tuple(dict.fromkeys(node for table in taken for node in table.scope))
        operations.append(_Operation(tuple(taken), scope, None))
        inputs = [*inputs[number:], _Table(scope, len(operations) - 1, False)]
    return inputs


def _combine_left(plan, is_small, left: list[_Table], operations: list[_Operation]) -> list[_Table]:
    """The tables of the large buckets, small ones of a common clique multiplied beforehand."""
    num_states = plan.hypergraph.num_states
    cells = lambda scope: math.prod(num_states[node] for node in scope)  # noqa: E731
    rest = _rest(plan, is_small, left)
    found: list[_Table] = []
    for clique in junction_tree(rest, MERGE_BELOW):
        inputs = [left[factor] for factor in clique.factors]
        while inputs:
            inputs.sort(key=lambda one: cells(one.scope))
            taken = [inputs.pop(0)]
            scope = taken[0].scope
            while inputs and len(taken) < _NUM_TABLES:
                union = lambda one, scope=scope: tuple(dict.fromkeys(scope + one.scope))  # noqa: E731
                best = min(inputs, key=lambda one: cells(union(one)))
                if cells(union(best)) > max(_SMALL, cells(best.scope)):
                    break
                inputs.remove(best)
                taken.append(best)
                scope = union(best)
            if len(taken) == 1:
                found += taken
            else:
                operations.append(_Operation(tuple(taken), scope, None))
                inputs.append(_Table(scope, len(operations) - 1, False))
    return found


def _pack(operations: list[_Operation], num_states, start: int) -> tuple[np.ndarray, list[int]]:
    """The index of all rows, packed in steps, and the place of every operation's result."""
    sizes = [math.prod(num_states[node] for node in one.scope) for one in operations]
    readers: list[list[int]] = [[] for _ in operations]
    missing = [0] * len(operations)
    for number, one in enumerate(operations):
        for table in one.tables:
            if not table.is_given:
                readers[table.place].append(number)
                missing[number] += 1
    height = [0] * len(operations)  # rows still to come above
    for number in reversed(range(len(operations))):
        height[number] = 1 + max((height[reader] for reader in readers[number]), default=0)
    num_values = max(
        (num_states[one.node] for one in operations if one.node is not None), default=1
    )
    entries = num_values * _NUM_TABLES
    best = None
    for num_rows in (2**power for power in range(3, 13)):
        steps = _schedule(sizes, readers, missing, height, num_rows)
        cost = len(steps) * (_STEP_COST + num_rows * entries)
        if best is None or cost < best[0]:
            best = cost, num_rows, steps
        elif cost > 2 * best[0]:
            break
    _, num_rows, steps = best
    num_rows = num_rows if steps else 0
    places = [0] * len(operations)
    for step, parts in enumerate(steps):
        for row, number, first, _ in parts:
            if first == 0:
                places[number] = start + step * num_rows + row
    one, zero = start - 2, start - 1
    index = np.full((len(steps), num_rows, num_values, _NUM_TABLES), one, np.int32)
    index[:, :, 1:, 0] = zero
    rows = None
    for step, parts in enumerate(steps):
        for row, number, first, stop in parts:
            if first == 0:
                rows = _rows(operations[number], num_states, places)
            part = rows[first:stop]
            index[step, row : row + len(part), : part.shape[1], : part.shape[2]] = part
    return index, places


def _schedule(sizes, readers, missing, height, num_rows: int) -> list[list[tuple]]:
    """Steps of rows (row, operation, first, stop), the operations with most above them first."""
    missing = list(missing)
    ready = [(-height[one], one) for one in range(len(sizes)) if missing[one] == 0]
    heapq.heapify(ready)
    steps, rest = [], None  # an operation cut at the end of a step goes on in the next
    while ready or rest:
        parts, row, done = [], 0, []
        while row < num_rows and (ready or rest):
            number, first = rest or (heapq.heappop(ready)[1], 0)
            stop = min(sizes[number], first + num_rows - row)
            parts.append((row, number, first, stop))
            row += stop - first
            rest = (number, stop) if stop < sizes[number] else None
            if rest is None:
                done.append(number)
        steps.append(parts)
        for number in done:
            for reader in readers[number]:
                missing[reader] -= 1
                if missing[reader] == 0:
                    heapq.heappush(ready, (-height[reader], reader))
    return steps


def _rows(one: _Operation, num_states, places: list[int]) -> np.ndarray:
    """Places read by every entry of an operation's result, shape ``[rows, states, tables]``."""
    axes = [*one.scope, *([] if one.node is None else [one.node])]
    shape = [num_states[node] for node in axes]
    levels = np.indices(shape).reshape(len(shape), -1)
    number = 1 if one.node is None else num_states[one.node]
    index = np.empty((math.prod(shape) // number, number, len(one.tables)), np.int64)
    for column, table in enumerate(one.tables):
        place = np.full(levels.shape[1], table.place if table.is_given else places[table.place])
        stride = 1
        for node in reversed(table.scope):
            place += stride * levels[axes.index(node)]
            stride *= num_states[node]
        index[:, :, column] = place.reshape(-1, number)
    return index


def _rest(plan: EliminationPlan, is_small: np.ndarray, left: list[_Table]):
    """The model of the large buckets, its variables numbered in the order of their elimination."""
    buckets = zip(plan.buckets, is_small, strict=True)
    nodes = [bucket.node for bucket, is_done in buckets if not is_done]
    number = {node: place for place, node in enumerate(nodes)}
    scopes = [tuple(number[node] for node in table.scope) for table in left]
    hypergraph = Hypergraph([plan.hypergraph.num_states[node] for node in nodes], scopes)
    return EliminationPlan(hypergraph, range(len(nodes)))
