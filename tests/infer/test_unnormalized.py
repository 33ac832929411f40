import pickle

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from kernel_models import SQUARE, field_and_mixture, hidden_field
from numpyro import handlers
from numpyro.infer.gibbs import with_conditioning
from numpyro.infer.util import compute_log_probs

from jaxmrf.distributions import IntractableNormalizerError, Ising
from jaxmrf.infer import mrf_parents, mrf_sites, unnormalized
from jaxmrf.infer.unnormalized import UnnormalizedModel

STATES = jnp.array([[1, 1, 0, 0], [0, 1, 1, 1]])


def two_fields(x):
    coupling = numpyro.sample("coupling", dist.Normal(0, 1))
    with numpyro.plate("items", 2):
        numpyro.sample("x", Ising(SQUARE, coupling).mask(jnp.array([True, False])), obs=x)
    numpyro.sample("w", Ising(SQUARE, 2 * coupling), obs=x[0])


def log_probs(model):
    return compute_log_probs(model, (STATES,), {}, {"coupling": jnp.array(0.4)})[0]


def test_only_the_named_field_loses_its_normaliser():
    plain, changed = log_probs(two_fields), log_probs(unnormalized(two_fields, sites=["x"]))
    field = Ising(SQUARE, 0.4)
    np.testing.assert_allclose(changed["x"], field.unnormalized_log_prob(STATES[0]), rtol=1e-5)
    np.testing.assert_allclose(changed["x"] - plain["x"], field.log_normalizer, rtol=1e-5)
    assert changed["w"] == plain["w"]
    assert changed["coupling"] == plain["coupling"]


def test_handler_works_as_a_context_and_changes_no_draw():
    with unnormalized(sites=["w"]):
        changed = log_probs(two_fields)
    plain = log_probs(two_fields)
    np.testing.assert_allclose(
        changed["w"] - plain["w"], Ising(SQUARE, 0.8).log_normalizer, rtol=1e-5
    )
    draws = [
        handlers.trace(handlers.seed(model, 0)).get_trace()["x"]["value"]
        for model in (field_and_mixture, unnormalized(field_and_mixture, sites=["x"]))
    ]
    np.testing.assert_array_equal(*draws)


def test_intractable_field_has_a_density_only_without_its_normaliser():
    args = (STATES[0], jnp.zeros(2))
    values = {"coupling": jnp.array(0.1), "scale": jnp.array(1.0), "z": jnp.array([0, 1])}
    with pytest.raises(IntractableNormalizerError, match="ExchangeMH or GroupGibbs block"):
        compute_log_probs(field_and_mixture, args, {}, values)
    model = UnnormalizedModel(field_and_mixture, ("x",))
    found, _ = compute_log_probs(model, args, {}, values)
    np.testing.assert_allclose(found["x"], 0.0, atol=1e-6)  # two edges agree, two do not


def test_unnormalized_model_pickles_and_differs_by_the_model_inside():
    model = UnnormalizedModel(field_and_mixture, ("x",))
    again = pickle.loads(pickle.dumps(model))
    assert (again.model, again.sites) == (field_and_mixture, ("x",))
    other = UnnormalizedModel(field_and_mixture, ())
    assert not (model != other or model != field_and_mixture or field_and_mixture != model)
    assert model != UnnormalizedModel(hidden_field, ("x",))
    assert model != hidden_field
    assert model == model
    assert not model == other
    assert "('x',)" in repr(model)


def test_mrf_sites_are_found_inside_wrappers():
    trace = handlers.trace(handlers.seed(two_fields, 0)).get_trace(STATES)
    assert mrf_sites(trace) == ("x", "w")


def test_mrf_parents_are_the_sites_behind_the_parameters():
    data = (STATES[0], jnp.zeros(2))
    assert mrf_parents(field_and_mixture, data) == {"x": frozenset({"coupling"})}
    # the field itself is latent, and is no parent of its own parameters
    assert mrf_parents(hidden_field, (jnp.zeros(4),)) == {"z": frozenset({"coupling"})}


def test_values_conditioned_on_are_no_parents():
    kwargs = with_conditioning({}, {"coupling": jnp.array(0.2)})
    assert mrf_parents(hidden_field, (jnp.zeros(4),), kwargs) == {"z": frozenset()}


def test_parents_are_followed_through_transformations_and_loops():
    def model(x):
        a = numpyro.sample("a", dist.Normal(0, 1))
        b = numpyro.sample("b", dist.Normal(0, 1))
        unused = numpyro.sample("unused", dist.Normal(0, 1))
        numpyro.sample("y", dist.Normal(unused, 1), obs=0.0)
        looped = jax.lax.fori_loop(0, 3, lambda i, total: total + jax.nn.relu(b), 0.0)
        shared = numpyro.deterministic("shared", jax.jit(jnp.tanh)(a))
        numpyro.sample("x", Ising(SQUARE, shared, looped), obs=x)

    assert mrf_parents(model, (STATES[0],)) == {"x": frozenset({"a", "b"})}
