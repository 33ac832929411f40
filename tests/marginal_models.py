"""Small models with discrete sites, each with values of its other sites, to be summed by hand."""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro import handlers
from numpyro.contrib.control_flow import scan

from jaxmrf.distributions import DiscreteFactorGraph, Ising
from jaxmrf.graphs import Hypergraph, grid

DATA = np.array([0.3, -1.2, 2.0, 0.4, -0.6], dtype=np.float32)
MEANS = np.array([0.5, -1.0, 2.0], dtype=np.float32)
ROWS = jnp.array([[0.5, 0.2, 0.3], [0.1, 0.8, 0.1], [0.25, 0.25, 0.5]])


class Case(NamedTuple):
    """A model, values of its other sites, and whether NumPyro's enumeration can do it."""

    model: Any
    values: dict
    is_enumerable: bool = True


def means():
    return numpyro.sample("means", dist.Normal(0.0, 2.0).expand([3]).to_event(1))


def rows():
    return numpyro.sample("rows", dist.Dirichlet(jnp.ones(3)).expand([3]).to_event(1))


def mixture():
    weights = numpyro.sample("weights", dist.Dirichlet(jnp.ones(3)))
    centers = means()
    with numpyro.plate("items", 5):
        label = numpyro.sample("label", dist.Categorical(weights))
        numpyro.sample("x", dist.Normal(centers[label], 1.0), obs=DATA)


def mixture_in_two_plates():
    centers = means()
    with numpyro.plate("groups", 2, dim=-1):
        kind = numpyro.sample("kind", dist.Categorical(ROWS[0]))
        with numpyro.plate("items", 3, dim=-2):
            label = numpyro.sample("label", dist.Categorical(ROWS[kind]))
            numpyro.sample("x", dist.Normal(centers[label], 1.0), obs=DATA[:3, None] * MEANS[:2])


def vector_mixture():
    centers = means()
    with numpyro.plate("items", 5):
        label = numpyro.sample("label", dist.Categorical(ROWS[0]))
        location = jnp.stack([centers[label], -centers[label]], axis=-1)
        numpyro.sample("x", dist.Normal(location, 1.0).to_event(1), obs=DATA[:, None] * MEANS[:2])
        noise = dist.MultivariateNormal(location, jnp.array([[1.0, 0.3], [0.3, 2.0]]))
        numpyro.sample("y", noise, obs=DATA[:, None] * MEANS[1:])


def hidden_markov():
    transition, centers = rows(), means()
    state = 0
    for time, value in enumerate(DATA):
        state = numpyro.sample(f"state_{time}", dist.Categorical(transition[state]))
        numpyro.sample(f"x_{time}", dist.Normal(centers[state], 1.0), obs=value)


def scanned_hidden_markov():
    transition, centers = rows(), means()

    def step(state, value):
        state = numpyro.sample("state", dist.Categorical(transition[state]))
        numpyro.sample("x", dist.Normal(centers[state], 1.0), obs=value)
        return state, None

    first = numpyro.sample("first", dist.Categorical(ROWS[0]))
    scan(step, first, DATA)


def factorial_hidden_markov():
    centers = means()
    slow = fast = 0
    for time, value in enumerate(DATA[:4]):
        slow = numpyro.sample(f"slow_{time}", dist.Categorical(ROWS[slow]))
        fast = numpyro.sample(f"fast_{time}", dist.Bernoulli(jnp.array([0.3, 0.6])[fast]))
        numpyro.sample(f"x_{time}", dist.Normal(centers[slow] + fast, 1.0), obs=value)


def grid_of_sites():
    coupling = numpyro.sample("coupling", dist.Normal(0.0, 1.0))
    spins, energy = {}, 0.0
    for place in np.ndindex(3, 3):
        spins[place] = 2 * numpyro.sample(f"bit_{place}", dist.Bernoulli(0.4)) - 1
    for i, j in spins:
        for other in ((i + 1, j), (i, j + 1)):
            if other in spins:
                energy = energy + coupling * spins[i, j] * spins[other]
    numpyro.factor("energy", energy)


