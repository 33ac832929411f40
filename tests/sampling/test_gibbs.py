"""The kernel's wiring: one tile after another, padding, clamped nodes, keys and traces."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from examples import (
    KINDS,
    SMALL_UNEVEN,
    UNEVEN,
    potential_of,
    random_model,
    random_states,
    tiles_of,
)
from scipy import special, stats

from jaxmrf.graphs import Graph, grid, sweep_plan
from jaxmrf.logspace import log_softmax_relative
from jaxmrf.models import Ising, Potts
from jaxmrf.sampling import gibbs

GRAPH_OF = {"ising": UNEVEN, "potts": SMALL_UNEVEN, "pairwise": SMALL_UNEVEN}  # 512, 243, 243
CLAMPED = (1,)


def sweep_matrix(model, plan):
    """The sweep as a matrix over configurations, from the kernel's own conditionals."""
    num_nodes, num_states = plan.num_nodes, model.num_states
    states = np.array(oracles.configurations(num_nodes, num_states), np.int8)
    rows = np.zeros((plan.num_rows, len(states)), np.int8)
    rows[plan.rows] = states.T
    matrix = np.eye(len(states))
    for nodes, block in tiles_of(plan):
        logits = model.relative_logits(block, jnp.asarray(rows))[:, : len(nodes)]
        conditionals = np.exp(np.asarray(log_softmax_relative(logits), np.float64)).T
        conditionals /= conditionals.sum(axis=2, keepdims=True)
        matrix = matrix @ oracles.block_transition_matrix(
            nodes.tolist(), conditionals, num_nodes, num_states
        )
    return matrix


def violation(model, plan, potential):
    """How far the sweep moves the exact distribution, restricted to the clamped values or not."""
    target = oracles.distribution(potential, plan.num_nodes, model.num_states)
    return np.abs(target @ sweep_matrix(model, plan) - target).max()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("clamped", [(), CLAMPED])
def test_sweep_leaves_the_exact_distribution(kind, clamped):
    graph = GRAPH_OF[kind]
    model, plan = random_model(kind, graph), sweep_plan(graph, clamped=clamped)
    assert violation(model, plan, potential_of(model, graph)) < 1e-6
    matrix = sweep_matrix(model, plan)
    np.testing.assert_allclose(matrix.sum(axis=1), 1, atol=1e-9)
    states = np.array(oracles.configurations(graph.num_nodes, model.num_states))
    fixed = list(clamped) or [0]
    changes = (states[:, None, fixed] != states[None, :, fixed]).any(axis=2)
    assert (matrix[changes].max() == 0) == bool(clamped)


class WrongSign(Ising):
    def relative_logits(self, block, states):
        return Ising(self.couplings.at[2].multiply(-1), self.fields).relative_logits(block, states)


def with_tiles(plan, change):
    """The plan with every stack of tiles changed."""
    stacks = [jax.tree.map(np.array, stack) for stack in plan.tiles]
    for stack in stacks:
        change(stack)
    return dataclasses.replace(plan, tiles=tuple(stacks))


def forget_padding(stack):
    stack.edges[stack.edges == 9] = 0


def forget_orientation(stack):
    stack.is_second[:] = False


def mix_up_neighbors(stack):
    stack.neighbors[:] = np.roll(stack.neighbors, 1, axis=-1)


@pytest.mark.parametrize(
    "bug", [forget_padding, mix_up_neighbors, forget_orientation, "sign", "colors"]
)
def test_planted_bug_breaks_stationarity(bug, monkeypatch):
    kind = "pairwise" if bug is forget_orientation else "ising"
    graph = GRAPH_OF[kind]
    model, plan = random_model(kind, graph), sweep_plan(graph)
    potential = potential_of(model, graph)
    if bug == "sign":
        model = WrongSign(model.couplings, model.fields)
    elif bug == "colors":
        monkeypatch.setattr("jaxmrf.graphs.sweeps.check_colors", lambda graph, colors: colors)
        plan = sweep_plan(graph, colors=np.zeros(9, int))
    else:
        plan = with_tiles(plan, bug)
    assert violation(model, plan, potential) > 1e-4


@jax.jit
def sweep(key, states, model, plan):
    return gibbs.sweep(key, states, model, plan)


def configuration_counts(states, num_states):
    """How many chains are in each configuration."""
    states = np.asarray(states, np.int64)
    powers = num_states ** np.arange(len(states))
    return np.bincount(powers @ states, minlength=num_states ** len(states))


