"""Ladders of packed chains: every form exchanges as it says, and keeps every distribution."""

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from examples import potential_of, random_model

from jaxmrf.graphs import Graph, torus
from jaxmrf.models import Ising
from jaxmrf.sampling import packed, pairwise_tempering, sampler_plan, tempering
from jaxmrf.sampling.pairwise_tempering import PairwiseTemperingState
from jaxmrf.testing.statistics import chi_square_p_value

GRAPH = Graph(5, [(0, 1), (2, 1), (2, 0), (3, 2)])
LADDER = np.array([0.2, 0.5, 1.0], np.float32)
FORMS = ("lattice", "tables", "sums", "plain")
LEVEL = 1e-4


def fields_of(states, plan):
    """Packed states of every temperature."""
    return jnp.stack([packed.pack(jnp.asarray(each), plan) for each in states])


def states_of(fields, plan):
    return np.stack([np.asarray(packed.unpack(each, plan)) for each in fields])


@pytest.fixture
def no_sweeps(monkeypatch):
    """Exchanges alone."""
    monkeypatch.setattr(packed, "run", lambda key, fields, *rest, **options: fields)


def stepper(model, graph, plan, num_sweeps=1, ladder=LADDER):
    def step(key, fields, num_steps):
        state = PairwiseTemperingState(fields, num_steps)
        return pairwise_tempering.step(
            *(key, state, model, graph, plan),
            inverse_temperatures=ladder,
            num_sweeps=num_sweeps,
        )

    return jax.jit(step)


@pytest.mark.parametrize("form", FORMS)
def test_chains_exchange_as_the_potentials_and_the_info_say(form, key, rng, no_sweeps):
    graph = torus((64, 4)) if form == "lattice" else GRAPH
    model = random_model("ising", graph)
    if form == "lattice":
        model = Ising(jnp.full(graph.num_edges, 0.04), jnp.full(graph.num_nodes, 0.02))
    plan = sampler_plan(graph, model, num_chains=70, form=form)
    states = rng.integers(0, 2, (3, graph.num_nodes, 70)).astype(np.int8)
    step = stepper(model, graph, plan)
    for parity in (0, 1):
        key_step = jax.random.fold_in(key, parity)
        state, info = step(key_step, fields_of(states, plan), parity)
        potential = potential_of(model, graph)
        potentials = np.array([[potential(x) for x in each.T] for each in states])
        np.testing.assert_allclose(info.log_potentials, potentials, rtol=1e-5, atol=1e-4)
        low, high = parity, parity + 1
        change = (LADDER[low] - LADDER[high]) * (potentials[high] - potentials[low])
        prob = np.zeros((3, 70))
        prob[low] = np.minimum(1, np.exp(change))
        np.testing.assert_allclose(info.swap_prob, prob, rtol=1e-4, atol=1e-5)

        is_swapped = np.asarray(info.is_swapped)
        assert 5 < is_swapped[low].sum() < 70 and is_swapped.sum() == is_swapped[low].sum()
        expected = states.copy()
        expected[low] = np.where(is_swapped[low], states[high], states[low])
        expected[high] = np.where(is_swapped[low], states[low], states[high])
        np.testing.assert_array_equal(states_of(state.fields, plan), expected)
        assert state.num_steps == parity + 1


NUM_CHAINS = 50_000
MODEL = random_model("ising", GRAPH)


def exact_joint():
    """Distribution of every temperature, and independent draws of all, states temperatures first"""
    states = np.array(oracles.configurations(5, 2), np.int8)
    potential, generator = potential_of(MODEL, GRAPH), np.random.default_rng(0)
    targets, drawn = [], []
    for beta in LADDER.astype(float):
        target = oracles.distribution(lambda x, beta=beta: beta * potential(x), 5, 2)
        targets.append(target / target.sum())
        drawn.append(states[generator.choice(32, NUM_CHAINS, p=targets[-1])].T)
    return np.array(targets), np.stack(drawn)


