import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmrf.graphs import Graph, Hypergraph, grid
from jaxmrf.models import FactorGraph, Ising
from jaxmrf.variational import belief_propagation, free_energy
from jaxmrf.variational.belief_propagation import appearance_probabilities, decode, solve


def joint_of(graph):
    """Log potential of every configuration, an array with one axis per variable."""
    numbers = graph.num_states
    joint = np.zeros(numbers)

    def add(table, scope):
        nonlocal joint
        order = np.argsort(scope)
        shape = [numbers[node] if node in scope else 1 for node in range(len(numbers))]
        joint = joint + np.transpose(table, order).reshape(shape)

    for factor, scope in enumerate(graph.scopes):
        add(np.asarray(graph.log_table(factor), float), scope)
    for node, start in enumerate(graph.hypergraph.node_starts):
        add(np.asarray(graph.log_evidence[start : start + numbers[node]], float), (node,))
    return joint


def exact(graph):
    """Log Z, node marginals and factor marginals by brute force."""
    joint = joint_of(graph)
    top = joint.max()
    weights = np.exp(joint - top)
    log_z = top + np.log(weights.sum())
    weights /= weights.sum()

    def marginal(scope):
        others = tuple(node for node in range(weights.ndim) if node not in scope)
        return np.transpose(weights.sum(axis=others), np.argsort(np.argsort(scope)))

    nodes = [marginal((node,)) for node in range(weights.ndim)]
    return log_z, nodes, [marginal(scope) for scope in graph.scopes]


def mixed_tree(seed=0, share_of_zeros=0.0):
    """A forest of factors of 0 to 4 variables of 1 to 20 states, with an isolated variable."""
    rng = np.random.default_rng(seed)
    numbers = [2, 3, 2, 20, 1, 2, 3, 2, 2]
    scopes = [(1, 0), (2, 1, 3), (3, 4), (5, 1, 6, 7), (1,), (), (0,), (2,)]
    tables = [rng.normal(size=[numbers[node] for node in scope]) for scope in scopes]
    for table in tables[:4]:
        table[rng.random(table.shape) < share_of_zeros] = -np.inf
    graph = FactorGraph.from_tables(numbers, scopes, tables)
    return graph.observe({2: [0.3, 0.9], 8: [0.2, 0.1], 6: 1})


def loopy(seed=0, scale=0.4):
    """A graph with cycles: factors of two and three variables of two or three states."""
    rng = np.random.default_rng(seed)
    numbers = [2, 3, 2, 3, 2, 2]
    scopes = [(0, 1), (1, 2), (2, 0), (1, 3), (3, 4, 0), (5, 4), (4,), (0, 1)]
    tables = [rng.normal(0, scale, [numbers[node] for node in scope]) for scope in scopes]
    return FactorGraph.from_tables(numbers, scopes, tables).observe({3: [1.0, 2.0, 0.5]})


def assert_beliefs(found, log_z, nodes, factors, atol):
    np.testing.assert_allclose(found.log_z, log_z, atol=20 * atol)
    for own, expected in zip(found.nodes, nodes, strict=True):
        np.testing.assert_allclose(own, expected, atol=atol)
    for own, expected in zip(found.factors, factors, strict=True):
        np.testing.assert_allclose(own, expected, atol=atol)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("schedule", "is_log_domain"),
    [("flooding", False), ("flooding", True), ("sequential", False), ("residual", False)],
)
def test_tree_is_exact(schedule, is_log_domain):
    for share in (0.0, 0.3):
        graph = mixed_tree(share_of_zeros=share)
        found = solve(graph, schedule=schedule, is_log_domain=is_log_domain)
        assert found.is_converged and 0 < found.num_iters < 40
        assert_beliefs(found, *exact(graph), atol=2e-6)


@pytest.mark.parametrize("schedule", ["flooding", "sequential"])
def test_max_product_on_a_tree_finds_the_mode(schedule):
    for seed in range(3):
        graph = mixed_tree(seed, share_of_zeros=0.3 * (seed > 0))
        found = solve(graph, is_max=True, schedule=schedule)
        joint = joint_of(graph)
        best = np.unravel_index(joint.argmax(), joint.shape)
        states, is_consistent = decode(found)
        assert tuple(states.tolist()) == best and is_consistent
        np.testing.assert_allclose(found.log_z, joint.max(), rtol=1e-6)
        for node, own in enumerate(found.nodes):
            others = tuple(other for other in range(joint.ndim) if other != node)
            largest = np.exp(joint.max(axis=others) - joint.max())
            np.testing.assert_allclose(own, largest / largest.sum(), atol=2e-6)


def test_ties_are_not_consistent():
    table = np.log([[2.0, 1.0], [1.0, 2.0]])
    graph = FactorGraph.from_tables([2, 2], [(0, 1)], [table])
    assert not decode(solve(graph, is_max=True)).is_consistent
    assert decode(solve(graph.observe({1: 0}), is_max=True)).is_consistent