def chi_square(counts, probabilities):
    """P-value, configurations that are expected less than five times pooled."""
    expected = probabilities / probabilities.sum() * counts.sum()
    rare = expected < 5
    pooled = [np.append(part[~rare], part[rare].sum()) for part in (counts, expected)]
    assert counts[expected == 0].sum() == 0
    keep = pooled[1] > 0
    return stats.chisquare(pooled[0][keep], pooled[1][keep]).pvalue


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("clamped", [(), CLAMPED])
def test_sweep_draws_from_its_transition_matrix(kind, clamped, key):
    """From one configuration, and from the exact distribution, in 100,000 chains."""
    graph, num_chains = GRAPH_OF[kind], 100_000
    model, plan = random_model(kind, graph), sweep_plan(graph, clamped=clamped)
    size = graph.num_nodes, model.num_states
    matrix = sweep_matrix(model, plan)
    states = np.array(oracles.configurations(*size), np.int8)
    start = jnp.asarray(np.repeat(states[37:38].T, num_chains, axis=1))
    found = sweep(key, start, model, plan)
    assert chi_square(configuration_counts(found, size[1]), matrix[37]) > 1e-4

    target = oracles.distribution(potential_of(model, graph), *size)
    chosen = np.random.default_rng(0).choice(len(states), num_chains, p=target / target.sum())
    found = sweep(jax.random.key(1), jnp.asarray(states[chosen].T), model, plan)
    assert chi_square(configuration_counts(found, size[1]), target) > 1e-4


def test_clamped_nodes_keep_their_states_and_the_others_move(key):
    model = random_model("potts", UNEVEN)
    states = jnp.asarray(random_states(UNEVEN, 3, 64).T)
    found = gibbs.run(key, states, model, sweep_plan(UNEVEN, clamped=[0, 4]), num_sweeps=3)
    is_same = np.asarray(found == states).all(axis=1)
    assert is_same.tolist() == [node in (0, 4) for node in range(9)]


def test_all_nodes_clamped_change_nothing(key):
    model = random_model("ising", UNEVEN)
    states = jnp.asarray(random_states(UNEVEN, 2, 5).T)
    found = gibbs.run(key, states, model, sweep_plan(UNEVEN, clamped=range(9)), num_sweeps=2)
    np.testing.assert_array_equal(found, states)


def test_graph_without_edges_is_drawn_independently(key):
    graph = Graph(3, [])
    model = Ising(jnp.zeros(0), jnp.array([-0.5, 0.0, 1.0]))
    start = jnp.zeros((3, 50_000), jnp.int8)
    means = gibbs.sweep(key, start, model, sweep_plan(graph)).mean(axis=1, dtype=float)
    np.testing.assert_allclose(means, special.expit(2 * model.fields), atol=4.5 * 0.5 / 50_000**0.5)


def test_init_is_uniform_over_the_states(key):
    plan = sweep_plan(UNEVEN)
    states = gibbs.init(key, random_model("potts", UNEVEN), plan, num_chains=2000)
    assert states.shape == (9, 2000) and states.dtype == jnp.int8
    assert stats.chisquare(np.bincount(np.ravel(states), minlength=3)).pvalue > 1e-4


def test_many_states_are_not_squeezed_into_a_byte(key):
    graph = Graph(2, [(0, 1)])
    model, plan = Potts(jnp.ones(1), jnp.zeros((2, 200))), sweep_plan(graph)
    states = gibbs.init(key, model, plan, num_chains=2000)
    assert states.dtype == jnp.int32 and states.max() == 199
    assert gibbs.sweep(key, states, model, plan).max() == 199


@pytest.mark.parametrize("dtype", [jnp.int8, jnp.int32])
def test_sweep_keeps_shape_and_type_of_the_state(dtype, key):
    states = jnp.asarray(random_states(UNEVEN, 2, 7).T, dtype)
    found = sweep(key, states, random_model("ising", UNEVEN), sweep_plan(UNEVEN))
    assert found.shape == states.shape and found.dtype == dtype


def test_same_key_same_states_and_another_key_others():
    states = jnp.asarray(random_states(UNEVEN, 2, 20).T)
    arguments = states, random_model("ising", UNEVEN), sweep_plan(UNEVEN)
    first, again, other = (sweep(jax.random.key(seed), *arguments) for seed in (3, 3, 4))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


