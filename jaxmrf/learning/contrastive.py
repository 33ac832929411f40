r"""Contrastive divergence: the model's moments from chains that run beside the parameters.

.. math:: \theta \leftarrow \theta + \epsilon_t\, D^{-1}
          \Big(\frac1n \sum_i s(x^i) - \frac1M \sum_m s(y^m)\Big)

One step moves M particles y by k Gibbs sweeps and follows the difference of moments; D holds the
variances of the data's statistics. The particles restart at data rows (CD-k, Hinton 2002), persist
(PCD-k, Younes 1988; Tieleman, ICML 2008), or persist under parameters with fast weights added,
which decay quickly and push the particles out of modes (Tieleman & Hinton, ICML 2009).
"""

from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from jaxmrf.graphs import Graph
from jaxmrf.learning.moments import (
    Build,
    check_start,
    identity,
    largest_entry,
    mean_over_items,
    mean_statistics,
    pull_back,
)
from jaxmrf.learning.particles import default_plan, divide_by_variance, long_run_moments
from jaxmrf.learning.training import FitResult, fit, running_mean
from jaxmrf.models import PairwiseModel
from jaxmrf.sampling import packed
from jaxmrf.sampling.packed import AnyPlan
from jaxmrf.sharding import place
from jaxmrf.types import Array, ArrayLike, Float, Int, Key

__all__ = [
    "METHODS",
    "ContrastiveInfo",
    "ContrastiveState",
    "ContrastiveTarget",
    "default_optimizer",
    "fit_contrastive",
    "init",
    "jitted_target",
    "mean_statistics",
    "step",
    "target",
]

METHODS = ("pcd", "cd", "fast_pcd")
"""Names of the methods of ``fit_contrastive``."""


class ContrastiveState(NamedTuple):
    """What the next step needs.

    Attributes:
        parameters: Current parameters.
        optimizer: State of the optax transform.
        particles: States of the chains, in the layout of the plan.
        fast: Fast weights, in the shape of the parameters; zero if unused.
        average: Mean of the parameters since averaging began.
        count: Steps taken.
    """

    parameters: Any
    optimizer: Any
    particles: Array
    fast: Any
    average: Any
    count: Int[Array, ""]


class ContrastiveInfo(NamedTuple):
    """What a person plots.

    Attributes:
        gradient_norm: Euclidean norm of the gradient in the parameters.
        moment_mismatch: Largest absolute entry of the gradient: a mean statistic of the data
            minus the particles', summed over all that share a parameter.
    """

    gradient_norm: Float[Array, ""]
    moment_mismatch: Float[Array, ""]


class ContrastiveTarget(NamedTuple):
    """What the data tell the chains.

    Attributes:
        mean: Mean statistics of the data, in the shape of the model.
        variance: Variance over observations of the statistics carried back to the parameters.
        restarts: Observations "nodes items" at which the particles restart in every step
            (contrastive divergence); None for persistent particles.
    """

    mean: PairwiseModel
    variance: Any
    restarts: Int[Array, "nodes items"] | None


def target(
    data: Int[ArrayLike, "items nodes"],
    graph: Graph,
    parameters: Any,
    *,
    build: Build = identity,
    is_persistent: bool = True,
) -> ContrastiveTarget:
    """Moments of the data, computed once.

    Args:
        data: Observations, integers 0..K-1.
        graph: The graph.
        parameters: Start of the search; only a ``build`` that is not linear reads the values.
        build: Map from parameters to a model.
        is_persistent: Whether the particles persist; if not the data are kept to restart them.

    Returns:
        Mean statistics, and the variances that scale the steps.
    """
    model, carry = pull_back(build, parameters)

    def in_parameters(states):
        return carry(model.statistics(graph, states))

    mean = mean_statistics(model, graph, data)
    square = mean_over_items(lambda states: jax.tree.map(jnp.square, in_parameters(states)), data)
    variance = jax.tree.map(lambda square, mean: square - mean**2, square, carry(mean))
    return ContrastiveTarget(mean, variance, None if is_persistent else jnp.asarray(data).T)


jitted_target = jax.jit(target, static_argnames=("build", "is_persistent"))
"""``target``, compiled once for equal shapes."""


