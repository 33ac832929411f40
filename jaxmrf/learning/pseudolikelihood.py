r"""Maximum pseudo-likelihood: every node predicted from its neighbours.

.. math:: \hat\theta = \arg\max_\theta \frac1n \sum_{m=1}^n \sum_i
          \log p_\theta(x_i^m \mid x_{-i}^m) - \frac{\lambda}{2} \lVert\theta\rVert^2

Concave in the parameters of a pairwise model, consistent, and free of the normaliser. Reference:
Besag, "Statistical analysis of non-lattice data", The Statistician 24 (1975).
"""

from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp

from jaxmrf.graphs import Graph
from jaxmrf.learning.moments import Build, check_start, identity
from jaxmrf.learning.training import FitResult, minimize
from jaxmrf.models import log_pseudolikelihood

__all__ = ["fit_pseudolikelihood"]


def fit_pseudolikelihood(
    data,
    graph: Graph,
    *,
    parameters: Any = None,
    build: Build = identity,
    l2: float = 0.0,
    tolerance: float = 1e-5,
    max_iters: int = 500,
) -> FitResult:
    """Maximum pseudo-likelihood estimate.

    Args:
        data: Observations "items nodes": states 0..K-1, or spins -1, +1.
        graph: The graph.
        parameters: Start of the search; None for an Ising model with couplings and fields zero.
        build: Differentiable map from parameters to a model; ties and constraints live here.
        l2: Weight of the ridge penalty, 0 or more, against the mean over observations.
        tolerance: Largest entry of the gradient, per observation, at which to stop.
        max_iters: Largest number of L-BFGS iterations.

    Returns:
        The estimate; ``moment_mismatch`` is the largest entry of the gradient.

    Raises:
        ValueError: If the data or the model do not fit the graph, or ``l2`` is negative.

    >>> votes = [[0, 0]] * 20 + [[1, 1]] * 20 + [[0, 1]] * 5 + [[1, 0]] * 5
    >>> fit = fit_pseudolikelihood(votes, Graph(2, [(0, 1)]))
    >>> bool(fit.is_converged), round(float(fit.model.couplings[0]), 3)
    (True, 0.693)
    """
    if not l2 >= 0:
        raise ValueError(f"fit_pseudolikelihood: expected l2 to be 0 or more, got {l2}; raise it")
    parameters, states = check_start(data, graph, parameters, build, caller="fit_pseudolikelihood")
    estimate, gap, num_iters = minimize(
        _objective(build),
        parameters,
        args=(graph, states, float(l2)),
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

    def objective(parameters, graph, states, l2):
        fit = jnp.mean(log_pseudolikelihood(build(parameters), graph, states))
        size = sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(parameters))
        return l2 / 2 * size - fit

    return objective
