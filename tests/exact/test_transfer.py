import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from examples import EMPTY, GRAPHS, KINDS, UNEVEN, potential_of, random_model
from scipy import stats

from jaxmrf.exact import enumeration, transfer
from jaxmrf.graphs import Graph, binary_tree, frontier_plan, grid, torus
from jaxmrf.models import Ising, Pairwise, Potts

# a cycle with a chord, a tree, an isolated node between them
PARTS = Graph(8, [(0, 1), (1, 2), (2, 0), (2, 3), (5, 6), (7, 5)])
CASES = [
    ("ising", UNEVEN),
    ("potts", PARTS),
    ("pairwise", PARTS),
    ("pairwise", GRAPHS["bipartite"]),
]
CASES += [(kind, EMPTY) for kind in KINDS]


def grid_transfer_matrix(couplings, fields, shape):
    """log Z and mean spin products of an Ising grid, row by row in double precision."""
    num_rows, num_columns = shape
    across, down = np.zeros((num_rows, num_columns)), np.zeros((num_rows, num_columns))
    for (u, v), value in zip(grid(shape).edges, couplings, strict=True):
        table = across if v == u + 1 else down
        table[divmod(u, num_columns)] = value
    spins = 2 * (np.arange(2**num_columns)[:, None] >> np.arange(num_columns) & 1) - 1.0
    fields = np.reshape(fields, shape)

    def row_weight(i):
        inside = (spins[:, :-1] * spins[:, 1:]) @ across[i, :-1]
        return np.exp(inside + spins @ fields[i])

    def step(vector, i):
        """Vector times the coupling of rows i and i + 1, one column at a time."""
        vector = vector.reshape((2,) * num_columns)
        for j in range(num_columns):
            matrix = np.exp(down[i, j] * np.array([[1, -1], [-1, 1]]))
            axis = num_columns - 1 - j
            vector = np.moveaxis(np.tensordot(matrix, vector, (1, axis)), 0, axis)
        return vector.ravel()

    forward, log_scale = [row_weight(0)], 0.0
    for i in range(1, num_rows):
        table = step(forward[-1], i - 1) * row_weight(i)
        log_scale += np.log(table.sum())
        forward.append(table / table.sum())
    backward = [np.ones(2**num_columns)]
    for i in range(num_rows - 2, -1, -1):
        table = step(backward[0] * row_weight(i + 1), i)
        backward.insert(0, table / table.sum())
    log_total = np.log(forward[-1].sum()) + log_scale
    probabilities = [f * b / (f @ b) for f, b in zip(forward, backward, strict=True)]
    return log_total, np.array([p @ spins for p in probabilities]).ravel()


@pytest.mark.parametrize(("kind", "graph"), CASES)
def test_solve_is_enumeration(kind, graph):
    model = random_model(kind, graph, num_states=2 if kind == "ising" else 3)
    found, expected = transfer.solve(model, graph), enumeration.solve(model, graph)
    np.testing.assert_allclose(found.log_z, expected.log_z, rtol=1e-6)
    np.testing.assert_allclose(found.nodes, expected.nodes, atol=2e-6)
    np.testing.assert_allclose(found.factors, expected.factors, atol=2e-6)
    assert bool(found.is_converged) and int(found.num_iters) == 0


def test_solve_is_the_oracle():
    graph = GRAPHS["grid"]
    model = random_model("pairwise", graph)
    potential = potential_of(model, graph)
    found = transfer.solve(model, graph)
    np.testing.assert_allclose(found.log_z, oracles.log_z(potential, 6, 3), rtol=1e-6)
    probabilities = oracles.distribution(potential, 6, 3)
    edges = oracles.pair_marginals(probabilities, graph.edges.tolist(), 6, 3)
    np.testing.assert_allclose(found.factors, edges, atol=2e-6)


