r"""Gibbs sampling of a latent random field under a likelihood that factorises over its nodes.

.. math:: p(z \mid \text{rest}) \propto \exp\Big(\phi(z) + \sum_i \ell_i(z_i)\Big),

so the evidence :math:`\ell_i(k)`, from K evaluations of the model at z = k everywhere, adds to the
node parameters, and the posterior is again a field on the same graph, swept colour by colour.
Reference: Geman & Geman, "Stochastic relaxation, Gibbs distributions, and the Bayesian restoration
of images", PAMI 6 (1984).
"""

from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpyro import handlers
from numpyro.distributions import MaskedDistribution
from numpyro.infer.gibbs import (
    conditioned,
    latent_sample_sites,
    subsample_plate_sizes,
    with_conditioning,
)

from jaxmrf.distributions import base_distribution
from jaxmrf.graphs import sweep_plan
from jaxmrf.infer._block import BlockKernel, abstract_sites
from jaxmrf.infer._evidence import (
    Dependant,
    check_factorized,
    dependant_sites,
    element_axes,
    log_evidence,
)
from jaxmrf.infer.unnormalized import mrf_sites
from jaxmrf.models import Ising, PairwiseModel, Potts
from jaxmrf.sampling import gibbs

__all__ = ["LatentFieldGibbs", "LatentFieldState"]

_LEAST_EVIDENCE = -1e5  # of a state against the best one; exp underflows long before


class LatentFieldState(NamedTuple):
    """Position of the chain.

    Attributes:
        z: Configuration of the field, integers 0..K-1, by name.
        rng_key: Key of the next step.
    """

    z: dict[str, jax.Array]
    rng_key: jax.Array


