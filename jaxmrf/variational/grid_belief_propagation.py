r"""Belief propagation on grids: messages are pictures, and their sums are sums of shifted pictures.

.. math:: b_i \propto e^{\lambda_i} \prod_{d} \mathrm{shift}_d(m_d)^{\rho}

Same fixed points, options and answers as ``belief_propagation`` on the factor graph of the model,
without a gather: several times as fast. States come first in memory, so that every arithmetic
operation is one along the pictures.
"""

from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxmrf.models import Beliefs, PairwiseModel
from jaxmrf.types import Array, ArrayLike, Float
from jaxmrf.variational._fixed_point import Stopping, fixed_point, stopping, value_with_gradient
from jaxmrf.variational._messages import Kernel, change, kernel_of, largest, normalised, send
from jaxmrf.variational._two_states import (
    change_of_odds,
    prepare,
    send_max,
    send_sum,
    spin_parts,
)
from jaxmrf.variational.belief_propagation import check_damping, mutual_information

__all__ = ["solve"]

Pair = tuple[Array, Array]
"""Pictures of what belongs to the nodes as first and as second ends of edges along one axis."""


class _Picture(NamedTuple):
    """What the messages depend on; tables of the edges along each axis, weights at both ends."""

    tables: list[Array]
    evidence: Array
    weights: list[Pair] | None


def solve(
    model: PairwiseModel,
    shape: Sequence[int],
    *,
    is_max: bool = False,
    weights: Float[ArrayLike, " edges"] | None = None,
    damping: float = 0.0,
    tolerance: float | None = None,
    max_iters: int = 1000,
    is_log_domain: bool = False,
) -> Beliefs:
    """Beliefs at a fixed point of belief propagation on a grid, all messages sent at once.

    Args:
        model: Ising, Potts or general tables on ``graphs.grid(shape)``.
        shape: Side lengths of the grid.
        is_max: Max-product, as in ``belief_propagation.solve``.
        weights: Positive weight of every edge; by default ones.
        damping: Part of the old log message that is kept, in [0, 1).
        tolerance: Largest change of a message that counts as none; by default 1e-5, or 1e-9 in
            double precision.
        max_iters: Iterations after which to give up.
        is_log_domain: Sum logs and not probabilities, for tables of a very large range.

    Returns:
        Beliefs with ``nodes`` "nodes states" and ``factors`` "edges states states".

    Raises:
        ValueError: If an option is out of range, or the model does not fit the grid.

    >>> from jaxmrf.models import Ising
    >>> beliefs = solve(Ising(jnp.full(4, 0.3), jnp.array([1.0, 0, 0, 0])), (2, 2))
    >>> print(beliefs.nodes[:, 1].round(2))
    [0.88 0.62 0.62 0.56]
    """
    caller = "grid_belief_propagation.solve"
    shape = tuple(int(side) for side in shape)
    tables = model.tables()
    num_edges = sum(np.prod(_edge_shape(shape, axis), dtype=int) for axis in range(len(shape)))
    sizes = np.prod(shape, dtype=int), num_edges
    found = tables.node_tables.shape[0], tables.edge_tables.shape[0]
    if found != sizes:
        raise ValueError(
            f"{caller}: expected a model of {sizes[0]} nodes and {sizes[1]} edges, as "
            f"graphs.grid({shape}) has, got {found[0]} and {found[1]}; pass the grid's own shape"
        )
    check_damping(caller, damping)
    rule = stopping(caller, tolerance, max_iters, tables.node_tables.dtype)
    kernel = kernel_of(is_max, is_log_domain)
    return _solve(tables, weights, rule, shape, bool(is_max), kernel, float(damping))


@partial(jax.jit, static_argnums=(3, 4, 5, 6))
def _solve(tables, weights, rule: Stopping, shape, is_max, kernel: Kernel, damping: float):
    num_states, dtype = tables.node_tables.shape[1], tables.node_tables.dtype
    axes = range(len(shape))
    logs = _by_axis(shape, jnp.moveaxis(tables.edge_tables, 0, -1))
    rhos = [jnp.ones(_edge_shape(shape, axis), dtype) for axis in axes]
    if weights is not None:
        rhos = _by_axis(shape, jnp.asarray(weights, dtype))
        logs = [table / rho for table, rho in zip(logs, rhos, strict=True)]
    ends = [tuple(_padded(shape, axis, place, rhos[axis]) for place in (0, 1)) for axis in axes]
    picture = _Picture(
        tables=[kernel.prepare(table, 2) for table in logs],
        evidence=tables.node_tables.T.reshape(num_states, *shape),
        weights=None if weights is None else ends,
    )
    if num_states == 2 and kernel is not kernel_of(is_max=False, is_log_domain=True):
        end, messages = _binary(shape, rule, is_max, damping, picture, logs)
    else:
        start = [(jnp.zeros((num_states, *shape), dtype),) * 2 for _ in axes]
        step = partial(_update, partial(send, kernel=kernel), shape)
        measure = partial(_largest_change, change)
        end = fixed_point(partial(_flood, step, measure, damping), step, rule, picture, start)
        messages = end.messages
    sums = _incoming(picture, messages)
    nodes, picks, norms = normalised(sums, 1, is_max)
    value = ((1 - sum(sum(pair) for pair in ends)) * norms).sum()
    factors, factor_picks, mutual = [], [], []
    pairs = _cavities(shape, sums, messages)
    for table, rho, (first, second) in zip(logs, rhos, pairs, strict=True):
        belief, pick, norm = normalised(table + first[:, None] + second, 2, is_max)
        value += (rho * norm).sum()
        factors.append(belief.reshape(num_states, num_states, -1))
        factor_picks.append(pick.reshape(num_states, num_states, -1))
        mutual.append(mutual_information(factors[-1]))

    def edges_first(parts):
        return jnp.moveaxis(jnp.concatenate(parts, axis=-1), -1, 0)

    parameters = (tables.node_tables, tables.edge_tables)
    slopes = (picks.reshape(num_states, -1).T, edges_first(factor_picks))
    if weights is not None:
        parameters = (*parameters, jnp.asarray(weights, dtype))
        slopes = (*slopes, jnp.concatenate(mutual) * (0 if is_max else -1))
    return Beliefs(
        log_z=value_with_gradient(value, parameters, slopes),
        nodes=nodes.reshape(num_states, -1).T,
        factors=edges_first(factors),
        is_converged=end.residual <= rule.tolerance,
        num_iters=end.num_iters,
    )


