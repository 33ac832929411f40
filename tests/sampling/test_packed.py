"""Forms of the sweep: packing, sweeps against enumeration and the plain form, counts, plans."""

import functools

import jax
import jax.numpy as jnp
import networkx as nx
import numpy as np
import oracles
import pytest
from examples import UNEVEN, potential_of, random_model, random_states

from jaxmrf.graphs import Graph, checkerboard_plan, grid, torus
from jaxmrf.models import Ising, Pairwise, log_potential
from jaxmrf.sampling import gibbs, packed, sampler_plan
from jaxmrf.testing.statistics import chi_square_p_value

LATTICE = torus((64, 4))
# nodes of zero to five neighbours
LOW = Graph(9, [(0, 1), (0, 2), (0, 3), (0, 4), (0, 5), (1, 2), (2, 3), (3, 6), (5, 7), (2, 4)])
FORMS = ("lattice", "tables", "sums", "plain")


def uniform_model(graph, down=0.3, across=0.3, field=0.0):
    n = graph.num_nodes
    return Ising(jnp.repeat(jnp.array([down, across]), n), jnp.full(n, field))


def case(form, num_chains=40, **options):
    """A small field in a form; few random bits are quickly compiled."""
    graph = {"lattice": LATTICE, "tables": LOW}.get(form, UNEVEN)
    model = (
        uniform_model(graph, 0.3, -0.2, 0.1) if form == "lattice" else random_model("ising", graph)
    )
    options = {"num_bits": 4} | options
    return graph, model, sampler_plan(graph, model, num_chains=num_chains, form=form, **options)


@functools.partial(jax.jit, static_argnames="num_sweeps")
def run(key, fields, model, plan, num_sweeps=2):
    return packed.run(key, fields, model, plan, num_sweeps=num_sweeps)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("num_chains", [1, 32, 70])
def test_unpack_is_the_inverse_of_pack(form, num_chains):
    graph, _, plan = case(form, num_chains)
    states = jnp.asarray(random_states(graph, 2, num_chains).T, jnp.int8)
    found = packed.unpack(packed.pack(states, plan), plan)
    np.testing.assert_array_equal(found, states)
    assert found.dtype == jnp.int8


def test_lattice_words_hold_stretches_of_rows():
    """Bit b of the words of row r is row 2 b + r of the lattice."""
    _, _, plan = case("lattice", 1)
    states = np.zeros((64, 4), np.int8)
    states[2 * 5 + 1, 2] = 1  # row 11, an odd one; column 2 is of the second colour there
    fields = np.asarray(packed.pack(jnp.asarray(states.reshape(-1, 1)), plan))
    assert fields.shape == (2, 1, 2, 2) and fields[1, 0, 1, 1] == 1 << 5
    assert np.count_nonzero(fields) == 1


@pytest.mark.parametrize("form", ["tables", "sums"])
def test_sweep_leaves_the_exact_distribution(form, key):
    """100,000 chains started from it, all 512 configurations counted after two sweeps."""
    num_chains = 100_000
    graph, model, plan = case(form, num_chains, num_bits=12)
    target = oracles.distribution(potential_of(model, graph), 9, 2)
    target /= target.sum()
    table = np.array(oracles.configurations(9, 2), np.int8)
    chosen = np.random.default_rng(0).choice(512, num_chains, p=target)
    fields = packed.pack(jnp.asarray(table[chosen].T), plan)
    found = np.asarray(packed.unpack(run(key, fields, model, plan), plan), np.int64)
    counts = np.bincount(2 ** np.arange(9) @ found, minlength=512)
    order = 2 ** np.arange(9) @ table.T.astype(np.int64)
    expected = np.zeros(512)
    expected[order] = target
    assert chi_square_p_value(counts, expected) > 1e-4


@pytest.mark.parametrize("form", ["tables", "sums"])
def test_general_tables_have_the_means_of_the_plain_form(form, key):
    """From one configuration: 60,000 chains each, 5 standard errors."""
    graph, num_chains = LOW, 60_000
    three = random_model("pairwise", graph)
    model = Pairwise(three.edge_tables[:, :2, :2], three.node_tables[:, :2])
    states = jnp.repeat(jnp.asarray(random_states(graph, 2, 1).T, jnp.int8), num_chains, axis=1)
    means = []
    for name in (form, "plain"):
        plan = sampler_plan(graph, model, num_chains=num_chains, form=name)
        fields = run(key, packed.pack(states, plan), model, plan)
        means.append(packed.unpack(fields, plan).mean(axis=1, dtype=float))
    np.testing.assert_allclose(*means, atol=5 * (0.5 / num_chains) ** 0.5)


def test_plain_form_equals_the_plain_kernel(key):
    graph, model, plan = case("plain", 7)
    states = jnp.asarray(random_states(graph, 2, 7).T, jnp.int8)
    found = gibbs.run(key, states, model, plan, num_sweeps=2)
    np.testing.assert_array_equal(found, gibbs.run(key, states, model, plan.layout, num_sweeps=2))


