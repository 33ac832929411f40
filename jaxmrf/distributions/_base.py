"""What all distributions share: pytree fields in alphabetical order, parameters as floats."""

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.distributions import Distribution
from numpyro.util import not_jax_tracer

__all__ = ["SortedFieldsDistribution", "as_floats", "broadcast"]


class SortedFieldsDistribution(Distribution):
    """NumPyro reads its field names from a set, so their order changes from process to process.

    Sorted, one program traces to one jaxpr everywhere and finds itself in a compilation cache.
    """

    @classmethod
    def gather_pytree_data_fields(cls) -> tuple[str, ...]:
        """Names of the arrays, sorted."""
        return tuple(sorted(super().gather_pytree_data_fields()))

    @classmethod
    def gather_pytree_aux_fields(cls) -> tuple[str, ...]:
        """Names of the static values, sorted."""
        return tuple(sorted(super().gather_pytree_aux_fields()))


def as_floats(value) -> jax.Array:
    """A parameter as a JAX array of floating-point type, for the functions of the core."""
    return jnp.asarray(value, jnp.result_type(value, float))


def broadcast(value, shape: tuple[int, ...]):
    """A parameter of the given shape; a known value stays known, or jit would skip validation."""
    if not isinstance(value, jax.Array):
        return np.broadcast_to(value, shape)
    if value.shape == shape:
        return value
    if not not_jax_tracer(value):
        return jnp.broadcast_to(value, shape)
    with jax.ensure_compile_time_eval():
        return jnp.broadcast_to(value, shape)
