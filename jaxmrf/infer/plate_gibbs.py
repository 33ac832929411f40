r"""Gibbs sampling of a categorical site in a plate, all its elements at once.

.. math:: p(z_i = k \mid \text{rest}) \propto \prod_{s \,\in\, \text{dependants}} p_s(i; z_i = k)

Elements of a plate are independent given the rest, so K evaluations of the model, at z = k
everywhere, give every conditional, where updating one coordinate after the other takes K times as
many evaluations as there are elements.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.infer.gibbs import (
    conditioned,
    latent_sample_sites,
    prototype_trace,
    subsample_plate_sizes,
)

from jaxmrf.infer._block import BlockKernel, abstract_sites
from jaxmrf.infer._evidence import (
    Dependant,
    check_factorized,
    dependant_sites,
    element_axes,
    log_evidence,
)

__all__ = ["PlateGibbs", "PlateGibbsState"]


class PlateGibbsState(NamedTuple):
    """Position of the chain.

    Attributes:
        z: Value of the site, by name.
        rng_key: Key of the next step.
    """

    z: dict[str, jax.Array]
    rng_key: jax.Array


class PlateGibbs(BlockKernel):
    """Exact Gibbs updates of one discrete site, in parallel over its plates.

    Runs alone on a model without other latent sites, or as a block of ``MRFGibbs`` or
    ``numpyro.infer.Gibbs``. What depends on the site must stand in the site's plates.

    Args:
        model: The model.
        site: Name of the site; by default the only discrete latent site.

    >>> import jax
    >>> import jax.numpy as jnp
    >>> import numpyro
    >>> import numpyro.distributions as dist
    >>> from numpyro.infer import MCMC
    >>> def model(y):
    ...     with numpyro.plate("items", len(y)):
    ...         z = numpyro.sample("z", dist.Bernoulli(0.3))
    ...         numpyro.sample("y", dist.Normal(3.0 * z, 1.0), obs=y)
    >>> mcmc = MCMC(PlateGibbs(model), num_warmup=0, num_samples=200, progress_bar=False)
    >>> mcmc.run(jax.random.key(0), jnp.array([-1.0, 5.0]))
    >>> mcmc.get_samples()["z"].mean(0).round(1).tolist()
    [0.0, 1.0]
    """

    def __init__(self, model, site: str | None = None):
        self._site = site
        super().__init__(model)

    def _reset(self) -> None:
        super()._reset()
        self._name, self._support, self._shape, self._dependants = None, None, None, ()

    def _prepare(self, model_args, model_kwargs):
        facts, shapes = abstract_sites(self._model, model_args, model_kwargs, self._describe)
        self._name, frames, self._support = facts
        self._shape = shapes[self._name].shape
        names = dependant_sites(self._model, self._name, shapes, model_args, model_kwargs)

        def describe(trace):
            return tuple(Dependant(name, element_axes(trace[name], frames, None)) for name in names)

        self._dependants, _ = abstract_sites(self._model, model_args, model_kwargs, describe)
        outside = [name for name, axes in self._dependants if axes is None]
        plates = ", ".join(frame.name for frame in frames)
        if outside:
            raise ValueError(
                f"PlateGibbs: expected all that depends on '{self._name}' inside its plates "
                f"({plates}), got {outside} outside; move it inside, or use DiscreteGibbs"
            )
        mixed = check_factorized(
            self._model,
            self._name,
            self._shape,
            self._support,
            self._dependants,
            model_args,
            model_kwargs,
        )
        if mixed is not None:
            raise ValueError(
                f"PlateGibbs: expected every element of '{mixed}' to depend on its own element of "
                f"'{self._name}' alone, got a log-probability that mixes elements of plate "
                f"{plates}; use DiscreteGibbs"
            )

    def _describe(self, trace):
        """Name, plates and support of the site, checked."""
        latent = latent_sample_sites(trace)
        discrete = [name for name in latent if trace[name]["fn"].has_enumerate_support]
        if self._site is None and len(discrete) != 1:
            raise ValueError(
                f"PlateGibbs: expected one discrete latent site, got {discrete}; pass site=..."
            )
        name = discrete[0] if self._site is None else self._site
        if name not in discrete:
            raise ValueError(
                f"PlateGibbs: expected site to be a latent site with enumerable support, got "
                f"'{name}'; name one of {discrete}"
            )
        others = [other for other in latent if other != name]
        if others:
            raise ValueError(
                f"PlateGibbs: expected no latent site but '{name}', got {others}; use it as a "
                "block of MRFGibbs together with kernels for these"
            )
        site = trace[name]
        frames = sorted(site["cond_indep_stack"], key=lambda frame: frame.dim)
        sizes = {frame.name: frame.size for frame in frames}
        batch_shape = site["fn"].batch_shape
        is_covered = np.prod(list(sizes.values())) == np.prod(batch_shape)
        if not frames or site["fn"].event_dim or not is_covered:
            raise ValueError(
                f"PlateGibbs: expected every element of '{name}' in a plate, got batch shape "
                f"{batch_shape}, event shape {site['fn'].event_shape} and plates {sizes}; put the "
                "site in a plate of its length"
            )
        if subsample_plate_sizes(trace):
            raise ValueError(
                f"PlateGibbs: expected whole plates, got subsampled "
                f"{sorted(subsample_plate_sizes(trace))}; drop subsample_size"
            )
        with jax.ensure_compile_time_eval():
            support = np.asarray(site["fn"].enumerate_support(expand=False)).ravel()
        return name, tuple(frames), support

    def _init_one(self, rng_key, init_params, model_args, model_kwargs):
        key, key_trace = jax.random.split(rng_key)
        trace = prototype_trace(conditioned(self._model), key_trace, model_args, model_kwargs)
        value = jnp.asarray(trace[self._name]["value"])
        if init_params:
            value = jnp.asarray(init_params.get(self._name, value), value.dtype)
        return PlateGibbsState({self._name: value}, key)

    def _sample_one(self, state, model_args, model_kwargs):
        key, key_draw = jax.random.split(state.rng_key)
        support = jnp.asarray(self._support, state.z[self._name].dtype)
        logits = self._logits(support, model_args, model_kwargs)
        drawn = support[jax.random.categorical(key_draw, logits, axis=0)]
        return PlateGibbsState({self._name: drawn}, key)

    def _logits(self, support, model_args, model_kwargs) -> jax.Array:
        """Log conditional of every value at every element, up to a constant: states first."""

        def at(value):
            values = jnp.full(self._shape, value)
            args = (self._model, self._name, values, self._dependants, model_args, model_kwargs)
            return sum(log_evidence(*args).values())

        return jax.vmap(at)(support)
