"""Steps and runs: exact posteriors, buffers that grow, states at the edge."""

import itertools
from functools import partial

import hierarchy_oracle as oracle
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from scipy.special import logsumexp

from jaxmrf.models.noisy_or import log_failure
from jaxmrf.nonparametric import factor_hierarchy, factor_hierarchy_gibbs
from jaxmrf.nonparametric.factor_hierarchy import FeatureLayer, LayerPrior
from jaxmrf.nonparametric.gaussian_factors import GaussianFactors
from jaxmrf.nonparametric.noisy_or_factors import NoisyOrFactors, find_cells

PRIORS = (
    LayerPrior(0.8, concentration_shape=3.0, concentration_rate=2.0),
    LayerPrior(0.8, concentration_shape=5.0, concentration_rate=2.0),
)
NUM_OBJECTS, NUM_DIMS = 6, 3
step = jax.jit(lambda key, state: factor_hierarchy_gibbs.step(key, state, PRIORS))


def start(capacity, kind="gaussian", *, has_leak=False, features=None, num_layers=2):
    """Layers in which the first slot belongs to everyone, and data with much structure."""
    rng = np.random.default_rng(3)
    if features is None:
        features = np.zeros((num_layers, capacity, NUM_OBJECTS), bool)
        features[:, 0] = True
    log_sticks = jnp.full(capacity, jnp.log(0.5))
    layers = []
    for depth in range(num_layers):
        weights = jnp.full((depth * (capacity + has_leak), capacity), 0.5)
        logs = jnp.log(weights), log_failure(weights)
        layers.append(
            FeatureLayer(log_sticks, jnp.asarray(features[depth]), *logs, jnp.asarray(1.5))
        )
    if kind == "gaussian":
        groups = np.eye(3)[np.arange(NUM_OBJECTS) % 3]
        data = 3 * groups + rng.normal(size=(NUM_OBJECTS, NUM_DIMS))
        likelihood = GaussianFactors(
            jnp.asarray(data, jnp.float32),
            jnp.ones((capacity, NUM_DIMS)),
            jnp.ones((capacity, NUM_OBJECTS)),
            jnp.asarray(0.3),
            jnp.asarray(4.0),
            (2.0, 1.0),
            (2.0, 4.0),
            has_weights=True,
        )
    else:
        counts = rng.integers(0, 4, (NUM_OBJECTS, NUM_DIMS))
        cells = find_cells(counts, np.ones(counts.shape, bool))
        weights = jnp.full((capacity, NUM_DIMS), 0.5)
        likelihood = NoisyOrFactors(
            jnp.asarray(counts, jnp.float32),
            jnp.asarray(3 - counts, jnp.float32),
            cells,
            jnp.log(weights),
            log_failure(weights),
        )
    return factor_hierarchy_gibbs.init(layers, likelihood)


def grow(state, capacity):
    layers = factor_hierarchy.grow(state.layers, [capacity] * len(state.layers))
    return factor_hierarchy_gibbs.init(layers, state.likelihood.grow(capacity))


def summarize(state, info):
    """Of every step, what does not depend on the capacity."""
    kept = {"active": info.num_active, "needed": info.needed}
    for depth, layer in enumerate(state.layers):
        kept[f"lowest {depth}"] = jnp.where(layer.is_active, layer.log_sticks, 0).min()
        kept[f"features {depth}"] = layer.features.sum(axis=0)
        kept[f"concentration {depth}"] = layer.concentration
    return kept


def used_part(state):
    """Everything that belongs to features that somebody has, and to pairs of them."""
    found, above = {}, None
    for depth, layer in enumerate(state.layers):
        is_active = np.asarray(layer.is_active)
        found[f"slots {depth}"] = np.flatnonzero(is_active)
        found[f"sticks {depth}"] = np.asarray(layer.log_sticks)[is_active]
        found[f"features {depth}"] = np.asarray(layer.features)[is_active]
        found[f"concentration {depth}"] = np.asarray(layer.concentration)
        if above is not None:
            leak = np.ones(len(layer.log_weights) - len(above), bool)
            rows = np.concatenate([leak, above])
            found["weights"] = np.asarray(layer.log_weights)[rows][:, is_active]
            found["failures"] = np.asarray(layer.log_failures)[rows][:, is_active]
        above = is_active
    likelihood = state.likelihood
    if isinstance(likelihood, GaussianFactors):
        on = np.asarray(state.layers[-1].features)[above]
        found["loadings"] = np.asarray(likelihood.loadings)[above]
        found["activations"] = np.where(on, np.asarray(likelihood.activations)[above], 0)
        found["noise"] = np.asarray(likelihood.noise_variance)
        found["spread"] = np.asarray(likelihood.loading_variance)
    else:
        found["W"] = np.asarray(likelihood.log_weights)[above]
        found["W failures"] = np.asarray(likelihood.log_failures)[above]
    return found


