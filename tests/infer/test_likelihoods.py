"""The likelihoods of ``GroupGibbs`` beside the stripped Beta approximation, on one model."""

from functools import partial
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from kernel_models import SQUARE, VOTES, grouped
from numpyro.infer import MCMC

from jaxmrf.distributions import ChineseRestaurantProcess, Ising
from jaxmrf.graphs import Graph, frontier_plan, grid
from jaxmrf.infer import (
    AuxiliaryVariable,
    ConcentrationGibbs,
    ExactLikelihood,
    GroupGibbs,
    LinearResponse,
    MRFGibbs,
    StrippedBeta,
)
from jaxmrf.nonparametric import group_auxiliary, group_corrected, group_exact
from jaxmrf.nonparametric.base_measures import BetaBase
from jaxmrf.nonparametric.particle_sources import ParticleSource
from jaxmrf.testing import prior_invariance

CONCENTRATION, BASE = 1.5, BetaBase(2.0, 1.0)
AGREEMENTS = (VOTES[:, SQUARE.edges[:, 0]] == VOTES[:, SQUARE.edges[:, 1]]).sum(0)
FEW = {"num_proposals": 2, "num_value_steps": 2, "value_scale": 0.3}
LIKELIHOODS = {
    "exact": ExactLikelihood(),
    "linear_response": LinearResponse(num_chains=20, num_snapshots=10, first_expansion=4),
    "exchange": AuxiliaryVariable(**FEW),
    "moller": AuxiliaryVariable("moller", **FEW),
}


def tied(x):
    groups = numpyro.sample("groups", ChineseRestaurantProcess(CONCENTRATION, 4))
    with numpyro.plate("atoms", 5):
        phi = numpyro.sample("phi", dist.Beta(*BASE))
    with numpyro.plate("items", len(x)):
        numpyro.sample("x", Ising.from_agreement(SQUARE, phi[groups]), obs=x)


def start(key, likelihood, num_warmup=0):
    """State at a draw from the prior, and the kernel's transition."""
    kernel = GroupGibbs(tied, likelihood, start="params")
    state = kernel.init(key, num_warmup, None, (VOTES,), {})
    return state, jax.jit(lambda state: kernel.sample(state, (VOTES,), {}))


def core_step(name, state):
    """A sweep of the core sampler, the data written out."""
    key_step = jax.random.split(state.rng_key)[1]
    counts = group_exact.EdgeCounts(jnp.asarray(AGREEMENTS, float), jnp.asarray(3.0))
    options = {"concentration": CONCENTRATION, "base": BASE}
    if name == "exact":
        plan = frontier_plan(SQUARE)
        return group_exact.step(key_step, state.sampler, counts, SQUARE, plan, **options)[0]
    if name == "linear_response":
        key_step = jax.random.split(key_step)[0]  # the other is for the expansion
        return group_corrected.step(key_step, state.sampler.core, counts, **options)[0]
    if name == "moller":
        options |= {"scheme": "moller", "estimate": state.data.estimate}
    source = ParticleSource(SQUARE, 3)
    return group_auxiliary.step(key_step, state.sampler, counts, source, **options, **FEW)[0]


def assert_core(name, state, after):
    """The kernel's draws are the core's, bit for bit, and have moved."""
    step = partial(core_step, name)
    core = jax.jit(step if state.rng_key.ndim == 0 else jax.vmap(step))(state)
    np.testing.assert_array_equal(after.z["groups"], core.labels)
    np.testing.assert_array_equal(after.z["phi"], core.values)
    assert (after.z["phi"][..., 0] != state.z["phi"][..., 0]).all()
    assert not after.is_truncated.any()


@pytest.mark.parametrize(
    "name", ["exact", "exchange", pytest.param("moller", marks=pytest.mark.slow)]
)
def test_adapter_equals_the_core_under_the_same_key(name, key):
    state, sample = start(key, LIKELIHOODS[name])
    after = sample(state)
    assert_core(name, state, after)
    assert not after.is_inexact


