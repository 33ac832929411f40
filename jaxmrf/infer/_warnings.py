"""Warnings about values that only a running, compiled program knows."""

import warnings

import jax
import jax.numpy as jnp

__all__ = ["warn_if", "warn_of_flags"]

_MESSAGES = {"is_truncated": "truncation_message", "is_inexact": "inexactness_message"}


def warn_if(flag: jax.Array, message: str, **values: jax.Array) -> None:
    """Give a ``UserWarning`` on the host whenever a scalar flag is true, from inside jit too.

    Values that only the run knows fill the message's fields of their names.

    Call it outside ``vmap`` where possible: inside, every element of the batch asks the host.
    """

    def warn(flag, **values) -> None:
        if flag:
            text = message.format(**{name: value.tolist() for name, value in values.items()})
            warnings.warn(text if values else message, UserWarning, stacklevel=2)

    jax.lax.cond(flag, lambda: jax.debug.callback(warn, flag, **values), lambda: None)


def warn_of_flags(kernel, state) -> None:
    """Pass on what a kernel says if in some chain a buffer was full, or draws were not exact."""
    for flag, message in _MESSAGES.items():
        flag, message = getattr(state, flag, None), getattr(kernel, message, None)
        text = None if message is None else message()
        if flag is not None and text is not None:
            needed = getattr(state, "needed", None)  # slots of each layer, of every chain
            if needed is None:
                warn_if(jnp.any(flag), text)
            else:
                largest = needed.reshape(-1, needed.shape[-1]).max(axis=0)
                warn_if(jnp.any(flag), text, needed=largest)
