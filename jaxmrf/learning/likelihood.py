r"""Exact maximum likelihood by moment matching, for graphs of small pathwidth.

.. math:: \hat\theta = \arg\max_\theta \langle\theta, \bar s\rangle - \log Z(\theta)
          \iff E_{\hat\theta}\, s(x) = \bar s = \frac1n \sum_i s(x^i)

The oracle of every other learner; log Z and its gradient come from a frontier pass, whose tables
are never larger than the list of all configurations. Reference: Wainwright & Jordan, "Graphical
models, exponential families, and variational inference" (2008), section 3.6.
"""

import math
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp

from jaxmrf.exact import transfer
from jaxmrf.graphs import FrontierPlan, Graph, frontier_plan
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
    plan: FrontierPlan | None = None,
) -> FitResult:
    """Maximum likelihood estimate of a model whose log Z is exact.

    Args:
        data: Observations "items nodes": states 0..K-1, or spins -1, +1.
        graph: The graph; with two states its frontier may have 20 nodes, as on a grid of 19 rows.
        parameters: Start of the search; None for an Ising model with couplings and fields zero.
        build: Differentiable map from parameters to a model; ties and constraints live here.
        tolerance: Largest entry of the gradient, per observation, at which to stop.
        max_iters: Largest number of L-BFGS iterations.
        plan: Frontier plan; by default ``graphs.frontier_plan(graph)``.

    Returns:
        The estimate; ``moment_mismatch`` is the largest entry of the gradient, which for an
        untied model is the largest difference between a mean statistic of data and model.

    Raises:
        ValueError: If the data or the model do not fit the graph, or its frontier is too large.
    """
    parameters, states = check_start(data, graph, parameters, build, caller="fit_likelihood")
    model = build(parameters)
    plan = _plan(graph, model.num_states) if plan is None else plan
    estimate, gap, num_iters = minimize(
        _objective(build),
        parameters,
        args=(graph, plan, _mean_statistics(model, graph, states)),
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


_mean_statistics = jax.jit(mean_statistics)


def _plan(graph: Graph, num_states: int) -> FrontierPlan:
    """The plan, if its tables have at most as many entries as those of 20 binary nodes."""
    max_width = int(20 / math.log2(num_states) + 1e-9)
    try:
        return frontier_plan(graph, max_width=max_width)
    except ValueError as error:
        raise ValueError(
            f"fit_likelihood: expected a graph with a frontier of at most {max_width} nodes of "
            f"{num_states} states, got a larger one ({graph.num_nodes} nodes, {graph.num_edges} "
            "edges); use fit_contrastive, fit_monte_carlo_likelihood or fit_pseudolikelihood, or "
            "pass a plan"
        ) from error


@lru_cache(maxsize=128)
def _objective(build: Build):
    """The function to minimise, one object per ``build``, so that it compiles once."""

    def objective(parameters, graph, plan, mean):
        model = build(parameters)
        products = jax.tree.map(lambda value, target: jnp.sum(value * target), model, mean)
        return transfer.log_z(model, graph, plan) - sum(jax.tree.leaves(products))

    return objective
