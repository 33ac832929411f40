"""The samplers with auxiliary variables against the exact posterior of tiny fields.

Chains start from independent draws of the exact posterior, found by rejection from the prior, and
must have the same law after a step; quadrature gives the exact probability of every partition.
"""

import itertools
from dataclasses import dataclass
from functools import lru_cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize, stats
from scipy.special import betaln, gammaln

from jaxmrf.graphs import Graph, grid
from jaxmrf.nonparametric import group_auxiliary
from jaxmrf.nonparametric.base_measures import BetaBase
from jaxmrf.nonparametric.group_exact import EdgeCounts
from jaxmrf.nonparametric.particle_sources import Particles, ParticleSource
from jaxmrf.testing.statistics import chi_square_p_value

PATH, CYCLE = grid((1, 4)), grid((2, 2))
NUM_ITEMS = 4
AGREEMENTS = {PATH: np.array([1.0, 3.0, 4.0]), CYCLE: np.array([1.0, 2.0, 3.0, 4.0])}
CONCENTRATION = 1.2
MAX_GROUPS = 5
NUM_CHAINS = 20_000
BASE = BetaBase(1.5, 1.0)
ESTIMATE = jnp.array([0.35, 0.5, 0.65, 0.8])


def partitions(num_items):
    vectors = itertools.product(range(num_items), repeat=num_items)
    return [v for v in vectors if all(v[i] <= max(v[:i], default=-1) + 1 for i in range(num_items))]


def log_likelihood(graph, theta):
    """Log-likelihood of the data at rows of agreement parameters, by enumeration."""
    counts = AGREEMENTS[graph]
    theta = np.clip(theta, 1e-12, 1 - 1e-12)
    log_same, log_other = np.log(theta), np.log1p(-theta)
    total = 0.0
    for states in itertools.product((0, 1), repeat=graph.num_nodes):
        is_same = np.array([states[u] == states[v] for u, v in graph.edges])
        total = total + np.exp(np.where(is_same, log_same, log_other).sum(-1))
    log_kernel = log_same @ counts + log_other @ (NUM_ITEMS - counts)
    return log_kernel - NUM_ITEMS * np.log(total)


@lru_cache
def exact_posterior(graph):
    """P(partition | data), by Gauss-Legendre quadrature over the values of the groups."""
    nodes, weights = np.polynomial.legendre.leggauss(24)
    points, weights = (nodes + 1) / 2, weights / 2 * stats.beta(*BASE).pdf((nodes + 1) / 2)
    table, mass = partitions(graph.num_edges), []
    for labels in table:
        num_groups = max(labels) + 1
        grids = np.stack(np.meshgrid(*[points] * num_groups, indexing="ij"), -1)
        measure = np.stack(np.meshgrid(*[weights] * num_groups, indexing="ij"), -1).prod(-1)
        integral = (np.exp(log_likelihood(graph, grids[..., list(labels)])) * measure).sum()
        sizes = np.bincount(labels)
        mass.append(integral * CONCENTRATION**num_groups * np.exp(gammaln(sizes).sum()))
    return table, np.array(mass) / np.sum(mass)


@lru_cache
def exact_draws(graph, seed):
    """Independent draws of (labels, values) from the posterior, by rejection from the prior."""
    rng = np.random.default_rng(seed)
    num_edges = graph.num_edges
    top = optimize.minimize(
        lambda w: -log_likelihood(graph, 1 / (1 + np.exp(-w))), np.zeros(num_edges), tol=1e-10
    )
    labels_kept, values_kept, num_kept = [], [], 0
    while num_kept < NUM_CHAINS:
        labels = np.zeros((200_000, num_edges), np.int32)
        for i in range(1, num_edges):
            sizes = (labels[:, :i, None] == np.arange(num_edges)).sum(1)
            target = rng.random(len(labels)) * (i + CONCENTRATION)
            labels[:, i] = (np.cumsum(sizes, 1) <= target[:, None]).sum(1)
            # beyond the last group: a new one
            labels[:, i] = np.minimum(labels[:, i], labels[:, :i].max(1) + 1)
        values = rng.beta(*BASE, (len(labels), MAX_GROUPS))
        theta = np.take_along_axis(values, labels, 1)
        is_kept = np.log(rng.random(len(labels))) < log_likelihood(graph, theta) + top.fun
        labels_kept.append(labels[is_kept])
        values_kept.append(values[is_kept])
        num_kept += is_kept.sum()
    labels, values = np.concatenate(labels_kept), np.concatenate(values_kept)
    return labels[:NUM_CHAINS], values[:NUM_CHAINS].astype(np.float32)


