"""Warnings about values that only a running, compiled program knows."""

import warnings

import jax
import jax.numpy as jnp

__all__ = ["warn_if", "warn_if_truncated"]


def warn_if(flag: jax.Array, message: str) -> None:
    """Give a ``UserWarning`` on the host whenever a scalar flag is true, from inside jit too.

    Call it outside ``vmap`` where possible: inside, every element of the batch asks the host.
    """

    def warn(flag) -> None:
        if flag:
            warnings.warn(message, UserWarning, stacklevel=2)

    jax.lax.cond(flag, lambda: jax.debug.callback(warn, flag), lambda: None)


def warn_if_truncated(kernel, state) -> None:
    """Pass on a kernel's ``truncation_message`` if the buffer in some chain's state was full."""
    if hasattr(kernel, "truncation_message") and hasattr(state, "is_truncated"):
        warn_if(jnp.any(state.is_truncated), kernel.truncation_message())
