import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from feature_models import COUNTS, NUMBERS, one_layer, two_layers
from numpyro import handlers
from numpyro.infer.util import log_density
from scipy import stats

from jaxmrf.distributions import IndianBuffetProcess, NoisyOr, NoisyOrBinomial, NoisyOrWeights
from jaxmrf.nonparametric import factor_hierarchy, indian_buffet, noisy_or_features
from jaxmrf.nonparametric.factor_hierarchy import LayerPrior
from jaxmrf.nonparametric.feature_children import with_leak

WEIGHTS = np.array([[0.5, 0.1, 0.0], [0.5, 0.2, 0.9]], np.float32)


def test_one_stick_has_the_density_of_a_beta(key):
    prior = IndianBuffetProcess(1.7, capacity=1)
    values = np.array([[0.05], [0.4], [0.999]])
    expected = stats.beta(1.7, 1).logpdf(values[:, 0])
    np.testing.assert_allclose(prior.log_prob(values), expected, rtol=1e-5)
    draws = prior.sample(key, (4000,))[:, 0]
    assert stats.kstest(np.asarray(draws), stats.beta(1.7, 1).cdf).pvalue > 1e-4


def test_density_of_two_sticks_is_normalized_and_forgets_their_order():
    prior = IndianBuffetProcess(1.3, capacity=2)
    nodes, weights = np.polynomial.legendre.leggauss(200)
    logs = 12 * (nodes - 1)  # log frequencies from -24 to 0
    first, second = np.meshgrid(np.exp(logs), np.exp(logs), indexing="ij")
    density = np.exp(prior.log_prob(np.stack([first, second], axis=-1)).astype(float))
    measure = 144 * np.outer(weights, weights) * first * second
    assert abs((density * measure).sum() - 1) < 2e-3
    np.testing.assert_allclose(density, density.T, rtol=1e-5)


def test_sticks_come_in_random_order(key):
    draws = np.asarray(IndianBuffetProcess(2.0, capacity=5).sample(key, (2000,)))
    largest = np.bincount(draws.argmax(axis=1), minlength=5)
    assert stats.chisquare(largest).pvalue > 1e-4


@pytest.mark.slow
def test_underflowing_sticks_are_given_the_smallest_value(key):
    prior = IndianBuffetProcess(0.05, capacity=8)
    draws = prior.sample(key, (50,))
    assert draws.min() == jnp.exp(jnp.float32(-64.0)) and jnp.isfinite(prior.log_prob(draws)).all()


@pytest.mark.slow
def test_weights_have_the_density_of_betas(key):
    sticks = np.array([0.3, 1e-6], np.float32)
    prior = NoisyOrWeights(sticks, 3, 0.7, 1.0)
    value = np.array([[0.1, 1e-9], [0.5, 0.2], [0.99, 1e-30]], np.float32)
    expected = stats.beta(0.7 * sticks, 0.7 * (1 - sticks) + 1).logpdf(value).sum()
    np.testing.assert_allclose(prior.log_prob(value), expected, rtol=1e-4)
    draws = np.asarray(prior.sample(key, (4000,)))
    assert draws.min() > 0
    law = stats.beta(0.7 * 0.3, 0.7 * 0.7 + 1)
    assert stats.kstest(draws[:, 1, 0], law.cdf).pvalue > 1e-4