def init(
    key: Key,
    parameters: Any,
    plan: AnyPlan,
    *,
    build: Build = identity,
    optimizer: optax.GradientTransformation,
    num_chains: int,
) -> ContrastiveState:
    """State before the first step: uniform particles, no fast weights.

    Args:
        key: Random key.
        parameters: Start of the search.
        plan: Sampler plan or sweep plan of the graph.
        build: Map from parameters to a model.
        optimizer: Any optax transform.
        num_chains: Number of particles.
    """
    return ContrastiveState(
        parameters=parameters,
        optimizer=optimizer.init(parameters),
        particles=packed.init(key, build(parameters), plan, num_chains=num_chains),
        fast=jax.tree.map(jnp.zeros_like, parameters),
        average=parameters,
        count=jnp.array(0),
    )


def step(
    key: Key,
    state: ContrastiveState,
    target: ContrastiveTarget,
    graph: Graph,
    plan: AnyPlan,
    *,
    build: Build = identity,
    optimizer: optax.GradientTransformation,
    num_sweeps: int = 1,
    average_from: int = 0,
    fast_rate: float = 0.0,
    fast_decay: float = 0.95,
) -> tuple[ContrastiveState, ContrastiveInfo]:
    """Move the particles, then the parameters along the difference of moments.

    Args:
        key: Random key.
        state: State.
        target: Moments of the data; its ``restarts`` decide between CD and PCD.
        graph: The graph.
        plan: Sampler plan or sweep plan of the graph.
        build: Map from parameters to a model.
        optimizer: Any optax transform; it is given the gradient of the negative log-likelihood,
            divided by the variances.
        num_sweeps: Gibbs sweeps of the particles, the k of CD-k.
        average_from: Step at which averaging of the parameters begins.
        fast_rate: Step size of the fast weights; 0 for none.
        fast_decay: Factor by which the fast weights shrink in every step, in [0, 1).

    Returns:
        New state, and Info.
    """
    key_rows, key_sweeps = jax.random.split(key)
    particles, mean = state.particles, target.mean
    model, carry = pull_back(build, state.parameters)
    if target.restarts is not None:
        shape = (packed.num_chains(particles, plan),)
        rows = jax.random.randint(key_rows, shape, 0, target.restarts.shape[1])
        particles = packed.pack(target.restarts[:, rows], plan).astype(particles.dtype)
        # the same rows on both sides: most of their sampling noise cancels
        mean = packed.mean_statistics(particles, model, graph, plan)
    mover = build(jax.tree.map(jnp.add, state.parameters, state.fast))
    particles = packed.run(key_sweeps, particles, mover, plan, num_sweeps=num_sweeps)
    moments = packed.mean_statistics(particles, model, graph, plan)
    gap = jax.tree.map(jnp.subtract, mean, moments)
    gradient = carry(gap)
    scaled = divide_by_variance(gradient, target.variance, power=1.0)
    updates, optimizer_state = optimizer.update(
        jax.tree.map(jnp.negative, scaled), state.optimizer, state.parameters
    )
    parameters = optax.apply_updates(state.parameters, updates)
    new_state = ContrastiveState(
        parameters=parameters,
        optimizer=optimizer_state,
        particles=particles,
        fast=jax.tree.map(
            lambda fast, value: fast_decay * fast + fast_rate * value, state.fast, scaled
        ),
        average=running_mean(state.average, parameters, state.count - average_from),
        count=state.count + 1,
    )
    norm = jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(gradient)))
    return new_state, ContrastiveInfo(norm, largest_entry(gradient))


