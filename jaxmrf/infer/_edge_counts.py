"""The data of a grouped field as its likelihoods see them, and an untied estimate to start from."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxmrf.graphs import Graph
from jaxmrf.learning import fit_pseudolikelihood, no_fields
from jaxmrf.models import agreements_from_couplings
from jaxmrf.nonparametric.group_exact import EdgeCounts

__all__ = ["edge_counts", "untied_estimate"]


def edge_counts(states, graph: Graph) -> EdgeCounts:
    """Number of observations in which the ends of each edge agree, out of how many."""
    first, second = graph.edges.T
    agreements = jnp.asarray((states[:, first] == states[:, second]).sum(axis=0), dtype=float)
    return EdgeCounts(agreements, jnp.asarray(float(states.shape[0])))


def untied_estimate(states, graph: Graph) -> jax.Array:
    """Agreement of every edge by penalised pseudo-likelihood; observed rates for traced data.

    The penalty is the Gaussian of the variance of a coupling whose agreement is uniform; without
    it estimates from few observations lie at infinity.
    """
    if graph.is_forest or isinstance(states, jax.core.Tracer):
        counts = edge_counts(states, graph)
        return (counts.agreements + 0.5) / (counts.num_items + 1)
    fit = fit_pseudolikelihood(
        states,
        graph,
        parameters=jnp.zeros(graph.num_edges),
        build=no_fields(graph),
        l2=12 / (np.pi**2 * states.shape[0]),
    )
    return agreements_from_couplings(fit.parameters)
