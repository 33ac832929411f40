"""The log-determinant relaxation: above log Z, its moments optimal, its gradient its beliefs."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmrf.graphs import grid
from jaxmrf.models import FactorGraph
from jaxmrf.variational import semidefinite

solve = jax.jit(semidefinite.solve, static_argnames=("tolerance", "max_iters"))
PAIRS = list(itertools.combinations(range(6), 2))


def random_model(rng, pairs, num_nodes, scale):
    """Unary and pair tables of any signs, not only Ising's."""
    scopes = [(node,) for node in range(num_nodes)] + [tuple(pair) for pair in pairs] + [()]
    tables = [rng.normal(0, scale, (2,) * len(scope)) for scope in scopes]
    return FactorGraph.from_tables([2] * num_nodes, scopes, tables)


def exact(model):
    """Log Z and node marginals from all configurations."""
    states = np.array(list(itertools.product([0, 1], repeat=model.num_nodes)))
    logs = np.zeros(len(states))
    for factor, scope in enumerate(model.scopes):
        logs += model.log_table(factor)[tuple(states[:, node] for node in scope)]
    for node, start in enumerate(model.hypergraph.node_starts):
        logs += model.log_evidence[start + states[:, node]]
    weights = np.exp(logs - logs.max())
    return logs.max() + np.log(weights.sum()), weights @ states / weights.sum()


def objective(theta, moments):
    noise = np.diag([0.0, *[1 / 3] * (len(moments) - 1)])
    _, log_det = np.linalg.slogdet(moments + noise)
    return (theta * moments).sum() + log_det / 2 + (len(moments) - 1) / 2 * np.log(np.pi * np.e / 2)


@pytest.mark.parametrize("scale", [0.1, 0.5, 2.0])
def test_above_log_z_of_every_model(scale, rng):
    for _ in range(20):
        model = random_model(rng, PAIRS, 6, scale)
        beliefs = solve(model)
        log_z, _ = exact(model)
        # the relaxed entropy is above the true one by at most .18 a spin at every moment matrix
        assert log_z < beliefs.log_z < log_z + 3
        np.testing.assert_allclose(beliefs.nodes.flat.reshape(6, 2).sum(axis=1), 1, rtol=1e-5)


@pytest.mark.usefixtures("x64")
def test_independent_spins_have_the_gaussian_entropy():
    model = FactorGraph.from_tables([2] * 3, [(0, 1), (1, 2)], [np.zeros((2, 2))] * 2)
    beliefs = solve(model)
    np.testing.assert_allclose(beliefs.log_z, 1.5 * np.log(4 / 3 * np.pi * np.e / 2), rtol=1e-9)
    np.testing.assert_allclose(beliefs.factors.flat, 0.25)


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_bound_is_the_maximum_over_moment_matrices(rng):
    model = random_model(rng, PAIRS, 6, 0.7)
    beliefs = solve(model)
    assert beliefs.is_converged
    known = jnp.asarray(model.log_tables), jnp.asarray(model.log_evidence)
    expected, theta = semidefinite._coefficients(model.hypergraph, *known)
    theta, moments = np.asarray(theta), moments_of(beliefs, model)
    best = objective(theta, moments)
    for _ in range(200):
        rows = rng.normal(size=(7, 3))
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        for weight in (1e-3, 0.1, 1.0):
            other = (1 - weight) * moments + weight * rows @ rows.T
            assert objective(theta, other) < best + 1e-8
    np.testing.assert_allclose(beliefs.log_z - best, expected, atol=1e-5)


def moments_of(beliefs, model):
    moments = np.eye(model.num_nodes + 1)
    signs = np.array([-1, 1])
    for node in range(model.num_nodes):
        moments[0, node + 1] = moments[node + 1, 0] = np.asarray(beliefs.nodes[node]) @ signs
    for factor, scope in enumerate(model.scopes):
        if len(scope) == 2:
            one, other = scope[0] + 1, scope[1] + 1
            table = np.asarray(beliefs.factors[factor])
            moments[one, other] = moments[other, one] = signs @ table @ signs
    return moments


@pytest.mark.usefixtures("x64")
def test_stopped_early_it_still_bounds(rng):
    model = random_model(rng, PAIRS, 6, 1.5)
    early, late = solve(model, max_iters=2), solve(model)
    assert not early.is_converged and late.is_converged
    assert exact(model)[0] < late.log_z < early.log_z


