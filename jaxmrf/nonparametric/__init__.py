"""Let the number of parameters grow: partition priors and samplers of tied parameters."""

from jaxmrf.nonparametric import base_measures, dirichlet_process, group_gibbs, parameter_groups

__all__ = ["base_measures", "dirichlet_process", "group_gibbs", "parameter_groups"]