def test_likelihood_is_one_argument_of_the_same_model(key):
    def shapes(likelihood):
        model = partial(grouped, graph=SQUARE, num_items=3)
        blocks = [
            (GroupGibbs(model, likelihood), ["groups", "phi"]),
            (ConcentrationGibbs(model), ["alpha"]),
        ]
        mcmc = MCMC(MRFGibbs(blocks), num_warmup=1, num_samples=2, progress_bar=False)

        def run(key):
            mcmc.run(key, VOTES)
            return mcmc.get_samples()

        return jax.eval_shape(run, key)

    expected = shapes(StrippedBeta(estimate=(0.5,) * 4))
    assert expected.keys() == {"alpha", "groups", "phi", "theta"}
    for likelihood in LIKELIHOODS.values():
        assert shapes(likelihood) == expected


@pytest.mark.slow
@pytest.mark.parametrize("name", ["exact", "exchange"])
def test_prior_is_invariant_on_a_cycle(name):
    model = partial(grouped, graph=SQUARE, num_items=4)
    kernel = MRFGibbs(
        [
            (GroupGibbs(model, LIKELIHOODS[name], start="params"), ["groups", "phi"]),
            (ConcentrationGibbs(model), ["alpha"]),
        ]
    )
    statistics = {
        "num_groups": lambda v: v["groups"].max() + 1,
        "agreement": lambda v: (v["x"][:, 0] == v["x"][:, 1]).sum() + 2.0 * v["phi"][0],
        "first_pair": lambda v: (v["groups"][0] == v["groups"][1]).astype(int),
    }
    found = prior_invariance(
        kernel, model, "x", num_replicates=2000, num_steps=4, statistics=statistics
    )
    assert min(found.values()) > 1e-3 / len(found), found


NUM_WARMUP = 10


@pytest.fixture(scope="module")
def two_chains():
    """States of two vectorised chains of linear response, step by step from the start."""
    keys = jax.random.split(jax.random.key(0))
    state, sample = start(keys, LIKELIHOODS["linear_response"], NUM_WARMUP)
    states = [state]
    for _ in range(NUM_WARMUP + 8):
        states.append(sample(states[-1]))
    return states


@pytest.mark.slow
def test_adapter_of_linear_response_equals_the_core_under_the_same_keys(two_chains):
    assert_core("linear_response", *two_chains[:2])


@pytest.mark.slow
def test_linear_response_expands_again_at_powers_of_two_and_at_the_end_of_warmup(two_chains):
    centers = [np.asarray(state.sampler.core.expansion.center) for state in two_chains]
    changed = [(after != before).any(1) for before, after in pairwise(centers)]
    steps = 1 + np.flatnonzero(np.any(changed, axis=1))
    np.testing.assert_array_equal(steps, [4, 8, NUM_WARMUP])
    assert np.array(changed)[steps - 1].all()  # in both chains


@pytest.mark.slow
def test_chains_of_linear_response_expand_each_at_its_own_mean(two_chains):
    before, after = two_chains[NUM_WARMUP - 1], two_chains[NUM_WARMUP]
    core = before.sampler.core
    logits = jnp.take_along_axis(after.z["phi"], after.z["groups"], axis=1)
    mean = core.num_steps[:, None] * core.mean_logits + jax.scipy.special.logit(logits)
    center = after.sampler.core.expansion.center
    np.testing.assert_allclose(center, mean / (core.num_steps[:, None] + 1), rtol=1e-4)
    assert (center[0] != center[1]).any()


@pytest.mark.slow
def test_error_of_the_expansion_is_finite_once_there_are_two(two_chains):
    errors = np.array([state.sampler.core.surrogate_error for state in two_chains])
    assert np.isnan(errors[:4]).all() and (errors[4:] > 0).all() and np.isfinite(errors[4:]).all()
    last = jax.tree.map(lambda leaf: leaf[0], two_chains[-1].sampler)
    error = LIKELIHOODS["linear_response"].surrogate_error(jax.random.key(1), last, SQUARE)
    assert 0 < error < np.inf


