import copy
import math
import pickle

import pytest

from jaxmrf.graphs import Hypergraph

NUM_STATES = [2, 3, 2, 1, 4]
SCOPES = [(0,), (1, 0), (2, 1), (), (0, 2), (4,), (1, 2)]


@pytest.fixture
def structure():
    return Hypergraph(NUM_STATES, SCOPES)


def test_structure_keeps_variables_and_scopes_in_order(structure):
    assert structure.num_states == (2, 3, 2, 1, 4)
    assert structure.scopes == tuple(SCOPES)
    assert (structure.num_nodes, structure.num_factors) == (5, 7)
    assert structure.table_shape(1) == (3, 2)
    assert structure.table_shape(3) == ()
    assert structure.num_entries == 2 + 6 + 6 + 1 + 4 + 4 + 6
    assert structure.num_node_entries == 12
    assert structure.node_starts.tolist() == [0, 2, 5, 7, 8]
    assert repr(structure) == "Hypergraph(num_nodes=5, num_factors=7)"


def test_stacks_hold_every_table_once_and_without_gaps(structure):
    found, place = [], 0
    for stack in structure.stacks:
        assert stack.start == place
        size = math.prod(stack.shape)
        assert stack.nodes.shape == (len(stack.factors), len(stack.shape))
        for row, factor in enumerate(stack.factors.tolist()):
            found.append(factor)
            assert structure.table_shape(factor) == stack.shape
            assert tuple(stack.nodes[row]) == structure.scopes[factor]
            assert structure.table_starts[factor] == place
            place += size
        assert stack.stop == place
    assert sorted(found) == list(range(7)) and place == structure.num_entries
    assert len({stack.shape for stack in structure.stacks}) == len(structure.stacks)


def test_structure_without_factors_or_variables_is_empty():
    empty = Hypergraph([], [])
    assert (empty.num_nodes, empty.num_entries, empty.num_node_entries) == (0, 0, 0)
    assert empty.stacks == () and empty.node_starts.size == 0
    lonely = Hypergraph([3], [])
    assert lonely.neighbors == (frozenset(),) and lonely.num_entries == 0


def test_neighbors_share_a_factor(structure):
    assert structure.neighbors == ({1, 2}, {0, 2}, {0, 1}, set(), set())
    graph = structure.primal_graph()
    assert graph.num_nodes == 5
    assert sorted(map(tuple, graph.edges.tolist())) == [(0, 1), (0, 2), (1, 2)]


def test_equal_content_is_equal_and_hashes_alike(structure):
    others = [copy.copy(structure), copy.deepcopy(structure), Hypergraph(NUM_STATES, SCOPES)]
    for other in [*others, pickle.loads(pickle.dumps(structure))]:
        assert other == structure and hash(other) == hash(structure)
    assert structure != Hypergraph([2, 3, 2, 1, 5], SCOPES)
    assert structure != Hypergraph(NUM_STATES, SCOPES[:-1])
    assert structure != Hypergraph(NUM_STATES, [*SCOPES[:-1], (2, 1)])
    assert structure != "structure"


@pytest.mark.parametrize(
    ("num_states", "scopes", "message"),
    [
        ([2, 0], [], "every variable to have at least one state, got 0 for variable 1; pass"),
        ([2, -1], [], "every variable to have at least one state, got -1 for variable 1; pass"),
        ([2], [(1,)], "variables in 0..0, got 1 in factor 0; raise the number of"),
        ([2], [(), (-1,)], "variables in 0..0, got -1 in factor 1; raise the number of"),
        ([2, 2], [(0, 1, 0)], "every variable once in a scope, got .0, 1, 0. in factor 0; take"),
    ],
)
def test_impossible_structure_raises(num_states, scopes, message):
    with pytest.raises(ValueError, match=f"Hypergraph: expected .*{message}"):
        Hypergraph(num_states, scopes)


def test_assignment_raises(structure):
    with pytest.raises(AttributeError, match="expected no assignment, got scopes; build another"):
        structure.scopes = ()


def test_every_place_in_the_array_of_states_has_its_variable_and_state():
    structure = Hypergraph([2, 1, 3], [])
    assert structure.node_owners.tolist() == [0, 0, 1, 2, 2, 2]
    assert structure.node_levels.tolist() == [0, 1, 0, 0, 1, 2]
