"""Exact inference on published networks and factor graphs, beside pyAgrum.

Every instance with its evidence is asked for log Z and the marginals of all variables, in double
precision: by the compiled junction tree, by the NumPy one, which compiles nothing, and by pyAgrum
(C++; a fresh engine a query, the faster of its two algorithms on networks; a process of its own,
given up after a minute). A batch of 1,000 settings of five observed variables goes to
``solve_batch`` and to pyAgrum's loop over one engine. Quality: errors against the exact files, and
pyAgrum's time as a multiple.
"""

import json
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks import rows
from benchmarks.factor_chains import data_folder
from jaxmrf.exact import host, junction_tree
from jaxmrf.formats import read_uai, read_uai_evidence, read_uai_marginals
from jaxmrf.graphs import elimination_plan
from jaxmrf.models import FactorGraph

CASE = "exact"
NETWORKS = (
    *("asia", "cancer", "earthquake", "sachs", "child"),
    *("alarm", "insurance", "hailfinder", "win95pts"),
)
GRIDS = tuple(
    f"{kind}_s0" for kind in ("attractive_J1.0", "mixed_J0.5", "mixed_J1.0", "mixed_J2.0")
)
LARGE = (
    *("Promedus_24", "Promedus_22", "Promedus_15", "Promedus_27", "Promedus_34", "Promedus_11"),
    *("Pedigree_11", "Pedigree_12", "Segmentation_11", "Segmentation_12", "Segmentation_13"),
    *("CSP_12", "DBN_12", "DBN_11", "Grids_12", "Grids_11", "Grids_13"),
)
INSTANCES = {"small": ("asia", "alarm"), "full": NETWORKS + GRIDS + LARGE}
BATCHES = {"small": ("alarm",), "full": ("alarm", "win95pts", "hailfinder")}
NUM_SETTINGS = {"small": 100, "full": 1000}
PATIENCE = 30.0  # seconds for one query of the peer


def run(size: str, out: Path) -> list[dict[str, Any]]:
    """Rows of all instances, in a process of its own because of its precision."""
    if data_folder(CASE) is None:
        return []
    command = [sys.executable, "-m", "benchmarks.case_exact", "measure", size]
    child = subprocess.run(command, cwd=rows.ROOT, stdout=subprocess.PIPE, text=True, check=True)
    return [json.loads(line) for line in child.stdout.splitlines() if line.startswith("{")]


def measure(size: str) -> None:
    jax.config.update("jax_enable_x64", True)
    for name in INSTANCES[size]:
        for row in measure_one(size, name):
            print(json.dumps(row, default=float), flush=True)
    for name in BATCHES[size]:
        for row in measure_batch(size, name):
            print(json.dumps(row, default=float), flush=True)


def measure_one(size: str, name: str):
    model, evidence, marginals = load(name)
    conditioned = model.condition(evidence)
    plan = elimination_plan(conditioned.hypergraph)
    arrays = jax.numpy.asarray(conditioned.log_tables), jax.numpy.asarray(conditioned.log_evidence)
    solve = jax.jit(lambda tables, log_evidence: junction_tree.solve(
        FactorGraph(tables, log_evidence, conditioned.hypergraph), plan
    ))  # fmt: skip
    compiled = rows.time_jitted(solve, *arrays, repeats=5)
    numpy = rows.time_calls(lambda: host.solve(conditioned, plan), repeats=3)
    peer = ask_peer("query", name)
    for method, timing in (("junction_tree", compiled), ("numpy", numpy)):
        beliefs = timing.result
        error = max(
            np.abs(np.asarray(beliefs.nodes[node]) - marginals[node]).max()
            for node in range(model.num_nodes)
        )
        quality = {"log10_z": float(beliefs.log_z) / np.log(10), "node_error": float(error)}
        if peer:
            quality["pyagrum_times"] = np.median(peer["seconds"]) / timing.run_s["median"]
        yield rows.row(
            CASE, method, size,
            instance=name,
            log2_cells=round(plan.width, 1),
            compile_s=compiled.compile_s if method == "junction_tree" else None,
            run_s=timing.run_s,
            quality=quality,
            peak_mb=timing.peak_mb,
        )  # fmt: skip
    if peer:
        yield rows.row(
            CASE, "pyagrum", size,
            instance=name,
            log2_cells=round(plan.width, 1),
            compile_s=None,
            run_s=peer["seconds"],
            quality={"is_finished": peer["is_finished"]},
        )  # fmt: skip


def measure_batch(size: str, name: str):
    model, _, _ = load(name)
    plan = elimination_plan(model.hypergraph)
    states = settings(name, model, plan, NUM_SETTINGS[size])
    log_evidence = jax.vmap(lambda seen: model.observe_states(seen).log_evidence)(states)
    solve = jax.jit(lambda tables, log_evidence: junction_tree.solve_batch(
        FactorGraph(tables, log_evidence[0], model.hypergraph), log_evidence, plan
    ))  # fmt: skip
    timing = rows.time_jitted(solve, jax.numpy.asarray(model.log_tables), log_evidence)
    item = len(states) // 2
    check = host.solve(
        model.observe({node: int(s) for node, s in enumerate(states[item]) if s >= 0})
    )
    error = np.abs(timing.result.nodes.flat[item] - check.nodes.flat).max()
    micro = 1e6 * timing.run_s["median"] / len(states)
    quality = {"us_per_query": micro, "node_error": float(error)}
    peer = ask_peer("batch", name, str(len(states)))
    if peer:
        quality["pyagrum_us"] = 1e6 * np.median(peer["seconds"])
        quality["pyagrum_times"] = quality["pyagrum_us"] / micro
    yield rows.row(
        CASE, "solve_batch", size,
        instance=name,
        settings=len(states),
        compile_s=timing.compile_s,
        run_s=timing.run_s,
        quality=quality,
        peak_mb=timing.peak_mb,
    )  # fmt: skip


