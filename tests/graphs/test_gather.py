import math

import networkx
import numpy as np
import pytest
from random_factor_graphs import STRUCTURES, exact, log_values, random_model, structure, with_tables
from table_oracle import log_joint, log_sum, marginal

from jaxmrf.graphs import Hypergraph, elimination_plan
from jaxmrf.graphs.gather import split_plan

GRID = networkx.convert_node_labels_to_integers(networkx.grid_2d_graph(3, 4))
MODELS = [structure(name, seed) for seed, name in enumerate(STRUCTURES)]
MODELS += [random_model(seed) for seed in range(12)]
MODELS += [with_tables([2] * 12, [*GRID.edges, (0,)]), with_tables([2] * 8, [(0, 1)] * 9)]
LIMITS = (0, 8, 30, 10**9)


def filled(split, graph):
    """The buffer, row after row as the definition says; a row that reads a later one gives NaN."""
    one, zero = [0.0], [-np.inf]
    gather = split.gather
    buffer = np.concatenate([graph.log_tables, graph.log_evidence, one, zero])
    assert gather.start == len(buffer)
    buffer = np.append(buffer, np.full(gather.size - gather.start, np.nan))
    with np.errstate(divide="ignore"):
        for step, index in enumerate(gather.index):
            rows = np.log(np.exp(buffer[index].sum(axis=2)).sum(axis=1))
            start = gather.start + step * len(index)
            buffer[start : start + len(index)] = rows
    assert not np.isnan(buffer).any()
    return buffer


@pytest.mark.parametrize("max_cells", LIMITS)
def test_both_parts_together_sum_over_all_configurations(max_cells):
    for graph in MODELS:
        split = split_plan(elimination_plan(graph.hypergraph), max_cells)
        buffer = filled(split, graph)
        total = buffer[split.gather.roots].sum()
        rest = split.rest.hypergraph
        if rest.num_nodes:
            flat = buffer[split.tables]
            ends = [math.prod(rest.table_shape(one)) for one in range(rest.num_factors)]
            tables = [
                flat[start : start + size].reshape(rest.table_shape(factor))
                for factor, (start, size) in enumerate(zip(rest.table_starts, ends, strict=True))
            ]
            nothing = [np.zeros(number) for number in rest.num_states]
            total += log_sum(log_joint(rest.num_states, rest.scopes, tables, nothing))
        np.testing.assert_allclose(total, exact(graph)[0], rtol=1e-10, atol=1e-10)


def test_limit_decides_which_buckets_are_gathered():
    for graph in MODELS:
        plan = elimination_plan(graph.hypergraph)
        for limit in LIMITS:
            split = split_plan(plan, limit)
            gathered = [node for node, _ in split.reads]
            assert split.rest.order == tuple(range(graph.num_nodes - len(gathered)))
            position = {node: step for step, node in enumerate(plan.order)}
            assert sorted(gathered, key=position.get) == gathered
            for node in gathered:
                assert plan.num_cells[position[node]] <= limit
            left = [node for node in plan.order if node not in gathered]
            assert split.rest.hypergraph.num_states == tuple(graph.num_states[i] for i in left)
        assert not split_plan(plan, 0).reads
        assert len(split_plan(plan, 10**9).reads) == graph.num_nodes


def test_small_bucket_above_a_large_one_is_not_gathered():
    """Its messages come from the other part."""
    scopes = [(0, 1, 2), (2, 3)]
    plan = elimination_plan(Hypergraph([9, 9, 2, 2], scopes), order=[0, 1, 2, 3])
    split = split_plan(plan, 20)
    assert split.reads == () and split.rest.hypergraph.num_states == (9, 9, 2, 2)
    turned = elimination_plan(Hypergraph([9, 9, 2, 2], scopes), order=[3, 2, 0, 1])
    assert [node for node, _ in split_plan(turned, 20).reads] == [3]


def test_every_table_and_message_is_used_once():
    for graph in MODELS:
        for limit in LIMITS:
            split = split_plan(elimination_plan(graph.hypergraph), limit)
            gather, places = split.gather, [*split.tables.tolist(), *split.gather.roots.tolist()]
            assert len(set(places)) == len(places)
            if len(gather.index):
                assert gather.index.min() >= 0 and gather.index.max() < gather.size
            used = {*gather.index.ravel().tolist(), *places}
            assert used >= set(range(gather.start - 2))  # all tables and all evidence


def test_conditional_of_a_variable_is_the_product_of_its_reads():
    for graph in MODELS:
        split = split_plan(elimination_plan(graph.hypergraph), 10**9)
        buffer = filled(split, graph)
        values = log_values(graph)
        position = {node: step for step, (node, _) in enumerate(split.reads)}
        for step, (node, tables) in enumerate(split.reads):
            assert len(tables) <= 4 and all(node in scope for _, scope in tables)
            scope = sorted({one for _, some in tables for one in some}, key=position.get)
            assert scope[0] == node and position[node] == step
            logs = np.zeros([graph.num_states[one] for one in scope])
            for place, some in tables:
                shape = [graph.num_states[one] for one in some]
                table = buffer[place : place + math.prod(shape)].reshape(shape)
                own = [graph.num_states[one] if one in some else 1 for one in scope]
                logs = logs + table.transpose(np.argsort([scope.index(i) for i in some])).reshape(
                    own
                )
            found = np.exp(logs - np.where(logs.max() > -np.inf, logs.max(), 0))
            wanted = marginal(values, scope)
            possible = wanted.sum(axis=0) > 0
            np.testing.assert_allclose(
                (found / np.where(possible, found.sum(axis=0), 1))[:, possible],
                (wanted / np.where(possible, wanted.sum(axis=0), 1))[:, possible],
                atol=1e-12,
            )


def test_steps_of_a_chain_of_equal_factors_stay_few():
    """A hub of many leaves takes few, wide steps, not one for each leaf."""
    hub = Hypergraph([2] * 201, [(0, leaf) for leaf in range(1, 201)])
    index = split_plan(elimination_plan(hub)).gather.index
    assert index.shape[0] <= 20 and index.shape[2:] == (2, 3)
    assert index.shape[0] * index.shape[1] <= 4 * 600


def test_equal_plans_are_split_once():
    plans = [elimination_plan(Hypergraph([2] * 3, [(0, 1), (1, 2)])) for _ in range(2)]
    assert split_plan(plans[0]) is split_plan(plans[1])
