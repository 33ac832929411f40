"""Fit: parameters from data by likelihood, pseudo-likelihood and sampling, and graphs from data."""

from jaxmrf.learning import contrastive, monte_carlo_likelihood, structure, training
from jaxmrf.learning.contrastive import fit_contrastive
from jaxmrf.learning.latent import EMResult, fit_by_em, fit_latent_likelihood
from jaxmrf.learning.likelihood import fit_likelihood
from jaxmrf.learning.moments import identity, mean_statistics, no_fields, tied_couplings
from jaxmrf.learning.monte_carlo_likelihood import fit_monte_carlo_likelihood
from jaxmrf.learning.probability_flow import fit_probability_flow
from jaxmrf.learning.pseudolikelihood import fit_pseudolikelihood
from jaxmrf.learning.structure import neighborhood_graph, sparse_graph
from jaxmrf.learning.training import FitResult

__all__ = [
    "EMResult",
    "FitResult",
    "contrastive",
    "fit_by_em",
    "fit_contrastive",
    "fit_latent_likelihood",
    "fit_likelihood",
    "fit_monte_carlo_likelihood",
    "fit_probability_flow",
    "fit_pseudolikelihood",
    "identity",
    "mean_statistics",
    "monte_carlo_likelihood",
    "neighborhood_graph",
    "no_fields",
    "sparse_graph",
    "structure",
    "tied_couplings",
    "training",
]
