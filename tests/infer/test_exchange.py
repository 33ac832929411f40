import itertools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from kernel_models import SQUARE, mixture, observed_field
from numpyro import handlers
from numpyro.diagnostics import effective_sample_size
from numpyro.infer import MCMC, NUTS
from numpyro.infer.gibbs import with_conditioning
from numpyro.infer.util import log_density
from scipy import stats

from jaxmrf.distributions import Ising
from jaxmrf.graphs import grid
from jaxmrf.infer import ExchangeMH, exchange
from jaxmrf.testing import prior_invariance

DATA = jnp.array([[0, 0, 0, 0], [0, 0, 1, 0], [1, 1, 1, 0]])
EXACT_CDFS = {"coupling": stats.norm.cdf, "tilt": stats.expon.cdf}
OPTIONS = {"num_replicates": 2000, "num_steps": 8, "cdfs": EXACT_CDFS}


def quadrature(data, size=201):
    """Posterior means and variances of (coupling, tilt) on a grid, log Z by enumeration."""
    coupling = np.linspace(-4, 4, size)[:, None]
    tilt = np.linspace(1e-3, 8, size)[None, :]
    log_prob = stats.norm.logpdf(coupling) + stats.expon.logpdf(tilt)

    def log_potential(states):
        spins = 2 * np.asarray(states) - 1
        pairs = sum(spins[u] * spins[v] for u, v in SQUARE.edges)
        return coupling / 2 * pairs + (coupling - tilt) / 2 * spins.sum()

    configurations = list(itertools.product((0, 1), repeat=SQUARE.num_nodes))
    log_z = np.logaddexp.reduce([log_potential(states) for states in configurations])
    log_prob = log_prob + sum(log_potential(states) for states in data) - len(data) * log_z
    weights = np.exp(log_prob - log_prob.max())
    weights /= weights.sum()
    means = [(weights * values).sum() for values in (coupling, tilt)]
    squares = [(weights * values**2).sum() for values in (coupling, tilt)]
    return np.array(means), np.array(squares) - np.square(means)


@pytest.mark.slow
def test_posterior_equals_quadrature(key):
    mcmc = MCMC(
        ExchangeMH(observed_field),
        num_warmup=500,
        num_samples=3000,
        num_chains=4,
        chain_method="vectorized",
        progress_bar=False,
    )
    mcmc.run(key, DATA)
    draws = mcmc.get_samples(group_by_chain=True)
    means, variances = quadrature(np.asarray(DATA))
    for name, mean, variance in zip(("coupling", "tilt"), means, variances, strict=True):
        values = np.asarray(draws[name], float)
        size = effective_sample_size(values)
        assert size > 1000
        assert abs(values.mean() - mean) < 4.5 * np.sqrt(variance / size)
        assert abs(values.var() / variance - 1) < 4.5 * np.sqrt(4 / size)  # heavier than normal
    assert abs(mcmc.get_extra_fields()["accept_prob"].mean() - 0.3) < 0.05
    assert mcmc.last_state.i.tolist() == [3500] * 4


@pytest.mark.slow
def test_posterior_equals_that_of_nuts_with_exact_normaliser(key):
    graph = grid((3, 3))
    data = Ising(graph, 0.3, -0.1).sample(key, (30,))
    found = {}
    for make in (ExchangeMH, NUTS):
        mcmc = MCMC(
            make(observed_field),
            num_warmup=500,
            num_samples=1500,
            num_chains=4,
            chain_method="vectorized",
            progress_bar=False,
        )
        mcmc.run(key, data, graph=graph, num_items=30)
        found[make] = mcmc.get_samples(group_by_chain=True)
    for site in ("coupling", "tilt"):
        draws = [np.asarray(found[make][site], float) for make in found]
        error = np.sqrt(sum(values.var() / effective_sample_size(values) for values in draws))
        assert abs(draws[0].mean() - draws[1].mean()) < 4.5 * error


@pytest.mark.slow
def test_posterior_is_invariant():
    kernel = ExchangeMH(observed_field, step_size=0.7)
    p_values = prior_invariance(kernel, observed_field, "x", seed=1, **OPTIONS)
    assert p_values.keys() == {"coupling", "tilt"}
    assert min(p_values.values()) > 1e-3 / 2


