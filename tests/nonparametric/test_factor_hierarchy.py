"""The joint density against loops, and every conditional of a feature against the joint."""

from functools import lru_cache
from itertools import pairwise

import hierarchy_oracle as oracle
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmrf.nonparametric import factor_hierarchy
from jaxmrf.nonparametric.factor_hierarchy import FeatureLayer, LayerPrior
from jaxmrf.nonparametric.feature_children import NoisyOrChild

NUM_OBJECTS = 4
CAPACITIES = (3, 5, 4)
CONCENTRATIONS = (0.9, 1.4, 2.1)
STRENGTHS, OFFSETS = (1.0, 0.8, 1.7), (1.0, 1.0, 0.5)
PRIORS = tuple(LayerPrior(c, b) for c, b in zip(STRENGTHS, OFFSETS, strict=True))


@lru_cache
def hierarchy(has_leak, seed=0):
    """Three layers for the oracle: possible features, an empty slot and a full column in each."""
    rng = np.random.default_rng(seed)
    layers, above = [], None
    for depth, capacity in enumerate(CAPACITIES):
        layer = {
            "sticks": rng.uniform(0.1, 0.9, capacity).astype(np.float32).astype(float),
            "features": np.zeros((capacity, NUM_OBJECTS), int),
            "concentration": CONCENTRATIONS[depth],
            "strength": STRENGTHS[depth],
            "offset": OFFSETS[depth],
            "weights": np.zeros((0, capacity)),
        }
        if above is not None:
            shape = (len(above["features"]) + has_leak, capacity)
            layer["weights"] = rng.uniform(0.05, 0.6, shape).astype(np.float32).astype(float)
            layer["weights"][-1, 0] = 1e-6
        for k in range(1, capacity):
            for n in range(NUM_OBJECTS):
                p = 0.5 if above is None else oracle.chance(above, layer, k, n)
                layer["features"][k, n] = (p > 0) if k == 1 else rng.uniform() < p
        layer["represented"] = layer["features"].any(axis=1)
        layers.append(layer)
        above = layer
    return layers


def convert(layer):
    """The same layer for the library."""
    weights = jnp.asarray(layer["weights"], jnp.float32)
    return FeatureLayer(
        jnp.log(jnp.asarray(layer["sticks"], jnp.float32)),
        jnp.asarray(layer["features"], bool),
        jnp.log(weights),
        jnp.log1p(-weights),
        jnp.asarray(layer["concentration"], jnp.float32),
    )


def child_of(below, depth, has_leak):
    return NoisyOrChild(
        below.features,
        below.is_active,
        below.log_weights,
        below.log_failures,
        below.concentration,
        jnp.asarray(STRENGTHS[depth]),
        jnp.asarray(OFFSETS[depth]),
        has_leak,
    )


def uses(above, layer):
    return oracle.parents_of(above, layer).sum(axis=1)


@pytest.mark.parametrize("num_layers", [1, 2, 3])
@pytest.mark.parametrize("has_leak", [False, True])
def test_log_joint_is_that_of_loops(num_layers, has_leak):
    layers = hierarchy(has_leak)[:num_layers]
    expected = oracle.log_joint(layers)
    # weights from parents that nobody has integrate to one and are left out
    for above, layer in pairwise(layers):
        unused = np.flatnonzero(uses(above, layer) == 0)
        for k in np.flatnonzero(layer["represented"]):
            a = layer["strength"] * layer["sticks"][k]
            b = layer["strength"] * (1 - layer["sticks"][k]) + layer["offset"]
            expected -= sum(oracle.log_beta(layer["weights"][j, k], a, b) for j in unused)
    found = factor_hierarchy.log_joint([convert(x) for x in layers], PRIORS[:num_layers])
    np.testing.assert_allclose(found, expected, rtol=3e-6)


def test_log_joint_of_nothing_at_all_is_that_of_no_points():
    layers = [x | {"features": np.zeros_like(x["features"])} for x in hierarchy(False)]
    found = factor_hierarchy.log_joint([convert(x) for x in layers], PRIORS)
    expected = -CONCENTRATIONS[0] * oracle.harmonic(NUM_OBJECTS)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize("depth", [0, 1, 2])
