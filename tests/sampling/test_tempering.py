import jax
import jax.numpy as jnp
import numpy as np
import pytest
from factor_models import NUM_STATES, counts_of, distribution, draws, mixed, p_value

from jaxmrf.graphs import blanket_plan
from jaxmrf.sampling import tempering
from jaxmrf.sampling.tempering import TemperingState

GRAPH = mixed(seed=3)
PLAN = blanket_plan(GRAPH.hypergraph)
LADDER = np.array([0.2, 0.5, 1.0])
NUM_REPLICATES = 20_000
LEVEL = 1e-4


def stationary(seed=0):
    """Replicas in their exact distributions, one chain of tempering after the other."""
    parts = [
        draws(distribution(GRAPH, power), NUM_REPLICATES, seed + number)
        for number, power in enumerate(LADDER)
    ]
    return jnp.asarray(np.stack(parts, axis=2).transpose(1, 0, 2))


def step_all(key, states, parity, ladder=LADDER):
    def one(key, states):
        state = TemperingState(states, jnp.asarray(parity, jnp.int32))
        return tempering.step(key, state, GRAPH, PLAN, inverse_temperatures=jnp.asarray(ladder))

    return jax.jit(jax.vmap(one))(jax.random.split(key, len(states)), states)


def test_every_replica_keeps_its_distribution(key):
    for parity in (0, 1):
        state, info = step_all(key, stationary(), parity)
        for number, power in enumerate(LADDER):
            counts = counts_of(np.asarray(state.states[:, :, number]).T, NUM_STATES)
            assert p_value(counts, distribution(GRAPH, power)) > LEVEL
        asked = np.asarray(info.swap_prob > 0).any(axis=0).tolist()
        assert asked == [parity == 0, parity == 1, False]
        assert 0.3 < np.asarray(info.is_swapped)[:, parity].mean() < 1


def test_exchange_with_the_wrong_ladder_is_noticed(key):
    # the same states under a ladder of other temperatures: the exchange favours the wrong ones
    state, _ = step_all(key, stationary(), 0, LADDER[::-1])
    counts = counts_of(np.asarray(state.states[:, :, 0]).T, NUM_STATES)
    assert p_value(counts, distribution(GRAPH, LADDER[0])) < LEVEL


@pytest.mark.slow
def test_equal_temperatures_always_exchange(key):
    state = tempering.init(key, GRAPH, PLAN, num_replicas=4)
    assert state.states.shape == (5, 4)
    new, info = tempering.step(key, state, GRAPH, PLAN, inverse_temperatures=jnp.ones(4))
    assert info.is_swapped.tolist() == [True, False, True, False]
    assert new.num_steps == 1


def test_a_long_run_of_one_ladder_finds_the_distribution(key):
    def body(state, key):
        state, _ = tempering.step(key, state, GRAPH, PLAN, inverse_temperatures=LADDER)
        return state, state.states[:, -1]

    start = tempering.init(key, GRAPH, PLAN, num_replicas=3)
    _, states = jax.lax.scan(body, start, jax.random.split(jax.random.key(1), 20_000))
    found = counts_of(np.asarray(states)[100:].T, NUM_STATES) / 19_900
    assert np.abs(found - distribution(GRAPH).ravel()).max() < 0.015  # about five errors
