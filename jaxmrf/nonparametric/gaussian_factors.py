r"""Linear-Gaussian observations of binary features, with or without a weight per object.

.. math:: x_n \sim N\Big(\sum_k z_{nk} g_{nk} \theta_k, \sigma^2 I\Big), \quad
          \theta_k \sim N(0, \tau^2 I), \quad g_{nk} \sim N(0, 1) \text{ or } g_{nk} = 1

Weights g are integrated out where their feature is drawn, and drawn with it. The residual is kept.
Reference: Courville, Eck & Bengio, "An infinite factor model hierarchy via a noisy-or mechanism",
NIPS 2009, section 5.1.
"""

from dataclasses import dataclass, field, replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxmrf.logspace import draw_log_gamma
from jaxmrf.types import Array, Bool, Float, Key, Leaf

__all__ = ["GaussianCache", "GaussianFactors", "draw_gaussian_prior", "observe"]


class GaussianCache(NamedTuple):
    """What the update of a column needs.

    Attributes:
        residual: x minus what the features explain.
        activations: z g.
    """

    residual: Float[Array, "objects dims"]
    activations: Float[Array, "features objects"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class GaussianFactors:
    """Linear-Gaussian likelihood with its parameters, all conjugate.

    Attributes:
        data: x, ``[objects, dims]``.
        loadings: theta, ``[features, dims]``.
        activations: z g, ``[features, objects]``; read where a feature is on if weights are drawn.
        noise_variance: sigma^2.
        loading_variance: tau^2.
        noise_prior: Shape and rate of the inverse gamma prior of sigma^2, or None if it is known.
        loading_prior: Those of tau^2, or None.
        has_weights: Whether every object has a weight g for each of its features.
        is_learned: Whether the loadings are drawn.
    """

    data: Leaf
    loadings: Leaf
    activations: Leaf
    noise_variance: Leaf
    loading_variance: Leaf
    noise_prior: tuple | None = None
    loading_prior: tuple | None = None
    has_weights: bool = field(default=False, metadata={"static": True})
    is_learned: bool = field(default=True, metadata={"static": True})

    def prepare(self, features: Bool[Array, "features objects"]) -> GaussianCache:
        """The residual, one feature after the other."""
        activations = self._activations(slice(None), features)
        is_active = features.any(axis=1)
        order = jnp.argsort(~is_active, stable=True)

        def explain(i, residual):
            k = order[i]
            return residual - activations[k][:, None] * self.loadings[k]

        residual = jax.lax.fori_loop(0, is_active.sum(), explain, self.data)
        return GaussianCache(residual, activations)

    def log_odds(self, cache, index, column):
        """Log likelihood ratio of the feature on against off.

        The notes are mean and variance of the weight of an object that has it.
        """
        loading = self.loadings[index]
        square = loading @ loading
        activation = self._activations(index, column)
        score = (cache.residual @ loading + activation * square) / self.noise_variance
        precision = square / self.noise_variance
        if not self.has_weights:
            return score - precision / 2, None
        variance = 1 / (1 + precision)
        mean = variance * score
        return (jnp.log(variance) + mean * score) / 2, (mean, variance)

    def _activations(self, index, column) -> Array:
        """What a column was before its update; not read from the cache, where it is written.

        A loop that reads and writes one matrix is compiled with a copy of it in every turn.
        """
        return jnp.where(column, self.activations[index] if self.has_weights else 1.0, 0.0)

    def replace(self, key, cache, notes, index, column, proposed):
        """The column is taken, and weights are drawn for it."""
        activation = proposed.astype(cache.activations.dtype)
        if self.has_weights:
            mean, variance = notes
            weight = mean + jnp.sqrt(variance) * jax.random.normal(key, mean.shape, mean.dtype)
            activation = jnp.where(proposed, weight, 0)
        change = activation - self._activations(index, column)
        return GaussianCache(
            residual=cache.residual - change[:, None] * self.loadings[index],
            activations=cache.activations.at[index].set(activation),
        ), proposed

    def renew(self, key: Key, is_active: Bool[Array, " features"]) -> "GaussianFactors":
        """Loadings of features that nobody has, from their prior."""
        if not self.is_learned:
            return self
        drawn = jnp.sqrt(self.loading_variance) * jax.random.normal(
            key, self.loadings.shape, self.loadings.dtype
        )
        return replace(self, loadings=jnp.where(is_active[:, None], self.loadings, drawn))

    def store(self, cache: GaussianCache) -> "GaussianFactors":
        """The likelihood with the weights of the cache."""
        return replace(self, activations=cache.activations) if self.has_weights else self

    def update(self, key: Key, cache: GaussianCache, features) -> "GaussianFactors":
        """Loadings of features that somebody has, one after the other, then the variances."""
        keys = jax.random.split(key, 3)
        is_active = features.any(axis=1)
        residual, loadings = cache.residual, self.loadings
        if self.is_learned:
            residual, loadings = self._draw_loadings(keys[0], cache, is_active)
        noise, spread = self.noise_variance, self.loading_variance
        if self.noise_prior is not None:
            sum_squares = (residual**2).sum()
            noise = _draw_variance(keys[1], self.noise_prior, residual.size, sum_squares)
        if self.loading_prior is not None:
            squares = jnp.where(is_active, (loadings**2).sum(axis=1), 0)
            num = is_active.sum() * loadings.shape[1]
            spread = _draw_variance(keys[2], self.loading_prior, num, squares.sum())
        return replace(
            self.store(cache), loadings=loadings, noise_variance=noise, loading_variance=spread
        )

    def _draw_loadings(self, key, cache, is_active):
        order = jnp.argsort(~is_active, stable=True)

        def draw(i, carry):
            residual, loadings = carry
            k = order[i]
            weight, loading = cache.activations[k], self.loadings[k]
            square = weight @ weight
            precision = square / self.noise_variance + 1 / self.loading_variance
            mean = (weight @ residual + square * loading) / self.noise_variance / precision
            noise = jax.random.normal(jax.random.fold_in(key, k), loading.shape, loading.dtype)
            drawn = mean + noise / jnp.sqrt(precision)
            return residual - weight[:, None] * (drawn - loading), loadings.at[k].set(drawn)

        return jax.lax.fori_loop(0, is_active.sum(), draw, (cache.residual, self.loadings))

    def grow(self, capacity: int) -> "GaussianFactors":
        """The same in a larger buffer."""
        rows = ((0, capacity - len(self.loadings)), (0, 0))
        return replace(
            self,
            loadings=jnp.pad(self.loadings, rows),
            activations=jnp.pad(self.activations, rows),
        )


def draw_gaussian_prior(
    key: Key, features: Bool[Array, "features objects"], likelihood: GaussianFactors
) -> GaussianFactors:
    """Loadings, weights and data drawn given features and variances.

    Args:
        key: Random key.
        features: Which object has which feature.
        likelihood: Its variances and shapes are used.
    """
    key_loading, key_weight, key_data = jax.random.split(key, 3)
    loadings = likelihood.loadings
    if likelihood.is_learned:
        spread = jnp.sqrt(likelihood.loading_variance)
        loadings = spread * jax.random.normal(key_loading, loadings.shape, loadings.dtype)
    weights = 1.0
    if likelihood.has_weights:
        weights = jax.random.normal(key_weight, features.shape, loadings.dtype)
    activations = jnp.where(features, weights, 0.0)
    noise = jax.random.normal(key_data, likelihood.data.shape, loadings.dtype)
    data = activations.T @ loadings + jnp.sqrt(likelihood.noise_variance) * noise
    return replace(likelihood, data=data, loadings=loadings, activations=activations)


def observe(
    data: np.ndarray,
    capacity: int,
    *,
    noise_variance: float = 1.0,
    loading_variance: float = 1.0,
    noise_prior: tuple[float, float] | None = None,
    loading_prior: tuple[float, float] | None = None,
    has_weights: bool = False,
) -> GaussianFactors:
    """The likelihood of real data, with loadings of zero that the first steps of the sampler draw.

    Args:
        data: x, ``[objects, dims]``.
        capacity: Slots for features.
        noise_variance: sigma^2, where it starts if it has a prior.
        loading_variance: tau^2, likewise.
        noise_prior: Shape and rate of the inverse gamma prior of sigma^2.
        loading_prior: Those of tau^2.
        has_weights: Whether every object has a weight for each of its features.

    Raises:
        ValueError: If the data are not finite or a variance or prior is not positive.
    """
    data = np.asarray(data)
    if not np.isfinite(data).all():
        index = tuple(np.argwhere(~np.isfinite(data))[0].tolist())
        raise ValueError(
            f"observe: expected finite data, got {data[index]} at index {index}; drop the object"
        )
    positive = [noise_variance, loading_variance, *(noise_prior or ()), *(loading_prior or ())]
    if not min(positive) > 0:
        raise ValueError(f"observe: expected positive variances and priors, got {positive}; take 1")

    def as_floats(prior):
        return None if prior is None else tuple(jnp.asarray(value, float) for value in prior)

    return GaussianFactors(
        data=jnp.asarray(data, float),
        loadings=jnp.zeros((capacity, data.shape[1])),
        activations=jnp.ones((capacity, len(data))),
        noise_variance=jnp.asarray(noise_variance, float),
        loading_variance=jnp.asarray(loading_variance, float),
        noise_prior=as_floats(noise_prior),
        loading_prior=as_floats(loading_prior),
        has_weights=has_weights,
    )


def _draw_variance(key: Key, prior: tuple, num, sum_squares) -> Float[Array, ""]:
    shape, rate = prior
    log_gamma = draw_log_gamma(key, jnp.asarray(shape + num / 2, float))
    return (rate + sum_squares / 2) / jnp.exp(log_gamma)
