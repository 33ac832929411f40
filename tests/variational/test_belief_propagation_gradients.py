import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmrf.models import FactorGraph
from jaxmrf.variational.belief_propagation import solve

OPTIONS = {"tolerance": 1e-13, "max_iters": 5000}


def loopy(seed=0, scale=0.6):
    """A graph with cycles and impossible entries, of factors of two and three variables."""
    rng = np.random.default_rng(seed)
    numbers = [2, 3, 2, 2]
    scopes = [(0, 1), (2, 1), (3, 1), (0, 1), (0, 3, 2), (3,), ()]
    tables = [rng.normal(0, scale, [numbers[node] for node in scope]) for scope in scopes]
    tables[2][0, 1] = -np.inf
    return FactorGraph.from_tables(numbers, scopes, tables).observe({1: [1.0, 2.0, 0.0]})


def difference(function, at, direction, step=1e-5):
    """Central finite difference of a function along a direction."""
    return (function(at + step * direction) - function(at - step * direction)) / (2 * step)


@pytest.fixture
def model(x64):
    graph = loopy()
    return (
        jnp.asarray(graph.log_tables),
        jnp.asarray(graph.log_evidence),
        jnp.array([0.8, 0.7, 0.9, 1.0, 0.6, 1.0, 1.0]),
        graph.hypergraph,
    )


def test_gradient_of_log_z_is_the_beliefs_and_the_finite_difference(model):
    tables, evidence, weights, structure = model

    def log_z(tables, evidence, weights):
        graph = FactorGraph(tables, evidence, structure)
        return solve(graph, weights=weights, **OPTIONS).log_z

    at = (tables, evidence, weights)
    gradients = jax.jit(jax.grad(log_z, argnums=(0, 1, 2)))(*at)
    beliefs = solve(FactorGraph(tables, evidence, structure), weights=weights, **OPTIONS)
    np.testing.assert_allclose(gradients[0], beliefs.factors.flat, atol=1e-12)
    np.testing.assert_allclose(gradients[1], beliefs.nodes.flat, atol=1e-12)
    rng = np.random.default_rng(0)
    for place, gradient in enumerate(gradients):
        direction = rng.normal(size=gradient.shape)

        def along(own, place=place):
            return log_z(*(own if number == place else other for number, other in enumerate(at)))

        found = difference(along, at[place], direction)
        np.testing.assert_allclose(gradient @ direction, found, rtol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("is_weighted", [False, True])
def test_gradients_of_beliefs_are_finite_differences(model, is_weighted):
    tables, evidence, weights, structure = model
    rng = np.random.default_rng(1)
    node_weights = jnp.asarray(rng.normal(size=evidence.shape))
    factor_weights = jnp.asarray(rng.normal(size=tables.shape))

    def read(tables, evidence, weights):
        graph = FactorGraph(tables, evidence, structure)
        beliefs = solve(graph, weights=weights if is_weighted else None, **OPTIONS)
        return beliefs.nodes.flat @ node_weights + beliefs.factors.flat @ factor_weights

    at = (tables, evidence, weights)
    gradients = jax.jit(jax.grad(read, argnums=(0, 1, 2)))(*at)
    for place, gradient in enumerate(gradients):
        direction = rng.normal(size=gradient.shape)

        def along(own, place=place):
            return read(*(own if number == place else other for number, other in enumerate(at)))

        assert np.isfinite(gradient).all()
        found = difference(along, at[place], direction)
        np.testing.assert_allclose(gradient @ direction, found, rtol=1e-6, atol=1e-9)


@pytest.mark.slow
def test_second_derivative_of_log_z_is_the_derivative_of_the_beliefs(model):
    tables, evidence, _, structure = model
    direction = jnp.asarray(np.random.default_rng(2).normal(size=tables.shape))

    def solved(tables):
        return solve(FactorGraph(tables, evidence, structure), **OPTIONS)

    def product(tables):
        return jax.jvp(jax.grad(lambda own: solved(own).log_z), (tables,), (direction,))[1]

    found = jax.jit(product)(tables)
    expected = difference(lambda own: solved(own).factors.flat, tables, direction)
    np.testing.assert_allclose(found, expected, atol=1e-8)


def test_gradient_of_max_product_is_the_mode_on_a_tree():
    tables = [np.array([[0.3, -0.2], [0.8, 0.1], [0.0, 0.7]]), np.array([0.1, 0.0])]
    graph = FactorGraph.from_tables([3, 2], [(0, 1), (1,)], tables)
    gradient = jax.grad(
        lambda own: solve(FactorGraph(own, graph.log_evidence, graph.hypergraph), is_max=True).log_z
    )(jnp.asarray(graph.log_tables))
    assert gradient.tolist() == [1, 0, 0, 0, 1, 0, 0, 0]


@pytest.mark.slow
def test_gradients_do_not_depend_on_the_schedule_or_damping(model):
    tables, evidence, _, structure = model

    def read(tables, **options):
        return solve(FactorGraph(tables, evidence, structure), **OPTIONS, **options).nodes.flat[0]

    first = jax.jit(jax.grad(read))(tables)
    other = jax.jit(jax.grad(lambda own: read(own, schedule="sequential", damping=0.3)))(tables)
    np.testing.assert_allclose(other, first, atol=1e-10)
