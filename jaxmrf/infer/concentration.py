r"""Gibbs sampling of the concentration of a Dirichlet process.

.. math:: x \sim \mathrm{Beta}(\alpha + 1, r), \qquad
          \alpha \mid K, x \sim \pi\, \mathrm{Gamma}(a + K, b - \log x)
          + (1 - \pi)\, \mathrm{Gamma}(a + K - 1, b - \log x)

Escobar & West, "Bayesian density estimation and inference using mixtures", JASA 90 (1995),
section 6. Exact and without tuning, where NUTS would spend gradient steps on one number.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from numpyro import handlers
from numpyro.infer.gibbs import (
    conditioned,
    latent_sample_sites,
    prototype_trace,
    with_conditioning,
)

from jaxmrf.distributions import ChineseRestaurantProcess, base_distribution
from jaxmrf.infer._block import BlockKernel, abstract_sites, is_composite
from jaxmrf.infer._evidence import dependant_sites
from jaxmrf.infer.unnormalized import UnnormalizedModel, mrf_sites
from jaxmrf.nonparametric.dirichlet_process import draw_concentration

__all__ = ["ConcentrationGibbs", "ConcentrationGibbsState"]


class ConcentrationGibbsState(NamedTuple):
    """Position of the chain.

    Attributes:
        z: Value of the concentration, by the name of its site.
        rng_key: Key of the next step.
    """

    z: dict[str, jax.Array]
    rng_key: jax.Array


class ConcentrationGibbs(BlockKernel):
    """Updates the concentration of one ``ChineseRestaurantProcess`` under a Gamma prior.

    Args:
        model: A model whose block holds one scalar Gamma site, the concentration itself.
    """

    def _reset(self) -> None:
        super()._reset()
        self._site, self._labels = None, None

    def _prepare(self, model_args, model_kwargs):
        (self._site, self._labels, fields), shapes = abstract_sites(
            self._model, model_args, model_kwargs, _describe
        )
        model = UnnormalizedModel(conditioned(self._model), fields)
        found = dependant_sites(model, self._site, shapes, model_args, model_kwargs)
        others = sorted(set(found) - {self._site, self._labels})
        if others:
            raise ValueError(
                f"ConcentrationGibbs: expected only '{self._labels}' to depend on '{self._site}', "
                f"got {others} too; use NUTS for it"
            )
        with jax.ensure_compile_time_eval():
            used = []
            for value in (0.5, 2.0):
                kwargs = with_conditioning(model_kwargs, {self._site: jnp.asarray(value)})
                trace = prototype_trace(
                    conditioned(self._model), jax.random.key(0), model_args, kwargs
                )
                used.append(base_distribution(trace[self._labels]["fn"]).concentration)
            used = np.asarray(used)
        if not np.allclose(used, (0.5, 2.0)):
            raise ValueError(
                f"ConcentrationGibbs: expected '{self._site}' itself as the concentration of "
                f"'{self._labels}', got {used.tolist()} where it is 0.5 and 2.0; use NUTS for it"
            )

    def _init_one(self, rng_key, init_params, model_args, model_kwargs):
        key, key_trace = jax.random.split(rng_key)
        trace = prototype_trace(conditioned(self._model), key_trace, model_args, model_kwargs)
        value = jnp.asarray(trace[self._site]["value"])
        if init_params and self._site in init_params:
            value = jnp.asarray(init_params[self._site], value.dtype)
            value = value if is_composite(model_kwargs) else jnp.exp(value)
        return ConcentrationGibbsState({self._site: value}, key)

    def _sample_one(self, state, model_args, model_kwargs):
        key, key_draw = jax.random.split(state.rng_key)
        kwargs = with_conditioning(model_kwargs, state.z)
        trace = handlers.trace(conditioned(self._model)).get_trace(*model_args, **kwargs)
        prior = base_distribution(trace[self._site]["fn"])
        labels = trace[self._labels]["value"]
        value = draw_concentration(
            key_draw,
            state.z[self._site],
            labels.max() + 1,
            labels.size,
            shape=prior.concentration,
            rate=prior.rate,
        )
        return ConcentrationGibbsState({self._site: value}, key)


def _describe(trace) -> tuple[str, str, tuple[str, ...]]:
    """The concentration, the labels conditioned on and the random fields, checked."""
    latent = latent_sample_sites(trace)
    labels = [
        name
        for name, site in trace.items()
        if site["type"] == "sample"
        and isinstance(base_distribution(site["fn"]), ChineseRestaurantProcess)
    ]
    gammas = [name for name in latent if type(base_distribution(trace[name]["fn"])) is dist.Gamma]
    if len(latent) != 1 or latent != tuple(gammas) or jnp.ndim(trace[gammas[0]]["value"]):
        raise ValueError(
            f"ConcentrationGibbs: expected one latent site, a scalar Gamma, got {list(latent)}; "
            "use it as a block of MRFGibbs with the one site named, or NUTS for another prior"
        )
    if len(labels) != 1 or not trace[labels[0]]["is_observed"]:
        raise ValueError(
            f"ConcentrationGibbs: expected one ChineseRestaurantProcess given by another block or "
            f"by data, got {labels}; use it as a block of MRFGibbs beside a kernel for the labels"
        )
    return gammas[0], labels[0], mrf_sites(trace)