def test_chains_and_sweeps_get_their_own_random_numbers(key):
    graph = Graph(2, [])
    model, plan = Ising(jnp.zeros(0), jnp.zeros(2)), sweep_plan(graph)
    start = jnp.zeros((2, 4000), jnp.int8)
    draws = [start := gibbs.run(key, start, model, plan, num_sweeps=n) for n in (1, 2)]
    bits = np.concatenate([np.asarray(draw, float) for draw in draws])
    assert np.abs(np.corrcoef(bits) - np.eye(4)).max() < 4.5 / 4000**0.5
    halves = np.asarray(draws[0], float).reshape(4, 2000)
    assert np.abs(np.corrcoef(halves) - np.eye(4)).max() < 4.5 / 2000**0.5


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_keys_of_every_generator_work(impl):
    key = jax.random.key(0, impl=impl)
    states = jnp.asarray(random_states(UNEVEN, 2, 2000).T)
    model, plan = Ising(jnp.zeros(9), jnp.zeros(9)), sweep_plan(UNEVEN)
    mean = gibbs.sweep(key, states, model, plan).mean(dtype=float)
    assert abs(mean - 0.5) < 4.5 * 0.5 / 18_000**0.5


def test_raw_key_draws_as_the_typed_key():
    states = jnp.asarray(random_states(UNEVEN, 2, 20).T)
    arguments = states, random_model("ising", UNEVEN), sweep_plan(UNEVEN)
    typed, raw = jax.random.key(5), jax.random.PRNGKey(5)
    np.testing.assert_array_equal(sweep(typed, *arguments), sweep(raw, *arguments))


def test_generator_that_jax_does_not_have_falls_back(monkeypatch, key):
    def missing(*args, **kwargs):
        raise ValueError("unrecognized PRNG implementation")

    monkeypatch.setattr(jax.random, "wrap_key_data", missing)
    states = jnp.zeros((9, 5000), jnp.int8)
    model, plan = Ising(jnp.zeros(9), jnp.zeros(9)), sweep_plan(UNEVEN)
    means = gibbs.sweep(key, states, model, plan).mean(axis=1, dtype=float)
    assert np.abs(means - 0.5).max() < 4.5 * 0.5 / 5000**0.5


def test_no_key_is_used_twice(key):
    states = jnp.asarray(random_states(UNEVEN, 2, 3).T)
    with jax.debug_key_reuse(True):
        gibbs.run(key, states, random_model("ising", UNEVEN), sweep_plan(UNEVEN), num_sweeps=2)


def test_one_sweep_is_run_with_one_sweep(key):
    states = jnp.asarray(random_states(UNEVEN, 3, 8).T)
    arguments = key, states, random_model("potts", UNEVEN), sweep_plan(UNEVEN)
    np.testing.assert_array_equal(gibbs.sweep(*arguments), gibbs.run(*arguments, num_sweeps=1))


def test_jit_and_vmap_equal_the_plain_loop():
    plan = sweep_plan(UNEVEN)
    models = [random_model("ising", UNEVEN, seed=seed) for seed in range(2)]
    keys = jax.random.split(jax.random.key(0), 2)
    states = jnp.asarray(random_states(UNEVEN, 2, 16).T).reshape(9, 2, 8).swapaxes(0, 1)
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *models)
    run = lambda key, states, model: gibbs.run(key, states, model, plan, num_sweeps=2)  # noqa: E731
    together = jax.jit(jax.vmap(run))(keys, states, stacked)
    for number, model in enumerate(models):
        np.testing.assert_array_equal(together[number], run(keys[number], states[number], model))


def test_one_trace_serves_two_calls_and_another_graph_of_equal_sizes(key):
    cycle = Graph(6, [(i, (i + 1) % 6) for i in range(6)])
    other = Graph(6, [(0, 3), (3, 1), (1, 4), (4, 2), (2, 5), (5, 0)])
    traces = []

    @jax.jit
    def traced(key, states, model, plan):
        traces.append(1)
        return gibbs.sweep(key, states, model, plan)

    for graph in (cycle, cycle, other):
        states = jnp.asarray(random_states(graph, 2, 4).T)
        states = traced(key, states, random_model("ising", graph), sweep_plan(graph))
    assert len(traces) == 1
    traced(
        key,
        jnp.zeros((6, 4), jnp.int8),
        random_model("ising", grid((2, 3))),
        sweep_plan(grid((2, 3))),
    )
    assert len(traces) == 2
