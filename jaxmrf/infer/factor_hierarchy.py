r"""Gibbs sampling of the sticks, weights and features of an infinite factor hierarchy.

.. math:: p(\mu, Y, \nu, V, Z \mid X, \text{parameters})

in one block, for any number of layers over any observations that do not mix objects. Reference:
Courville, Eck & Bengio, "An infinite factor model hierarchy via a noisy-or mechanism", NIPS 2009.
"""

from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpyro import handlers
from numpyro.distributions import biject_to
from numpyro.infer.gibbs import (
    conditioned,
    latent_sample_sites,
    prototype_trace,
    subsample_plate_sizes,
    with_conditioning,
)
from numpyro.util import not_jax_tracer

from jaxmrf.distributions import NoisyOr, NoisyOrBinomial, OtherFeatures, base_distribution
from jaxmrf.distributions._base import as_floats
from jaxmrf.infer._block import BlockKernel, abstract_sites, is_composite
from jaxmrf.infer._evidence import Dependant, density_sources, log_evidence, plate_axis
from jaxmrf.infer._feature_evidence import SiteFactors, check_objects
from jaxmrf.infer._feature_sites import find_layers
from jaxmrf.models.noisy_or import log_failure
from jaxmrf.nonparametric import factor_hierarchy_gibbs
from jaxmrf.nonparametric.factor_hierarchy import FeatureLayer, HierarchyState, LayerPrior
from jaxmrf.nonparametric.noisy_or_factors import NoisyOrFactors

__all__ = ["FactorHierarchyGibbs", "FactorHierarchyState"]


class FactorHierarchyState(NamedTuple):
    """Position of the chain.

    Attributes:
        z: Values of the sites, by name.
        rng_key: Key of the next step.
        is_truncated: Whether a capacity turned out too small; steps then change nothing.
        needed: Slots of every layer that the refused step needs, from the top down.
        num_active: Features of every layer that somebody has.
    """

    z: dict[str, jax.Array]
    rng_key: jax.Array
    is_truncated: jax.Array
    needed: jax.Array
    num_active: jax.Array


