r"""Models whose named random fields have lost their normaliser.

.. math:: \log p(x \mid \theta) = \phi_\theta(x) - \log Z(\theta)
          \quad\to\quad \phi_\theta(x)

That is harmless only where :math:`\log Z(\theta)` is constant or where the caller cancels it, so
the names are always explicit: the fields whose normaliser is removed and the fields a kernel
compensates are one list. (Removed from all fields but compensated for some, the coupling of a 3x3
Ising field once came out as 180 instead of 0.7, without a warning.)
"""

from collections.abc import Iterable
from typing import Any

import jax
from numpyro import handlers
from numpyro.infer.gibbs import conditioned
from numpyro.ops.provenance import eval_provenance
from numpyro.primitives import Messenger

from jaxmrf.distributions import MarkovRandomField, base_distribution, map_base
from jaxmrf.infer._block import abstract_sites

__all__ = ["UnnormalizedModel", "mrf_parents", "mrf_sites", "unnormalized"]


class unnormalized(Messenger):
    """Handler under which the log-probability of the named fields leaves out log Z.

    Args:
        fn: Model, or None to use the handler as a context.
        sites: Names of the random fields to change; no other site is touched.
    """

    def __init__(self, fn=None, *, sites: Iterable[str]):
        self.sites = frozenset(sites)
        super().__init__(fn)

    def process_message(self, msg: dict[str, Any]) -> None:
        """Exchange the field inside the wrappers of plates, events and masks."""
        if msg["type"] == "sample" and msg["name"] in self.sites:
            msg["fn"] = map_base(msg["fn"], lambda field: field.unnormalized())


class UnnormalizedModel:
    """A model with the named fields unnormalised, as a value that pickles.

    ``Gibbs`` asks by ``!=`` whether its blocks share one model. Two copies of one model that
    differ only in constants of the density do, so ``!=`` looks at the model inside; ``==`` and the
    hash stay those of the object, because compiled functions are looked up by them.

    Args:
        model: The model.
        sites: Names of the random fields that lose their normaliser.
    """

    def __init__(self, model, sites: Iterable[str]):
        self.model = model
        self.sites = tuple(sites)

    def __call__(self, *args, **kwargs):
        """Run the model."""
        with unnormalized(sites=self.sites):
            return self.model(*args, **kwargs)

    def __ne__(self, other) -> bool:
        inner = other.model if isinstance(other, UnnormalizedModel) else other
        return self.model != inner

    def __repr__(self) -> str:
        return f"UnnormalizedModel({self.model!r}, {self.sites})"


def mrf_sites(trace: dict[str, Any]) -> tuple[str, ...]:
    """Names of the random fields of a trace, latent or observed, in its order.

    Args:
        trace: A trace of a NumPyro model.
    """
    return tuple(
        name
        for name, site in trace.items()
        if site["type"] == "sample" and isinstance(base_distribution(site["fn"]), MarkovRandomField)
    )


def mrf_parents(
    model, model_args: tuple = (), model_kwargs: dict | None = None
) -> dict[str, frozenset[str]]:
    """For every random field, the latent sites from which its parameters are computed.

    Found by tracking dependence through the model without running it. A field written as
    ``numpyro.factor`` cannot be seen.

    Args:
        model: The model.
        model_args: Its arguments.
        model_kwargs: Its keyword arguments.

    Returns:
        Names of latent sites by name of the field; values conditioned on are not latent.

    >>> import numpyro
    >>> import numpyro.distributions as dist
    >>> from jaxmrf.distributions import Ising
    >>> from jaxmrf.graphs import grid
    >>> def model():
    ...     coupling = numpyro.sample("coupling", dist.Normal(0, 1))
    ...     numpyro.sample("x", Ising(grid((2, 2)), coupling))
    >>> mrf_parents(model)
    {'x': frozenset({'coupling'})}
    """
    model_kwargs = {} if model_kwargs is None else model_kwargs
    names, shapes = abstract_sites(model, model_args, model_kwargs, mrf_sites)

    def parameters(**values):
        substituted = handlers.substitute(handlers.seed(conditioned(model), 0), data=values)
        trace = handlers.trace(substituted).get_trace(*model_args, **model_kwargs)
        return {name: jax.tree.leaves(base_distribution(trace[name]["fn"])) for name in names}

    found = eval_provenance(parameters, **shapes)
    return {name: frozenset().union(*found[name]) for name in names}
