import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from examples import SMALL_UNEVEN, UNEVEN, potential_of, random_model

from jaxmrf.graphs import torus
from jaxmrf.models import Ising
from jaxmrf.sampling import packed, pairwise_annealing, sampler_plan
from jaxmrf.sampling.annealing import summarize

ISING = random_model("ising", UNEVEN)
PLAN = sampler_plan(UNEVEN, ISING, num_chains=64_000, form="sums")
estimate = jax.jit(pairwise_annealing.estimate, static_argnames=("graph", "num_temperatures"))


def exact(model, graph):
    return oracles.log_z(potential_of(model, graph), graph.num_nodes, model.num_states)


@pytest.mark.parametrize("kind", ["ising", "potts"])
def test_estimate_and_its_error_hold_over_replicates(kind, key):
    """64 estimates of 1,000 chains are spread as they say, and all of them together hit Z."""
    graph = UNEVEN if kind == "ising" else SMALL_UNEVEN
    model, plan = random_model(kind, graph), PLAN
    if kind == "potts":
        plan = sampler_plan(graph, model, num_chains=64_000, form="plain")
    found = estimate(key, model, graph, plan, num_temperatures=6)
    log_z = exact(model, graph)
    assert abs(found.log_z - log_z) < 4.5 * found.standard_error < 0.05
    assert 0.1 * 64_000 < found.effective_size < 64_000

    groups = found.log_weights.reshape(64, 1000)
    parts = jax.vmap(lambda one: summarize(one, found.states[:, :1000]))(groups)
    scores = (parts.log_z - log_z) / parts.standard_error
    assert 0.7 < np.sqrt(np.mean(np.square(scores))) < 1.3
    # the weighted last states have the distribution of the model
    weights = np.exp(found.log_weights - found.log_z)
    means = (np.asarray(found.states) * weights).mean(axis=1)
    probabilities = oracles.distribution(
        potential_of(model, graph), graph.num_nodes, model.num_states
    )
    marginals = oracles.node_marginals(probabilities, graph.num_nodes, model.num_states)
    np.testing.assert_allclose(means, marginals @ np.arange(model.num_states), atol=0.025)


def test_sweeps_at_another_temperature_are_noticed(key, monkeypatch):
    run = packed.run

    def too_warm(key, fields, model, plan, **options):
        return run(key, fields, jax.tree.map(lambda leaf: leaf / 2, model), plan, **options)

    monkeypatch.setattr(packed, "run", too_warm)
    found = pairwise_annealing.estimate(key, ISING, UNEVEN, PLAN, num_temperatures=6)
    assert abs(found.log_z - exact(ISING, UNEVEN)) > 8 * found.standard_error


def test_uniform_model_has_no_error_and_a_given_ladder_is_taken(key):
    found = estimate(key, Ising(jnp.zeros(9), jnp.zeros(9)), UNEVEN, PLAN, num_temperatures=6)
    assert abs(found.log_z - 9 * np.log(2)) < 1e-5 and found.standard_error == 0
    assert abs(found.effective_size - 64_000) < 1
    found = estimate(key, ISING, UNEVEN, PLAN, num_temperatures=6)
    ladder = np.linspace(0, 1, 7)
    same = pairwise_annealing.estimate(key, ISING, UNEVEN, PLAN, inverse_temperatures=ladder)
    np.testing.assert_allclose(found.log_weights, same.log_weights, atol=1e-5)


def test_estimate_on_a_lattice_is_that_of_the_transfer_matrix(key):
    graph, coupling, field = torus((64, 4)), 0.2, 0.1
    model = Ising(jnp.full(graph.num_edges, coupling), jnp.full(graph.num_nodes, field))
    spins = 2 * np.array(oracles.configurations(4, 2)) - 1
    within = coupling * (spins * np.roll(spins, 1, axis=1)).sum(axis=1) + field * spins.sum(axis=1)
    matrix = np.exp(coupling * spins @ spins.T + (within[:, None] + within) / 2)
    log_z = np.log((np.linalg.eigvalsh(matrix) ** 64).sum())
    plan = sampler_plan(graph, model, num_chains=800, form="lattice")
    found = pairwise_annealing.estimate(key, model, graph, plan, num_temperatures=30, num_sweeps=2)
    assert abs(found.log_z - log_z) < 4.5 * found.standard_error < 0.5


def test_bad_arguments_are_refused(key):
    def refused(plan=PLAN, **options):
        return pairwise_annealing.estimate(key, ISING, UNEVEN, plan, **options)

    with pytest.raises(ValueError, match="expected num_temperatures of at least 1, got 0"):
        refused(num_temperatures=0)
    with pytest.raises(ValueError, match="expected num_sweeps of at least 1, got 0"):
        refused(num_sweeps=0)
    for ladder in ([0.1, 1.0], [0.0, 0.5], [0.0, 0.7, 0.5, 1.0], [1.0]):
        with pytest.raises(ValueError, match="expected inverse_temperatures that rise from 0 to 1"):
            refused(inverse_temperatures=np.array(ladder))
    clamped = sampler_plan(UNEVEN, ISING, num_chains=8, clamped=[1, 2])
    with pytest.raises(ValueError, match="expected no clamped nodes, got 2"):
        refused(clamped)
