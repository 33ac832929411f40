"""Marginals and pair correlations of independent chains against enumeration.

Every chain starts from its own uniform state and gives one draw after many sweeps, so the number
of chains is the number of independent draws and the standard error is exact up to burn-in.
"""

import functools
import itertools

import jax
import networkx as nx
import numpy as np
import oracles
import pytest
from examples import SMALL_UNEVEN, potential_of, random_model

from jaxmrf.exact import enumeration
from jaxmrf.graphs import Graph, grid, sweep_plan
from jaxmrf.models import Ising
from jaxmrf.sampling import gibbs

PAIRS = list(itertools.combinations(range(16), 2))
RANDOM16 = Graph.from_networkx(nx.gnm_random_graph(16, 36, seed=3))
NUM_DRAWS = [
    pytest.param(2**16, id="65536"),
    pytest.param(2**20, id="1048576", marks=pytest.mark.slow),
]


@functools.partial(jax.jit, static_argnames=("num_chains", "num_sweeps"))
def independent_draws(key, model, plan, num_chains, num_sweeps):
    key_start, key_run = jax.random.split(key)
    states = gibbs.init(key_start, model, plan, num_chains=num_chains)
    return gibbs.run(key_run, states, model, plan, num_sweeps=num_sweeps)


def exact_moments(model, graph):
    """Mean spins and mean products of all pairs, in double precision."""
    states = np.asarray(enumeration.configurations(graph.num_nodes, 2), np.float64)
    spins = 2 * states - 1
    first, second = graph.edges.T
    log_weights = spins @ np.asarray(model.fields, np.float64)
    log_weights += (spins[:, first] * spins[:, second]) @ np.asarray(model.couplings, np.float64)
    weights = np.exp(log_weights - log_weights.max())
    weights /= weights.sum()
    return weights @ spins, (spins * weights[:, None]).T @ spins


def z_scores(states, means, products):
    """Errors of 16 means and 120 products in standard errors."""
    spins = 2 * np.asarray(states, np.float32) - 1
    num_draws = spins.shape[1]
    upper = np.triu_indices(len(spins), 1)
    found = np.concatenate([spins.mean(axis=1), ((spins @ spins.T) / num_draws)[upper]])
    exact = np.concatenate([means, products[upper]])
    return (found - exact) / np.sqrt((1 - exact**2) / num_draws)


@pytest.mark.slow
@pytest.mark.parametrize("num_draws", NUM_DRAWS)
@pytest.mark.parametrize("graph", [grid((4, 4)), RANDOM16], ids=["grid", "random"])
def test_ising_moments_are_within_errors_of_enumeration(graph, num_draws, key):
    model = random_model("ising", graph, seed=1, scale=0.5)
    states = independent_draws(key, model, sweep_plan(graph), num_draws, 60)
    z = z_scores(states, *exact_moments(model, graph))
    assert z.shape == (136,)
    assert np.abs(z).max() < 4.5
    assert 0.6 < np.sqrt((z**2).mean()) < 1.4


@pytest.mark.slow
def test_wrong_sign_of_one_coupling_is_seen_in_the_moments(key):
    graph = grid((4, 4))
    model = random_model("ising", graph, seed=1, scale=0.5)
    wrong = Ising(model.couplings.at[5].multiply(-1), model.fields)
    states = independent_draws(key, wrong, sweep_plan(graph), 2**16, 60)
    assert np.abs(z_scores(states, *exact_moments(model, graph))).max() > 10


@pytest.mark.slow
@pytest.mark.parametrize("num_draws", NUM_DRAWS)
@pytest.mark.parametrize("kind", ["potts", "pairwise"])
def test_marginals_of_three_states_are_within_errors_of_enumeration(kind, num_draws, key):
    graph = SMALL_UNEVEN
    model = random_model(kind, graph, seed=2)
    states = np.asarray(independent_draws(key, model, sweep_plan(graph), num_draws, 60))
    probabilities = oracles.distribution(potential_of(model, graph), 5, 3)
    pairs = list(itertools.combinations(range(5), 2))
    exact = oracles.pair_marginals(probabilities, pairs, 5, 3)
    codes = [3 * states[u] + states[v] for u, v in pairs]
    found = np.array([np.bincount(code, minlength=9) for code in codes]).reshape(exact.shape)
    z = (found / num_draws - exact) / np.sqrt(exact * (1 - exact) / num_draws)
    assert np.abs(z).max() < 4.5
