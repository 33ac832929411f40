"""Fit: parameters from data by likelihood, pseudo-likelihood and sampling, and graphs from data."""

from jaxmrf.learning import contrastive, monte_carlo_likelihood, structure, training
from jaxmrf.learning.contrastive import fit_contrastive
from jaxmrf.learning.likelihood import fit_likelihood
from jaxmrf.learning.moments import identity, mean_statistics, no_fields, tied_couplings
from jaxmrf.learning.monte_carlo_likelihood import fit_monte_carlo_likelihood
from jaxmrf.learning.pseudolikelihood import fit_pseudolikelihood
from jaxmrf.learning.structure import neighborhood_graph, sparse_graph
from jaxmrf.learning.training import FitResult

__all__ = [
    "FitResult",
    "contrastive",
    "fit_contrastive",
    "fit_likelihood",
    "fit_monte_carlo_likelihood",
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
