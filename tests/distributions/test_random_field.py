"""What the fields add to the conformance suite: the core underneath, refusals and errors."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import MCMC, NUTS, Predictive
from numpyro.infer.util import log_density

from jaxmrf import models
from jaxmrf.distributions import IntractableNormalizerError, Ising, PairwiseMRF, Potts
from jaxmrf.exact import enumeration
from jaxmrf.graphs import Graph, grid, sweep_plan
from jaxmrf.sampling import gibbs
from jaxmrf.testing.statistics import chi_square_p_value

PAW = Graph(4, [(0, 1), (1, 2), (0, 2), (2, 3)])
EDGE = Graph(2, [(0, 1)])
COUPLINGS = np.array([0.5, -0.3, 0.8, 0.2], dtype=np.float32)
FIELDS = np.array([0.1, -0.4, 0.0, 0.6], dtype=np.float32)
SPINS = np.array(list(itertools.product((-1, 1), repeat=4)))
LARGE = grid((6, 6))


def log_potentials_by_hand():
    """Log potential of every row of SPINS, by loops."""
    totals = []
    for spins in SPINS:
        pairs = sum(j * spins[u] * spins[v] for j, (u, v) in zip(COUPLINGS, PAW.edges, strict=True))
        totals.append(pairs + sum(h * s for h, s in zip(FIELDS, spins, strict=True)))
    return np.array(totals, dtype=np.float64)


def test_ising_log_prob_matches_loops():
    expected = log_potentials_by_hand()
    field = Ising(PAW, COUPLINGS, FIELDS)
    log_z = np.log(np.exp(expected).sum())
    np.testing.assert_allclose(field.unnormalized_log_prob(SPINS), expected, atol=1e-5)
    np.testing.assert_allclose(field.log_normalizer, log_z, rtol=1e-6)
    np.testing.assert_allclose(field.log_prob(SPINS), expected - log_z, atol=1e-5)
    np.testing.assert_array_equal(field.log_prob(SPINS), field.log_prob((SPINS + 1) // 2))


def test_ising_mean_is_the_probability_of_state_one():
    probs = np.exp(log_potentials_by_hand())
    expected = probs @ (SPINS > 0) / probs.sum()
    np.testing.assert_allclose(Ising(PAW, COUPLINGS, FIELDS).mean, expected, rtol=1e-5)


def test_pseudo_log_prob_matches_the_conditionals():
    log_probs = {tuple(s): p for s, p in zip(SPINS, log_potentials_by_hand(), strict=True)}
    expected = []
    for spins in SPINS:
        total = 0.0
        for node in range(4):
            flipped = tuple(-s if i == node else s for i, s in enumerate(spins))
            total -= np.log1p(np.exp(log_probs[flipped] - log_probs[tuple(spins)]))
        expected.append(total)
    found = Ising(PAW, COUPLINGS, FIELDS).pseudo_log_prob(SPINS)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_tractable_sample_equals_the_core_bit_for_bit(key):
    field = Ising(PAW, COUPLINGS, FIELDS)
    expected = enumeration.sample(key, field.model, PAW, num_samples=6)
    drawn = field.sample(key, (2, 3))
    assert drawn.dtype == jnp.int32
    np.testing.assert_array_equal(drawn, expected.reshape(2, 3, 4))


def test_intractable_sample_equals_the_core_bit_for_bit(key):
    field = Potts(EDGE, 0.5, num_states=3, num_sweeps=7, max_configurations=8)
    key_start, key_run = jax.random.split(key)
    plan = sweep_plan(EDGE)
    start = gibbs.init(key_start, field.model, plan, num_chains=5)
    expected = gibbs.run(key_run, start, field.model, plan, num_sweeps=7).T
    np.testing.assert_array_equal(field.sample(key, (5,)), expected)


def test_log_prob_equals_the_core_bit_for_bit(key):
    tables = jax.random.normal(key, (1, 3, 3)), jax.random.normal(key, (2, 3))
    field, model = PairwiseMRF(EDGE, *tables), models.Pairwise(*tables)
    states = jnp.array([2, 1])
    potential = jax.jit(models.log_potential)(model, EDGE, states)
    np.testing.assert_array_equal(field.unnormalized_log_prob(states), potential)
    log_z = jax.jit(enumeration.log_z)(model, EDGE)
    np.testing.assert_array_equal(field.log_normalizer, log_z)


@pytest.mark.parametrize("max_configurations", [4, 3])
def test_batched_sample_equals_a_loop_over_batch_elements(key, max_configurations):
    options = {"max_configurations": max_configurations, "num_sweeps": 5}
    couplings, fields = np.array([[0.5], [-0.5]]), np.array([0.1, 0.3])
    drawn = Ising(EDGE, couplings, fields, **options).sample(key, (20,))
    for i, key_element in enumerate(jax.random.split(key, 2)):
        element = Ising(EDGE, couplings[i], fields, **options)
        np.testing.assert_array_equal(drawn[:, i], element.sample(key_element, (20,)))


def test_gibbs_sample_has_the_exact_distribution(key):
    exact = Ising(PAW, COUPLINGS, FIELDS)
    field = Ising(PAW, COUPLINGS, FIELDS, num_sweeps=50, max_configurations=0)
    codes = np.asarray(field.sample(key, (20_000,))) @ (1 << np.arange(4))
    probs = np.exp(np.asarray(exact.log_prob(exact.enumerate_configurations()), np.float64))
    counts = np.bincount(codes, minlength=16)
    assert chi_square_p_value(counts, probs / probs.sum()) > 1e-4


def test_agreement_form_differs_by_a_constant():
    theta = np.array([0.9, 0.2, 0.6, 0.35])
    field = Ising.from_agreement(PAW, theta)
    first, second = PAW.edges.T
    agree = SPINS[:, first] == SPINS[:, second]
    by_hand = np.where(agree, np.log(theta), np.log(1 - theta)).sum(axis=1)
    difference = np.asarray(field.unnormalized_log_prob(SPINS)) - by_hand
    np.testing.assert_allclose(difference, difference[0], atol=1e-5)
    normalized = by_hand - np.log(np.exp(by_hand).sum())
    np.testing.assert_allclose(field.log_prob(SPINS), normalized, atol=1e-5)
    np.testing.assert_allclose(field.agreements, theta, rtol=1e-5)


def test_agreement_form_works_under_tracing():
    found = jax.jit(lambda theta: Ising.from_agreement(PAW, theta).couplings)(0.7)
    np.testing.assert_allclose(found, np.full(4, np.log(0.7 / 0.3) / 2), rtol=1e-5)


def test_potts_equals_its_tables(key):
    fields = jax.random.normal(key, (4, 3))
    potts = Potts(PAW, COUPLINGS, fields)
    tables = PairwiseMRF(PAW, COUPLINGS[:, None, None] * np.eye(3), fields)
    values = potts.enumerate_configurations()
    np.testing.assert_allclose(potts.log_prob(values), tables.log_prob(values), atol=1e-4)


def test_scalar_parameters_are_repeated():
    field = Ising(PAW, 0.5, -0.1)
    np.testing.assert_array_equal(field.couplings, np.full(4, 0.5))
    np.testing.assert_array_equal(field.fields, np.full(4, -0.1))
    assert PairwiseMRF(EDGE, np.zeros((3, 1, 2, 2))).batch_shape == (3,)
    assert Ising.infer_shapes(PAW) == ((), (4,))
    assert Ising.infer_shapes(PAW, (3, 4), fields=(2, 1, 4)) == ((2, 3), (4,))


def test_graph_without_edges_is_a_product_of_nodes():
    field = Ising(Graph(2, []), 0.0, np.array([[0.3, -1.0], [0.0, 2.0]]))
    np.testing.assert_allclose(field.mean, 1 / (1 + np.exp(-2 * field.fields)), rtol=1e-5)
    assert field.sample(jax.random.key(0), (3,)).shape == (3, 2, 2)


def test_double_precision_is_kept(x64):
    field = Ising(PAW, COUPLINGS.astype(np.float64), FIELDS.astype(np.float64))
    expected = log_potentials_by_hand()
    expected -= np.log(np.exp(expected).sum())
    np.testing.assert_allclose(field.log_prob(SPINS), expected, rtol=1e-12)


def test_unnormalized_copy_leaves_out_log_z_and_the_original_keeps_it():
    field = Ising(LARGE, 0.2)
    value = np.ones(36, dtype=int)
    found = jax.jit(lambda field: field.log_prob(value))(field.unnormalized())
    np.testing.assert_allclose(found, 60 * 0.2, rtol=1e-5)
    with pytest.raises(IntractableNormalizerError):
        field.log_prob(value)


REFUSED = {
    "log_prob": lambda field: field.log_prob(np.zeros(36, dtype=int)),
    "log_normalizer": lambda field: field.log_normalizer,
    "mean": lambda field: field.mean,
    "variance": lambda field: field.variance,
    "enumerate_configurations": lambda field: field.enumerate_configurations(),
}


@pytest.mark.parametrize("method", REFUSED)
def test_intractable_field_refuses(method):
    field = Ising(LARGE, 0.2)
    assert not field.is_tractable
    message = rf"{method}: expected at most 65536 configurations .*got 2\*\*36; .*ExchangeMH.*Group"
    with pytest.raises(IntractableNormalizerError, match=message):
        REFUSED[method](field)
    assert issubclass(IntractableNormalizerError, NotImplementedError)


def intractable_model(value=None):
    coupling = numpyro.sample("coupling", dist.Normal(0.0, 0.1))
    field = Ising(EDGE, coupling, num_sweeps=2, max_configurations=0)
    with numpyro.plate("items", 4):
        return numpyro.sample("x", field, obs=value)


def test_intractable_field_is_predicted_without_log_prob(key):
    drawn = Predictive(intractable_model, num_samples=3)(key)["x"]
    assert drawn.shape == (3, 4, 2) and set(np.unique(drawn)) == {0, 1}


def test_intractable_field_stops_every_user_of_log_prob(key):
    value = np.zeros((4, 2), dtype=int)
    with pytest.raises(IntractableNormalizerError, match="MRFGibbs"):
        log_density(intractable_model, (value,), {}, {"coupling": 0.1})
    mcmc = MCMC(NUTS(intractable_model), num_warmup=1, num_samples=1, progress_bar=False)
    with pytest.raises(IntractableNormalizerError, match="MRFGibbs"):
        mcmc.run(key, value)


BAD = [
    (lambda: Ising([(0, 1)], 0.1), r"Ising: expected graph to be a jaxmrf.graphs.Graph, got list"),
    (
        lambda: Ising(PAW, np.zeros(5)),
        r"couplings of shape \[..., edges\] = \[..., 4\] .*got \(5,\)",
    ),
    (lambda: Ising(PAW, 0.0, np.zeros((2, 3))), r"fields of shape \[..., nodes\] .*got \(2, 3\)"),
    (
        lambda: Ising(PAW, np.zeros((2, 4)), np.zeros((3, 4))),
        r"expected leading axes that broadcast, got shapes .*\(2, 4\).*; align the batch axes",
    ),
    (lambda: Ising(PAW, 0.1, num_sweeps=0), r"num_sweeps to be at least 1, got 0; raise it"),
    (
        lambda: Ising(PAW, 0.1, max_configurations=2**21),
        r"max_configurations in 0..1048576, got 20",
    ),
    (lambda: Ising(PAW, np.nan), r"expected finite couplings, got invalid nan at index \(0,\)"),
    (
        lambda: Ising(PAW, 0.1, jnp.array([0.0, 0.0, jnp.inf, 0.0])),
        r"Ising: expected finite fields, got invalid inf at index \(2,\); replace or drop it",
    ),
    (lambda: Ising.from_agreement(PAW, 1.5), r"agreements in \(0, 1\), got 1.5; clip them"),
    (lambda: Ising.from_agreement(PAW, jnp.array([0.5, 0.1, 0.0, 0.2])), r"\(0, 1\), got 0.0;"),
    (lambda: Ising.from_agreement(PAW, np.full(4, np.nan)), r"in \(0, 1\), got nan; clip them"),
    (lambda: Ising.from_agreement(PAW, np.full(3, 0.5)), r"couplings of shape .*got \(3,\)"),
    (lambda: Ising(PAW, np.zeros((2, 4))).model, r"model: expected batch shape \(\), got \(2,\)"),
    (lambda: Potts(PAW, 0.1), r"Potts: expected a number of states, got fields of shape \(\)"),
    (lambda: Potts(PAW, 0.1, num_states=0), r"and num_states 0; pass .*or num_states"),
    (lambda: Potts(PAW, 0.1, np.zeros((4, 3)), num_states=2), r"= \[..., 4, 2\] or a scalar"),
    (lambda: Potts(PAW, np.nan, num_states=2), r"Potts: expected finite couplings"),
    (lambda: PairwiseMRF(PAW, 0.1), r"PairwiseMRF: expected a number of states, got edge_tables"),
    (lambda: PairwiseMRF(EDGE, np.zeros((1, 2, 3))), r"= \[..., 1, 3, 3\] .*got \(1, 2, 3\)"),
    (lambda: PairwiseMRF(EDGE, np.zeros((1, 2, 2)), np.zeros((2, 3))), r"node_tables of shape"),
]


@pytest.mark.parametrize(("build", "message"), BAD)
def test_bad_argument_names_rule_value_and_mend(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_traced_agreement_outside_the_interval_gives_nan_not_a_wrong_number():
    field = jax.jit(lambda theta: Ising.from_agreement(EDGE, theta).log_prob(np.zeros(2, int)))
    assert np.isnan(field(1.5))
