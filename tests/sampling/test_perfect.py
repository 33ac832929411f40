"""Coupling from the past: the law, the sandwich, the past that never changes, honest failure."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from examples import UNEVEN, potential_of, random_model

from jaxmrf.exact import enumeration
from jaxmrf.graphs import Graph, complete_bipartite, grid, sweep_plan
from jaxmrf.models import Ising
from jaxmrf.sampling import perfect, plain_gibbs
from jaxmrf.testing.statistics import chi_square_p_value

GRID3, GRID4 = grid((3, 3)), grid((4, 4))
TRIANGLES = Graph(4, [(0, 1), (0, 2), (1, 2), (1, 3), (2, 3)])


@functools.partial(jax.jit, static_argnames=("num_chains", "max_sweeps"))
def sample(key, model, plan, num_chains, max_sweeps=4096):
    return perfect.sample(key, model, plan, num_chains=num_chains, max_sweeps=max_sweeps)


bounds = jax.jit(perfect._bounds, static_argnums=3)


def uniform_model(graph, coupling, field=0.0):
    return Ising(jnp.full(graph.num_edges, coupling), jnp.full(graph.num_nodes, field))


def codes_of(states):
    """Number of each chain's configuration, node 0 changing fastest."""
    return 2 ** np.arange(len(states)) @ np.asarray(states, np.int64)


def p_value(states, model, graph):
    """Of the draws against all configurations."""
    exact = oracles.distribution(potential_of(model, graph), graph.num_nodes, 2)
    return chi_square_p_value(np.bincount(codes_of(states), minlength=len(exact)), exact)


MODELS = {
    "attractive": uniform_model(GRID3, 0.3),
    "repulsive": uniform_model(GRID3, -0.3, 0.2),
    "mixed": random_model("ising", GRID3, seed=2, scale=0.4),
}


@pytest.mark.parametrize("kind", MODELS)
def test_draws_follow_the_exact_distribution_of_all_configurations(kind, key):
    model = MODELS[kind]
    draws = sample(key, model, sweep_plan(GRID3), num_chains=10_000)
    assert draws.is_exact.all() and draws.num_sweeps < 4096
    assert p_value(draws.states, model, GRID3) > 1e-4


def test_chi_square_sees_a_coupling_of_the_wrong_sign(key):
    model = MODELS["mixed"]
    wrong = Ising(model.couplings.at[5].multiply(-1), model.fields)
    draws = sample(key, wrong, sweep_plan(GRID3), num_chains=10_000)
    assert p_value(draws.states, model, GRID3) < 1e-9


def test_draws_follow_the_exact_distribution_where_degrees_differ(key):
    """Several tile classes, padding, a triangle and an isolated node."""
    model = random_model("ising", UNEVEN, seed=1, scale=0.4)
    draws = sample(key, model, sweep_plan(UNEVEN), num_chains=10_000)
    assert draws.is_exact.all()
    assert p_value(draws.states, model, UNEVEN) > 1e-4


def levels_of(states):
    """Number of each configuration's level of magnetisation and agreements on the 4x4 grid."""
    first, second = GRID4.edges.T
    return 25 * states.sum(axis=0) + (states[first] == states[second]).sum(axis=0)


def test_many_draws_of_a_grid_follow_all_its_configurations(key):
    """100,000 draws of 65,536 configurations, by level and by pair of nodes."""
    num_draws, model = 100_000, uniform_model(GRID4, 0.3)
    # the tests' plain machine code would take ten times as long as compiling better one
    fast = {"xla_backend_optimization_level": 3}
    run = jax.jit(functools.partial(perfect.sample, num_chains=num_draws), compiler_options=fast)
    draws = run(key, model, sweep_plan(GRID4))
    assert draws.is_exact.all()
    found = np.asarray(draws.states, np.int64)
    states = enumeration.configurations(16, 2).T.astype(np.int64)
    first, second = GRID4.edges.T
    log_weights = 0.3 * (2.0 * (states[first] == states[second]).sum(axis=0) - 24)
    exact = np.exp(log_weights)
    exact /= exact.sum()

    by_level = np.bincount(levels_of(states), weights=exact, minlength=425)
    counts = np.bincount(levels_of(found), minlength=425)
    rare = num_draws * by_level < 10
    assert (~rare).sum() > 60
    merged = [np.append(part[~rare], part[rare].sum()) for part in (counts, by_level)]
    assert chi_square_p_value(*merged) > 1e-4

    spins, exact_spins = 2 * found - 1, 2 * states - 1
    upper = np.triu_indices(16, 1)
    products = ((exact_spins * exact) @ exact_spins.T)[upper]
    z = ((spins @ spins.T / num_draws)[upper] - products) * (num_draws / (1 - products**2)) ** 0.5
    assert z.shape == (120,) and np.abs(z).max() < 4.5
    assert np.abs(spins.mean(axis=1)).max() < 4.5 / num_draws**0.5


