"""What all distributions share: pytree fields in alphabetical order, parameters as floats."""

import jax
import jax.numpy as jnp
from numpyro.distributions import Distribution

__all__ = ["SortedFieldsDistribution", "as_floats"]


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
