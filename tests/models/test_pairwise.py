import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from examples import (
    EMPTY,
    GRAPHS,
    KINDS,
    NUM_STATES,
    UNEVEN,
    potential_of,
    random_model,
    random_states,
    tiles_of,
)

from jaxmrf.graphs import Graph, neighbor_blocks, sweep_plan
from jaxmrf.models import (
    Ising,
    Pairwise,
    Potts,
    agreements_from_couplings,
    as_states,
    couplings_from_agreements,
    log_potential,
    log_pseudolikelihood,
)

CASES = [(kind, name) for kind in KINDS for name in GRAPHS]


def case(kind, name, num_items=6):
    graph = GRAPHS[name]
    model = random_model(kind, graph)
    return graph, model, random_states(graph, model.num_states, num_items)


def log_potentials(model, graph, states):
    return jax.vmap(lambda x: log_potential(model, graph, x))(jnp.asarray(states))


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_log_potential_is_the_oracles(kind, name):
    graph, model, states = case(kind, name)
    potential = potential_of(model, graph)
    expected = [potential(x) for x in states.tolist()]
    np.testing.assert_allclose(log_potentials(model, graph, states), expected, atol=2e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_log_potential_is_the_inner_product_with_the_statistics(kind):
    graph, model, states = case(kind, "uneven")
    statistics = model.statistics(graph, states[0])
    assert type(statistics) is type(model)
    flat = lambda tree: np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])  # noqa: E731
    value = log_potential(model, graph, states[0])
    np.testing.assert_allclose(value, flat(model) @ flat(statistics), rtol=1e-5)
    gradient = jax.grad(log_potential)(model, graph, states[0])
    np.testing.assert_array_equal(flat(gradient), flat(statistics))


@pytest.mark.parametrize("kind", KINDS)
def test_wide_integers_mean_the_same_states(kind):
    graph, model, states = case(kind, "uneven")
    np.testing.assert_array_equal(
        log_potentials(model, graph, states.astype(np.int32)), log_potentials(model, graph, states)
    )
    np.testing.assert_array_equal(
        log_pseudolikelihood(model, graph, states.astype(np.int32)),
        log_pseudolikelihood(model, graph, states),
    )


@pytest.mark.parametrize("kind", KINDS)
def test_tables_give_the_same_log_potential(kind):
    graph, model, states = case(kind, "uneven")
    tables = model.tables()
    assert isinstance(tables, Pairwise) and tables.num_states == NUM_STATES[kind]
    np.testing.assert_allclose(
        log_potentials(tables, graph, states), log_potentials(model, graph, states), atol=1e-5
    )


@pytest.mark.parametrize("kind", KINDS)
def test_renumbering_the_nodes_leaves_the_log_potential(kind, rng):
    graph, model, states = case(kind, "uneven")
    number = rng.permutation(graph.num_nodes)
    ends = number[graph.edges]
    moved = Graph(graph.num_nodes, ends)
    node_part, edge_part = (
        (model.node_tables, model.edge_tables)
        if kind == "pairwise"
        else (model.fields, model.couplings)
    )
    node_part = jnp.zeros_like(node_part).at[number].set(node_part)
    if kind == "pairwise":
        swapped = (ends[:, 0] > ends[:, 1])[:, None, None]
        assert swapped.any() and not swapped.all()
        edge_part = jnp.where(swapped, edge_part.swapaxes(1, 2), edge_part)
        renumbered = Pairwise(edge_part, node_part)
    else:
        renumbered = type(model)(edge_part, node_part)
    moved_states = np.empty_like(states)
    moved_states[:, number] = states
    np.testing.assert_allclose(
        log_potentials(renumbered, moved, moved_states),
        log_potentials(model, graph, states),
        atol=1e-5,
    )


