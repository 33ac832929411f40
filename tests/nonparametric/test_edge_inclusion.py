"""Edges in or out beside their groups: against all partitions and presence patterns on a cycle."""

from functools import lru_cache, partial

import grouped_oracle
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmrf.graphs import frontier_plan, grid
from jaxmrf.nonparametric import (
    edge_inclusion,
    edge_messages,
    expansion,
    group_corrected,
    group_exact,
    label_updates,
)
from jaxmrf.nonparametric.base_measures import BetaBase
from jaxmrf.nonparametric.label_updates import Auxiliary, Metropolis, Quadrature

SQUARE = grid((2, 2))
PLAN = frontier_plan(SQUARE)
AGREEMENTS, NUM_ITEMS, CONCENTRATION = np.array([5.0, 4.0, 2.0, 5.0]), 6.0, 1.2
INCLUSION = 0.3
NO_PARTICLES = jnp.zeros((4, 0), jnp.int8)


@lru_cache
def oracle(budget=2**14):
    return grouped_oracle.inclusion_posterior(
        SQUARE.edges, 4, AGREEMENTS, NUM_ITEMS, CONCENTRATION, INCLUSION, budget
    )


@partial(jax.jit, static_argnames=("rule", "num_steps"))
def run_exact(keys, inclusion, *, rule=Auxiliary(), num_steps=12):  # noqa: B008
    """Labels, presence, agreements and a prior slot of independent chains from the full graph."""
    model = group_exact.EdgeCounts(jnp.asarray(AGREEMENTS), jnp.asarray(NUM_ITEMS))
    start = group_exact.init(jnp.zeros(4, jnp.int32), jnp.full(5, 0.5))

    def chain(key):
        def body(state, key):
            return group_exact.step(
                key, state, model, SQUARE, PLAN, concentration=CONCENTRATION, base=BetaBase(),
                rule=rule, inclusion=inclusion,
            )  # fmt: skip

        state, info = jax.lax.scan(body, start, jax.random.split(key, num_steps))
        theta = jnp.where(state.is_present, state.values[state.labels], 0.5)
        return state.labels, state.is_present, theta, info.accept_prob

    return jax.vmap(chain)(keys)


def p_values(labels, is_present):
    """Of the partitions, of the presence patterns, and of both together."""
    table, _, joint, _ = oracle()
    powers = 2 ** np.arange(4)[::-1]  # the patterns in their order
    column = np.asarray(is_present) @ powers
    row_of = {tuple(row): i for i, row in enumerate(table.tolist())}
    row = np.array([row_of[tuple(labels)] for labels in np.asarray(labels).tolist()])
    counts = np.zeros_like(joint)
    np.add.at(counts, (row, column), 1)
    expected = joint * len(row)
    return {
        "partitions": grouped_oracle.pooled_p_value(counts.sum(1), expected.sum(1)),
        "presence": grouped_oracle.pooled_p_value(counts.sum(0), expected.sum(0)),
        "joint": grouped_oracle.pooled_p_value(counts.ravel(), expected.ravel()),
    }


def test_oracle_without_absence_is_that_of_partitions():
    table, patterns, joint, _ = oracle()
    given, probabilities, _ = grouped_oracle.posterior(
        SQUARE.edges, 4, AGREEMENTS, NUM_ITEMS, CONCENTRATION, 2**14
    )
    np.testing.assert_array_equal(table, given)
    assert patterns[-1].all()
    np.testing.assert_allclose(joint[:, -1] / joint[:, -1].sum(), probabilities, rtol=1e-9)
    np.testing.assert_allclose(joint, oracle(2**12)[2], atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "rule",
    [
        Auxiliary(),
        pytest.param(Quadrature(), marks=pytest.mark.slow),
        pytest.param(Metropolis(2), marks=pytest.mark.slow),
    ],
)
def test_presence_and_groups_reach_the_exact_posterior_on_a_cycle(key, rule):
    keys = jax.random.split(key, 1500)
    labels, is_present, theta, accept_prob = run_exact(keys, INCLUSION, rule=rule)
    assert min(p_values(labels, is_present).values()) > 1e-3, p_values(labels, is_present)
    theta = np.asarray(theta)
    z = (theta.mean(axis=0) - oracle()[3]) / (theta.std(axis=0) / np.sqrt(len(theta)))
    assert np.abs(z).max() < 4
    assert accept_prob.mean() > 0.5
    # the prior of the presence left out, as probability 1/2 would: far from the posterior
    labels, is_present, *_ = run_exact(keys, 0.5, rule=rule)
    assert p_values(labels, is_present)["presence"] < 1e-9


@pytest.mark.slow
def test_many_chains_have_the_exact_posterior_of_groups_and_presence(key):
    keys = jax.random.split(key, 20_000)
    labels, is_present, *_ = run_exact(keys, INCLUSION, num_steps=25)
    assert min(p_values(labels, is_present).values()) > 1e-3, p_values(labels, is_present)


def planted(key):
    run_exact.clear_cache()
    try:
        labels, is_present, *_ = run_exact(jax.random.split(key, 4000), INCLUSION)
    finally:
        run_exact.clear_cache()
    return p_values(labels, is_present)


@pytest.mark.slow
def test_labels_that_see_the_data_of_absent_edges_are_caught(key, monkeypatch):
    right = label_updates.sweep
    wrong = lambda *args, is_present, **options: right(*args, **options)  # noqa: E731
    monkeypatch.setattr(group_exact.label_updates, "sweep", wrong)
    assert planted(key)["joint"] < 1e-6