def settings(name: str, model: FactorGraph, plan, number: int) -> np.ndarray:
    """States of five variables, the same ones in every setting, from draws of the model."""
    rng = np.random.default_rng(0)
    seen = rng.choice(model.num_nodes, 5, replace=False)
    drawn = host.sample(rng, model, num_samples=number, plan=plan)
    states = np.full(drawn.shape, -1)
    states[:, seen] = drawn[:, seen]
    return states


def load(name: str):
    """The model without evidence, the evidence, and the exact marginals given it."""
    root = data_folder(CASE)
    folders = (root / folder for folder in ("bnlearn", "ising10x10", "uai"))
    (folder,) = (one for one in folders if (one / f"{name}.uai").exists())
    answers = (folder / f"{name}{kind}.MAR" for kind in (".exact", ".post", ".uai"))
    exact = next(path for path in answers if path.exists())
    evidence = read_uai_evidence(folder / f"{name}.uai.evid")
    return read_uai(folder / f"{name}.uai"), evidence, read_uai_marginals(exact)


def ask_peer(*arguments: str) -> dict[str, Any] | None:
    """Seconds of every query of pyAgrum; none where it is not installed."""
    if find_spec("pyagrum") is None:
        return None
    command = [sys.executable, "-m", "benchmarks.case_exact", *arguments]
    limit = PATIENCE * (2 if arguments[0] == "query" else 10)
    try:
        child = subprocess.run(
            command, cwd=rows.ROOT, stdout=subprocess.PIPE, text=True, check=True, timeout=limit
        )
    except (subprocess.TimeoutExpired, subprocess.CalledProcessError):
        return {"seconds": [PATIENCE], "is_finished": False}
    return json.loads(child.stdout.splitlines()[-1])


def peer_query(name: str) -> None:
    """Prints the seconds of fresh queries of pyAgrum, at most half a minute of them."""
    model, evidence, _ = load(name)
    network, engines = peer_network(name, model)
    seconds = []
    while len(seconds) < 5 and sum(seconds) < PATIENCE:
        best = np.inf
        for engine in engines:
            start = time.perf_counter()
            query = engine(network)
            query.setEvidence({f"v{node}": state for node, state in evidence.items()})
            query.makeInference()
            for node in range(model.num_nodes):
                query.posterior(f"v{node}")
            best = min(best, time.perf_counter() - start)
        seconds.append(best)
    print(json.dumps({"seconds": seconds, "is_finished": True}))


def peer_batch(name: str, number: str) -> None:
    """Prints pyAgrum's seconds a setting over repeated loops."""
    model, _, _ = load(name)
    states = settings(name, model, elimination_plan(model.hypergraph), int(number))
    network, engines = peer_network(name, model)
    seconds = []
    for engine in engines:
        query = engine(network)
        for _ in range(2):
            start = time.perf_counter()
            for row in states:
                query.setEvidence({f"v{node}": int(row[node]) for node in np.flatnonzero(row >= 0)})
                query.makeInference()
                for node in range(model.num_nodes):
                    query.posterior(f"v{node}")
            seconds.append((time.perf_counter() - start) / len(states))
    fastest = min(range(len(engines)), key=lambda one: min(seconds[2 * one : 2 * one + 2]))
    best = seconds[2 * fastest : 2 * fastest + 2]
    print(json.dumps({"seconds": best, "is_finished": True}))


def peer_network(name: str, model: FactorGraph):
    """The model in pyAgrum, and the engines that take it."""
    import pyagrum

    variables = [
        pyagrum.LabelizedVariable(f"v{node}", "", number)
        for node, number in enumerate(model.num_states)
    ]
    if name in NETWORKS:
        network = pyagrum.BayesNet()
        for variable in variables:
            network.add(variable)
        for scope in model.scopes:
            for parent in scope[:-1]:
                network.addArc(f"v{parent}", f"v{scope[-1]}")
        for factor, scope in enumerate(model.scopes):
            fill(network.cpt(f"v{scope[-1]}"), scope, np.exp(model.log_table(factor)))
        return network, (pyagrum.ShaferShenoyInference, pyagrum.LazyPropagation)
    network = pyagrum.MarkovRandomField()
    for variable in variables:
        network.add(variable)
    merged: dict[tuple[int, ...], np.ndarray] = {}  # one factor a scope is allowed
    for factor, scope in enumerate(model.scopes):
        order = np.argsort(scope)
        key = tuple(int(scope[axis]) for axis in order)
        table = np.exp(model.log_table(factor)).transpose(order)
        merged[key] = merged[key] * table if key in merged else table
    for scope, table in merged.items():
        fill(network.addFactor([f"v{node}" for node in scope]), scope, table)
    return network, (pyagrum.ShaferShenoyMRFInference,)


def fill(tensor, scope: tuple[int, ...], table: np.ndarray) -> None:
    """Fills a tensor of pyAgrum, whose first variable runs fastest."""
    place = {f"v{node}": axis for axis, node in enumerate(scope)}
    axes = [place[name] for name in tensor.names]
    tensor.fillWith(table.transpose(axes).ravel(order="F").tolist())


if __name__ == "__main__":
    {"measure": measure, "query": peer_query, "batch": peer_batch}[sys.argv[1]](*sys.argv[2:])