@pytest.mark.slow
@pytest.mark.parametrize(
    "build",
    [
        lambda: IndianBuffetProcess(np.float32(2.0), 4),
        lambda: IndianBuffetProcess(np.array([2.0, 0.5], np.float32), 4),
        lambda: NoisyOrWeights(np.array([0.3, 0.1], np.float32), 3, 0.7),
    ],
    ids=["sticks", "batched sticks", "weights"],
)
def test_continuous_distributions_keep_numpyros_laws(build, key):
    fn = build()
    for shape in ((), (2,), (2, 3)):
        draws = fn.sample(key, shape)
        assert draws.shape == (*shape, *fn.batch_shape, *fn.event_shape)
        log_prob = fn.log_prob(draws)
        assert log_prob.shape == (*shape, *fn.batch_shape) and jnp.isfinite(log_prob).all()
    np.testing.assert_allclose(
        jax.jit(lambda f, v: f.log_prob(v))(fn, draws), log_prob, rtol=1e-5, atol=1e-6
    )
    copy = pickle.loads(pickle.dumps(fn))
    np.testing.assert_array_equal(copy.sample(key, (2, 3)), draws)
    assert fn.support(draws).all() and not fn.support(draws + 2).any()
    gradient = jax.grad(lambda v: fn.log_prob(v).sum())(fn.sample(key))
    assert jnp.isfinite(gradient).all()
    assert fn.expand((5, *fn.batch_shape)).sample(key).shape[0] == 5


def test_noisy_or_multiplies_the_failures_of_its_parents():
    child = NoisyOr(np.array([[1, 0], [1, 1], [0, 0]]), WEIGHTS)
    off = np.array([[0.5, 0.9, 1.0], [0.25, 0.72, 0.1], [1.0, 1.0, 1.0]])
    np.testing.assert_allclose(np.exp(child.log_off), off, rtol=1e-5)
    value = np.array([1, 0, 0])
    expected = (1 - off[:, 0]) * off[:, 1] * off[:, 2]
    np.testing.assert_allclose(np.exp(child.log_prob(value)), expected, rtol=1e-5)


def test_first_row_is_the_leaks():
    with_leak = NoisyOr(np.array([1]), WEIGHTS)
    np.testing.assert_allclose(with_leak.log_off, NoisyOr(np.array([1, 1]), WEIGHTS).log_off)


def test_gradient_is_finite_where_a_child_has_no_parents():
    def log_prob(weights):
        return NoisyOr(np.array([0, 0]), weights).log_prob(np.array([0, 0, 0]))

    assert (jax.grad(log_prob)(jnp.asarray(WEIGHTS)) == 0).all()


def test_binomial_of_one_trial_is_the_noisy_or():
    features, value = np.array([[1, 0], [1, 1]]), np.array([1, 0, 0])
    one = NoisyOrBinomial(features, WEIGHTS, 1)
    expected = NoisyOr(features, WEIGHTS).log_prob(value)
    np.testing.assert_allclose(one.log_prob(value), expected, rtol=1e-5)