@pytest.mark.parametrize("has_leak", [False, True])
def test_odds_of_every_entry_are_differences_of_the_log_joint(depth, has_leak):
    """With all slots of the layer written out, those that nobody has included."""
    layers = [dict(x) for x in hierarchy(has_leak)]
    capacity = CAPACITIES[depth]
    layers[depth]["represented"] = np.ones(capacity, bool)
    converted = [convert(x) for x in layers]
    above = converted[depth - 1] if depth else None
    found = factor_hierarchy.log_prior_odds(above, converted[depth])
    found = np.array(jnp.broadcast_to(found, (capacity, NUM_OBJECTS)), float)
    if depth < 2:
        child = child_of(converted[depth + 1], depth + 1, has_leak)
        cache = child.prepare(converted[depth].features)
        for k in range(capacity):
            log_odds, _ = child.log_odds(cache, k, converted[depth].features[k])
            found[k] += log_odds
    expected = np.zeros_like(found)
    for k in range(capacity):
        for n in range(NUM_OBJECTS):
            joint, present = [], []
            for value in (1, 0):
                features = layers[depth]["features"].copy()
                features[k, n] = value
                changed = layers[depth] | {"features": features}
                joint.append(oracle.log_joint([*layers[:depth], changed, *layers[depth + 1 :]]))
                if depth < 2:
                    below = layers[depth + 1]
                    psi = oracle.expected_present(
                        uses(changed, below), below["strength"], below["offset"]
                    )
                    present.append(psi * below["concentration"])
            expected[k, n] = joint[0] - joint[1]
            if depth < 2:  # the whole column is accepted or refused with this factor
                expected[k, n] += present[0] - present[1]
    assert np.isfinite(expected).any()
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("has_leak", [False, True])
def test_columns_are_accepted_with_the_weight_of_the_infinitely_many(key, has_leak):
    layers = hierarchy(has_leak)
    below = layers[1]
    features = convert(layers[0]).features
    child = child_of(convert(below), 1, has_leak)
    cache = child.prepare(features)
    replace = jax.jit(jax.vmap(child.replace, in_axes=(0, None, None, None, None, None)))
    keys = jax.random.split(key, 4000)
    for index, proposed in ((0, [1, 1, 1, 0]), (1, [1, 0, 0, 0]), (2, [1, 1, 1, 1])):
        column, proposed = features[index], jnp.array(proposed, bool)
        _, notes = child.log_odds(cache, index, column)
        caches, taken = replace(keys, cache, notes, index, column, proposed)
        is_accepted = np.asarray((taken == proposed).all(axis=1))
        assert ((taken == proposed).all(axis=1) | (taken == column).all(axis=1)).all()
        changed = layers[0]["features"].copy()
        changed[index] = proposed
        psi = [
            oracle.expected_present(uses(x, below), below["strength"], below["offset"])
            for x in (layers[0] | {"features": changed}, layers[0])
        ]
        chance = min(1, np.exp(-below["concentration"] * (psi[0] - psi[1])))
        error = np.sqrt(chance * (1 - chance) / len(keys))
        assert abs(is_accepted.mean() - chance) <= 4.5 * error
        # the cache is what it would be if made anew
        for i in {int(is_accepted.argmax()), int(is_accepted.argmin())}:
            anew = child.prepare(features.at[index].set(taken[i]))
            kept = jax.tree.map(lambda x, i=i: x[i], caches)
            np.testing.assert_array_equal(kept.num_uses, anew.num_uses)
            np.testing.assert_array_equal(kept.sums.num_causes, anew.sums.num_causes)
            np.testing.assert_allclose(kept.sums.log_off(), anew.sums.log_off(), rtol=1e-6)


