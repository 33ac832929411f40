import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmrf.graphs import Hypergraph
from jaxmrf.models import Beliefs, FactorGraph
from jaxmrf.models.beliefs import Tables
from jaxmrf.variational.belief_propagation import solve
from jaxmrf.variational.free_energy import (
    bethe_entropy,
    bethe_free_energy,
    entropy,
    expected_log_potential,
)


def model(seed=0):
    rng = np.random.default_rng(seed)
    numbers = [2, 3, 2, 1]
    scopes = [(0, 1), (2, 1), (0, 2), (0, 1, 2), (3,), (1,), ()]
    tables = [rng.normal(0, 0.4, [numbers[node] for node in scope]) for scope in scopes]
    tables[0][1, 2] = -np.inf
    return FactorGraph.from_tables(numbers, scopes, tables).observe({1: [0.5, 0.2, 0.0]})


def by_hand(graph, beliefs, weights):
    """Energy and entropy factor by factor."""

    def entropy_of(table):
        positive = np.asarray(table, float)[np.asarray(table) > 0]
        return -(positive * np.log(positive)).sum()

    energy, total = 0.0, 0.0
    singles = [entropy_of(node) for node in beliefs.nodes]
    evidence = Tables(graph.log_evidence, graph.hypergraph, is_of_factors=False)
    pairs = [*zip(beliefs.nodes, evidence, strict=True)]
    pairs += [(own, graph.log_table(factor)) for factor, own in enumerate(beliefs.factors)]
    for own, logs in pairs:
        own, logs = np.asarray(own), np.asarray(logs)
        energy += (own[own > 0] * logs[own > 0]).sum()
    total = sum(singles)
    for own, scope, weight in zip(beliefs.factors, graph.scopes, weights, strict=True):
        total -= weight * (sum(singles[node] for node in scope) - entropy_of(own))
    return energy, total


@pytest.mark.slow
def test_parts_are_those_computed_by_hand_and_their_sum_is_log_z(x64):
    graph = model()
    for weights in (np.ones(7), np.array([0.7, 0.8, 0.9, 0.6, 1.0, 1.0, 1.0])):
        beliefs = solve(graph, weights=weights, tolerance=1e-12)
        energy, total = by_hand(graph, beliefs, weights)
        np.testing.assert_allclose(expected_log_potential(graph, beliefs), energy, rtol=1e-12)
        np.testing.assert_allclose(bethe_entropy(beliefs, weights=weights), total, rtol=1e-12)
        value = bethe_free_energy(graph, beliefs, weights=weights)
        np.testing.assert_allclose(value, -(energy + total), rtol=1e-12)
        np.testing.assert_allclose(-value, beliefs.log_z, rtol=1e-9)


def test_default_weights_are_ones():
    beliefs = solve(model())
    ones = bethe_entropy(beliefs, weights=jnp.ones(7))
    np.testing.assert_allclose(bethe_entropy(beliefs), ones, rtol=1e-6)


def test_belief_in_the_impossible_has_infinite_energy():
    structure = Hypergraph([2], [])
    graph = FactorGraph.from_tables([2], [], []).observe({0: 1})
    for own, expected in (([0.0, 1.0], 0.0), ([0.5, 0.5], -np.inf)):
        nodes = Tables(jnp.array(own), structure, is_of_factors=False)
        factors = Tables(jnp.zeros(0), structure, is_of_factors=True)
        beliefs = Beliefs(0.0, nodes, factors, True, 0)
        assert expected_log_potential(graph, beliefs) == expected


@pytest.mark.slow
def test_derivatives_are_finite_differences_and_vanish_along_consistent_beliefs(x64):
    # at the fixed point the free energy does not change to first order when a node belief and
    # the factor beliefs move together, here by mixing in the product of the node beliefs
    scopes = [(0, 1), (1, 2), (2, 0)]
    rng = np.random.default_rng(0)
    graph = FactorGraph.from_tables([2] * 3, scopes, [rng.normal(0, 0.5, (2, 2)) for _ in scopes])
    beliefs = solve(graph, tolerance=1e-13)
    nodes = list(beliefs.nodes)
    products = [np.outer(nodes[u], nodes[v]) for u, v in scopes]
    product = jnp.asarray(np.concatenate([table.ravel() for table in products]))

    def value(share):
        flat = (1 - share) * beliefs.factors.flat + share * product
        return bethe_free_energy(
            graph, beliefs._replace(factors=Tables(flat, graph.hypergraph, is_of_factors=True))
        )

    assert abs(jax.grad(value)(0.0)) < 1e-10
    slope = (value(0.3 + 1e-6) - value(0.3 - 1e-6)) / 2e-6
    np.testing.assert_allclose(jax.grad(value)(0.3), slope, rtol=1e-7)
    assert abs(slope) > 1e-3


@pytest.mark.parametrize("number", [2, 5])
def test_entropy_of_uniform_and_certain_states_is_known(number):
    np.testing.assert_allclose(entropy(np.full(number, 1 / number), 0), np.log(number), rtol=1e-6)
    certain = jnp.eye(number)
    assert (entropy(certain, 1) == 0).all()
    assert np.isfinite(jax.grad(lambda own: entropy(own, 1).sum())(certain)).all()
