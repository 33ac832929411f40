"""Generalised belief propagation against brute force, belief propagation and libDAI's answers."""

import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmrf.formats import read_fg, read_uai, read_uai_log10_z
from jaxmrf.graphs import Hypergraph, grid
from jaxmrf.graphs.regions import bethe_regions, cluster_variation, plaquettes
from jaxmrf.models import FactorGraph
from jaxmrf.variational import generalized
from tests import table_oracle

OPTIONS = ("method", "damping", "tolerance", "max_iters")
solve = jax.jit(generalized.solve, static_argnames=OPTIONS)
METHODS = ("single_loop", "double_loop", "parent_to_child")


def random_model(seed, num_states, scopes, scale=1.0):
    rng = np.random.default_rng(seed)
    tables = [rng.normal(0, scale, [num_states[node] for node in scope]) for scope in scopes]
    return FactorGraph.from_tables(num_states, scopes, tables)


def grid_model(shape, seed=0, num_states=2, scale=0.7):
    graph = grid(shape)
    scopes = [(node,) for node in range(graph.num_nodes)] + graph.edges.tolist()
    return random_model(seed, [num_states] * graph.num_nodes, scopes, scale)


def exact(model):
    """Log Z and marginals by brute force, evidence included."""
    nodes = [(node,) for node in range(model.num_nodes)]
    tables = [np.exp(model.log_table(factor)) for factor in range(len(model.scopes))]
    starts = model.hypergraph.node_starts
    tables += [
        np.exp(model.log_evidence[start : start + number])
        for start, number in zip(starts, model.num_states, strict=True)
    ]
    joint = table_oracle.joint(model.num_states, [*model.scopes, *nodes], tables)
    return np.log(joint.sum()), np.concatenate(table_oracle.marginals(joint)), joint


def contracted(model):
    """Log Z and marginals of a model too large for brute force, without evidence."""
    tables = [np.exp(model.log_table(factor)) for factor in range(len(model.scopes))]
    sums = [table_oracle.sum_product(model.scopes, tables, (n,)) for n in range(model.num_nodes)]
    return np.log(sums[0].sum()), np.concatenate([own / own.sum() for own in sums])


def pair_marginal(joint, scope):
    others = tuple(axis for axis in range(joint.ndim) if axis not in scope)
    table = joint.sum(axis=others) / joint.sum()
    return table if tuple(scope) == tuple(sorted(scope)) else table.T


def strip(seed=0):
    """A strip of plaquettes, which is a junction tree, whose nodes 0 and 1 have to agree."""
    model = grid_model((2, 4), seed)
    tables = [model.log_table(factor) for factor in range(len(model.scopes))]
    tables[model.scopes.index((0, 1))] = np.array([[0.0, -np.inf], [-np.inf, 0.3]])
    model = FactorGraph.from_tables(model.num_states, model.scopes, tables)
    return model, cluster_variation(model.hypergraph, plaquettes((2, 4)))


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("method", METHODS)
def test_exact_on_a_strip_of_plaquettes(method):
    plain, regions = strip()
    for model in (plain, plain.observe({3: [0.2, 0.9]}), plain.observe({0: 1, 6: 0})):
        beliefs = solve(model, regions, method=method, damping=0.3)
        log_z, nodes, joint = exact(model)
        assert beliefs.is_converged
        np.testing.assert_allclose(beliefs.log_z, log_z, rtol=1e-9)
        np.testing.assert_allclose(beliefs.nodes.flat, nodes, atol=1e-8)
        for factor, scope in enumerate(model.scopes):
            expected = pair_marginal(joint, scope)
            np.testing.assert_allclose(beliefs.factors[factor], expected, atol=1e-8)
    impossible = solve(plain.observe({0: 0, 1: 1}), regions, method=method, damping=0.3)
    assert impossible.log_z == -np.inf
    assert (impossible.nodes.flat == 0).all() and (impossible.factors.flat == 0).all()


