"""Sums over flat arrays as region layouts describe them, safe where logs are minus infinity."""

import jax.numpy as jnp

from jaxmrf.graphs.region_layout import Pooling
from jaxmrf.types import Array, Float

__all__ = ["log_or_zero", "normalize", "pool"]


def pool(pooling: Pooling, source: Float[Array, " entries"]) -> Float[Array, " results"]:
    """The sum of the pooled entries for every result."""
    if not pooling.blocks:
        return source[:0]
    padded = jnp.append(source, jnp.zeros((), source.dtype))
    # places are known to be inside: checking them takes longer than reading
    read = padded.at
    result = jnp.concatenate(
        [read[block].get(mode="promise_in_bounds").sum(axis=1) for block in pooling.blocks]
    )
    return result if pooling.order is None else result[pooling.order]


def normalize(
    runs: tuple[tuple[int, int], ...], logs: Float[Array, " entries"]
) -> Float[Array, " entries"]:
    """Each table divided by its sum, in logs; a table of minus infinities stays as it is.

    Args:
        runs: Number and size of the tables of equal size that follow each other.
        logs: Entries of all tables.
    """
    parts, start = [logs[:0]], 0
    for number, size in runs:
        table = logs[start : start + number * size].reshape(number, size)
        top = table.max(axis=1, keepdims=True)
        shifted = table - jnp.where(top > -jnp.inf, top, 0)
        total = jnp.exp(shifted).sum(axis=1, keepdims=True)
        parts.append((shifted - log_or_zero(total)).ravel())
        start += number * size
    return jnp.concatenate(parts)


def log_or_zero(values: Float[Array, "*rest"]) -> Float[Array, "*rest"]:
    """Logs of positive values, and zero for zero, also in derivatives."""
    is_positive = values > 0
    return jnp.where(is_positive, jnp.log(jnp.where(is_positive, values, 1)), 0)
