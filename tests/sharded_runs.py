"""Runs whose arrays are split over devices, compared with the same runs on one device.

``python sharded_runs.py NAME,...`` prints the comparisons of some of PARTS as one JSON object; with
ADDRESS, NUMBER and INDEX behind, the process is one of several. Nothing here may start JAX on
import: processes join before.
"""

import json
import re
import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from jaxmrf.graphs import Graph, sweep_plan, torus
from jaxmrf.learning import fit_contrastive
from jaxmrf.models import Ising, log_pseudolikelihood
from jaxmrf.sampling import gibbs, packed, sampler_plan
from jaxmrf.sampling.plans import FORMS
from jaxmrf.sharding import device_mesh, gather, place, split

COLLECTIVE = re.compile(r" (all-|collective-|reduce-scatter)[a-z-]*\(")
RING = Graph(6, np.array([[0, 1], [1, 2], [2, 3], [3, 4], [4, 5], [0, 5]]))


def ising(graph):
    return Ising(np.linspace(-1, 1, graph.num_edges), np.linspace(0, 0.5, graph.num_nodes))


def case(form, num_devices):
    """A graph, a model and a plan, of few bits and rounds: they compile sooner."""
    graph = torus((64, 4)) if form == "lattice" else RING
    model = ising(graph)
    if form == "lattice":
        model = Ising(np.full(graph.num_edges, 0.3), np.full(graph.num_nodes, 0.1))
    num_chains = num_devices if form == "lattice" else 32 * num_devices
    options = {"num_chains": num_chains, "num_bits": 4, "num_rounds": 7}
    return graph, model, sampler_plan(graph, model, form=form, **options)


def same(one, many):
    """Whether all arrays are equal bit for bit, wherever they are."""
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(gather(many)), strict=True)
    return all(np.asarray(a).tobytes() == b.tobytes() for a, b in pairs)


def close(one, many):
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(gather(many)), strict=True)
    return all(np.allclose(a, b, rtol=1e-5, atol=1e-6) for a, b in pairs)


def draws(form, mesh):
    """Chains of a form: start, sweeps, and moments."""
    graph, model, plan = case(form, mesh.size)
    layout = packed.sharding(plan, mesh)
    run = jax.jit(partial(packed.run, num_sweeps=2))
    start = packed.init(jax.random.key(0), model, plan)
    one = run(jax.random.key(1), start, model, plan)
    fields = jax.jit(packed.init, out_shardings=layout)(jax.random.key(0), model, plan)
    many_run = run.lower(jax.random.key(1), fields, model, plan).compile()
    many = many_run(jax.random.key(1), fields, model, plan)
    moments = jax.jit(packed.mean_statistics)
    many_moments = moments.lower(many, model, graph, plan).compile()
    return {
        "start": same(start, fields),
        "draws": same(one, many),
        "moved": not same(start, many),
        "placed": many.sharding.is_equivalent_to(layout, many.ndim),
        "alone": not COLLECTIVE.search(many_run.as_text()),
        "moments": same(moments(one, model, graph, plan), many_moments(many, model, graph, plan)),
        "summed": bool(COLLECTIVE.search(many_moments.as_text())),
    }


def learner(mesh):
    """Parameters after steps of persistent contrastive divergence with split particles."""
    graph, model, plan = case("tables", mesh.size)
    data = packed.unpack(packed.init(jax.random.key(0), model, plan), plan).T
    options = {"num_chains": plan.num_chains, "num_steps": 5, "plan": plan}
    one, many = (
        fit_contrastive(jax.random.key(1), np.asarray(data), graph, mesh=devices, **options)
        for devices in (None, mesh)
    )
    zeros = jax.tree.map(jnp.zeros_like, model)
    return {
        "parameters": same(one.parameters, many.parameters),
        "mismatch": same(one.moment_mismatch, many.moment_mismatch),
        "moved": not same(zeros, many.parameters),
    }


def replicates(mesh):
    """Runs of many keys and models at once, one or more on each device."""
    keys = jax.random.split(jax.random.key(0), 2 * mesh.size)
    scales = np.linspace(0, 1, 2 * mesh.size)
    plan = sweep_plan(RING)

    @jax.jit
    @jax.vmap
    def run(key, scale):
        key_start, key_run = jax.random.split(key)
        model = jax.tree.map(lambda leaf: scale * leaf, ising(RING))
        states = gibbs.init(key_start, model, plan, num_chains=5)
        return gibbs.run(key_run, states, model, plan, num_sweeps=2)

    return {"draws": same(run(keys, scales), run(*place((keys, scales), split(mesh, 0))))}


def rows(mesh):
    """The mean over rows of data of the log pseudo-likelihood, and its gradient."""
    data = np.random.default_rng(0).integers(0, 2, (4 * mesh.size, RING.num_nodes), np.int8)

    @jax.jit
    @jax.value_and_grad
    def score(model, data):
        return log_pseudolikelihood(model, RING, data).mean()

    model = ising(RING)
    spread = score(place(model, split(mesh, None)), place(data, split(mesh, 0)))
    return {"gradient": close(score(model, data), spread)}


PARTS = {form: partial(draws, form) for form in FORMS}
PARTS |= {"learner": learner, "replicates": replicates, "rows": rows}

if __name__ == "__main__":
    names, *process = sys.argv[1:]
    if process:
        address, number, index = process
        jax.distributed.initialize(address, int(number), int(index))
    mesh = device_mesh()
    found = {name: PARTS[name](mesh) for name in names.split(",")}
    print(json.dumps({"num_devices": mesh.size} | found), flush=True)