@pytest.mark.usefixtures("x64")
def test_exact_on_a_junction_tree_of_mixed_states_and_orders():
    scopes = [(3, 1, 0), (1, 2), (4, 2), (5,), (4,), ()]
    model = random_model(1, [2, 3, 4, 2, 3, 2], scopes)
    beliefs = solve(model, cluster_variation(model.hypergraph))
    log_z, nodes, joint = exact(model)
    np.testing.assert_allclose(beliefs.log_z, log_z, rtol=1e-9)
    np.testing.assert_allclose(beliefs.nodes.flat, nodes, atol=1e-8)
    np.testing.assert_allclose(
        beliefs.factors[0], np.einsum("abcdef->dba", joint) / joint.sum(), atol=1e-8
    )
    np.testing.assert_allclose(beliefs.factors[2], pair_marginal(joint, (4, 2)), atol=1e-8)
    np.testing.assert_allclose(beliefs.factors[5], 1)


@pytest.mark.usefixtures("x64")
def test_one_region_is_brute_force():
    model = random_model(2, [2, 3, 2], [(0, 1), (1, 2), (2, 0)])
    beliefs = solve(model, cluster_variation(model.hypergraph, [(0, 1, 2)]))
    log_z, nodes, _ = exact(model)
    np.testing.assert_allclose(beliefs.log_z, log_z, rtol=1e-12)
    np.testing.assert_allclose(beliefs.nodes.flat, nodes, rtol=1e-12)


def bethe_fixed_point(model):
    """Belief propagation in loops over factors, far from this package's stacked forms."""
    tables = [np.exp(model.log_table(factor)) for factor in range(len(model.scopes))]
    sent = {(f, i): np.ones(model.num_states[i]) for f, s in enumerate(model.scopes) for i in s}
    for _ in range(300):
        old = dict(sent)
        for (factor, node), _ in old.items():
            scope, product = model.scopes[factor], tables[factor]
            for axis, other in enumerate(scope):
                if other != node:
                    into = np.prod(
                        [m for (f, i), m in old.items() if i == other and f != factor], 0
                    )
                    shape = [-1 if place == axis else 1 for place in range(len(scope))]
                    product = product * np.reshape(into, shape)
            axes = tuple(axis for axis, other in enumerate(scope) if other != node)
            message = product.sum(axis=axes)
            sent[factor, node] = message / message.sum()
    beliefs = [
        np.prod([message for (_, i), message in sent.items() if i == node], axis=0)
        for node in range(model.num_nodes)
    ]
    return np.concatenate([belief / belief.sum() for belief in beliefs])


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    "method", ["single_loop", *(pytest.param(m, marks=pytest.mark.slow) for m in METHODS[1:])]
)
def test_bethe_regions_give_belief_propagation(method):
    scopes = [(0,), (0, 1), (1, 2), (2, 0), (1, 3, 2), (3, 4), (0, 1)]
    model = random_model(3, [2, 3, 2, 2, 3], scopes, scale=0.5)
    beliefs = solve(model, bethe_regions(model.hypergraph), method=method)
    assert beliefs.is_converged
    np.testing.assert_allclose(beliefs.nodes.flat, bethe_fixed_point(model), atol=1e-7)


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_renumbered_model_has_the_renumbered_beliefs():
    model = grid_model((3, 3), scale=1.0)
    old = solve(model, cluster_variation(model.hypergraph, plaquettes((3, 3))))
    place = np.random.default_rng(4).permutation(9)
    scopes = [tuple(int(place[node]) for node in scope) for scope in model.scopes]
    tables = [model.log_table(factor) for factor in range(len(scopes))]
    swapped = FactorGraph.from_tables(
        [2] * 9, [scope[::-1] for scope in scopes][::-1], [table.T for table in tables][::-1]
    )
    clusters = [[int(place[node]) for node in cluster] for cluster in plaquettes((3, 3))]
    new = solve(swapped, cluster_variation(swapped.hypergraph, clusters))
    np.testing.assert_allclose(new.log_z, old.log_z, rtol=1e-9)
    for node in range(9):
        np.testing.assert_allclose(new.nodes[int(place[node])], old.nodes[node], atol=1e-8)


