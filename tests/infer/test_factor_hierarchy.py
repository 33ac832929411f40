import warnings

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from feature_models import COUNTS, NUMBERS, mixed_blocks, one_layer, two_layers
from numpyro import handlers
from numpyro.infer import MCMC, NUTS, Predictive
from numpyro.infer.gibbs import Gibbs, prototype_trace

from jaxmrf.distributions import NoisyOr, NoisyOrBinomial, infinite_features, noisy_or_layer
from jaxmrf.infer import FactorHierarchyGibbs, MRFGibbs, hierarchy_sites
from jaxmrf.infer._feature_sites import find_layers
from jaxmrf.testing import prior_invariance

TOGETHER = {
    "number of features": lambda values: (values["z"].any(axis=0)).sum(),
    "ones": lambda values: values["z"].sum(),
    "x of those with features": lambda values: (
        values["x"].reshape(3, -1).sum(axis=1) * values["z"].sum(axis=1)
    ).sum(),
}


# a chain in thousands wants more slots than there are; it stops, which keeps its law up to there
ignore_truncation = pytest.mark.filterwarnings("ignore:FactorHierarchyGibbs")


def only(values):
    """The statistics and scalars: slots of a buffer are judged by what is in them together."""
    return {name: p for name, p in values.items() if name in TOGETHER or name == "alpha"}


def run(kernel, *args, num_samples=20, num_warmup=20, key=0):
    mcmc = MCMC(kernel, num_warmup=num_warmup, num_samples=num_samples, progress_bar=False)
    mcmc.run(jax.random.key(key), *args)
    return mcmc


@pytest.mark.slow
def test_layers_are_found_by_their_distributions():
    (layer,) = find_layers(one_layer, (NUMBERS,), {})
    assert layer == ("z_sticks", None, "z", "alpha")
    upper, lower = find_layers(two_layers, (COUNTS,), {})
    assert upper == ("y_sticks", None, "y", None)
    assert lower == ("z_sticks", "z_weights", "z", None)
    trace = prototype_trace(two_layers, jax.random.key(0), (COUNTS,), {})
    assert set(hierarchy_sites(trace)) == {*upper[::2], *lower[:3]}


