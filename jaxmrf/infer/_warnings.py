"""Warnings about values that only a running, compiled program knows."""

import warnings

import jax
import jax.numpy as jnp

__all__ = ["warn_if", "warn_of_flags"]

_MESSAGES = {"is_truncated": "truncation_message", "is_inexact": "inexactness_message"}


def warn_if(flag: jax.Array, message: str) -> None:
    """Give a ``UserWarning`` on the host whenever a scalar flag is true, from inside jit too.

    Call it outside ``vmap`` where possible: inside, every element of the batch asks the host.
    """

    def warn(flag) -> None:
        if flag:
            warnings.warn(message, UserWarning, stacklevel=2)

    jax.lax.cond(flag, lambda: jax.debug.callback(warn, flag), lambda: None)


def warn_of_flags(kernel, state) -> None:
    """Pass on what a kernel says if in some chain a buffer was full, or draws were not exact."""
    for flag, message in _MESSAGES.items():
        flag, message = getattr(state, flag, None), getattr(kernel, message, None)
        text = None if message is None else message()
        if flag is not None and text is not None:
            warn_if(jnp.any(flag), text)