def test_perfect_draws_out_of_budget_warn(key, monkeypatch):
    likelihood = AuxiliaryVariable(particles="perfect", max_sweeps=1, **FEW)
    state, sample = start(key, likelihood)
    flagged = lambda key, state, *args, **options: (  # noqa: E731
        state._replace(is_inexact=jnp.array(True)),
        None,
    )
    monkeypatch.setattr(group_auxiliary, "step", flagged)
    with pytest.warns(UserWarning, match="some draws were not perfect after 1 sweeps.*raise max"):
        after = sample(state)
        jax.effects_barrier()
    assert after.is_inexact and after.sampler.is_inexact and not state.is_inexact


def test_particles_that_were_asked_for_as_inexact_do_not_warn():
    for likelihood in (LIKELIHOODS["exact"], AuxiliaryVariable(particles="gibbs")):
        assert GroupGibbs(tied, likelihood).inexactness_message() is None


WIDE = Graph(12, [(i, j) for j in range(12) for i in range(j)])


@pytest.mark.parametrize(
    ("graph", "particles", "method"),
    [(SQUARE, "auto", "exact"), (WIDE, "auto", "gibbs"), (WIDE, "perfect", "perfect")],
)
def test_particles_are_exact_where_the_frontier_is_narrow(graph, particles, method):
    likelihood = AuxiliaryVariable(particles=particles, num_sweeps=7, max_sweeps=9)
    states = jax.ShapeDtypeStruct((5, graph.num_nodes), jnp.int8)
    data, _ = jax.eval_shape(lambda states: likelihood.prepare(states, graph), states)
    assert data.source == ParticleSource(graph, 5, method, num_sweeps=7, max_sweeps=9)


def test_graph_wider_than_the_likelihood_takes_is_refused():
    message = "frontier_plan: expected a frontier of at most {} nodes, got"
    for likelihood, graph, width in [
        (ExactLikelihood(max_width=2), grid((4, 4)), 2),
        (AuxiliaryVariable(particles="exact"), grid((25, 25)), 20),
    ]:
        with pytest.raises(ValueError, match=message.format(width)):
            likelihood.prepare(np.zeros((3, graph.num_nodes), np.int8), graph)


def test_graph_too_large_for_a_covariance_is_refused():
    graph = grid((101, 101))
    with pytest.raises(ValueError, match="LinearResponse: expected at most 20000 edges"):
        LinearResponse().prepare(np.zeros((3, graph.num_nodes), np.int8), graph)


def test_expansion_that_failed_is_reported():
    """After warm-up alone, and only if the error is large."""
    labels, values = jnp.zeros(4, jnp.int32), jnp.full(5, 0.5)
    likelihood = LinearResponse(num_chains=2, num_snapshots=1)
    data, _ = likelihood.prepare(np.asarray(VOTES), SQUARE)
    state = likelihood.init(jax.random.key(0), labels, values, data, SQUARE, num_warmup=2)
    for error, num_steps, expected in [(9.0, 2, True), (9.0, 1, False), (0.5, 2, False)]:
        core = state.core._replace(surrogate_error=jnp.array(error))
        found = state._replace(core=core, num_steps=jnp.array(num_steps))
        assert bool(found.is_inexact) is expected
    assert "not to be trusted" in likelihood.inexactness_message


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (AuxiliaryVariable, {"scheme": "mcmc"}, r"scheme to be one of .*, got 'mcmc'; leave it"),
        (AuxiliaryVariable, {"particles": "pcd"}, r"particles to be one of \('auto',.*got 'pcd'"),
        (AuxiliaryVariable, {"num_proposals": 0}, "num_proposals to be at least 1, got 0"),
        (AuxiliaryVariable, {"num_value_steps": 0}, "num_value_steps to be at least 1, got 0"),
        (AuxiliaryVariable, {"num_sweeps": 0}, "num_sweeps to be at least 1, got 0"),
        (AuxiliaryVariable, {"max_sweeps": 0}, "max_sweeps to be at least 1, got 0"),
        (AuxiliaryVariable, {"value_scale": 0.0}, r"value_scale in \(0, 1\), got 0.0; pass"),
        (LinearResponse, {"num_chains": 0}, "num_chains to be at least 1, got 0"),
        (LinearResponse, {"first_expansion": 0}, "first_expansion to be at least 1, got 0"),
    ],
)
def test_bad_options_are_refused(make, options, message):
    with pytest.raises(ValueError, match=f"{make.__name__}: expected {message}"):
        make(**options)