@pytest.mark.slow
def test_hessian_is_the_covariance_of_the_statistics():
    graph = grid((3, 3))
    model = random_model("ising", graph)
    states = np.array(oracles.configurations(9, 2))
    probabilities = oracles.distribution(potential_of(model, graph), 9, 2)
    spins = 2.0 * states - 1
    first, second = graph.edges.T
    table = np.concatenate([spins[:, first] * spins[:, second], spins], axis=1)
    mean = probabilities @ table
    covariance = (table - mean).T @ (probabilities[:, None] * (table - mean))
    hessian = jax.hessian(transfer.log_z)(model, graph)
    blocks = [[b.couplings, b.fields] for b in (hessian.couplings, hessian.fields)]
    np.testing.assert_allclose(np.block(blocks), covariance, atol=5e-6)


def test_chain_and_ring_have_their_closed_forms():
    couplings = np.random.default_rng(0).normal(0, 1, 200).astype(np.float32)
    path = Ising(jnp.asarray(couplings[1:]), jnp.zeros(200))
    expected = 200 * np.log(2) + np.log(np.cosh(couplings[1:])).sum()
    np.testing.assert_allclose(transfer.log_z(path, grid((1, 200))), expected, rtol=1e-6)
    ring = torus((12,))
    model = Ising(jnp.asarray(couplings[:12]), jnp.zeros(12))
    expected = np.log(np.prod(2 * np.cosh(couplings[:12])) + np.prod(2 * np.sinh(couplings[:12])))
    np.testing.assert_allclose(transfer.log_z(model, ring), expected, rtol=1e-6)


def test_tree_of_two_hundred_and_fifty_five_nodes_has_its_closed_form():
    tree = binary_tree(7)
    couplings = np.random.default_rng(0).normal(0, 1, tree.num_edges).astype(np.float32)
    model = Ising(jnp.asarray(couplings), jnp.zeros(tree.num_nodes))
    found, gradient = jax.value_and_grad(transfer.log_z)(model, tree)
    expected = tree.num_nodes * np.log(2) + np.log(np.cosh(couplings)).sum()
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    np.testing.assert_allclose(gradient.couplings, np.tanh(couplings), atol=2e-6)


def test_single_precision_holds_on_a_grid_of_twelve_by_twelve():
    graph = grid((12, 12))
    model = random_model("ising", graph, scale=0.6)
    expected, spins = grid_transfer_matrix(
        np.asarray(model.couplings, np.float64), np.asarray(model.fields, np.float64), (12, 12)
    )
    value, gradient = jax.value_and_grad(transfer.log_z)(model, graph)
    np.testing.assert_allclose(value, expected, rtol=1e-6)
    np.testing.assert_allclose(gradient.fields, spins, atol=1e-5)


def test_oracle_of_the_large_grid_is_the_oracle():
    model = random_model("ising", grid((2, 3)))
    found, spins = grid_transfer_matrix(model.couplings, model.fields, (2, 3))
    potential = potential_of(model, grid((2, 3)))
    np.testing.assert_allclose(found, oracles.log_z(potential, 6, 2), rtol=1e-6)
    nodes = oracles.node_marginals(oracles.distribution(potential, 6, 2), 6, 2)
    np.testing.assert_allclose(spins, nodes[:, 1] - nodes[:, 0], atol=1e-6)


def test_order_does_not_matter():
    graph = grid((3, 3))
    model = random_model("potts", graph)
    expected = transfer.solve(model, graph)
    order = np.random.default_rng(1).permutation(9)
    plan = frontier_plan(graph, order=order)
    assert plan.width != frontier_plan(graph).width
    found = transfer.solve(model, graph, plan)
    for name in ("log_z", "nodes", "factors"):
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), atol=3e-6)


def test_huge_potentials_stay_finite():
    graph = grid((2, 3))
    model = Potts(jnp.full(graph.num_edges, 500.0), jnp.zeros((6, 3)))
    value, gradient = jax.value_and_grad(transfer.log_z)(model, graph)
    np.testing.assert_allclose(value, 500 * 7 + np.log(3), rtol=1e-6)
    np.testing.assert_allclose(gradient.couplings, 1)
    np.testing.assert_allclose(gradient.fields, 1 / 3, rtol=1e-6)