def partition_p_value(graph, labels):
    table, probabilities = exact_posterior(graph)
    places = graph.num_edges ** np.arange(graph.num_edges)
    codes = np.asarray(labels) @ places
    counts = np.array([(codes == np.array(row) @ places).sum() for row in table])
    assert counts.sum() == len(labels)  # every draw is canonical
    return chi_square_p_value(counts, probabilities)


def p_values(graph, state):
    """Of the partitions, and of the first and last edge's parameters against other exact draws."""
    labels, values = exact_draws(graph, seed=1)
    expected = np.take_along_axis(values, labels, 1)
    theta = np.take_along_axis(np.asarray(state.values), np.asarray(state.labels), 1)
    return [
        partition_p_value(graph, state.labels),
        *(stats.ks_2samp(theta[:, edge], expected[:, edge]).pvalue for edge in (0, -1)),
    ]


def auxiliary_p_values(state):
    """Moller's particles keep their law at the estimate, independent of the parameters."""
    joint = np.stack([np.asarray(ESTIMATE), 1 - np.asarray(ESTIMATE)])
    flips = np.array([f for f in itertools.product((0, 1), repeat=4) if sum(f) % 2 == 0])
    weights = joint[flips, np.arange(4)].prod(1)
    rates = ((1 - flips) * weights[:, None]).sum(0) / weights.sum()
    theta = np.take_along_axis(np.asarray(state.values), np.asarray(state.labels), 1)
    auxiliary = np.asarray(state.auxiliary)
    values = []
    for edge, rate in enumerate(rates):
        counts = np.bincount(auxiliary[:, edge].astype(int), minlength=NUM_ITEMS + 1)
        probabilities = stats.binom(NUM_ITEMS, rate).pmf(np.arange(NUM_ITEMS + 1))
        values.append(chi_square_p_value(counts, probabilities))
        values.append(stats.spearmanr(theta[:, edge], auxiliary[:, edge]).pvalue)
    return values


def after_steps(key, graph, scheme, source=None, num_chains=NUM_CHAINS, num_steps=1):
    """States of independent chains that started from the posterior, after a few steps."""
    source = source or ParticleSource(graph, NUM_ITEMS)
    estimate = ESTIMATE[: graph.num_edges] if scheme == "moller" else None
    step = partial(
        group_auxiliary.step,
        model=EdgeCounts(jnp.asarray(AGREEMENTS[graph], jnp.float32), jnp.asarray(4.0)),
        draw=source,
        concentration=CONCENTRATION,
        base=BASE,
        scheme=scheme,
        estimate=estimate,
        num_proposals=2,
        num_value_steps=2,
        value_scale=0.3,
    )

    @jax.jit
    @jax.vmap
    def one(key, labels, values):
        key_init, key_auxiliary, key_steps = jax.random.split(key, 3)
        state = group_auxiliary.init(key_init, labels, values, source)
        if scheme == "moller":
            exact = ParticleSource(graph, NUM_ITEMS)
            logits = jax.scipy.special.logit(estimate)
            state = state._replace(auxiliary=exact(key_auxiliary, logits).agreements)
        keys = jax.random.split(key_steps, num_steps)
        return jax.lax.scan(lambda state, key: step(key, state), state, keys)

    labels, values = exact_draws(graph, seed=0)
    return one(jax.random.split(key, num_chains), labels[:num_chains], values[:num_chains])


