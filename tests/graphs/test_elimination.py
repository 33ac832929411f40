import math
import pickle

import networkx
import numpy as np
import opt_einsum
import pytest
from random_factor_graphs import STRUCTURES, random_model

from jaxmrf.graphs import (
    EliminationPlan,
    Hypergraph,
    elimination_order,
    elimination_plan,
    order_from_contraction_path,
)
from jaxmrf.graphs.elimination import as_bytes

METHODS = ("min_fill", "weighted_min_fill", "min_weight", "min_degree")
HYPERGRAPHS = [Hypergraph(*one) for one in STRUCTURES.values()]
HYPERGRAPHS += [random_model(seed).hypergraph for seed in range(20)]


def pairs(graph, num_states=2):
    return Hypergraph([num_states] * graph.number_of_nodes(), list(graph.edges))


def grid(rows, columns):
    return pairs(networkx.convert_node_labels_to_integers(networkx.grid_2d_graph(rows, columns)))


@pytest.mark.parametrize("method", METHODS)
def test_greedy_order_names_every_variable_once(method):
    for structure in HYPERGRAPHS:
        for seed in (0, 1):
            order = elimination_order(structure, method, seed=seed)
            assert sorted(order) == list(range(structure.num_nodes))
            assert order == elimination_order(structure, method, seed=seed)


@pytest.mark.parametrize("method", METHODS)
def test_greedy_order_takes_the_cheapest_variable_at_every_step(method):
    """The bookkeeping of changed costs agrees with costs counted afresh."""
    for structure in HYPERGRAPHS:
        sizes = structure.num_states
        graph = networkx.Graph()
        graph.add_nodes_from(range(structure.num_nodes))
        graph.add_edges_from((i, j) for i, around in enumerate(structure.neighbors) for j in around)

        def cost(node, graph=graph, sizes=sizes):
            others = sorted(graph[node])
            missing = [
                (one, two)
                for one in others
                for two in others
                if one < two and not graph.has_edge(one, two)
            ]
            return {
                "min_degree": len(others),
                "min_weight": math.log2(math.prod(sizes[one] for one in [node, *others])),
                "min_fill": len(missing),
                "weighted_min_fill": sum(sizes[one] * sizes[two] for one, two in missing),
            }[method]

        for node in elimination_order(structure, method, seed=3):
            assert cost(node) <= min(map(cost, graph)) + 1e-9
            graph.add_edges_from((i, j) for i in graph[node] for j in graph[node] if i != j)
            graph.remove_node(node)


def test_equals_are_taken_in_another_order_with_another_seed():
    structure = Hypergraph([2] * 30, [])
    orders = {tuple(elimination_order(structure, seed=seed)) for seed in range(5)}
    assert len(orders) == 5


def test_unknown_method_is_refused_with_the_list():
    with pytest.raises(ValueError, match=r"elimination_order: expected a method of .*, got 'x'"):
        elimination_order(Hypergraph([2], []), "x")


@pytest.mark.parametrize(
    ("structure", "width"),
    [
        (pairs(networkx.path_graph(30)), 1),
        (pairs(networkx.star_graph(30)), 1),
        (pairs(networkx.cycle_graph(30)), 2),
        (pairs(networkx.complete_graph(7)), 6),
        (pairs(networkx.random_labeled_tree(40, seed=1)), 1),
        (pairs(networkx.complete_bipartite_graph(3, 9)), 3),
        (Hypergraph([2] * 4, [(0, 1, 2, 3)]), 3),
        (Hypergraph([2] * 4, []), 0),
        (Hypergraph([], []), 0),
        (grid(3, 8), 3),
        (grid(5, 5), 5),
    ],
)
def test_plan_finds_the_known_treewidth(structure, width):
    plan = elimination_plan(structure)
    assert plan.treewidth == width
    assert plan.width == min(width + 1, structure.num_nodes)
    assert plan.memory == 8 * 2**plan.width


def test_width_counts_numbers_of_states():
    plan = elimination_plan(Hypergraph([3, 5, 1, 7], [(0, 1), (1, 2), (3,)]))
    assert plan.width == pytest.approx(math.log2(15))
    assert plan.num_cells.sum() == plan.total_cells
    assert plan.treewidth == 1


def test_given_order_is_kept_and_a_worse_one_costs_more():
    structure = pairs(networkx.star_graph(6))
    good = elimination_plan(structure, order=[1, 2, 3, 4, 5, 6, 0])
    bad = elimination_plan(structure, order=[0, 1, 2, 3, 4, 5, 6])
    assert bad.order == (0, 1, 2, 3, 4, 5, 6)
    assert (good.treewidth, bad.treewidth) == (1, 6)
    assert bad.total_cells == 2.0 ** np.arange(1, 8) @ np.ones(7)
    assert elimination_plan(structure).total_cells == good.total_cells


@pytest.mark.parametrize("order", [[0, 1], [0, 1, 1], [0, 1, 3], [1, 2, 3], [0, 1, 2, 3], []])
def test_order_that_is_no_permutation_is_refused(order):
    with pytest.raises(ValueError, match=r"elimination_plan: expected the order to name every var"):
        elimination_plan(Hypergraph([2] * 3, [(0, 1)]), order=order)