@pytest.mark.parametrize(
    ("num_objects", "before", "after"),
    [
        (3, (0, 0), (3, 0)),
        (3, (1, 0), (1, 3)),
        (3, (3, 3), (0, 0)),
        (500, (0, 0), (300, 0)),
        (500, (1, 0), (500, 500)),
        (500, (500, 500), (1, 0)),
    ],
)
def test_the_weight_of_the_infinitely_many_is_right_however_far_a_sweep_goes(
    num_objects, before, after
):
    """The cache is made once a sweep: it must hold for what the sweep makes of the parents."""
    below = FeatureLayer(
        jnp.zeros(1),
        jnp.zeros((1, num_objects), bool),
        jnp.full((2, 1), -1.0),
        jnp.full((2, 1), -1.0),
        jnp.asarray(1.0),
    )
    child = child_of(below, 1, False)
    cache = child.prepare(jnp.arange(num_objects) < jnp.array(before)[:, None])
    new = cache.log_absence + sum(
        cache.terms[b] - cache.terms[a] for a, b in zip(before, after, strict=True)
    )
    found = (cache.node_weights * (jnp.exp(cache.log_absence) - jnp.exp(new))).sum()
    expected = [oracle.expected_present(n, STRENGTHS[1], OFFSETS[1]) for n in (after, before)]
    np.testing.assert_allclose(found, expected[0] - expected[1], atol=1e-5)


def test_an_object_without_parents_cannot_have_a_feature():
    above, layer = (convert(x) for x in hierarchy(False)[:2])
    above = above._replace(features=above.features.at[:, 2].set(False))
    odds = factor_hierarchy.log_prior_odds(above, layer)
    assert (odds[:, 2] == -jnp.inf).all()
    assert np.isfinite(odds[:, :2]).all()


def test_a_leak_makes_every_feature_possible():
    above, layer = (convert(x) for x in hierarchy(True)[:2])
    above = above._replace(features=jnp.zeros_like(above.features))
    odds = factor_hierarchy.log_prior_odds(above, layer)
    weight = hierarchy(True)[1]["weights"][0]
    expected = np.log(weight / (1 - weight))
    np.testing.assert_allclose(odds, np.broadcast_to(expected[:, None], odds.shape), rtol=1e-4)


def test_the_only_cause_of_a_feature_below_must_stay():
    above, layer = (convert(x) for x in hierarchy(False)[:2])
    features = jnp.zeros_like(above.features).at[1, 0].set(True)
    layer = layer._replace(features=jnp.zeros_like(layer.features).at[2, 0].set(True))
    child = child_of(layer, 1, False)
    log_odds, _ = child.log_odds(child.prepare(features), 1, features[1])
    assert log_odds[0] == jnp.inf
    assert np.isfinite(log_odds[1:]).all()


@pytest.mark.slow
def test_larger_buffers_hold_the_same_features():
    layers = [convert(x) for x in hierarchy(True)]
    grown = factor_hierarchy.grow(layers, (4, 7, 8))
    assert [x.features.shape for x in grown] == [(4, 4), (7, 4), (8, 4)]
    assert [x.log_weights.shape for x in grown] == [(0, 4), (5, 7), (8, 8)]
    np.testing.assert_allclose(
        factor_hierarchy.log_joint(grown, PRIORS),
        factor_hierarchy.log_joint(layers, PRIORS),
        rtol=1e-6,
    )
    np.testing.assert_array_equal(
        factor_hierarchy.num_active(grown), factor_hierarchy.num_active(layers)
    )


@pytest.mark.slow
def test_prior_draws_put_the_poisson_number_of_features_below(key):
    """Given the layer above, the number below is Poisson(alpha psi): mean and variance."""
    num_draws, concentration = 3000, 0.8
    priors = (LayerPrior(), LayerPrior(0.8))

    def draw(key):
        above, layer = factor_hierarchy.draw_prior(key, 4, (12, 16), priors, (0.8, concentration))
        absence = factor_hierarchy.stick_prior(above, layer, priors[1])
        nodes = jnp.linspace(-18, 0, 400)  # of log u
        heights = -jnp.expm1(absence.log_absence(nodes))
        psi = ((heights[1:] + heights[:-1]) / 2 * jnp.diff(nodes)).sum()
        return layer.is_active.sum(), concentration * psi

    num, mean = (
        np.asarray(x, float) for x in jax.jit(jax.vmap(draw))(jax.random.split(key, num_draws))
    )
    for excess in (num - mean, (num - mean) ** 2 - mean):
        assert abs(excess.mean()) < 4.5 * excess.std() / np.sqrt(num_draws)
    assert (num[mean == 0] == 0).all()
