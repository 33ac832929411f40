import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from table_oracle import joint

from jaxmrf.graphs import Graph
from jaxmrf.models import (
    FactorGraph,
    Ising,
    Labels,
    Pairwise,
    Potts,
    log_potential,
    log_potential_of,
)

NUM_STATES = (2, 3, 2, 1)
SCOPES = ((1, 0), (0, 2), (2, 1, 0), (), (3,), (1,))
LABELS = Labels(
    ("rain", "sky", "lawn", "sun"), (("no", "yes"), ("a", "b", "c"), ("dry", "wet"), ("on",))
)
ALL = list(itertools.product(*map(range, NUM_STATES)))


def shape_of(scope):
    return tuple(NUM_STATES[node] for node in scope)


@pytest.fixture
def tables(rng):
    """Potentials with some zeros."""
    tables = [np.asarray(rng.gamma(1.0, size=shape_of(scope))) for scope in SCOPES]
    tables[0][2, 0] = tables[2][1, 0, 1] = 0.0
    return tables


@pytest.fixture
def graph(tables):
    return FactorGraph.from_tables(NUM_STATES, SCOPES, logs(tables), labels=LABELS)


def logs(tables):
    with np.errstate(divide="ignore"):
        return [np.asarray(np.log(table)) for table in tables]


def values(graph, configurations=ALL):
    """Log potential of every configuration."""
    states = jnp.asarray(configurations)
    return np.asarray(jax.jit(jax.vmap(log_potential_of, (None, 0)))(graph, states))


def test_log_potential_is_the_oracles(graph, tables, x64):
    expected = logs([joint(NUM_STATES, SCOPES, tables)])[0].ravel()
    np.testing.assert_allclose(values(graph), expected, rtol=1e-12)
    assert (expected == -np.inf).any()
    for factor, table in enumerate(logs(tables)):
        np.testing.assert_array_equal(graph.log_table(factor), table)


def test_tables_keep_their_kind_and_precision(tables):
    graph = FactorGraph.from_tables(NUM_STATES, SCOPES, logs(tables))
    assert isinstance(graph.log_tables, np.ndarray) and graph.log_tables.dtype == np.float64
    assert graph.log_evidence.dtype == np.float64
    single = [table.astype(np.float32) for table in logs(tables)]
    assert FactorGraph.from_tables(NUM_STATES, SCOPES, single).log_tables.dtype == np.float32
    device = FactorGraph.from_tables(NUM_STATES, SCOPES, [jnp.asarray(t) for t in single])
    assert isinstance(device.log_tables, jax.Array)
    whole = FactorGraph.from_tables([2], [(0,)], [np.array([0, 1])])
    assert whole.log_tables.dtype == np.float64
    empty = FactorGraph.from_tables([2, 2], [], [])
    assert (empty.num_nodes, empty.scopes, empty.log_tables.size) == (2, (), 0)


def test_gradient_of_the_log_potential_counts_the_entries_used(graph):
    states = jnp.array([1, 2, 0, 0])
    gradient = jax.grad(lambda g: log_potential_of(g, states), allow_int=True)(
        jax.tree.map(jnp.asarray, graph)
    )
    counts = FactorGraph(gradient.log_tables, gradient.log_evidence, graph.hypergraph)
    for factor, scope in enumerate(SCOPES):
        expected = np.zeros(shape_of(scope))
        expected[tuple(int(states[node]) for node in scope)] = 1.0
        np.testing.assert_array_equal(counts.log_table(factor), expected)
    np.testing.assert_array_equal(counts.log_evidence, [0, 1, 0, 0, 1, 1, 0, 1])


def test_traced_tables_make_the_same_model(graph, tables):
    @jax.jit
    def value(tables, states):
        return log_potential_of(FactorGraph.from_tables(NUM_STATES, SCOPES, tables), states)

    states = jnp.array([0, 1, 1, 0])
    found = value([jnp.asarray(table) for table in logs(tables)], states)
    np.testing.assert_allclose(found, values(graph, [(0, 1, 1, 0)])[0], rtol=1e-6)