class FactorHierarchyGibbs(BlockKernel):
    """Exact Gibbs updates of all layers of infinitely many features.

    Layers are found by their distributions, as ``infinite_features`` and ``noisy_or_layer`` write
    them; one layer is the Indian buffet process factor model. The features that have no slot are
    integrated out: the posterior is that of the model with infinitely many. A capacity that is too
    small stops the chain with a warning that says what to ask for; it never drops a feature.

    Observations may be any sites in a plate over the objects; ``NoisyOr`` and ``NoisyOrBinomial``
    have a faster path. Concentrations with a gamma prior that no other kernel owns are drawn too.

    Args:
        model: The model.

    >>> import jax
    >>> import jax.numpy as jnp
    >>> import numpyro
    >>> import numpyro.distributions as dist
    >>> from numpyro.infer import MCMC
    >>> from jaxmrf.distributions import infinite_features
    >>> def factors(x):
    ...     z = infinite_features("z", num_objects=len(x), capacity=12, concentration=1.0)
    ...     with numpyro.plate("objects", len(x)):
    ...         numpyro.sample("x", dist.Normal(z.sum(axis=-1), 0.1), obs=x)
    >>> kernel = FactorHierarchyGibbs(factors)
    >>> mcmc = MCMC(kernel, num_warmup=50, num_samples=20, progress_bar=False)
    >>> mcmc.run(jax.random.key(0), jnp.array([0.0, 2.0, 1.0]))
    >>> mcmc.get_samples()["z"].sum(axis=-1)[-1].tolist()
    [0, 2, 1]
    """

    def _reset(self) -> None:
        super()._reset()
        self._layers, self._num_objects, self._dependants = (), 0, ()
        self._is_noisy_or = False

    def _prepare(self, model_args, model_kwargs):
        self._layers = find_layers(self._model, model_args, model_kwargs)
        _, shapes = abstract_sites(self._model, model_args, model_kwargs, self._check_sites)
        features = self._layers[-1].features
        self._num_objects = shapes[features].shape[0]
        sources = density_sources(self._model, shapes, model_args, model_kwargs)
        found = {
            name: [other for other, latents in sources.items() if name in latents]
            for name in self._names
        }

        def describe(trace):
            self._check_dependants(trace, found)
            return tuple(
                Dependant(name, (plate_axis(trace[name], self._num_objects),))
                for name in found[features]
                if name != features and not isinstance(trace[name]["fn"], OtherFeatures)
            )

        self._dependants, _ = abstract_sites(self._model, model_args, model_kwargs, describe)
        coarse = [name for name, axes in self._dependants if axes == (None,)]
        if coarse:
            raise ValueError(
                f"FactorHierarchyGibbs: expected all that depends on '{features}' in one plate of "
                f"its {self._num_objects} objects, got {coarse} outside; put them in "
                f"numpyro.plate(name, {self._num_objects})"
            )
        mixed = check_objects(
            self._model,
            features,
            shapes[features].shape,
            self._dependants,
            model_args,
            model_kwargs,
        )
        if mixed is not None:
            raise ValueError(
                f"FactorHierarchyGibbs: expected the log-probability of an object in '{mixed}' to "
                f"depend on its own row of '{features}' alone, got one that mixes objects; let "
                "each object depend on its own features"
            )
        self._is_noisy_or, _ = abstract_sites(
            self._model, model_args, model_kwargs, self._describe_observation
        )

    @property
    def _names(self) -> tuple[str, ...]:
        return tuple(name for layer in self._layers for name in layer.names)

    def _check_sites(self, trace) -> None:
        """Raise unless the kernel can own all latent sites, and counts are what they should be."""
        for name, site in trace.items():
            if site["type"] == "sample" and site["is_observed"]:
                _check_counts(name, base_distribution(site["fn"]), site["value"])
        others = [name for name in latent_sample_sites(trace) if name not in self._names]
        if others:
            raise ValueError(
                f"FactorHierarchyGibbs: expected no latent site but {list(self._names)}, got "
                f"{others}; use it as a block of Gibbs, with infer.hierarchy_sites, together with "
                "kernels for these"
            )
        if subsample_plate_sizes(trace):
            raise ValueError(
                f"FactorHierarchyGibbs: expected whole plates, got subsampled "
                f"{sorted(subsample_plate_sizes(trace))}; drop subsample_size"
            )
        for layer in self._layers:
            shape = np.shape(trace[layer.features]["value"])
            if len(shape) != 2 or shape[1] != np.shape(trace[layer.sticks]["value"])[0]:
                raise ValueError(
                    f"FactorHierarchyGibbs: expected '{layer.features}' of shape [objects, slots], "
                    f"got {shape}; put it in one plate over the objects"
                )

    def _check_dependants(self, trace, found) -> None:
        """Raise if a site that the kernel does not know depends on its sites."""
        bottom = self._layers[-1].features
        for name, dependants in found.items():
            strangers = [
                other
                for other in dependants
                if other not in self._names
                and not isinstance(trace[other]["fn"], OtherFeatures)
                and name != bottom
            ]
            if strangers:
                raise ValueError(
                    f"FactorHierarchyGibbs: expected observations to depend on '{bottom}' alone, "
                    f"got {strangers} that depend on '{name}'; observe the last layer"
                )

    def _describe_observation(self, trace) -> bool:
        """Whether the only observation is a plain noisy-or of the features."""
        if len(self._dependants) != 1:
            return False
        site = trace[self._dependants[0].name]
        fn = site["fn"]
        if not isinstance(fn, NoisyOr | NoisyOrBinomial) or site["scale"] is not None:
            return False
        parents = fn.parents if isinstance(fn, NoisyOr) else fn.features
        is_plain = fn.weights.shape[-2] == parents.shape[-1] and fn.weights.size == np.prod(
            fn.weights.shape[-2:]
        )
        return is_plain and parents is trace[self._layers[-1].features]["value"]

    def _init_one(self, rng_key, init_params, model_args, model_kwargs):
        key, key_trace = jax.random.split(rng_key)

        @jax.jit  # one program in place of a hundred
        def start(init_params):
            trace = prototype_trace(conditioned(self._model), key_trace, model_args, model_kwargs)
            z = {name: jnp.asarray(trace[name]["value"]) for name in self._names}
            for name, value in init_params.items():
                support = trace[name]["fn"].support
                if not support.is_discrete and not is_composite(model_kwargs):
                    value = biject_to(support)(value)  # as HMC takes its start
                z[name] = jnp.asarray(value, z[name].dtype)
            return self._with_possible_data(z, model_args, model_kwargs)

        z = start(init_params or {})
        sizes = jnp.array([z[layer.sticks].size for layer in self._layers])
        num_active = jnp.stack([z[layer.features].any(axis=0).sum() for layer in self._layers])
        return FactorHierarchyState(z, key, jnp.zeros((), bool), sizes, num_active)

    def _with_possible_data(self, z, model_args, model_kwargs):
        """Objects whose data their features make impossible get the first feature of each layer."""
        bottom = self._layers[-1].features
        evaluate = self._evaluator(z, model_args, model_kwargs)
        is_possible = jnp.isfinite(evaluate(z[bottom].T))
        new = dict(z)
        for layer in self._layers:
            first = jnp.where(is_possible, z[layer.features][:, 0], 1)
            new[layer.features] = z[layer.features].at[:, 0].set(first)
        return new

    def _sample_one(self, state, model_args, model_kwargs):
        key, key_step = jax.random.split(state.rng_key)
        trace = self._trace(state.z, model_args, model_kwargs)
        layers, priors = self._core_layers(state.z, trace)
        likelihood = self._likelihood(state.z, trace, model_args, model_kwargs)
        core = HierarchyState(layers, likelihood, state.is_truncated, state.needed)
        core, info = factor_hierarchy_gibbs.step(key_step, core, priors, is_shuffled=True)
        z = {}
        for sites, layer in zip(self._layers, core.layers, strict=True):
            z[sites.sticks] = jnp.exp(layer.log_sticks)
            z[sites.features] = layer.features.T
            if sites.weights is not None:
                z[sites.weights] = jnp.exp(layer.log_weights)
            if sites.concentration is not None:
                z[sites.concentration] = layer.concentration
        z = {  # a refused step changes no bit; logs and exponentials of the values might
            name: jnp.where(core.is_truncated, old, z[name].astype(old.dtype))
            for name, old in state.z.items()
        }
        return FactorHierarchyState(z, key, core.is_truncated, core.needed, info.num_active)

    def _trace(self, z, model_args, model_kwargs):
        kwargs = with_conditioning(model_kwargs, z)
        return handlers.trace(conditioned(self._model)).get_trace(*model_args, **kwargs)

    def _core_layers(self, z, trace):
        layers, priors = [], []
        for sites in self._layers:
            prior = LayerPrior()
            log_sticks = jnp.log(z[sites.sticks])
            weights = failures = jnp.zeros((0, log_sticks.size), log_sticks.dtype)
            if sites.weights is not None:
                fn = base_distribution(trace[sites.weights]["fn"])
                prior = LayerPrior(as_floats(fn.strength), as_floats(fn.offset))
                weights, failures = jnp.log(z[sites.weights]), log_failure(z[sites.weights])
            if sites.concentration is not None:
                gamma = base_distribution(trace[sites.concentration]["fn"])
                shape, rate = as_floats(gamma.concentration), as_floats(gamma.rate)
                prior = replace(prior, concentration_shape=shape, concentration_rate=rate)
            concentration = as_floats(base_distribution(trace[sites.sticks]["fn"]).concentration)
            features = z[sites.features].T.astype(bool)
            layers.append(FeatureLayer(log_sticks, features, weights, failures, concentration))
            priors.append(prior)
        return tuple(layers), tuple(priors)

    def _likelihood(self, z, trace, model_args, model_kwargs):
        if not self._is_noisy_or:
            return SiteFactors(self._evaluator(z, model_args, model_kwargs))
        site = trace[self._dependants[0].name]
        fn, counts = site["fn"], as_floats(site["value"])
        total, is_observed = getattr(fn, "total_count", 1), getattr(fn, "is_observed", None)
        is_counted = 1.0 if is_observed is None else is_observed
        weights = jnp.reshape(as_floats(fn.weights), fn.weights.shape[-2:])
        return NoisyOrFactors(
            successes=counts * is_counted,
            failures=(total - counts) * is_counted,
            cells=None,
            log_weights=jnp.log(jnp.maximum(weights, jnp.finfo(weights.dtype).tiny)),
            log_failures=log_failure(weights),
            is_learned=False,
        )

    def _evaluator(self, z, model_args, model_kwargs):
        """Maps features, slots first, to the log-probability of what depends on every object."""
        bottom = self._layers[-1].features
        kwargs = with_conditioning(
            model_kwargs, {name: value for name, value in z.items() if name != bottom}
        )
        dtype, shape = z[bottom].dtype, (self._num_objects,)

        def evaluate(features):
            value = features.T.astype(dtype)
            arguments = (self._model, bottom, value, self._dependants, model_args, kwargs)
            return sum(log_evidence(*arguments, shape=shape).values())

        return evaluate

    def truncation_message(self) -> str:
        """What to do if a capacity is too small; the numbers are filled in by the run."""
        names = ", ".join(f"'{layer.features}'" for layer in self._layers)
        return (
            f"FactorHierarchyGibbs: expected the slots of {names} to hold all features above the "
            "threshold, got too few: the chain has stopped; rerun with capacities of at least "
            "{needed}"
        )


def _check_counts(name: str, fn, value) -> None:
    """Raise if the known data of a noisy-or are not counts in 0..total_count."""
    if not isinstance(fn, NoisyOr | NoisyOrBinomial) or not not_jax_tracer(value):
        return
    value, total = np.asarray(value), getattr(fn, "total_count", 1)
    is_good = (value >= 0) & (value <= total) & (value == np.floor(value))
    is_observed = getattr(fn, "is_observed", None)
    if is_observed is not None and not_jax_tracer(is_observed):
        is_good = is_good | ~np.broadcast_to(np.asarray(is_observed, bool), is_good.shape)
    if not is_good.all():
        index = tuple(np.argwhere(~is_good)[0].tolist())
        raise ValueError(
            f"FactorHierarchyGibbs: expected integers in 0..{total} in '{name}', got "
            f"{value[index]} at index {index}; mark cells without data by is_observed, or raise "
            "total_count"
        )
