r"""Annealed importance sampling of log Z of pairwise fields, chains in the layout of a plan.

.. math:: \log w = n \log K + \sum_t (\beta_{t+1} - \beta_t)\, \phi(x_t), \qquad E[w] = Z

All chains start uniformly and have one temperature at a time, so they stay packed. `annealing` does
the same for factor graphs and has the reference.
"""

import jax
import jax.numpy as jnp
import numpy as np

from jaxmrf.graphs import Graph
from jaxmrf.models import PairwiseModel
from jaxmrf.sampling import packed
from jaxmrf.sampling.annealing import AnnealingResult, summarize
from jaxmrf.sampling.plans import SamplerPlan
from jaxmrf.types import ArrayLike, Float, Key

__all__ = ["estimate"]


def estimate(
    key: Key,
    model: PairwiseModel,
    graph: Graph,
    plan: SamplerPlan,
    *,
    num_temperatures: int = 200,
    inverse_temperatures: Float[ArrayLike, " temperatures"] | None = None,
    num_sweeps: int = 1,
) -> AnnealingResult:
    """Log Z by annealed importance sampling with the chains of a plan.

    Args:
        key: Random key.
        model: Pairwise model.
        graph: Its graph.
        plan: Sampler plan without clamped nodes.
        num_temperatures: Number of equal steps of the ladder.
        inverse_temperatures: Another ladder: known numbers that rise from 0 to 1.
        num_sweeps: Sweeps at every temperature.

    Returns:
        Log Z with its error, and what every chain contributes.

    Raises:
        ValueError: If nodes are clamped, the ladder does not rise from 0 to 1, or a number is not
            positive.

    >>> from jaxmrf.graphs import grid
    >>> from jaxmrf.models import Ising
    >>> from jaxmrf.sampling import sampler_plan
    >>> graph, model = grid((2, 2)), Ising(jnp.zeros(4), jnp.zeros(4))
    >>> plan = sampler_plan(graph, model, num_chains=8)
    >>> round(float(estimate(jax.random.key(0), model, graph, plan, num_temperatures=2).log_z), 4)
    2.7726
    """
    ladder = _ladder(num_temperatures, inverse_temperatures)
    if num_sweeps < 1:
        raise ValueError(
            f"estimate: expected num_sweeps of at least 1, got {num_sweeps}; sweep at least once"
        )
    if getattr(plan.layout, "num_clamped", 0):
        raise ValueError(
            f"estimate: expected no clamped nodes, got {plan.layout.num_clamped}; move their "
            "couplings into the fields of their neighbours and leave them out of the graph"
        )
    key_start, key_sweeps = jax.random.split(key)

    def step(carry, xs):
        fields, log_weights = carry
        number, rise, beta = xs
        log_weights += rise * packed.log_potentials(fields, model, graph, plan)
        key_step = jax.random.fold_in(key_sweeps, number)
        scaled = jax.tree.map(lambda leaf: leaf * beta, model)
        return (
            packed.run(key_step, fields, scaled, plan, num_sweeps=num_sweeps),
            log_weights,
        ), None

    fields = packed.init(key_start, model, plan)
    dtype = jnp.result_type(*jax.tree.leaves(model))
    start = fields, jnp.zeros(plan.num_chains, dtype)
    xs = np.arange(len(ladder) - 1), np.diff(ladder).astype(dtype), ladder[1:].astype(dtype)
    (fields, log_weights), _ = jax.lax.scan(step, start, xs)
    log_weights += float(graph.num_nodes * np.log(model.num_states))
    return summarize(log_weights, packed.unpack(fields, plan))


def _ladder(num_temperatures: int, inverse_temperatures: ArrayLike | None) -> np.ndarray:
    """The ladder, checked."""
    if inverse_temperatures is None:
        if num_temperatures < 1:
            raise ValueError(
                f"estimate: expected num_temperatures of at least 1, got {num_temperatures}; take "
                "more"
            )
        return np.linspace(0, 1, num_temperatures + 1)
    ladder = np.asarray(inverse_temperatures, np.float64)
    if len(ladder) < 2 or ladder[0] != 0 or ladder[-1] != 1 or (np.diff(ladder) < 0).any():
        raise ValueError(
            "estimate: expected inverse_temperatures that rise from 0 to 1, got "
            f"{ladder.tolist()}; begin with 0, sort them and end with 1"
        )
    return ladder
