import math
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest

from jaxmrf.graphs import Graph, grid
from jaxmrf.learning import identity, probability_flow, pseudolikelihood
from jaxmrf.learning.neighborhoods import _objective, neighborhood_tables
from jaxmrf.models import Ising, Pairwise, Potts

# a hub of 12 neighbours, two of them joined, and a node on its own
HUB = Graph(14, [(12 - i, 12) for i in range(1, 13)] + [(3, 7)])


def observations(graph, num_states, num_items, num_distinct):
    """Rows that repeat."""
    rng = np.random.default_rng(1)
    rows = rng.integers(0, num_states, (num_distinct, graph.num_nodes))
    return rows[rng.integers(0, num_distinct, num_items)].astype(np.int8)


def random_parameters(kind, graph, rng):
    num_states, shape = {"ising": (2, ()), "potts": (3, ()), "pairwise": (3, (3, 3))}[kind]
    fields = (graph.num_nodes,) if kind == "ising" else (graph.num_nodes, num_states)
    return rng.normal(size=(graph.num_edges, *shape)), rng.normal(size=fields)


def potential(kind, graph, parameters):
    maker = {
        "ising": oracles.ising_potential,
        "potts": oracles.potts_potential,
        "pairwise": oracles.table_potential,
    }[kind]
    return maker(graph.edges.tolist(), *parameters)


def log_ratios(potential, states, num_states):
    """log p(changed) - log p(states) for every change of one node."""
    start = float(potential(states))
    for node, own in enumerate(states):
        for state in range(num_states):
            if state != own:
                yield float(potential((*states[:node], state, *states[node + 1 :]))) - start


def mean_losses(potential, data, num_states):
    """Negative log pseudo-likelihood and probability flow, mean over observations."""
    losses = np.zeros(2)
    for states, count in Counter(map(tuple, data.tolist())).items():
        ratios = log_ratios(potential, states, num_states)
        flow = math.fsum(math.exp(ratio / 2) for ratio in ratios)
        fit = oracles.log_pseudolikelihood(potential, states, num_states)
        losses += np.array([-fit, flow]) * count / len(data)
    return losses


CASES = {  # model, graph, observations, distinct ones, cost of a table; kinds of tables expected
    "all_configurations": ("ising", grid((2, 3)), 130, 60, 2**18, "a"),
    "met_configurations": ("ising", HUB, 90, 20, 0, "maaa"),
    "observations": ("ising", HUB, 40, 4000, 20, "oaa"),
    "one_table_of_uneven_degrees": ("ising", HUB, 90, 20, 2**18, "m"),
    "without_edges": ("ising", Graph(3, np.zeros((0, 2), int)), 9, 8, 0, "a"),
    "one_observation": ("ising", grid((2, 2)), 1, 1, 0, "o"),
    "potts": ("potts", Graph(5, [(0, 1), (0, 2), (0, 3), (1, 2)]), 70, 25, 0, "aaaa"),
    "potts_hub": ("potts", Graph(7, [(i, 6) for i in range(6)]), 70, 12, 0, "ma"),
    "pairwise": ("pairwise", Graph(6, [(0, 3), (1, 3), (2, 3), (3, 4), (2, 5)]), 70, 12, 60, "ma"),
}


def make_case(name):
    kind, graph, num_items, num_distinct, table_cost, tables = CASES[name]
    num_states = 2 if kind == "ising" else 3
    data = observations(graph, num_states, num_items, num_distinct)
    made = neighborhood_tables(data, graph, num_states, table_cost=table_cost)
    return kind, graph, num_states, data, made, tables


@pytest.mark.parametrize("name", CASES)
def test_counts_are_those_of_the_data(name):
    _, graph, num_states, data, tables, kinds = make_case(name)
    seen = []
    for table, kind in zip(tables, kinds, strict=True):
        num_columns = table.states.shape[1]
        top = graph.degrees[table.nodes].max()
        assert num_columns == {"a": num_states**top, "o": len(data)}.get(kind, num_columns)
        assert kind != "m" or num_columns < min(num_states**top, len(data))
        for member, node in enumerate(table.nodes):
            is_own = table.owners == member
            ends = graph.edges[table.edges[is_own]]
            others = np.where(table.is_second[is_own], ends[:, 0], ends[:, 1])
            assert ((ends == node).sum(axis=1) == 1).all() and len(others) == graph.degrees[node]
            columns = table.states[table.rows[is_own]]
            counts = Counter()
            for state, column in zip(*np.nonzero(table.counts[member]), strict=True):
                count = int(table.counts[member, state, column])
                counts[(int(state), *columns[:, column].tolist())] += count
            assert counts == Counter(map(tuple, data[:, [node, *others]].tolist()))
            seen.append(int(node))
    assert sorted(seen) == list(range(graph.num_nodes))


@pytest.mark.parametrize("name", CASES)
def test_objectives_and_gradients_are_the_sums_over_observations(name, x64, rng):
    kind, graph, num_states, data, tables, _ = make_case(name)
    maker = {"ising": Ising, "potts": Potts, "pairwise": Pairwise}[kind]
    point, direction = (random_parameters(kind, graph, rng) for _ in range(2))

    def expected(step):
        moved = [p + step * d for p, d in zip(point, direction, strict=True)]
        return mean_losses(potential(kind, graph, moved), data, num_states)

    @jax.jit
    def along(parameters, direction, tables):
        losses = [
            _objective(module._loss, lambda p: maker(*p))(parameters, tables, len(data), 0.0)
            for module in (pseudolikelihood, probability_flow)
        ]
        return jnp.array(losses)

    value, slope = jax.jvp(
        lambda parameters: along(parameters, direction, tables), (point,), (direction,)
    )
    np.testing.assert_allclose(value, expected(0), rtol=1e-12)
    difference = (expected(1e-4) - expected(-1e-4)) / 2e-4
    np.testing.assert_allclose(slope, difference, rtol=1e-5, atol=1e-7)


def test_configurations_beyond_the_digits_of_an_integer_are_told_apart():
    star = Graph(151, [(i, 150) for i in range(150)])
    rows = np.zeros((3, 151), dtype=np.int8)
    rows[1, 0], rows[2, 149] = 1, 1  # differ from the first in the first and in the last neighbour
    data = np.repeat(rows, [5, 6, 7], axis=0)
    hub, _ = neighborhood_tables(data, star, 2, table_cost=0)
    assert sorted(hub.counts[0, 0].tolist()) == [0, 5, 6, 7]


def test_other_data_have_tables_of_the_same_shapes():
    shapes = [
        [leaf.shape for leaf in jax.tree.leaves(neighborhood_tables(data, HUB, 2, table_cost=0))]
        for data in (observations(HUB, 2, 90, 18), observations(HUB, 2, 90, 27))
    ]
    assert shapes[0] == shapes[1]


def test_entries_without_observations_do_not_overflow():
    data = np.array([[0, 0], [1, 1]] * 4, dtype=np.int8)
    tables = neighborhood_tables(data, Graph(2, [(0, 1)]), 2)
    objective = jax.jit(jax.value_and_grad(_objective(probability_flow._loss, identity)))
    value, gradient = objective(Ising(jnp.array([100.0]), jnp.zeros(2)), tables, 8.0, 0.0)
    assert value < 1e-30 and np.isfinite(gradient.couplings).all()