def heat_bath(key, starts, model, plan, num_chains, num_sweeps):
    """Final states [nodes, starts, chains] of plain chains fed the numbers of the last sweeps."""
    num_starts = starts.shape[1]

    def draw(key, block, rows):
        logits = model.relative_logits(block, rows)[0]
        uniform = jax.random.uniform(key, (len(logits), num_chains))
        return jnp.tile(jnp.log(uniform / (1 - uniform)), num_starts) < logits

    rows = jnp.repeat(jnp.asarray(starts, jnp.int8), num_chains, axis=1)[plan.nodes]
    for sweep in reversed(range(num_sweeps)):
        rows = plain_gibbs.scan_tiles(jax.random.fold_in(key, sweep), rows, plan, draw)
    return np.asarray(rows[plan.rows]).reshape(plan.num_nodes, num_starts, num_chains)


@pytest.mark.parametrize("graph", [TRIANGLES, grid((2, 3))], ids=["triangles", "grid"])
def test_chains_from_every_start_end_in_the_exact_draw(graph, key):
    model, plan = random_model("ising", graph, seed=3, scale=1.0), sweep_plan(graph)
    draws = sample(key, model, plan, num_chains=300, max_sweeps=4)
    assert draws.num_sweeps == 4 and 0 < draws.is_exact.sum() < 300
    starts = enumeration.configurations(graph.num_nodes, 2).T
    ends = heat_bath(key, starts, model, plan, 300, 4)
    exact = np.asarray(draws.is_exact)
    assert (ends == np.asarray(draws.states)[:, None])[..., exact].all()
    assert (ends <= np.asarray(draws.states)[:, None]).all()


def test_bounds_of_an_attractive_field_are_its_extremal_chains(key):
    model, plan = uniform_model(GRID4, 0.4, 0.1), sweep_plan(GRID4)
    draws = sample(key, model, plan, num_chains=300, max_sweeps=4)
    starts = np.array([[0, 1]] * 16)
    lower, upper = heat_bath(key, starts, model, plan, 300, 4).swapaxes(0, 1)
    np.testing.assert_array_equal(draws.states, upper)
    np.testing.assert_array_equal(draws.is_exact, (lower == upper).all(axis=0))
    assert 0 < draws.is_exact.sum() < 300


def test_flipping_one_side_of_a_bipartite_graph_keeps_the_coalescence(key):
    """The two bounds know of signs only what the field does: -J is J with one side flipped."""
    graph = complete_bipartite(2, 3)
    plan = sweep_plan(graph)
    draws = [
        sample(key, uniform_model(graph, sign * 0.8), plan, num_chains=4000, max_sweeps=4)
        for sign in (1, -1)
    ]
    shares = [np.asarray(draw.is_exact).mean() for draw in draws]
    assert 0.1 < min(shares) < 0.9
    assert abs(shares[0] - shares[1]) < 4.5 * (0.5 / 4000) ** 0.5


@pytest.mark.slow
@pytest.mark.parametrize("kind", MODELS)
def test_exact_draws_are_the_same_from_any_start_further_back(kind, key):
    model, plan = MODELS[kind], sweep_plan(GRID3)
    near = sample(key, model, plan, num_chains=500, max_sweeps=3)
    far = sample(key, model, plan, num_chains=500)
    assert near.num_sweeps == 3 and 0 < near.is_exact.sum() < 500 and far.is_exact.all()
    exact = np.asarray(near.is_exact)
    np.testing.assert_array_equal(near.states[:, exact], far.states[:, exact])
    for distance in (1, 37):
        lower, upper = bounds(key, model, plan, 500, far.num_sweeps + distance)
        np.testing.assert_array_equal(lower, far.states)
        np.testing.assert_array_equal(upper, far.states)