def test_second_graph_of_equal_sizes_does_not_trace_again(monkeypatch):
    traced = []
    log_z = transfer._log_z.__wrapped__
    monkeypatch.setattr(
        transfer, "_log_z", jax.jit(lambda *args: (traced.append(1), log_z(*args))[1])
    )
    other = Graph(6, [(0, 3), (3, 1), (1, 4), (4, 2), (2, 5), (5, 0)])
    for graph in (torus((6,)), other):
        model = random_model("ising", graph)
        found = transfer.log_z(model, graph)
        np.testing.assert_allclose(found, enumeration.log_z(model, graph), rtol=1e-6)
    assert len(traced) == 1


def test_draws_have_the_exact_probabilities(key):
    graph = grid((3, 3))
    model = random_model("ising", graph)
    draws = np.asarray(transfer.sample(key, model, graph, num_samples=100_000))
    assert draws.shape == (100_000, 9) and draws.dtype == np.int8
    counts = np.bincount(draws @ 2 ** np.arange(9), minlength=512)
    probabilities = oracles.distribution(potential_of(model, graph), 9, 2)
    is_common = probabilities * 100_000 >= 5
    observed = np.append(counts[is_common], counts[~is_common].sum())
    expected = np.append(probabilities[is_common], probabilities[~is_common].sum()) * 100_000
    assert is_common.sum() > 200
    assert stats.chisquare(observed, expected).pvalue > 1e-3


@pytest.mark.parametrize(("num_states", "num_edges"), [(2, 5), (2, 0), (3, 5), (3, 0)])
def test_draws_with_isolated_nodes_have_the_exact_probabilities(num_states, num_edges, key):
    graph = Graph(5, [(0, 1), (3, 1), (0, 3), (0, 4), (4, 3)][:num_edges])
    model = random_model("pairwise", graph, num_states=num_states)
    draws = np.asarray(transfer.sample(key, model, graph, num_samples=50_000))
    assert draws.dtype == np.int8
    counts = np.bincount(draws @ num_states ** np.arange(5), minlength=num_states**5)
    probabilities = oracles.distribution(potential_of(model, graph), 5, num_states)
    assert stats.chisquare(counts, probabilities / probabilities.sum() * 50_000).pvalue > 1e-3


@pytest.mark.parametrize(("num_states", "num_colorings"), [(2, 2), (3, 54)])
def test_forbidden_pairs_are_never_drawn(num_states, num_colorings, key):
    tables = jnp.where(jnp.eye(num_states, dtype=bool), -200.0, 0.0)
    graph = grid((2, 3))
    tables = jnp.broadcast_to(tables, (7, num_states, num_states))
    model = Pairwise(tables, jnp.zeros((6, num_states)))
    draws = np.asarray(transfer.sample(key, model, graph, num_samples=5_000))
    first, second = graph.edges.T
    assert (draws[:, first] != draws[:, second]).all()
    assert len(np.unique(draws, axis=0)) == num_colorings  # all proper colourings of the grid


def test_models_can_be_batched():
    graph = grid((2, 3))
    models = [random_model("ising", graph, seed=seed) for seed in (0, 1)]
    batch = jax.tree.map(lambda *leaves: jnp.stack(leaves), *models)
    found = jax.vmap(lambda model: transfer.log_z(model, graph))(batch)
    expected = [enumeration.log_z(model, graph) for model in models]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_plan_of_another_graph_raises():
    model = random_model("ising", grid((2, 3)))
    message = r"log_z: expected a plan of 6 nodes and 7 edges, got 4 and 4; pass frontier_plan"
    with pytest.raises(ValueError, match=message):
        transfer.log_z(model, grid((2, 3)), frontier_plan(grid((2, 2))))


def test_model_of_another_graph_raises():
    model = random_model("ising", grid((2, 3)))
    message = r"solve: expected a model of 4 nodes and 4 edges, got 6 and 7; pass the model's own"
    with pytest.raises(ValueError, match=message):
        transfer.solve(model, grid((2, 2)))


def test_tables_that_are_too_large_raise(key):
    graph = grid((15, 15))
    model = Potts(jnp.zeros(graph.num_edges), jnp.zeros((225, 3)))
    message = r"sample: expected tables of at most 16777216 entries, got 3\*\*16; pass a narrower"
    with pytest.raises(ValueError, match=message):
        transfer.sample(key, model, graph, num_samples=2)
