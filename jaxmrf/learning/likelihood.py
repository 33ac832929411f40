r"""Exact maximum likelihood by moment matching, for models small enough to enumerate.

.. math:: \hat\theta = \arg\max_\theta \langle\theta, \bar s\rangle - \log Z(\theta)
          \iff E_{\hat\theta}\, s(x) = \bar s = \frac1n \sum_i s(x^i)

The oracle of every other learner. Reference: Wainwright & Jordan, "Graphical models, exponential
families, and variational inference" (2008), section 3.6.
"""

from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp

from jaxmrf.exact import enumeration
from jaxmrf.graphs import Graph
from jaxmrf.learning.moments import Build, check_start, identity, mean_statistics
from jaxmrf.learning.training import FitResult, minimize

__all__ = ["fit_likelihood"]


def fit_likelihood(
    data,
    graph: Graph,
    *,
    parameters: Any = None,
    build: Build = identity,
    tolerance: float = 1e-5,
    max_iters: int = 500,
) -> FitResult:
    """Maximum likelihood estimate of a model that can be enumerated.

    Args:
        data: Observations "items nodes": states 0..K-1, or spins -1, +1.
        graph: The graph, of at most about 20 binary nodes.
        parameters: Start of the search; None for an Ising model with couplings and fields zero.
        build: Differentiable map from parameters to a model; ties and constraints live here.
        tolerance: Largest entry of the gradient, per observation, at which to stop.
        max_iters: Largest number of L-BFGS iterations.

    Returns:
        The estimate; ``moment_mismatch`` is the largest entry of the gradient, which for an
        untied model is the largest difference between a mean statistic of data and model.

    Raises:
        ValueError: If the data or the model do not fit the graph, or the model has too many
            configurations.
    """
    parameters, states = check_start(data, graph, parameters, build, caller="fit_likelihood")
    model = build(parameters)
    if not enumeration.is_enumerable(graph.num_nodes, model.num_states):
        raise ValueError(
            f"fit_likelihood: expected at most {enumeration.MAX_CONFIGURATIONS} configurations, "
            f"got {model.num_states}**{graph.num_nodes}; use fit_contrastive or "
            "fit_pseudolikelihood"
        )
    estimate, gap, num_iters = minimize(
        _objective(build),
        parameters,
        args=(graph, mean_statistics(model, graph, states)),
        tolerance=tolerance,
        max_iters=max_iters,
    )
    return FitResult(
        parameters=estimate,
        last_parameters=estimate,
        model=build(estimate),
        history=None,
        moment_mismatch=gap,
        is_converged=gap <= tolerance,
        num_iters=num_iters,
    )


@lru_cache(maxsize=128)
def _objective(build: Build):
    """The function to minimise, one object per ``build``, so that it compiles once."""

    def objective(parameters, graph, mean):
        model = build(parameters)
        products = jax.tree.map(lambda value, target: jnp.sum(value * target), model, mean)
        return enumeration.log_z(model, graph) - sum(jax.tree.leaves(products))

    return objective