def test_hub_of_many_factors_is_exact():
    rng = np.random.default_rng(0)
    scopes = [(0, leaf) for leaf in range(1, 12)] + [(0,)] * 2 + [(0, 1, 2)]
    scopes += [(0, 12 + leaf) for leaf in range(10)]
    numbers = [2] * 12 + [1] * 10
    tables = [rng.normal(size=[numbers[node] for node in scope]) for scope in scopes]
    graph = FactorGraph.from_tables(numbers, scopes, tables)
    tree = FactorGraph.from_tables(numbers, scopes[2:], tables[2:])
    assert_beliefs(solve(tree), *exact(tree), atol=2e-6)
    assert solve(graph).is_converged


@pytest.mark.slow
def test_batch_of_evidence_is_a_loop():
    graph = mixed_tree(share_of_zeros=0.3)
    states = np.full((4, graph.num_nodes), -1)
    states[1, 0], states[2, 3], states[3, 6] = 1, 7, 0  # the last against the hard evidence
    batched = jax.vmap(lambda own: solve(graph.observe_states(own)))(states)
    for number, own in enumerate(states):
        single = solve(graph.observe_states(own))
        np.testing.assert_allclose(batched.log_z[number], single.log_z, rtol=1e-6)
        np.testing.assert_allclose(batched.nodes.flat[number], single.nodes.flat, atol=1e-6)
        np.testing.assert_allclose(batched.factors.flat[number], single.factors.flat, atol=1e-6)
        assert batched.num_iters[number] == single.num_iters
    assert batched.log_z[3] == -np.inf and (batched.nodes.flat[3] == 0).all()


def impossible_chain(is_constant=False):
    """Equality all along a chain whose ends are told apart, or a constant of zero."""
    equal = np.where(np.eye(2), 0, -np.inf)
    chain = FactorGraph.from_tables([2] * 4, [(0, 1), (1, 2), (2, 3)], [equal] * 3)
    if is_constant:
        return FactorGraph.from_tables([2], [()], [np.array(-np.inf)])
    return chain.observe({0: 0, 3: 1})


@pytest.mark.parametrize("options", [{}, {"is_max": True}, {"is_log_domain": True}])
def test_impossible_evidence_is_reported_without_nan(options):
    for graph in (impossible_chain(), impossible_chain(is_constant=True)):

        def log_z(tables, graph=graph):
            changed = FactorGraph(tables, graph.log_evidence, graph.hypergraph)
            return solve(changed, **options).log_z

        value, gradient = jax.value_and_grad(log_z)(jnp.asarray(graph.log_tables))
        assert value == -np.inf and (gradient == 0).all()
        found = solve(graph, **options)
        assert (found.nodes.flat == 0).all() and (found.factors.flat == 0).all()
        assert found.is_converged


def test_extreme_tables_need_the_log_domain():
    spins = np.array([-1.0, 1.0])
    tables = [300 * spins[:, None] * spins] * 2 + [-100 * spins, 150 * spins]
    graph = FactorGraph.from_tables([2] * 3, [(0, 1), (1, 2), (0,), (2,)], tables)
    found = solve(graph, is_log_domain=True)
    np.testing.assert_allclose(found.log_z, 650, rtol=1e-6)
    np.testing.assert_allclose(found.nodes.flat, [0, 1] * 3, atol=1e-6)


@pytest.mark.slow
def test_schedules_and_damping_share_a_fixed_point():
    graph = loopy()
    first = solve(graph)
    assert first.is_converged
    for options in (
        {"damping": 0.5},
        {"schedule": "sequential"},
        {"schedule": "residual", "damping": 0.2},
        {"key": jax.random.key(0)},
        {"is_log_domain": True},
    ):
        other = solve(graph, **options)
        assert other.is_converged
        np.testing.assert_allclose(other.log_z, first.log_z, rtol=1e-6)
        np.testing.assert_allclose(other.factors.flat, first.factors.flat, atol=3e-5)


def test_names_and_order_do_not_matter():
    graph = loopy()
    first = solve(graph, tolerance=1e-6)
    rng = np.random.default_rng(1)
    rename = rng.permutation(graph.num_nodes).tolist()
    order = rng.permutation(len(graph.scopes))
    scopes, tables = [], []
    for factor in order.tolist():
        axes = rng.permutation(len(graph.scopes[factor]))
        scopes.append([rename[graph.scopes[factor][axis]] for axis in axes])
        tables.append(np.transpose(graph.log_table(factor), axes))
    back = np.argsort(rename)
    numbers = [graph.num_states[node] for node in back]
    other = FactorGraph.from_tables(numbers, scopes, tables)
    other = solve(other.observe({rename[3]: [1.0, 2.0, 0.5]}), tolerance=1e-6)
    np.testing.assert_allclose(other.log_z, first.log_z, rtol=1e-6)
    for node in range(graph.num_nodes):
        np.testing.assert_allclose(other.nodes[rename[node]], first.nodes[node], atol=2e-5)


def test_isolated_variables_alone_need_no_iteration():
    graph = FactorGraph.from_tables([2, 3], [(0,), ()], [np.array([0.3, 0.1]), np.array(0.7)])
    found = solve(graph)
    assert_beliefs(found, *exact(graph), atol=1e-6)
    assert found.is_converged and found.num_iters == 0


