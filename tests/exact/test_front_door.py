import itertools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from random_factor_graphs import (
    STRUCTURES,
    check_beliefs,
    evidence_rows,
    exact,
    log_values,
    random_model,
    structure,
)

import jaxmrf
from jaxmrf.exact import m_best, mode, solve
from jaxmrf.models import FactorGraph

MODELS = [structure(name, seed) for seed, name in enumerate(STRUCTURES)]
MODELS += [random_model(seed) for seed in range(30)]


def clique(number):
    """A model of large width."""
    scopes = [(one, two) for one in range(number) for two in range(one)]
    return FactorGraph.from_tables([2] * number, scopes, [np.eye(2)] * len(scopes))


def test_beliefs_equal_brute_force():
    for seed, graph in enumerate(MODELS):
        for row in evidence_rows(graph, seed):
            model = replace(graph, log_evidence=row)
            check_beliefs(solve(model), model)


def test_models_of_jax_arrays_are_solved_too():
    graph = structure("mixed", dtype=np.float32)
    graph = jax.tree.map(jnp.asarray, graph)
    check_beliefs(solve(graph), graph)
    given = graph.observe({0: 1, 4: 0})
    check_beliefs(solve(given), given)


def test_a_cutset_is_used_when_the_tables_are_too_large():
    graph = structure("clique")
    check_beliefs(solve(graph, max_memory=8 * 12), graph)
    with pytest.raises(ValueError, match=r"cutset: expected at most 1024 configurations"):
        solve(clique(40), max_memory=2**16)


def test_evidence_makes_a_large_model_small():
    graph = clique(60).observe(dict.fromkeys(range(55), 1))
    beliefs = solve(graph)
    logs = np.array([55.0 * sum(states) for states in itertools.product((0, 1), repeat=5)])
    pairs = [
        sum(one == two for one, two in itertools.combinations(states, 2))
        for states in itertools.product((0, 1), repeat=5)
    ]
    wanted = np.logaddexp.reduce(logs + pairs) + 55 * 54 / 2
    np.testing.assert_allclose(beliefs.log_z, wanted, rtol=1e-12)
    assert len(beliefs.nodes) == 60 and beliefs.nodes[3].tolist() == [0, 1]
    assert mode(graph).states.tolist() == [1] * 60


def test_traced_model_is_solved_by_the_compiled_engine():
    graph = structure("mixed", dtype=np.float32)

    @jax.jit
    def beliefs(states):
        return solve(graph.observe_states(states))

    states = np.array([-1, 1, -1, -1, -1, 0])
    model = graph.observe({1: 1, 5: 0})
    found = beliefs(states)
    assert isinstance(found.log_z, jax.Array)
    check_beliefs(found, model, tolerance=3e-6)
    with pytest.raises(ValueError, match=r"elimination_plan: expected a table of at most 64 B"):
        jax.jit(lambda t: solve(replace(graph, log_tables=t), max_memory=64))(graph.log_tables)


def test_mode_equals_brute_force():
    for seed, graph in enumerate(MODELS):
        for row in evidence_rows(graph, seed):
            model = replace(graph, log_evidence=row)
            values = log_values(model)
            found = mode(model)
            np.testing.assert_allclose(found.log_potential, values.max(), atol=1e-10)
            np.testing.assert_allclose(values[tuple(found.states)], values.max(), atol=1e-10)


def test_mode_of_too_large_a_model_is_refused():
    with pytest.raises(ValueError, match=r"elimination_plan: expected a table of at most 4.29 GB"):
        mode(clique(40))


def test_best_configurations_equal_sorting_all():
    for seed, graph in enumerate(MODELS):
        for row in evidence_rows(graph, seed)[::3]:
            model = replace(graph, log_evidence=row)
            values = log_values(model)
            possible = np.sort(values[values > -np.inf])[::-1]
            found = m_best(model, 7)
            assert len(found) == min(7, len(possible))
            values_found = [one.log_potential for one in found]
            np.testing.assert_allclose(values_found, possible[: len(found)], atol=1e-10)
            for one in found:
                np.testing.assert_allclose(values[tuple(one.states)], one.log_potential, atol=1e-10)
            assert len({tuple(one.states.tolist()) for one in found}) == len(found)


def test_best_configurations_with_ties_are_all_different():
    flat = FactorGraph.from_tables([2, 3, 1], [(0, 1)], [np.zeros((2, 3))])
    found = m_best(flat, 100)
    assert {tuple(one.states.tolist()) for one in found} == {
        (one, two, 0) for one in range(2) for two in range(3)
    }
    assert [one.log_potential for one in found] == [0.0] * 6


def test_best_configurations_of_an_impossible_model_are_none():
    graph = FactorGraph.from_tables([2], [()], [np.array(-np.inf)])
    assert m_best(graph, 3) == []
    assert mode(graph).log_potential == -np.inf
    assert solve(graph).log_z == -np.inf and not solve(graph).nodes[0].any()


def test_number_of_best_configurations_is_positive():
    with pytest.raises(ValueError, match=r"m_best: expected a positive number .*, got 0; ask for"):
        m_best(structure("mixed"), 0)


def test_front_doors_are_where_the_readme_says():
    graph = structure("mixed", zeros=0)
    beliefs = jaxmrf.exact.solve(graph.observe({2: 3}))
    assert isinstance(beliefs, jaxmrf.models.Beliefs)
    assert beliefs.nodes[2].tolist() == [0, 0, 0, 1]
    assert jaxmrf.exact.mode(graph).states.shape == (6,)
    assert exact(graph)[0] == pytest.approx(jaxmrf.exact.solve(graph).log_z)
