r"""Coloured block Gibbs sampling of any discrete factor graph.

.. math:: p(x_i = k \mid x_{-i}) \propto
          \exp\Big(\beta \big(\lambda_i(k) + \sum_{f \ni i} \theta_f(k, x_{f \setminus i})\big)\Big)

Variables of one block share no factor, so they are drawn at once from their Markov blankets. The
state is "nodes chains", chains last in memory. Impossible configurations are never entered from
possible ones; where they cut the space in two, the chain stays on its side. Reference: Geman &
Geman (1984); Jordan, "Graphical models" (2004), section 2.3.
"""

import jax
import jax.numpy as jnp
import numpy as np

from jaxmrf.graphs import Hypergraph
from jaxmrf.graphs.blankets import BlanketBlock, BlanketPlan
from jaxmrf.models import FactorGraph
from jaxmrf.types import Array, Float, Int, Key

__all__ = ["init", "run", "sweep"]


def init(
    key: Key, factor_graph: FactorGraph, plan: BlanketPlan, *, num_chains: int
) -> Int[Array, "nodes chains"]:
    """Independent states, uniform among those the evidence allows.

    Args:
        key: Random key.
        factor_graph: The model.
        plan: Its blanket plan; only the structure is read.
        num_chains: Number of independent copies.
    """
    graph = plan.hypergraph
    width = max(graph.num_states, default=1)
    levels = np.arange(width) < np.array(graph.num_states)[:, None]
    places = np.minimum(graph.node_starts[:, None] + np.arange(width), graph.num_node_entries - 1)
    is_allowed = levels & (jnp.asarray(factor_graph.log_evidence)[places] > -jnp.inf)
    weights = is_allowed[:, :, None] * jnp.ones((1, 1, num_chains))
    uniform = jax.random.uniform(key, (graph.num_nodes, num_chains))
    return _choose(weights.swapaxes(0, 1), uniform).astype(_dtype(graph))


def sweep(
    key: Key,
    states: Int[Array, "nodes chains"],
    factor_graph: FactorGraph,
    plan: BlanketPlan,
    *,
    inverse_temperature: float | Array = 1.0,
) -> Int[Array, "nodes chains"]:
    """Update every variable of the plan in every chain once, block after block.

    Args:
        key: Random key.
        states: Current states.
        factor_graph: The model.
        plan: Its blanket plan.
        inverse_temperature: Power of the distribution, one for all chains or one each.

    Returns:
        New states; the distribution, to that power, is left invariant.
    """
    log_tables = jnp.append(jnp.asarray(factor_graph.log_tables), 0)
    log_evidence = jnp.asarray(factor_graph.log_evidence)
    power = jnp.asarray(inverse_temperature, log_tables.dtype)
    for number, block in enumerate(plan.blocks):
        logits = _logits(log_tables, log_evidence, block, states)
        # zero times minus infinity: what is impossible stays so at any temperature above zero
        logits = jnp.where(logits == -jnp.inf, -jnp.inf, logits * power)
        top = logits.max(axis=0)
        weights = jnp.exp(logits - jnp.where(top == -jnp.inf, 0, top))
        shape = (len(block.nodes), states.shape[1])
        uniform = jax.random.uniform(jax.random.fold_in(key, number), shape, weights.dtype)
        drawn = _choose(weights, uniform).astype(states.dtype)
        drawn = jnp.where(top == -jnp.inf, states[block.nodes], drawn)
        states = states.at[block.nodes].set(drawn, unique_indices=True)
    return states


def run(
    key: Key,
    states: Int[Array, "nodes chains"],
    factor_graph: FactorGraph,
    plan: BlanketPlan,
    *,
    num_sweeps: int,
    inverse_temperature: float | Array = 1.0,
) -> Int[Array, "nodes chains"]:
    """States after ``num_sweeps`` sweeps.

    Args:
        key: Random key.
        states: Current states.
        factor_graph: The model.
        plan: Its blanket plan.
        num_sweeps: Number of sweeps.
        inverse_temperature: Power of the distribution, one for all chains or one each.
    """

    def body(number, states):
        key_sweep = jax.random.fold_in(key, number)
        return sweep(key_sweep, states, factor_graph, plan, inverse_temperature=inverse_temperature)

    return jax.lax.fori_loop(0, num_sweeps, body, states)


def _logits(
    log_tables: Array, log_evidence: Array, block: BlanketBlock, states: Array
) -> Float[Array, "states block chains"]:
    """Unnormalised log-probabilities of all states of a block's variables given the rest."""
    width = len(block.levels)
    level = np.arange(width)[:, None]
    place = jnp.minimum(block.evidence + level, len(log_evidence) - 1)
    logits = jnp.where(block.levels, log_evidence[place], -jnp.inf)
    logits = jnp.broadcast_to(logits[:, :, None], (*logits.shape, states.shape[1]))

    def add(logits, table):
        place, own, others, strides = table
        known = states.at[others].get(mode="promise_in_bounds").astype(jnp.int32)
        base = place[:, None] + (strides[..., None] * known).sum(axis=0)
        index = base + (own * level)[..., None]
        # entries past a variable's own states are masked, wherever they point
        return logits + log_tables.at[index].get(mode="clip"), None

    logits, _ = jax.lax.scan(add, logits, (block.places, block.own, block.others, block.strides))
    return jnp.where(block.levels[:, :, None], logits, -jnp.inf)


def _choose(weights: Float[Array, "states *rest"], uniform: Float[Array, "*rest"]) -> Array:
    """States in proportion to weights; never one of weight zero unless all are."""
    sums = jnp.cumsum(weights, axis=0)
    return (sums[:-1] <= uniform * sums[-1]).sum(axis=0)


def _dtype(graph: Hypergraph):
    return jnp.int8 if max(graph.num_states, default=1) <= 128 else jnp.int32
