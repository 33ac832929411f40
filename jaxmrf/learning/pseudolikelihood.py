r"""Maximum pseudo-likelihood: every node predicted from its neighbours.

.. math:: \hat\theta = \arg\max_\theta \frac1n \sum_{m=1}^n \sum_i
          \log p_\theta(x_i^m \mid x_{-i}^m) - \frac{\lambda}{2} \lVert\theta\rVert^2

Concave in the parameters of a pairwise model, consistent, and free of the normaliser. The data
enter as counts of each node's neighbourhoods, taken once (``neighborhoods``). Reference: Besag,
"Statistical analysis of non-lattice data", The Statistician 24 (1975).
"""

from typing import Any

from jaxmrf.graphs import Graph
from jaxmrf.learning.moments import Build, identity
from jaxmrf.learning.neighborhoods import NeighborhoodTable, fit_by_neighborhoods, log_conditionals
from jaxmrf.learning.training import FitResult
from jaxmrf.models import PairwiseModel
from jaxmrf.types import Array, Float

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
    return fit_by_neighborhoods(
        _loss,
        data,
        graph,
        parameters=parameters,
        build=build,
        l2=l2,
        tolerance=tolerance,
        max_iters=max_iters,
        caller="fit_pseudolikelihood",
    )


def _loss(model: PairwiseModel, table: NeighborhoodTable) -> Float[Array, "block states columns"]:
    return -log_conditionals(model, table)
