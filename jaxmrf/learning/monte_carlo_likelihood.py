r"""Monte Carlo maximum likelihood: the likelihood itself, from particles drawn at an anchor.

.. math:: \ell(\theta) - \ell(\theta_0) \approx \langle\theta - \theta_0, \bar s\rangle
          - \log \frac1M \sum_m e^{\langle\theta - \theta_0,\, s(y^m)\rangle}, \qquad
          y^m \sim p_{\theta_0}

The estimate is trusted where the weights of the particles keep an effective number
:math:`(\sum_m w_m)^2 / \sum_m w_m^2` above a part of M, and maximised there; the maximiser is the
next anchor. Reference: Geyer, "Markov chain Monte Carlo maximum likelihood", Computing Science and
Statistics: Proceedings of the 23rd Symposium on the Interface (1991).
"""

from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jax.scipy.sparse.linalg import cg
from jax.scipy.special import logsumexp

from jaxmrf.graphs import Graph
from jaxmrf.learning.contrastive import ContrastiveTarget, jitted_target
from jaxmrf.learning.moments import Build, check_start, identity, largest_entry, pull_back
from jaxmrf.learning.particles import (
    default_plan,
    divide_by_variance,
    long_run_moments,
    particle_statistics,
)
from jaxmrf.learning.training import FitResult, fit, running_mean
from jaxmrf.models import PairwiseModel
from jaxmrf.sampling import gibbs, packed
from jaxmrf.sampling.packed import AnyPlan
from jaxmrf.types import Array, Bool, Float, Int, Key

__all__ = [
    "MonteCarloInfo",
    "MonteCarloState",
    "fit_monte_carlo_likelihood",
    "init",
    "step",
]

_NUM_NEWTON_STEPS = 5
_NUM_HALVINGS = 12
# a part of the curvature's diagonal is added to it: few particles leave directions without
# curvature. The maximum is where it was
_RIDGE = 0.03
_MIN_VARIANCE = 0.01
# of any one parameter of the model in one round: weights do not warn of a statistic that no
# particle varies
_MAX_SHIFT = 1.0
# rounding of the estimated gain in single precision
_SLACK = 1e-5


class MonteCarloState(NamedTuple):
    """What the next round needs.

    Attributes:
        parameters: The anchor: parameters at which the next particles are drawn.
        particles: States of the chains.
        average: Mean of the parameters since averaging began.
        count: Rounds taken.
    """

    parameters: Any
    particles: Int[Array, "nodes chains"]
    average: Any
    count: Int[Array, ""]


class MonteCarloInfo(NamedTuple):
    """What a person plots.

    Attributes:
        gain: Estimated gain of the log-likelihood per observation over the anchor.
        effective_fraction: Effective number of particles at the new parameters, as a part of all.
        is_truncated: Whether the round stopped short of the maximum of the estimated likelihood,
            where the weights are not trusted or a parameter of the model moves by more than 1.
        moment_mismatch: Largest absolute entry of the gradient at the anchor: a mean statistic of
            the data minus the fresh particles', summed over all that share a parameter.
    """

    gain: Float[Array, ""]
    effective_fraction: Float[Array, ""]
    is_truncated: Bool[Array, ""]
    moment_mismatch: Float[Array, ""]


def init(
    key: Key, parameters: Any, plan: AnyPlan, *, build: Build = identity, num_particles: int
) -> MonteCarloState:
    """State before the first round: uniform particles.

    Args:
        key: Random key.
        parameters: Start of the search, the first anchor.
        plan: Sampler plan or sweep plan of the graph.
        build: Map from parameters to a model.
        num_particles: Number of chains.
    """
    particles = gibbs.init(key, build(parameters), plan, num_chains=num_particles)
    return MonteCarloState(parameters, particles, average=parameters, count=jnp.array(0))


