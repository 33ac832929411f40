from dataclasses import replace

import numpy as np
import pytest
from random_factor_graphs import (
    STRUCTURES,
    check_beliefs,
    evidence_rows,
    exact,
    random_model,
    structure,
)

from jaxmrf.exact import conditioning, host
from jaxmrf.graphs import Hypergraph, elimination_plan
from jaxmrf.models import FactorGraph

MODELS = [structure(name, seed) for seed, name in enumerate(STRUCTURES) if STRUCTURES[name][0]]
MODELS += [random_model(seed) for seed in range(8)]


def test_every_cutset_gives_exact_beliefs():
    for seed, graph in enumerate(MODELS):
        for row in evidence_rows(graph, seed)[::3]:
            model = replace(graph, log_evidence=row)
            for cutset in ((), (0,), tuple(range(0, graph.num_nodes, 2))[::-1]):
                check_beliefs(conditioning.solve(model, cutset), model)


def test_cutset_of_all_variables_is_enumeration():
    graph = structure("clique")
    check_beliefs(conditioning.solve(graph, (0, 1, 2, 3)), graph)


def test_cutset_found_brings_the_tables_within_memory():
    num_states, scopes = [3] * 8, [(one, two) for one in range(8) for two in range(one)]
    tables = [np.cos(np.arange(9) + place).reshape(3, 3) for place in range(len(scopes))]
    graph = FactorGraph.from_tables(num_states, scopes, tables)
    assert elimination_plan(graph.hypergraph).memory == 8 * 3**8
    limit = 8 * 3**4
    nodes = conditioning.cutset(graph.hypergraph, max_memory=limit)
    assert len(set(nodes)) == len(nodes) == 4
    assert elimination_plan(graph.condition(dict.fromkeys(nodes, 0)).hypergraph).memory <= limit
    check_beliefs(conditioning.solve(graph, max_memory=limit), graph)


def test_cutset_of_a_model_small_enough_is_empty():
    assert conditioning.cutset(structure("mixed").hypergraph) == ()
    assert conditioning.cutset(Hypergraph([], [])) == ()


def test_memory_is_respected_by_each_part():
    with pytest.raises(ValueError, match=r"elimination_plan: expected a table of at most 90 B"):
        conditioning.solve(structure("clique"), (0,), max_memory=90)


def test_cutset_too_large_is_refused():
    clique = Hypergraph([2] * 40, [(one, two) for one in range(40) for two in range(one)])
    rule = r"cutset: expected at most 1024 configurations.*, got 2048 and still .* 2\^30.0 entries"
    with pytest.raises(ValueError, match=rule):
        conditioning.cutset(clique, max_memory=2**20)


@pytest.mark.parametrize("num_states", [[1, 1], [2, 1], [64], []])
def test_memory_below_one_variable_is_refused(num_states):
    with pytest.raises(ValueError, match=r"cutset: expected memory for the la.*, got 4 B; allow"):
        conditioning.cutset(Hypergraph(num_states, []), max_memory=4)


def test_reduced_beliefs_are_those_of_the_whole_model():
    graph = structure("mixed", 3)
    given = {2: 1, 4: 0}
    part = host.solve(graph.condition(given))
    model = graph.observe(given)
    check_beliefs(conditioning.reduced_beliefs(graph, given, part), model)
    assert exact(model)[0] > -np.inf
