r"""Parallel tempering of any discrete factor graph.

.. math:: P(\text{swap } a, b) = \min\big(1, e^{(\beta_a - \beta_b)(\phi(x_b) - \phi(x_a))}\big)

One replica at each inverse temperature; after a sweep of all of them, neighbours on the ladder
exchange their states, even pairs and odd pairs in turn. For pairwise fields see
`pairwise_tempering`. Reference: Geyer, "Markov chain Monte Carlo maximum likelihood" (1991); Syed
et al., JRSS B 84 (2022) on taking the pairs in turn.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxmrf.graphs.blankets import BlanketPlan
from jaxmrf.models import FactorGraph, log_potential_of
from jaxmrf.sampling import factor_gibbs
from jaxmrf.types import Array, ArrayLike, Bool, Float, Int, Key

__all__ = ["TemperingInfo", "TemperingState", "exchange", "init", "step"]


class TemperingState(NamedTuple):
    """State of all replicas.

    Attributes:
        states: States of the replicas, the last axis in the order of the ladder.
        num_steps: Steps taken, which says whether even or odd pairs are next.
    """

    states: Int[Array, "nodes chains"]
    num_steps: Int[Array, ""]


class TemperingInfo(NamedTuple):
    """What one step did, temperatures first.

    Attributes:
        log_potentials: Log potential of every replica before the exchange.
        is_swapped: Whether each replica exchanged its state with the next one on the ladder.
        swap_prob: Probability of that exchange; zero for pairs that were not asked.
    """

    log_potentials: Float[Array, "temperatures *chains"]
    is_swapped: Bool[Array, "temperatures *chains"]
    swap_prob: Float[Array, "temperatures *chains"]


def init(
    key: Key, factor_graph: FactorGraph, plan: BlanketPlan, *, num_replicas: int
) -> TemperingState:
    """Independent uniform states.

    Args:
        key: Random key.
        factor_graph: The model.
        plan: Its blanket plan.
        num_replicas: Number of temperatures.
    """
    states = factor_gibbs.init(key, factor_graph, plan, num_chains=num_replicas)
    return TemperingState(states, jnp.zeros((), jnp.int32))


def step(
    key: Key,
    state: TemperingState,
    factor_graph: FactorGraph,
    plan: BlanketPlan,
    *,
    inverse_temperatures: Float[ArrayLike, " chains"],
) -> tuple[TemperingState, TemperingInfo]:
    """One sweep of all replicas and one round of exchanges.

    Args:
        key: Random key.
        state: Current state.
        factor_graph: The model.
        plan: Its blanket plan.
        inverse_temperatures: The ladder, monotone; the replica at 1 has the model's distribution.
    """
    key_sweep, key_swap = jax.random.split(key)
    betas = jnp.asarray(inverse_temperatures)
    states = factor_gibbs.sweep(
        key_sweep, state.states, factor_graph, plan, inverse_temperature=betas
    )
    potentials = log_potential_of(factor_graph, states)
    info = exchange(key_swap, potentials, betas, state.num_steps)
    number = jnp.arange(len(betas))
    came = jnp.roll(info.is_swapped, 1)  # the one before on the ladder gave its state
    source = jnp.where(info.is_swapped, number + 1, jnp.where(came, number - 1, number))
    return TemperingState(states[:, source], state.num_steps + 1), info


def exchange(
    key: Key,
    log_potentials: Float[Array, "temperatures *chains"],
    inverse_temperatures: Float[Array, " temperatures"],
    num_steps: Int[Array, ""],
) -> TemperingInfo:
    """Which replicas exchange their states with the next one on the ladder.

    Args:
        key: Random key.
        log_potentials: Log potentials of the replicas of one ladder, or of many.
        inverse_temperatures: The ladder.
        num_steps: Even pairs are asked if it is even, else odd ones.
    """
    last = len(inverse_temperatures) - 1
    number = jnp.arange(last + 1)
    following = jnp.minimum(number + 1, last)
    spread = number.shape + (1,) * (log_potentials.ndim - 1)
    is_asked = ((number % 2 == num_steps % 2) & (number < last)).reshape(spread)
    falls = (inverse_temperatures - inverse_temperatures[following]).reshape(spread)
    gap = log_potentials[following] - log_potentials
    # two impossible replicas exchange freely: neither has a weight to lose
    gap = jnp.where(jnp.isnan(gap), 0, gap)
    change = jnp.nan_to_num(falls * gap)
    swap_prob = jnp.where(is_asked, jnp.exp(jnp.minimum(change, 0)), 0)
    uniform = jax.random.uniform(key, swap_prob.shape, swap_prob.dtype)
    return TemperingInfo(log_potentials, uniform < swap_prob, swap_prob)
