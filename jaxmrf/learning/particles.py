r"""Moments of a model from particles, which is what every learner without log Z compares.

.. math:: E_\theta\, s(x) \approx \frac1M \sum_m s(y^m), \qquad y^m \sim p_\theta
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jaxmrf.graphs import Graph
from jaxmrf.learning.moments import Build
from jaxmrf.learning.training import jitted
from jaxmrf.models import PairwiseModel
from jaxmrf.sampling import SamplerPlan, packed, sampler_plan
from jaxmrf.sampling.packed import AnyPlan
from jaxmrf.types import Array, Int, Key

__all__ = ["default_plan", "divide_by_variance", "long_run_moments", "particle_statistics"]

# a statistic that hardly varies has its estimate at infinity; this bounds its step
_MIN_VARIANCE = 0.01
_NUM_CHECK_SWEEPS = 100


def default_plan(
    graph: Graph, build: Build, parameters: Any, *, num_chains: int, num_sweeps: int
) -> SamplerPlan:
    """The fastest plan for particles of a model whose numbers change.

    Args:
        graph: The graph.
        build: Map from parameters to a model.
        parameters: Parameters; only their shapes are read.
        num_chains: Number of particles.
        num_sweeps: Sweeps of the whole fit.
    """
    model = jax.eval_shape(build, parameters)
    return sampler_plan(graph, model, num_chains=num_chains, num_sweeps=max(1, num_sweeps))


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


def long_run_moments(
    key: Key,
    particles: Array,
    model: PairwiseModel,
    graph: Graph,
    plan: AnyPlan,
) -> PairwiseModel:
    """Mean statistics over 100 sweeps at one model, after as many sweeps to forget the start.

    Args:
        key: Random key.
        particles: States at which the chains start, packed.
        model: Pairwise model.
        graph: Its graph.
        plan: Its sampler plan or sweep plan.
    """
    args = key, particles, model, graph, plan
    return jitted(_long_run_moments, getattr(plan, "compiler_options", None), args)(*args)


def _long_run_moments(key, particles, model, graph, plan):
    key_warmup, key_draws = jax.random.split(key)
    particles = packed.run(key_warmup, particles, model, plan, num_sweeps=_NUM_CHECK_SWEEPS)
    return packed.collect(
        *(key_draws, particles, model, plan),
        num_draws=_NUM_CHECK_SWEEPS,
        mean_of=lambda particles: packed.mean_statistics(particles, model, graph, plan),
    ).mean


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
