"""Bound: approximate log normalisers and marginals by optimisation."""

from jaxmrf.variational import belief_propagation, free_energy, generalized, mean_field

__all__ = ["belief_propagation", "free_energy", "generalized", "mean_field"]