def grid_in_plates():
    coupling = numpyro.sample("coupling", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", 3), numpyro.plate("columns", 3):
        bits = numpyro.sample("bits", dist.Bernoulli(0.4))
    spins = 2.0 * bits - 1
    energy = (spins[1:] * spins[:-1]).sum() + jnp.einsum("ij,ij->", spins[:, 1:], spins[:, :-1])
    numpyro.factor("energy", coupling * energy)


def neighbours_by_matrix():
    coupling = numpyro.sample("coupling", dist.Normal(0.0, 1.0))
    bits = numpyro.sample("bits", dist.Bernoulli(0.4).expand([4]).to_event(1))
    ring = np.roll(np.eye(4, dtype=np.float32), 1, axis=0)
    numpyro.sample("x", dist.Normal(ring @ bits * coupling + bits, 1.0).to_event(1), obs=DATA[:4])


def two_parents():
    weight = numpyro.sample("weight", dist.LogNormal(0.0, 1.0))
    rain = numpyro.sample("rain", dist.Bernoulli(0.2))
    sprinkler = numpyro.sample("sprinkler", dist.Bernoulli(jnp.where(rain == 1, 0.01, 0.4)))
    wet = 1 - jnp.exp(-weight * (rain + 2 * sprinkler))
    numpyro.sample("wet", dist.Bernoulli(jnp.clip(wet, 0.01, 0.99)), obs=1)


def regression():
    slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    with numpyro.plate("items", 5):
        is_outlier = numpyro.sample("is_outlier", dist.Bernoulli(logits=slope * DATA))
        scale = jnp.where(is_outlier == 1, 3.0, 1.0)
        numpyro.sample("x", dist.Normal(slope * DATA, scale), obs=DATA[::-1])


def latent_values():
    centers = means()
    with numpyro.plate("items", 2):
        label = numpyro.sample("label", dist.Categorical(ROWS[0]))
        hidden = numpyro.sample("hidden", dist.LogNormal(centers[label], 1.0))
        numpyro.deterministic("double", 2 * hidden)
        numpyro.deterministic("center", centers[label])
        numpyro.sample("x", dist.Normal(hidden, 1.0), obs=DATA[:2])


def observed_discrete():
    table = rows()
    with numpyro.plate("items", 4):
        label = numpyro.sample("label", dist.Categorical(ROWS[1]))
        numpyro.sample("seen", dist.Categorical(table[label]), obs=np.array([0, 2, 1, 1]))
    numpyro.sample("count", dist.Poisson(1.0 + label.sum()), obs=3)


def other_supports():
    rate = numpyro.sample("rate", dist.Beta(2.0, 2.0))
    low = numpyro.sample("low", dist.DiscreteUniform(3, 5))
    count = numpyro.sample("count", dist.Binomial(2, rate))
    numpyro.sample("x", dist.Normal(rate * low * count, 1.0), obs=2.0)


def masked_and_scaled():
    centers = means()
    with numpyro.plate("items", 5), handlers.mask(mask=DATA > 0), handlers.scale(scale=0.5):
        label = numpyro.sample("label", dist.Categorical(ROWS[0]))
        numpyro.sample("x", dist.Normal(centers[label], 1.0), obs=DATA)
    with handlers.scale(scale=2.0):
        numpyro.sample("free", dist.Normal(centers[0], 1.0), obs=0.5)


def impossible_steps():
    centers = means()
    transition = jnp.array([[0.5, 0.5, 0.0], [0.0, 0.5, 0.5], [0.0, 0.0, 1.0]])
    state = 0
    for time, value in enumerate(DATA[:4]):
        state = numpyro.sample(f"state_{time}", dist.Categorical(transition[state]))
        numpyro.sample(f"x_{time}", dist.Normal(centers[state], 1.0), obs=value)


def hidden_field():
    coupling = numpyro.sample("coupling", dist.Normal(0.0, 1.0))
    bits = numpyro.sample("bits", Ising(grid((2, 2)), coupling, 0.2))
    numpyro.sample("x", dist.Normal(2.0 * bits, 1.0).to_event(1), obs=DATA[:4])


def hidden_factor_graphs():
    coupling = numpyro.sample("coupling", dist.Normal(0.0, 1.0))
    structure = Hypergraph([2, 3, 2], [(0, 1), (1, 2)])
    with numpyro.plate("items", 2):
        field = DiscreteFactorGraph(structure, coupling * jnp.arange(12.0) % 5)
        states = numpyro.sample("states", field)
        numpyro.sample("x", dist.Normal(states.sum(-1), 1.0), obs=DATA[:2])


CENTERS, TABLE = {"means": MEANS}, {"rows": ROWS}
CASES = {
    "mixture": Case(mixture, {**CENTERS, "weights": ROWS[0]}),
    "mixture_in_two_plates": Case(mixture_in_two_plates, CENTERS),
    "vector_mixture": Case(vector_mixture, CENTERS),
    "hidden_markov": Case(hidden_markov, CENTERS | TABLE),
    "scanned_hidden_markov": Case(scanned_hidden_markov, CENTERS | TABLE),
    "factorial_hidden_markov": Case(factorial_hidden_markov, CENTERS),
    "grid_of_sites": Case(grid_of_sites, {"coupling": 0.4}),
    "grid_in_plates": Case(grid_in_plates, {"coupling": 0.4}, is_enumerable=False),
    "neighbours_by_matrix": Case(neighbours_by_matrix, {"coupling": 0.4}, is_enumerable=False),
    "two_parents": Case(two_parents, {"weight": 0.7}),
    "regression": Case(regression, {"slope": 0.7}),
    "latent_values": Case(latent_values, {**CENTERS, "hidden": np.array([0.5, 2.0])}),
    "observed_discrete": Case(observed_discrete, TABLE, is_enumerable=False),
    # NumPyro's enumeration takes the values 3..5 for 0..2 and finds minus infinity
    "other_supports": Case(other_supports, {"rate": 0.3}, is_enumerable=False),
    "masked_and_scaled": Case(masked_and_scaled, CENTERS),
    "hidden_field": Case(hidden_field, {"coupling": 0.4}, is_enumerable=False),
    "hidden_factor_graphs": Case(hidden_factor_graphs, {"coupling": 0.4}, is_enumerable=False),
    "impossible_steps": Case(impossible_steps, CENTERS),
}
