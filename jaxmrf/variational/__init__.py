"""Bound: approximate log normalisers and marginals by optimisation."""

from jaxmrf.variational import (
    belief_propagation,
    bipartite_belief_propagation,
    free_energy,
    generalized,
    grid_belief_propagation,
    mean_field,
    semidefinite,
)

__all__ = [
    "belief_propagation",
    "bipartite_belief_propagation",
    "free_energy",
    "generalized",
    "grid_belief_propagation",
    "mean_field",
    "semidefinite",
]