def step(
    key: Key,
    state: MonteCarloState,
    target: ContrastiveTarget,
    graph: Graph,
    plan: AnyPlan,
    *,
    build: Build = identity,
    num_sweeps: int = 50,
    min_effective_fraction: float = 0.5,
    average_from: int = 0,
) -> tuple[MonteCarloState, MonteCarloInfo]:
    """Draw particles at the anchor, then go to the best parameters that they can judge.

    Args:
        key: Random key.
        state: State.
        target: Moments of the data, as ``contrastive.target`` gives them.
        graph: The graph.
        plan: Sampler plan or sweep plan of the graph.
        build: Map from parameters to a model.
        num_sweeps: Gibbs sweeps of the particles at the anchor.
        min_effective_fraction: Smallest effective number of particles, as a part of all.
        average_from: Round at which averaging of the parameters begins.

    Returns:
        New state, and Info.
    """
    anchor, unravel = ravel_pytree(state.parameters)
    model, carry = pull_back(build, state.parameters)
    particles = gibbs.run(key, state.particles, model, plan, num_sweeps=num_sweeps)
    statistics = particle_statistics(model, graph, particles)
    moments = jax.tree.map(lambda value: value.mean(axis=-1), statistics)
    mismatch = largest_entry(carry(jax.tree.map(jnp.subtract, target.mean, moments)))

    def at(flat):
        """Estimated gain over the anchor per observation, log weights, and largest shift."""
        shift = jax.tree.map(jnp.subtract, build(unravel(flat)), model)
        log_weights = _inner(shift, statistics)
        log_mean = logsumexp(log_weights) - jnp.log(log_weights.size)
        return _inner(shift, target.mean) - log_mean, log_weights, largest_entry(shift)

    def tables(flat):
        """Statistics of data and particles in the parameters, one row a particle."""
        _, carry = pull_back(build, unravel(flat))
        to_flat = lambda values: ravel_pytree(carry(values))[0]  # noqa: E731
        return to_flat(target.mean), jax.vmap(to_flat, in_axes=-1)(statistics)

    variance = jnp.maximum(ravel_pytree(target.variance)[0], _MIN_VARIANCE)
    flat, is_truncated = jax.lax.fori_loop(
        0,
        _NUM_NEWTON_STEPS,
        lambda i, carry: _newton_step(carry[0], at, tables, variance, min_effective_fraction),
        (anchor, jnp.array(False)),
    )
    gain, log_weights, _ = at(flat)
    parameters = unravel(flat)
    new_state = MonteCarloState(
        parameters=parameters,
        particles=particles,
        average=running_mean(state.average, parameters, state.count - average_from),
        count=state.count + 1,
    )
    fraction = _effective_fraction(log_weights)
    return new_state, MonteCarloInfo(gain, fraction, is_truncated, mismatch)


def _inner(shift: PairwiseModel, values: PairwiseModel) -> Array:
    """Inner product of a model with statistics, one for each particle if they have such an axis."""
    products = jax.tree.map(lambda a, b: jnp.tensordot(a, b, a.ndim), shift, values)
    return sum(jax.tree.leaves(products))


def _effective_fraction(log_weights: Float[Array, " chains"]) -> Float[Array, ""]:
    """Effective number of particles over their number."""
    log_number = 2 * logsumexp(log_weights) - logsumexp(2 * log_weights)
    return jnp.exp(log_number) / log_weights.size


def _newton_step(flat, at, tables, variance, min_effective_fraction):
    """Parameters after one step, halved until trusted, and whether it had to be."""
    gain, log_weights, _ = at(flat)
    weights = jax.nn.softmax(log_weights)
    mean, table = tables(flat)
    moments = weights @ table
    table -= moments
    spread = weights @ table**2
    # a statistic that few particles vary has too little curvature; at the maximum the variances
    # of model and data agree
    floor = jnp.maximum(variance - spread, 0) + _RIDGE * jnp.maximum(variance, spread)
    direction, _ = cg(
        lambda v: (weights * (table @ v)) @ table + floor * v,
        mean - moments,
        maxiter=30,
        M=lambda v: v / (spread + floor),
    )
    sizes = 0.5 ** jnp.arange(_NUM_HALVINGS)
    gains, log_weights, shifts = jax.vmap(at)(flat + sizes[:, None] * direction)
    fractions = jax.vmap(_effective_fraction)(log_weights)
    is_trusted = (fractions >= min_effective_fraction) & (shifts <= _MAX_SHIFT)
    is_good = is_trusted & (gains >= gain - _SLACK)
    size = jnp.where(is_good.any(), sizes[is_good.argmax()], 0)
    return flat + size * direction, ~is_trusted[0]


