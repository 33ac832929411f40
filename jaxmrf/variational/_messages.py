"""One update of all messages of a factor graph, table shape by table shape.

Messages are logs with largest entry 0. Tables and messages have the factors on the last axis.
"""

from collections.abc import Callable
from functools import partial, reduce
from typing import Any, NamedTuple

import jax.numpy as jnp

from jaxmrf.graphs.messages import MessagePlan
from jaxmrf.types import Array, ArrayLike

__all__ = [
    "IMPOSSIBLE",
    "Kernel",
    "Potentials",
    "add_messages",
    "cavities",
    "incoming",
    "join",
    "kernel_of",
    "largest",
    "outgoing",
    "split",
    "sweep_of",
    "times",
    "total",
    "update",
]

IMPOSSIBLE = -1e9
"""Log evidence of a state that cannot be: its exponential is 0, and its arithmetic finite."""

_MAX_UNROLLED = 16
_MIN_FACTORS_UNROLLED = 128
_NUM_BARS = 20


class Kernel(NamedTuple):
    """The arithmetic of one semiring.

    Attributes:
        prepare: From log tables to the tables the kernel works on.
        enter: From log cavity messages to what multiplies a table.
        contract: From a table and what multiplies it along an axis, to the table without it.
        leave: From what is left of a table to a log message, not normalised.
    """

    prepare: Callable
    enter: Callable
    contract: Callable
    leave: Callable


class Potentials(NamedTuple):
    """What the messages of a factor graph depend on.

    Attributes:
        tables: For every stack its tables as the kernel wants them, factors last.
        evidence: Log evidence at every place, finite.
        weights: Weight of every message entry; None if all are one.
    """

    tables: list
    evidence: Array
    weights: Array | None


def _tiny(x):
    return jnp.finfo(x.dtype).tiny


def largest(table: Array, *axes: int) -> Array:
    """The maximum over axes, kept with size 1."""
    return _fold(jnp.maximum, jnp.max, table, axes)


def total(table: Array, *axes: int) -> Array:
    """The sum over axes, kept with size 1."""
    return _fold(jnp.add, jnp.sum, table, axes)


def _fold(combine: Callable, function: Callable, table: Array, axes: tuple[int, ...]) -> Array:
    """A reduction over axes, which keep size 1."""
    for axis in axes:
        if _is_unrolled(table, axis):
            table = reduce(combine, _states(table, axis))
        else:
            table = function(table, axis=axis, keepdims=True)
    return table


def _is_unrolled(table: Array, axis: int) -> bool:
    """Whether to reduce state by state, on the CPU ten times faster than over a leading axis.

    The programs are larger, which many stacks of few factors would not repay.
    """
    return table.shape[axis] <= _MAX_UNROLLED and table.shape[-1] >= _MIN_FACTORS_UNROLLED


def _states(table: Array, axis: int) -> list[Array]:
    return jnp.split(table, table.shape[axis], axis=axis)


def _finite(top):
    return jnp.where(top > -jnp.inf, top, 0)


def _exp_below_top(logs, *axes):
    return jnp.exp(logs - _finite(largest(logs, *axes)))


def times(table: Array, factor: Array, axis: int) -> Array:
    """The sum over one axis of a product, the contraction of probabilities."""
    if not _is_unrolled(table, axis):
        return (table * factor).sum(axis=axis)
    pairs = zip(_states(table, axis), _states(factor, axis), strict=True)
    return reduce(jnp.add, (entry * own for entry, own in pairs)).squeeze(axis)


def _log_times(table, factor, axis):
    table = table + factor
    top = _finite(largest(table, axis))
    sums = total(jnp.exp(table - top), axis)
    return (jnp.log(jnp.maximum(sums, _tiny(sums))) + top).squeeze(axis)


def _same(logs):
    return logs


_SUM = Kernel(
    prepare=lambda logs: _exp_below_top(logs, *range(logs.ndim - 1)),
    enter=lambda logs: _exp_below_top(logs, 0),
    contract=times,
    leave=lambda sums: jnp.log(jnp.maximum(sums, _tiny(sums))),
)
_LOG_SUM = Kernel(_same, _same, _log_times, _same)
_MAX = Kernel(
    prepare=_same,
    enter=_same,
    contract=lambda table, factor, axis: largest(table + factor, axis).squeeze(axis),
    leave=_same,
)


def kernel_of(is_max: bool, is_log_domain: bool) -> Kernel:
    """The arithmetic of max-product, or of sum-product on logs or on probabilities."""
    return _MAX if is_max else _LOG_SUM if is_log_domain else _SUM


def outgoing(table: Array, entering: list[Array], contract: Callable) -> list[Array]:
    """To each axis but the last, the table contracted with what enters along all others.

    By halves: what all axes of the one half need, the contraction of the other, is done once.
    """
    found = []

    def contract_range(table, low, high, kept):
        for axis in reversed(range(low, high)):
            place = axis - kept
            shape = [1] * table.ndim
            shape[place], shape[-1] = table.shape[place], table.shape[-1]
            table = contract(table, entering[axis].reshape(shape), place)
        return table

    def visit(table, low, high):
        if high - low == 1:
            found.append(table)
            return
        middle = (low + high) // 2
        visit(contract_range(table, middle, high, low), low, middle)
        visit(contract_range(table, low, middle, low), middle, high)

    visit(table, 0, len(entering))
    return found