@pytest.mark.slow
def test_messages_of_the_full_graph_are_caught(key, monkeypatch):
    monkeypatch.setattr(group_exact, "if_present", lambda values, is_present: values)
    assert planted(key)["joint"] < 1e-6


LOGITS = np.array([1.5, 1.2, -0.9, 0.8], np.float32)
PROBABILITIES = np.array([0.3, 0.4, 0.5, 0.6], np.float32)


def pattern_posterior():
    """Exact posterior of the presence patterns at fixed values, by all states of the field."""
    _, patterns, _, _ = oracle()
    states = np.array(np.meshgrid(*[[0, 1]] * 4)).reshape(4, -1).T
    agree = states[:, SQUARE.edges[:, 0]] == states[:, SQUARE.edges[:, 1]]
    logits = np.where(patterns, LOGITS, 0.0)
    log_z = np.log(np.exp(agree @ logits.T).sum(axis=0))
    log_prior = np.where(patterns, np.log(PROBABILITIES), np.log1p(-PROBABILITIES)).sum(axis=1)
    weights = np.exp(log_prior + logits @ AGREEMENTS - NUM_ITEMS * log_z)
    return patterns, weights / weights.sum()


def presence_p_value(key, change=lambda messages: messages):
    """Of the patterns after one sweep from exact ones."""
    patterns, probabilities = pattern_posterior()
    key_start, key_sweep = jax.random.split(key)
    start = jax.random.choice(key_start, 16, (20_000,), p=jnp.asarray(probabilities))

    def one(key, is_present):
        logits = edge_messages.if_present(jnp.asarray(LOGITS), is_present)
        return edge_inclusion.sweep(
            key, is_present, jnp.asarray(LOGITS), jnp.asarray(AGREEMENTS), jnp.asarray(NUM_ITEMS),
            change(edge_messages.by_transfer(logits, PLAN)), inclusion=jnp.asarray(PROBABILITIES),
        )  # fmt: skip

    keys = jax.random.split(key_sweep, len(start))
    drawn = np.asarray(jax.jit(jax.vmap(one))(keys, jnp.asarray(patterns)[start]))
    assert (drawn != patterns[np.asarray(start)]).mean() > 0.1
    counts = np.bincount(drawn @ (2 ** np.arange(4)[::-1]), minlength=16)
    return grouped_oracle.pooled_p_value(counts, probabilities * len(drawn))


def test_presence_sweep_keeps_its_exact_conditional(key):
    assert presence_p_value(key) > 1e-3
    frozen = lambda messages: messages._replace(  # noqa: E731
        move=lambda table, inputs, logit, change: messages.move(table, inputs, 0 * logit, change)
    )
    assert presence_p_value(key, frozen) < 1e-6  # edges that later ones take for absent


def test_certain_presence_and_absence_are_kept(key):
    inclusion = jnp.array([1.0, 0.0, 1.0, 0.0])
    drawn = edge_inclusion.sweep(
        key, jnp.zeros(4, bool), jnp.zeros(4), jnp.ones(4), jnp.array(2.0),
        edge_messages.none(4), inclusion=inclusion,
    )  # fmt: skip
    assert drawn.tolist() == [True, False, True, False]


def test_groups_without_a_present_edge_have_no_data():
    labels = jnp.array([0, 1, 1, 2])
    is_present = jnp.array([True, False, True, False])
    assert edge_inclusion.has_data(labels, 4, is_present).tolist() == [True, True, False, False]
    assert edge_inclusion.has_data(labels, 4, None).tolist() == [True, True, True, False]


@pytest.mark.slow
def test_linear_response_is_near_the_exact_posterior_of_presence(key):
    agreements, num_items = np.array([130.0, 112.0, 104.0, 124.0]), 200.0
    _, patterns, joint, means = grouped_oracle.inclusion_posterior(
        SQUARE.edges, 4, agreements, num_items, CONCENTRATION, INCLUSION, 2**18
    )
    model = group_exact.EdgeCounts(jnp.asarray(agreements), jnp.asarray(num_items))
    expand = lambda key, center, particles: (  # noqa: E731
        expansion.by_transfer(center, SQUARE, PLAN),
        particles,
    )
    labels, values = jnp.zeros(4, jnp.int32), jnp.full(5, 0.5)
    start = group_corrected.init(
        key, labels, values, jnp.asarray(agreements / num_items), NO_PARTICLES, expand
    )

    @jax.jit
    @jax.vmap
    def chain(key):
        def body(state, key):
            state, _ = group_corrected.step(
                key, state, model, concentration=CONCENTRATION, base=BetaBase(),
                inclusion=INCLUSION,
            )  # fmt: skip
            theta = jnp.where(state.is_present, state.values[state.labels], 0.5)
            return state, (state.is_present, theta)

        keys = jax.random.split(key, 60)
        state, _ = jax.lax.scan(body, start, keys[:20])
        state = group_corrected.recenter(key, state, expand)
        return jax.lax.scan(body, state, keys[20:])[1]

    is_present, theta = chain(jax.random.split(key, 500))
    presence = np.asarray(is_present).mean(axis=(0, 1))
    np.testing.assert_allclose(presence, joint.sum(axis=0) @ patterns, atol=0.06)
    np.testing.assert_allclose(np.asarray(theta).mean(axis=(0, 1)), means, atol=0.01)
