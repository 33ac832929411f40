"""Keeping XLA from computing an intermediate array again in everything that reads it."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxmrf.types import Array, Int

__all__ = ["walled"]


def walled(compute: Callable[[], Any], count: Int[Array, ""], backend: str) -> Any:
    """``compute()``, as the branch of a condition that always holds.

    On a CPU XLA ignores its own barriers but does not fuse through a condition; on a GPU the
    condition would wait for the host.

    Args:
        compute: Function without arguments.
        count: A number that is 0 or more, which only the run knows.
        backend: Kind of device.
    """
    if backend != "cpu":
        return compute()
    shapes = jax.eval_shape(compute)
    zeros = lambda: jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)  # noqa: E731
    return jax.lax.cond(count >= 0, compute, zeros)
