"""Scopes of traced functions: exact where a rule exists, never smaller than what is seen."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.core import Literal

from jaxmrf.infer._dependence import Facts, propagate
from jaxmrf.infer._jaxprs import evaluate, flat_jaxpr
from jaxmrf.infer._terms import layout, split_terms

P = jnp.array([[0.2, 0.8], [0.5, 0.5]])
CHAIN = np.eye(4, k=1, dtype=np.float32) + np.eye(4, k=-1, dtype=np.float32)
KEPT = np.array([True, False, True, True])
ALL = {0, 1, 2, 3}


def scanned_chain(z, x):
    def step(carry, xs):
        place, before = carry
        return (place + 1, z[place]), jnp.log(P)[before, z[place]] + x * xs

    return lax.scan(step, (1, z[0]), jnp.arange(1.0, 4.0))[1]


def reversed_scan(z, x):
    return lax.scan(lambda before, own: (own, before * 2 + own), z[3], z, reverse=True)[1]


def filled(z, x):
    start = jnp.zeros(4).at[2].set(z[1] * x)
    return start.at[jnp.array([0, 1])].add(z[2:4] * x)


def updated(z, x):
    return lax.dynamic_update_slice(jnp.zeros(4), z[:2] * x, (2,))


def triangular(z, x):
    factor = jnp.linalg.cholesky(jnp.array([[2.0, 0.5], [0.5, 1.0]]))
    right = jnp.stack([z[:2], z[2:]])[:, :, None] * x
    return lax.linalg.triangular_solve(
        jnp.stack([factor, factor]), right, left_side=True, lower=True
    )[:, :, 0]


# one set of variables per element of the result, in its order
EXACT = {
    "known predicate": (lambda z, x: jnp.where(KEPT, z, 0), [{0}, set(), {2}, {3}]),
    "known zeros": (lambda z, x: CHAIN @ (z * x), [{1}, {0, 2}, {1, 3}, {2}]),
    "zeros times": (lambda z, x: z * np.array([0, 1, 2, 0]), [set(), {1}, {2}, set()]),
    "matrix": (lambda z, x: (z * x)[None] @ jnp.ones((4, 2)), [ALL, ALL]),
    "table of pairs": (lambda z, x: jnp.log(P)[z[:-1], z[1:]], [{0, 1}, {1, 2}, {2, 3}]),
    "known index": (lambda z, x: z[jnp.array([2, 0])], [{2}, {0}]),
    "index of an index": (lambda z, x: z[z[:1]], [ALL]),
    "traced index": (lambda z, x: z[x.astype(int)], [ALL]),
    "along an axis": (
        lambda z, x: jnp.take_along_axis(jnp.log(P)[z], z[::-1, None], -1),
        [{0, 3}, {1, 2}, {1, 2}, {0, 3}],
    ),
    "scan": (scanned_chain, [{0, 1}, {1, 2}, {2, 3}]),
    "scan backwards": (reversed_scan, [{0, 1}, {1, 2}, {2, 3}, {3}]),
    "cond on a variable": (
        lambda z, x: lax.cond(z[0] > 0, lambda: z[1], lambda: z[2]),
        [{0, 1, 2}],
    ),
    "cond on a number": (lambda z, x: lax.cond(x > 0, lambda: z[1], lambda: z[2]), [{1, 2}]),
    "while": (lambda z, x: lax.while_loop(lambda n: n < z[0], lambda n: n + 1 + z[1], 0), [ALL]),
    "loop": (lambda z, x: lax.fori_loop(0, 3, lambda i, total: total + z[i], 0), [{0, 1, 2}]),
    "scatter": (filled, [{2}, {3}, {1}, set()]),
    "update": (updated, [set(), set(), {0}, {1}]),
    "pad and roll": (lambda z, x: jnp.pad(jnp.roll(z, 1), (1, 0)), [set(), {3}, {0}, {1}, {2}]),
    "running sum": (lambda z, x: jnp.cumsum(z[::-1]), [{3}, {2, 3}, {1, 2, 3}, ALL]),
    "sort": (lambda z, x: jnp.sort(z.reshape(2, 2), axis=1), [{0, 1}, {0, 1}, {2, 3}, {2, 3}]),
    "one hot": (lambda z, x: jax.nn.one_hot(z, 3).sum(-1), [{0}, {1}, {2}, {3}]),
    "softmax": (lambda z, x: jax.nn.log_softmax(z[:2] * x), [{0, 1}, {0, 1}]),
    "call": (lambda z, x: jax.checkpoint(jnp.sin)(jax.nn.softplus(z * x)), [{0}, {1}, {2}, {3}]),
    "vmap": (lambda z, x: jax.vmap(lambda k: P[k, 0])(z), [{0}, {1}, {2}, {3}]),
    "triangular solve": (triangular, [{0, 1}, {0, 1}, {2, 3}, {2, 3}]),
    "split": (lambda z, x: jnp.split(z.reshape(2, 2).T, 2)[1], [{1}, {3}]),
    "product": (lambda z, x: jnp.einsum("i,ij,j->", z * x, CHAIN, z * x), [ALL]),
    "solve": (lambda z, x: jnp.linalg.solve(jnp.eye(4), z * x)[:1], [ALL]),  # no rule
    "nothing": (lambda z, x: x * jnp.ones(2), [set(), set()]),
}


def analyse(function):
    flat, _ = flat_jaxpr(function, jnp.zeros(4, jnp.int32), jnp.float32(1))
    own = np.empty(4, object)
    own[:] = [frozenset((node,)) for node in range(4)]
    facts = propagate(flat.jaxpr, flat.consts, [Facts(own), Facts()])
    return flat, facts


def scopes_of(facts, atom):
    scopes = None if isinstance(atom, Literal) else facts[atom].scopes
    shape = np.shape(atom.val) if isinstance(atom, Literal) else atom.aval.shape
    size = int(np.prod(shape))
    return [set()] * size if scopes is None else [set(scope) for scope in scopes.flat]


@pytest.mark.parametrize("case", EXACT)
def test_scopes_are_those_expected(case):
    function, expected = EXACT[case]
    flat, facts = analyse(function)
    assert scopes_of(facts, flat.jaxpr.outvars[0]) == expected


@pytest.mark.parametrize("case", EXACT)
def test_scopes_hold_whatever_changes_the_value(case):
    function, _ = EXACT[case]
    flat, facts = analyse(function)
    found = scopes_of(facts, flat.jaxpr.outvars[0])
    table = np.array(list(itertools.product(range(2), repeat=4)))
    values = np.array([np.ravel(function(jnp.asarray(row), jnp.float32(1))) for row in table[:16]])
    by_place = values.reshape(2, 2, 2, 2, -1)
    for node in range(4):
        changes = np.ptp(by_place, axis=node).reshape(8, -1).max(axis=0) > 0
        assert all(node in scope for scope, change in zip(found, changes, strict=True) if change)


def test_unknown_operation_depends_on_all_it_reads():
    def function(z, x):
        shape = jax.ShapeDtypeStruct((2,), jnp.int32)
        return jax.pure_callback(lambda a: np.asarray(a) * 2, shape, z[1:3])

    flat, facts = analyse(function)
    assert scopes_of(facts, flat.jaxpr.outvars[0]) == [{1, 2}, {1, 2}]


def test_data_that_are_traced_are_unknown():
    found = []

    def function(index):
        flat, facts = analyse(lambda z, x: z[index])
        found.append(scopes_of(facts, flat.jaxpr.outvars[0]))
        return index

    jax.jit(function)(1)
    function(jnp.array(1))
    assert found == [[ALL], [{1}]]


def test_evaluation_equals_the_function_and_takes_given_values(key):
    def function(x):
        y = jax.jit(jnp.sin)(x)
        return {"a": y * 2, "b": lax.cond(x > 0, lambda: x + y, lambda: y)}

    flat, out = flat_jaxpr(function, jnp.float32(0.7))
    found = jax.tree.unflatten(
        jax.tree.structure(out), evaluate(flat.jaxpr, flat.consts, [jnp.float32(0.7)])
    )
    expected = function(jnp.float32(0.7))
    assert found == expected
    (sine,) = [eqn.outvars[0] for eqn in flat.jaxpr.eqns if eqn.primitive.name == "sin"]
    given = evaluate(flat.jaxpr, flat.consts, [jnp.float32(0.7)], given={sine: jnp.float32(5.0)})
    np.testing.assert_allclose(given, [10.0, 5.7], rtol=1e-6)


SUMS = {
    "sum of pairs": (lambda z, x: (x * z[1:] * z[:-1]).sum(), {(0, 1), (1, 2), (2, 3)}),
    "loop of additions": (
        lambda z, x: sum(x * z[i] * z[i + 1] for i in range(3)) - 2 * z[3],
        {(0, 1), (1, 2), (2, 3), (3,)},
    ),
    "mean under a mask": (
        lambda z, x: jnp.where(x > 0, (z * x).reshape(2, 2).mean(), 0.0) / x,
        {(0,), (1,), (2,), (3,)},
    ),
    "contraction": (lambda z, x: jnp.dot(x * jnp.arange(4.0), z * x), {(0,), (1,), (2,), (3,)}),
    "no sum": (lambda z, x: jnp.exp((z * x).sum()), {(0, 1, 2, 3)}),
    "kept together": (lambda z, x: (x * z[:2, None] * jnp.ones(3)).sum(1), {(0,), (1,)}),
}


@pytest.mark.parametrize("case", SUMS)
def test_sums_are_taken_apart_where_tables_become_smaller(case):
    function, expected = SUMS[case]
    flat, facts = analyse(function)
    terms = split_terms(flat.jaxpr, facts, flat.jaxpr.outvars, [2] * 4)
    scopes = {tuple(sorted(s)) for term in terms for s in scopes_of(facts, term) if s}
    assert scopes == expected
    if case == "kept together":
        assert terms == flat.jaxpr.outvars


@pytest.mark.parametrize(
    ("scopes", "num_states", "most_runs"),
    [
        ([{0}, {1}, {0, 1}, {1, 2}, {2, 3}, {2, 3}, set()], [2, 3, 2, 4], 12),
        ([{i, j} for i in range(12) for j in range(i)], [2] * 12, 30),  # 264 one pair at a time
        ([{0, 1, 2}, {3}, {2, 3}, {4}], [2, 2, 3, 5, 1], 24),
        ([], [], 1),
    ],
)
def test_runs_see_every_configuration_of_every_scope(scopes, num_states, most_runs):
    own = layout([frozenset(scope) for scope in scopes], num_states)
    assert len(own.states) <= most_runs
    # the value of an element in a run is the code of its configuration there
    values = np.zeros((len(own.states), len(scopes)))
    for element, scope in enumerate(scopes):
        nodes = sorted(scope)
        shape = [num_states[node] for node in nodes]
        if nodes:
            values[:, element] = 1 + np.ravel_multi_index(tuple(own.states[:, nodes].T), shape)
    tables = np.zeros(own.hypergraph.num_entries)
    np.add.at(tables, own.target, values.ravel()[own.source])
    for factor, scope in enumerate(own.hypergraph.scopes):
        start = own.hypergraph.table_starts[factor]
        size = int(np.prod(own.hypergraph.table_shape(factor)))
        count = sum(sorted(other) == list(scope) for other in scopes)
        np.testing.assert_array_equal(tables[start : start + size], count * np.arange(1, size + 1))
    assert own.constants.tolist() == [e for e, scope in enumerate(scopes) if not scope]


WEIGHTS = np.random.default_rng(0).integers(-1, 2, (4, 4)).astype(np.float32)
ORDER = np.array([2, 0, 3, 3])


def index(x):
    return jnp.clip(x, 0, 3).astype(int)


STEPS = [  # of a number 0..3 and two vectors of four
    lambda r, a, b: a + b,
    lambda r, a, b: a * b,
    lambda r, a, b: -a[::-1],
    lambda r, a, b: a * KEPT,
    lambda r, a, b: jnp.where(KEPT, a, b),
    lambda r, a, b: jnp.where(b > 0, a, b),
    lambda r, a, b: WEIGHTS @ a,
    lambda r, a, b: a[ORDER],
    lambda r, a, b: a[index(b)],
    lambda r, a, b: jnp.asarray(WEIGHTS)[index(a), index(b)],
    lambda r, a, b: jnp.roll(a, r),
    lambda r, a, b: jnp.cumsum(a),
    lambda r, a, b: jnp.sort(a),
    lambda r, a, b: a.reshape(2, 2).T.reshape(4),
    lambda r, a, b: a.at[ORDER].add(b),
    lambda r, a, b: a.at[index(b[0])].set(b[1]),
    lambda r, a, b: lax.cond(b[r] > 0, lambda: a, lambda: b),
    lambda r, a, b: lax.fori_loop(0, r + 1, lambda i, total: total.at[i].add(a[i]), b),
    lambda r, a, b: lax.scan(lambda c, x: (c * 2 - x[0], c + x[1]), a[r], (a, b))[1],
    lambda r, a, b: lax.while_loop(lambda c: c[0] < r, lambda c: (c[0] + 1, c[1] + b), (0, a))[1],
    lambda r, a, b: lax.dynamic_slice(jnp.concatenate([a, b]), (index(b[0]),), (4,)),
    lambda r, a, b: lax.dynamic_update_slice(a, b[:2], (r,)),
    lambda r, a, b: lax.dynamic_update_slice(a, b[:2], (index(b[r]),)),
    lambda r, a, b: jnp.pad(a, (1, 2))[r : r + 4],
    lambda r, a, b: jnp.tril(jnp.outer(a, b))[r],
    lambda r, a, b: jnp.repeat(a.reshape(2, 2).sum(r % 2), 2),
    lambda r, a, b: jax.nn.one_hot(index(a), 4) @ b,
    lambda r, a, b: jnp.convolve(a, b[:2], mode="same"),
    lambda r, a, b: jnp.argmax(jnp.stack([a, b]), axis=0),
]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_scopes_hold_for_random_programs(seed):
    rng = np.random.default_rng(seed)
    table = np.array(list(itertools.product(range(2), repeat=4)), np.int32)
    for _ in range(20):
        length = rng.integers(1, 7)
        program = [
            (rng.integers(len(STEPS)), int(rng.integers(4)), *rng.integers(0, place + 1, 2))
            for place in range(length)
        ]

        def function(z, x, program=program):
            values = [z * x]
            for step, number, first, second in program:
                values.append(STEPS[step](number, values[first], values[second]) * 1.0)
            return values[-1]

        flat, facts = analyse(function)
        found = scopes_of(facts, flat.jaxpr.outvars[0])
        values = jax.jit(jax.vmap(lambda z, f=function: f(z, 1.0)))(table)
        by_place = np.asarray(values).reshape(2, 2, 2, 2, 4)
        for node in range(4):
            changes = np.ptp(by_place, axis=node).reshape(8, 4).max(axis=0) > 1e-6
            missed = [e for e in range(4) if changes[e] and node not in found[e]]
            assert missed == [], (program, node)