def test_potts_with_two_states_is_ising_at_half_the_coupling():
    graph, ising, states = case("ising", "uneven")
    potts = Potts(2 * ising.couplings, jnp.stack([-ising.fields, ising.fields], axis=1))
    gap = log_potentials(potts, graph, states) - log_potentials(ising, graph, states)
    np.testing.assert_allclose(gap, np.full(len(states), float(ising.couplings.sum())), atol=1e-5)
    np.testing.assert_allclose(
        log_pseudolikelihood(potts, graph, states),
        log_pseudolikelihood(ising, graph, states),
        atol=1e-5,
    )


@pytest.mark.parametrize(("kind", "name"), CASES)
@pytest.mark.parametrize("tiles", [False, True], ids=["blocks", "tiles"])
def test_relative_logits_are_the_oracles_conditionals(kind, name, tiles):
    graph, model, states = case(kind, name, num_items=4)
    potential, num_states = potential_of(model, graph), model.num_states
    clamped = (0,) if tiles and graph.num_nodes > 1 else ()
    if tiles:
        plan = sweep_plan(graph, clamped=clamped)
        blocks, rows = tiles_of(plan), np.zeros((plan.num_rows, len(states)), np.int8)
        rows[plan.rows] = states.T
    else:
        blocks = ((block.nodes, block) for block in neighbor_blocks(graph, range(graph.num_nodes)))
        rows = states.T
    seen = []
    for nodes, block in blocks:
        logits = model.relative_logits(block, jnp.asarray(rows))
        assert logits.shape == (num_states - 1, block.nodes.size, len(states))
        for column, node in enumerate(nodes.tolist()):
            seen.append(node)
            for item, x in enumerate(states.tolist()):
                expected = oracles.conditional(potential, x, node, num_states)
                np.testing.assert_allclose(
                    logits[:, column, item], np.log(expected[1:] / expected[0]), atol=2e-5
                )
    assert sorted(seen) == sorted(set(range(graph.num_nodes)) - set(clamped))


def test_more_slots_than_are_unrolled_give_the_same_logits():
    star = Graph(20, [(0, i) for i in range(1, 20)])
    for kind in KINDS:
        model = random_model(kind, star)
        x = random_states(star, model.num_states, 1)[0]
        expected = oracles.conditional(potential_of(model, star), x.tolist(), 0, model.num_states)
        block = neighbor_blocks(star, [0])[0]
        found = model.relative_logits(block, jnp.asarray(x)[:, None])[:, 0, 0]
        np.testing.assert_allclose(found, np.log(expected[1:] / expected[0]), atol=5e-5)


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_log_pseudolikelihood_is_the_oracles(kind, name):
    graph, model, states = case(kind, name, num_items=4)
    potential = potential_of(model, graph)
    expected = [
        oracles.log_pseudolikelihood(potential, x, model.num_states) for x in states.tolist()
    ]
    np.testing.assert_allclose(log_pseudolikelihood(model, graph, states), expected, atol=3e-5)


def test_log_pseudolikelihood_without_edges_is_the_log_likelihood():
    model = random_model("potts", EMPTY)
    states = random_states(EMPTY, 3, 5)
    exact = log_potentials(model, EMPTY, states) - oracles.log_z(potential_of(model, EMPTY), 3, 3)
    np.testing.assert_allclose(log_pseudolikelihood(model, EMPTY, states), exact, atol=1e-5)


@pytest.mark.slow
def test_log_pseudolikelihood_has_the_gradient_of_its_differences(x64):
    graph, model, states = case("ising", "uneven")
    model = jax.tree.map(lambda leaf: leaf.astype(jnp.float64), model)
    total = lambda model: log_pseudolikelihood(model, graph, states).sum()  # noqa: E731
    gradient = jax.grad(total)(model)
    assert gradient.couplings.dtype == jnp.float64
    for edge in range(graph.num_edges):
        step = jnp.zeros(graph.num_edges).at[edge].set(1e-5)
        up, down = (total(Ising(model.couplings + sign * step, model.fields)) for sign in (1, -1))
        np.testing.assert_allclose(gradient.couplings[edge], (up - down) / 2e-5, rtol=1e-6)


