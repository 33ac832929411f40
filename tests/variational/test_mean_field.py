"""Mean field: a bound that rises, exact on trees, with the beliefs as its gradient."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmrf.graphs import Hypergraph, grid
from jaxmrf.models import FactorGraph
from jaxmrf.variational import mean_field
from tests import table_oracle

solve = jax.jit(
    mean_field.solve, static_argnames=("tractable", "num_starts", "tolerance", "max_iters")
)
SCOPES = [(0,), (0, 1), (1, 2), (2, 0), (1, 3, 4), (4, 3), (5, 2), ()]
NUM_STATES = [2, 3, 2, 2, 3, 2]


def random_model(seed, scale=1.0, num_states=NUM_STATES, scopes=SCOPES):
    rng = np.random.default_rng(seed)
    tables = [rng.normal(0, scale, [num_states[node] for node in scope]) for scope in scopes]
    return FactorGraph.from_tables(num_states, scopes, tables)


def grid_model(seed, shape=(3, 4), scale=0.7):
    graph = grid(shape)
    scopes = [(node,) for node in range(graph.num_nodes)] + graph.edges.tolist()
    return random_model(seed, scale, [2] * graph.num_nodes, scopes)


def rows_of(model):
    return tuple(f for f, s in enumerate(model.scopes) if len(s) == 2 and s[1] == s[0] + 1)


def exact(model):
    """Log Z and the joint distribution, by opt_einsum; evidence included."""
    nodes = [(node,) for node in range(model.num_nodes)]
    tables = [np.exp(model.log_table(factor)) for factor in range(len(model.scopes))]
    tables += [np.exp(part) for part in np.split(model.log_evidence, model.hypergraph.node_starts)][
        1:
    ]
    joint = table_oracle.sum_product([*model.scopes, *nodes], tables, range(model.num_nodes))
    return np.log(joint.sum()), joint / joint.sum()


def bound_of(model, beliefs):
    """The bound of naive beliefs from the definition: mean log potential and entropies."""
    total = 0.0
    for factor, scope in enumerate(model.scopes):
        weight = np.ones(())
        for node in scope:
            weight = np.multiply.outer(weight, np.asarray(beliefs.nodes[node]))
        np.testing.assert_allclose(beliefs.factors[factor], weight, rtol=1e-6)
        total += (weight * model.log_table(factor)).sum()
    for node in range(model.num_nodes):
        own = np.asarray(beliefs.nodes[node])
        start = model.hypergraph.node_starts[node]
        total += own @ (model.log_evidence[start : start + len(own)] - np.log(own))
    return total


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("seed", range(3))
def test_bound_is_what_it_says_and_below_log_z(seed):
    model = random_model(seed).observe({1: [0.2, 1.0, 0.5]})
    beliefs = solve(model)
    assert beliefs.is_converged
    np.testing.assert_allclose(beliefs.log_z, bound_of(model, beliefs), rtol=1e-9)
    assert beliefs.log_z < exact(model)[0]


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("is_structured", [False, True])
def test_every_sweep_raises_the_bound(is_structured):
    model = grid_model(3)
    tractable = rows_of(model) if is_structured else ()
    bounds = [solve(model, tractable=tractable, max_iters=most).log_z for most in (1, 3)]
    bounds.append(solve(model, tractable=tractable).log_z)
    assert (np.diff(bounds) > 0).all() and bounds[-1] < exact(model)[0]


@pytest.mark.usefixtures("x64")
def test_fixed_point_is_a_maximum_along_every_belief():
    model = random_model(4)
    beliefs = solve(model)
    rng = np.random.default_rng(0)
    for node, number in enumerate(NUM_STATES):
        start = model.hypergraph.node_starts[node]
        moved = np.array(beliefs.nodes.flat)
        moved[start : start + number] += 1e-3 * (rng.dirichlet(np.ones(number)) - 1 / number)
        moved[start : start + number] /= moved[start : start + number].sum()
        factors = [np.ones(()) for _ in model.scopes]
        parts = np.split(moved, model.hypergraph.node_starts)[1:]
        for factor, scope in enumerate(model.scopes):
            for other in scope:
                factors[factor] = np.multiply.outer(factors[factor], parts[other])
        value = sum((table * model.log_table(f)).sum() for f, table in enumerate(factors))
        value += sum(-(part * np.log(part)).sum() for part in parts)
        assert value < beliefs.log_z


@pytest.mark.usefixtures("x64")
def test_tree_of_tractable_factors_is_exact():
    scopes = [(3, 1), (1, 0), (1, 2), (4,), (5, 4), (2,)]
    model = random_model(5, num_states=[2, 3, 2, 4, 2, 3], scopes=scopes)
    beliefs = solve(model.observe({0: 1, 2: [0.3, 1.0]}), tractable=(0, 1, 2, 4))
    log_z, joint = exact(model.observe({0: 1, 2: [0.3, 1.0]}))
    np.testing.assert_allclose(beliefs.log_z, log_z, rtol=1e-10)
    for node, own in enumerate(table_oracle.marginals(joint)):
        np.testing.assert_allclose(beliefs.nodes[node], own, atol=1e-10)
    np.testing.assert_allclose(beliefs.factors[0], joint.sum((0, 2, 4, 5)).T, atol=1e-10)
    np.testing.assert_allclose(beliefs.factors[4], joint.sum((0, 1, 2, 3)).T, atol=1e-10)


@pytest.mark.usefixtures("x64")
def test_structure_raises_the_bound_of_a_grid():
    for seed in range(4):
        model = grid_model(seed)
        naive = solve(model, tractable=())
        rows = solve(model, tractable=rows_of(model))
        induced = solve(model, tractable=mean_field.induced_forest(model.hypergraph))
        log_z, joint = exact(model)
        assert naive.log_z < rows.log_z < log_z and naive.log_z < induced.log_z < log_z
        assert rows.is_converged and induced.is_converged
        errors = [
            np.abs(np.asarray(beliefs.nodes.flat) - np.concatenate(table_oracle.marginals(joint)))
            for beliefs in (naive, rows, induced)
        ]
        assert errors[1].mean() < errors[0].mean() and errors[2].mean() < errors[0].mean()


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    "is_of_bound", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["bound", "beliefs"]
)
def test_gradient_is_the_finite_difference(is_of_bound):
    model = grid_model(1)
    weights = np.random.default_rng(3).normal(size=24)

    def value(tables):
        own = FactorGraph(tables, model.log_evidence, model.hypergraph)
        beliefs = mean_field.solve(own, tractable=rows_of(model), tolerance=1e-13)
        return beliefs.log_z if is_of_bound else beliefs.nodes.flat @ weights

    value = jax.jit(jax.value_and_grad(value))
    tables = jnp.asarray(model.log_tables)
    direction = np.random.default_rng(2).normal(size=len(tables))
    above, below = value(tables + 1e-5 * direction)[0], value(tables - 1e-5 * direction)[0]
    np.testing.assert_allclose(value(tables)[1] @ direction, (above - below) / 2e-5, rtol=1e-5)


@pytest.mark.slow
def test_best_of_several_starts_is_the_best():
    # two states of opposite signs, of which a uniform start finds neither
    table = np.array([[2.0, 0.0], [0.0, 2.0]])
    model = FactorGraph.from_tables(
        [2] * 4, [(0, 1), (1, 2), (2, 3), (0, 3), (0,)], [table] * 4 + [[0.0, 0.1]]
    )
    plain = FactorGraph.from_tables([2] * 4, model.scopes[:4], [table] * 4)
    assert (np.asarray(solve(plain).nodes.flat) == 0.5).all()
    best = solve(model, key=jax.random.key(0), num_starts=8)
    assert best.nodes[0][1] > 0.9
    single = [float(solve(model, key=jax.random.key(seed)).log_z) for seed in range(8)]
    assert best.log_z > min(single) + 0.01 and best.log_z > max(single) - 1e-4


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_impossible_states_leave_the_beliefs():
    # a chain of equalities whose first variable is known, and a soft factor
    equal = np.where(np.eye(3) > 0, 0.0, -np.inf)
    soft = np.random.default_rng(0).normal(size=(3, 3))
    scopes = [(0, 1), (1, 2), (2, 3)]
    model = FactorGraph.from_tables([3] * 4, scopes, [equal, equal, soft]).observe({0: 2})
    for tractable in ((), (1,)):
        beliefs = solve(model, tractable=tractable)
        np.testing.assert_allclose(beliefs.nodes.flat[:9], [0, 0, 1] * 3, atol=1e-12)
        np.testing.assert_allclose(beliefs.log_z, exact(model)[0], rtol=1e-9)
    assert np.isfinite(
        jax.grad(lambda e: solve(model.observe({3: 0}), tractable=()).log_z + e)(0.0)
    )


@pytest.mark.slow
@pytest.mark.parametrize("tractable", [(), (0,)])
def test_contradiction_is_minus_infinity_and_never_nan(tractable):
    equal = np.where(np.eye(2) > 0, 0.0, -np.inf)
    model = FactorGraph.from_tables([2] * 3, [(0, 1), (1, 2)], [equal, equal])

    def log_z(tables, states):
        own = FactorGraph(tables, model.log_evidence, model.hypergraph).observe_states(states)
        return mean_field.solve(own, tractable=tractable).log_z

    value = jax.jit(jax.value_and_grad(log_z))
    for states in ([0, -1, 1], [0, 1, -1], [0, 5, -1]):
        bound, gradient = value(jnp.asarray(model.log_tables), np.array(states))
        assert bound == -np.inf and np.isfinite(gradient).all()
    bound, _ = value(jnp.asarray(model.log_tables), np.array([0, -1, -1]))
    assert bound == 0


@pytest.mark.usefixtures("x64")
def test_renumbering_the_variables_renumbers_the_beliefs():
    model = grid_model(2)
    place = np.random.default_rng(4).permutation(12).tolist()
    scopes = [tuple(place[node] for node in scope) for scope in model.scopes]
    tables = [model.log_table(factor) for factor in range(len(scopes))]
    swapped = FactorGraph.from_tables([2] * 12, scopes, tables)
    old, new = solve(model, tractable=()), solve(swapped, tractable=())
    np.testing.assert_allclose(new.log_z, old.log_z, rtol=1e-9)
    for node in range(12):
        np.testing.assert_allclose(new.nodes[place[node]], old.nodes[node], atol=1e-6)


def test_induced_forest_of_a_grid_has_no_averaged_factor_inside_a_tree():
    structure = grid_model(0, (6, 6)).hypergraph
    forest = mean_field.induced_forest(structure)
    assert len(forest) >= 24
    assert mean_field.induced_forest(Hypergraph([2] * 3, [(0, 1), (0, 1, 2), (1, 2)])) == ()
    tree = Hypergraph([2] * 4, [(0, 1), (1,), (2, 1), (1, 3)])
    assert mean_field.induced_forest(tree) == (0, 2, 3)


def test_bad_arguments_are_named():
    model = random_model(0)
    with pytest.raises(ValueError, match="factors of two variables, got factor 4 of 3 variables"):
        mean_field.solve(model, tractable=[4])
    with pytest.raises(ValueError, match="factors of two variables, got factor 9;"):
        mean_field.solve(model, tractable=[9])
    with pytest.raises(ValueError, match="tractable factors without a cycle, got 3 with one"):
        mean_field.solve(model, tractable=[1, 2, 3])
    with pytest.raises(ValueError, match=r"got factor 3 on \(2, 0\); cut the tree"):
        mean_field.solve(model, tractable=[1, 2])
    with pytest.raises(ValueError, match="got 3 and no key; pass key"):
        mean_field.solve(model, num_starts=3)
    with pytest.raises(ValueError, match="max_iters of at least 1 .* got 0 and None"):
        mean_field.solve(model, max_iters=0)