@pytest.mark.parametrize("form", FORMS)
def test_integers_in_integers_out(form, key):
    graph, model, plan = case(form)
    states = gibbs.init(key, model, plan, num_chains=40)
    assert states.shape == (graph.num_nodes, 40)
    found = gibbs.sweep(key, states.astype(jnp.int32), model, plan)
    assert found.dtype == jnp.int32
    wanted = packed.unpack(
        packed.run(key, packed.pack(states, plan), model, plan, num_sweeps=1), plan
    )
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("form", FORMS)
def test_counts_of_bits_equal_sums_over_states(form, key):
    graph, model, plan = case(form)
    fields = packed.init(key, model, plan)
    states = packed.unpack(fields, plan)
    found = packed.mean_statistics(fields, model, graph, plan)
    potentials = packed.log_potentials(fields, model, graph, plan)
    wanted = jax.vmap(lambda one: log_potential(model, graph, one), in_axes=1)(states)
    np.testing.assert_allclose(potentials, wanted, rtol=1e-4, atol=1e-4)
    statistics = jax.vmap(lambda one: model.statistics(graph, one), in_axes=1)(states)
    for leaf, values in zip(jax.tree.leaves(found), jax.tree.leaves(statistics), strict=True):
        np.testing.assert_allclose(leaf, values.mean(axis=0), atol=1e-6)


@pytest.mark.parametrize("form", ["tables", "sums"])
def test_clamped_nodes_keep_their_states_and_the_others_move(form, key):
    graph, model, plan = case(form, 64, clamped=[0, 4])
    states = jnp.asarray(random_states(graph, 2, 64).T, jnp.int8)
    found = packed.unpack(run(key, packed.pack(states, plan), model, plan), plan)
    is_same = np.asarray(found == states).all(axis=1)
    assert is_same.tolist() == [node in (0, 4) for node in range(9)]


@pytest.mark.parametrize("form", ["lattice", "tables", "sums"])
def test_chains_sweeps_and_nodes_get_their_own_random_numbers(form):
    """Free spins, so that rounded thresholds couple nothing; 5.5 standard errors."""
    graph = LATTICE if form == "lattice" else torus((16, 16))
    model, n = uniform_model(graph, 0.0, 0.0), graph.num_nodes
    plan = sampler_plan(graph, model, num_chains=96, form=form, num_bits=4)
    fields = [packed.init(jax.random.key(0), model, plan)]
    for _ in range(2):
        fields.append(run(jax.random.key(1), fields[-1], model, plan, len(fields)))
    spins = [2.0 * np.asarray(packed.unpack(part, plan)) - 1 for part in fields[1:]]
    assert (spins[0] != spins[1]).mean() > 0.4  # the second sweep of one key is not the first
    spins = np.concatenate(spins, axis=1)
    assert np.abs(spins.T @ spins / n - np.eye(192)).max() < 5.5 / n**0.5
    assert np.abs(spins @ spins.T / 192 - np.eye(n)).max() < 5.5 / 192**0.5


@pytest.mark.parametrize("form", FORMS)
def test_same_key_same_fields_and_another_key_others(form):
    _, model, plan = case(form)
    fields = packed.init(jax.random.key(0), model, plan)
    first, again, other = (run(jax.random.key(seed), fields, model, plan) for seed in (3, 3, 4))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


@pytest.mark.parametrize("form", ["tables", "sums"])
def test_graph_without_edges_is_drawn_independently(form, key):
    graph = Graph(3, [])
    model = Ising(jnp.zeros(0), jnp.array([-0.5, 0.0, 1.0]))
    plan = sampler_plan(graph, model, num_chains=50_000, form=form, num_bits=12)
    found = packed.unpack(run(key, packed.init(key, model, plan), model, plan), plan)
    means = found.mean(axis=1, dtype=float)
    exact = 1 / (1 + np.exp(-2 * np.asarray(model.fields)))
    np.testing.assert_allclose(means, exact, atol=4.5 * 0.5 / 50_000**0.5)


def test_mean_and_trace_of_all_draws(key):
    graph, model, plan = case("tables")
    fields = packed.init(key, model, plan)
    found = packed.collect(
        *(key, fields, model, plan),
        num_draws=5,
        num_sweeps=2,
        mean_of=lambda fields: packed.mean_statistics(fields, model, graph, plan),
        trace_of=lambda fields: packed.unpack(fields, plan),
    )
    assert found.trace.shape == (5, 9, 40)
    np.testing.assert_array_equal(found.trace[-1], packed.unpack(found.fields, plan))
    spins = 2.0 * np.asarray(found.trace) - 1
    np.testing.assert_allclose(found.mean.fields, spins.mean(axis=(0, 2)), atol=1e-6)
    plain = packed.collect(key, fields, model, plan, num_draws=5, num_sweeps=2)
    assert plain.mean is None and plain.trace is None
    np.testing.assert_array_equal(plain.fields, found.fields)


