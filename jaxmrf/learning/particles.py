r"""Moments of a model from particles, which is what every learner without log Z compares.

.. math:: E_\theta\, s(x) \approx \frac1M \sum_m s(y^m), \qquad y^m \sim p_\theta
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jaxmrf.graphs import Graph, SweepPlan
from jaxmrf.learning.training import running_mean
from jaxmrf.models import PairwiseModel
from jaxmrf.sampling import gibbs
from jaxmrf.types import Array, Int, Key

__all__ = ["divide_by_variance", "long_run_moments", "particle_moments", "particle_statistics"]

# a statistic that hardly varies has its estimate at infinity; this bounds its step
_MIN_VARIANCE = 0.01
_NUM_CHECK_SWEEPS = 100


def particle_statistics(
    model: PairwiseModel, graph: Graph, particles: Int[Array, "nodes chains"]
) -> PairwiseModel:
    """Sufficient statistics of every particle, in the shape of the model with chains last.

    Args:
        model: Pairwise model; only its shape is read.
        graph: Its graph.
        particles: States 0..K-1.
    """
    return jax.vmap(partial(model.statistics, graph), in_axes=1, out_axes=-1)(particles)


def particle_moments(
    model: PairwiseModel, graph: Graph, particles: Int[Array, "nodes chains"]
) -> PairwiseModel:
    """Mean of ``particle_statistics`` over the particles; the arguments are the same."""
    values = particle_statistics(model, graph, particles)
    return jax.tree.map(lambda value: value.mean(axis=-1), values)


@jax.jit
def long_run_moments(
    key: Key,
    particles: Int[Array, "nodes chains"],
    model: PairwiseModel,
    graph: Graph,
    plan: SweepPlan,
) -> PairwiseModel:
    """Mean statistics over 100 sweeps at one model, after as many sweeps to forget the start.

    Args:
        key: Random key.
        particles: States at which the chains start.
        model: Pairwise model.
        graph: Its graph.
        plan: Its sweep plan.
    """

    def sweep(i, carry):
        particles, mean = carry
        particles = gibbs.sweep(jax.random.fold_in(key, i), particles, model, plan)
        value = particle_moments(model, graph, particles)
        return particles, running_mean(mean, value, i - _NUM_CHECK_SWEEPS)

    start = (particles, particle_moments(model, graph, particles))
    return jax.lax.fori_loop(0, 2 * _NUM_CHECK_SWEEPS, sweep, start)[1]


def divide_by_variance(values: Any, variance: Any, *, power: float) -> Any:
    """Values in units of a power of their variances, which count as at least 0.01.

    Args:
        values: Pytree of arrays.
        variance: Their variances, in the same shape.
        power: 1/2 for standard deviations.
    """
    return jax.tree.map(
        lambda value, scale: value / jnp.maximum(scale, _MIN_VARIANCE) ** power, values, variance
    )
