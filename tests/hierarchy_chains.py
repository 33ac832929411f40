"""Many short chains of the factor hierarchy, each from its own draw of all variables and data.

A chain that starts from the joint law of everything keeps it, whatever is fixed in its steps, so
every statistic has the same mean before and after (Geweke 2004, "Getting it right"). Chains are
independent, so the standard errors of paired differences are plain.
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxmrf.logspace import draw_log_gamma
from jaxmrf.models import noisy_or
from jaxmrf.nonparametric import factor_hierarchy, factor_hierarchy_gibbs
from jaxmrf.nonparametric.factor_hierarchy import LayerPrior
from jaxmrf.nonparametric.feature_children import with_leak
from jaxmrf.nonparametric.gaussian_factors import GaussianFactors, draw_gaussian_prior
from jaxmrf.nonparametric.noisy_or_factors import Cells, NoisyOrFactors
from jaxmrf.nonparametric.noisy_or_features import draw_weight_rows


@dataclass(frozen=True)
class Setting:
    """A model, small enough for thousands of chains.

    Attributes:
        capacities: Slots of each layer; more than any chain needs.
        concentrations: alpha of each layer, or the shape and rate of its gamma prior.
        likelihood: "gaussian", "weighted" (each object has weights), "variances" (all learned), or
            the total count of a noisy-or.
    """

    capacities: tuple[int, ...] = (14, 16)
    concentrations: tuple = (0.6, 0.8)
    likelihood: str | int = "gaussian"
    strength: float = 0.8
    offset: float = 1.0
    has_leak: bool = False
    num_objects: int = 3
    num_dims: int = 2
    num_sweeps: int = 2
    noise_variance: float = 0.5

    @property
    def priors(self):
        """Priors of all layers."""
        pairs = [a if isinstance(a, tuple) else (None, None) for a in self.concentrations]
        return tuple(LayerPrior(self.strength, self.offset, *pair) for pair in pairs)


def draw_likelihood(key, setting, features):
    """Parameters and data given the features of the last layer."""
    key_weight, key_data, key_noise, key_spread = jax.random.split(key, 4)
    shape = (setting.num_objects, setting.num_dims)
    capacity = len(features)
    if isinstance(setting.likelihood, int):
        total = float(setting.likelihood)
        ones = jnp.ones((capacity, setting.num_dims))
        weights = draw_weight_rows(key_weight, 1.2 * ones, 0.9 * ones)
        log_off = noisy_or.log_off(features.T.astype(float), weights.log_failures)
        successes = noisy_or.draw_counts(key_data, log_off, total)
        rows, columns = np.indices(shape).reshape(2, -1)
        cells = Cells(rows, columns, successes[rows, columns])
        return NoisyOrFactors(successes, total - successes, cells, *weights, (1.2, 0.9))
    priors = ((4.0, 2.0), (5.0, 4.0)) if setting.likelihood == "variances" else (None, None)
    variance_keys, known = (key_noise, key_spread), (setting.noise_variance, 1.0)
    variances = [
        jnp.asarray(value) if prior is None else prior[1] / jax.random.gamma(key, prior[0])
        for key, prior, value in zip(variance_keys, priors, known, strict=True)
    ]
    empty = GaussianFactors(
        jnp.zeros(shape),
        jnp.zeros((capacity, setting.num_dims)),
        jnp.zeros(features.shape),
        *variances,
        *priors,
        has_weights=setting.likelihood != "gaussian",
    )
    return draw_gaussian_prior(key_data, features, empty)


def draw_state(key, setting):
    """Everything drawn from the joint law."""
    key_layer, key_below, *keys = jax.random.split(key, 2 + len(setting.capacities))
    concentrations = [
        jnp.exp(draw_log_gamma(key, jnp.asarray(a[0]))) / a[1] if isinstance(a, tuple) else a
        for key, a in zip(keys, setting.concentrations, strict=True)
    ]
    layers = factor_hierarchy.draw_prior(
        key_layer,
        setting.num_objects,
        setting.capacities,
        setting.priors,
        concentrations,
        has_leak=setting.has_leak,
    )
    likelihood = draw_likelihood(key_below, setting, layers[-1].features)
    return factor_hierarchy_gibbs.init(layers, likelihood)


def statistics(state):
    """Named sums over the features that somebody has."""
    named, above = {}, None
    for depth, layer in enumerate(state.layers):
        is_active, uses = layer.is_active, layer.features.sum(axis=1)
        sticks = jnp.where(is_active, jnp.exp(layer.log_sticks), 0)
        chances = jax.nn.sigmoid(factor_hierarchy.log_prior_odds(above, layer))
        chances = jnp.broadcast_to(chances, layer.features.shape)
        each = {
            "active": is_active.sum(),
            "active squared": is_active.sum() ** 2,
            "on": uses.sum(),
            "uses squared": (uses**2).sum(),
            "features squared": (layer.features.sum(axis=0) ** 2).sum(),
            "sticks": sticks.sum(),
            "sticks squared": (sticks**2).sum(),
            "log sticks": jnp.where(is_active, layer.log_sticks, 0).sum(),
            "chances": jnp.where(is_active[:, None], chances, 0).sum(),
            "concentration": layer.concentration,
        }
        if above is not None:
            parents = with_leak(above.features, layer.log_weights)
            is_pair = parents.any(axis=1)[:, None] & is_active
            weights = jnp.where(is_pair, jnp.exp(layer.log_weights), 0)
            each["weights"] = weights.sum()
            each["weights squared"] = (weights**2).sum()
            each["log weights"] = jnp.where(is_pair, jnp.maximum(layer.log_weights, -8), 0).sum()
            together = parents.astype(float) @ layer.features.T
            each["weights together"] = (weights * together).sum()
        named |= {f"layer {depth}: {name}": value for name, value in each.items()}
        above = layer
    likelihood, is_active = state.likelihood, above.is_active[:, None]
    if isinstance(likelihood, NoisyOrFactors):
        weights = jnp.where(is_active, jnp.exp(likelihood.log_weights), 0)
        expected = above.features.T.astype(float) @ weights
        each = {
            "W": weights.sum(),
            "W squared": (weights**2).sum(),
            "W failures": jnp.where(is_active, likelihood.log_failures, 0).sum(),
            "W with data": (expected * likelihood.successes).sum(),
        }
    else:
        loadings = jnp.where(is_active, likelihood.loadings, 0)
        weights = likelihood.activations if likelihood.has_weights else 1.0
        activations = jnp.where(above.features, weights, 0.0)
        residual = likelihood.data - activations.T @ loadings
        each = {
            "loadings": loadings.sum(),
            "loadings squared": (loadings**2).sum(),
            "residual squared": (residual**2).sum(),
            "activations": activations.sum(),
            "activations squared": (activations**2).sum(),
            "precision": 1 / likelihood.noise_variance,
            "loading precision": 1 / likelihood.loading_variance,
        }
    named |= {f"below: {name}": value for name, value in each.items()}
    return {name: jnp.asarray(value, jnp.float32) for name, value in named.items()}


class Replicates(NamedTuple):
    """Statistics of many chains before and after their steps."""

    before: dict
    after: dict
    is_truncated: np.ndarray


def compile_chains(setting, *, is_fast=False):
    """A function of a batch of keys that runs a chain from each.

    Args:
        setting: The model.
        is_fast: Whether to optimise the machine code, which pays from some thousand chains on.
    """

    def chain(key):
        key_state, key_step = jax.random.split(key)
        state = draw_state(key_state, setting)
        before = statistics(state)

        def step(i, state):
            key = jax.random.fold_in(key_step, i)
            return factor_hierarchy_gibbs.step(key, state, setting.priors)[0]

        state = jax.lax.fori_loop(0, setting.num_sweeps, step, state)
        return Replicates(before, statistics(state), state.is_truncated)

    options = {"xla_backend_optimization_level": 3 if is_fast else 0}
    return jax.jit(jax.vmap(chain), compiler_options=options)


def run_chains(setting, num_chains, seed, *, batch_size=1000):
    """Replicates of a setting, so many at a time."""
    chains = compile_chains(setting, is_fast=num_chains > 5000)
    key = jax.random.key(seed)
    parts = []
    for i in range(-(-num_chains // batch_size)):
        keys = jax.random.split(jax.random.fold_in(key, i), batch_size)
        parts.append(jax.tree.map(np.asarray, chains(keys)))
    return jax.tree.map(lambda *x: np.concatenate(x), *parts)


def z_scores(replicates):
    """Mean change of every statistic that changes, in standard errors."""
    scores = {}
    for name, before in replicates.before.items():
        change = np.asarray(replicates.after[name], np.float64) - before
        if change.any():
            scores[name] = change.mean() / (change.std(ddof=1) / np.sqrt(len(change)))
    return scores


def largest(scores):
    """The statistic farthest from its law, and by how many standard errors."""
    name = max(scores, key=lambda name: abs(scores[name]))
    return name, scores[name]