@pytest.mark.slow
def test_posterior_is_invariant_under_frozen_adaptation(key):
    mcmc = MCMC(ExchangeMH(observed_field), num_warmup=300, num_samples=2, progress_bar=False)
    mcmc.run(key, DATA)
    factor = mcmc.last_state.factor
    assert abs(np.linalg.det(factor) / 0.3**2 - 1) > 0.1  # it did adapt
    kernel = ExchangeMH(observed_field, step_size=factor)
    p_values = prior_invariance(kernel, observed_field, "x", seed=2, **OPTIONS)
    assert min(p_values.values()) > 1e-3 / 2


def no_auxiliary(draws, current, proposed):
    return jnp.zeros(())


def wrong_sign(draws, current, proposed, right=exchange.log_auxiliary_ratio):
    return -right(draws, current, proposed)


def auxiliary_at_the_old_parameters(key, current, proposed, right=exchange.draw_auxiliary):
    return right(key, proposed, current)


def no_jacobian(transform, unconstrained, value):
    return jnp.zeros(())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "bug"),
    [
        ("log_auxiliary_ratio", no_auxiliary),
        ("log_auxiliary_ratio", wrong_sign),
        ("draw_auxiliary", auxiliary_at_the_old_parameters),
        ("_log_jacobian", no_jacobian),
    ],
)
def test_injected_bug_is_caught(name, bug, monkeypatch):
    monkeypatch.setattr(exchange, name, bug)
    kernel = ExchangeMH(observed_field, step_size=0.7)
    p_values = prior_invariance(kernel, observed_field, "x", seed=1, **OPTIONS)
    assert min(p_values.values()) < 1e-6


def test_normaliser_stripped_but_not_compensated_is_caught(monkeypatch):
    kernel = ExchangeMH(observed_field, step_size=0.7)
    prepare = kernel._prepare

    def forget(*args):
        prepare(*args)
        kernel._compensated, kernel._constant = (), kernel._compensated

    monkeypatch.setattr(kernel, "_prepare", forget)
    p_values = prior_invariance(kernel, observed_field, "x", seed=1, **OPTIONS)
    assert min(p_values.values()) < 1e-6


def test_what_is_stripped_is_compensated_or_constant(key):
    def two_fields(x):
        coupling = numpyro.sample("coupling", dist.Normal(0, 1))
        numpyro.sample("x", Ising(SQUARE, coupling), obs=x)
        numpyro.sample("w", Ising(SQUARE, 0.2, max_configurations=1), obs=x)

    kernel = ExchangeMH(two_fields)
    kernel.init(key, 0, None, (DATA[0],), {})
    assert (kernel._compensated, kernel._constant) == (("x",), ("w",))
    model = kernel._density_model()
    assert model.sites == ("x", "w")
    log_joint, fields = exchange._log_density(
        model, (DATA[0],), {}, {"coupling": jnp.array(0.5)}, kernel._compensated
    )
    expected = stats.norm.logpdf(0.5) + 0.5 * 4 + 0.2 * 4  # the four edges agree
    np.testing.assert_allclose(log_joint, expected, rtol=1e-5)
    assert fields.keys() == {"x"}


def test_density_in_unconstrained_space_has_the_jacobian():
    model = ExchangeMH(observed_field)
    model._compensated = ("x",)
    z = {"coupling": jnp.array(0.3), "tilt": jnp.array(-0.4)}
    value, _ = exchange._log_density(model._density_model(), (DATA,), {}, z, ())
    values = {"coupling": z["coupling"], "tilt": jnp.exp(z["tilt"])}
    plain, _ = log_density(model._density_model(), (DATA,), {}, values)
    np.testing.assert_allclose(value, plain + z["tilt"], rtol=1e-5)


def test_adaptation_has_the_square_root_of_the_update():
    factor = jnp.array([[2.0, 0.0], [1.0, 0.5]])
    direction, change = jnp.array([0.6, -1.5]), jnp.array(-0.2)
    unit = direction / jnp.linalg.norm(direction)
    new = exchange._adapt(factor, direction, change, jnp.array(1))
    expected = factor @ (jnp.eye(2) + change * jnp.outer(unit, unit)) @ factor.T
    np.testing.assert_allclose(new @ new.T, expected, rtol=1e-5)