def test_oracle_on_a_path_has_its_closed_form():
    table, probabilities = exact_posterior(PATH)
    log_weights = []
    for labels in table:
        total = 0.0
        for group in set(labels):
            members = np.array(labels) == group
            successes, trials = AGREEMENTS[PATH][members].sum(), NUM_ITEMS * members.sum()
            total += np.log(CONCENTRATION) + gammaln(members.sum()) - betaln(*BASE)
            total += betaln(BASE.a + successes, BASE.b + trials - successes)
        log_weights.append(total)
    weights = np.exp(log_weights)
    np.testing.assert_allclose(probabilities, weights / weights.sum(), rtol=2e-4)
    assert partition_p_value(PATH, exact_draws(PATH, seed=0)[0]) > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("graph", "scheme"),
    [(PATH, "exchange"), (CYCLE, "exchange"), (CYCLE, "moller")],
    ids=["path-exchange", "cycle-exchange", "cycle-moller"],
)
def test_step_leaves_the_exact_posterior_invariant(key, graph, scheme):
    state, info = after_steps(key, graph, scheme)
    assert min(p_values(graph, state)) > 1e-3
    assert scheme == "exchange" or min(auxiliary_p_values(state)) > 1e-3
    before, _ = exact_draws(graph, seed=0)
    assert np.mean((np.asarray(state.labels) != before).any(1)) > 0.2
    assert 0.1 < info.accept_labels.mean() < 0.9 and 0.1 < info.accept_values.mean() < 0.9
    unused = np.asarray(state.values)[:, -1]  # more slots than edges: always a prior draw
    assert stats.kstest(unused, stats.beta(*BASE).cdf).pvalue > 1e-3
    assert not state.is_inexact.any() and not state.is_truncated.any()
    assert (info.num_inexact == 0).all()


@pytest.mark.slow
def test_particles_at_the_current_parameters_are_caught(key, monkeypatch):
    wrong = lambda current, edge, proposals: jnp.stack([current] * proposals.size)  # noqa: E731
    monkeypatch.setattr(group_auxiliary, "_with_proposals", wrong)
    state, _ = after_steps(key, CYCLE, "exchange")
    assert min(p_values(CYCLE, state)) < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("bug", ["estimate ignored", "particles not kept"])
def test_planted_bugs_of_moller_are_caught(key, monkeypatch, bug):
    right = group_auxiliary._Sampler
    if bug == "estimate ignored":
        monkeypatch.setattr(
            group_auxiliary, "_Sampler", lambda *args: right(*args[:3], jnp.zeros_like(args[3]))
        )
    else:
        monkeypatch.setattr(right, "remember", lambda self, is_accepted, particles, old: old)
    state, _ = after_steps(key, CYCLE, "moller")
    assert min(p_values(CYCLE, state) + auxiliary_p_values(state)) < 1e-6


@dataclass(frozen=True)
class FairCoins:
    """Particles that ignore the parameters."""

    num_items: int = NUM_ITEMS

    def __call__(self, key, logits):
        counts = jax.random.bernoulli(key, 0.5, (NUM_ITEMS, logits.size)).sum(0)
        return Particles(counts.astype(float), jnp.array(False))


@pytest.mark.slow
def test_particles_of_another_field_are_caught_and_marked(key):
    state, info = after_steps(key, CYCLE, "exchange", FairCoins())
    assert min(p_values(CYCLE, state)) < 1e-6
    assert state.is_inexact.all() and (info.num_inexact > 0).all()


@pytest.mark.slow
def test_particles_of_another_number_are_marked(key):
    state, info = after_steps(key, PATH, "exchange", ParticleSource(PATH, 3), num_chains=2)
    assert state.is_inexact.all() and (info.num_inexact == 0).all()


