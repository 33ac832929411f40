"""The sampler with messages by linear response against the exact one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from grouped_oracle import partition_p_value, posterior

from jaxmrf.graphs import frontier_plan, grid, sweep_plan
from jaxmrf.nonparametric import expansion, group_corrected, group_exact
from jaxmrf.nonparametric.base_measures import BetaBase

SQUARE = grid((2, 2))
PATH = grid((1, 5))
NO_PARTICLES = jnp.zeros((4, 0), jnp.int8)


def exactly(graph):
    plan = frontier_plan(graph)
    return lambda key, center, particles: (expansion.by_transfer(center, graph, plan), particles)


def start(graph, key, expand, *, estimate=None, num_groups=5, particles=NO_PARTICLES):
    estimate = jnp.full(graph.num_edges, 0.6) if estimate is None else estimate
    labels = jnp.zeros(graph.num_edges, jnp.int32)
    values = jnp.full(num_groups, 0.5)
    return group_corrected.init(key, labels, values, estimate, particles, expand)


def run(graph, model, key, *, num_chains, num_steps):
    """Independent chains, the center moved once to the mean of the first half of the steps."""
    expand = exactly(graph)
    state = start(graph, key, expand, estimate=model.agreements / model.num_items)

    @jax.jit
    @jax.vmap
    def chain(key):
        def body(state, key):
            state, _ = group_corrected.step(key, state, model, concentration=1.2, base=BetaBase())
            return state, None

        keys = jax.random.split(key, num_steps)
        half = num_steps // 2
        settled, _ = jax.lax.scan(body, state, keys[:half])
        return jax.lax.scan(body, group_corrected.recenter(key, settled, expand), keys[half:])[0]

    return chain(jax.random.split(key, num_chains))


@pytest.mark.slow
def test_partitions_on_a_tree_have_their_exact_posterior(key):
    """No messages there; only the values are drawn by a Gaussian, close at 200 observations."""
    agreements = np.array([120.0, 125.0, 60.0, 118.0])
    model = group_exact.EdgeCounts(jnp.asarray(agreements), jnp.asarray(200.0))
    table, probabilities, means = posterior(PATH.edges, 5, agreements, 200.0, 1.2, 2**18)
    state = run(PATH, model, key, num_chains=2000, num_steps=30)
    assert partition_p_value(state.labels, table, probabilities) > 1e-3
    theta = np.take_along_axis(np.asarray(state.values), np.asarray(state.labels), axis=1)
    np.testing.assert_allclose(theta.mean(axis=0), means, atol=0.004)


@pytest.mark.slow
def test_posterior_on_a_cycle_is_near_the_exact_one(key):
    agreements = np.array([130.0, 140.0, 60.0, 135.0])
    model = group_exact.EdgeCounts(jnp.asarray(agreements), jnp.asarray(200.0))
    table, probabilities, means = posterior(SQUARE.edges, 4, agreements, 200.0, 1.2, 2**18)
    state = run(SQUARE, model, key, num_chains=2000, num_steps=30)
    theta = np.take_along_axis(np.asarray(state.values), np.asarray(state.labels), axis=1)
    np.testing.assert_allclose(theta.mean(axis=0), means, atol=0.01)
    same = np.asarray(state.labels)[:, :, None] == np.asarray(state.labels)[:, None, :]
    expected = np.einsum("p,pij->ij", probabilities, table[:, :, None] == table[:, None, :])
    np.testing.assert_allclose(same.mean(axis=0), expected, atol=0.06)


@pytest.mark.slow
def test_recenter_moves_to_the_mean_and_measures_the_error(key):
    expand = exactly(SQUARE)
    model = group_exact.EdgeCounts(jnp.array([30.0, 28.0, 10.0, 30.0]), jnp.asarray(40.0))
    state = start(SQUARE, key, expand)
    assert np.isnan(state.surrogate_error)
    logits = []
    for i in range(3):
        state, info = group_corrected.step(
            jax.random.fold_in(key, i), state, model, concentration=1.0, base=BetaBase()
        )
        theta = np.asarray(state.values[state.labels])
        logits.append(np.log(theta) - np.log1p(-theta))
        assert info.step_size <= 0.5
    mean = np.mean(logits, axis=0)
    np.testing.assert_allclose(state.mean_logits, mean, rtol=1e-4)
    used = state.expansion
    state = group_corrected.recenter(key, state, expand)
    np.testing.assert_allclose(state.expansion.center, mean, rtol=1e-4)
    exact = expansion.by_transfer(jnp.asarray(mean), SQUARE, frontier_plan(SQUARE))
    error = np.abs(expansion.messages(used, jnp.asarray(mean)) - exact.messages).max()
    np.testing.assert_allclose(state.surrogate_error, error, rtol=1e-3)
    assert int(state.num_steps) == 0


@pytest.mark.slow
def test_estimate_at_the_border_gives_a_finite_center(key):
    state = start(SQUARE, key, exactly(SQUARE), estimate=jnp.array([0.0, 1.0, 0.5, 0.6]))
    assert np.isfinite(state.expansion.messages).all()
    assert np.abs(state.expansion.center).max() == 5.0


@pytest.mark.slow
def test_full_buffer_is_reported(key):
    model = group_exact.EdgeCounts(jnp.array([39.0, 39.0, 10.0, 30.0]), jnp.asarray(40.0))
    state = start(SQUARE, key, exactly(SQUARE), num_groups=1)
    state, _ = group_corrected.step(key, state, model, concentration=1.0, base=BetaBase())
    assert bool(state.is_truncated)


def test_sampled_expansion_keeps_its_chains(key):
    particles = jax.random.randint(key, (4, 50), 0, 2, dtype=jnp.int8)

    def expand(key, center, particles):
        return expansion.by_sampling(
            key, center, particles, SQUARE, sweep_plan(SQUARE), num_snapshots=4
        )

    state = start(SQUARE, key, expand, particles=particles)
    assert state.particles.shape == (4, 50)
    assert (np.asarray(state.particles) != np.asarray(particles)).any()
