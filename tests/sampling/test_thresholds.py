"""Exact probabilities of updates in words, by going through the random numbers, not by draws."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from jaxmrf.graphs import Graph, torus
from jaxmrf.models import Ising
from jaxmrf.sampling import lattice_gibbs, packed, sampler_plan, sum_gibbs, table_gibbs, thresholds

NUM_BITS = 8
KERNELS = {"tables": table_gibbs, "lattice": lattice_gibbs}


@pytest.mark.parametrize("num_bits", [4, 12])
def test_rounded_thresholds_have_the_exact_mean(num_bits):
    """Over all values of the bits that round them."""
    unit = 2 ** (32 - num_bits)
    steps = np.arange(0, unit, max(1, unit >> 20), dtype=np.uint32)
    for error in (0, 1, 12345, 2**30 + 77, 2**31 - 1, 2**31):
        error -= error % (unit // len(steps))
        found = thresholds.dither(jnp.uint32(error), jnp.asarray(steps) << num_bits, num_bits)
        assert np.asarray(found, np.int64).sum() * unit == error * len(steps)
        assert found.max() <= 2 ** (num_bits - 1)


def test_thresholds_of_32_bits_are_not_rounded():
    errors = jnp.array([0, 5, 2**31], jnp.uint32)
    np.testing.assert_array_equal(thresholds.dither(errors, errors, 32), errors)


def test_planes_draw_a_one_exactly_below_the_threshold():
    """All thresholds and all random numbers of five bits."""
    values = np.arange(32, dtype=np.uint32)
    bits = (values >> np.arange(5)[:, None]) & 1
    words = [jnp.uint32((row << values).sum(dtype=np.uint32)) for row in bits.astype(np.uint32)]
    masks = thresholds.planes(jnp.asarray(values), 5, 0)
    found = thresholds.draw_errors(list(masks), [jnp.full(32, word) for word in words])
    wanted = (2 ** values.astype(np.uint64) - 1).astype(np.uint32)
    np.testing.assert_array_equal(found, wanted)


def test_errors_are_the_probabilities_of_the_less_likely_value():
    logits = np.linspace(-30, 30, 1001)
    errors, likelier = thresholds.errors_of_logits(jnp.asarray(logits, jnp.float32))
    exact = special.expit(-np.abs(logits.astype(np.float32).astype(float)))
    np.testing.assert_allclose(np.asarray(errors, float) / 2**32, exact, rtol=1e-6, atol=2**-31)
    np.testing.assert_array_equal(likelier, np.where(logits > 0, 2**32 - 1, 0))


def averaged_update(monkeypatch, form, states, model, plan):
    """Mean of the states after one sweep over all random numbers, and 16 roundings of thresholds.

    Every variable is given the same number; so a variable's mean is its exact probability where its
    neighbours keep their states, which those of the first colour do.
    """

    def constant_words(number, rounding):
        def words(seed, outer, step, inner, *, num_words, num_rounds, stream=0):
            shape = jnp.broadcast_shapes(*(jnp.shape(part) for part in (outer, step, inner)))
            if stream == 1:
                return [jnp.full(shape, rounding, jnp.uint32)] * num_words
            planes = [jnp.uint32(0) - ((number >> k) & jnp.uint32(1)) for k in range(num_words)]
            return [jnp.broadcast_to(plane, shape) for plane in planes]

        return words

    def updated(number, rounding):
        monkeypatch.setattr(KERNELS[form], "random_words", constant_words(number, rounding))
        fields = packed.pack(states, plan)
        after = packed.run(jax.random.key(0), fields, model, plan, num_sweeps=1)
        return packed.unpack(after, plan).astype(jnp.float32)

    numbers = jnp.arange(2**NUM_BITS, dtype=jnp.uint32)
    roundings = (jnp.arange(16, dtype=jnp.uint32) << 28) + jnp.uint32(1 << 27)
    run = jax.jit(jax.vmap(jax.vmap(updated, (0, None)), (None, 0)))
    return np.asarray(run(numbers, roundings).mean(axis=(0, 1)), float)


def probabilities(states, model, graph):
    """Exact conditional probability of state 1 of every variable, in double precision."""
    spins = 2.0 * np.asarray(states) - 1
    field = np.repeat(np.asarray(model.fields, float)[:, None], spins.shape[1], axis=1)
    for (u, v), coupling in zip(graph.edges, np.asarray(model.couplings, float), strict=True):
        field[u] += coupling * spins[v]
        field[v] += coupling * spins[u]
    return special.expit(2 * field)


# one rounding too low or too high, of 16, in the last of NUM_BITS bits
RESOLUTION = 2.0 ** -(NUM_BITS + 4)

TORUS = torus((4, 4))
CHECKERBOARD = np.indices((4, 4)).sum(axis=0).ravel() % 2


def table_case():
    rng = np.random.default_rng(0)
    model = Ising(
        jnp.asarray(rng.normal(0, 0.7, TORUS.num_edges), jnp.float32),
        jnp.asarray(rng.normal(0, 0.5, 16), jnp.float32),
    )
    plan = sampler_plan(TORUS, model, num_chains=32, form="tables", num_bits=NUM_BITS)
    return TORUS, model, plan, plan.layout.tiles[0].nodes[0]


def lattice_case(down, across, field):
    graph = torus((64, 6))
    n = graph.num_nodes
    model = Ising(jnp.repeat(jnp.array([down, across]), n), jnp.full(n, field))
    plan = sampler_plan(graph, model, num_chains=2, form="lattice", num_bits=NUM_BITS)
    return graph, model, plan, np.flatnonzero(np.indices((64, 6)).sum(axis=0).ravel() % 2 == 0)


CASES = {
    "tables": (table_case, "tables"),
    "symmetric lattice": (functools.partial(lattice_case, 0.4, 0.4, 0.0), "lattice"),
    "antiferromagnet": (functools.partial(lattice_case, -0.3, -0.3, 0.0), "lattice"),
    "lattice": (functools.partial(lattice_case, 0.5, -0.2, 0.15), "lattice"),
}


def largest_error(monkeypatch, case):
    build, form = CASES[case]
    graph, model, plan, first = build()
    states = np.random.default_rng(1).integers(0, 2, (graph.num_nodes, plan.num_chains), np.int8)
    found = averaged_update(monkeypatch, form, jnp.asarray(states), model, plan)
    return np.abs(found - probabilities(states, model, graph))[first].max()


@pytest.mark.parametrize("case", CASES)
def test_update_has_the_exact_heat_bath_probability(case, monkeypatch):
    assert largest_error(monkeypatch, case) < RESOLUTION


@pytest.mark.parametrize("case", ["tables", "lattice"])
def test_planted_error_of_a_threshold_is_caught(case, monkeypatch):
    def wrong(logits):
        errors, likelier = thresholds.errors_of_logits(logits)
        return jnp.minimum(errors + jnp.uint32(2**24), jnp.uint32(2**31)), likelier

    monkeypatch.setattr(KERNELS[CASES[case][1]], "errors_of_logits", wrong)
    assert largest_error(monkeypatch, case) > 2**-8 - RESOLUTION


def test_sums_switch_where_the_uniform_number_passes_the_probability(monkeypatch):
    rng = np.random.default_rng(0)
    graph = Graph(8, [(0, i) for i in range(1, 8)])
    model = Ising(
        jnp.asarray(rng.normal(0, 0.6, 7), jnp.float32), jnp.asarray(rng.normal(0, 0.4, 8), "f4")
    )
    plan = sampler_plan(graph, model, num_chains=32, form="sums", num_bits=32)
    states = rng.integers(0, 2, (8, 32), np.int8)
    leaves = [node for node in plan.layout.tiles[0].nodes[0] if node > 0][:1]
    wanted = probabilities(states, model, graph)

    def run_with(uniform):
        """All chains of all nodes given one uniform number."""
        word = jnp.uint32(int(uniform * 2**24) << 8)

        def words(seed, outer, step, inner, *, num_words, num_rounds, stream=0):
            shape = jnp.broadcast_shapes(*(jnp.shape(part) for part in (outer, step, inner)))
            return [jnp.full(shape, word)] * num_words

        monkeypatch.setattr(sum_gibbs, "random_words", words)
        fields = packed.run(
            jax.random.key(0), packed.pack(jnp.asarray(states), plan), model, plan, num_sweeps=1
        )
        return np.asarray(packed.unpack(fields, plan))

    for node in leaves:
        for chain in (0, 13, 31):
            probability = wanted[node, chain]
            assert run_with(probability - 2**-21)[node, chain] == 1
            assert run_with(probability + 2**-21)[node, chain] == 0


def test_eight_uniform_numbers_of_four_words_are_exactly_uniform():
    """Every one by itself, and any two apart from the bits they share."""
    rng = np.random.default_rng(0)
    base = rng.integers(0, 2**32, (4, 1), dtype=np.uint32)
    sweep = np.arange(2**16, dtype=np.uint32)
    for number in range(8):
        words = np.repeat(base, 2**16, axis=1)
        low = number % 2 == 0
        mask = np.uint32(0xFFFF0000 if low else 0xFFFF)
        words[number // 2] = (words[number // 2] & mask) | (sweep if low else sweep << 16)
        found = np.asarray(sum_gibbs.uniform_numbers([jnp.asarray(row) for row in words]))
        own = np.floor(found[number] * 2**16).astype(int)
        np.testing.assert_array_equal(np.sort(own), sweep)
        common = np.round(found * 2**24).astype(int) % 256
        assert (common == common[0]).all()
        assert (np.bincount(common[0], minlength=256) == 256).all()


def test_eight_words_are_eight_uniform_numbers():
    words = [jnp.uint32(value) for value in (0, 255, 256, 2**31, 2**32 - 1, 7, 8, 9)]
    found = sum_gibbs.uniform_numbers(words)
    assert [float(u) * 2**24 for u in found] == [0, 0, 1, 2**23, 2**24 - 1, 0, 0, 0]


def test_walls_change_no_number(key):
    _, model, plan, _ = table_case()
    fields = packed.init(key, model, plan)
    other = dataclasses.replace(plan, backend="gpu")
    np.testing.assert_array_equal(
        packed.run(key, fields, model, plan, num_sweeps=3),
        packed.run(key, fields, model, other, num_sweeps=3),
    )
