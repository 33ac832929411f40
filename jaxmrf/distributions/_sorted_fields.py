"""A NumPyro distribution whose pytree fields stand in alphabetical order."""

from numpyro.distributions import Distribution

__all__ = ["SortedFieldsDistribution"]


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
