r"""The semi-ordered slice sampler of the Indian buffet process, as published.

With a slice variable :math:`s \sim U(0, \mu^*)`, :math:`\mu^*` the smallest active stick, only
inactive features above s need slots. They are drawn in decreasing order,

.. math:: p(\mu_k \mid \mu_{k-1}) \propto \mu^{\alpha - 1} (1 - \mu)^N
          \exp\Big(\alpha \sum_{i=1}^N \frac{(1 - \mu)^i}{i}\Big), \quad \mu < \mu_{k-1},
          \; \mu_0 = 1

by adaptive rejection sampling, and every feature is visited with the factor :math:`1/\mu^*`, which
couples the objects. ``factor_hierarchy_gibbs`` needs neither and updates all objects at once; this
is the independent check of it. Features are visited in decreasing order of their sticks: any order
that depends on which are active would be wrong. Reference: Teh, Gorur & Ghahramani,
"Stick-breaking construction for the Indian buffet process", AISTATS 2007, section 4.3.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxmrf.logspace import log1mexp
from jaxmrf.nonparametric.factor_hierarchy import FeatureLayer, HierarchyState
from jaxmrf.nonparametric.indian_buffet import LOG_SMALLEST_STICK, draw_active_sticks
from jaxmrf.sampling import rejection
from jaxmrf.types import Array, Bool, Float, Key

__all__ = ["draw_next_stick", "step"]

_STARTS = np.array([6.0, 2.0, 0.7, 0.2, 0.05])  # below the previous stick, in units of 1 + 1/alpha


def draw_next_stick(
    key: Key, log_previous: Float[Array, ""], num_objects: int, concentration
) -> tuple[Float[Array, ""], Bool[Array, ""]]:
    """Log of the largest inactive stick below another, by adaptive rejection sampling.

    Args:
        key: Random key.
        log_previous: Log of the stick above it; 0 for the first.
        num_objects: N.
        concentration: alpha.

    Returns:
        The log, and whether the rejection sampler found a draw.
    """
    counts = jnp.arange(1, num_objects + 1)

    def log_density(log_stick):
        log_rest = log1mexp(log_stick)
        series = (jnp.exp(counts * log_rest) / counts).sum()
        return concentration * (log_stick + series) + num_objects * log_rest

    points = log_previous - _STARTS * (1 + 1 / concentration)
    drawn = rejection.draw(key, log_density, points, upper=log_previous)
    return drawn.value, drawn.is_ok


def step(key: Key, state: HierarchyState) -> HierarchyState:
    """One sweep of a model with one layer, or none if its buffer is too small.

    Args:
        key: Random key.
        state: Position, of one layer.
    """
    keys = jax.random.split(key, 6)
    (layer,), likelihood = state.layers, state.likelihood
    layer, log_slice, needed = _refresh(keys[0], layer)
    likelihood = likelihood.renew(keys[1], layer.is_active)
    cache = likelihood.prepare(layer.features)
    is_updated = layer.log_sticks > log_slice
    order = jnp.argsort(jnp.where(is_updated, -layer.log_sticks, jnp.inf))

    def update(i, carry):
        features, cache = carry
        k = order[i]
        key_column, key_replace = jax.random.split(jax.random.fold_in(keys[2], k))
        is_active = features.any(axis=1).at[k].set(False)
        log_others = jnp.where(is_active, layer.log_sticks, 0.0).min()
        log_own = layer.log_sticks[k]
        log_ratio, notes = likelihood.log_odds(cache, k, features[k])
        odds = log_own - log1mexp(log_own) + log_ratio
        # 1 / mu* with the feature on for anybody, against off for everybody
        log_gain = log_others - jnp.minimum(log_others, log_own)
        column = _draw_column(key_column, features[k], odds, log_gain)
        cache, column = likelihood.replace(key_replace, cache, notes, k, features[k], column)
        return features.at[k].set(column), cache

    features, cache = jax.lax.fori_loop(0, is_updated.sum(), update, (layer.features, cache))
    likelihood = likelihood.update(keys[3], cache, features)
    is_truncated = state.is_truncated | (needed > layer.log_sticks.size)
    new = ((layer._replace(features=features),), likelihood)
    new = jax.tree.map(
        lambda a, b: jnp.where(is_truncated, a, b), (state.layers, state.likelihood), new
    )
    return HierarchyState(*new, is_truncated, needed[None])


def _refresh(key: Key, layer: FeatureLayer) -> tuple[FeatureLayer, Array, Array]:
    """Sticks of all slots, the log of the slice variable, and the slots that are needed."""
    key_active, key_slice, key_stick = jax.random.split(key, 3)
    is_active, num_objects = layer.is_active, layer.features.shape[1]
    num_users = layer.features.sum(axis=1)
    log_active = draw_active_sticks(key_active, num_users, num_objects)
    log_least = jnp.where(is_active, log_active, 0.0).min()
    log_slice = log_least + jnp.log(jax.random.uniform(key_slice, minval=1e-30))

    def proceed(carry, key):
        log_stick, is_ok = carry
        drawn, is_drawn = draw_next_stick(key, log_stick, num_objects, layer.concentration)
        is_open = log_stick > log_slice  # below the slice no more are needed
        log_stick = jnp.where(is_open, jnp.where(is_drawn, drawn, log_stick), log_stick)
        return (log_stick, is_ok & (is_drawn | ~is_open)), log_stick

    keys = jax.random.split(key_stick, is_active.size)
    (_, is_ok), log_inactive = jax.lax.scan(proceed, (jnp.zeros(()), jnp.array(True)), keys)
    is_above = log_inactive > log_slice
    slot = jnp.maximum(jnp.cumsum(~is_active) - 1, 0)
    log_inactive = jnp.where(is_above, log_inactive, LOG_SMALLEST_STICK)
    log_sticks = jnp.where(is_active, log_active, log_inactive[slot])
    is_known = is_ok & ~is_above.all()
    needed = jnp.where(is_known, is_active.sum() + is_above.sum(), 2 * is_active.size)
    return layer._replace(log_sticks=log_sticks), log_slice, needed


def _draw_column(
    key: Key, column: Bool[Array, " objects"], log_odds: Float[Array, " objects"], log_gain: Any
) -> Bool[Array, " objects"]:
    """One object after the other; where no other has the feature, its last or first one counts."""
    uniform = jax.random.uniform(key, column.shape)

    def visit(num_on, now):
        is_on, log_odds, uniform = now
        others = num_on - is_on
        odds = log_odds + jnp.where(others == 0, log_gain, 0)
        new = uniform < jax.nn.sigmoid(odds)
        return others + new, new

    _, new = jax.lax.scan(visit, column.sum(), (column, log_odds, uniform))
    return new
