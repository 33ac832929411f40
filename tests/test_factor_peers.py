"""The NumPy sweeps that the factor hierarchy is timed beside have the same target."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import logsumexp

from benchmarks import factor_peers
from benchmarks.case_ifm_digits import peer_state
from jaxmrf.nonparametric import factor_hierarchy, factor_hierarchy_gibbs, gaussian_factors
from jaxmrf.nonparametric.factor_hierarchy import LayerPrior
from jaxmrf.nonparametric.feature_children import NoisyOrChild

STRENGTH, OFFSET = 0.8, 1.0
PRIORS = factor_peers.HierarchyPriors(
    concentration=(2.0, 2.0),
    noise_variance=(3.0, 2.0),
    loading_variance=(3.0, 2.0),
    strength=STRENGTH,
    offset=OFFSET,
)
LAYER = LayerPrior(STRENGTH, OFFSET, 2.0, 2.0)
NUM_OBJECTS, NUM_DIMS, CAPACITIES = 5, 2, (32, 64)


def draw(key, data=None):
    """A state and its data, all drawn from the prior."""
    keys = jax.random.split(key, 4)
    alphas = jax.random.gamma(keys[0], 2.0, (2,)) / 2
    variances = 2 / jax.random.gamma(keys[1], 3.0, (2,))
    layers = factor_hierarchy.draw_prior(
        keys[2], NUM_OBJECTS, CAPACITIES, (LAYER,) * 2, tuple(alphas)
    )
    empty = gaussian_factors.observe(
        np.zeros((NUM_OBJECTS, NUM_DIMS)), CAPACITIES[1], has_weights=True
    )
    empty = replace(empty, noise_variance=variances[0], loading_variance=variances[1])
    likelihood = gaussian_factors.draw_gaussian_prior(keys[3], layers[-1].features, empty)
    return factor_hierarchy_gibbs.init(layers, likelihood)


@pytest.fixture(scope="module")
def states():
    """Some states with several features in both layers, and those of the peers."""
    drawn = jax.jit(jax.vmap(draw))(jax.random.split(jax.random.key(3), 200))
    chosen = []
    for index in range(200):
        state = jax.tree.map(lambda x, i=index: x[i], drawn)
        upper, lower = state.layers
        # also where a weight is too small for its rounded complement
        failures = jnp.log1p(-jnp.exp(lower.log_weights))
        state = state._replace(layers=(upper, lower._replace(log_failures=failures)))
        peer = peer_state(state)
        if len(peer.upper) > 2 and len(peer.lower) > 3:
            chosen.append((state, peer))
    assert len(chosen) > 5
    return chosen[:6]


def child_of(state):
    upper, lower = state.layers
    return upper, NoisyOrChild(
        features=lower.features,
        is_active=lower.is_active,
        log_weights=lower.log_weights,
        log_failures=lower.log_failures,
        concentration=lower.concentration,
        strength=jnp.asarray(STRENGTH),
        offset=jnp.asarray(OFFSET),
        has_leak=False,
    )


def test_peers_give_upper_features_the_odds_of_the_package(states):
    for state, peer in states:
        upper, child = child_of(state)
        cache = child.prepare(upper.features)
        log_failures = np.log1p(-peer.weights)
        causes = factor_peers.find_causes(peer.upper, peer.lower, log_failures)
        for j, slot in enumerate(np.flatnonzero(upper.is_active)):
            expected, _ = child.log_odds(cache, slot, upper.features[slot])
            found, _ = factor_peers.upper_log_odds(
                causes, peer.upper[j], peer.weights[j], log_failures[j], NUM_OBJECTS
            )
            np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-4)


def test_peers_weigh_unseen_features_as_the_package(states):
    for state, peer in states:
        absence = factor_hierarchy.stick_prior(*state.layers, LAYER)
        expected = factor_hierarchy.indian_buffet.expected_present(*absence)
        num_uses = peer.upper.sum(axis=1)
        weights, table, log_absence, found = factor_peers.expected_present(
            num_uses, NUM_OBJECTS, PRIORS
        )
        np.testing.assert_allclose(found, expected, rtol=1e-5)
        # one object more for the first parent, as the updates of a column compute it
        more = num_uses.copy()
        more[0] = num_uses[0] + 1 if num_uses[0] < NUM_OBJECTS else num_uses[0] - 1
        moved = log_absence + table[more[0]] - table[num_uses[0]]
        change = (weights * (np.exp(log_absence) - np.exp(moved))).sum()
        *_, expected_more = factor_peers.expected_present(more, NUM_OBJECTS, PRIORS)
        np.testing.assert_allclose(change, expected_more - found, rtol=1e-4)


@pytest.mark.slow
def test_peers_give_lower_features_the_odds_of_the_package(states):
    for state, peer in states:
        lower, likelihood = state.layers[1], state.likelihood
        slots = np.flatnonzero(lower.is_active)
        expected = factor_hierarchy.log_prior_odds(*state.layers)[slots]
        np.testing.assert_allclose(
            factor_peers.lower_prior_odds(peer), expected, rtol=2e-4, atol=2e-4
        )
        cache = likelihood.prepare(lower.features)
        residual = np.asarray(likelihood.data, float) - peer.activations.T @ peer.loadings
        for k, slot in enumerate(slots):
            odds, (mean, variance) = likelihood.log_odds(cache, slot, lower.features[slot])
            found = factor_peers.lower_log_odds(
                residual, peer.activations[k], peer.loadings[k], peer.noise_variance
            )
            for value, wanted in zip(found, (odds, mean, variance), strict=True):
                np.testing.assert_allclose(value, wanted, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("is_looping", [False, True])
def test_peers_assign_children_as_enumerated(is_looping, rng):
    weights = np.array([[0.3, 0.9], [0.6, 0.2]])
    upper = np.array([[1, 1, 0], [1, 0, 1]], bool)
    lower = np.array([[1, 1, 0], [1, 0, 0]], bool)
    state = factor_peers.PeerState(upper, lower, *(None,) * 2, weights, *(None,) * 2, *(0.0,) * 3)
    draw = factor_peers.loop_assignments if is_looping else factor_peers.vectorized_assignments
    num = 4000
    successes, failures = np.mean([draw(rng, state) for _ in range(num)], axis=0)
    # object 0 has both parents: the first one asked, either with chance 1/2, may be the cause
    first = (weights[0] + weights[0] * (1 - weights[1])) / 2
    first /= 1 - (1 - weights[0]) * (1 - weights[1])
    error = 5 * np.sqrt(first * (1 - first) / num)
    assert np.all(np.abs(successes[0] - first - [1, 0]) < error)
    assert np.all(np.abs(successes[1] - (1 - first)) < error)
    # the second object lacks feature 1 of its one parent, the third both features of its own
    before = weights * (1 - weights[::-1]) / 2 / (1 - (1 - weights[0]) * (1 - weights[1]))
    wanted = np.array([before[1] + [0, 1], before[0] + 1])
    assert np.all(np.abs(failures - wanted) < 5 * 0.5 / np.sqrt(num))


@pytest.mark.parametrize("is_looping", [False, True])
def test_peers_keep_empty_and_full_buffers_consistent(is_looping, states, rng):
    for state, peer in states:
        swept = factor_peers.sweep(
            rng, peer, np.asarray(state.likelihood.data, float), PRIORS, is_looping=is_looping
        )
        shapes = {
            "upper": (len(swept.upper), NUM_OBJECTS),
            "weights": (len(swept.upper), len(swept.lower)),
            "activations": (len(swept.lower), NUM_OBJECTS),
            "loadings": (len(swept.lower), NUM_DIMS),
        }
        for name, shape in shapes.items():
            assert getattr(swept, name).shape == shape
        assert swept.upper.any(axis=1).all() and swept.lower.any(axis=1).all()
        assert not (swept.lower.any(axis=0) & ~swept.upper.any(axis=0)).any()
        assert np.all(swept.activations[~swept.lower] == 0)


def statistics(peer):
    return np.array(
        [
            len(peer.upper),
            len(peer.lower),
            peer.upper.sum(),
            peer.lower.sum(),
            (peer.upper.sum(axis=1) ** 2).sum(),
            (peer.lower.sum(axis=1) ** 2).sum(),
            peer.upper_sticks.sum(),
            peer.sticks.sum(),
            peer.weights.sum(),
            (peer.weights**2).sum(),
            (peer.activations**2).sum(),
            np.log1p((peer.loadings**2).sum()),
            np.log(peer.noise_variance),
            np.log(peer.loading_variance),
            np.log(peer.concentration),
        ]
    )


@pytest.mark.slow
@pytest.mark.parametrize("is_looping", [False, True])
def test_peers_leave_the_prior_invariant(is_looping, rng):
    num = 3000
    drawn = jax.jit(jax.vmap(draw))(jax.random.split(jax.random.key(11), num))
    drawn = jax.tree.map(np.asarray, drawn)
    changes = []
    for index in range(num):
        state = jax.tree.map(lambda x, i=index: x[i], drawn)
        before = after = peer_state(state)
        data = np.asarray(state.likelihood.data, float)
        for _ in range(3):
            after = factor_peers.sweep(rng, after, data, PRIORS, is_looping=is_looping)
        changes.append(statistics(after) - statistics(before))
    changes = np.array(changes)
    z = changes.mean(axis=0) / (changes.std(axis=0) / np.sqrt(num))
    assert np.abs(z).max() < 4.5, z


def test_latent_linear_model_finds_the_logits_it_was_given(rng):
    scores, loadings = rng.normal(size=(300, 2)), rng.normal(size=(2, 12))
    probability = 1 / (1 + np.exp(-(scores @ loadings - 0.5)))
    counts = rng.binomial(100, probability)
    learned = factor_peers.fit_latent_linear(rng, counts[:200], 100, 2, 1.0)
    is_observed = rng.random((100, 12)) < 0.5
    found = factor_peers.infer_latent_linear(*learned, counts[200:], is_observed, 100, 1.0)
    error = np.abs(1 / (1 + np.exp(-found)) - probability[200:])[~is_observed]
    assert np.median(error) < 0.05
    assert np.isfinite(logsumexp(found))


def test_slope_of_the_latent_linear_model_matches_differences(rng):
    logits, counts = rng.normal(size=(3, 4)), rng.integers(0, 11, (3, 4))
    is_observed = rng.random((3, 4)) < 0.7
    _, slope = factor_peers.binomial_loss(logits, counts, 10, is_observed)
    step = 1e-6
    for index in np.ndindex(3, 4):
        change = np.zeros((3, 4))
        change[index] = step
        high, low = (
            factor_peers.binomial_loss(logits + sign * change, counts, 10, is_observed)[0]
            for sign in (1, -1)
        )
        np.testing.assert_allclose((high - low) / 2 / step, slope[index], atol=1e-6)
