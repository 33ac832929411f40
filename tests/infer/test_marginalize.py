"""Discrete sites summed out of NumPyro models, and drawn again."""

import itertools
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from marginal_models import (
    CASES,
    DATA,
    MEANS,
    ROWS,
    latent_values,
    mixture,
    mixture_in_two_plates,
)
from numpyro import handlers
from numpyro.infer import MCMC, NUTS, SVI, Predictive, Trace_ELBO
from numpyro.infer.autoguide import AutoNormal
from numpyro.infer.util import log_density

from jaxmrf.distributions import Ising
from jaxmrf.graphs import grid
from jaxmrf.infer import marginalize, marginals, sample_marginalized
from jaxmrf.testing.statistics import chi_square_p_value

FAST = {
    "grid_in_plates",
    "hidden_factor_graphs",
    "impossible_steps",
    "latent_values",
    "scanned_hidden_markov",
}


def cases(names):
    return [
        pytest.param(name, marks=() if name in FAST else pytest.mark.slow) for name in sorted(names)
    ]


def values_of(case):
    return jax.tree.map(jnp.asarray, CASES[case].values)


def configurations(model, *args):
    """All values of all discrete sites, on a leading axis."""
    compiled = marginalize(model).compile(*args)
    supports = [site.support[:number] for site in compiled.sites for number in site.num_states]
    table = np.array(list(itertools.product(*supports)))
    return {
        site.name: table[:, site.start : site.start + site.size]
        .reshape(-1, *site.shape)
        .astype(site.dtype)
        for site in compiled.sites
    }


def log_joint(model, values, *args):
    """The log density at every configuration of the discrete sites, found by running the model."""
    return jax.vmap(lambda z: log_density(model, args, {}, {**values, **z})[0])(
        configurations(model, *args)
    )


def summed_out(model):
    """Log density of the marginalised model, and its gradient, compiled."""
    return jax.jit(jax.value_and_grad(lambda v: log_density(marginalize(model), (), {}, v)[0]))


