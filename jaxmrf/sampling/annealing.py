r"""Annealed importance sampling: an unbiased estimate of Z from chains that cool down.

.. math:: \log w = \sum_t (\beta_{t+1} - \beta_t)\, \phi(x_t), \qquad E[w] = Z / Z_0

A chain starts uniformly among the configurations the evidence allows and is swept at every inverse
temperature of a ladder from 0 to 1. For pairwise fields see `pairwise_annealing`. Reference: Neal,
"Annealed importance sampling", Statistics and Computing 11 (2001).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp

from jaxmrf.graphs.blankets import BlanketPlan
from jaxmrf.models import FactorGraph, log_potential_of
from jaxmrf.sampling import factor_gibbs
from jaxmrf.types import Array, Float, Int, Key

__all__ = ["AnnealingResult", "estimate", "summarize"]


class AnnealingResult(NamedTuple):
    """What the chains say about Z.

    Attributes:
        log_z: Log of the mean weight; Z itself is estimated without bias, its log from below.
        standard_error: Of ``log_z``, by the delta method; too small where few chains carry the
            weight.
        effective_size: Number of chains that would do with equal weights.
        log_weights: Log weight of every chain.
        states: Last states; with the weights they represent the distribution.
    """

    log_z: Float[Array, ""]
    standard_error: Float[Array, ""]
    effective_size: Float[Array, ""]
    log_weights: Float[Array, " chains"]
    states: Int[Array, "nodes chains"]


def estimate(
    key: Key,
    factor_graph: FactorGraph,
    plan: BlanketPlan,
    *,
    num_chains: int = 1000,
    num_temperatures: int = 200,
) -> AnnealingResult:
    """Log Z by annealed importance sampling.

    Args:
        key: Random key.
        factor_graph: The model; hard evidence is respected from the start, and entries of minus
            infinity give weight zero to chains that start on them.
        plan: Its blanket plan, of all variables.
        num_chains: Number of independent chains.
        num_temperatures: Number of steps of the ladder, one sweep each.

    Raises:
        ValueError: If a number is not positive.
    """
    if num_chains < 1 or num_temperatures < 1:
        raise ValueError(
            "estimate: expected num_chains and num_temperatures of at least 1, got "
            f"{num_chains} and {num_temperatures}; take more"
        )
    key_start, key_sweeps = jax.random.split(key)
    states = factor_gibbs.init(key_start, factor_graph, plan, num_chains=num_chains)
    ladder = np.linspace(0, 1, num_temperatures + 1)

    def step(carry, xs):
        states, log_weights = carry
        number, rise, power = xs
        log_weights += rise * log_potential_of(factor_graph, states)
        states = factor_gibbs.sweep(
            jax.random.fold_in(key_sweeps, number),
            states,
            factor_graph,
            plan,
            inverse_temperature=power,
        )
        return (states, log_weights), None

    dtype = jnp.asarray(factor_graph.log_tables).dtype
    start = jnp.full(num_chains, _log_allowed(factor_graph), dtype)
    xs = (np.arange(num_temperatures), np.diff(ladder).astype(dtype), ladder[1:].astype(dtype))
    (states, log_weights), _ = jax.lax.scan(step, (states, start), xs)
    return summarize(log_weights, states)


def summarize(
    log_weights: Float[Array, " chains"], states: Int[Array, "nodes chains"]
) -> AnnealingResult:
    """What the weights of independent chains say about Z.

    Args:
        log_weights: Log weight of every chain; the mean weight is Z.
        states: Their last states.
    """
    num_chains = len(log_weights)
    log_z = logsumexp(log_weights) - jnp.log(num_chains)
    is_possible = log_z > -jnp.inf
    relative = jnp.where(is_possible, jnp.exp(log_weights - log_z), 0)
    return AnnealingResult(
        log_z=log_z,
        standard_error=relative.std() / jnp.sqrt(num_chains),
        effective_size=jnp.where(is_possible, num_chains / (relative**2).mean(), 0),
        log_weights=log_weights,
        states=states,
    )


def _log_allowed(factor_graph: FactorGraph) -> Array:
    """Log of the number of configurations that the evidence allows."""
    graph = factor_graph.hypergraph
    is_allowed = (jnp.asarray(factor_graph.log_evidence) > -jnp.inf).astype(jnp.float32)
    counts = jax.ops.segment_sum(is_allowed, graph.node_owners, graph.num_nodes)
    return jnp.log(counts).sum()
