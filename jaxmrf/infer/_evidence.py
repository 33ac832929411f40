r"""The log-probability of everything that depends on a discrete site, element by element.

.. math:: \log p(\text{rest} \mid z) = \sum_i \ell_i(z_i) + \text{const}

When it has this form, all :math:`\ell_i(k)` come from K evaluations of the model, at z = k
everywhere. Whether it has is found out before the first step: by tracking which sites depend on
z, by the plates they stand in, and by evaluating the model at random values of z.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpyro import handlers
from numpyro.distributions import ExpandedDistribution, Independent
from numpyro.infer.gibbs import (
    GIBBS_SITES_KWARG,
    conditioned,
    latent_sample_sites,
    prototype_trace,
    with_conditioning,
)
from numpyro.ops.provenance import eval_provenance

from jaxmrf.infer._block import abstract_sites
from jaxmrf.infer.unnormalized import UnnormalizedModel, mrf_sites

__all__ = [
    "Dependant",
    "check_factorized",
    "density_sources",
    "dependant_sites",
    "element_axes",
    "evaluate_now",
    "log_evidence",
    "plate_axis",
    "prior_conditioning",
]

_NUM_CHECKS = 8


class Dependant(NamedTuple):
    """A site that depends on z, and the axes of its log-probability that are the axes of z."""

    name: str
    axes: tuple[int, ...]


def dependant_sites(model, site: str, shapes: dict, model_args: tuple, model_kwargs: dict):
    """Names of the sample sites whose log-probability depends on the value of ``site``."""
    found = density_sources(model, shapes, model_args, model_kwargs)
    return tuple(name for name, sources in found.items() if site in sources)


def density_sources(model, shapes: dict, model_args: tuple, model_kwargs: dict):
    """For every sample site the latent sites on whose values its log-probability depends.

    Args:
        model: The model.
        shapes: Shapes of the latent values, of ``abstract_sites``.
        model_args: Its arguments.
        model_kwargs: Its keyword arguments.
    """
    fields, _ = abstract_sites(model, model_args, model_kwargs, mrf_sites)
    # an intractable field would raise; what it depends on is the same without its normaliser
    density_model = UnnormalizedModel(conditioned(model), fields)

    def log_probs(**values):
        substituted = handlers.substitute(handlers.seed(density_model, 0), data=values)
        trace = handlers.trace(substituted).get_trace(*model_args, **model_kwargs)
        return {
            name: other["fn"].log_prob(other["value"])
            for name, other in trace.items()
            if other["type"] == "sample"
        }

    return eval_provenance(log_probs, **shapes)


def element_axes(other: dict[str, Any], frames, num_nodes: int | None) -> tuple[int, ...] | None:
    """Axes of a site's unreduced log-probability that match the plates (and nodes) of z.

    Args:
        other: The site, out of a trace.
        frames: Plates of z, outermost first.
        num_nodes: Length of the event of z that the site has to resolve too, if z has one.

    Returns:
        Negative axes, or None if some plate is missing or there is not one axis of nodes.
    """
    shape = jnp.shape(_unreduced_log_prob(other["fn"], other["value"]))
    num_extra = len(shape) - len(other["fn"].batch_shape)  # axes that to_event would sum
    plates = {frame.name: frame for frame in other["cond_indep_stack"]}
    if any(frame.name not in plates for frame in frames):
        return None
    axes = [plates.pop(frame.name).dim - num_extra for frame in frames]
    if num_nodes is not None:
        nodes = [plate.dim - num_extra for plate in plates.values() if plate.size == num_nodes]
        nodes = nodes or [axis for axis in range(-num_extra, 0) if shape[axis] == num_nodes]
        if len(nodes) != 1:
            return None
        axes += nodes
    return tuple(axes)


def plate_axis(other: dict[str, Any], size: int) -> int | None:
    """The axis of a site's unreduced log-probability that is its one plate of a size.

    Args:
        other: The site, out of a trace.
        size: Number of elements; the plate may have any name.

    Returns:
        A negative axis, or None if there is not one such plate.
    """
    frames = [frame for frame in other["cond_indep_stack"] if frame.size == size]
    axes = element_axes(other, frames, None) if len(frames) == 1 else (None,)
    return axes[0]


def evaluate_now(evaluate, model_args: tuple, model_kwargs: dict):
    """Values of a function without arguments, or None where data of the model are being traced."""
    own = {name: value for name, value in model_kwargs.items() if name != GIBBS_SITES_KWARG}
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves((model_args, own))):
        return None
    try:
        with jax.ensure_compile_time_eval():
            return jax.device_get(jax.jit(evaluate)())
    except (jax.errors.UnexpectedTracerError, jax.errors.TracerArrayConversionError):
        return None  # the model closes over a value that is being traced


def prior_conditioning(model, site: str, model_args: tuple, model_kwargs: dict) -> tuple:
    """Keyword arguments that hold all other latent sites at a prior draw, and this one's value."""
    own = {name: value for name, value in model_kwargs.items() if name != GIBBS_SITES_KWARG}
    trace = prototype_trace(conditioned(model), jax.random.key(0), model_args, own)
    latent = set(latent_sample_sites(trace)) - {site}
    kwargs = with_conditioning(own, {name: trace[name]["value"] for name in latent})
    return kwargs, trace[site]["value"]


