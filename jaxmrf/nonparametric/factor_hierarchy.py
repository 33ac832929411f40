r"""The infinite factor hierarchy: layers of infinitely many binary features, joined by noisy-ors.

.. math:: p(\mu, Y, \nu, V, Z, X) = \mathrm{IBP}(\mu, Y; \alpha_\mu)\,
          \mathrm{NoisyOr}(\nu, V, Z \mid Y; \alpha_\nu, c)\, p(X \mid Z)

with any number of noisy-or layers; without one it is the IBP factor model. Features that somebody
has, and the most frequent of those that nobody has, live in the slots of a buffer; the infinitely
many others are integrated out. Reference: Courville, Eck & Bengio, "An infinite factor model
hierarchy via a noisy-or mechanism", NIPS 2009.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import betaln

from jaxmrf.logspace import log1mexp
from jaxmrf.models.noisy_or import log_odds
from jaxmrf.nonparametric import indian_buffet, noisy_or_features
from jaxmrf.nonparametric.feature_children import with_leak
from jaxmrf.types import Array, Bool, Float, Int, Key, Leaf

__all__ = [
    "FeatureLayer",
    "HierarchyState",
    "LayerPrior",
    "draw_prior",
    "grow",
    "log_joint",
    "log_prior_odds",
    "num_active",
    "start",
    "stick_prior",
]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class LayerPrior:
    """Prior of one layer.

    Attributes:
        strength: c > 0 of a noisy-or layer: weights are Beta(c nu, c (1 - nu) + b).
        offset: b >= 0.
        concentration_shape: Shape of the gamma prior of the concentration, or None if it is known.
        concentration_rate: Rate of that prior.
    """

    strength: Leaf = 1.0
    offset: Leaf = 1.0
    concentration_shape: Leaf = None
    concentration_rate: Leaf = None


class FeatureLayer(NamedTuple):
    """One layer. Slots are in no order.

    Attributes:
        log_sticks: Logs of the frequencies of the features in the slots.
        features: Which object has which feature.
        log_weights: log V from every parent, no rows in the top layer.
        log_failures: log(1 - V).
        concentration: alpha.
    """

    log_sticks: Float[Array, " features"]
    features: Bool[Array, "features objects"]
    log_weights: Float[Array, "parents features"]
    log_failures: Float[Array, "parents features"]
    concentration: Float[Array, ""]

    @property
    def is_active(self) -> Bool[Array, " features"]:
        """Which features somebody has."""
        return self.features.any(axis=1)


class HierarchyState(NamedTuple):
    """Position of the sampler.

    Attributes:
        layers: From the top down.
        likelihood: What is below, with its parameters and data.
        is_truncated: Whether a buffer was too small. Steps then change nothing.
        needed: Slots per layer that the step would have needed, or more.
    """

    layers: tuple[FeatureLayer, ...]
    likelihood: Any
    is_truncated: Bool[Array, ""]
    needed: Int[Array, " layers"]


class StickPrior(NamedTuple):
    """What the frequencies of inactive features of a layer follow, given what is above.

    Attributes:
        log_absence: log f as a function of log frequencies.
        mean_uses: -f'(0).
    """

    log_absence: indian_buffet.LogAbsence
    mean_uses: Array


def stick_prior(above: FeatureLayer | None, layer: FeatureLayer, prior: LayerPrior) -> StickPrior:
    """The thinning probability f of a layer, given the features of the layer above."""
    if above is None:
        num_objects = layer.features.shape[1]
        return StickPrior(
            lambda log_sticks: indian_buffet.log_absence(log_sticks, num_objects),
            jnp.asarray(num_objects, layer.log_sticks.dtype),
        )
    num_uses = with_leak(above.features, layer.log_weights).sum(axis=1)
    num_parents = noisy_or_features.num_parents_used(num_uses, layer.features.shape[1])
    arguments = (num_parents, prior.strength, prior.offset)
    return StickPrior(
        lambda log_sticks: noisy_or_features.log_absence(log_sticks, *arguments),
        noisy_or_features.mean_uses(*arguments),
    )


def log_prior_odds(
    above: FeatureLayer | None, layer: FeatureLayer
) -> Float[Array, "features #objects"]:
    """Log odds of on against off given the parents, before what is below is asked."""
    if above is None:
        return (layer.log_sticks - log1mexp(layer.log_sticks))[:, None]
    parents = with_leak(above.features, layer.log_failures)
    order = jnp.argsort(~parents.any(axis=1), stable=True)

    # one parent after the other, so that empty slots do not change a bit of the sum
    def add(i, sums):
        j = order[i]
        return sums + jnp.where(parents[j], layer.log_failures[j][:, None], 0)

    zeros = jnp.zeros(layer.features.shape, layer.log_failures.dtype)
    return log_odds(jax.lax.fori_loop(0, parents.any(axis=1).sum(), add, zeros))


def num_active(layers: Sequence[FeatureLayer]) -> Int[Array, " layers"]:
    """How many features of each layer somebody has."""
    return jnp.stack([layer.is_active.sum() for layer in layers])


def log_joint(layers: Sequence[FeatureLayer], priors: Sequence[LayerPrior]) -> Float[Array, ""]:
    r"""Log-density of the active features of all layers, unlabelled, inactive ones integrated out.

    .. math:: \sum_l K_l^+ \log\alpha_l - \alpha_l\psi_l
              + \sum_k \log\frac{p(V_k)\, p(z_k \mid V_k)}{\nu_k} - \log K_l^+!

    Args:
        layers: From the top down.
        priors: One per layer.
    """
    above, total = None, jnp.zeros(())
    for layer, prior in zip(layers, priors, strict=True):
        absence = stick_prior(above, layer, prior)
        present = indian_buffet.expected_present(absence.log_absence, absence.mean_uses)
        odds = log_prior_odds(above, layer)
        signs = jnp.where(layer.features, odds, -odds)
        density = jax.nn.log_sigmoid(signs).sum(axis=1) - layer.log_sticks
        if above is not None:
            sticks = jnp.exp(layer.log_sticks)
            a, b = prior.strength * sticks, prior.strength * (1 - sticks) + prior.offset
            terms = (a - 1) * layer.log_weights + (b - 1) * layer.log_failures - betaln(a, b)
            is_used = with_leak(above.features, layer.log_weights).any(axis=1)
            density = density + jnp.where(is_used[:, None], terms, 0).sum(axis=0)
        num = layer.is_active.sum()
        total = total + jnp.where(layer.is_active, density, 0).sum()
        total = total + num * jnp.log(layer.concentration) - layer.concentration * present
        total = total - jax.scipy.special.gammaln(num + 1.0)
        above = layer
    return total


def draw_prior(
    key: Key,
    num_objects: int,
    capacities: Sequence[int],
    priors: Sequence[LayerPrior],
    concentrations: Sequence[Float[Array, ""] | float],
    *,
    has_leak: bool = False,
) -> tuple[FeatureLayer, ...]:
    """Layers drawn from the prior, of the most frequent features that fit.

    Args:
        key: Random key.
        num_objects: N.
        capacities: Slots of every layer, from the top down.
        priors: One per layer.
        concentrations: alpha of every layer.
        has_leak: Whether noisy-or layers have a unit that is on for every object.
    """
    above, layers = None, []
    for depth, (capacity, prior) in enumerate(zip(capacities, priors, strict=True)):
        key_stick, key_weight, key_on = jax.random.split(jax.random.fold_in(key, depth), 3)
        concentration = jnp.asarray(concentrations[depth], float)
        log_sticks = indian_buffet.draw_sticks(key_stick, concentration, capacity)
        num_parents = 0 if above is None else len(above.features) + has_leak
        none = jnp.zeros((capacity, num_parents))
        weights = noisy_or_features.draw_weights(
            key_weight, log_sticks, none, none, prior.strength, prior.offset
        )
        layer = FeatureLayer(
            log_sticks, jnp.zeros((capacity, num_objects), bool), *weights, concentration
        )
        probability = jax.nn.sigmoid(log_prior_odds(above, layer))
        uniform = jax.random.uniform(key_on, layer.features.shape)
        above = layer._replace(features=uniform < probability)
        layers.append(above)
    return tuple(layers)


def start(
    features: Sequence[np.ndarray],
    capacities: Sequence[int],
    concentrations: Sequence[float],
    *,
    has_leak: bool = False,
) -> tuple[FeatureLayer, ...]:
    """Layers that begin at given features.

    Sticks are the shares of objects that have a feature, weights one half; the first step of the
    sampler draws both.

    Args:
        features: Which object has which feature, ``[objects, features]`` of every layer, from the
            top down.
        capacities: Slots of every layer.
        concentrations: alpha of every layer.
        has_leak: Whether noisy-or layers have a unit that is on for every object.

    Raises:
        ValueError: If a matrix is not binary, has other objects than the first, has more columns
            than there are slots, or asks for a feature where no parent is on; or if a
            concentration is not positive.
    """
    layers, above = [], None
    for depth, matrix in enumerate(features):
        matrix, capacity, alpha = np.asarray(matrix), capacities[depth], concentrations[depth]
        _check_start(depth, matrix, np.asarray(features[0]), above, capacity, alpha, has_leak)
        num_objects, num_features = matrix.shape
        share = np.clip(matrix.mean(axis=0), 1 / (num_objects + 1), 1 - 1 / (num_objects + 1))
        log_sticks = np.full(capacity, indian_buffet.LOG_SMALLEST_STICK)
        log_sticks[:num_features] = np.log(share)
        num_parents = 0 if above is None else capacities[depth - 1] + has_leak
        half = jnp.full((num_parents, capacity), np.log(0.5), float)
        padded = np.pad(matrix.T.astype(bool), ((0, capacity - num_features), (0, 0)))
        layers.append(
            FeatureLayer(
                jnp.asarray(log_sticks, float),
                jnp.asarray(padded),
                half,
                half,
                jnp.asarray(alpha, float),
            )
        )
        above = matrix
    return tuple(layers)


def _check_start(depth, matrix, first, above, capacity, concentration, has_leak) -> None:
    where = f"start: expected features of layer {depth}"
    if matrix.ndim != 2 or len(matrix) != len(first):
        raise ValueError(
            f"{where} of shape [{len(first)} objects, features], got {matrix.shape}; give every "
            "layer a row for every object"
        )
    if not np.isin(matrix, (0, 1)).all():
        bad = matrix[~np.isin(matrix, (0, 1))][0]
        raise ValueError(f"{where} to be 0 or 1, got {bad}; pass which object has which feature")
    if matrix.shape[1] > capacity:
        raise ValueError(
            f"{where} to fit into {capacity} slots, got {matrix.shape[1]}; raise its capacity"
        )
    if not concentration > 0:
        raise ValueError(
            f"start: expected concentration > 0 of layer {depth}, got {concentration}; take 1"
        )
    if above is not None and not has_leak:
        is_orphan = matrix.any(axis=1) & ~above.any(axis=1)
        if is_orphan.any():
            raise ValueError(
                f"{where} only for objects that have some feature of layer {depth - 1}, got object "
                f"{np.flatnonzero(is_orphan)[0]} without; turn one on for it, or add a leak"
            )


def grow(layers: Sequence[FeatureLayer], capacities: Sequence[int]) -> tuple[FeatureLayer, ...]:
    """The same layers in larger buffers. New slots are empty; every step fills empty slots anew.

    Args:
        layers: From the top down.
        capacities: New numbers of slots, not less than the old ones.
    """
    grown, num_new_parents = [], 0
    for layer, capacity in zip(layers, capacities, strict=True):
        num_new = capacity - len(layer.log_sticks)
        rows = ((0, num_new_parents), (0, num_new))
        smallest = indian_buffet.LOG_SMALLEST_STICK
        grown.append(
            FeatureLayer(
                jnp.pad(layer.log_sticks, (0, num_new), constant_values=smallest),
                jnp.pad(layer.features, ((0, num_new), (0, 0))),
                jnp.pad(layer.log_weights, rows, constant_values=-1.0),
                jnp.pad(layer.log_failures, rows, constant_values=-1.0),
                layer.concentration,
            )
        )
        num_new_parents = num_new
    return tuple(grown)
