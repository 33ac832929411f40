"""One update of all messages of a factor graph, table shape by table shape.

Messages are logs with largest entry 0. Tables and messages have the factors on the last axis.
"""

from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxmrf.graphs.messages import MessagePlan
from jaxmrf.types import Array, ArrayLike

__all__ = [
    "IMPOSSIBLE",
    "Kernel",
    "Potentials",
    "add_messages",
    "cavities",
    "change",
    "incoming",
    "join",
    "kernel_of",
    "largest",
    "normalised",
    "outgoing",
    "send",
    "split",
    "sweep_of",
    "times",
    "total",
    "update",
]

IMPOSSIBLE = -1e9
"""Log evidence of a state that cannot be: its exponential is 0, and its arithmetic finite."""

_MAX_UNROLLED = 16
_MIN_UNROLLED = 512
_NUM_BARS = 20


class Kernel(NamedTuple):
    """The arithmetic of one semiring.

    Attributes:
        prepare: From log tables, and the number of their axes of states, to the tables the kernel
            works on.
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


@partial(jax.custom_jvp, nondiff_argnums=(1,))
def largest(table: Array, axes: tuple[int, ...]) -> Array:
    """The maximum over axes, kept with size 1."""
    return _fold(jnp.maximum, jnp.max, table, axes)


@largest.defjvp
def _largest_jvp(axes, primals, tangents):
    # one table in memory: a compiler that computes it twice may round it twice, and no entry of
    # the one is then the maximum of the other
    table = lax.optimization_barrier(primals[0])
    top = largest(table, axes)
    is_top = (table == top).astype(table.dtype)
    return top, total(is_top * tangents[0], axes) / total(is_top, axes)


@jax.custom_jvp
def below_top(logs: Array) -> Array:
    """Log messages, states first, less their largest entry.

    Their derivative keeps the mean over the states at rest; beliefs depend on differences alone.
    """
    return logs - largest(logs, (0,))


@below_top.defjvp
def _below_top_jvp(primals, tangents):
    change = tangents[0]
    return below_top(primals[0]), change - total(change, (0,)) / len(change)


def total(table: Array, axes: tuple[int, ...]) -> Array:
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
    size = table.shape[axis]
    return size <= _MAX_UNROLLED and table.size >= size * _MIN_UNROLLED


def _states(table: Array, axis: int) -> list[Array]:
    return jnp.split(table, table.shape[axis], axis=axis)


def _finite(top):
    return jnp.where(top > -jnp.inf, top, 0)


def _exp_below_top(logs, axes):
    # messages are normalised where they are sent, so this scale has no derivative
    return jnp.exp(logs - _finite(lax.stop_gradient(largest(logs, axes))))


def times(table: Array, factor: Array, axis: int) -> Array:
    """The sum over one axis of a product, the contraction of probabilities."""
    if not _is_unrolled(table, axis):
        return (table * factor).sum(axis=axis)
    pairs = zip(_states(table, axis), _states(factor, axis), strict=True)
    return reduce(jnp.add, (entry * own for entry, own in pairs)).squeeze(axis)


def _log_times(table, factor, axis):
    table = table + factor
    top = _finite(lax.stop_gradient(largest(table, (axis,))))
    sums = total(jnp.exp(table - top), (axis,))
    return (jnp.log(jnp.maximum(sums, _tiny(sums))) + top).squeeze(axis)


def _same(logs):
    return logs


def _as_logs(logs, num_axes):
    return logs


_SUM = Kernel(
    prepare=lambda logs, num_axes: _exp_below_top(logs, tuple(range(num_axes))),
    enter=lambda logs: _exp_below_top(logs, (0,)),
    contract=times,
    leave=lambda sums: jnp.log(jnp.maximum(sums, _tiny(sums))),
)
_LOG_SUM = Kernel(_as_logs, _same, _log_times, _same)
_MAX = Kernel(
    prepare=_as_logs,
    enter=_same,
    contract=lambda table, factor, axis: largest(table + factor, (axis,)).squeeze(axis),
    leave=_same,
)


def kernel_of(is_max: bool, is_log_domain: bool) -> Kernel:
    """The arithmetic of max-product, or of sum-product on logs or on probabilities."""
    return _MAX if is_max else _LOG_SUM if is_log_domain else _SUM


def outgoing(table: Array, entering: list[Array], contract: Callable) -> list[Array]:
    """To each axis of states, the table contracted with what enters along all others.

    By halves: what all axes of the one half need, the contraction of the other, is done once.
    """
    found = []

    def contract_range(table, low, high, kept):
        for axis in reversed(range(low, high)):
            place, rest = axis - kept, entering[axis].shape[1:]
            shape = [1] * (table.ndim - len(rest))
            shape[place] = table.shape[place]
            table = contract(table, entering[axis].reshape(*shape, *rest), place)
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


def send(table: Array, logs: Sequence[Array], kernel: Kernel) -> list[Array]:
    """Messages out of the factors of one block, largest entry 0."""
    entering = [kernel.enter(part) for part in logs]
    sent = [kernel.leave(left) for left in outgoing(table, entering, kernel.contract)]
    sent = [below_top(part) for part in sent]
    return [jnp.maximum(part, IMPOSSIBLE) for part in sent] if kernel is not _SUM else sent


def update(plan: MessagePlan, kernel: Kernel, potentials: Potentials, messages: Array) -> Array:
    """All messages computed anew from all messages."""
    logs = split(plan, cavities(plan, potentials, messages))
    pairs = zip(potentials.tables, logs, strict=True)
    return join([send(table, parts, kernel) for table, parts in pairs])


def change(new: Array, old: Array) -> Array:
    """Bounds on the differences of messages whose largest entry is 1, from their logs.

    ``|exp(a) - exp(b)| <= |a - b| exp(c)`` with c the larger of both, and below 0 an exponential is
    at most one over its Taylor sum, which costs no exponential.
    """
    top = jnp.maximum(new, old)
    return jnp.abs(new - old) / (1 - top + top * top / 2)


def normalised(logs: Array, num_axes: int, is_max: bool) -> tuple[Array, Array, Array]:
    """Beliefs over the first axes, the gradient of their log norm, and the log norm.

    Of these only the beliefs have derivatives.
    """
    axes = tuple(range(num_axes))
    logs = lax.optimization_barrier(logs) if is_max else logs
    top = lax.stop_gradient(largest(logs, axes))
    weights = jnp.exp(logs - top)
    sums = total(weights, axes)
    beliefs = weights / sums
    norms = top if is_max else top + jnp.log(sums)
    norms = lax.stop_gradient(norms.reshape(norms.shape[num_axes:]))
    if not is_max:
        return beliefs, beliefs, norms
    is_best = lax.stop_gradient((logs >= top).astype(logs.dtype))
    return beliefs, is_best / total(is_best, axes), norms


def flood(plan, kernel, damping, potentials, messages):
    """Every message at once; returns them and the largest change."""
    new = update(plan, kernel, potentials, messages)
    residual = change(new, messages).max(initial=0)
    return new + damping * (messages - new) if damping else new, residual


def residual_flood(plan, kernel, damping, share, potentials, messages):
    """Every message computed, and those of the share of factors with largest changes sent."""
    new = update(plan, kernel, potentials, messages)
    changes = split(plan, change(new, messages))
    by_factor = [
        reduce(jnp.maximum, [largest(part, (0,))[0] for part in stack]) for stack in changes
    ]
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
            new = send(table[..., low:high], logs, kernel)
            for position, (after, before) in enumerate(zip(new, old, strict=True)):
                residual = jnp.maximum(residual, change(after, before).max())
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