def test_binomial_equals_scipy_and_leaves_out_what_is_not_observed():
    value, features = np.array([3, 0, 2]), np.array([1, 1])
    chance = 1 - (1 - WEIGHTS).prod(axis=0)
    terms = stats.binom(4, chance).logpmf(value)
    full = NoisyOrBinomial(features, WEIGHTS, 4)
    np.testing.assert_allclose(full.log_prob(value), terms.sum(), rtol=1e-5)
    part = NoisyOrBinomial(features, WEIGHTS, 4, is_observed=np.array([True, False, True]))
    np.testing.assert_allclose(part.log_prob(value), terms[[0, 2]].sum(), rtol=1e-5)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: IndianBuffetProcess(0.0, 4), "concentration > 0, got 0.0"),
        (lambda: IndianBuffetProcess(-1.0, 4), "concentration > 0, got -1.0"),
        (lambda: IndianBuffetProcess(1.0, 0), "capacity to be a positive integer, got 0"),
        (lambda: NoisyOrWeights(np.ones((2, 2)), 3), "expected a vector of sticks"),
        (lambda: NoisyOrWeights(np.full(2, 0.1), 3, 0.0), "strength > 0, got 0.0"),
        (lambda: NoisyOr(np.ones(4), WEIGHTS), "expected parents .* got shapes"),
        (lambda: NoisyOr(np.ones((3, 2)), np.ones((2, 2, 5))), "batch shapes that broadcast"),
        (lambda: NoisyOrBinomial(np.ones(2), WEIGHTS, 0), "positive integer, got 0"),
        (lambda: NoisyOrBinomial(np.ones(2), WEIGHTS, 1.5), "positive integer, got 1.5"),
        (
            lambda: NoisyOrBinomial(np.ones(2), WEIGHTS, 2, is_observed=np.ones(4)),
            "is_observed to broadcast",
        ),
    ],
)
def test_bad_parameters_raise(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def model_density(layers):
    """Log-density of the written model at slots that hold the layers."""
    upper, lower = layers
    values = {
        "y": upper.features.T.astype(int),
        "y_sticks": jnp.exp(upper.log_sticks),
        "z": lower.features.T.astype(int),
        "z_sticks": jnp.exp(lower.log_sticks),
        "z_weights": jnp.exp(lower.log_weights),
    }
    return log_density(two_layers, (COUNTS * 0,), {}, values)[0]


@pytest.mark.slow
def test_written_model_is_the_infinite_one():
    """An upper one more changes the model's density as it changes that of infinitely many features.

    The model also has the inactive slots, whose terms are put aside here: that their features are
    off, and that no inactive feature lies between them.
    """
    priors, alpha = (LayerPrior(0.8), LayerPrior(0.8)), 1.2
    key = jax.random.key(5)
    upper, lower = factor_hierarchy.draw_prior(
        key, 3, (16, 20), priors, (1.0, alpha), has_leak=True
    )
    column = jnp.argmax(upper.features.sum(axis=1))
    is_active = jnp.arange(20) == jnp.argsort(lower.log_sticks)[10]
    lower = lower._replace(features=is_active[:, None] & jnp.array([True, False, False]))
    log_lowest = jnp.where(is_active, 0.0, lower.log_sticks).min()

    def densities(last):
        new = upper._replace(features=upper.features.at[column].set(jnp.array([1, 0, last], bool)))
        parents = with_leak(new.features, lower.log_weights)
        off = (parents.T.astype(float) @ lower.log_failures)[:, ~is_active].sum()
        used = noisy_or_features.num_parents_used(parents.sum(axis=1), 3)
        mean = noisy_or_features.mean_uses(used, 0.8, 1.0)

        def present(log_upper):
            return indian_buffet.expected_present(
                lambda t: noisy_or_features.log_absence(t, used, 0.8, 1.0), mean, log_upper
            )

        gaps = alpha * (present(0.0) - present(log_lowest))
        joint = factor_hierarchy.log_joint((new, lower), priors)
        return float(model_density((new, lower))), float(joint + off + gaps)

    (model_on, joint_on), (model_off, joint_off) = densities(True), densities(False)
    assert abs((model_on - model_off) - (joint_on - joint_off)) < 2e-3
    assert abs(joint_on - joint_off) > 0.05


@pytest.mark.slow
def test_prior_draws_of_the_layers_have_poisson_many_features(key):
    model = handlers.substitute(one_layer, {"alpha": jnp.asarray(1.0)})

    def draw(key):
        trace = handlers.trace(handlers.seed(model, key)).get_trace(NUMBERS)
        return trace["z"]["value"].any(axis=0).sum()

    counts = np.asarray(jax.vmap(draw)(jax.random.split(key, 3000)))
    mean = 1 + 1 / 2 + 1 / 3
    assert abs(counts.mean() - mean) < 4.5 * np.sqrt(mean / 3000)
    expected = stats.poisson(mean).pmf(np.arange(12))
    observed = np.bincount(counts, minlength=12)[:12]
    keep = expected * 3000 > 5
    tail = observed[~keep].sum(), expected[~keep].sum() * 3000
    chi = ((observed[keep] - 3000 * expected[keep]) ** 2 / (3000 * expected[keep])).sum()
    chi += (tail[0] - tail[1]) ** 2 / tail[1]
    assert stats.chi2.sf(chi, keep.sum()) > 1e-4
