r"""Maximum likelihood of factor graphs with hidden variables, by EM and by gradients.

.. math:: \log p(v \mid \theta) = \log Z(\theta, v) - \log Z(\theta), \qquad
          \nabla_\theta \log p(v \mid \theta) = E[s \mid v] - E[s]

Any engine that gives beliefs will do: an exact one gives the likelihood, a variational one its
bound or approximation. EM fits the tables of a Bayesian network, gradients any parameters of any
factor graph, hyperparameters of a prior that was summed out among them (empirical Bayes).
References: Dempster, Laird & Rubin, JRSS B 39 (1977); Lauritzen, "The EM algorithm for graphical
association models with missing data", CSDA 19 (1995).
"""

import math
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxmrf.exact import junction_tree
from jaxmrf.graphs import Hypergraph
from jaxmrf.learning.training import FitResult, minimize
from jaxmrf.models import Beliefs, FactorGraph
from jaxmrf.types import Array, Bool, Float, Int

__all__ = ["EMResult", "fit_by_em", "fit_latent_likelihood"]

Engine = Callable[[FactorGraph, Array], Beliefs]
"""Beliefs of a model for every row of log evidence, as ``junction_tree.solve_batch``."""


class EMResult(NamedTuple):
    """What EM found.

    Attributes:
        model: The network with its fitted tables.
        log_likelihood: Log likelihood (plus the log prior, if there is one) before every
            iteration and after the last, summed over the items; it never falls with an exact
            engine.
        is_converged: Whether the last rise was within the tolerance.
        num_iters: Iterations used.
    """

    model: FactorGraph
    log_likelihood: Float[np.ndarray, " iterations"]
    is_converged: Bool[np.ndarray, ""] | bool
    num_iters: Int[np.ndarray, ""] | int


def fit_by_em(
    states,
    network: FactorGraph,
    *,
    tied: Sequence[int] | None = None,
    prior_count: float | int = 0.0,
    engine: Engine = junction_tree.solve_batch,
    tolerance: float = 1e-6,
    max_iters: int = 500,
) -> EMResult:
    """Tables of a Bayesian network from incomplete observations, by expectation-maximisation.

    Args:
        states: Observations "items nodes", -1 where a variable was not seen.
        network: The network with its tables to start from, each with its own variable last (as
            ``FactorGraph.from_conditionals`` makes them); zeros stay zeros, and tables that treat
            hidden states alike never tell them apart.
        tied: A label for every factor; tables of one label are equal. By default none are.
        prior_count: Added to every expected count: a Dirichlet prior of one more, so that the
            result is the posterior mode.
        engine: How beliefs are found.
        tolerance: Stop once an iteration gains less than this per item.
        max_iters: Largest number of iterations.

    Returns:
        The fitted network and the log likelihood along the way.

    Raises:
        ValueError: If the states do not fit the network, an item is impossible under the start,
            tied tables differ in shape, or the prior count is negative.
    """
    items, weights = _distinct(states, network.hypergraph, "fit_by_em")
    if not prior_count >= 0:
        raise ValueError(
            f"fit_by_em: expected a prior_count of at least 0, got {prior_count}; pass 0 for "
            "maximum likelihood"
        )
    groups = _groups(network.hypergraph, tied)
    evidence = _log_evidence(network, items)
    tables = jnp.asarray(network.log_tables)
    tables = _maximize(network.hypergraph, groups, jnp.exp(tables), tables, 0.0)
    history: list[float] = []
    is_converged = False
    while True:
        total, counts = _expect(engine, network.hypergraph, tables, evidence, weights)
        value = float(total) + _log_prior(network.hypergraph, groups, tables, prior_count)
        if not history and not math.isfinite(value):
            raise ValueError(
                "fit_by_em: expected every item to be possible under the start, got a log "
                f"likelihood of {value}; start from tables without zeros"
            )
        history.append(value)
        if len(history) > 1:
            is_converged = history[-1] - history[-2] <= tolerance * weights.sum()
        if is_converged or len(history) > max_iters:
            break
        tables = _maximize(network.hypergraph, groups, counts, tables, prior_count)
    model = FactorGraph(tables, network.log_evidence, network.hypergraph, network.labels)
    return EMResult(model, np.array(history), is_converged, len(history) - 1)