def fit_contrastive(
    key: Key,
    data,
    graph: Graph,
    *,
    parameters: Any = None,
    build: Build = identity,
    optimizer: optax.GradientTransformation | None = None,
    num_chains: int = 500,
    num_steps: int = 1000,
    num_sweeps: int = 1,
    method: str = "pcd",
    average_fraction: float = 0.5,
    fast_rate: float = 0.05,
    fast_decay: float = 0.95,
    tolerance: float = 0.1,
    plan: AnyPlan | None = None,
    mesh: Mesh | None = None,
    progress: bool = False,
) -> FitResult:
    """Maximum likelihood estimate by contrastive divergence, averaged over the last steps.

    Args:
        key: Random key.
        data: Observations "items nodes": states 0..K-1, or spins -1, +1.
        graph: The graph.
        parameters: Start of the search, such as a pseudo-likelihood estimate; None for an Ising
            model with couplings and fields zero.
        build: Differentiable map from parameters to a model; ties and constraints live here.
        optimizer: Any optax transform; by default ``default_optimizer()``.
        num_chains: Number of particles.
        num_steps: Number of steps.
        num_sweeps: Gibbs sweeps in each step, the k of CD-k and PCD-k.
        method: ``"pcd"``, ``"cd"`` or ``"fast_pcd"``.
        average_fraction: Part of the steps, the last ones, over which parameters are averaged.
        fast_rate: Step size of the fast weights of fast PCD.
        fast_decay: Factor by which the fast weights shrink in every step.
        tolerance: Largest moment mismatch at which the fit counts as converged, in standard
            deviations of the statistic; a mean over n observations errs by 1 / sqrt(n) itself.
        plan: Sampler plan of so many chains, or sweep plan; by default the fastest.
        mesh: Devices over which the particles are split, as by ``sharding.device_mesh()``.
        progress: Whether to show a progress bar.

    Returns:
        The averaged estimate. ``moment_mismatch`` compares the data with sweeps at the estimate
        after the last step; it includes their Monte Carlo error.

    Raises:
        ValueError: If the data or the model do not fit the graph, or an option is out of range.
    """
    _check_options(method, num_chains, num_sweeps, average_fraction, fast_decay)
    parameters, states = check_start(data, graph, parameters, build, caller="fit_contrastive")
    if plan is None:
        total = num_steps * num_sweeps
        plan = default_plan(graph, build, parameters, num_chains=num_chains, num_sweeps=total)
    optimizer = default_optimizer() if optimizer is None else optimizer
    key_init, key_fit, key_check = jax.random.split(key, 3)
    aim = jitted_target(states, graph, parameters, build=build, is_persistent=method != "cd")
    start = init(
        key_init, parameters, plan, build=build, optimizer=optimizer, num_chains=num_chains
    )
    if mesh is not None:
        start = start._replace(particles=place(start.particles, packed.sharding(plan, mesh)))
    state, history = fit(
        key_fit,
        start,
        _configured_step(
            build=build,
            optimizer=optimizer,
            num_sweeps=num_sweeps,
            average_from=min(round((1 - average_fraction) * num_steps), num_steps - 1),
            fast_rate=fast_rate if method == "fast_pcd" else 0.0,
            fast_decay=fast_decay,
        ),
        num_steps,
        args=(aim, graph, plan),
        progress=progress,
        compiler_options=getattr(plan, "compiler_options", None),
    )
    model, carry = pull_back(build, state.average)
    moments = long_run_moments(key_check, state.particles, model, graph, plan)
    gap = carry(jax.tree.map(jnp.subtract, aim.mean, moments))
    return FitResult(
        parameters=state.average,
        last_parameters=state.parameters,
        model=model,
        history=history,
        moment_mismatch=largest_entry(gap),
        is_converged=largest_entry(divide_by_variance(gap, aim.variance, power=0.5)) <= tolerance,
        num_iters=state.count,
    )


@lru_cache(maxsize=8)
def default_optimizer(
    rate: float = 0.3, half_time: float = 50.0, power: float = 0.6
) -> optax.GradientTransformation:
    """Plain steps of size ``rate / (1 + t / half_time) ** power``.

    A power between 1/2 and 1 lets the noise die out slowly enough for the average of the iterates
    to be as precise as the maximum likelihood allows (Polyak & Juditsky 1992). Steps that adapt to
    the noise (Adam) leave a bias in directions shared by many statistics.

    Args:
        rate: First step, as a part of the Newton step for independent statistics.
        half_time: Number of steps after which the size begins to fall.
        power: Speed of the fall, in (1/2, 1].

    Returns:
        An optax transform; equal arguments give the same object.
    """
    return optax.sgd(lambda count: rate / (1 + count / half_time) ** power)


@lru_cache(maxsize=128)
def _configured_step(**options):
    """The step with its options, one object per set of options, so that it compiles once."""
    return partial(step, **options)


def _check_options(method, num_chains, num_sweeps, average_fraction, fast_decay) -> None:
    """Raise for the first option out of range."""
    if method not in METHODS:
        raise ValueError(
            f"fit_contrastive: expected method to be one of {METHODS}, got {method!r}; name one"
        )
    for name, value in (("num_chains", num_chains), ("num_sweeps", num_sweeps)):
        if value < 1:
            raise ValueError(
                f"fit_contrastive: expected {name} to be at least 1, got {value}; raise it"
            )
    if not 0 < average_fraction <= 1:
        raise ValueError(
            "fit_contrastive: expected average_fraction to be in (0, 1], got "
            f"{average_fraction}; 0.5 averages over the second half of the steps"
        )
    if not 0 <= fast_decay < 1:
        raise ValueError(
            f"fit_contrastive: expected fast_decay to be in [0, 1), got {fast_decay}; the paper "
            "takes 0.95"
        )
