"""The grouped sampler against the exact posterior of partitions on a tree."""

import itertools
from functools import lru_cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from scipy.special import betaln, gammaln

from jaxmrf.graphs import grid, sweep_plan
from jaxmrf.nonparametric import group_gibbs, label_updates
from jaxmrf.nonparametric.base_measures import BetaBase

TREE = grid((1, 5))
NUM_ITEMS = 6.0
AGREEMENTS = np.array([1.0, 5.0, 6.0, 2.0])
CONCENTRATION = 1.2
MAX_GROUPS = 6
MODEL = group_gibbs.StrippedBetaModel(
    jnp.asarray(AGREEMENTS), jnp.asarray(AGREEMENTS), jnp.asarray(NUM_ITEMS)
)


def partitions(num_items):
    vectors = itertools.product(range(num_items), repeat=num_items)
    return [v for v in vectors if all(v[i] <= max(v[:i], default=-1) + 1 for i in range(num_items))]


def exact_posterior(a=1.0, b=1.0):
    """P(partition | data) on a tree: EPPF times a beta-binomial integral for every group."""
    table = partitions(4)
    log_weights = []
    for labels in table:
        total = 0.0
        for group in set(labels):
            members = np.array(labels) == group
            successes = AGREEMENTS[members].sum()
            trials = NUM_ITEMS * members.sum()
            total += np.log(CONCENTRATION) + gammaln(members.sum())
            total += betaln(a + successes, b + trials - successes) - betaln(a, b)
        log_weights.append(total)
    weights = np.exp(np.array(log_weights) - np.max(log_weights))
    return table, weights / weights.sum()


def exact_draws(rng, num_draws, a=1.0, b=1.0):
    """Independent draws of (labels, values) from the exact posterior."""
    table, probabilities = exact_posterior(a, b)
    labels = np.array(table, dtype=np.int32)[rng.choice(len(table), num_draws, p=probabilities)]
    one_hot = labels[:, :, None] == np.arange(MAX_GROUPS)
    successes = (AGREEMENTS[:, None] * one_hot).sum(1)
    trials = NUM_ITEMS * one_hot.sum(1)
    values = rng.beta(a + successes, b + trials - successes)
    return jnp.asarray(labels), jnp.asarray(values, jnp.float32)


@lru_cache
def compiled_step(base):
    """One step of one chain, mapped over independent chains; compiled once for each shape."""

    def one(key, labels, values):
        key_init, key_step = jax.random.split(key)
        state = group_gibbs.init(key_init, labels, values, sweep_plan(TREE), num_particles=1)
        state, _ = group_gibbs.step(
            key_step, state, MODEL, TREE, sweep_plan(TREE),
            concentration=CONCENTRATION, base=base, num_refits=0,
        )  # fmt: skip
        return state

    return jax.jit(jax.vmap(one))


def step_all(labels, values, key, *, base):
    return compiled_step(base)(jax.random.split(key, len(labels)), labels, values)


def partition_pvalue(labels, a=1.0, b=1.0):
    table, probabilities = exact_posterior(a, b)
    codes = np.asarray(labels) @ 4 ** np.arange(4)
    counts = np.array([(codes == np.array(v) @ 4 ** np.arange(4)).sum() for v in table])
    assert counts.sum() == len(labels)  # every draw is canonical
    return stats.chisquare(counts, probabilities * len(labels)).pvalue


@pytest.mark.parametrize(("a", "b"), [(1.0, 1.0), (2.0, 0.7)])
def test_step_on_a_tree_leaves_the_exact_posterior_invariant(key, rng, a, b):
    labels, values = exact_draws(rng, 20_000, a, b)
    after = step_all(labels, values, key, base=BetaBase(a, b))
    assert partition_pvalue(after.labels, a, b) > 1e-3
    assert np.mean(np.any(np.asarray(after.labels) != np.asarray(labels), axis=1)) > 0.2
    expected = stats.beta(a + AGREEMENTS[0], b + NUM_ITEMS - AGREEMENTS[0]).cdf
    alone = np.asarray((after.labels[:, 1:] != after.labels[:, :1]).all(1))
    assert stats.kstest(np.asarray(after.values)[alone, 0], expected).pvalue > 1e-3
    unused = np.asarray(after.values)[:, -1]  # six slots, four edges: always a prior draw
    assert stats.kstest(unused, stats.beta(a, b).cdf).pvalue > 1e-3


@pytest.mark.slow
def test_step_converges_to_the_exact_posterior_from_one_group(key):
    labels, values = jnp.zeros((20_000, 4), jnp.int32), jnp.full((20_000, MAX_GROUPS), 0.5)
    for i in range(12):
        state = step_all(labels, values, jax.random.fold_in(key, i), base=BetaBase())
        labels, values = state.labels, state.values
    assert partition_pvalue(labels) > 1e-3


def test_planted_bug_in_the_new_group_weight_is_caught(key, rng, monkeypatch):
    labels, values = exact_draws(rng, 20_000)
    right = label_updates.betaln
    monkeypatch.setattr(label_updates, "betaln", lambda a, b: right(a, b) + 0.15)
    compiled_step.cache_clear()
    after = step_all(labels, values, key, base=BetaBase())
    compiled_step.cache_clear()
    assert partition_pvalue(after.labels) < 1e-6


@pytest.mark.slow
def test_full_buffer_is_reported_and_room_is_not(key):
    labels = jnp.arange(4, dtype=jnp.int32)[None]
    full = step_all(
        jnp.array([[0, 1, 0, 1]], jnp.int32), jnp.full((1, 2), 0.5), key, base=BetaBase()
    )
    room = step_all(labels, jnp.full((1, 5), 0.5), key, base=BetaBase())
    assert bool(full.is_truncated[0]) and not bool(room.is_truncated[0])


@pytest.mark.slow
def test_refit_matches_the_tied_moments_on_a_cycle(key):
    """On a 4-cycle tied in one group, the refit settles where the model's agreements match."""
    graph = grid((2, 2))
    theta = 0.7
    # brute force: 16 states, four edges
    states = np.array(list(itertools.product((0, 1), repeat=4)))
    agree = states[:, graph.edges[:, 0]] == states[:, graph.edges[:, 1]]
    weights = (theta ** agree.sum(1)) * ((1 - theta) ** (4 - agree.sum(1)))
    rate = (weights[:, None] * agree).sum(0).mean() / weights.sum()
    num_items = 1e6
    model = group_gibbs.StrippedBetaModel(
        jnp.full(4, num_items * rate), jnp.full(4, num_items * rate), jnp.asarray(num_items)
    )
    plan = sweep_plan(graph)
    state = group_gibbs.init(
        key, jnp.zeros(4, jnp.int32), jnp.full(2, 0.5), plan, num_particles=20_000
    )
    step = jax.jit(
        partial(group_gibbs.step, graph=graph, plan=plan, concentration=1e-12, base=BetaBase())
    )
    for i in range(10):
        state, info = step(jax.random.fold_in(key, i), state, model)
    assert int(info.num_groups) == 1
    # 4.5 standard errors of 80,000 agreements, through the logit
    error = 4.5 * np.sqrt(rate * (1 - rate) / 80_000) / (rate * (1 - rate)) * theta * (1 - theta)
    assert abs(float(state.values[0]) - theta) < error