@pytest.mark.slow
def test_faster_path_gives_the_log_odds_of_the_model():
    kernel = FactorHierarchyGibbs(two_layers)
    state = kernel.init(jax.random.key(3), 0, None, (COUNTS,), {})
    assert kernel._is_noisy_or
    trace = kernel._trace(state.z, (COUNTS,), {})
    fast = kernel._likelihood(state.z, trace, (COUNTS,), {})
    kernel._is_noisy_or = False
    general = kernel._likelihood(state.z, trace, (COUNTS,), {})
    features = state.z["z"].T.astype(bool)
    for index in range(3):
        found, _ = fast.log_odds(fast.prepare(features), index, features[index])
        expected, _ = general.log_odds(general.prepare(features), index, features[index])
        np.testing.assert_allclose(found, expected, rtol=2e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("num_dims", [2, 3])
def test_evidence_of_an_object_is_summed_over_its_measurements(num_dims):
    """Also where there are as many measurements as objects, so that a wrong axis has the size."""
    loadings = jnp.arange(6 * num_dims).reshape(6, num_dims) / 10.0
    x = jnp.arange(3 * num_dims).reshape(3, num_dims) / 4.0

    def model(x):
        z = infinite_features("z", num_objects=3, capacity=6, concentration=1.0)
        with numpyro.plate("objects", 3):
            numpyro.sample("x", dist.Normal(z @ loadings, 0.8).to_event(1), obs=x)

    kernel = FactorHierarchyGibbs(model)
    state = kernel.init(jax.random.key(0), 0, None, (x,), {})
    features = jnp.asarray([[1, 0, 1], [0, 1, 1], [0, 0, 1], [1, 1, 1], [0, 0, 0], [0, 1, 0]])
    found = kernel._evaluator(state.z, (x,), {})(features)
    expected = dist.Normal(features.T @ loadings, 0.8).log_prob(x).sum(axis=1)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.slow
def test_scaled_noisy_or_is_weighed_as_the_model_says():
    def model(x):
        z = infinite_features("z", num_objects=3, capacity=6, concentration=1.0)
        with handlers.scale(scale=jnp.array([1.0, 2.0, 0.5])), numpyro.plate("objects", 3):
            numpyro.sample("x", NoisyOrBinomial(z, SLOTS, 3), obs=x)

    kernel = FactorHierarchyGibbs(model)
    state = kernel.init(jax.random.key(0), 0, None, (COUNTS,), {})
    trace = kernel._trace(state.z, (COUNTS,), {})
    likelihood = kernel._likelihood(state.z, trace, (COUNTS,), {})
    features = jnp.zeros((6, 3), bool).at[0].set(True)
    found, _ = likelihood.log_odds(likelihood.prepare(features), 1, features[1])
    both, one = (NoisyOrBinomial(jnp.arange(6) < num, SLOTS, 3).log_prob(COUNTS) for num in (2, 1))
    expected = jnp.array([1.0, 2.0, 0.5]) * (both - one)
    np.testing.assert_allclose(found, expected, rtol=1e-4)


@pytest.mark.slow
def test_start_makes_the_data_possible():
    kernel = FactorHierarchyGibbs(two_layers)
    for seed in range(5):
        state = kernel.init(jax.random.key(seed), 0, None, (COUNTS,), {})
        log_probs = kernel._evaluator(state.z, (COUNTS,), {})(state.z["z"].T)
        assert jnp.isfinite(log_probs).all()


@pytest.mark.slow
@ignore_truncation
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("model", [one_layer, two_layers])
def test_posterior_is_invariant(model):
    kernel = FactorHierarchyGibbs(model)
    p_values = prior_invariance(
        kernel, model, "x", num_replicates=3000, num_steps=4, statistics=TOGETHER, seed=2
    )
    p_values = only(p_values)
    assert min(p_values.values()) * len(p_values) > 1e-3, p_values


@pytest.mark.slow
@ignore_truncation
@pytest.mark.timeout(1800)
def test_composite_of_blocks_leaves_the_posterior_invariant():
    kernel = MRFGibbs(
        [(FactorHierarchyGibbs(mixed_blocks), hierarchy_sites), (NUTS(mixed_blocks), None)]
    )
    p_values = prior_invariance(
        kernel, mixed_blocks, "x", num_replicates=1500, num_steps=4, statistics=TOGETHER, seed=3
    )
    p_values = {name: p for name, p in p_values.items() if name in {*TOGETHER, "alpha", "scale"}}
    assert min(p_values.values()) * len(p_values) > 1e-3, p_values


@pytest.mark.slow
def test_plain_gibbs_with_nuts_runs_and_predicts():
    kernel = Gibbs(
        [(FactorHierarchyGibbs(mixed_blocks), hierarchy_sites), (NUTS(mixed_blocks), None)]
    )
    samples = run(kernel, NUMBERS).get_samples()
    assert samples["z"].shape == (20, 3, 20) and jnp.isfinite(samples["scale"]).all()
    predicted = Predictive(mixed_blocks, samples)(jax.random.key(1))
    assert predicted["x"].shape == (20, 3)


@pytest.mark.slow
def test_full_buffer_stops_the_chain_and_says_what_to_ask_for():
    def crowded(x):
        z = infinite_features("z", num_objects=len(x), capacity=4, concentration=6.0)
        with numpyro.plate("objects", len(x)):
            numpyro.sample("x", dist.Normal(z.sum(axis=-1), 0.3), obs=x)

    with pytest.warns(UserWarning, match=r"rerun with capacities of at least \[\d+\]"):
        mcmc = run(FactorHierarchyGibbs(crowded), NUMBERS, num_warmup=0)
        jax.effects_barrier()
    draws = mcmc.get_samples()["z_sticks"]
    assert mcmc.last_state.is_truncated and (draws == draws[0]).all()
    assert mcmc.last_state.needed[0] > 4


@pytest.mark.slow
def test_roomy_buffer_gives_no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mcmc = run(FactorHierarchyGibbs(one_layer), NUMBERS)
    assert not mcmc.last_state.is_truncated


def observe(z, x, **options):
    with numpyro.plate("objects", len(x)):
        numpyro.sample("x", NoisyOrBinomial(z, SLOTS, 3, **options), obs=x)


SLOTS = jnp.full((6, 2), 0.5)


def features(x, **options):
    z = infinite_features("z", num_objects=len(x), capacity=6, concentration=1.0)
    observe(z, x, **options)


@pytest.mark.parametrize(
    ("value", "message"),
    [(4, "integers in 0..3 in 'x', got 4"), (-1, "got -1"), (float("nan"), "got nan")],
)
def test_impossible_counts_raise(value, message):
    x = COUNTS.astype(float).at[1, 1].set(value)
    with pytest.raises(ValueError, match=message):
        FactorHierarchyGibbs(features).init(jax.random.key(0), 0, None, (x,), {})


@pytest.mark.slow
def test_counts_that_are_not_observed_add_nothing():
    x = COUNTS.at[1, 1].set(3)
    kernel = FactorHierarchyGibbs(features)
    model_kwargs = {"is_observed": jnp.ones((3, 2), bool).at[1, 1].set(False)}
    state = kernel.init(jax.random.key(0), 0, None, (x,), model_kwargs)
    assert kernel._is_noisy_or
    trace = kernel._trace(state.z, (x,), model_kwargs)
    likelihood = kernel._likelihood(state.z, trace, (x,), model_kwargs)
    assert likelihood.successes[1, 1] == likelihood.failures[1, 1] == 0


def without_plate(x):
    z = infinite_features("z", num_objects=len(x), capacity=6, concentration=1.0)
    numpyro.sample("x", dist.Normal(z.sum(axis=-1), 1.0).to_event(1), obs=x)


def mixed_objects(x):
    z = infinite_features("z", num_objects=len(x), capacity=6, concentration=1.0)
    with numpyro.plate("objects", len(x)):
        numpyro.sample("x", dist.Normal(z.sum(axis=-1)[::-1], 1.0), obs=x)


def skipped_layer(x):
    y = infinite_features("y", num_objects=len(x), capacity=6, concentration=1.0)
    z, _ = noisy_or_layer("z", y, capacity=6, concentration=1.0)
    with numpyro.plate("objects", len(x)):
        numpyro.sample("x", dist.Normal(z.sum(axis=-1) + y.sum(axis=-1), 1.0), obs=x)


def two_children(x):
    y = infinite_features("y", num_objects=len(x), capacity=6, concentration=1.0)
    z, _ = noisy_or_layer("z", y, capacity=6, concentration=1.0)
    noisy_or_layer("w", y, capacity=6, concentration=1.0)
    with numpyro.plate("objects", len(x)):
        numpyro.sample("x", dist.Normal(z.sum(axis=-1), 1.0), obs=x)


def foreign_weights(x):
    y = infinite_features("y", num_objects=len(x), capacity=6, concentration=1.0)
    weights = numpyro.sample("v", dist.Beta(1.0, 1.0).expand([6, 6]).to_event(2))
    with numpyro.plate("objects", len(x)):
        z = numpyro.sample("z", NoisyOr(y, weights))
        numpyro.sample("x", dist.Normal(z.sum(axis=-1), 1.0), obs=x)


def no_features(x):
    numpyro.sample("z", dist.Bernoulli(0.5))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (without_plate, r"in one plate of its 3 objects, got \['x'\] outside"),
        (mixed_objects, "depend on its own row of 'z' alone"),
        (skipped_layer, "depend on 'z' alone, got"),
        (two_children, "one layer below 'y'"),
        (foreign_weights, "to be a NoisyOrWeights site"),
        (no_features, "one latent Bernoulli site"),
        (mixed_blocks, r"no latent site but .* got \['scale'\]"),
    ],
)
def test_models_out_of_reach_raise(model, message):
    with pytest.raises(ValueError, match=message):
        FactorHierarchyGibbs(model).init(jax.random.key(0), 0, None, (NUMBERS,), {})
