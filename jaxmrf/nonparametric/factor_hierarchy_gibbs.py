r"""Gibbs sampling of the infinite factor hierarchy, exact and without truncation.

Layer by layer from the top down: sticks and weights given all features, then features given those,

.. math:: p(z_{nk} = 1 \mid \text{rest}) \propto p(z_{nk} = 1 \mid \text{parents})
          \, p(\text{below} \mid z_{nk} = 1)

Only features more frequent than a random threshold, drawn independently of the features of the
layer, are updated: a Gibbs step on a subset that the sticks alone determine, so that no slice
variable couples the objects, and all are updated in parallel. All inactive features above the
threshold are in the buffer, or the step is not taken. It differs from the printed algorithm in
that weights of inactive features follow their posterior, infinitely many inactive features of the
layer below weigh on every column, and orders are random. Reference: Courville, Eck & Bengio, "An
infinite factor model hierarchy via a noisy-or mechanism", NIPS 2009, section 4.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

from jaxmrf.logspace import draw_log_gamma
from jaxmrf.models.noisy_or import draw_assignments
from jaxmrf.nonparametric import indian_buffet, noisy_or_features
from jaxmrf.nonparametric.factor_hierarchy import (
    FeatureLayer,
    HierarchyState,
    LayerPrior,
    grow,
    log_prior_odds,
    num_active,
    stick_prior,
)
from jaxmrf.nonparametric.feature_children import Child, NoisyOrChild, with_leak
from jaxmrf.types import Array, Bool, Float, Int, Key

__all__ = ["HierarchyInfo", "init", "refresh", "run", "step", "step_objects", "update_features"]

_FEATURES_AT_ONCE = 32
_LOG_LARGEST_SHARE = np.log(30)  # thresholds reach down to a thirtieth of one expected use


class HierarchyInfo(NamedTuple):
    """What a step did.

    Attributes:
        num_active: Features of each layer that somebody has.
        needed: Slots of each layer that the step needs to be sure of holding all that matter.
        is_truncated: Whether this or an earlier step was not taken for want of slots.
    """

    num_active: Int[Array, " layers"]
    needed: Int[Array, " layers"]
    is_truncated: Bool[Array, ""]


def init(layers: Sequence[FeatureLayer], likelihood: Any) -> HierarchyState:
    """The state of one chain.

    Args:
        layers: From the top down; the features must be possible, as those of ``draw_prior`` are.
        likelihood: What is below the last layer.
    """
    sizes = jnp.array([len(layer.log_sticks) for layer in layers])
    return HierarchyState(tuple(layers), likelihood, jnp.zeros((), bool), sizes)


def step(
    key: Key,
    state: HierarchyState,
    priors: Sequence[LayerPrior],
    *,
    is_shuffled: bool = False,
) -> tuple[HierarchyState, HierarchyInfo]:
    """One sweep over all layers, or none if a buffer is, or was before, too small.

    Args:
        key: Random key.
        state: Position.
        priors: One per layer, from the top down.
        is_shuffled: Whether inactive features take free slots at random. Needed where slots differ
            in something that is not drawn here; otherwise any order will do, and the fixed one
            makes the result independent of the capacity.
    """
    layers, likelihood, needed = list(state.layers), state.likelihood, []
    for depth, prior in enumerate(priors):
        keys = jax.random.split(jax.random.fold_in(key, depth), 3)
        above = layers[depth - 1] if depth else None
        refreshed = refresh(keys[0], above, layers[depth], prior, is_shuffled=is_shuffled)
        layer, log_threshold, num_needed = refreshed
        needed.append(num_needed)
        if depth + 1 < len(priors):
            below = _renew_rows(keys[1], layers[depth + 1], layer.is_active, priors[depth + 1])
            layers[depth + 1] = below
            child = _noisy_or_child(layer, below, priors[depth + 1])
        else:
            child = likelihood = likelihood.renew(keys[1], layer.is_active)
        is_updated = layer.log_sticks > log_threshold
        layers[depth], cache = update_features(keys[2], above, layer, child, is_updated)
    likelihood = likelihood.update(jax.random.fold_in(key, len(priors)), cache, layers[-1].features)

    needed = jnp.stack(needed)
    sizes = jnp.array([len(layer.log_sticks) for layer in layers])
    is_truncated = state.is_truncated | (needed > sizes).any()
    needed = jnp.where(state.is_truncated, state.needed, needed)
    new = HierarchyState(tuple(layers), likelihood, is_truncated, needed)
    kept = state._replace(is_truncated=is_truncated, needed=needed)
    new = jax.tree.map(
        lambda old, x: old if x is old else jnp.where(is_truncated, old, x), kept, new
    )
    return new, HierarchyInfo(num_active(new.layers), needed, is_truncated)


def refresh(
    key: Key,
    above: FeatureLayer | None,
    layer: FeatureLayer,
    prior: LayerPrior,
    *,
    is_shuffled: bool = False,
) -> tuple[FeatureLayer, Float[Array, ""], Int[Array, ""]]:
    """Concentration, sticks and weights of a layer given the features, inactive ones included.

    Args:
        key: Random key.
        above: Layer above, or None for the top layer.
        layer: The layer.
        prior: Its prior.
        is_shuffled: Whether inactive features take free slots at random, not in order.

    Returns:
        The layer, the log of the threshold above which features are to be updated, and how many
        slots the active features and all others above it need.
    """
    keys = jax.random.split(key, 6)
    is_active = layer.is_active
    absence = stick_prior(above, layer, prior)
    concentration = layer.concentration
    if prior.concentration_shape is not None:
        present = indian_buffet.expected_present(*absence)
        shape = jnp.asarray(prior.concentration_shape + is_active.sum(), float)
        log_gamma = draw_log_gamma(keys[0], shape)
        concentration = jnp.exp(log_gamma) / (prior.concentration_rate + present)

    if above is None:
        num_objects = layer.features.shape[1]
        num_users = layer.features.sum(axis=1)
        log_active = indian_buffet.draw_active_sticks(keys[1], num_users, num_objects)
    else:
        log_active, *counts = _draw_active(keys[1], above, layer, prior)

    inactive = indian_buffet.draw_inactive_sticks(
        keys[2], absence.log_absence, concentration, absence.mean_uses, is_active.size
    )
    slots = jnp.arange(is_active.size)
    priority = jax.random.permutation(keys[5], slots) if is_shuffled else slots
    free_slots = jnp.argsort(jnp.where(is_active, is_active.size, priority), stable=True)
    log_sticks = jnp.zeros_like(log_active).at[free_slots].set(inactive.log_sticks)
    log_sticks = jnp.where(is_active, log_active, log_sticks)
    log_sticks = jnp.maximum(log_sticks, indian_buffet.LOG_SMALLEST_STICK)
    weights = (layer.log_weights, layer.log_failures)
    if above is not None:
        weights = noisy_or_features.draw_weights(
            keys[3], log_sticks, *counts, prior.strength, prior.offset
        )

    log_share = -_LOG_LARGEST_SHARE * jax.random.uniform(keys[4])
    log_threshold = log_share - jnp.log(absence.mean_uses)
    num_above = (inactive.log_sticks > log_threshold).sum()
    is_known = inactive.is_complete & (num_above < is_active.size)
    needed = jnp.where(is_known, is_active.sum() + num_above, 2 * is_active.size)
    return FeatureLayer(log_sticks, layer.features, *weights, concentration), log_threshold, needed


def update_features(
    key: Key,
    above: FeatureLayer | None,
    layer: FeatureLayer,
    child: Child,
    is_updated: Bool[Array, " features"],
) -> tuple[FeatureLayer, Any]:
    """Features drawn column by column in a random order, all objects at once.

    Args:
        key: Random key.
        above: Layer above, or None for the top layer.
        layer: The layer, with its sticks and weights.
        child: What is below.
        is_updated: Which columns; must not depend on the features of this layer.

    Returns:
        The layer and the child's cache.
    """
    key_order, key_column = jax.random.split(key)
    prior_odds = log_prior_odds(above, layer)
    priority = jax.random.uniform(key_order, is_updated.shape)
    order = jnp.argsort(jnp.where(is_updated, priority, 2))
    num_objects = layer.features.shape[1]

    def update(i, carry):
        features, cache = carry
        index = order[i]
        key_flip, key_replace = jax.random.split(jax.random.fold_in(key_column, index))
        # every column is visited once: read from the old matrix, the new one is not copied
        column, prior = layer.features[index], prior_odds[index]
        log_ratio, notes = child.log_odds(cache, index, column)
        odds = prior + log_ratio
        probability = jnp.where(jnp.isneginf(prior), 0, jax.nn.sigmoid(odds))
        proposed = jax.random.uniform(key_flip, (num_objects,), odds.dtype) < probability
        cache, column = child.replace(key_replace, cache, notes, index, column, proposed)
        return features.at[index].set(column), cache

    carry = (layer.features, child.prepare(layer.features))
    features, cache = jax.lax.fori_loop(0, is_updated.sum(), update, carry)
    return layer._replace(features=features), cache


def step_objects(
    key: Key, layers: Sequence[FeatureLayer], likelihood: Any
) -> tuple[tuple[FeatureLayer, ...], Any]:
    """One sweep over the features of objects that have no say about sticks, weights, parameters.

    For new objects under the features learned from others.

    Args:
        key: Random key.
        layers: Sticks and weights of a posterior draw, features of the new objects.
        likelihood: Its parameters, data of the new objects.
    """
    layers = list(layers)
    for depth, layer in enumerate(layers):
        above = layers[depth - 1] if depth else None
        child = likelihood
        if depth + 1 < len(layers):
            below = layers[depth + 1]
            fixed = below._replace(concentration=jnp.zeros(()))  # no further features
            child = _noisy_or_child(layer, fixed, LayerPrior())
            child = replace(child, is_active=jnp.ones_like(child.is_active))
        is_updated = layer.log_sticks > indian_buffet.LOG_SMALLEST_STICK
        key_layer = jax.random.fold_in(key, depth)
        layers[depth], cache = update_features(key_layer, above, layer, child, is_updated)
    return tuple(layers), likelihood.store(cache)


def _info(state: HierarchyState, info: HierarchyInfo) -> HierarchyInfo:
    return info


def run(
    key: Key,
    state: HierarchyState,
    priors: Sequence[LayerPrior],
    num_steps: int,
    *,
    summarize: Callable[[HierarchyState, HierarchyInfo], Any] = _info,
    chunk_size: int = 10,
    is_verbose: bool = False,
) -> tuple[HierarchyState, Any]:
    """Many steps. Buffers that turn out too small are doubled and the step is taken again.

    Step i uses ``fold_in(key, i)`` whatever the capacity, and the draws of a slot do not depend on
    how many slots there are, so the result is that of a run with large buffers from the start.

    Args:
        key: Random key.
        state: Position.
        priors: One per layer.
        num_steps: How many.
        summarize: What to keep of each step, of shapes that do not depend on the capacity; by
            default the info. One function for many runs is compiled once.
        chunk_size: Steps between looks at the buffers and updates of the progress bar.
        is_verbose: Whether to show a progress bar.

    Returns:
        The last state and the summaries of all steps, stacked, as NumPy arrays.

    Raises:
        ValueError: If there is no step to take.
    """
    if num_steps < 1:
        raise ValueError(f"run: expected num_steps of at least 1, got {num_steps}; pass 1000")
    kept, done = [], 0
    with tqdm(total=num_steps, disable=not is_verbose) as bar:
        while done < num_steps:
            state, (is_truncated, summaries) = _run_chunk(
                key, state, priors, done, num_steps, summarize=summarize, chunk_size=chunk_size
            )
            num_good = min(int((~is_truncated).sum()), num_steps - done)
            kept.append(jax.tree.map(lambda x, n=num_good: np.asarray(x[:n]), summaries))
            done += num_good
            bar.update(num_good)
            if bool(state.is_truncated):
                state = _grow_state(state)
    return state, jax.tree.map(lambda *parts: np.concatenate(parts), *kept)


@partial(jax.jit, static_argnames=("summarize", "chunk_size"))
def _run_chunk(key, state, priors, start, num_steps, *, summarize, chunk_size: int):
    """So many steps from the one of the given index, none beyond the last."""

    def one(state, index):
        new, info = step(jax.random.fold_in(key, index), state, priors)
        new = _choose(index < num_steps, new, state)
        return new, (info.is_truncated, summarize(new, info))

    return jax.lax.scan(one, state, start + jnp.arange(chunk_size))


def _choose(condition, first, second):
    """One of two states; what they share, such as the data, is not copied."""
    return jax.tree.map(lambda a, b: a if a is b else jnp.where(condition, a, b), first, second)


def _grow_state(state: HierarchyState) -> HierarchyState:
    """The state in buffers doubled until they hold what the refused step needs."""
    sizes = [len(layer.log_sticks) for layer in state.layers]
    needed = np.asarray(state.needed)
    capacities = [
        size * 2 ** max(0, int(np.ceil(np.log2(need / size))))
        for size, need in zip(sizes, needed, strict=True)
    ]
    layers = grow(state.layers, capacities)
    return init(layers, state.likelihood.grow(capacities[-1]))


def _draw_active(key: Key, above: FeatureLayer, layer: FeatureLayer, prior: LayerPrior):
    """Sticks of active features, then successes and failures of parents asked in random order."""
    key_order, key_leak, key_assign, key_stick = jax.random.split(key, 4)
    parents = with_leak(above.features, layer.log_failures)
    priority = jax.random.uniform(key_order, above.is_active.shape)
    if len(parents) > len(priority):
        priority = jnp.concatenate([jax.random.uniform(key_leak, (1,)), priority])
    is_used = parents.any(axis=1)
    order = jnp.argsort(jnp.where(is_used, priority, 2))
    num_features = layer.is_active.size
    slots = jnp.argsort(~layer.is_active, stable=True)
    slots = jnp.pad(slots, (0, _FEATURES_AT_ONCE), constant_values=num_features)

    def draw(block, found):
        start = block * _FEATURES_AT_ONCE
        chosen = jax.lax.dynamic_slice_in_dim(slots, start, _FEATURES_AT_ONCE)
        counts = draw_assignments(
            jax.random.fold_in(key_assign, block),
            parents,
            layer.features[chosen],
            layer.log_failures[:, chosen],
            order,
            is_used.sum(),
        )
        log_sticks = noisy_or_features.draw_active_sticks(
            jax.random.fold_in(key_stick, block),
            *counts,
            layer.log_sticks[chosen],
            prior.strength,
            prior.offset,
        )
        return tuple(
            old.at[chosen].set(new, mode="drop")
            for old, new in zip(found, (log_sticks, *counts), strict=True)
        )

    # nobody's parents switched on a feature that nobody has
    num_uses = parents.sum(axis=1).astype(layer.log_failures.dtype)
    failures = jnp.broadcast_to(num_uses, (num_features, len(parents)))
    num_blocks = -(-layer.is_active.sum() // _FEATURES_AT_ONCE)
    found = (layer.log_sticks, jnp.zeros_like(failures), failures)
    return jax.lax.fori_loop(0, num_blocks, draw, found)


def _renew_rows(key: Key, layer: FeatureLayer, is_active: Array, prior: LayerPrior) -> FeatureLayer:
    """Weights from parents that nobody has, which follow their prior."""
    num_parents, num_features = layer.log_weights.shape
    none = jnp.zeros((num_features, num_parents))
    drawn = noisy_or_features.draw_weights(
        key, layer.log_sticks, none, none, prior.strength, prior.offset
    )
    leak = jnp.ones(num_parents - is_active.size, bool)
    is_kept = jnp.concatenate([leak, is_active])[:, None]
    return layer._replace(
        log_weights=jnp.where(is_kept, layer.log_weights, drawn.log_weights),
        log_failures=jnp.where(is_kept, layer.log_failures, drawn.log_failures),
    )


def _noisy_or_child(layer: FeatureLayer, below: FeatureLayer, prior: LayerPrior) -> NoisyOrChild:
    return NoisyOrChild(
        features=below.features,
        is_active=below.is_active,
        log_weights=below.log_weights,
        log_failures=below.log_failures,
        concentration=below.concentration,
        strength=jnp.asarray(prior.strength, float),
        offset=jnp.asarray(prior.offset, float),
        has_leak=len(below.log_weights) > len(layer.log_sticks),
    )