def check_growth(state, large, num_steps):
    """A run that starts small is one that starts large, bit for bit."""
    small = len(state.layers[0].log_sticks)
    run = partial(
        factor_hierarchy_gibbs.run,
        jax.random.key(5),
        priors=PRIORS[: len(state.layers)],
        num_steps=num_steps,
        summarize=summarize,
        chunk_size=5,
    )
    grown, summaries = run(state)
    wide, expected = run(grow(state, large))
    sizes = [len(layer.log_sticks) for layer in grown.layers]
    assert max(sizes) > small  # it grew
    assert {len(layer.log_sticks) for layer in wide.layers} == {large}  # this did not
    for name, values in expected.items():
        assert len(values) == num_steps
        np.testing.assert_array_equal(summaries[name], values, err_msg=name)
    expected = used_part(wide)
    for name, values in used_part(grown).items():
        np.testing.assert_array_equal(values, expected[name], err_msg=name)


@pytest.mark.slow
def test_a_run_that_outgrows_its_buffers_is_the_run_in_large_ones():
    check_growth(start(4, num_layers=1), 32, 20)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("kind", ["gaussian", "binomial"])
@pytest.mark.parametrize("has_leak", [False, True])
def test_runs_from_tiny_buffers_are_the_runs_in_large_ones(kind, has_leak):
    check_growth(start(2, kind, has_leak=has_leak), 64, 40)


@pytest.mark.slow
def test_a_step_without_enough_slots_changes_nothing(key):
    state = start(24, features=np.ones((2, 24, NUM_OBJECTS), bool))
    new, info = step(key, state)
    assert info.is_truncated
    assert (info.needed > 24).any()
    assert (info.num_active == 24).all()
    for _ in range(2):
        for old, kept in zip(
            jax.tree.leaves((state.layers, state.likelihood)),
            jax.tree.leaves((new.layers, new.likelihood)),
            strict=True,
        ):
            np.testing.assert_array_equal(old, kept)
        np.testing.assert_array_equal(new.needed, info.needed)
        # the next one, too, is not taken, and remembers what the first refused one needed
        new, later = step(jax.random.key(9), new)
        assert later.is_truncated


def edge_states():
    nobody = np.zeros((2, 24, NUM_OBJECTS), bool)
    everyone = nobody.copy()
    everyone[:, :2] = True
    some = nobody.copy()
    some[:, 0, :3] = True  # the other objects have no parents and no features
    upper = nobody.copy()
    upper[0, :3] = True
    return {"nobody": nobody, "everyone": everyone, "some": some, "upper only": upper}


@pytest.mark.slow
@pytest.mark.parametrize("name", edge_states())
def test_steps_from_the_edge_stay_possible_and_finite(key, name):
    state, has_left = start(24, features=edge_states()[name]), False
    for i in range(25):
        state, info = step(jax.random.fold_in(key, i), state)
        assert not info.is_truncated
        above, layer = state.layers
        for x in jax.tree.leaves(state):
            assert np.isfinite(x).all()
        has_parent = np.asarray(above.features.any(axis=0))
        assert not layer.features[:, ~has_parent].any()
        assert np.isfinite(factor_hierarchy.log_joint(state.layers, PRIORS))
        for each in state.layers:
            assert (each.log_sticks < 0).all()
            assert (each.concentration > 0).all()
        has_left |= bool(above.features.any() and not above.features.all(axis=1).any())
    assert has_left