def log_evidence(
    model,
    site: str,
    value,
    dependants: tuple[Dependant, ...],
    model_args,
    model_kwargs,
    *,
    shape: tuple[int, ...] | None = None,
) -> dict[str, jax.Array]:
    """Log-probability of each dependant at a value of ``site``, summed onto the axes of z.

    The results have the shape of the value, or the one given if z is resolved by plates alone.
    """
    shape = value.shape if shape is None else shape
    kwargs = with_conditioning(model_kwargs, {site: value})
    trace = handlers.trace(conditioned(model)).get_trace(*model_args, **kwargs)
    return {
        name: _sum_onto(_scaled_log_prob(trace[name]), axes).reshape(shape)
        for name, axes in dependants
    }


def check_factorized(
    model, site: str, shape, support: np.ndarray, dependants, model_args, model_kwargs
) -> str | None:
    """The first dependant whose log-probability at an element depends on other elements of z.

    The other latent values are drawn from the prior. Data that are being traced cannot be
    evaluated; the check is then left to the plates alone.
    """
    support = np.asarray(support)
    rng = np.random.default_rng(0)
    chosen = rng.integers(len(support), size=(_NUM_CHECKS, *shape))

    def evaluate():
        kwargs, prototype = prior_conditioning(model, site, model_args, model_kwargs)

        def at(value):
            return log_evidence(model, site, value, dependants, model_args, kwargs)

        dtype = jnp.result_type(prototype)
        return (
            jax.vmap(lambda k: at(jnp.full(shape, k)))(jnp.asarray(support, dtype)),
            jax.vmap(at)(jnp.asarray(support[chosen], dtype)),
        )

    found = evaluate_now(evaluate, model_args, model_kwargs)
    if found is None:
        return None
    tables, values = found
    for name, table in tables.items():
        expected = np.take_along_axis(table, chosen, axis=0)
        if not np.allclose(values[name], expected, rtol=1e-4, atol=1e-4, equal_nan=True):
            return name
    return None


def _scaled_log_prob(site: dict[str, Any]) -> jax.Array:
    log_prob = _unreduced_log_prob(site["fn"], site["value"])
    return log_prob if site["scale"] is None else site["scale"] * log_prob


def _unreduced_log_prob(fn, value) -> jax.Array:
    """The log-probability before ``to_event`` sums it."""
    if isinstance(fn, Independent):
        return _unreduced_log_prob(fn.base_dist, value)
    if isinstance(fn, ExpandedDistribution) and isinstance(fn.base_dist, Independent):
        log_prob = _unreduced_log_prob(fn.base_dist, value)
        events = fn.base_dist.event_shape[: _num_reinterpreted(fn.base_dist)]
        return jnp.broadcast_to(log_prob, fn.batch_shape + events)
    return fn.log_prob(value)


def _num_reinterpreted(fn) -> int:
    if not isinstance(fn, Independent):
        return 0
    return fn.reinterpreted_batch_ndims + _num_reinterpreted(fn.base_dist)


def _sum_onto(log_prob: jax.Array, axes: tuple[int, ...]) -> jax.Array:
    """Sum over all axes but the given ones, which come out in the given order."""
    axes = [axis % log_prob.ndim for axis in axes]
    rest = tuple(axis for axis in range(log_prob.ndim) if axis not in axes)
    return jnp.transpose(log_prob, (*axes, *rest)).sum(tuple(range(len(axes), log_prob.ndim)))
