import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from random_factor_graphs import STRUCTURES, exact, log_values, structure

from jaxmrf.exact.elimination import (
    BOOLEAN,
    COUNTING,
    MAX_PRODUCT,
    SUM_PRODUCT,
    Semiring,
    eliminate,
)
from jaxmrf.graphs import Hypergraph, elimination_plan

NAMES = ["mixed", "components", "hub", "constant"]


def brute_force(hypergraph, tables, add, multiply):
    """The semiring's sum over all configurations, by plain loops on numbers."""
    total = None
    for states in itertools.product(*map(range, hypergraph.num_states)):
        product = None
        for factor, scope in enumerate(hypergraph.scopes):
            shape = [hypergraph.num_states[node] for node in scope]
            place = int(hypergraph.table_starts[factor])
            if scope:
                place += int(np.ravel_multi_index([states[node] for node in scope], shape))
            entry = tables[place]
            product = entry if product is None else multiply(product, entry)
        total = product if total is None else add(total, product)
    return total


@pytest.mark.parametrize("name", [*NAMES, "empty"])
def test_sum_and_max_of_products_equal_brute_force(x64, name):
    for seed in range(2):
        graph = structure(name, seed)
        tables = jnp.asarray(graph.log_tables)
        found = eliminate(graph.hypergraph, tables)
        np.testing.assert_allclose(found, exact(graph)[0], atol=1e-10)
        best = eliminate(graph.hypergraph, tables, MAX_PRODUCT)
        np.testing.assert_allclose(best, log_values(graph).max(), atol=1e-10)


@pytest.mark.parametrize("name", NAMES[1:3])
def test_whether_and_how_many_equal_brute_force(name, rng):
    hypergraph = Hypergraph(*STRUCTURES[name])
    for share in (0.5, 0.8):
        allowed = rng.random(hypergraph.num_entries) < share
        numbers = allowed.astype(np.int32)
        wanted = brute_force(hypergraph, numbers.tolist(), int.__add__, int.__mul__)
        count = eliminate(hypergraph, jnp.asarray(numbers), COUNTING)
        assert count.dtype == jnp.int32 and int(count) == wanted
        is_any = eliminate(hypergraph, jnp.asarray(allowed), BOOLEAN)
        assert is_any.dtype == jnp.bool_ and bool(is_any) == (wanted > 0)


@pytest.mark.parametrize("name", NAMES[1:3])
def test_semirings_of_a_user_equal_brute_force(x64, name, rng):
    hypergraph = Hypergraph(*STRUCTURES[name])
    costs = rng.normal(size=hypergraph.num_entries)
    cheapest = Semiring(jnp.min, jnp.sum, jnp.inf, 0.0)
    bottleneck = Semiring(jnp.max, jnp.min, -jnp.inf, jnp.inf)
    for semiring, add, multiply in ((cheapest, min, float.__add__), (bottleneck, max, min)):
        wanted = brute_force(hypergraph, costs.tolist(), add, multiply)
        found = eliminate(hypergraph, jnp.asarray(costs), semiring)
        np.testing.assert_allclose(found, wanted, atol=1e-12)


def test_colourings_of_a_cycle_are_counted():
    """(q - 1)^n + (-1)^n (q - 1) colourings of a cycle of n variables with q colours."""
    number, colors = 9, 4
    cycle = Hypergraph([colors] * number, [(i, (i + 1) % number) for i in range(number)])
    differs = jnp.tile(1 - jnp.eye(colors, dtype=jnp.int32).ravel(), number)
    assert int(eliminate(cycle, differs, COUNTING)) == 3**9 - 3


def test_order_changes_nothing_and_evaluation_is_traced(x64):
    graph = structure("mixed", 1)
    tables = jnp.asarray(graph.log_tables)
    plan = elimination_plan(graph.hypergraph, order=list(range(6)))
    gradient = jax.jit(jax.grad(lambda t: eliminate(graph.hypergraph, t, SUM_PRODUCT, plan)))
    factors = exact(graph)[2]
    np.testing.assert_allclose(gradient(tables), factors, atol=1e-10)
    batch = jax.vmap(lambda t: eliminate(graph.hypergraph, t))(jnp.stack([tables, 2 * tables]))
    np.testing.assert_allclose(batch[0], exact(graph)[0], atol=1e-10)


def test_gradient_of_what_is_impossible_is_not_nan(x64):
    differ = np.array([[-np.inf, 0.0], [0.0, -np.inf]])
    triangle = Hypergraph([2] * 3, [(0, 1), (1, 2), (2, 0)])
    for semiring in (SUM_PRODUCT, MAX_PRODUCT):
        value, gradient = jax.value_and_grad(lambda t, s=semiring: eliminate(triangle, t, s))(
            jnp.tile(jnp.asarray(differ.ravel()), 3)
        )
        assert value == -jnp.inf and jnp.isfinite(gradient).all()


def test_plans_of_another_model_or_too_large_are_refused():
    chain = Hypergraph([2] * 3, [(0, 1), (1, 2)])
    plan = elimination_plan(Hypergraph([2, 2], [(0, 1)]))
    with pytest.raises(ValueError, match=r"eliminate: expected a plan of .*num_nodes=3.*; pass"):
        eliminate(chain, jnp.zeros(8), SUM_PRODUCT, plan)
    scopes = [(one, two) for one in range(23) for two in range(one)]
    rule = r"eliminate: expected an elimination of at most 4194304 config.*, got 1.68e\+07; use"
    with pytest.raises(ValueError, match=rule):
        eliminate(Hypergraph([2] * 23, scopes), jnp.zeros(4 * len(scopes)))


def test_tables_of_another_length_are_refused():
    chain = Hypergraph([2] * 3, [(0, 1), (1, 2)])
    rule = r"eliminate: expected 8 entries of all tables, got shape \(7,\); lay them out as"
    with pytest.raises(ValueError, match=rule):
        eliminate(chain, jnp.zeros(7))
    assert math.isclose(float(eliminate(chain, jnp.zeros(8))), math.log(8), rel_tol=1e-6)