@pytest.mark.parametrize("kind", ["ising", "potts", "pairwise"])
def test_pairwise_model_has_the_same_log_potential(rng, kind):
    lattice = Graph(4, [(0, 1), (3, 1), (2, 0)])
    normal = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)  # noqa: E731
    model = {
        "ising": lambda: Ising(normal(3), normal(4)),
        "potts": lambda: Potts(normal(3), normal(4, 3)),
        "pairwise": lambda: Pairwise(normal(3, 3, 3), normal(4, 3)),
    }[kind]()
    graph = FactorGraph.from_pairwise(model, lattice)
    assert graph.num_states == (model.num_states,) * 4
    states = jnp.asarray(list(itertools.product(range(model.num_states), repeat=4)))
    expected = jax.vmap(lambda x: log_potential(model, lattice, x))(states)
    np.testing.assert_allclose(values(graph, states), expected, atol=2e-6)


def test_conditional_tables_make_a_normalised_network(rng, x64):
    parents = [(2,), (0, 2), (), (1,)]
    scopes = [(*own, node) for node, own in enumerate(parents)]
    tables = [rng.dirichlet(np.ones(NUM_STATES[s[-1]]), shape_of(s[:-1])) for s in scopes]
    graph = FactorGraph.from_conditionals(NUM_STATES, parents, logs(tables), labels=LABELS)
    assert graph.scopes == tuple(scopes) and graph.labels == LABELS
    np.testing.assert_allclose(np.exp(values(graph)).sum(), 1.0, rtol=1e-12)


def test_hard_evidence_leaves_one_state_by_number_or_name(graph):
    seen = graph.observe({0: 1, "lawn": "dry", "sky": np.int64(2)})
    assert seen.observed() == {0: 1, 1: 2, 2: 0, 3: 0}
    assert graph.observed() == {3: 0}  # a variable of one state
    expected = [
        v if s[:3] == (1, 2, 0) else -np.inf for s, v in zip(ALL, values(graph), strict=True)
    ]
    np.testing.assert_allclose(values(seen), expected, rtol=1e-6)
    assert (graph.node("sky"), graph.node(2)) == (1, 2)
    clash = seen.observe({0: 0})
    assert 0 not in clash.observed() and (values(clash) == -np.inf).all()


def test_soft_evidence_multiplies_likelihoods(graph):
    seen = graph.observe({"sky": [0.5, 0.0, 2.0]}).observe({"sky": np.array([2, 1, 1]), 0: [1, 3]})
    likelihood = np.log([1.0, 1e-300, 2.0])
    likelihood[1] = -np.inf
    expected = [
        value + likelihood[states[1]] + np.log([1.0, 3.0])[states[0]]
        for states, value in zip(ALL, values(graph), strict=True)
    ]
    np.testing.assert_allclose(values(seen), expected, rtol=1e-5, atol=1e-6)
    assert isinstance(seen.log_evidence, np.ndarray) and seen.log_evidence.dtype == np.float64


def test_batch_of_states_is_a_batch_of_evidence(graph):
    batch = jnp.array([[1, 2, 0, -1], [-1, 1, -1, 0], [-1, -1, -1, -1], [0, 7, 1, 0]])

    def log_potentials(states):
        seen = graph.observe_states(states)
        return jax.vmap(lambda x: log_potential_of(seen, x))(jnp.asarray(ALL))

    found = np.asarray(jax.jit(jax.vmap(log_potentials))(batch))
    np.testing.assert_allclose(found[0], values(graph.observe({0: 1, 1: 2, 2: 0})), rtol=1e-6)
    np.testing.assert_allclose(found[1], values(graph.observe({1: 1})), rtol=1e-6)
    np.testing.assert_allclose(found[2], values(graph), rtol=1e-6)
    assert (found[3] == -np.inf).all()  # there is no state 7


@pytest.mark.parametrize("given", [{0: 1}, {1: 2, 2: 0}, {0: 0, 1: 1, 2: 1, 3: 0}, {}])
def test_conditioned_model_is_the_observed_one_on_a_smaller_structure(graph, given):
    soft = graph.observe({1: [0.5, 0.25, 2.0]})
    expected = values(soft.observe(given))
    concrete = soft.condition(given)
    traced = jax.jit(lambda states: soft.condition(states))(given)
    for found in (concrete, traced, soft.condition({n: np.int32(s) for n, s in given.items()})):
        assert not {node for scope in found.scopes for node in scope} & given.keys()
        assert found.num_states == NUM_STATES and found.labels == LABELS
        np.testing.assert_allclose(values(found), expected, rtol=1e-5, atol=1e-6)
    assert isinstance(concrete.log_tables, np.ndarray)
    assert concrete.log_tables.dtype == concrete.log_evidence.dtype == np.float64
    assert concrete.observed().items() >= given.items()