class LatentFieldGibbs(BlockKernel):
    """Coloured Gibbs sweeps of one latent Ising, Potts or PairwiseMRF site.

    Whatever depends on the field must resolve its nodes: in a plate of as many elements as there
    are nodes, or by an axis of that length under ``to_event``; and inside the field's own plates.
    Runs alone on a model without other latent sites, or as a block of ``MRFGibbs`` or
    ``numpyro.infer.Gibbs``.

    Args:
        model: The model.
        site: Name of the field; by default the only latent one.
        num_sweeps: Sweeps a step; the evidence is computed once a step.

    Raises:
        ValueError: If ``num_sweeps`` is not positive.

    >>> import jax
    >>> import numpyro
    >>> import numpyro.distributions as dist
    >>> from numpyro.infer import MCMC
    >>> from jaxmrf.distributions import Ising
    >>> from jaxmrf.graphs import grid
    >>> def segment(image):
    ...     z = numpyro.sample("z", Ising(grid((4, 4)), 0.4))
    ...     numpyro.sample("y", dist.Normal(2.0 * z, 1.0).to_event(1), obs=image)
    >>> mcmc = MCMC(LatentFieldGibbs(segment), num_warmup=10, num_samples=50, progress_bar=False)
    >>> mcmc.run(jax.random.key(0), jax.numpy.full(16, 2.0))
    >>> bool(mcmc.get_samples()["z"].mean() > 0.9)
    True
    """

    def __init__(self, model, site: str | None = None, *, num_sweeps: int = 1):
        if int(num_sweeps) != num_sweeps or num_sweeps < 1:
            raise ValueError(
                f"LatentFieldGibbs: expected num_sweeps to be a positive integer, got "
                f"{num_sweeps}; pass 1"
            )
        self._site = site
        self._num_sweeps = int(num_sweeps)
        super().__init__(model)

    def _reset(self) -> None:
        super()._reset()
        self._name, self._shape, self._num_states, self._dependants = None, None, 0, ()

    def _prepare(self, model_args, model_kwargs):
        facts, shapes = abstract_sites(self._model, model_args, model_kwargs, self._describe)
        self._name, frames, self._num_states, fields = facts
        self._shape = shapes[self._name].shape
        names = dependant_sites(self._model, self._name, shapes, model_args, model_kwargs)
        names = [name for name in names if name != self._name]
        if set(names) & set(fields):
            raise ValueError(
                f"LatentFieldGibbs: expected no random field on top of '{self._name}', got "
                f"{sorted(set(names) & set(fields))} whose parameters depend on it; no kernel here "
                "updates such a field"
            )

        def describe(trace):
            return tuple(
                Dependant(name, element_axes(trace[name], frames, self._shape[-1]))
                for name in names
            )

        self._dependants, _ = abstract_sites(self._model, model_args, model_kwargs, describe)
        coarse = [name for name, axes in self._dependants if axes is None]
        if coarse:
            raise ValueError(
                f"LatentFieldGibbs: expected all that depends on '{self._name}' to have one axis "
                f"of its {self._shape[-1]} nodes, and its plates, got {coarse} without; put them "
                f"in numpyro.plate(name, {self._shape[-1]})"
            )
        mixed = check_factorized(
            self._model,
            self._name,
            self._shape,
            np.arange(self._num_states),
            self._dependants,
            model_args,
            model_kwargs,
        )
        if mixed is not None:
            raise ValueError(
                f"LatentFieldGibbs: expected the log-probability of '{mixed}' at node i to depend "
                f"on {self._name}[i] alone, got one that mixes nodes; add the interaction to the "
                "field's edges"
            )

    def _describe(self, trace):
        """Name, plates and number of states of the field, and the names of all fields."""
        fields = mrf_sites(trace)
        latent = latent_sample_sites(trace)
        candidates = [name for name in fields if name in latent]
        if self._site is None and len(candidates) != 1:
            raise ValueError(
                f"LatentFieldGibbs: expected one latent random field, got {candidates}; "
                "pass site=..."
            )
        name = candidates[0] if self._site is None else self._site
        if name not in candidates:
            raise ValueError(
                f"LatentFieldGibbs: expected site to be a latent random field, got '{name}'; "
                f"name one of {candidates}"
            )
        others = [other for other in latent if other != name]
        if others:
            raise ValueError(
                f"LatentFieldGibbs: expected no latent site but '{name}', got {others}; use it as "
                "a block of MRFGibbs together with kernels for these"
            )
        if subsample_plate_sizes(trace):
            raise ValueError(
                f"LatentFieldGibbs: expected whole plates, got subsampled "
                f"{sorted(subsample_plate_sizes(trace))}; drop subsample_size"
            )
        site = trace[name]
        if site["scale"] is not None or isinstance(site["fn"], MaskedDistribution):
            raise ValueError(
                f"LatentFieldGibbs: expected '{name}' outside handlers.scale and handlers.mask, "
                "got it inside; move it out"
            )
        frames = sorted(site["cond_indep_stack"], key=lambda frame: frame.dim)
        sizes = {frame.name: frame.size for frame in frames}
        batch_shape = site["fn"].batch_shape
        if np.prod(list(sizes.values()), initial=1) != np.prod(batch_shape, initial=1):
            raise ValueError(
                f"LatentFieldGibbs: expected every batch axis of '{name}' to be a plate, got batch "
                f"shape {batch_shape} and plates {sizes}; put the field in a plate"
            )
        return name, tuple(frames), base_distribution(site["fn"]).num_states, fields

    def _init_one(self, rng_key, init_params, model_args, model_kwargs):
        key, key_start = jax.random.split(rng_key)
        value = jax.random.randint(key_start, self._shape, 0, self._num_states, jnp.int32)
        if init_params:
            value = jnp.asarray(init_params.get(self._name, value), jnp.int32)
        return LatentFieldState({self._name: value}, key)

    def _sample_one(self, state, model_args, model_kwargs):
        key, key_sweeps = jax.random.split(state.rng_key)
        value = state.z[self._name].reshape(-1, self._shape[-1])
        keys = jax.random.split(key_sweeps, len(value))
        models, plan = self._posterior(state.z, model_args, model_kwargs)

        def sweep(key, nodes, model):
            states = nodes[:, None].astype(jnp.int8)
            return gibbs.run(key, states, model, plan, num_sweeps=self._num_sweeps)[:, 0]

        drawn = jax.vmap(sweep)(keys, value, models).astype(jnp.int32)
        return LatentFieldState({self._name: drawn.reshape(self._shape)}, key)

    def _posterior(self, z, model_args, model_kwargs):
        """The field given everything else, parameters on a leading batch axis, and its plan."""
        kwargs = with_conditioning(model_kwargs, z)
        site = handlers.trace(conditioned(self._model)).get_trace(*model_args, **kwargs)[self._name]
        field = base_distribution(site["fn"])

        def at(k):
            args = (self._model, self._name, jnp.full(self._shape, k), self._dependants)
            parts = log_evidence(*args, model_args, model_kwargs)
            return sum(parts.values(), jnp.zeros(self._shape))

        evidence = jax.vmap(at)(jnp.arange(self._num_states, dtype=jnp.int32))
        evidence = evidence.reshape(self._num_states, -1, self._shape[-1])
        models = jax.vmap(_add_evidence, in_axes=(0, 1))(
            _batched_models(field, self._shape[:-1]), evidence
        )
        return models, sweep_plan(field.graph)


def _batched_models(field, batch_shape: tuple[int, ...]) -> PairwiseModel:
    """The core model of a distribution, with its batch axes flattened into one."""

    def flatten(parameter):
        event = parameter.shape[len(field.batch_shape) :]
        return jnp.broadcast_to(parameter, batch_shape + event).reshape(-1, *event)

    return jax.vmap(field._core)(*(flatten(parameter) for parameter in field._parameters()))


def _add_evidence(model: PairwiseModel, evidence: jax.Array) -> PairwiseModel:
    """The field times a likelihood that factorises over nodes, its log "states nodes"."""
    evidence = jnp.maximum(evidence - evidence.max(axis=0), _LEAST_EVIDENCE)
    if isinstance(model, Ising):
        return replace(model, fields=model.fields + (evidence[1] - evidence[0]) / 2)
    name = "fields" if isinstance(model, Potts) else "node_tables"
    return replace(model, **{name: getattr(model, name) + evidence.T})