def test_agreements_and_couplings_are_inverse():
    agreements = jnp.array([0.01, 0.3, 0.5, 0.9, 0.999])
    couplings = couplings_from_agreements(agreements)
    np.testing.assert_allclose(agreements_from_couplings(couplings), agreements, rtol=1e-6)
    assert couplings[2] == 0


def test_agreement_form_is_the_ising_model():
    """theta^[agree] (1 - theta)^[disagree], Liu & Page section 2, up to a constant an edge."""
    agreements = jnp.array([0.2, 0.9, 0.6, 0.7, 0.5, 0.8, 0.35, 0.65, 0.1])
    model = Ising(couplings_from_agreements(agreements), jnp.zeros(9))
    states = random_states(UNEVEN, 2, 5)
    constant = float(jnp.sum(jnp.log(agreements) + jnp.log1p(-agreements)) / 2)
    for x, value in zip(states, log_potentials(model, UNEVEN, states), strict=True):
        agree = x[UNEVEN.edges[:, 0]] == x[UNEVEN.edges[:, 1]]
        expected = np.log(np.where(agree, agreements, 1 - agreements)).sum()
        np.testing.assert_allclose(value + constant, expected, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_model_is_a_pytree_that_takes_batches_and_placeholders(kind):
    model = random_model(kind, UNEVEN)
    assert jax.tree.map(lambda leaf: 0, model) == jax.tree.map(lambda leaf: 0, model)
    batch = jax.tree.map(lambda leaf: jnp.stack([leaf, 2 * leaf]), model)
    states = random_states(UNEVEN, model.num_states, 1)[0]
    values = jax.vmap(log_potential, in_axes=(0, None, None))(batch, UNEVEN, states)
    np.testing.assert_allclose(values[1], 2 * values[0], rtol=1e-5)


@pytest.mark.parametrize(
    ("data", "num_states", "expected"),
    [
        ([[0, 1], [1, 1]], 2, [[0, 1], [1, 1]]),
        ([[-1, 1], [1, 1]], 2, [[0, 1], [1, 1]]),
        ([[-1, -1]], 2, [[0, 0]]),
        ([[1, 1]], 2, [[1, 1]]),
        ([[True, False]], 2, [[1, 0]]),
        ([[0.0, 2.0]], 3, [[0, 2]]),
    ],
    ids=["01", "spins", "only -1", "only 1", "bool", "float"],
)
def test_as_states_codes_observations(data, num_states, expected):
    states = as_states(data, num_states, 2, caller="f")
    assert states.dtype == np.int8
    np.testing.assert_array_equal(states, expected)


def test_as_states_of_many_states_does_not_overflow():
    assert as_states([[0, 199]], 200, 2, caller="f").tolist() == [[0, 199]]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([0, 1], r"f: expected data of shape \[items, 2\], got \(2,\)"),
        ([[0, 1, 0]], r"data of shape \[items, 2\], got \(1, 3\)"),
        (np.zeros((0, 2)), "at least one observation, got 0"),
        ([[0.0, np.nan]], "data without gaps, got 1 NaN"),
        ([[0, 2]], r"values all in 0\.\.1 or all in \{-1, \+1\}, got \[0, 2\]"),
        ([[-1, 0], [1, 1]], r"values all in 0\.\.1 or all in \{-1, \+1\}, got \[-1, 0, 1\]"),
        ([[0.5, 1]], r"values all in 0\.\.1 or"),
        ([[np.inf, 1]], r"values all in 0\.\.1 or"),
        ([["a", "b"]], r"values all in 0\.\.1 or"),
    ],
    ids=["vector", "width", "empty", "nan", "range", "mixed spins", "fraction", "inf", "text"],
)
def test_as_states_rejects_bad_observations(data, message):
    with pytest.raises(ValueError, match=message):
        as_states(data, 2, 2, caller="f")


def test_as_states_of_three_states_does_not_offer_spins():
    with pytest.raises(ValueError, match=r"values all in 0\.\.2, got \[-1, 1\]; recode"):
        as_states([[-1, 1]], 3, 2, caller="f")