def _by_axis(shape: tuple[int, ...], edges: Array) -> list[Array]:
    """What belongs to edges, on the last axis, as one picture per axis of the grid."""
    shapes = [_edge_shape(shape, axis) for axis in range(len(shape))]
    stops = np.cumsum([np.prod(own, dtype=int) for own in shapes])
    parts = jnp.split(edges, stops[:-1], axis=-1)
    return [part.reshape(*edges.shape[:-1], *own) for part, own in zip(parts, shapes, strict=True)]


def _edge_shape(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    """The picture of all edges along one axis."""
    return tuple(side - (place == axis) for place, side in enumerate(shape))


def _end(shape: tuple[int, ...], axis: int, place: int) -> tuple[slice, ...]:
    """The nodes that are the first (0) or the second (1) end of the edges along one axis."""
    inner = slice(place, shape[axis] - 1 + place)
    return tuple(inner if other == axis else slice(None) for other in range(len(shape)))


def _incoming(picture: _Picture, messages: list[Pair]) -> Array:
    """Log beliefs of all nodes, not normalised: the sum of the messages."""
    sums = picture.evidence
    for axis, pair in enumerate(messages):
        for place, message in enumerate(pair):
            if picture.weights is not None:
                message = message * picture.weights[axis][place]
            sums = sums + message
    return sums


def _cavities(shape, sums: Array, messages: list[Pair]) -> list[Pair]:
    """For both ends of all edges along each axis the log belief without the edge's message."""
    return [
        tuple((sums - pair[place])[(..., *_end(shape, axis, place))] for place in (0, 1))
        for axis, pair in enumerate(messages)
    ]


def _update(send: Callable, shape, picture: _Picture, messages: list[Pair]) -> list[Pair]:
    """All messages computed anew from all messages."""
    new = []
    cavities = _cavities(shape, _incoming(picture, messages), messages)
    for axis, (table, pair) in enumerate(zip(picture.tables, cavities, strict=True)):
        sent = send(table, pair)
        new.append(tuple(_padded(shape, axis, place, sent[place]) for place in (0, 1)))
    return new


def _binary(shape, rule: Stopping, is_max: bool, damping: float, picture: _Picture, logs):
    """The fixed point of two states, one number per message, and its messages in both states."""
    parts = [spin_parts(table) for table in logs]
    shifts = [  # what the tables say to each end whatever the other is
        tuple(2 * _padded(shape, axis, place, fields[place]) for place in (0, 1))
        for axis, (_, *fields) in enumerate(parts)
    ]
    odds = picture._replace(evidence=picture.evidence[1] - picture.evidence[0])
    odds = _Picture(
        tables=[prepare(coupling, is_max) for coupling, *_ in parts],
        evidence=_incoming(odds, shifts),
        weights=picture.weights,
    )
    along = send_max if is_max else send_sum
    step = partial(
        _update, lambda table, pair: (along(table, pair[1]), along(table, pair[0])), shape
    )
    start = [(jnp.zeros(shape, odds.evidence.dtype),) * 2 for _ in shape]
    measure = partial(jax.tree.map, change_of_odds)
    end = fixed_point(partial(_flood, step, measure, damping), step, rule, odds, start)

    def both(message, shift):
        odds = message + shift
        return jnp.stack([-odds, odds]) / 2

    return end, jax.tree.map(both, end.messages, shifts)


def _padded(shape, axis: int, place: int, edges: Array) -> Array:
    """What belongs to edges along one axis at their first or second ends, and zeros elsewhere."""
    widths = [(0, 0)] * edges.ndim
    widths[edges.ndim - len(shape) + axis] = (place, 1 - place)
    return jnp.pad(edges, widths)


def _largest_change(change: Callable, new: list[Pair], old: list[Pair]) -> list[Pair]:
    return jax.tree.map(lambda own, before: largest(change(own, before), (0,))[0], new, old)


def _flood(step, measure: Callable, damping: float, picture: _Picture, messages: list[Pair]):
    new = step(picture, messages)
    changes = measure(new, messages)
    residual = reduce(jnp.maximum, jax.tree.leaves(changes)).max(axis=0).max()
    if damping:
        new = jax.tree.map(lambda own, old: own + damping * (old - own), new, messages)
    return new, residual