def joint_p_value(states, targets, pair):
    """Chi-square of both temperatures of a pair together against the product."""
    codes = (2 ** np.arange(5)[:, None] * states[list(pair)].astype(int)).sum(axis=1)
    counts = np.bincount(32 * codes[0] + codes[1], minlength=1024)
    return chi_square_p_value(counts, np.outer(targets[pair[0]], targets[pair[1]]).ravel())


@pytest.mark.parametrize(
    "form", ["tables", *(pytest.param(form, marks=pytest.mark.slow) for form in FORMS[2:])]
)
def test_every_temperature_keeps_its_distribution(form, key):
    targets, drawn = exact_joint()
    plan = sampler_plan(GRAPH, MODEL, num_chains=NUM_CHAINS, form=form)
    step = stepper(MODEL, GRAPH, plan, 1)
    for parity in (0, 1):
        state, info = step(jax.random.fold_in(key, parity), fields_of(drawn, plan), parity)
        states = states_of(state.fields, plan)
        for pair in ((0, 1), (1, 2)):
            assert joint_p_value(states, targets, pair) > LEVEL
        assert 0.3 < np.asarray(info.is_swapped)[parity].mean() < 1


def test_wrong_sign_of_the_exchange_is_noticed(key, monkeypatch, no_sweeps):
    targets, drawn = exact_joint()
    plan = sampler_plan(GRAPH, MODEL, num_chains=NUM_CHAINS, form="tables")
    state, _ = stepper(MODEL, GRAPH, plan)(key, fields_of(drawn, plan), 1)
    assert joint_p_value(states_of(state.fields, plan), targets, (1, 2)) > LEVEL

    def wrong(key, log_potentials, *rest):
        return tempering.exchange(key, -log_potentials, *rest)

    monkeypatch.setattr(pairwise_tempering, "exchange", wrong)
    state, _ = stepper(MODEL, GRAPH, plan)(key, fields_of(drawn, plan), 1)
    assert joint_p_value(states_of(state.fields, plan), targets, (1, 2)) < 1e-8


def test_one_temperature_is_a_plain_run(key):
    plan = sampler_plan(GRAPH, MODEL, num_chains=40, form="plain")
    with jax.debug_key_reuse(True):
        state = pairwise_tempering.init(jax.random.key(1), MODEL, plan, num_temperatures=1)
    new, info = stepper(MODEL, GRAPH, plan, 2, jnp.ones(1))(key, state.fields, 0)
    key_run = jax.random.split(jax.random.split(key)[0], 1)[0]
    alone = packed.run(key_run, state.fields[0], MODEL, plan, num_sweeps=2)
    np.testing.assert_array_equal(new.fields[0], alone)
    assert not info.is_swapped.any() and (state.fields[0] != alone).any()


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS[1:])
def test_temperatures_swept_at_once_are_those_swept_in_turn(form, key):
    found = []
    for backend in ("cpu", "gpu"):
        plan = sampler_plan(GRAPH, MODEL, num_chains=40, form=form, backend=backend)
        state = pairwise_tempering.init(jax.random.key(1), MODEL, plan, num_temperatures=3)
        found.append(stepper(MODEL, GRAPH, plan)(key, state.fields, 0)[0].fields)
    np.testing.assert_array_equal(*found)


@pytest.mark.slow
def test_ladders_cross_between_modes_that_sweeps_do_not_leave(key):
    cycle = Graph(8, [(node, (node + 1) % 8) for node in range(8)])
    model = Ising(jnp.full(8, 4.0), jnp.zeros(8))
    plan = sampler_plan(cycle, model, num_chains=512, form="tables")
    start = packed.pack(jnp.zeros((8, 512), jnp.int8), plan)
    stuck = packed.run(key, start, model, plan, num_sweeps=100)
    assert packed.unpack(stuck, plan).mean() < 0.01

    ladder = np.geomspace(0.02, 1, 10).astype(np.float32)
    step = stepper(model, cycle, plan, 1, ladder)
    fields = jnp.stack([start] * 10)
    for number in range(200):
        fields = step(jax.random.fold_in(key, number), fields, number)[0].fields
    mean = packed.unpack(fields[-1], plan).mean(dtype=float)
    assert abs(mean - 0.5) < 4.5 * 0.5 / 512**0.5