def test_too_few_iterations_are_reported():
    found = solve(loopy(), max_iters=2)
    assert not found.is_converged and found.num_iters == 2
    np.testing.assert_allclose(sum(found.nodes[0]), 1, rtol=1e-6)


def ising(rng, num_nodes, strength, is_attractive):
    """A random dense graph of spins."""
    pairs = [pair for pair in itertools.combinations(range(num_nodes), 2) if rng.random() < 0.7]
    couplings = rng.normal(0, strength, len(pairs))
    couplings = np.abs(couplings) if is_attractive else couplings
    graph = Graph(num_nodes, pairs)
    model = Ising(jnp.asarray(couplings), jnp.asarray(rng.normal(0, 0.5, num_nodes)))
    return FactorGraph.from_pairwise(model, graph)


@pytest.mark.slow
def test_bounds_hold_on_random_graphs(x64):
    # one structure and many tables: the complete graph, with couplings of zero where there is none
    rng = np.random.default_rng(0)
    complete = Graph(6, itertools.combinations(range(6), 2))
    hypergraph = FactorGraph.from_pairwise(Ising(jnp.zeros(15), jnp.zeros(6)), complete).hypergraph
    weights = appearance_probabilities(hypergraph)
    models, is_attractive = [], np.arange(24) % 2 == 0
    for number in range(24):
        couplings = rng.normal(0, [0.1, 0.3, 0.6][number % 3], 15)
        couplings = np.abs(couplings) if is_attractive[number] else couplings
        fields = jnp.asarray(rng.normal(0, 0.5, 6) * (number % 4 > 0))
        models.append(FactorGraph.from_pairwise(Ising(jnp.asarray(couplings), fields), complete))
    tables = jnp.stack([model.log_tables for model in models])
    log_z = np.array([exact(model)[0] for model in models])

    def values(own, **options):
        graph = FactorGraph(own, jnp.zeros(12), hypergraph)
        return solve(graph, damping=0.5, max_iters=5000, **options)

    trw = jax.vmap(lambda own: values(own, weights=weights))(tables)
    assert trw.is_converged.all()
    assert (trw.log_z > log_z - 1e-9).all() and (trw.log_z > log_z + 0.01).any()
    keys = jax.random.split(jax.random.key(0), 24)
    other = jax.vmap(lambda own, key: values(own, weights=weights, key=key))(tables, keys)
    np.testing.assert_allclose(other.log_z, trw.log_z, atol=1e-8)
    np.testing.assert_allclose(other.nodes.flat, trw.nodes.flat, atol=1e-6)
    bethe = jax.vmap(values)(tables)
    is_bound = is_attractive & np.asarray(bethe.is_converged)
    assert is_bound.sum() >= 8 and (bethe.log_z < log_z + 1e-9)[is_bound].all()
    assert (bethe.log_z < log_z - 0.01)[is_bound].any()


def test_tree_reweighted_max_product_bounds_the_largest_potential(x64):
    graph = FactorGraph.from_pairwise(
        Ising(jnp.asarray(np.random.default_rng(0).normal(0, 1, 12)), jnp.full(9, 0.2)),
        grid((3, 3)),
    )
    weights = appearance_probabilities(graph.hypergraph)
    found = solve(graph, weights=weights, is_max=True, damping=0.5)
    joint = joint_of(graph)
    assert found.log_z > joint.max() - 1e-9
    states, is_consistent = decode(found)
    if is_consistent:
        assert tuple(states.tolist()) == np.unravel_index(joint.argmax(), joint.shape)


@pytest.mark.slow
def test_ones_as_weights_are_no_weights():
    graph = loopy()
    ones = jnp.ones(len(graph.scopes))
    np.testing.assert_allclose(
        solve(graph, weights=ones).factors.flat, solve(graph).factors.flat, atol=1e-6
    )
    tree = mixed_tree().hypergraph
    two = Hypergraph([2] * 3, [(0, 1), (1, 2), (0,)])
    assert (appearance_probabilities(two) == 1).all() and tree.num_factors == 8


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"schedule": "random"}, "expected a schedule among flooding, sequential, residual"),
        ({"damping": 1.0}, r"solve: expected damping in \[0, 1\), got 1.0; it is the part"),
        ({"damping": -0.1}, r"solve: expected damping in \[0, 1\), got -0.1"),
        ({"tolerance": -1.0}, "solve: expected a tolerance of at least 0, got -1.0"),
        ({"max_iters": 0}, "solve: expected max_iters of at least 1, got 0; allow some"),
        ({"weights": np.ones(3)}, r"expected 8 weights, one per factor, got shape \(3,\)"),
        ({"weights": np.zeros(8)}, "expected positive weights, got 0.0; every edge"),
    ],
)
def test_bad_options_raise(options, message):
    with pytest.raises(ValueError, match=message):
        solve(loopy(), **options)


def test_module_says_what_it_offers():
    assert {"solve", "decode"} <= set(belief_propagation.__all__)
    assert free_energy.__all__
