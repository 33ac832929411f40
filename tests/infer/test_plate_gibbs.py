import itertools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from kernel_models import MIXTURE_DATA, mixture, mixture_by_event
from numpyro import handlers
from numpyro.infer import MCMC
from numpyro.infer.util import log_density

from jaxmrf.infer import PlateGibbs
from jaxmrf.testing import exact_stationarity, prior_invariance


def conditionals(kernel, *args):
    """The kernel's own conditional probabilities, states first."""
    kernel._prepare(args, {})
    logits = jax.jit(lambda: kernel._logits(jnp.asarray(kernel._support), args, {}))()
    return np.asarray(jax.nn.softmax(logits, axis=0))


@pytest.mark.slow
def test_conditionals_equal_bayes_rule():
    found = conditionals(PlateGibbs(mixture), MIXTURE_DATA)
    weights, locations = np.array([0.5, 0.2, 0.3]), np.array([0.0, 1.0, 3.0])
    log_likelihoods = -((np.asarray(MIXTURE_DATA) - locations[:, None, None]) ** 2) / 2 / 0.8**2
    expected = weights[:, None, None] * np.exp(log_likelihoods)
    np.testing.assert_allclose(found, expected / expected.sum(0), atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("model", [mixture_by_event])
def test_transition_leaves_the_posterior_stationary(model):
    y = jnp.array([[0.5, -1.0], [0.2, 0.1], [-1.0, 0.3]])
    probabilities = conditionals(PlateGibbs(model), y)
    states = np.array(list(itertools.product((0, 1), repeat=3)))
    row = probabilities[states, np.arange(3)].prod(axis=1)  # the same from every state
    log_joint = jax.vmap(lambda z: log_density(model, (y,), {}, {"z": z})[0])(jnp.array(states))
    transition = np.tile(row, (len(states), 1))
    assert exact_stationarity(transition, np.exp(np.asarray(log_joint, float))) < 1e-6


@pytest.mark.slow
def test_draws_have_the_conditional_frequencies(key):
    mcmc = MCMC(PlateGibbs(mixture), num_warmup=0, num_samples=4000, progress_bar=False)
    mcmc.run(key, MIXTURE_DATA)
    draws = mcmc.get_samples()["z"]
    expected = conditionals(PlateGibbs(mixture), MIXTURE_DATA)
    found = np.stack([np.asarray(draws == k).mean(0) for k in range(3)])
    error = np.sqrt(expected * (1 - expected) / len(draws))
    assert (np.abs(found - expected) < 4.5 * error + 1e-3).all()


def test_posterior_is_invariant():
    together = {
        "sum of y in group 2": lambda values: jnp.sum(values["y"] * (values["z"] == 2)),
        "size of group 1": lambda values: jnp.sum(values["z"] == 1),
    }
    p_values = prior_invariance(
        PlateGibbs(mixture), mixture, "y", num_steps=2, statistics=together, seed=1
    )
    assert p_values.keys() == {"z", *together}
    assert min(p_values.values()) > 1e-3 / len(p_values)


def test_dropped_dependant_is_caught(monkeypatch):
    """The marginals of z stay right without the data; the joint statistic does not."""
    kernel = PlateGibbs(mixture)
    prepare = kernel._prepare

    def only_the_prior(*args):
        prepare(*args)
        kernel._dependants = tuple(d for d in kernel._dependants if d.name == "z")

    monkeypatch.setattr(kernel, "_prepare", only_the_prior)
    together = {"sum of y in group 2": lambda values: jnp.sum(values["y"] * (values["z"] == 2))}
    p_values = prior_invariance(kernel, mixture, "y", num_steps=1, statistics=together)
    assert p_values["z"] > 1e-3
    assert p_values["sum of y in group 2"] < 1e-6


def test_init_params_are_the_first_state(key):
    z = jnp.array([[2, 1, 0], [0, 1, 2]])
    state = PlateGibbs(mixture).init(key, 0, {"z": z}, (MIXTURE_DATA,), {})
    np.testing.assert_array_equal(state.z["z"], z)


def two_sites(y):
    with numpyro.plate("items", 3):
        a = numpyro.sample("a", dist.Bernoulli(0.5))
        b = numpyro.sample("b", dist.Bernoulli(0.5))
        numpyro.sample("y", dist.Normal(a + b, 1.0), obs=y)


def no_plate(y):
    z = numpyro.sample("z", dist.Bernoulli(jnp.full(3, 0.5)))
    numpyro.sample("y", dist.Normal(z.sum(), 1.0), obs=y[0])


def outside(y):
    with numpyro.plate("items", 3):
        z = numpyro.sample("z", dist.Bernoulli(0.5))
    numpyro.sample("total", dist.Normal(z.sum(), 1.0), obs=y[0])


def mixing(y):
    with numpyro.plate("items", 3):
        z = numpyro.sample("z", dist.Bernoulli(0.5))
        numpyro.sample("y", dist.Normal(z + jnp.roll(z, 1), 1.0), obs=y)


def subsampled(y):
    with numpyro.plate("items", 3, subsample_size=2):
        numpyro.sample("z", dist.Bernoulli(0.5))


def unbounded(y):
    with numpyro.plate("items", 3):
        numpyro.sample("z", dist.Poisson(2.0))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "site", "message"),
    [
        (two_sites, None, r"expected one discrete latent site, got \['a', 'b'\]; pass site="),
        (two_sites, "a", r"expected no latent site but 'a', got \['b'\]; use it as a block"),
        (two_sites, "c", r"expected site to be a latent site .* got 'c'; name one of \['a', 'b'\]"),
        (unbounded, "z", "expected site to be a latent site with enumerable support, got 'z'"),
        (no_plate, None, r"expected every element of 'z' in a plate, got batch shape \(3,\)"),
        (
            outside,
            None,
            r"expected all that depends on 'z' inside its plates \(items\), got \['total'\]",
        ),
        (mixing, None, "expected every element of 'y' to depend on its own element of 'z' alone"),
        (subsampled, None, r"expected whole plates, got subsampled \['items'\]; drop"),
    ],
)
def test_model_that_is_no_plate_model_is_refused(model, site, message, key):
    with pytest.raises(ValueError, match=f"PlateGibbs: {message}"):
        PlateGibbs(model, site).init(key, 0, None, (jnp.zeros(3),), {})


def test_scaled_and_masked_sites_count_as_the_model_counts_them():
    def model(y):
        with numpyro.plate("items", 3):
            z = numpyro.sample("z", dist.Bernoulli(0.5))
            with handlers.mask(mask=jnp.array([True, False, True])), handlers.scale(scale=2.0):
                numpyro.sample("y", dist.Normal(z, 1.0), obs=y)

    y = jnp.array([1.0, 1.0, -1.0])
    odds = np.exp(2 * (np.asarray(y) - 0.5)) * [1, 0, 1] + [0, 1, 0]
    np.testing.assert_allclose(conditionals(PlateGibbs(model), y)[1], odds / (1 + odds), atol=1e-5)