@pytest.mark.parametrize("is_fresh", [False, True])
def test_fresh_randomness_at_each_start_would_be_seen(is_fresh, monkeypatch):
    """One chain a call, so that each call stops when its own chain has coalesced."""
    graph = Graph(2, [(0, 1)])
    model, plan = Ising(jnp.array([1.0]), jnp.array([0.3, 0.0])), sweep_plan(graph)
    if is_fresh:
        fresh = lambda key, *rest: bounds(jax.random.fold_in(key, rest[-1]), *rest)  # noqa: E731
        monkeypatch.setattr(perfect, "_bounds", fresh)
    one = lambda key: perfect.sample(key, model, plan, num_chains=1)  # noqa: E731
    draws = jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(0), 10_000))
    assert draws.is_exact.all()
    p = p_value(draws.states[:, :, 0].T, model, graph)
    assert p < 1e-9 if is_fresh else p > 1e-4


def test_too_small_a_budget_is_reported(key):
    draws = sample(key, uniform_model(GRID4, 1.5), sweep_plan(GRID4), num_chains=200, max_sweeps=2)
    assert not draws.is_exact.all() and draws.num_sweeps == 2
    assert set(np.unique(draws.states[:, ~draws.is_exact])) <= {0, 1}


@pytest.mark.parametrize("max_sweeps", [1, 6])
def test_last_start_is_the_budget_also_where_no_power_of_two(max_sweeps, key):
    hard = uniform_model(GRID3, 3.0)
    draws = sample(key, hard, sweep_plan(GRID3), num_chains=50, max_sweeps=max_sweeps)
    assert draws.num_sweeps == max_sweeps and not draws.is_exact.all()


@pytest.mark.parametrize(("coupling", "field"), [(np.nan, 0.0), (0.1, np.nan), (np.inf, 0.0)])
def test_parameters_without_a_distribution_are_never_exact(coupling, field, key):
    model = Ising(jnp.full(12, 0.1).at[0].set(coupling), jnp.zeros(9).at[4].set(field))
    draws = sample(key, model, sweep_plan(GRID3), num_chains=20, max_sweeps=64)
    assert not draws.is_exact.any()


def test_graph_without_edges_needs_one_sweep(key):
    model, graph = Ising(jnp.zeros(0), jnp.array([-0.5, 0.0, 1.0])), Graph(3, [])
    draws = sample(key, model, sweep_plan(graph), num_chains=10_000)
    assert draws.num_sweeps == 1 and draws.is_exact.all() and draws.states.dtype == jnp.int8
    assert p_value(draws.states, model, graph) > 1e-4


def test_double_precision_is_kept(x64, key):
    model = Ising(jnp.full(12, 0.3, jnp.float64), jnp.zeros(9, jnp.float64))
    draws = sample(key, model, sweep_plan(GRID3), num_chains=2000)
    assert draws.is_exact.all() and p_value(draws.states, model, GRID3) > 1e-4


def test_vmap_over_models_equals_the_plain_loop():
    plan = sweep_plan(GRID3)
    models = [uniform_model(GRID3, coupling) for coupling in (0.1, 0.5)]
    keys = jax.random.split(jax.random.key(0), 2)
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *models)
    run = functools.partial(perfect.sample, plan=plan, num_chains=20)
    together = jax.jit(jax.vmap(lambda key, model: run(key, model)))(keys, stacked)
    alone = [run(key, model) for key, model in zip(keys, models, strict=True)]
    assert alone[0].num_sweeps < alone[1].num_sweeps
    apart = jax.tree.map(lambda *leaves: jnp.stack(leaves), *alone)
    jax.tree.map(np.testing.assert_array_equal, together, apart)


def test_same_key_same_draws_and_another_key_others():
    plan = sweep_plan(GRID3)
    first, again, other = (
        sample(jax.random.key(seed), MODELS["mixed"], plan, num_chains=50).states
        for seed in (3, 3, 4)
    )
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


def test_other_models_are_refused(key):
    message = r"sample: expected a models.Ising, got Potts; .* or run sampling.gibbs"
    with pytest.raises(ValueError, match=message):
        perfect.sample(key, random_model("potts", GRID3), sweep_plan(GRID3), num_chains=1)


def test_clamped_nodes_are_refused(key):
    plan = sweep_plan(GRID3, clamped=[0, 4])
    with pytest.raises(ValueError, match="sample: expected a plan without clamped nodes, got 2 of"):
        perfect.sample(key, MODELS["mixed"], plan, num_chains=1)


@pytest.mark.parametrize("name", ["num_chains", "max_sweeps"])
def test_numbers_below_one_are_refused(name, key):
    options = {"num_chains": 1, name: 0}
    with pytest.raises(ValueError, match=f"sample: expected {name} >= 1, got 0; raise it"):
        perfect.sample(key, MODELS["mixed"], sweep_plan(GRID3), **options)