def fit_latent_likelihood(
    states,
    parameters: Any,
    build: Callable[[Any], FactorGraph],
    *,
    log_z: Callable[[FactorGraph], Array] = junction_tree.log_z,
    is_normalized: bool = False,
    tolerance: float = 1e-5,
    max_iters: int = 500,
) -> FitResult:
    """Maximum likelihood of any parameters of a factor graph with hidden variables, by L-BFGS.

    Args:
        states: Observations "items nodes", -1 where a variable was not seen.
        parameters: Start of the search, a pytree of arrays.
        build: Differentiable map from parameters to a factor graph; its structure may not depend
            on them. Ties, constraints and priors that are variables of the graph live here.
        log_z: Log normaliser of a factor graph with its evidence, differentiable.
        is_normalized: Whether the model without evidence has Z = 1, as a Bayesian network has.
        tolerance: Largest entry of the gradient, per observation, at which to stop.
        max_iters: Largest number of iterations.

    Returns:
        The estimate; ``moment_mismatch`` is the largest entry of the gradient.

    Raises:
        ValueError: If the states do not fit the model.
    """
    model = build(parameters)
    items, weights = _distinct(states, model.hypergraph, "fit_latent_likelihood")
    objective = _objective(build, log_z, is_normalized)
    estimate, gap, num_iters = minimize(
        objective,
        parameters,
        args=(jnp.asarray(items), jnp.asarray(weights / weights.sum())),
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
def _objective(build, log_z, is_normalized: bool):
    """The function to minimise, one object per ``build``, so that it compiles once."""

    def objective(parameters, items, weights):
        model = build(parameters)
        seen = jax.vmap(lambda states: log_z(model.observe_states(states)))(items)
        return (0 if is_normalized else log_z(model)) - (weights * seen).sum()

    return objective


def _distinct(states, graph: Hypergraph, caller: str) -> tuple[np.ndarray, np.ndarray]:
    """Different items and how often each was seen, checked."""
    states = np.asarray(states)
    if states.ndim != 2 or states.shape[1] != graph.num_nodes or len(states) == 0:
        raise ValueError(
            f"{caller}: expected observations of shape [items, {graph.num_nodes}], got "
            f"{states.shape}; pass one row an item, -1 where a variable was not seen"
        )
    is_bad = (states < -1) | (states >= np.array(graph.num_states)) | (states != np.floor(states))
    if is_bad.any():
        item, node = np.argwhere(is_bad)[0].tolist()
        raise ValueError(
            f"{caller}: expected a state in 0..{graph.num_states[node] - 1} or -1 of variable "
            f"{node}, got {states[item, node]} in item {item}; recode the data"
        )
    items, counts = np.unique(states.astype(np.int32), axis=0, return_counts=True)
    return items, counts.astype(np.float32)


def _groups(graph: Hypergraph, tied: Sequence[int] | None) -> np.ndarray:
    """Label of every factor, 0, 1, ..., checked to join tables of one shape."""
    labels = np.arange(graph.num_factors) if tied is None else np.asarray(tied)
    if labels.shape != (graph.num_factors,):
        raise ValueError(
            f"fit_by_em: expected one label per factor, {graph.num_factors}, got {labels.shape}; "
            "pass a label for each table"
        )
    labels = np.unique(labels, return_inverse=True)[1]
    shapes: dict[int, tuple[int, ...]] = {}
    for factor, label in enumerate(labels.tolist()):
        shape = graph.table_shape(factor)
        if shapes.setdefault(label, shape) != shape:
            raise ValueError(
                f"fit_by_em: expected tied tables of one shape, got {shape} and {shapes[label]}; "
                "tie only tables alike"
            )
    return labels


def _log_evidence(network: FactorGraph, items: np.ndarray) -> Array:
    return jax.vmap(lambda states: network.observe_states(states).log_evidence)(jnp.asarray(items))


@partial(jax.jit, static_argnums=(0, 1))
def _expect(engine, graph: Hypergraph, tables, evidence, weights) -> tuple[Array, Array]:
    """Log likelihood and expected counts of all table entries, summed over the items."""
    beliefs = engine(FactorGraph(tables, evidence[0], graph), evidence)
    return (weights * beliefs.log_z).sum(), weights @ beliefs.factors.flat


def _maximize(
    graph: Hypergraph, groups: np.ndarray, counts, old, prior_count: float | int
) -> Array:
    """Log tables in proportion to the counts, those of a group together; rows unseen stay."""
    found = jnp.zeros_like(old)
    for stack in graph.stacks:
        if not stack.shape:
            continue
        shape = (len(stack.factors), *stack.shape)
        part = counts[stack.start : stack.stop].reshape(shape)
        labels = np.unique(groups[stack.factors], return_inverse=True)[1]
        part = jax.ops.segment_sum(part, labels, len(stack.factors))[labels] + prior_count
        before = old[stack.start : stack.stop].reshape(shape)
        part = jnp.where(before > -jnp.inf, part, 0)
        total = part.sum(axis=-1, keepdims=True)
        logs = jnp.where(total > 0, jnp.log(part) - jnp.log(jnp.where(total > 0, total, 1)), before)
        found = found.at[stack.start : stack.stop].set(logs.ravel())
    return found


def _log_prior(graph: Hypergraph, groups: np.ndarray, tables, prior_count: float | int) -> float:
    """Log of the Dirichlet prior of all tables, up to a constant, every group once."""
    if not prior_count:
        return 0.0
    logs = np.asarray(tables, np.float64)
    _, first = np.unique(groups, return_index=True)
    total = 0.0
    for factor in first:
        start = graph.table_starts[factor]
        part = logs[start : start + math.prod(graph.table_shape(factor))]
        total += part[part > -np.inf].sum()
    return prior_count * float(total)