def test_without_warmup_nothing_adapts(key):
    mcmc = MCMC(ExchangeMH(observed_field), num_warmup=0, num_samples=3, progress_bar=False)
    mcmc.run(key, DATA)
    np.testing.assert_array_equal(mcmc.last_state.factor, 0.3 * np.eye(2, dtype=np.float32))


def test_init_params_are_unconstrained_alone_and_constrained_in_a_composite(key):
    values = {"coupling": jnp.array(0.2), "tilt": jnp.array(0.5)}
    kernel = ExchangeMH(observed_field)
    alone = kernel.init(key, 0, values, (DATA,), {})
    np.testing.assert_allclose(alone.z["tilt"], 0.5)
    block = kernel.init(key, 0, values, (DATA,), with_conditioning({}, {}))
    np.testing.assert_allclose(block.z["tilt"], np.log(0.5), rtol=1e-6)
    constrained = kernel.get_constrain_fn((DATA,), {})(block.z)
    np.testing.assert_allclose(constrained["tilt"], 0.5, rtol=1e-6)


def test_progress_bar_tells_the_acceptance_rate(key):
    kernel = ExchangeMH(observed_field)
    state = kernel.init(key, 0, None, (DATA,), {})
    assert kernel.get_diagnostics_str(state) == "exchange acc. prob=0.00"


def moving_support(x):
    top = numpyro.sample("top", dist.Uniform(1.0, 2.0))
    coupling = numpyro.sample("coupling", dist.Uniform(0.0, top))
    numpyro.sample("x", Ising(SQUARE, coupling), obs=x)


def scaled_field(x):
    coupling = numpyro.sample("coupling", dist.Normal(0, 1))
    with handlers.scale(scale=2.0):
        numpyro.sample("x", Ising(SQUARE, coupling), obs=x)


def no_field(x):
    coupling = numpyro.sample("coupling", dist.Normal(0, 1))
    numpyro.sample("x", Ising(SQUARE, 0.3), obs=x)
    numpyro.sample("y", dist.Normal(coupling, 1), obs=0.0)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (no_field, r"expected a random field whose parameters depend on \('coupling',\), got none"),
        (mixture, r"expected continuous sites, got discrete \['z'\]; give them to another block"),
        (moving_support, r"expected fixed supports, got site 'coupling' .* depends on \['top'\]"),
        (scaled_field, r"expected random fields with their own weight, got \['x'\] inside"),
    ],
)
def test_model_it_cannot_serve_is_refused(model, message, key):
    data = DATA[:, :3] * 1.0 if model is mixture else DATA[0]
    with pytest.raises(ValueError, match=f"ExchangeMH: {message}"):
        ExchangeMH(model).init(key, 0, None, (data[:2] if model is mixture else data,), {})


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"num_moves": 0}, "expected num_moves to be a positive integer, got 0; pass 4"),
        ({"target_accept_prob": 1.0}, r"expected target_accept_prob in \(0, 1\), got 1.0; pass"),
        ({"step_size": -1.0}, "expected step_size to be positive or a square matrix, got -1.0"),
        ({"step_size": np.ones((2, 3))}, "expected step_size to be positive or a square matrix"),
        ({"step_size": np.nan}, "expected step_size to be positive or a square matrix, got nan"),
    ],
)
def test_wrong_option_is_refused(option, message):
    with pytest.raises(ValueError, match=message):
        ExchangeMH(observed_field, **option)


def test_step_size_of_another_model_is_refused(key):
    kernel = ExchangeMH(observed_field, step_size=np.eye(3))
    with pytest.raises(ValueError, match=r"expected step_size for 2 unconstrained values, got sh"):
        kernel.init(key, 0, None, (DATA,), {})


def test_double_precision_keeps_the_types_of_the_state(x64, key):
    kernel = ExchangeMH(observed_field)
    state = kernel.init(key, 3, None, (DATA,), {})
    assert state.factor.dtype == state.z["tilt"].dtype == jnp.float64
    after = jax.eval_shape(lambda state: kernel.sample(state, (DATA,), {}), state)
    assert after == jax.eval_shape(lambda state: state, state)