@pytest.mark.slow
def test_new_objects_follow_their_posterior_given_the_features(key):
    """Independent objects with the same data against the enumeration of all configurations."""
    num_objects, noise = 4000, 0.5
    upper_sticks, weights = np.array([0.6, 0.3]), np.array([[0.5, 0.2, 0.7], [0.1, 0.8, 0.4]])
    loadings, x = np.array([[1.0], [0.7], [-0.5]]), 1.1

    table, logs = list(itertools.product((0, 1), repeat=5)), []
    for config in table:
        y, z = np.array(config[:2]), np.array(config[2:])
        on = 1 - np.prod(1 - y[:, None] * weights, axis=0)
        chances = np.concatenate([upper_sticks, on])
        with np.errstate(divide="ignore"):
            prior = np.log(np.where(config, chances, 1 - chances)).sum()
        logs.append(prior + oracle.log_normal(x, z @ loadings[:, 0], noise))
    expected = np.exp(np.array(logs) - logsumexp(logs)) * num_objects

    shape = (num_objects,)
    weights = jnp.asarray(weights, jnp.float32)
    empty = jnp.zeros((0, 2))
    layers = (
        FeatureLayer(
            jnp.log(jnp.asarray(upper_sticks, jnp.float32)),
            jnp.zeros((2, *shape), bool),
            empty,
            empty,
            jnp.asarray(1.0),
        ),
        FeatureLayer(
            jnp.log(jnp.full(3, 0.5)),
            jnp.zeros((3, *shape), bool),
            jnp.log(weights),
            log_failure(weights),
            jnp.asarray(1.0),
        ),
    )
    likelihood = GaussianFactors(
        jnp.full((num_objects, 1), x),
        jnp.asarray(loadings, jnp.float32),
        jnp.ones((3, *shape)),
        jnp.asarray(noise),
        jnp.asarray(1.0),
    )

    def sweep(i, carry):
        return factor_hierarchy_gibbs.step_objects(jax.random.fold_in(key, i), *carry)

    layers, _ = jax.jit(lambda: jax.lax.fori_loop(0, 40, sweep, (layers, likelihood)))()
    bits = np.concatenate([np.asarray(layer.features) for layer in layers])
    observed = np.bincount(bits.T @ (16, 8, 4, 2, 1), minlength=32)
    assert (observed[expected == 0] == 0).all()
    is_common = expected > 5
    rest = expected[~is_common].sum()
    statistic = ((observed - expected) ** 2 / np.maximum(expected, 1e-9))[is_common].sum()
    statistic += (observed[~is_common].sum() - rest) ** 2 / max(rest, 1)
    assert stats.chi2(is_common.sum() - (rest == 0)).sf(statistic) > 1e-3


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_two_objects_have_their_exact_posterior():
    """Numbers of active features of both layers, from an enumeration of all patterns."""
    num_chains, num_steps, num_warmup = 1500, 160, 30
    capacity = (20, 24)
    priors = (LayerPrior(0.8), LayerPrior(0.8))

    def chain(key):
        key_state, key_step = jax.random.split(key)
        layers = factor_hierarchy.draw_prior(key_state, 2, capacity, priors, (1.0, 1.2))
        likelihood = GaussianFactors(
            jnp.array([[0.3], [2.2]]),
            jnp.ones((capacity[1], 1)),
            jnp.zeros((capacity[1], 2)),
            jnp.asarray(0.64),
            jnp.asarray(1.0),
            is_learned=False,
        )

        def one(state, i):
            key = jax.random.fold_in(key_step, i)
            state, info = factor_hierarchy_gibbs.step(key, state, priors)
            on = jnp.stack([layer.features.sum() for layer in state.layers])
            return state, (info.num_active, on)

        state = factor_hierarchy_gibbs.init(layers, likelihood)
        state, kept = jax.lax.scan(one, state, jnp.arange(num_steps))
        return *jax.tree.map(lambda x: x[num_warmup:], kept), state.is_truncated

    chains = jax.jit(jax.vmap(chain), compiler_options={"xla_backend_optimization_level": 3})
    num, on, is_truncated = jax.tree.map(
        np.asarray, chains(jax.random.split(jax.random.key(5), num_chains))
    )
    assert is_truncated.mean() < 0.01
    exact = {
        (0, "mean"): 2.01493,
        (1, "mean"): 1.51656,
        (0, "on"): 2.69595,
        (1, "on"): 1.78139,
    }
    for count, p in enumerate([0.04139, 0.32642, 0.34284, 0.18980, 0.07215]):
        exact[0, count] = p
    for count, p in enumerate([0.09833, 0.39160, 0.41227, 0.09101, 0.00660]):
        exact[1, count] = p
    scores = {}
    for (depth, what), value in exact.items():
        x = {"mean": num, "on": on}.get(what, num == what)[..., depth]
        means = x.mean(axis=1)
        scores[depth, what] = (means.mean() - value) / (means.std() / np.sqrt(len(means)))
    assert max(abs(score) for score in scores.values()) < 3, scores
