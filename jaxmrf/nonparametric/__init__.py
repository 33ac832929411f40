"""Let the number of parameters grow: partition priors and samplers of tied parameters."""

from jaxmrf.nonparametric import (
    base_measures,
    dirichlet_process,
    edge_inclusion,
    edge_messages,
    expansion,
    group_auxiliary,
    group_corrected,
    group_exact,
    group_gibbs,
    group_values,
    label_updates,
    parallel_labels,
    parameter_groups,
    particle_sources,
    split_merge,
)

__all__ = [
    "base_measures",
    "dirichlet_process",
    "edge_inclusion",
    "edge_messages",
    "expansion",
    "group_auxiliary",
    "group_corrected",
    "group_exact",
    "group_gibbs",
    "group_values",
    "label_updates",
    "parallel_labels",
    "parameter_groups",
    "particle_sources",
    "split_merge",
]