def fit_monte_carlo_likelihood(
    key: Key,
    data,
    graph: Graph,
    *,
    parameters: Any = None,
    build: Build = identity,
    num_particles: int = 2000,
    num_rounds: int = 20,
    num_sweeps: int = 50,
    min_effective_fraction: float = 0.5,
    average_fraction: float = 0.5,
    tolerance: float = 0.1,
    plan: AnyPlan | None = None,
    progress: bool = False,
) -> FitResult:
    """Maximum likelihood estimate from particles, averaged over the last rounds.

    A round moves by at most about one standard deviation of all statistics together, so a start
    far away (many strong couplings, from zero) takes many rounds; a pseudo-likelihood estimate is
    near. Fewer particles than a few times the parameters do not determine a maximum.

    Args:
        key: Random key.
        data: Observations "items nodes": states 0..K-1, or spins -1, +1.
        graph: The graph.
        parameters: Start of the search, such as a pseudo-likelihood estimate; None for an Ising
            model with couplings and fields zero.
        build: Differentiable map from parameters to a model; ties and constraints live here.
        num_particles: Number of chains.
        num_rounds: Number of anchors.
        num_sweeps: Gibbs sweeps of the particles at every anchor.
        min_effective_fraction: Smallest effective number of particles, as a part of all, at which
            their weights are trusted, in (0, 1).
        average_fraction: Part of the rounds, the last ones, over which parameters are averaged.
        tolerance: Largest moment mismatch at which the fit counts as converged, in standard
            deviations of the statistic; a mean over n observations errs by 1 / sqrt(n) itself.
        plan: Sampler plan of so many chains, or sweep plan; by default the fastest.
        progress: Whether to show a progress bar.

    Returns:
        The averaged estimate. ``moment_mismatch`` compares the data with sweeps at the estimate
        after the last round; it includes their Monte Carlo error. A fit whose last round ended at
        the bound on the weights (``history.is_truncated``) does not count as converged.

    Raises:
        ValueError: If the data or the model do not fit the graph, or an option is out of range.
    """
    _check_options(num_particles, num_sweeps, min_effective_fraction, average_fraction)
    parameters, states = check_start(
        data, graph, parameters, build, caller="fit_monte_carlo_likelihood"
    )
    if plan is None:
        total = num_rounds * num_sweeps
        plan = default_plan(graph, build, parameters, num_chains=num_particles, num_sweeps=total)
    key_init, key_fit, key_check = jax.random.split(key, 3)
    aim = jitted_target(states, graph, parameters, build=build)
    state, history = fit(
        key_fit,
        init(key_init, parameters, plan, build=build, num_particles=num_particles),
        _configured_step(
            build=build,
            num_sweeps=num_sweeps,
            min_effective_fraction=min_effective_fraction,
            average_from=min(round((1 - average_fraction) * num_rounds), num_rounds - 1),
        ),
        num_rounds,
        args=(aim, graph, plan),
        progress=progress,
        compiler_options=getattr(plan, "compiler_options", None),
    )
    model, carry = pull_back(build, state.average)
    particles = packed.pack(state.particles, plan)
    moments = long_run_moments(key_check, particles, model, graph, plan)
    gap = carry(jax.tree.map(jnp.subtract, aim.mean, moments))
    deviation = largest_entry(divide_by_variance(gap, aim.variance, power=0.5))
    return FitResult(
        parameters=state.average,
        last_parameters=state.parameters,
        model=model,
        history=history,
        moment_mismatch=largest_entry(gap),
        is_converged=(deviation <= tolerance) & ~history.is_truncated[-1],
        num_iters=state.count,
    )


@lru_cache(maxsize=128)
def _configured_step(**options):
    """The step with its options, one object per set of options, so that it compiles once."""
    return partial(step, **options)


def _check_options(num_particles, num_sweeps, min_effective_fraction, average_fraction) -> None:
    """Raise for the first option out of range."""
    for name, value in (("num_particles", num_particles), ("num_sweeps", num_sweeps)):
        if value < 1:
            raise ValueError(
                f"fit_monte_carlo_likelihood: expected {name} to be at least 1, got {value}; "
                "raise it"
            )
    if not 0 < min_effective_fraction < 1:
        raise ValueError(
            "fit_monte_carlo_likelihood: expected min_effective_fraction to be in (0, 1), got "
            f"{min_effective_fraction}; 0.5 trusts weights worth half of the particles"
        )
    if not 0 < average_fraction <= 1:
        raise ValueError(
            "fit_monte_carlo_likelihood: expected average_fraction to be in (0, 1], got "
            f"{average_fraction}; 0.5 averages over the second half of the rounds"
        )