def assert_same(found, expected):
    np.testing.assert_allclose(found[0], expected[0], rtol=2e-5)
    for name, gradient in found[1].items():
        assert np.isfinite(gradient).all()
        np.testing.assert_allclose(gradient, expected[1][name], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("case", cases(CASES))
def test_log_density_and_gradient_equal_the_sum_over_all_configurations(case):
    model = CASES[case].model
    expected = jax.jit(
        jax.value_and_grad(lambda v: jax.scipy.special.logsumexp(log_joint(model, v)))
    )
    assert_same(summed_out(model)(values_of(case)), expected(values_of(case)))


def test_gradient_is_right_where_a_weight_is_zero():
    _, gradient = summed_out(CASES["grid_in_plates"].model)({"coupling": jnp.array(0.0)})
    mean_spin = 2 * 0.4 - 1
    np.testing.assert_allclose(gradient["coupling"], 12 * mean_spin**2, rtol=1e-5)


def test_impossible_terms_under_a_mask_do_not_count():
    def model():
        offset = numpyro.sample("offset", dist.Normal(0.0, 1.0))
        bits = numpyro.sample("bits", dist.Bernoulli(0.4).expand([3]).to_event(1))
        terms = jnp.where(bits == 1, -jnp.inf, offset)
        numpyro.factor("some", jnp.where(np.array([True, False, True]), terms, 0.0).sum())

    found, gradient = summed_out(model)({"offset": jnp.array(0.5)})
    expected = 2 * np.log(0.6) + 2 * 0.5 + dist.Normal(0.0, 1.0).log_prob(0.5)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    np.testing.assert_allclose(gradient["offset"], 2 - 0.5, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("case", [name for name in CASES if CASES[name].is_enumerable])
def test_log_density_and_gradient_equal_enumeration(case):
    pytest.importorskip("funsor")
    from numpyro.contrib.funsor import config_enumerate, enum
    from numpyro.contrib.funsor.infer_util import log_density as enumerated_log_density

    model = enum(config_enumerate(CASES[case].model), first_available_dim=-3)
    expected = jax.jit(
        jax.value_and_grad(lambda values: enumerated_log_density(model, (), {}, values)[0])
    )
    assert_same(summed_out(CASES[case].model)(values_of(case)), expected(values_of(case)))


def long_chain(num_steps=60):
    pull = numpyro.sample("pull", dist.Normal(0.0, 1.0))
    state = 0
    for time in range(num_steps):
        stay = jnp.where(state == 1, 0.8, 0.3)
        state = numpyro.sample(f"state_{time}", dist.Bernoulli(stay))
        numpyro.sample(f"x_{time}", dist.Normal(pull * state, 1.0), obs=float(DATA[time % 5]))


def test_chain_of_sixty_sites_equals_the_forward_algorithm():
    forward = np.array([0.7, 0.3])
    log_z = dist.Normal(0.0, 1.0).log_prob(0.7)
    for time in range(60):
        if time:
            forward = forward @ np.array([[0.7, 0.3], [0.2, 0.8]])
        log_likelihood = dist.Normal(np.array([0.0, 0.7]), 1.0).log_prob(DATA[time % 5])
        forward = forward * np.exp(np.asarray(log_likelihood, np.float64))
        log_z += np.log(forward.sum())
        forward /= forward.sum()
    found = jax.jit(lambda v: log_density(marginalize(long_chain), (), {}, v)[0])({"pull": 0.7})
    np.testing.assert_allclose(found, log_z, rtol=1e-5)


@pytest.mark.slow
def test_chain_of_sixty_sites_is_too_long_for_enumeration():
    pytest.importorskip("funsor")
    from numpyro.contrib.funsor import config_enumerate, enum
    from numpyro.contrib.funsor.infer_util import log_density as enumerated_log_density

    model = enum(config_enumerate(long_chain), first_available_dim=-2)
    with pytest.raises(ValueError, match="Ran out of free dims during allocation"):
        enumerated_log_density(model, (), {}, {"pull": 0.7})


def test_structure_is_that_of_the_model():
    compiled = marginalize(mixture_in_two_plates).compile()
    kind, label = compiled.sites
    assert (kind.name, kind.shape, label.name, label.shape) == ("kind", (2,), "label", (3, 2))
    expected = {(group,) for group in range(2)}
    expected |= {(2 + 2 * item + group,) for item in range(3) for group in range(2)}
    expected |= {(group, 2 + 2 * item + group) for item in range(3) for group in range(2)}
    assert set(compiled.layout.hypergraph.scopes) == expected
    assert compiled.plan.treewidth == 1 and len(compiled.layout.states) == 9
    assert compiled.moved == {"kind", "label", "x"} and compiled.rest == ("means",)


def test_latent_field_is_taken_apart_into_its_edges():
    def model():
        bits = numpyro.sample("bits", Ising(grid((3, 3)), 0.3, 0.1))
        numpyro.sample("x", dist.Normal(bits, 1.0).to_event(1), obs=np.zeros(9, np.float32))

    edges = {tuple(edge) for edge in grid((3, 3)).edges.tolist()}
    found = set(marginalize(model).compile().layout.hypergraph.scopes)
    assert found == edges | {(node,) for node in range(9)}


def test_trace_has_no_discrete_sites_and_their_dependants_have_no_density():
    found = {}

    def run():
        found.update(handlers.trace(handlers.seed(marginalize(latent_values), 0)).get_trace())
        return found["hidden"]["fn"].log_prob(found["hidden"]["value"])

    assert jax.jit(run)().tolist() == [0.0, 0.0]
    assert set(found) == {"means", "hidden", "double", "x", "items", "label_summed_out"}
    assert not found["hidden"]["is_observed"] and found["x"]["is_observed"]


def test_named_sites_are_summed_out_and_others_stay():
    def model():
        first = numpyro.sample("first", dist.Categorical(ROWS[0]))
        second = numpyro.sample("second", dist.Categorical(ROWS[first]))
        numpyro.sample("x", dist.Normal(second, 1.0), obs=0.5)

    summed = marginalize(model, ["first"])
    found = jax.jit(lambda v: log_density(summed, (), {}, v)[0])({"second": jnp.array(2)})
    by_hand = np.log(ROWS[0] @ ROWS)[2] + dist.Normal(2.0, 1.0).log_prob(0.5)
    np.testing.assert_allclose(found, by_hand, rtol=1e-6)


def test_predictions_are_those_of_the_model(key):
    def model():
        state = numpyro.sample("state", dist.Bernoulli(0.3))
        numpyro.sample("x", dist.Normal(10.0 * state, 1.0))

    drawn = jax.jit(Predictive(marginalize(model), num_samples=500))(key)
    assert set(drawn) == {"x", "state_summed_out"}
    drawn = drawn["x"]
    assert abs((drawn > 5).mean() - 0.3) < 5 * np.sqrt(0.21 / 500)


def test_model_pickles():
    new = pickle.loads(pickle.dumps(marginalize(mixture, ["label"], max_memory=100.0)))
    assert (new.model, new.sites, new.max_memory) == (mixture, ("label",), 100.0)


def observed_pair(x, scale=1.0):
    """One continuous site, a class per item and a class that they share."""
    center = numpyro.sample("center", dist.Normal(0.0, 2.0))
    flip = numpyro.sample("flip", dist.Bernoulli(0.3))
    with numpyro.plate("items", len(x)):
        label = numpyro.sample("label", dist.Categorical(ROWS[flip]))
        numpyro.sample("x", dist.Normal(center * (label - 1.0), scale), obs=x)


@pytest.mark.slow
def test_marginals_and_draws_are_those_of_the_posterior(key):
    x, centers = DATA[:2], jnp.array([0.7, -1.5])
    found = marginals(observed_pair, {"center": centers}, (x,))
    assert found["flip"].shape == (2, 2) and found["label"].shape == (2, 2, 3)
    table = configurations(observed_pair, x)
    logs = jax.jit(jax.vmap(lambda center: log_joint(observed_pair, {"center": center}, x)))
    probs = np.asarray(jax.nn.softmax(logs(centers), axis=1))
    for place in range(2):
        np.testing.assert_allclose(found["flip"][place, 1], probs[place] @ table["flip"], atol=1e-5)
        for state in range(3):
            by_hand = probs[place] @ (table["label"] == state)
            np.testing.assert_allclose(found["label"][place, :, state], by_hand, atol=1e-5)
    samples = {"center": jnp.full(4000, 0.7)}
    drawn = sample_marginalized(key, marginalize(observed_pair), samples, (x,))
    assert drawn["label"].shape == (4000, 2) and drawn["label"].dtype == jnp.int32
    codes = np.asarray(drawn["flip"]) * 9 + np.asarray(drawn["label"]) @ np.array([3, 1])
    assert chi_square_p_value(np.bincount(codes, minlength=18), probs[0]) > 1e-4


def test_draws_without_other_sites_are_one(key):
    def model():
        numpyro.sample("count", dist.Binomial(2, 0.5))

    drawn = sample_marginalized(key, model, {})["count"]
    assert drawn.shape == () and drawn in (0, 1, 2)
    np.testing.assert_allclose(marginals(model, {})["count"], [0.25, 0.5, 0.25], rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("chain_method", ["sequential", "vectorized"])
def test_nuts_finds_the_enumerated_posterior_mean(key, chain_method):
    x = jnp.array([1.9, -2.2, 2.4, 0.1, 1.5])
    points = jnp.linspace(-8, 8, 1601)
    logs = jax.jit(
        jax.vmap(lambda c: log_density(marginalize(observed_pair), (x,), {}, {"center": c})[0])
    )
    weights = np.exp(np.asarray(logs(points)) - np.max(logs(points)))
    mean = weights @ np.abs(points) / weights.sum()
    std = np.sqrt(weights @ (np.abs(points) - mean) ** 2 / weights.sum())
    mcmc = MCMC(
        NUTS(marginalize(observed_pair)),
        num_warmup=300,
        num_samples=1000,
        num_chains=2,
        chain_method=chain_method,
        progress_bar=False,
        jit_model_args=chain_method == "vectorized",
    )
    mcmc.run(key, x)
    draws = np.abs(np.asarray(mcmc.get_samples()["center"]))
    assert abs(draws.mean() - mean) < 5 * std / np.sqrt(200)  # at least 200 effective draws
    labels = sample_marginalized(key, observed_pair, mcmc.get_samples(), (x,))
    assert labels["label"].shape == (2000, 5)


@pytest.mark.slow
def test_variational_inference_runs_on_what_is_left(key):
    x = jnp.array([1.9, -2.2, 2.4, 0.1, 1.5])
    model = marginalize(observed_pair)
    svi = SVI(model, AutoNormal(model), optax.adam(0.05), Trace_ELBO(num_particles=8))
    losses = svi.run(key, 300, x, progress_bar=False).losses
    points = jnp.linspace(-8, 8, 801)
    logs = jax.vmap(lambda c: log_density(model, (x,), {}, {"center": c})[0])(points)
    log_evidence = jax.scipy.special.logsumexp(logs) + jnp.log(points[1] - points[0])
    assert np.mean(losses[-50:]) > -log_evidence - 0.1  # a bound, up to its noise
    assert np.mean(losses[-50:]) < np.mean(losses[:50])


def branching():
    if numpyro.sample("z", dist.Bernoulli(0.5)) == 1:
        numpyro.sample("x", dist.Normal(0.0, 1.0), obs=1.0)


def indexing_numpy():
    numpyro.sample("x", dist.Normal(MEANS[numpyro.sample("z", dist.Bernoulli(0.5))], 1.0), obs=1.0)


def counting():
    numpyro.sample("x", dist.Normal(numpyro.sample("count", dist.Poisson(2.0)), 1.0), obs=1.0)


def one_hot():
    numpyro.sample("counts", dist.Multinomial(3, ROWS[0]))


def random_size():
    size = numpyro.sample("rate", dist.Gamma(1.0)).astype(int)
    numpyro.sample("count", dist.Binomial(size, 0.5))


def moving_support():
    z = numpyro.sample("z", dist.Bernoulli(0.5))
    numpyro.sample("x", dist.Uniform(0.0, 1.0 + z))


def subsampled():
    with numpyro.plate("items", 5, subsample_size=2) as index:
        label = numpyro.sample("label", dist.Bernoulli(0.5))
        numpyro.sample("x", dist.Normal(label, 1.0), obs=DATA[np.array([0, 1])] + 0 * index)


def parity():
    with numpyro.plate("bits", 40):
        bits = numpyro.sample("bit", dist.Bernoulli(0.5))
    numpyro.sample("x", dist.Normal(bits.sum() ** 2.0, 1.0), obs=1.0)


def all_pairs():
    with numpyro.plate("bits", 40):
        bits = numpyro.sample("bit", dist.Bernoulli(0.5))
    numpyro.factor("pairs", 0.1 * (bits[:, None] * bits).ravel())


def keeping_a_state():
    z = numpyro.sample("z", dist.Bernoulli(0.5))
    memory = jax.new_ref(jnp.zeros(2))
    memory[0] = 1.0 * z
    numpyro.sample("x", dist.Normal(memory[0], 1.0), obs=1.0)


REFUSED = [
    (branching, r"expected control flow and shapes that do not depend on the value of a latent"),
    (indexing_numpy, r"use jnp.where, lax.cond, or an index into a JAX \(not a NumPy\) array"),
    (counting, r"expected site 'count' to list its values by enumerate_support, got Poisson"),
    (one_hot, r"expected site 'counts' to list .*got Multinomial.* event shape \(3,\); leave it"),
    (random_size, r"expected site 'count' to list its values by enumerate_support, got Binomial"),
    (moving_support, r"got that of 'x', which depends on 1 of 'z'; write the site as a transform"),
    (subsampled, r"expected site 'label' outside of subsampled plates, got it in 'items', which"),
    (parity, r"got one of site 'x' that depends on 40 \(40 of 'bit'; 2\^40.0 config.*write its te"),
    (all_pairs, r"the sum over bit is too large: elimination_plan: expected a table of at most"),
    (keeping_a_state, r"expected a model without side effects, got an operation that keeps a sta"),
    (lambda: numpyro.sample("x", dist.Normal()), r"expected a model with a discrete latent site"),
]


@pytest.mark.parametrize(("model", "message"), REFUSED)
def test_models_out_of_reach_are_refused_with_site_rule_and_mend(model, message):
    with pytest.raises(ValueError, match="marginalize: .*" + message):
        marginalize(model).compile()


def in_a_plate():
    with numpyro.plate("outside", 2):
        marginalize(mixture)()


WRONG_USES = [
    (
        lambda: marginalize(mixture, ["weights"]).compile(),
        r"expected names of discrete latent sites, got 'weights'; the model has label",
    ),
    (
        lambda: marginalize(mixture, max_memory=100.0).compile(),
        r"expected tables from at most 100 bytes, got 240 \(3 runs of 10 terms\); raise max_memory",
    ),
    (
        lambda: log_density(
            marginalize(mixture), (), {}, values_of("mixture") | {"label": jnp.zeros(5, int)}
        ),
        r"expected no value for a site that is summed out, got one for 'label'; condition the mod",
    ),
    (
        lambda: marginals(mixture, {"means": jnp.zeros((2, 4)), "weights": jnp.zeros((2, 3))}),
        r"expected a value of shape \(3,\) of site 'means', got \(4,\); map over batches",
    ),
    (
        lambda: handlers.seed(in_a_plate, 0)(),
        r"expected the model outside of plates, got it in 'outside'; write the plate inside",
    ),
    (
        lambda: sample_marginalized(jax.random.key(0), mixture, {"means": jnp.zeros((2, 3))}),
        r"sample_marginalized: expected samples of every other latent site, got none of 'weights'",
    ),
    (
        lambda: marginals(mixture, {"weights": ROWS}),
        r"marginals: expected samples of every other latent site, got none of 'means'; pass mcmc",
    ),
]


@pytest.mark.parametrize(("use", "message"), WRONG_USES)
def test_wrong_use_names_rule_value_and_mend(use, message):
    with pytest.raises(ValueError, match=message):
        use()