def test_one_trace_serves_another_graph_of_equal_sizes(key):
    cycle = Graph(6, [(i, (i + 1) % 6) for i in range(6)])
    other = Graph(6, [(0, 3), (3, 1), (1, 4), (4, 2), (2, 5), (5, 0)])
    traces = []

    @jax.jit
    def traced(key, fields, model, plan):
        traces.append(1)
        return packed.run(key, fields, model, plan, num_sweeps=1)

    for graph in (cycle, other):
        model = random_model("ising", graph)
        plan = sampler_plan(graph, model, num_chains=32, form="tables")
        traced(key, packed.init(key, model, plan), model, plan)
    assert len(traces) == 1


def test_plan_takes_the_fastest_form_that_can_sample_the_model():
    wide, board = torus((64, 8)), torus((64, 512))
    star, free = Graph.from_networkx(nx.star_graph(200)), grid((64, 8))
    expected = [
        (board, uniform_model(board), 1, "lattice"),
        (board, jax.eval_shape(lambda: uniform_model(board)), 8, "sums"),
        (board, random_model("ising", board), 1, "plain"),
        (board, random_model("ising", board), 8, "sums"),
        (wide, Ising(None, None), 300, "tables"),
        (wide, Ising(None, None), 200, "sums"),
        (wide, Ising(None, None), 7, "plain"),
        (wide, random_model("potts", wide), 300, "plain"),
        (free, random_model("ising", free), 300, "tables"),
        (star, random_model("ising", star), 300, "sums"),
    ]
    for graph, model, num_chains, form in expected:
        assert sampler_plan(graph, model, num_chains=num_chains).form == form
    text = str(sampler_plan(star, Ising(None, None), num_chains=300))
    assert "SamplerPlan: sums, 300 chains" in text and "not tables: 2 states, up to 200" in text
    assert "24 random bits, 8 of them shared, Philox with 10 rounds" in text
    short = str(sampler_plan(wide, Ising(None, None), num_chains=300, num_sweeps=1000))
    assert "SamplerPlan: plain" in short and "SweepPlan" in short
    assert "not sums: 1000 sweeps of 512 nodes x 300 chains are few" in short


def test_checkerboard_is_found_on_tori_of_64_rows_only():
    assert checkerboard_plan(torus((128, 6))).num_rows == 128
    for graph in (torus((32, 64)), grid((64, 4)), torus((64, 5)), Graph(4, [(0, 1)])):
        assert checkerboard_plan(graph) is None
    shuffled = Graph(LATTICE.num_nodes, LATTICE.edges[::-1])
    assert checkerboard_plan(shuffled) is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_chains": 0}, "sampler_plan: expected num_chains to be at least 1, got 0"),
        ({"num_sweeps": 0}, "sampler_plan: expected num_sweeps to be at least 1, got 0"),
        ({"form": "words"}, "sampler_plan: expected form to be one of .*, got 'words'"),
        ({"num_bits": 33}, "sampler_plan: expected num_bits to be in 1..32, got 33"),
        ({"num_rounds": 6}, "sampler_plan: expected num_rounds to be at least 7, got 6"),
        ({"form": "lattice"}, "that the form 'lattice' can sample, got not a torus"),
    ],
)
def test_plan_refuses(options, message):
    model = random_model("ising", UNEVEN)
    with pytest.raises(ValueError, match=message):
        sampler_plan(UNEVEN, model, **({"num_chains": 10} | options))


def test_lattice_refuses_what_differs_from_place_to_place(key):
    model = random_model("ising", LATTICE)
    with pytest.raises(ValueError, match="got couplings or fields differ from place to place"):
        sampler_plan(LATTICE, model, num_chains=1, form="lattice")
    with pytest.raises(ValueError, match="got clamped nodes or colours were given"):
        sampler_plan(LATTICE, uniform_model(LATTICE), num_chains=1, form="lattice", clamped=[0])
    _, _, plan = case("lattice", 1)
    fields = packed.init(key, model, plan)
    with pytest.raises(ValueError, match="run: expected a model that the form 'lattice' can"):
        packed.run(key, fields, model, plan, num_sweeps=1)


def test_form_of_two_states_refuses_three(key):
    _, model, plan = case("sums")
    with pytest.raises(ValueError, match="the form 'sums' can sample, got 3 states"):
        packed.run(
            key, packed.init(key, model, plan), random_model("potts", UNEVEN), plan, num_sweeps=1
        )


def test_pack_refuses_another_number_of_chains(key):
    _, _, plan = case("tables")
    with pytest.raises(ValueError, match=r"pack: expected states of shape \(9, 40\), got \(9, 7\)"):
        packed.pack(jnp.zeros((9, 7), jnp.int8), plan)


def test_init_refuses_another_number_of_chains_and_none(key):
    _, model, plan = case("tables")
    with pytest.raises(
        ValueError, match="init: expected num_chains to be that of the plan, 40, got 7"
    ):
        packed.init(key, model, plan, num_chains=7)
    with pytest.raises(ValueError, match="init: expected num_chains .* None, got None"):
        packed.init(key, model, plan.layout)
    assert packed.init(key, model, plan.layout, num_chains=3).shape == (9, 3)


def test_collect_refuses_nothing_to_draw(key):
    _, model, plan = case("tables")
    with pytest.raises(ValueError, match="collect: expected num_draws and num_sweeps"):
        packed.collect(key, packed.init(key, model, plan), model, plan, num_draws=0)
