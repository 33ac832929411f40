import jax
import numpy as np
import pytest
import table_oracle
from factor_models import mixed

from jaxmrf.graphs import blanket_plan
from jaxmrf.models import FactorGraph
from jaxmrf.sampling import annealing

PLAN = blanket_plan(mixed().hypergraph)


def log_z(graph):
    tables = [np.exp(np.asarray(graph.log_table(one))) for one in range(len(graph.scopes))]
    return np.log(table_oracle.joint(graph.num_states, graph.scopes, tables).sum())


@pytest.mark.slow
@pytest.mark.parametrize("has_zeros", [False, True])
def test_estimate_is_within_its_error_of_the_exact_value(has_zeros, key):
    graph = mixed(has_zeros=has_zeros)
    found = annealing.estimate(key, graph, PLAN, num_chains=4000, num_temperatures=20)
    assert abs(found.log_z - log_z(graph)) < 4.5 * found.standard_error
    assert 0 < found.standard_error < 0.05
    assert 1 < found.effective_size < 4000


def test_one_step_is_importance_sampling_and_more_steps_lose_less(key):
    graph = mixed()
    one = annealing.estimate(key, graph, PLAN, num_chains=4000, num_temperatures=1)
    many = annealing.estimate(key, graph, PLAN, num_chains=4000, num_temperatures=50)
    assert abs(one.log_z - log_z(graph)) < 4.5 * one.standard_error
    assert many.standard_error < one.standard_error / 2


@pytest.mark.slow
def test_hard_evidence_counts_only_what_it_allows(key):
    graph = mixed()
    given = annealing.estimate(key, graph.observe({1: 2}), PLAN, num_temperatures=30)
    sliced = graph.condition({1: 2})
    tables = [np.exp(np.asarray(sliced.log_table(one))) for one in range(len(sliced.scopes))]
    free = [node for node in range(5) if node != 1]
    renamed = [tuple(free.index(node) for node in scope) for scope in sliced.scopes]
    states = [sliced.num_states[node] for node in free]
    exact = np.log(table_oracle.joint(states, renamed, tables).sum())
    assert abs(given.log_z - exact) < 4.5 * given.standard_error


def test_impossible_model_is_minus_infinity_never_nan(key):
    graph = FactorGraph.from_tables([2, 2], [(0, 1)], [np.full((2, 2), -np.inf)])
    plan = blanket_plan(graph.hypergraph)
    found = annealing.estimate(key, graph, plan, num_chains=10, num_temperatures=3)
    assert found.log_z == -np.inf and found.effective_size == 0
    assert not np.isnan(found.standard_error)


def test_bad_numbers_are_refused():
    with pytest.raises(ValueError, match="expected num_chains and num_temperatures of at least 1"):
        annealing.estimate(jax.random.key(0), mixed(), PLAN, num_chains=0)
