import itertools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from kernel_models import SQUARE, latent_field, latent_images
from numpyro import handlers
from numpyro.infer import MCMC
from numpyro.infer.util import log_density

from jaxmrf.distributions import Ising, PairwiseMRF, Potts
from jaxmrf.graphs import color
from jaxmrf.infer import LatentFieldGibbs
from jaxmrf.infer import latent_field as module
from jaxmrf.models import log_potential
from jaxmrf.testing import exact_stationarity, prior_invariance

PIXELS = jnp.array([0.5, 1.5, 2.0, -1.0])
MEANS = jnp.array([0.0, 1.0, 3.0])


def ising_by_event(y):
    z = numpyro.sample("z", Ising(SQUARE, jnp.array([0.4, -0.3, 0.2, 0.6]), 0.1))
    numpyro.sample("y", dist.Normal(2.0 * z, 1.0).to_event(1), obs=y)


def potts_with_factor(y):
    z = numpyro.sample("z", Potts(SQUARE, 0.7, num_states=3))
    with numpyro.plate("pixels", 4):
        numpyro.factor("y", dist.Normal(MEANS[z], 1.0).log_prob(y))


def pairwise_seen_twice(y):
    tables = np.random.default_rng(0).normal(size=(4, 3, 3))
    z = numpyro.sample("z", PairwiseMRF(SQUARE, tables, np.linspace(-1, 1, 12).reshape(4, 3)))
    both = dist.Normal(MEANS[z], 1.0).to_event(1)
    numpyro.sample("y", both.expand([2]).to_event(1), obs=jnp.stack([y, -y]))
    with numpyro.plate("pixels", 4):
        numpyro.sample("w", dist.Poisson(1.0 + z), obs=jnp.arange(4))


MODELS = {"ising": (ising_by_event, 2), "potts": (potts_with_factor, 3)}
MODELS["pairwise"] = (pairwise_seen_twice, 3)


def posterior(model, num_states):
    """All configurations and their exact posterior probabilities."""
    states = np.array(list(itertools.product(range(num_states), repeat=4)))
    log_joint = jax.jit(jax.vmap(lambda z: log_density(model, (PIXELS,), {}, {"z": z})[0]))
    weights = np.asarray(log_joint(jnp.array(states)), np.float64)
    weights = np.exp(weights - weights.max())
    return states, weights / weights.sum()


def sweep_matrix(kernel, states, *args):
    """Transition matrix of one sweep of the field that the kernel hands to the core."""
    kernel._prepare(args, {})

    @jax.jit
    def log_potentials(states):
        models, _ = kernel._posterior({"z": states[0]}, args, {})
        model = jax.tree.map(lambda leaf: leaf[0], models)
        return jax.vmap(lambda z: log_potential(model, SQUARE, z))(states)

    weights = np.exp(np.asarray(log_potentials(jnp.array(states)), np.float64))
    transition = np.eye(len(states))
    for number in (0, 1):
        kept = states[:, color(SQUARE) != number]
        reached = (kept[:, None] == kept[None]).all(-1) * weights
        transition = transition @ (reached / reached.sum(1, keepdims=True))
    return transition


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_sweep_leaves_the_posterior_stationary(name):
    model, num_states = MODELS[name]
    states, probabilities = posterior(model, num_states)
    transition = sweep_matrix(LatentFieldGibbs(model), states, PIXELS)
    assert exact_stationarity(transition, probabilities) < 1e-6


def test_draws_have_the_posterior_frequencies(key):
    kernel = LatentFieldGibbs(ising_by_event, num_sweeps=3)
    mcmc = MCMC(kernel, num_warmup=20, num_samples=4000, progress_bar=False)
    mcmc.run(key, PIXELS)
    states, probabilities = posterior(ising_by_event, 2)
    codes = np.asarray(mcmc.get_samples()["z"]) @ (2 ** np.arange(4))[::-1]
    found = np.bincount(codes, minlength=16) / len(codes)
    error = np.sqrt(probabilities * (1 - probabilities) / len(codes))
    assert states.shape == (16, 4)
    assert (np.abs(found - probabilities) < 4.5 * 1.5 * error + 1e-3).all()


def together(values):
    """Agreement of the field with its image; a kernel that ignores the image gets it wrong."""
    centred = values["y"] - values["y"].mean()
    return jnp.sum(centred * (values["z"] if values["y"].ndim == 1 else values["z"][..., None]))


@pytest.mark.parametrize(
    "model", [latent_images, pytest.param(latent_field, marks=pytest.mark.slow)]
)
def test_posterior_is_invariant(model):
    p_values = prior_invariance(
        LatentFieldGibbs(model),
        model,
        "y",
        num_replicates=2000,
        num_steps=3,
        seed=1,
        statistics={"together": together, "sum": lambda values: jnp.sum(values["z"])},
    )
    assert min(p_values.values()) > 1e-3 / 3