def test_given_state_that_does_not_exist_raises_or_is_impossible(graph):
    with pytest.raises(ValueError, match="a state in 0..2 of variable 1, got 3; states are numb"):
        graph.condition({1: 3})
    with pytest.raises(ValueError, match="a variable in 0..3, got 4; variables are numbered"):
        graph.condition({4: 0})
    for state in (3, -1):
        assert (values(graph.condition({1: jnp.array(state)})) == -np.inf).all()


def test_two_models_of_one_structure_share_a_compiled_program(tables):
    num_traces = 0

    @jax.jit
    def total(graph):
        nonlocal num_traces
        num_traces += 1
        return graph.log_tables.sum()

    for scale in (1.0, 2.0):
        positive = [np.asarray(scale + table) for table in tables]
        total(FactorGraph.from_tables(NUM_STATES, SCOPES, logs(positive), labels=LABELS))
    assert num_traces == 1


BAD_TABLES = [
    ([np.zeros(2)], [(0,), (1,)], "2 tables, got 1; pass one table per scope"),
    ([np.zeros((2, 3))], [(1, 0)], r"of shape .3, 2. for factor 0 on .1, 0., got .2, 3.; order"),
    (
        [np.array([0.0, np.nan])],
        [(0,)],
        r"below infinity, got nan at .1,. of table 0; pass the log",
    ),
    (
        [np.array([np.inf, 0.0])],
        [(0,)],
        r"below infinity, got inf at .0,. of table 0; pass the log",
    ),
    ([jnp.array([jnp.inf, 0.0])], [(0,)], r"below infinity, got inf at .0,. of table 0; pass the"),
]


@pytest.mark.parametrize(("tables", "scopes", "message"), BAD_TABLES, ids=range(len(BAD_TABLES)))
def test_tables_that_do_not_fit_raise(tables, scopes, message):
    with pytest.raises(ValueError, match=f"FactorGraph: expected .*{message}"):
        FactorGraph.from_tables([2, 3], scopes, tables)


def test_arrows_in_a_cycle_raise():
    zeros = [np.zeros((2, 2))] * 2
    with pytest.raises(ValueError, match="arrows without a cycle, got one among variables .0, 1.;"):
        FactorGraph.from_conditionals([2, 2], [(1,), (0,)], zeros)


BAD_EVIDENCE = [
    ({"moon": 0}, "the name of a variable, got 'moon'; names are rain, sky, lawn, sun"),
    ({4: 0}, "a variable in 0..3, got 4; variables are numbered from 0"),
    ({-1: 0}, "a variable in 0..3, got -1; variables are numbered from 0"),
    ({"sky": "d"}, "a state of variable 1, got 'd'; states are a, b, c"),
    ({1: 3}, "a state in 0..2 of variable 1, got 3; states are numbered from 0"),
    ({1: -1}, "a state in 0..2 of variable 1, got -1; states are numbered from 0"),
    ({1: 1.0}, "a state or 3 likelihoods, .* of variable 1, got 1.0; pass one per state"),
    ({1: [1, 1]}, "a state or 3 likelihoods, .* of variable 1, got .1, 1.; pass one per state"),
    ({1: [1, -1, 1]}, "non-negative and not all zero, of variable 1, got .1, -1, 1.; pass one"),
    ({1: [0, 0, 0]}, "non-negative and not all zero, of variable 1, got .0, 0, 0.; pass one"),
    ({1: [0, np.nan, 1]}, "non-negative and not all zero, of variable 1, got .0.0, nan, 1.0.;"),
    ({1: [0, np.inf, 1]}, "non-negative and not all zero, of variable 1, got .0.0, inf, 1.0.;"),
]


@pytest.mark.parametrize(("evidence", "message"), BAD_EVIDENCE, ids=range(len(BAD_EVIDENCE)))
def test_impossible_evidence_raises(graph, evidence, message):
    with pytest.raises(ValueError, match=f"FactorGraph: expected .*{message}"):
        graph.observe(evidence)


def test_names_of_a_model_without_labels_raise():
    graph = FactorGraph.from_tables([2], [(0,)], [np.zeros(2)])
    with pytest.raises(ValueError, match="got 'rain'; names are not known for this model"):
        graph.observe({"rain": 0})
    with pytest.raises(ValueError, match="got 'yes'; states are not named in this model"):
        graph.observe({0: "yes"})
