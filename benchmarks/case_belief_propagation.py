"""Loopy belief propagation in single precision beside PGMax: grids, two layers, a random graph.

All methods run in one process, in turn within every round: a fixed number of undamped flooding
iterations, and a single one, so that a time per iteration is free of what is done once. PGMax has
no test of convergence and no value of log Z; ours compute the change of the messages in every
iteration. Quality: milliseconds an iteration of sum- and max-product, how many times faster than
PGMax, the largest difference of a node's belief from PGMax's after the same iterations, and
iterations and seconds to the default tolerance.
"""

import sys
import time
import types
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.lib
import jax.numpy as jnp
import numpy as np
from jax.extend import backend

from benchmarks import rows
from jaxmrf.graphs import Graph, complete_bipartite, grid
from jaxmrf.models import FactorGraph, Ising, PairwiseModel, Potts
from jaxmrf.variational import (
    belief_propagation,
    bipartite_belief_propagation,
    grid_belief_propagation,
)

NUM_ROUNDS = 5


class Workload(NamedTuple):
    """A model, its graph, iterations of one run, and the method that knows its layout."""

    model: PairwiseModel
    graph: Graph
    num_iters: int
    layout: Callable | None


def run(size: str, out: Path) -> list[dict[str, Any]]:
    measured = []
    for name, workload in workloads(size).items():
        measured += measure(size, name, workload)
    return measured


def workloads(size: str) -> dict[str, Workload]:
    is_full = size == "full"
    shape = (100, 100) if is_full else (10, 10)
    layers = (784, 500) if is_full else (20, 15)
    graph, machine = grid(shape), complete_bipartite(*layers)
    on_grid = partial(grid_belief_propagation.solve, shape=shape)
    between = partial(bipartite_belief_propagation.solve, num_first=layers[0])
    loose = random_graph(10_000 if is_full else 200)
    many, few = (100, 20) if is_full else (300, 300)
    weak = 0.3 / np.sqrt(layers[0])
    return {
        "grid, 2 states": Workload(ising(graph, 0.5), graph, many, on_grid),
        "grid, 5 states": Workload(potts(graph, 5), graph, many, on_grid),
        "two layers": Workload(ising(machine, weak), machine, few, between),
        "random graph": Workload(ising(loose, 0.5), loose, many, None),
    }


def ising(graph: Graph, scale: float) -> Ising:
    rng = np.random.default_rng(0)
    couplings, fields = rng.normal(0, scale, graph.num_edges), rng.normal(0, 0.5, graph.num_nodes)
    return Ising(jnp.asarray(couplings, jnp.float32), jnp.asarray(fields, jnp.float32))


def potts(graph: Graph, num_states: int) -> Potts:
    rng = np.random.default_rng(0)
    fields = rng.normal(0, 0.5, (graph.num_nodes, num_states))
    couplings = rng.normal(0, 1, graph.num_edges)
    return Potts(jnp.asarray(couplings, jnp.float32), jnp.asarray(fields, jnp.float32))


def random_graph(num_nodes: int) -> Graph:
    """A graph of mean degree 4."""
    pairs = np.sort(np.random.default_rng(1).integers(0, num_nodes, (2 * num_nodes, 2)), axis=1)
    return Graph(num_nodes, np.unique(pairs[pairs[:, 0] != pairs[:, 1]], axis=0))


# A run takes whether to maximise and a number of iterations, and returns the beliefs of the nodes
# and the iterations done.
Run = Callable[[bool, int], tuple[jax.Array, Any]]


def build_layout(workload: Workload) -> Run:
    def call(is_max, num_iters):
        options = {"is_max": is_max, "tolerance": 0.0, "max_iters": num_iters}
        beliefs = workload.layout(workload.model, **options)
        return beliefs.nodes, beliefs.num_iters

    return call


def build_general(workload: Workload) -> Run:
    factor_graph = FactorGraph.from_pairwise(workload.model, workload.graph)

    def call(is_max, num_iters):
        options = {"is_max": is_max, "tolerance": 0.0, "max_iters": num_iters}
        beliefs = belief_propagation.solve(factor_graph, **options)
        return beliefs.nodes.flat.reshape(-1, workload.model.num_states), beliefs.num_iters

    return call