@pytest.mark.usefixtures("x64")
def test_gradient_of_the_bound_is_the_moments(rng):
    model = random_model(rng, grid((2, 3)).edges.tolist(), 6, 0.7)

    def log_z(tables):
        own = FactorGraph(tables, model.log_evidence, model.hypergraph)
        return semidefinite.solve(own, tolerance=1e-11).log_z

    bound = jax.jit(jax.value_and_grad(log_z))
    tables, direction = jnp.asarray(model.log_tables), rng.normal(size=len(model.log_tables))
    above, below = bound(tables + 1e-3 * direction)[0], bound(tables - 1e-3 * direction)[0]
    slope = bound(tables)[1] @ direction
    np.testing.assert_allclose(slope, (above - below) / 2e-3, rtol=1e-5)


def test_evidence_fixes_the_beliefs_of_its_variables(rng):
    model = random_model(rng, PAIRS, 6, 0.5)
    known = model.observe({0: 1, 3: 0, 5: [0.2, 0.9]})
    beliefs = solve(known)
    assert beliefs.nodes[0][1] > 0.99 and beliefs.nodes[3][0] > 0.99
    assert exact(known)[0] < beliefs.log_z < exact(known)[0] + 3
    impossible = solve(model.observe({0: 0}).observe({0: 1}))
    assert impossible.log_z == -np.inf and not np.isnan(impossible.nodes.flat).any()


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("pairs", "kind", "strength", "median"),
    # about the median errors of Wainwright & Jordan (2006), fully connected and 4 x 4 grid
    [
        ("full", "repulsive", 0.25, 0.020),
        ("grid", "attractive", 1.0, 0.042),
        pytest.param("full", "attractive", 0.06, 0.026, marks=pytest.mark.slow),
        pytest.param("grid", "mixed", 1.0, 0.016, marks=pytest.mark.slow),
    ],
)
def test_errors_of_wainwright_and_jordans_experiment(pairs, kind, strength, median, rng):
    pairs = list(itertools.combinations(range(16), 2)) if pairs == "full" else grid((4, 4)).edges
    low, high = {
        "repulsive": (-2 * strength, 0),
        "mixed": (-strength, strength),
        "attractive": (0, 2 * strength),
    }[kind]
    spins, errors = np.array([-1.0, 1.0]), []
    for _ in range(12):
        couplings = rng.uniform(low, high, len(pairs))
        fields = rng.uniform(-0.25, 0.25, 16)
        scopes = [(node,) for node in range(16)] + [tuple(int(n) for n in pair) for pair in pairs]
        tables = [field * spins for field in fields]
        tables += [coupling * np.outer(spins, spins) for coupling in couplings]
        model = FactorGraph.from_tables([2] * 16, scopes, tables)
        beliefs = solve(model)
        log_z, ones = exact(model)
        assert log_z < beliefs.log_z < log_z + 7
        errors.append(np.abs(beliefs.nodes.flat[1::2] - ones).mean())
    assert 0.5 * median < np.median(errors) < 1.7 * median


@pytest.mark.usefixtures("x64")
def test_batch_equals_single_calls(rng):
    models = [random_model(rng, PAIRS, 6, 0.5) for _ in range(3)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(x) for x in leaves]), *models)
    batch = jax.jit(jax.vmap(lambda model: semidefinite.solve(model)))(stacked)
    for place, model in enumerate(models):
        np.testing.assert_allclose(batch.log_z[place], solve(model).log_z, rtol=1e-6)


def test_bad_models_are_named(rng):
    three = FactorGraph.from_tables([2, 3], [(0, 1)], [np.zeros((2, 3))])
    with pytest.raises(ValueError, match="expected binary variables, got 3 states of variable 1"):
        semidefinite.solve(three)
    cube = FactorGraph.from_tables([2] * 3, [(0,), (0, 1, 2)], [np.zeros(2), np.zeros((2, 2, 2))])
    with pytest.raises(ValueError, match="factors of at most two variables, got 3 in factor 1"):
        semidefinite.solve(cube)
    with pytest.raises(ValueError, match="expected max_iters of at least 1, got 0"):
        semidefinite.solve(random_model(rng, PAIRS, 6, 1.0), max_iters=0)