@pytest.mark.parametrize("method", ["exact", "perfect", "gibbs"])
def test_source_draws_the_agreements_of_the_field(key, method):
    theta = np.array([0.3, 0.6, 0.75, 0.8, 0.4, 0.65, 0.7])
    graph = grid((2, 3))
    states = itertools.product((0, 1), repeat=graph.num_nodes)
    same = np.array([[x[u] == x[v] for u, v in graph.edges] for x in states])
    weights = np.where(same, theta, 1 - theta).prod(1)
    rates = weights @ same / weights.sum()
    source = ParticleSource(graph, 40_000, method, num_sweeps=30)
    logits = jnp.asarray(np.log(theta) - np.log1p(-theta), jnp.float32)
    particles = jax.jit(source)(key, logits)
    error = 4.5 * np.sqrt(rates * (1 - rates) / 40_000)
    assert (np.abs(np.asarray(particles.agreements) / 40_000 - rates) < error).all()
    assert bool(particles.is_exact) == (method != "gibbs")


def test_exact_source_draws_a_forest_with_an_isolated_node(key):
    graph = Graph(6, [(4, 1), (0, 4), (2, 5)])
    theta = np.array([0.2, 0.9, 0.6])
    logits = jnp.asarray(np.log(theta) - np.log1p(-theta), jnp.float32)
    rates = ParticleSource(graph, 20_000)(key, logits).agreements / 20_000
    np.testing.assert_allclose(rates, theta, atol=4.5 * np.sqrt(0.25 / 20_000))


def test_perfect_source_out_of_budget_is_inexact(key):
    source = ParticleSource(CYCLE, 8, "perfect", max_sweeps=1)
    assert not source(key, jnp.full(4, 6.0)).is_exact


@pytest.mark.slow
def test_new_group_without_a_slot_is_lost_and_reported(key):
    def one(labels, values):
        source = ParticleSource(PATH, NUM_ITEMS)
        model = EdgeCounts(jnp.asarray(AGREEMENTS[PATH], jnp.float32), jnp.asarray(4.0))
        state = group_auxiliary.init(key, labels, values, source)
        return group_auxiliary.step(
            key, state, model, source, concentration=1e6, base=BASE,
            num_proposals=1, num_value_steps=1,
        )[0]  # fmt: skip

    full = one(jnp.zeros(3, jnp.int32), jnp.full(1, 0.5))
    room = one(jnp.arange(3), jnp.full(3, 0.5))
    assert full.is_truncated and full.labels.tolist() == [0, 0, 0] and not room.is_truncated


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scheme": "metropolis"}, "step: expected scheme to be one of .*got 'metropolis'"),
        ({"scheme": "moller"}, "step: expected an estimate under 'moller'.*got none"),
        ({"estimate": jnp.full(3, 0.5)}, "none under 'exchange', got one"),
        ({"num_proposals": 0}, "step: expected num_proposals to be at least 1, got 0"),
        ({"num_value_steps": 0}, "step: expected num_value_steps to be at least 1, got 0"),
    ],
)
def test_wrong_options_of_step_raise(key, options, message):
    source = ParticleSource(PATH, NUM_ITEMS)
    model = EdgeCounts(jnp.ones(3), jnp.asarray(4.0))
    state = group_auxiliary.AuxiliaryState(
        jnp.zeros(3, jnp.int32), jnp.full(3, 0.5), jnp.zeros(3), jnp.array(False), jnp.array(False)
    )
    with pytest.raises(ValueError, match=message):
        group_auxiliary.step(key, state, model, source, concentration=1.0, base=BASE, **options)


def test_wrong_options_of_the_source_raise():
    with pytest.raises(ValueError, match="ParticleSource: expected method to be one of .*'mcmc'"):
        ParticleSource(PATH, 4, "mcmc")
    for name in ("num_items", "num_sweeps", "max_sweeps"):
        with pytest.raises(ValueError, match=f"ParticleSource: expected {name} to be at least 1"):
            ParticleSource(PATH, **{"num_items": 4, name: 0})


def test_equal_sources_are_one_static_argument():
    first, second = ParticleSource(grid((2, 2)), 4), ParticleSource(grid((2, 2)), 4)
    assert first == second and hash(first) == hash(second)