def build_pgmax(workload: Workload) -> Run:
    if "jax.lib.xla_bridge" not in sys.modules:  # gone from jax, and imported by PGMax 0.6.1
        bridge = types.ModuleType("jax.lib.xla_bridge")
        bridge.get_backend = backend.get_backend
        sys.modules["jax.lib.xla_bridge"] = jax.lib.xla_bridge = bridge
    from pgmax import fgraph, fgroup, infer, vgroup

    tables = workload.model.tables()
    num_nodes, num_states = tables.node_tables.shape
    variables = vgroup.NDVarArray(num_states=num_states, shape=(num_nodes,))
    graph = fgraph.FactorGraph(variable_groups=[variables])
    scopes = [[variables[first], variables[second]] for first, second in workload.graph.edges]
    group = fgroup.PairwiseFactorGroup(
        variables_for_factors=scopes, log_potential_matrix=np.asarray(tables.edge_tables)
    )
    graph.add_factors(group)
    inferer = infer.build_inferer(graph.bp_state, backend="bp")

    @partial(jax.jit, static_argnums=(1, 2))
    def beliefs(evidence, is_max, num_iters):
        arrays = inferer.init(evidence_updates={variables: evidence})
        temperature = 0.0 if is_max else 1.0
        arrays = inferer.run(arrays, num_iters=num_iters, damping=0.0, temperature=temperature)
        return jax.nn.softmax(inferer.get_beliefs(arrays)[variables], axis=-1)

    return lambda is_max, num_iters: (beliefs(tables.node_tables, is_max, num_iters), num_iters)


def measure(size: str, name: str, workload: Workload) -> list[dict[str, Any]]:
    builders = {"jaxmrf": build_general}
    if workload.layout:
        builders["jaxmrf, own layout"] = build_layout
    if find_spec("pgmax"):
        builders["PGMax"] = build_pgmax
    methods = {method: build(workload) for method, build in builders.items()}
    kinds = [(is_max, num) for is_max in (False, True) for num in (1, workload.num_iters)]
    # of the first calls: ours is one program for any number of iterations
    compile_s, seconds, found, done = {}, {}, {}, {}
    for method, call in methods.items():
        for kind in kinds:
            start = time.perf_counter()
            found[method, kind], done[method, kind] = jax.block_until_ready(call(*kind))
            compile_s[method, kind] = time.perf_counter() - start
            seconds[method, kind] = []
    for _ in range(NUM_ROUNDS):
        for kind in kinds:
            for method, call in methods.items():
                start = time.perf_counter()
                jax.block_until_ready(call(*kind))
                seconds[method, kind].append(time.perf_counter() - start)

    def per_iter(method, is_max):
        once, all_in = (is_max, 1), (is_max, workload.num_iters)
        spent = min(seconds[method, all_in]) - min(seconds[method, once])
        return spent / (int(done[method, all_in]) - 1)

    all_in, measured = (False, workload.num_iters), []
    for method in methods:
        quality = {
            "sum_ms": 1e3 * per_iter(method, False),
            "max_ms": 1e3 * per_iter(method, True),
        }
        if "PGMax" in methods and method != "PGMax":
            quality["sum_times_faster"] = per_iter("PGMax", False) / per_iter(method, False)
            quality["max_times_faster"] = per_iter("PGMax", True) / per_iter(method, True)
            difference = jnp.abs(found[method, all_in] - found["PGMax", all_in])
            quality["max_difference"] = float(difference.max())
        if method != "PGMax":
            quality |= to_tolerance(workload, method)
        measured.append(
            rows.row(
                "belief_propagation",
                method,
                size,
                workload=name,
                num_edges=workload.graph.num_edges,
                num_iters=workload.num_iters,
                compile_s=max(compile_s[method, kind] for kind in kinds[:2]),
                run_s=seconds[method, all_in],
                quality=quality,
            )
        )
    return measured


def to_tolerance(workload: Workload, method: str) -> dict[str, Any]:
    """Iterations and seconds until the messages rest, the value of log Z included."""
    if method == "jaxmrf":
        factor_graph = FactorGraph.from_pairwise(workload.model, workload.graph)
        call = partial(belief_propagation.solve, factor_graph)
    else:
        call = partial(workload.layout, workload.model)
    timing = rows.time_calls(call, repeats=NUM_ROUNDS)
    assert timing.result.is_converged
    return {"stop_iters": timing.result.num_iters, "stop_ms": 1e3 * timing.run_s["min"]}
