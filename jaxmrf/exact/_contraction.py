"""Log Z of a model of few large cliques by products of two tables at a time.

In double precision the tables are held in linear space, each divided by its largest entry, which
matrix products make ten times faster; what is 10^300 times smaller than its neighbours is lost. In
single precision, where 10^38 would be the limit, they are held as logs, and nothing is lost.
"""

import math
from collections.abc import Callable
from itertools import combinations
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxmrf.graphs import EliminationPlan, junction_tree
from jaxmrf.graphs.gather import MERGE_BELOW
from jaxmrf.logspace import log_sum
from jaxmrf.types import Array

__all__ = ["contract_all"]


class _Space(NamedTuple):
    """How tables are held."""

    enter: Callable[[Array], Array]  # from logs
    multiply: Callable[[Array, Array], Array]  # [summed, batch, own], [summed, batch, other]
    add: Callable[[Array], Array]  # over the first axis
    scale: Callable[[Array], tuple[Array, Array]]  # a table and the log of what divides it
    leave: Callable[[Array], Array]  # to logs


def _divide_by_top(table: Array) -> tuple[Array, Array]:
    top = jax.lax.stop_gradient(table.max())
    top = jnp.where(top > 0, top, 1)
    return table / top, jnp.log(top)


def _log_or_minus_infinity(mass: Array) -> Array:
    return jnp.where(mass > 0, jnp.log(jnp.where(mass > 0, mass, 1)), -jnp.inf)


def _matrix_products(first: Array, second: Array) -> Array:
    # accelerators round the factors of matrix products unless told otherwise
    return jnp.einsum("cbi,cbj->bji", first, second, precision="highest")


@jax.checkpoint
def _log_products(first: Array, second: Array) -> Array:
    """Log of the sum over the first axis; the large product is not kept for derivatives."""
    return log_sum(first[:, :, None, :] + second[:, :, :, None], axis=0)


_LINEAR = _Space(
    enter=jnp.exp,
    multiply=_matrix_products,
    add=lambda table: table.sum(axis=0),
    scale=_divide_by_top,
    leave=_log_or_minus_infinity,
)
_LOG = _Space(
    enter=lambda logs: logs,
    multiply=_log_products,
    add=lambda table: log_sum(table, axis=0),
    scale=lambda table: (table, jnp.zeros((), table.dtype)),
    leave=lambda mass: mass,
)


def contract_all(plan: EliminationPlan, log_tables: Array) -> Array:
    """Log Z of a model without evidence, differentiable to any order."""
    graph = plan.hypergraph
    space = _LINEAR if jnp.finfo(log_tables.dtype).bits > 32 else _LOG
    tables, total = [None] * graph.num_factors, jnp.zeros((), log_tables.dtype)
    for stack in graph.stacks:
        part = log_tables[stack.start : stack.stop].reshape((len(stack.factors), -1))
        top = jax.lax.stop_gradient(part.max(axis=1, keepdims=True))
        top = jnp.where(top == -jnp.inf, 0, top)
        total += top.sum()
        part = space.enter(part - top)
        for row, factor in enumerate(stack.factors):
            tables[factor] = part[row]
    cliques = junction_tree(plan, MERGE_BELOW)
    messages = [None] * len(cliques)
    for place, clique in enumerate(cliques):
        inputs = [(tables[factor], graph.scopes[factor]) for factor in clique.factors]
        inputs += [messages[child] for child in clique.children]
        message, scope, scale = _contract(space, inputs, set(clique.separator), graph.num_states)
        total += scale
        if clique.parent < 0:
            total += space.leave(message[0])
        messages[place] = message, scope
    return total


def _contract(space: _Space, inputs: list, kept: set, num_states):
    """The product of all tables summed over what is not kept, its scope and the log of its scale.

    Every product is scaled: that of many tables would be too small.
    """
    scale = jnp.zeros((), inputs[0][0].dtype)
    size = lambda scope: math.prod(num_states[node] for node in scope)  # noqa: E731
    while len(inputs) > 1:
        options = []
        for first, second in combinations(range(len(inputs)), 2):
            others = [
                scope for place, (_, scope) in enumerate(inputs) if place not in (first, second)
            ]
            needed = kept.union(*others)
            both = dict.fromkeys(inputs[first][1] + inputs[second][1])
            gain = size(inputs[first][1]) + size(inputs[second][1])
            after = size(node for node in both if node in needed)
            options.append((after - gain, size(both), first, second, needed))
        _, _, first, second, needed = min(options, key=lambda option: option[:4])
        right, left = inputs.pop(second), inputs.pop(first)
        table, scope = _multiply(space, left, right, needed, size)
        table, log_top = space.scale(table)
        scale += log_top
        inputs.append((table, scope))
    ((table, scope),) = inputs
    free = [node for node in scope if node in kept]
    summed = [node for node in scope if node not in kept]
    if summed:
        table, log_top = space.scale(space.add(_arrange(table, scope, (summed, free), size)))
        scale += log_top
    return table, tuple(free), scale


def _multiply(space: _Space, left: tuple, right: tuple, needed: set, size):
    """Product of two flat tables, summed over what is in both and not needed any more.

    Variables that go the same way are one axis: axes by the dozen are slow to compile and to run.
    """
    if size(left[1]) < size(right[1]):
        left, right = right, left
    (first, first_scope), (second, second_scope) = left, right
    is_shared = set(first_scope) & set(second_scope)
    batch = [node for node in first_scope if node in is_shared and node in needed]
    summed = [node for node in first_scope if node in is_shared and node not in needed]
    own = [node for node in first_scope if node not in is_shared]
    other = [node for node in second_scope if node not in is_shared]
    first = _arrange(first, first_scope, (summed, batch, own), size)
    second = _arrange(second, second_scope, (summed, batch, other), size)
    return space.multiply(first, second).ravel(), (*batch, *other, *own)


def _arrange(table: Array, scope, groups, size) -> Array:
    """The flat table with one axis for each group of variables."""
    place = {node: number for number, node in enumerate(scope)}
    order = [node for group in groups for node in group]
    starts = {
        node
        for number, node in enumerate(order)
        if number == 0 or place[node] != place[order[number - 1]] + 1
    }
    runs: list[list[int]] = []  # variables that stay side by side, as they lie now
    for node in scope:
        if node in starts:
            runs.append([])
        runs[-1].append(node)
    number = {run[0]: position for position, run in enumerate(runs)}
    axes = [number[node] for node in order if node in starts]
    table = table.reshape([size(run) for run in runs]).transpose(axes)
    return table.reshape([size(group) for group in groups])