@pytest.mark.usefixtures("x64")
def test_single_precision_stays_single():
    model, regions = strip()
    single = FactorGraph(
        model.log_tables.astype(np.float32), model.log_evidence.astype(np.float32), model.hypergraph
    )
    beliefs = solve(single, regions)
    assert beliefs.is_converged and beliefs.log_z.dtype == beliefs.nodes.flat.dtype == np.float32
    np.testing.assert_allclose(beliefs.log_z, exact(model)[0], rtol=1e-4)


def test_gradient_of_what_is_impossible_is_zero():
    model, regions = strip()

    def log_z(tables, states):
        known = FactorGraph(tables, model.log_evidence, model.hypergraph).observe_states(states)
        return generalized.solve(known, regions, method="single_loop").log_z

    gradient = jax.jit(jax.grad(log_z))
    tables, states = jnp.asarray(model.log_tables), np.full(8, -1)
    assert (gradient(tables, np.array([0, 1, *states[2:]])) == 0).all()
    possible = gradient(tables, states)
    assert np.isfinite(possible).all() and (possible[model.log_tables == -np.inf] == 0).all()


def solve_grid(tables, model, regions, method):
    model = FactorGraph(tables, model.log_evidence, model.hypergraph)
    return solve(model, regions, method=method, tolerance=1e-11)


@pytest.fixture
def moved(x64):
    """A model, its regions, a direction of change of its tables and weights of its nodes."""
    model, rng = grid_model((3, 3)), np.random.default_rng(5)
    regions = cluster_variation(model.hypergraph, plaquettes((3, 3)))
    return model, regions, rng.normal(size=len(model.log_tables)), rng.normal(size=18)


def test_gradient_of_log_z_is_the_beliefs_and_the_finite_difference(moved):
    model, regions, direction, _ = moved
    log_z = jax.jit(
        jax.value_and_grad(lambda tables: solve_grid(tables, model, regions, "single_loop").log_z)
    )
    tables = jnp.asarray(model.log_tables)
    (above, _), (below, _) = log_z(tables + 1e-4 * direction), log_z(tables - 1e-4 * direction)
    _, gradient = log_z(tables)
    np.testing.assert_allclose(gradient @ direction, (above - below) / 2e-4, rtol=1e-6)
    beliefs = solve(model, regions)
    np.testing.assert_allclose(gradient, beliefs.factors.flat, atol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["auto", "double_loop", "parent_to_child"])
def test_derivatives_of_beliefs_agree_with_finite_differences(method, moved):
    model, regions, direction, weights = moved
    at = jax.jit(lambda tables: solve_grid(tables, model, regions, method))
    tables = jnp.asarray(model.log_tables)
    above, below = at(tables + 1e-4 * direction), at(tables - 1e-4 * direction)
    mean = jax.jit(jax.grad(lambda tables: at(tables).nodes.flat @ weights))(tables)
    slope = (above.nodes.flat - below.nodes.flat) @ weights / 2e-4
    np.testing.assert_allclose(mean @ direction, slope, rtol=1e-5)
    curvature = jax.jit(
        lambda tables: jax.jvp(jax.grad(lambda t: at(t).log_z), (tables,), (direction,))[1]
    )(tables)
    bend = (above.log_z - 2 * at(tables).log_z + below.log_z) / 1e-8
    np.testing.assert_allclose(curvature @ direction, bend, rtol=1e-3)


@pytest.mark.slow
def test_batch_of_evidence_equals_single_calls():
    model = grid_model((3, 3), num_states=3)
    regions = cluster_variation(model.hypergraph, plaquettes((3, 3)))
    given = jax.jit(lambda states: solve(model.observe_states(states), regions))
    states = np.full((3, 9), -1)
    states[1, 4], states[2, :3] = 2, (0, 1, 2)
    batch = jax.vmap(given)(states)
    for row, own in enumerate(states):
        alone = given(own)
        np.testing.assert_allclose(batch.nodes.flat[row], alone.nodes.flat, atol=1e-5)
        np.testing.assert_allclose(batch.log_z[row], alone.log_z, rtol=1e-5)


