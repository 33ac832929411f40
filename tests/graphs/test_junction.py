import math

import networkx
import pytest
from random_factor_graphs import STRUCTURES, random_model

from jaxmrf.graphs import Hypergraph, elimination_plan, junction_tree

GRID = networkx.convert_node_labels_to_integers(networkx.grid_2d_graph(5, 6))
HYPERGRAPHS = [Hypergraph(*one) for one in STRUCTURES.values()]
HYPERGRAPHS += [random_model(seed).hypergraph for seed in range(20)]
HYPERGRAPHS += [Hypergraph([2] * 30, list(GRID.edges)), Hypergraph([3] * 9, [(0, 1)] * 3)]
LIMITS = (0, 16, 100, 10**9)


@pytest.mark.parametrize("merge_below", LIMITS)
def test_cliques_form_a_junction_tree(merge_below):
    for structure in HYPERGRAPHS:
        plan = elimination_plan(structure)
        cliques = junction_tree(plan, merge_below)
        place = {node: step for step, node in enumerate(plan.order)}
        residuals = [node for clique in cliques for node in clique.residual]
        assert sorted(residuals) == list(range(structure.num_nodes))
        for number, clique in enumerate(cliques):
            steps = [place[node] for node in clique.scope]
            assert steps == sorted(steps) and clique.residual
            assert clique.parent > number or (clique.parent == -1 and not clique.separator)
            assert all(cliques[child].parent == number for child in clique.children)
            if clique.parent >= 0:
                parent = cliques[clique.parent]
                assert number in parent.children
                # what is shared with anything above is shared with the parent: running intersection
                assert set(clique.separator) <= set(parent.scope)
        for node in range(structure.num_nodes):
            holders = [one for one, clique in enumerate(cliques) if node in clique.scope]
            tops = [one for one in holders if cliques[one].parent not in holders]
            assert len(tops) == 1 and node in cliques[tops[0]].residual


@pytest.mark.parametrize("merge_below", LIMITS)
def test_every_factor_lies_in_one_clique_that_contains_its_scope(merge_below):
    for structure in HYPERGRAPHS:
        cliques = junction_tree(elimination_plan(structure), merge_below)
        homes = [factor for clique in cliques for factor in clique.factors]
        constants = [one for one, scope in enumerate(structure.scopes) if not scope]
        assert sorted(homes + constants) == list(range(structure.num_factors))
        for clique in cliques:
            for factor in clique.factors:
                assert set(structure.scopes[factor]) <= set(clique.scope)


def test_no_clique_lies_inside_its_parent_or_holds_it():
    for structure in HYPERGRAPHS:
        cliques = junction_tree(elimination_plan(structure))
        for clique in cliques:
            if clique.parent >= 0:
                assert not set(cliques[clique.parent].scope) <= set(clique.scope)
                assert not set(clique.scope) <= set(cliques[clique.parent].scope)


@pytest.mark.parametrize("merge_below", LIMITS)
def test_merged_cliques_have_at_most_the_entries_allowed(merge_below):
    for structure in HYPERGRAPHS:
        plan = elimination_plan(structure)
        largest = max(plan.num_cells, default=1)
        for clique in junction_tree(plan, merge_below):
            cells = math.prod(structure.num_states[node] for node in clique.scope)
            assert cells <= max(merge_below, largest)


def test_merging_makes_fewer_cliques_and_one_of_each_component_at_last():
    structure = Hypergraph([2] * 32, [*GRID.edges, (30, 31)])
    plan = elimination_plan(structure)
    numbers = [len(junction_tree(plan, limit)) for limit in (0, 64, 256, 2**40)]
    assert numbers == sorted(numbers, reverse=True) and numbers[0] > numbers[1]
    assert numbers[-1] == 2
