"""Gibbs sampling of Ising models with a coupling per edge and a field per node, beside peers.

All samplers run in one process on one core, in turn within every round; seconds are CPU time of
the process. thrml runs its blocks without observers; dwave-samplers runs sequential Gibbs
updates at one temperature, less the cost of a call with a single sweep. Quality: the largest and
the root-mean-square error, in standard errors, of 16 means and 120 pair products of independent
chains on a 16-node sibling of the workload, against enumeration.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import networkx as nx
import numpy as np

from benchmarks import rows
from jaxmrf.exact import enumeration
from jaxmrf.graphs import Graph, color, sweep_plan, torus
from jaxmrf.models import Ising
from jaxmrf.sampling import gibbs

NUM_ROUNDS = 5
SIBLING_SWEEPS = 60


class Workload(NamedTuple):
    """A graph, its number of chains, and a graph of 16 nodes like it."""

    graph: Graph
    num_chains: int
    sibling: Graph


def run(size: str, out: Path) -> list[dict[str, Any]]:
    """Rows of all samplers, measured in a process of its own so that it can be held to a core."""
    command = [sys.executable, "-m", "benchmarks.case_sampling", size]
    child = subprocess.run(command, cwd=rows.ROOT, stdout=subprocess.PIPE, text=True, check=True)
    return [json.loads(line) for line in child.stdout.splitlines() if line.startswith("{")]


def workloads(size: str) -> dict[str, Workload]:
    is_full = size == "full"
    num_nodes = 10_000 if is_full else 1000
    sibling = _random_graph(16, 40)
    chosen = {
        "torus": Workload(torus((30, 30)), 1000 if is_full else 200, torus((4, 4))),
        "random": Workload(_random_graph(num_nodes, 3 * num_nodes), 64, sibling),
    }
    if is_full:
        chosen["senate-sized"] = Workload(_random_graph(99, 279), 500, sibling)
    return chosen


def measure(size: str) -> Iterator[dict[str, Any]]:
    num_draws = 2**17 if size == "full" else 2**13
    quality = {}
    for name, workload in workloads(size).items():
        updates = workload.graph.num_nodes * workload.num_chains
        num_sweeps = int(np.clip((2e7 if size == "full" else 2e6) // updates, 5, 200))
        model = random_ising(workload.graph)
        samplers, compile_s, seconds = {}, {}, {}
        for method, build in METHODS.items():
            start = time.process_time()
            samplers[method] = build(workload.graph, model, workload.num_chains, num_sweeps)
            samplers[method](0)
            compile_s[method] = time.process_time() - start
            seconds[method] = []
        for number in range(NUM_ROUNDS):
            for method, sampler in samplers.items():
                start = time.process_time()
                free = sampler(1 + number)[1]
                seconds[method].append(time.process_time() - start - free)
        for method, build in METHODS.items():
            if (method, workload.sibling) not in quality:
                sibling = random_ising(workload.sibling)
                states, _ = build(workload.sibling, sibling, num_draws, SIBLING_SWEEPS)(0)
                quality[method, workload.sibling] = z_scores(states, sibling, workload.sibling)
            z, median = quality[method, workload.sibling], np.median(seconds[method])
            yield rows.row(
                "sampling",
                method,
                size,
                workload=name,
                num_nodes=workload.graph.num_nodes,
                num_chains=workload.num_chains,
                num_sweeps=num_sweeps,
                compile_s=None if method == "dwave-samplers" else compile_s[method] - median,
                run_s=seconds[method],
                quality={
                    "flips_per_core_ns": updates * num_sweeps / median / 1e9,
                    "max_z": np.abs(z).max(),
                    "rms_z": np.sqrt((z**2).mean()),
                },
            )


def random_ising(graph: Graph) -> Ising:
    rng = np.random.default_rng(0)
    couplings, fields = rng.normal(0, 0.5, graph.num_edges), rng.normal(0, 0.3, graph.num_nodes)
    return Ising(jnp.asarray(couplings, jnp.float32), jnp.asarray(fields, jnp.float32))


# Each builder returns a function of a seed that runs num_sweeps sweeps from uniform states and
# returns the states "nodes chains" and the seconds that are not to be counted.
Sampler = Callable[[int], tuple[Any, float]]


def build_jaxmrf(graph: Graph, model: Ising, num_chains: int, num_sweeps: int) -> Sampler:
    plan = sweep_plan(graph)

    @jax.jit
    def sample(key, model):
        key_start, key_run = jax.random.split(key)
        states = gibbs.init(key_start, model, plan, num_chains=num_chains)
        return gibbs.run(key_run, states, model, plan, num_sweeps=num_sweeps)

    return lambda seed: (jax.block_until_ready(sample(jax.random.key(seed), model)), 0.0)


def build_thrml(graph: Graph, model: Ising, num_chains: int, num_sweeps: int) -> Sampler:
    from thrml.block_management import Block
    from thrml.block_sampling import _run_blocks
    from thrml.models.ising import IsingEBM, IsingSamplingProgram
    from thrml.pgm import SpinNode

    nodes = [SpinNode() for _ in range(graph.num_nodes)]
    edges = [(nodes[u], nodes[v]) for u, v in graph.edges.tolist()]
    energy = IsingEBM(nodes, edges, model.fields, model.couplings, jnp.array(1.0))
    colors = color(graph)
    members = [np.flatnonzero(colors == number) for number in range(colors.max() + 1)]
    blocks = [Block([nodes[node] for node in part]) for part in members]
    program = IsingSamplingProgram(energy, blocks, [])

    @jax.jit
    def sample(key):
        def one(key):
            key_start, key_run = jax.random.split(key)
            keys = jax.random.split(key_start, len(members))
            start = [
                jax.random.bernoulli(key, 0.5, (part.size,))
                for key, part in zip(keys, members, strict=True)
            ]
            return _run_blocks(key_run, program, start, [], num_sweeps, [None] * len(blocks))[0]

        drawn = jax.vmap(one)(jax.random.split(key, num_chains))
        states = jnp.zeros((graph.num_nodes, num_chains), jnp.int8)
        for part, values in zip(members, drawn, strict=True):
            states = states.at[part].set(values.T.astype(jnp.int8))
        return states

    return lambda seed: (jax.block_until_ready(sample(jax.random.key(seed))), 0.0)


def build_dwave(graph: Graph, model: Ising, num_chains: int, num_sweeps: int) -> Sampler:
    from dwave.samplers.sa.simulated_annealing import simulated_annealing

    fields = (-np.asarray(model.fields, float)).tolist()
    couplings = -np.asarray(model.couplings, float)
    first, second = (np.ascontiguousarray(ends) for ends in graph.edges.T)

    def call(states, sweeps, seed):
        start = time.process_time()
        simulated_annealing(
            *(num_chains, fields, first, second, couplings, sweeps, np.array([1.0]), seed),
            *(states, False, "Gibbs", None),
        )
        return time.process_time() - start

    def sample(seed):
        start = time.process_time()
        rng = np.random.default_rng(seed)
        states = rng.choice(np.array([-1, 1], np.int8), (num_chains, graph.num_nodes))
        once = call(states, 1, 2 * seed + 1)
        free = time.process_time() - start
        call(states, num_sweeps + 1, 2 * seed + 2)
        return (states.T > 0), free + once

    return sample


METHODS = {"jaxmrf": build_jaxmrf} | {
    method: build
    for method, package, build in (
        ("thrml", "thrml", build_thrml),
        ("dwave-samplers", "dwave", build_dwave),
    )
    if find_spec(package)
}


def z_scores(states: Any, model: Ising, graph: Graph) -> np.ndarray:
    """Errors of all means and pair products in standard errors of independent chains."""
    table = 2.0 * enumeration.configurations(graph.num_nodes, 2) - 1
    first, second = graph.edges.T
    log_weights = table @ np.asarray(model.fields, float)
    log_weights += (table[:, first] * table[:, second]) @ np.asarray(model.couplings, float)
    weights = np.exp(log_weights - log_weights.max())
    weights /= weights.sum()
    spins = 2 * np.asarray(states, np.float32) - 1
    upper = np.triu_indices(graph.num_nodes, 1)
    exact = np.concatenate([weights @ table, ((table * weights[:, None]).T @ table)[upper]])
    num_draws = spins.shape[1]
    found = np.concatenate([spins.mean(axis=1), ((spins @ spins.T) / num_draws)[upper]])
    return (found - exact) / np.sqrt((1 - exact**2) / num_draws)


def _random_graph(num_nodes: int, num_edges: int) -> Graph:
    return Graph.from_networkx(nx.gnm_random_graph(num_nodes, num_edges, seed=1))


if __name__ == "__main__":
    if hasattr(os, "sched_setaffinity"):  # before the first array: jax's threads inherit the core
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    for measured in measure(sys.argv[1]):
        print(json.dumps(measured, default=float), flush=True)