def split(plan: MessagePlan, flat: ArrayLike) -> list[list[ArrayLike]]:
    """A flat array of message entries as one array [states, factors] per stack and position."""
    return [
        [
            flat[start:stop].reshape(num_states, -1)
            for num_states, (start, stop) in zip(stack.shape, stack.messages, strict=True)
        ]
        for stack in plan.stacks
    ]


def join(parts: list[list[Array]]) -> Array:
    """The inverse of `split`."""
    return jnp.concatenate([part.ravel() for stack in parts for part in stack])


def add_messages(plan: MessagePlan, messages: Array, start: Array) -> Array:
    """At every place the start plus all messages that speak of it."""
    sums = start
    for slot in plan.slots:
        sums = sums.at[: len(slot)].add(messages[slot])
    if len(plan.rest):
        sums = sums.at[plan.owner[plan.rest]].add(messages[plan.rest])
    return sums


def incoming(plan: MessagePlan, potentials: Potentials, messages: Array) -> Array:
    """Log beliefs of all nodes, not normalised, at their places."""
    weighted = messages if potentials.weights is None else messages * potentials.weights
    return add_messages(plan, weighted, potentials.evidence)


def cavities(plan: MessagePlan, potentials: Potentials, messages: Array) -> Array:
    """For every message entry the log belief of its node without the message."""
    return incoming(plan, potentials, messages)[plan.owner] - messages


def _send(table: Array, logs: list[Array], kernel: Kernel) -> list[Array]:
    """Messages out of the factors of one block, largest entry 0."""
    entering = [kernel.enter(part) for part in logs]
    sent = [kernel.leave(left) for left in outgoing(table, entering, kernel.contract)]
    sent = [part - largest(part, 0) for part in sent]
    return [jnp.maximum(part, IMPOSSIBLE) for part in sent] if kernel is not _SUM else sent


def update(plan: MessagePlan, kernel: Kernel, potentials: Potentials, messages: Array) -> Array:
    """All messages computed anew from all messages."""
    logs = split(plan, cavities(plan, potentials, messages))
    pairs = zip(potentials.tables, logs, strict=True)
    return join([_send(table, parts, kernel) for table, parts in pairs])


def _change(new: Array, old: Array) -> Array:
    """Differences of messages whose largest entry is 1."""
    return jnp.abs(jnp.exp(new) - jnp.exp(old))


def flood(plan, kernel, damping, potentials, messages):
    """Every message at once; returns them and the largest change."""
    new = update(plan, kernel, potentials, messages)
    residual = _change(new, messages).max(initial=0)
    return new + damping * (messages - new) if damping else new, residual


def residual_flood(plan, kernel, damping, share, potentials, messages):
    """Every message computed, and those of the share of factors with largest changes sent."""
    new = update(plan, kernel, potentials, messages)
    changes = split(plan, _change(new, messages))
    by_factor = [reduce(jnp.maximum, [largest(part, 0)[0] for part in stack]) for stack in changes]
    every = jnp.concatenate(by_factor)
    # halving the bar until enough factors pass it: a sort takes ten times as long
    bars = every.max(initial=0) * 0.5 ** jnp.arange(1, _NUM_BARS + 1, dtype=every.dtype)
    is_low = (every >= bars[:, None]).sum(axis=1) >= share * len(every)
    bar = bars[jnp.where(is_low.any(), is_low.argmax(), _NUM_BARS - 1)]
    new = new + damping * (messages - new) if damping else new
    is_sent = join(
        [
            [jnp.broadcast_to(own >= bar, part.shape) for part in stack]
            for own, stack in zip(by_factor, changes, strict=True)
        ]
    )
    return jnp.where(is_sent, new, messages), every.max(initial=0)


def sequential(plan, kernel, damping, potentials, messages):
    """One block of factors after another, each from the latest messages."""
    sums = incoming(plan, potentials, messages)
    parts, owners = split(plan, messages), split(plan, plan.owner)
    weights = None if potentials.weights is None else split(plan, potentials.weights)
    residual = jnp.zeros((), messages.dtype)
    for number, (stack, table) in enumerate(zip(plan.stacks, potentials.tables, strict=True)):
        for low, high in stack.blocks:
            old = [part[:, low:high] for part in parts[number]]
            places = [owner[:, low:high] for owner in owners[number]]
            logs = [sums[place] - part for place, part in zip(places, old, strict=True)]
            new = _send(table[..., low:high], logs, kernel)
            for position, (after, before) in enumerate(zip(new, old, strict=True)):
                residual = jnp.maximum(residual, _change(after, before).max())
                after = after + damping * (before - after) if damping else after
                step = after - before
                if weights is not None:
                    step = step * weights[number][position][:, low:high]
                sums = sums.at[places[position]].add(step)
                parts[number][position] = parts[number][position].at[:, low:high].set(after)
    return join(parts), residual


def sweep_of(
    schedule: str, plan: MessagePlan, kernel: Kernel, damping: float, share: float
) -> Callable[[Potentials, Array], tuple[Array, Any]]:
    """The iteration of a schedule."""
    if schedule == "sequential":
        return partial(sequential, plan, kernel, damping)
    if schedule == "residual":
        return partial(residual_flood, plan, kernel, damping, share)
    return partial(flood, plan, kernel, damping)
