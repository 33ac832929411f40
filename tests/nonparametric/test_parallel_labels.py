"""The sweep over all edges at once against the exact posterior of partitions on a tree."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from grouped_oracle import partition_p_value
from jax.scipy.special import logit
from scipy import stats
from tree_oracle import (
    AGREEMENTS,
    CONCENTRATION,
    NUM_ITEMS,
    canonical,
    exact_draws,
    exact_partitions,
    value_p_value,
)

from jaxmrf.graphs import grid, sweep_plan
from jaxmrf.infer import StrippedBeta
from jaxmrf.nonparametric import edge_messages, group_gibbs, label_updates, parallel_labels
from jaxmrf.nonparametric.base_measures import BetaBase, GeneralBase
from jaxmrf.nonparametric.parallel_labels import Parallel

MAX_GROUPS = 24
GENERAL = GeneralBase(BetaBase(2.0, 1.5).log_density, BetaBase(2.0, 1.5).sample)
BASES = {"uniform": BetaBase(), "beta": BetaBase(2.0, 0.7), "general": GENERAL}


def run(key, labels, values, *, base, rule=None):
    """Canonical labels, agreements of the edges and fullness after a sweep or an update."""

    @jax.jit
    @jax.vmap
    def one(key, labels, values):
        inputs = (key, labels, logit(values), jnp.asarray(AGREEMENTS), jnp.asarray(NUM_ITEMS))
        options = {"concentration": CONCENTRATION, "base": base}
        if rule is None:
            return parallel_labels.sweep(*inputs, **options)
        return parallel_labels.update(*inputs, rule=rule, **options)

    labels, logits, is_full = one(jax.random.split(key, len(labels)), labels, values)
    return *canonical(labels, jax.nn.sigmoid(logits)), np.asarray(is_full)


@pytest.mark.slow
@pytest.mark.parametrize("name", BASES)
def test_sweep_leaves_the_exact_posterior_invariant(key, rng, name):
    base = BASES[name]
    a, b = (2.0, 1.5) if name == "general" else base
    labels, values = exact_draws(rng, 10_000, a, b, max_groups=MAX_GROUPS)
    after, theta, is_full = run(key, labels, values, base=base)
    assert partition_p_value(after, *exact_partitions(a, b)) > 1e-3
    assert value_p_value(after, theta, a, b) > 1e-3
    assert np.any(after != labels, axis=1).mean() > 0.2
    assert is_full.mean() < 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("rule", [Parallel(2, 3), Parallel(0, 9)])
def test_update_leaves_the_exact_posterior_invariant(key, rng, rule):
    labels, values = exact_draws(rng, 10_000, max_groups=MAX_GROUPS)
    after, theta, _ = run(key, labels, values, base=BetaBase(), rule=rule)
    assert partition_p_value(after, *exact_partitions()) > 1e-3
    assert value_p_value(after, theta) > 1e-3


@pytest.mark.slow
def test_grouped_sampler_reaches_the_exact_posterior_from_one_group(key):
    """In 16 sweeps: measured, 12 suffice with a split-merge move, without it about 30."""
    tree = grid((1, 5))
    plan = sweep_plan(tree)
    counts = jnp.asarray(AGREEMENTS)
    model = group_gibbs.StrippedBetaModel(counts, counts, jnp.asarray(NUM_ITEMS))

    @jax.jit
    @jax.vmap
    def chain(key):
        key_init, key_steps = jax.random.split(key)
        labels, values = jnp.zeros(4, jnp.int32), jnp.full(MAX_GROUPS, 0.5)
        state = group_gibbs.init(key_init, labels, values, plan, num_particles=1)

        def body(state, key):
            return group_gibbs.step(
                key, state, model, tree, plan, concentration=CONCENTRATION, base=BetaBase(),
                rule=Parallel(), num_refits=0,
            )  # fmt: skip

        return jax.lax.scan(body, state, jax.random.split(key_steps, 16))[0]

    state = chain(jax.random.split(key, 3_000))
    labels, theta = canonical(state.labels, state.values)
    np.testing.assert_array_equal(labels, state.labels)
    assert partition_p_value(labels, *exact_partitions()) > 1e-3
    assert value_p_value(labels, theta) > 1e-3
    unused = np.asarray(state.values)[:, -1]
    assert stats.kstest(unused, "uniform").pvalue > 1e-3


def test_planted_bug_in_the_weights_is_caught(key, rng, monkeypatch):
    right = parallel_labels._draw_weights

    def wrong(*inputs):
        weights, rest = right(*inputs)
        return weights**0.7, rest

    monkeypatch.setattr(parallel_labels, "_draw_weights", wrong)
    labels, values = exact_draws(rng, 10_000, max_groups=MAX_GROUPS)
    after, *_ = run(key, labels, values, base=BetaBase())
    assert partition_p_value(after, *exact_partitions()) < 1e-6


@pytest.mark.slow
def test_weights_are_those_of_the_posterior_process(key):
    """Beta marginals of a group and of the first stick, and nothing lost."""
    labels = jnp.array([0, 2, 2, 0, 2, 2], jnp.int32)
    draw = jax.vmap(lambda key: parallel_labels._draw_weights(key, labels, 5, 1.7))
    weights, rest = (np.asarray(leaf) for leaf in draw(jax.random.split(key, 10_000)))
    np.testing.assert_allclose(weights.sum(axis=1) + rest, 1.0, atol=1e-5)
    assert stats.kstest(weights[:, 2], stats.beta(4, 3.7).cdf).pvalue > 1e-3
    remainder = 1 - weights[:, 0] - weights[:, 2]
    assert stats.kstest(remainder, stats.beta(1.7, 6).cdf).pvalue > 1e-3
    assert stats.kstest(weights[:, 1] / remainder, stats.beta(1, 1.7).cdf).pvalue > 1e-3
    left = (remainder - weights[:, 1] - weights[:, 3]) / (remainder - weights[:, 1])
    assert stats.kstest(1 - left, stats.beta(1, 1.7).cdf).pvalue > 1e-3


@pytest.mark.slow
def test_buffer_too_small_for_the_sticks_is_reported(key):
    labels = jnp.tile(jnp.array([0, 1, 0, 1], jnp.int32), (500, 1))
    *_, is_full = run(key, labels, jnp.full((500, 2), 0.5), base=BetaBase())
    *_, has_room = run(key, labels, jnp.full((500, 40), 0.5), base=BetaBase())
    # the smallest of four slices is below the remainder of about 1.2 / 5.2 in most draws
    assert is_full.mean() > 0.5 and not has_room.any()


def test_sweep_over_some_edges_leaves_the_others_alone(key):
    labels = jnp.arange(6, dtype=jnp.int32)
    messages = edge_messages.none(2)._replace(order=jnp.array([4, 1]))
    successes = jnp.array([0.0, 50.0, 100.0, 50.0, 50.0, 50.0])
    after, *_ = label_updates.sweep(
        key, labels, logit(jnp.linspace(0.2, 0.8, 8)), successes, jnp.asarray(100.0), messages,
        concentration=1.0, base=BetaBase(), rule=label_updates.DEFAULT_RULE,
    )  # fmt: skip
    assert after[jnp.array([0, 2, 3, 5])].tolist() == [0, 2, 3, 5]
    assert after[4] == 3 and after[1] in (2, 3)  # 0.54 is near, 0.29 and 0.63 are far


def test_negative_number_of_moves_raises():
    with pytest.raises(ValueError, match="expected num_split_merge to be at least 0, got -1; pass"):
        Parallel(num_split_merge=-1)
    with pytest.raises(ValueError, match="expected num_sequential to be at least 0, got -2; pass"):
        Parallel(num_sequential=-2)


@pytest.mark.slow
def test_stripped_beta_passes_the_rule_on(key):
    tree = grid((1, 5))
    counts = jnp.asarray(AGREEMENTS)
    model = group_gibbs.StrippedBetaModel(counts, counts, jnp.asarray(NUM_ITEMS))
    labels, values = jnp.array([0, 1, 1, 0], jnp.int32), jnp.full(MAX_GROUPS, 0.5)
    key_init, key = jax.random.split(key)
    state = group_gibbs.init(key_init, labels, values, sweep_plan(tree), num_particles=1)
    likelihood = StrippedBeta(rule=Parallel())
    found, _ = likelihood.step(key, state, model, tree, CONCENTRATION, BetaBase())
    expected, _ = group_gibbs.step(
        key, state, model, tree, sweep_plan(tree), concentration=CONCENTRATION, base=BetaBase(),
        rule=Parallel(), num_refits=0,
    )  # fmt: skip
    np.testing.assert_array_equal(found.labels, expected.labels)
    np.testing.assert_array_equal(found.values, expected.values)