def test_dropped_evidence_is_caught(monkeypatch):
    """The field alone keeps its prior law; together with the image it does not."""
    monkeypatch.setattr(module, "_add_evidence", lambda model, evidence: model)
    statistics = {"together": together}
    options = {"num_replicates": 2000, "num_steps": 3, "statistics": statistics}
    p_values = prior_invariance(LatentFieldGibbs(latent_field), latent_field, "y", **options)
    assert p_values["z"] > 1e-3
    assert p_values["together"] < 1e-6


def test_impossible_states_get_no_mass(key):
    def censored(y):
        z = numpyro.sample("z", Potts(SQUARE, 3.0, num_states=3))
        with numpyro.plate("pixels", 4):
            numpyro.factor("y", jnp.where(z == y, 0.0, -jnp.inf))

    y = jnp.array([2, 0, 1, 2])
    kernel = LatentFieldGibbs(censored)
    state = kernel.init(key, 0, None, (y,), {})
    np.testing.assert_array_equal(kernel.sample(state, (y,), {}).z["z"], y)


def test_init_params_are_the_first_state(key):
    z = jnp.array([1, 0, 1, 1])
    state = LatentFieldGibbs(latent_field).init(key, 0, {"z": z}, (PIXELS,), {})
    np.testing.assert_array_equal(state.z["z"], z)


def two_fields(y):
    numpyro.sample("z", Ising(SQUARE, 0.4))
    numpyro.sample("w", Ising(SQUARE, 0.4))


def field_and_mean(y):
    z = numpyro.sample("z", Ising(SQUARE, 0.4))
    mean = numpyro.sample("mean", dist.Normal(0, 1))
    numpyro.sample("y", dist.Normal(mean * z, 1.0).to_event(1), obs=y)


def total(y):
    z = numpyro.sample("z", Ising(SQUARE, 0.4))
    numpyro.sample("total", dist.Normal(z.sum(), 1.0), obs=0.3)


def blurred(y):
    z = numpyro.sample("z", Ising(SQUARE, 0.4))
    numpyro.sample("y", dist.Normal(z + 0.5 * jnp.roll(z, 1), 1.0).to_event(1), obs=y)


def field_on_field(y):
    z = numpyro.sample("z", Ising(SQUARE, 0.4))
    numpyro.sample("x", Ising(SQUARE, 0.4, 0.5 * z), obs=jnp.ones(4, int))


def batch_without_plate(y):
    numpyro.sample("z", Ising(SQUARE, jnp.zeros((2, 4))))


def scaled(y):
    with handlers.scale(scale=2.0):
        numpyro.sample("z", Ising(SQUARE, 0.4))


def subsampled(y):
    with numpyro.plate("images", 3, subsample_size=2):
        numpyro.sample("z", Ising(SQUARE, 0.4))


@pytest.mark.parametrize(
    ("model", "site", "message"),
    [
        (two_fields, None, r"expected one latent random field, got \['z', 'w'\]; pass site="),
        (
            field_and_mean,
            "mean",
            r"expected site to be a latent random field, got 'mean'; name one",
        ),
        (field_and_mean, None, r"expected no latent site but 'z', got \['mean'\]; use it as a bl"),
        (total, None, r"to have one axis of its 4 nodes, and its plates, got \['total'\] without"),
        (blurred, None, r"expected the log-probability of 'y' at node i to depend on z\[i\] alone"),
        (field_on_field, None, r"expected no random field on top of 'z', got \['x'\] whose para"),
        (batch_without_plate, None, r"expected every batch axis of 'z' to be a plate, got batch"),
        (scaled, None, "expected 'z' outside handlers.scale and handlers.mask, got it inside"),
        (subsampled, None, r"expected whole plates, got subsampled \['images'\]; drop"),
    ],
)
def test_model_it_cannot_serve_is_refused(model, site, message, key):
    with pytest.raises(ValueError, match=f"LatentFieldGibbs: .*{message}"):
        LatentFieldGibbs(model, site).init(key, 0, None, (PIXELS,), {})


def test_wrong_number_of_sweeps_is_refused():
    with pytest.raises(ValueError, match="expected num_sweeps to be a positive integer, got 0"):
        LatentFieldGibbs(latent_field, num_sweeps=0)


@pytest.mark.slow
def test_double_precision_runs_and_keeps_the_state(x64, key):
    kernel = LatentFieldGibbs(latent_field)
    state = kernel.init(key, 0, None, (np.asarray(PIXELS, np.float64),), {})
    after = kernel.sample(state, (np.asarray(PIXELS, np.float64),), {})
    assert after.z["z"].dtype == state.z["z"].dtype == jnp.int32