@pytest.mark.slow
def test_double_loop_converges_where_the_single_loop_fails():
    model = grid_model((4, 4), seed=1, scale=2.0)
    regions = cluster_variation(model.hypergraph, plaquettes((4, 4)))
    options = {"damping": 0.0, "max_iters": 3000, "tolerance": 1e-4}
    assert not solve(model, regions, method="single_loop", **options).is_converged
    rescued = solve(model, regions, method="auto", **options)
    assert rescued.is_converged
    log_z, nodes = contracted(model)
    assert abs(rescued.log_z - log_z) < 0.2
    assert np.abs(rescued.nodes.flat - nodes).max() < 0.1


def test_program_does_not_grow_with_the_number_of_regions():
    def length(side):
        model = grid_model((side, side))
        regions = cluster_variation(model.hypergraph, plaquettes((side, side)))
        lowered = jax.jit(lambda tables: solve_grid(tables, model, regions, "auto").log_z)
        text = lowered.lower(jnp.asarray(model.log_tables)).as_text()
        return len(re.findall(r"^\s+%", text, re.MULTILINE))

    assert length(9) == length(6)


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_plaquettes_of_the_published_grid(shared_data):
    """libDAI's HAK_LOOP4 on testfast.fg: errors 1.302e-5 of a variable, -1.179e-5 of log Z."""
    model = read_fg(shared_data / "libdai" / "testfast.fg")
    regions = cluster_variation(model.hypergraph, plaquettes((4, 4)))
    beliefs = solve(model, regions)
    log_z, nodes = contracted(model)
    error = np.abs(np.asarray(beliefs.nodes.flat) - nodes).max()
    np.testing.assert_allclose(error, 1.302e-5, atol=2e-8)
    np.testing.assert_allclose(beliefs.log_z - log_z, -1.179e-5, atol=2e-8)
    bethe = solve(model, bethe_regions(model.hypergraph))
    error = np.abs(np.asarray(bethe.nodes.flat) - nodes).max()
    np.testing.assert_allclose(error, 8.924e-3, rtol=1e-4)
    np.testing.assert_allclose(bethe.log_z - log_z, 7.187e-4, rtol=1e-3)


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("kind", ["mixed_J0.5", "mixed_J1.0", "mixed_J2.0", "attractive_J1.0"])
def test_plaquettes_of_the_ten_by_ten_grids_give_libdais_answers(kind, shared_data):
    for seed in range(4):
        path = shared_data / "ising10x10" / f"{kind}_s{seed}"
        model = read_uai(f"{path}.uai")
        regions = cluster_variation(model.hypergraph, plaquettes((10, 10)))
        beliefs = solve(model, regions)
        known = json.loads(path.with_name(f"{path.name}.libdai.json").read_text())["CVM4"]
        np.testing.assert_allclose(beliefs.log_z, known["logZ"], atol=1e-7)
        np.testing.assert_allclose(beliefs.nodes.flat[1::2], known["p1"], atol=2e-7)
        gap = beliefs.log_z - read_uai_log10_z(f"{path}.uai.PR") * np.log(10)
        assert abs(gap) < 0.15


def test_bad_arguments_are_named():
    model = grid_model((2, 2))
    regions = cluster_variation(model.hypergraph)
    other = bethe_regions(Hypergraph([2], [(0,)]))
    with pytest.raises(ValueError, match=r"expected regions of Hypergraph\(num_nodes=4"):
        generalized.solve(model, other)
    with pytest.raises(ValueError, match="expected a method among auto, .* got 'cvm'"):
        generalized.solve(model, regions, method="cvm")
    with pytest.raises(ValueError, match=r"expected damping in \[0, 1\), got 1"):
        generalized.solve(model, regions, damping=1.0)
    with pytest.raises(ValueError, match="expected max_iters of at least 1, got 0"):
        generalized.solve(model, regions, max_iters=0)
