import jax.numpy as jnp
import numpy as np
import oracles
import pytest

from jaxmrf.exact import enumeration, transfer
from jaxmrf.graphs import Graph, frontier_plan, grid
from jaxmrf.learning import fit_likelihood, no_fields, tied_couplings
from jaxmrf.models import Ising, Pairwise, Potts, couplings_from_agreements

GRAPH = grid((2, 3))
AGREE = np.eye(2, dtype=bool)


def marginals(potential, graph, num_states):
    """Exact node and edge marginals."""
    probabilities = oracles.distribution(potential, graph.num_nodes, num_states)
    edges = graph.edges.tolist()
    return (
        oracles.node_marginals(probabilities, graph.num_nodes, num_states),
        oracles.pair_marginals(probabilities, edges, graph.num_nodes, num_states),
    )


def frequencies(data, graph, num_states):
    """The same of data."""
    one_hot = np.eye(num_states)[data]
    first, second = graph.edges.T
    pairs = np.einsum("nek,nel->ekl", one_hot[:, first], one_hot[:, second]) / len(data)
    return one_hot.mean(axis=0), pairs


@pytest.fixture(scope="module")
def coin_flips():
    return np.random.default_rng(0).integers(0, 2, (60, 6))


def test_moments_of_data_and_estimate_match(coin_flips):
    fit = fit_likelihood(coin_flips, GRAPH)
    potential = oracles.ising_potential(GRAPH.edges, fit.model.couplings, fit.model.fields)
    nodes, edges = marginals(potential, GRAPH, 2)
    wanted_nodes, wanted_edges = frequencies(coin_flips, GRAPH, 2)
    np.testing.assert_allclose(nodes, wanted_nodes, atol=1e-4)
    np.testing.assert_allclose(edges[:, AGREE].sum(1), wanted_edges[:, AGREE].sum(1), atol=1e-4)
    assert fit.is_converged and fit.moment_mismatch <= 1e-5
    assert fit.parameters is fit.last_parameters and fit.history is None


def test_spins_and_states_give_one_estimate(coin_flips):
    fit = fit_likelihood(2 * coin_flips - 1, GRAPH)
    expected = fit_likelihood(coin_flips, GRAPH)
    np.testing.assert_array_equal(fit.parameters.couplings, expected.parameters.couplings)


def test_iterations_that_do_not_suffice_are_reported(coin_flips):
    fit = fit_likelihood(coin_flips, GRAPH, max_iters=1)
    assert not fit.is_converged and fit.num_iters == 1 and fit.moment_mismatch > 1e-5


def test_one_edge_without_fields_has_its_closed_form():
    data = np.array([[0, 0]] * 30 + [[1, 0]] * 10)
    graph = Graph(2, [(0, 1)])
    fit = fit_likelihood(data, graph, parameters=jnp.zeros(1), build=no_fields(graph))
    np.testing.assert_allclose(fit.parameters, np.arctanh([0.5]), atol=1e-4)


@pytest.mark.parametrize("kind", ["potts", "tables"])
def test_moments_match_for_models_with_more_states(rng, kind):
    graph = Graph(3, [(0, 1), (2, 1)])
    data = np.concatenate([rng.integers(0, 3, (50, 3)), [[0, 0, 0], [1, 1, 1], [2, 2, 2]]])
    wanted_nodes, wanted_edges = frequencies(data, graph, 3)
    if kind == "potts":
        start = Potts(jnp.zeros(2), jnp.zeros((3, 3)))
        model = fit_likelihood(data, graph, parameters=start).model
        potential = oracles.potts_potential(graph.edges, model.couplings, model.fields)
    else:
        start = Pairwise(jnp.zeros((2, 3, 3)), jnp.zeros((3, 3)))
        model = fit_likelihood(data, graph, parameters=start).model
        potential = oracles.table_potential(graph.edges, model.edge_tables, model.node_tables)
    nodes, edges = marginals(potential, graph, 3)
    np.testing.assert_allclose(nodes, wanted_nodes, atol=1e-4)
    if kind == "potts":
        edges, wanted_edges = (np.trace(table, axis1=1, axis2=2) for table in (edges, wanted_edges))
    np.testing.assert_allclose(edges, wanted_edges, atol=1e-4)


@pytest.mark.slow
def test_tied_estimate_beats_the_untied_one(rms_error, key):
    labels = np.array([0, 1, 0, 1, 0, 1, 0])
    build = tied_couplings(labels, 6)
    truth = build(jnp.array([0.6, -0.2]))
    data = np.asarray(enumeration.sample(key, truth, GRAPH, num_samples=300))
    tied = fit_likelihood(data, GRAPH, parameters=jnp.zeros(2), build=build)
    untied = fit_likelihood(data, GRAPH, parameters=jnp.zeros(7), build=no_fields(GRAPH))
    assert rms_error(tied.model, truth) < 0.7 * rms_error(untied.model, truth)
    # only the sums over the groups match
    potential = oracles.ising_potential(GRAPH.edges, tied.model.couplings, np.zeros(6))
    gap = marginals(potential, GRAPH, 2)[1] - frequencies(data, GRAPH, 2)[1]
    agreements = gap[:, AGREE].sum(axis=1)
    for group in (0, 1):
        assert abs(agreements[labels == group].sum()) < 1e-4
    assert np.abs(agreements).max() > 1e-3


def test_build_need_not_be_linear(coin_flips):
    def build(agreements):
        return Ising(couplings_from_agreements(agreements), jnp.zeros(6))

    fit = fit_likelihood(coin_flips, GRAPH, parameters=jnp.full(7, 0.5), build=build)
    expected = fit_likelihood(coin_flips, GRAPH, parameters=jnp.zeros(7), build=no_fields(GRAPH))
    np.testing.assert_allclose(fit.model.couplings, expected.model.couplings, atol=1e-3)


@pytest.mark.slow
def test_large_grid_is_fitted_as_well_as_its_data_allow(key):
    graph = grid((5, 8))
    build = tied_couplings(np.arange(graph.num_edges) % 3, 40)
    truth = build(jnp.array([0.5, -0.3, 0.1]))
    data = np.asarray(transfer.sample(key, truth, graph, num_samples=500))
    fit = fit_likelihood(data, graph, parameters=jnp.zeros(3), build=build)
    assert fit.is_converged
    # each value is estimated from more than 20 edges times 500 observations
    np.testing.assert_allclose(fit.parameters, [0.5, -0.3, 0.1], atol=0.05)


def test_any_plan_gives_one_estimate(coin_flips):
    options = {"parameters": jnp.zeros(7), "build": no_fields(GRAPH)}
    plan = frontier_plan(GRAPH, order=[0, 5, 1, 4, 2, 3])
    assert plan.width > frontier_plan(GRAPH).width
    fit = fit_likelihood(coin_flips, GRAPH, plan=plan, **options)
    expected = fit_likelihood(coin_flips, GRAPH, **options)
    np.testing.assert_allclose(fit.parameters, expected.parameters, atol=1e-4)


def test_graph_whose_frontier_is_too_large_is_refused():
    message = r"fit_likelihood: expected a graph with a frontier of at most 20 nodes of 2 states, "
    with pytest.raises(
        ValueError, match=message + r"got a larger one \(625 nodes, 1200 edges\); u"
    ):
        fit_likelihood(np.zeros((2, 625)), grid((25, 25)))
    start = Potts(jnp.zeros(544), jnp.zeros((289, 4)))
    with pytest.raises(ValueError, match="at most 10 nodes of 4 states"):
        fit_likelihood(np.zeros((2, 289)), grid((17, 17)), parameters=start)
