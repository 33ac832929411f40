r"""The exchange algorithm: Metropolis-Hastings where the likelihood's normaliser is unknown.

A move from :math:`\theta` to :math:`\theta'` draws :math:`y \sim p(y \mid \theta')` and is accepted
with probability

.. math:: \min\Big(1, \frac{p(\theta') q_{\theta'}(x)}{p(\theta) q_\theta(x)}
          \cdot \frac{q_\theta(y)}{q_{\theta'}(y)}\Big),
          \qquad p(x \mid \theta) = q_\theta(x) / Z(\theta),

in which both normalisers cancel. Reference: Murray, Ghahramani & MacKay, "MCMC for
doubly-intractable distributions", UAI 2006. Proposals adapt during warm-up by the robust adaptive
Metropolis of Vihola, Statistics and Computing 22 (2012): after a proposal along :math:`u`,

.. math:: S \leftarrow S \big(I + \eta_n (\alpha_n - \alpha^*) u u^T\big)^{1/2},
          \qquad \eta_n = \min(1, d\, n^{-2/3}),

which coerces the acceptance rate and learns scale and correlations at once. The root is
:math:`I + (\sqrt{1 + c} - 1) u u^T`, so an update is one outer product. S is not triangular, and
no Cholesky factorisation is needed (vmapped ones have been seen to deadlock on two-core CPUs).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from numpyro import handlers
from numpyro.distributions import biject_to
from numpyro.infer.gibbs import GIBBS_SITES_KWARG, conditioned, latent_sample_sites
from numpyro.infer.initialization import init_to_uniform
from numpyro.infer.util import constrain_fn, log_density
from numpyro.ops.provenance import eval_provenance

from jaxmrf.infer._auxiliary import draw_auxiliary, log_auxiliary_ratio
from jaxmrf.infer._block import BlockKernel, abstract_sites, is_composite
from jaxmrf.infer.unnormalized import UnnormalizedModel, mrf_parents

__all__ = ["ExchangeMH", "ExchangeState"]

_RATE_POWER = -2 / 3  # of the adaptation's step, within the (1/2, 1] that convergence asks for


class ExchangeState(NamedTuple):
    """Position of the chain and of the adaptation.

    Attributes:
        i: Steps taken.
        z: Unconstrained values by site.
        factor: S, a square root of the proposal's covariance, over the raveled values.
        accept_prob: Acceptance probability, mean over the moves of the last step.
        mean_accept_prob: Its mean over the steps since warm-up ended (or began).
        rng_key: Key of the next step.
    """

    i: jax.Array
    z: dict[str, jax.Array]
    factor: jax.Array
    accept_prob: jax.Array
    mean_accept_prob: jax.Array
    rng_key: jax.Array


class ExchangeMH(BlockKernel):
    """Updates continuous sites that parametrise random fields, without their normalisers.

    Claims the random fields whose parameters depend on its own sites, latent or observed, and
    draws one auxiliary realisation of each a move. The draw is exact for small fields; for others
    it takes the field's ``num_sweeps`` of Gibbs sampling, whose error reaches the posterior.
    Adaptation stops after warm-up; without warm-up there is none.

    Args:
        model: The model.
        num_moves: Proposals a step.
        target_accept_prob: Acceptance rate in (0, 1) to which the proposals adapt.
        step_size: First proposal in unconstrained space: a standard deviation, or a square root
            "sites sites" of the covariance, such as ``last_state.factor`` of another run.

    Raises:
        ValueError: If an option is out of range.

    >>> import jax
    >>> import numpyro
    >>> import numpyro.distributions as dist
    >>> from numpyro.infer import MCMC
    >>> from jaxmrf.distributions import Ising
    >>> from jaxmrf.graphs import grid
    >>> def model(x):
    ...     coupling = numpyro.sample("coupling", dist.Normal(0, 1))
    ...     numpyro.sample("x", Ising(grid((2, 2)), coupling), obs=x)
    >>> mcmc = MCMC(ExchangeMH(model), num_warmup=50, num_samples=50, progress_bar=False)
    >>> mcmc.run(jax.random.key(0), jax.numpy.ones(4, int))
    >>> mcmc.get_samples()["coupling"].shape
    (50,)
    """

    handles_intractable = True

    def __init__(
        self, model, *, num_moves: int = 4, target_accept_prob: float = 0.3, step_size=0.3
    ):
        if int(num_moves) != num_moves or num_moves < 1:
            raise ValueError(
                f"ExchangeMH: expected num_moves to be a positive integer, got {num_moves}; pass 4"
            )
        if not 0 < target_accept_prob < 1:
            raise ValueError(
                f"ExchangeMH: expected target_accept_prob in (0, 1), got {target_accept_prob}; "
                "pass 0.3"
            )
        step_size = np.asarray(step_size, dtype=float)
        is_square = step_size.ndim == 2 and step_size.shape[0] == step_size.shape[1]
        if not np.isfinite(step_size).all() or not (is_square or step_size.ndim == 0 < step_size):
            raise ValueError(
                "ExchangeMH: expected step_size to be positive or a square matrix, got "
                f"{step_size.tolist()}; pass 0.3"
            )
        self._num_moves = int(num_moves)
        self._target_accept_prob = float(target_accept_prob)
        self._step_size = step_size
        super().__init__(model)

    @property
    def default_fields(self):
        """The sites, and what ArviZ calls the acceptance rate."""
        return ("z", "accept_prob")

    def get_diagnostics_str(self, state):
        """The acceptance rate, for the progress bar."""
        return f"exchange acc. prob={state.mean_accept_prob:.2f}"

    def _reset(self) -> None:
        super()._reset()
        self._sites, self._compensated, self._constant = (), (), ()

    def _prepare(self, model_args, model_kwargs):
        parents = mrf_parents(self._model, model_args, model_kwargs)
        # one list is both stripped and compensated; the others' normalisers do not move
        self._compensated = tuple(name for name, found in parents.items() if found)
        self._constant = tuple(name for name, found in parents.items() if not found)

        def describe(trace):
            sites = latent_sample_sites(trace)
            discrete = [name for name in sites if trace[name]["fn"].support.is_discrete]
            scaled = [n for n in self._compensated if trace[n]["scale"] is not None]
            return sites, discrete, scaled

        facts, _ = abstract_sites(self._model, model_args, model_kwargs, describe)
        self._sites, discrete, scaled = facts
        if discrete:
            raise ValueError(
                f"ExchangeMH: expected continuous sites, got discrete {discrete}; give them to "
                "another block of MRFGibbs, such as PlateGibbs or LatentFieldGibbs"
            )
        if not self._compensated:
            raise ValueError(
                f"ExchangeMH: expected a random field whose parameters depend on {self._sites}, "
                f"got none among {self._constant}; use NUTS for these sites"
            )
        if scaled:
            raise ValueError(
                f"ExchangeMH: expected random fields with their own weight, got {scaled} inside "
                "handlers.scale; observe the field several times instead"
            )
        self._check_supports(model_args, model_kwargs)

    def _check_supports(self, model_args, model_kwargs):
        """Raise if where a site may lie depends on latent values: `Gibbs` maps without them."""
        kwargs = {name: v for name, v in model_kwargs.items() if name != GIBBS_SITES_KWARG}
        _, shapes = abstract_sites(self._model, model_args, kwargs, lambda trace: None)

        def supports(**values):
            model = handlers.substitute(handlers.seed(conditioned(self._model), 0), data=values)
            trace = handlers.trace(model).get_trace(*model_args, **kwargs)
            return {name: jax.tree.leaves(trace[name]["fn"].support) for name in self._sites}

        for name, found in eval_provenance(supports, **shapes).items():
            sources = sorted(frozenset().union(*found))
            if sources:
                raise ValueError(
                    f"ExchangeMH: expected fixed supports, got site '{name}' whose support "
                    f"depends on {sources}; rescale a site of fixed support instead"
                )

    def _init_one(self, rng_key, init_params, model_args, model_kwargs):
        key, key_trace = jax.random.split(rng_key)
        model = handlers.seed(self._density_model(), key_trace)
        start = handlers.substitute(model, substitute_fn=init_to_uniform)
        trace = handlers.trace(start).get_trace(*model_args, **model_kwargs)
        z = {}
        for name in self._sites:
            transform = biject_to(trace[name]["fn"].support)
            value = trace[name]["value"]
            if init_params and name in init_params:
                value = jnp.asarray(init_params[name], jnp.result_type(float))
                if not is_composite(model_kwargs):
                    z[name] = value
                    continue
            z[name] = transform.inv(value)
        flat, _ = ravel_pytree(z)
        zero = jnp.zeros((), jnp.result_type(float))
        return ExchangeState(
            jnp.array(0), z, self._first_factor(flat.size).astype(flat.dtype), zero, zero, key
        )

    def _first_factor(self, size: int) -> jax.Array:
        if self._step_size.ndim == 0:
            return jnp.asarray(self._step_size) * jnp.eye(size)
        if len(self._step_size) != size:
            raise ValueError(
                f"ExchangeMH: expected step_size for {size} unconstrained values, got shape "
                f"{self._step_size.shape}; pass a number"
            )
        return jnp.asarray(self._step_size)

    def _density_model(self):
        """The conditioned model without the normalisers that are constant or compensated."""
        return UnnormalizedModel(conditioned(self._model), (*self._compensated, *self._constant))

    def _sample_one(self, state, model_args, model_kwargs):
        key, key_moves = jax.random.split(state.rng_key)
        is_warmup = state.i < self._num_warmup

        def evaluate(z):
            return _log_density(
                self._density_model(), model_args, model_kwargs, z, self._compensated
            )

        def move(carry, inputs):
            z, factor = carry
            number, key_move = inputs
            key_direction, key_auxiliary, key_accept = jax.random.split(key_move, 3)
            flat, unravel = ravel_pytree(z)
            direction = jax.random.normal(key_direction, flat.shape, flat.dtype)
            proposal = unravel(flat + factor @ direction)
            log_current, current = evaluate(z)
            log_proposed, proposed = evaluate(proposal)
            draws = draw_auxiliary(key_auxiliary, current, proposed)
            log_ratio = log_proposed - log_current + log_auxiliary_ratio(draws, current, proposed)
            accept_prob = jnp.nan_to_num(jnp.exp(jnp.minimum(0.0, log_ratio)))
            is_accepted = jax.random.uniform(key_accept) < accept_prob
            z = jax.tree.map(lambda new, old: jnp.where(is_accepted, new, old), proposal, z)
            change = accept_prob - self._target_accept_prob
            adapted = _adapt(factor, direction, change, number)
            return (z, jnp.where(is_warmup, adapted, factor)), accept_prob

        numbers = state.i * self._num_moves + jnp.arange(1, self._num_moves + 1)
        keys = jax.random.split(key_moves, self._num_moves)
        (z, factor), accept_probs = jax.lax.scan(move, (state.z, state.factor), (numbers, keys))
        accept_prob = accept_probs.mean().astype(state.accept_prob.dtype)
        i = state.i + 1
        count = jnp.where(is_warmup, i, i - self._num_warmup)
        mean = state.mean_accept_prob + (accept_prob - state.mean_accept_prob) / count
        return ExchangeState(i, z, factor, accept_prob, mean, key)

    def get_constrain_fn(self, model_args, model_kwargs):
        """The sites' own transforms; supports are fixed, so no sibling is needed."""
        model_kwargs = {} if model_kwargs is None else model_kwargs

        def constrain(z):
            model = handlers.seed(self._density_model(), 0)
            return constrain_fn(model, model_args, model_kwargs, z)

        return constrain


def _log_density(model, model_args, model_kwargs, z, fields):
    """Log density of the unconstrained values up to a constant, and the named fields there."""
    log_jacobians = []

    def constrain(site):
        if site["type"] != "sample" or site["name"] not in z:
            return None
        transform = biject_to(site["fn"].support)
        value = transform(z[site["name"]])
        log_jacobians.append(_log_jacobian(transform, z[site["name"]], value))
        return value

    substituted = handlers.substitute(model, substitute_fn=constrain)
    log_joint, trace = log_density(substituted, model_args, model_kwargs, {})
    return log_joint + sum(log_jacobians), {name: trace[name]["fn"] for name in fields}


def _log_jacobian(transform, unconstrained, value):
    return jnp.sum(transform.log_abs_det_jacobian(unconstrained, value))


def _adapt(factor, direction, change, number):
    """The factor after a proposal along `direction` with acceptance above target by `change`."""
    unit = direction / jnp.linalg.norm(direction)
    rate = jnp.minimum(1.0, len(direction) * number.astype(change.dtype) ** _RATE_POWER)
    root = jnp.sqrt(1.0 + rate * change) - 1.0
    return (factor + root * jnp.outer(factor @ unit, unit)).astype(factor.dtype)
