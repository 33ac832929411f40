"""Every form of the sweep against enumeration and a transfer matrix, in millions of draws."""

from functools import partial

import jax
import jax.numpy as jnp
import networkx as nx
import numpy as np
import oracles
import pytest
from examples import potential_of, random_model

from jaxmrf.graphs import Graph, torus
from jaxmrf.models import Ising
from jaxmrf.sampling import packed, sampler_plan

TORUS = torus((4, 4))
RANDOM = Graph.from_networkx(nx.gnm_random_graph(16, 40, seed=3))
PAIRS = Graph.from_networkx(nx.complete_graph(16))
NUM_CHAINS, NUM_DRAWS = 2**16, 40


def exact_moments(model, graph):
    """Mean spins and mean products of all pairs."""
    weights = oracles.distribution(potential_of(model, graph), 16, 2)
    spins = 2.0 * np.array(oracles.configurations(16, 2)) - 1
    weights = weights / weights.sum()
    first, second = PAIRS.edges.T
    return np.concatenate([weights @ spins, weights @ (spins[:, first] * spins[:, second])])


def z_scores(model, graph, plan):
    """Errors of 16 means and 120 products in standard errors of independent draws."""

    @partial(jax.jit, compiler_options=plan.compiler_options)
    def draw(key):
        key_init, key_warmup, key_draws = jax.random.split(key, 3)
        fields = packed.init(key_init, model, plan)
        fields = packed.run(key_warmup, fields, model, plan, num_sweeps=60)
        return packed.collect(
            *(key_draws, fields, model, plan),
            num_draws=NUM_DRAWS,
            num_sweeps=20,
            mean_of=lambda fields: packed.mean_statistics(fields, model, PAIRS, plan),
        ).mean

    mean = draw(jax.random.key(100))
    found = np.concatenate([mean.fields, mean.couplings]).astype(float)
    exact = exact_moments(model, graph)
    return (found - exact) / np.sqrt((1 - exact**2) / (NUM_CHAINS * NUM_DRAWS))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("form", "graph", "num_bits"),
    [
        ("tables", TORUS, 12),
        ("tables", TORUS, 32),
        ("sums", TORUS, 12),
        ("sums", RANDOM, 12),
        ("sums", RANDOM, 32),
        ("plain", RANDOM, 12),
    ],
)
def test_moments_are_within_errors_of_enumeration(form, graph, num_bits):
    """2.6 million draws, 20 sweeps apart."""
    model = random_model("ising", graph, seed=1, scale=0.5)
    plan = sampler_plan(graph, model, num_chains=NUM_CHAINS, form=form, num_bits=num_bits)
    z = z_scores(model, graph, plan)
    assert np.abs(z).max() < 4.5
    assert 0.7 < np.sqrt((z**2).mean()) < 1.3


@pytest.mark.slow
def test_wrong_sign_of_one_coupling_is_seen():
    model = random_model("ising", TORUS, seed=1, scale=0.5)
    wrong = Ising(model.couplings.at[5].multiply(-1), model.fields)
    plan = sampler_plan(TORUS, wrong, num_chains=NUM_CHAINS, form="tables")
    found = z_scores(wrong, TORUS, plan)
    assert np.abs(found).max() < 4.5
    shift = exact_moments(wrong, TORUS) - exact_moments(model, TORUS)
    assert np.abs(shift).max() * (NUM_CHAINS * NUM_DRAWS) ** 0.5 > 100


def transfer_correlations(num_rows, num_columns, coupling, offsets):
    """Mean products of two spins of a torus at the given offsets, from a row's transfer matrix."""
    spins = 2.0 * np.array(oracles.configurations(num_columns, 2)) - 1
    along = coupling * (spins * np.roll(spins, -1, axis=1)).sum(axis=1)
    matrix = np.exp(coupling * spins @ spins.T + (along[:, None] + along) / 2)
    values, vectors = np.linalg.eigh(matrix)
    values /= values.max()
    first = vectors.T @ (spins[:, :1] * vectors)
    found = []
    for down, right in offsets:
        second = vectors.T @ (spins[:, right : right + 1] * vectors)
        pair = np.einsum("i,ij,j,ji->", values ** (num_rows - down), first, values**down, second)
        found.append(pair / (values**num_rows).sum())
    return np.array(found)


@pytest.mark.slow
@pytest.mark.parametrize("num_bits", [8, 12])
def test_critical_lattice_has_the_correlations_of_the_transfer_matrix(num_bits):
    """4,096 independent chains of a 64 x 8 torus."""
    shape, coupling, num_chains = (64, 8), float(np.log1p(2**0.5) / 2), 4096
    offsets = [(0, 1), (1, 0), (1, 1), (0, 2), (0, 4), (8, 0)]
    graph = torus(shape)
    model = Ising(jnp.full(graph.num_edges, coupling), jnp.zeros(graph.num_nodes))
    plan = sampler_plan(graph, model, num_chains=num_chains, form="lattice", num_bits=num_bits)

    @partial(jax.jit, compiler_options=plan.compiler_options)
    def draw(key):
        key_init, key_run = jax.random.split(key)
        fields = packed.init(key_init, model, plan)
        return packed.unpack(packed.run(key_run, fields, model, plan, num_sweeps=2000), plan)

    spins = 2.0 * np.asarray(draw(jax.random.key(0))).reshape(*shape, num_chains) - 1
    exact = transfer_correlations(*shape, coupling, offsets)
    products = np.array([(spins * np.roll(spins, at, (0, 1))).mean(axis=(0, 1)) for at in offsets])
    z = (products.mean(axis=1) - exact) / (products.std(axis=1) / num_chains**0.5)
    assert np.abs(z).max() < 4.5