def test_buckets_follow_their_definition():
    for structure in HYPERGRAPHS:
        plan = elimination_plan(structure)
        place = {node: step for step, node in enumerate(plan.order)}
        factors = []
        for step, bucket in enumerate(plan.buckets):
            assert bucket.node == plan.order[step]
            factors += bucket.factors
            inside = {bucket.node, *bucket.separator}
            found = {bucket.node}
            for factor in bucket.factors:
                assert bucket.node in structure.scopes[factor]
                found.update(structure.scopes[factor])
            for child in bucket.children:
                assert plan.buckets[child].parent == step
                assert bucket.node in plan.buckets[child].separator
                found.update(plan.buckets[child].separator)
            assert found == inside
            later = [place[node] for node in bucket.separator]
            assert later == sorted(later, reverse=True) and all(one > step for one in later)
            assert bucket.parent == (min(later) if later else -1)
            cells = math.prod(structure.num_states[node] for node in inside)
            assert plan.num_cells[step] == cells
        constants = [one for one, scope in enumerate(structure.scopes) if not scope]
        assert sorted(factors + constants) == list(range(structure.num_factors))


def test_plan_prints_its_cost():
    plan = elimination_plan(Hypergraph([2, 2, 3], [(0, 1), (1, 2)]), order=[0, 1, 2])
    assert str(plan) == (
        "EliminationPlan: 3 variables, 2 factors; treewidth 1, largest table 2^2.6 entries (48 B), "
        "13 multiplications a pass"
    )
    assert repr(plan) == "EliminationPlan(width=2.58, num_nodes=3)"


def test_too_large_a_table_is_refused_with_its_size():
    rule = r"expected a table of at most 4.29 GB, got 17.6 TB \(2\^41.0 entries, treewidth 40\)"
    with pytest.raises(ValueError, match=rule):
        elimination_plan(pairs(networkx.complete_graph(41)))
    with pytest.raises(ValueError, match=r"at most 31 B, got 32 B \(2\^2.0 entries, treewidth 1\)"):
        elimination_plan(Hypergraph([2, 2], [(0, 1)]), max_memory=31)
    assert elimination_plan(Hypergraph([2, 2], [(0, 1)]), max_memory=32).memory == 32


def test_sizes_beyond_floating_point_are_refused_too():
    huge = Hypergraph([10**30] * 40, [(node, node + 1) for node in range(39)] + [(0, 39)])
    with pytest.raises(ValueError, match=r"elimination_plan: expected a table of at most"):
        elimination_plan(huge)
    clique = elimination_plan(pairs(networkx.complete_graph(30), 10**12), max_memory=math.inf)
    assert clique.memory == math.inf


def test_sizes_are_written_for_people():
    written = [as_bytes(size) for size in (0, 8, 999, 1000, 2**32, 3e12, 5e15, 7e20, math.inf)]
    assert written[:6] == ["0 B", "8 B", "999 B", "1 kB", "4.29 GB", "3 TB"]
    assert written[6:] == ["5 PB", "7e+05 PB", "inf PB"]


def test_plans_are_equal_by_content():
    structure = Hypergraph([2, 3, 2], [(0, 1), (1, 2)])
    plan = EliminationPlan(structure, [0, 2, 1])
    same = [EliminationPlan(Hypergraph([2, 3, 2], [(0, 1), (1, 2)]), (0, 2, 1))]
    same.append(pickle.loads(pickle.dumps(plan)))
    for other in same:
        assert other == plan and hash(other) == hash(plan)
        assert other.buckets == plan.buckets
    assert plan != EliminationPlan(structure, [0, 1, 2])
    assert plan != EliminationPlan(Hypergraph([2, 3, 2], [(0, 1)]), [0, 2, 1])
    assert plan != "plan"
    with pytest.raises(AttributeError, match=r"EliminationPlan: expected no assignment, got order"):
        plan.order = (0, 1, 2)


def test_search_is_done_once_for_equal_structures():
    def build():
        return elimination_plan(Hypergraph([2] * 5, [(0, 1), (1, 2), (2, 3), (3, 4)]))

    assert build() is build()


def test_contraction_path_gives_the_order_of_its_sums():
    structure = grid(4, 4)
    letters = [opt_einsum.get_symbol(node) for node in range(16)]
    expression = ",".join("".join(letters[node] for node in scope) for scope in structure.scopes)
    operands = [np.ones((2, 2))] * structure.num_factors
    path, info = opt_einsum.contract_path(expression + "->", *operands, optimize="greedy")
    order = order_from_contraction_path(structure, path)
    plan = elimination_plan(structure, order=order)
    assert plan.treewidth >= 4
    # a product of two tables lives within the bucket of the first variable it sums out
    assert plan.width <= 1 + math.log2(info.largest_intermediate) + 4
    # summed out in this order, each variable goes when its last two operands meet
    given = order_from_contraction_path(Hypergraph([2] * 3, [(0, 1), (1, 2)]), [(0, 1)])
    assert given == [0, 1, 2]
    chain = Hypergraph([2] * 4, [(0, 1), (1, 2), (2, 3)])
    assert order_from_contraction_path(chain, [(1, 2), (0, 1)]) == [2, 3, 0, 1]


def test_contraction_path_misses_no_variable_without_a_factor():
    structure = Hypergraph([2] * 4, [(1, 2), ()])
    assert sorted(order_from_contraction_path(structure, [(0, 1)])) == [0, 1, 2, 3]
    assert order_from_contraction_path(Hypergraph([2, 2], []), []) == [0, 1]


def test_half_a_contraction_path_is_refused():
    structure = Hypergraph([2] * 4, [(0, 1), (1, 2), (2, 3)])
    with pytest.raises(ValueError, match=r"expected a path to one operand, got 2 left; pass"):
        order_from_contraction_path(structure, [(0, 1)])
