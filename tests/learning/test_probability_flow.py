import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest

from jaxmrf.graphs import Graph, grid
from jaxmrf.learning import (
    fit_probability_flow,
    identity,
    probability_flow,
    pseudolikelihood,
    tied_couplings,
)
from jaxmrf.learning.moments import largest_entry
from jaxmrf.learning.neighborhoods import _objective, neighborhood_tables
from jaxmrf.models import Ising, Potts

TRIANGLE = Graph(4, [(0, 1), (1, 2), (0, 2), (2, 3)])


def population(num_states, agreement, weights):
    """Observations in exact proportion to ``agreement ** agreements * prod weights[state]``."""
    states = oracles.configurations(TRIANGLE.num_nodes, num_states)
    counts = [
        agreement ** sum(x[u] == x[v] for u, v in TRIANGLE.edges)
        * int(np.prod([weights[state] for state in x]))
        for x in states
    ]
    return np.repeat(np.array(states), counts, axis=0)


@pytest.mark.parametrize("kind", ["ising", "potts"])
def test_gradients_of_the_exact_distribution_vanish_at_the_truth_alone(kind):
    if kind == "ising":
        data = population(2, 2, [1, 3])
        truth = Ising(jnp.full(4, np.log(2) / 2), jnp.full(4, np.log(3) / 2))
    else:
        data = population(3, 2, [1, 3, 2])
        truth = Potts(jnp.full(4, np.log(2)), jnp.tile(jnp.log(jnp.array([1.0, 3, 2])), (4, 1)))
    tables = neighborhood_tables(data, TRIANGLE, truth.num_states)

    @jax.jit
    def gradients(model):
        losses = (probability_flow._loss, pseudolikelihood._loss)
        objectives = [_objective(loss, identity) for loss in losses]
        return [jax.grad(objective)(model, tables, len(data), 0.0) for objective in objectives]

    halved = type(truth)(truth.couplings / 2, truth.fields)
    for here, elsewhere in zip(gradients(truth), gradients(halved), strict=True):
        assert largest_entry(here) < 2e-6
        assert largest_entry(elsewhere) > 0.02


def test_ties_and_ridge_balance_the_interaction_screening_gradient(rng):
    graph = grid((2, 3))
    data = rng.integers(0, 2, (60, 6))
    labels = np.arange(graph.num_edges) % 2
    fit = fit_probability_flow(
        data, graph, parameters=jnp.zeros(2), build=tied_couplings(labels, 6), l2=0.3
    )
    couplings, gradient = np.asarray(fit.parameters)[labels], np.zeros(2)
    for row in 2.0 * data - 1:
        local = np.zeros(6)
        for (u, v), coupling in zip(graph.edges, couplings, strict=True):
            local[u] += coupling * row[v]
            local[v] += coupling * row[u]
        screened = np.exp(-row * local)
        for (u, v), label in zip(graph.edges, labels, strict=True):
            gradient[label] -= row[u] * row[v] * (screened[u] + screened[v]) / len(data)
    np.testing.assert_allclose(gradient, -0.3 * fit.parameters, atol=3e-5)
    assert np.abs(gradient).max() > 0.01


def test_couplings_and_fields_are_recovered(planted, rms_error):
    graph, truth, data = planted("grid")
    fit = fit_probability_flow(data, graph)
    # 2000 observations: a standard error of 1 / sqrt(2000 * (1 - m^2)) is below 0.035 for m < 0.75,
    # and the flow is a little less efficient than maximum likelihood
    assert fit.is_converged
    assert max(rms_error(fit.model, truth, name) for name in ("couplings", "fields")) < 0.045


def test_negative_penalty_is_refused():
    message = r"fit_probability_flow: expected l2 to be 0 or more, got -1.0; raise it"
    with pytest.raises(ValueError, match=message):
        fit_probability_flow(np.zeros((2, 4)), TRIANGLE, l2=-1.0)


def test_data_of_another_width_are_refused():
    with pytest.raises(ValueError, match=r"fit_probability_flow: expected data of shape"):
        fit_probability_flow(np.zeros((2, 5)), TRIANGLE)
