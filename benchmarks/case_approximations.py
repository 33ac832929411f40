"""Approximate inference on grids of 10 x 10 spins and on the models of Wainwright & Jordan.

Twenty grids with exact answers, in double precision: bounds from below (naive mean field, rows of
the grid kept exact), belief propagation, tree-reweighted bounds from above, cluster variation on
plaquettes, and the log-determinant bound from above. Seconds: the fastest of five calls for every
grid. Quality: the mean distance of a spin's probability from the exact one and of log Z, averaged
over the grids of one kind, how many converged, and the same averages of libDAI's answers where it
has the method. Cluster variation also has the distance from libDAI's answers, and libDAI's
milliseconds. Then random models of 16 spins as in table 1 of Wainwright & Jordan (2006): medians
over trials of the mean distance, beside the paper's as recalled, not checked against its text.
"""

import itertools
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks import rows
from benchmarks.factor_chains import data_folder
from jaxmrf.formats import read_uai, read_uai_log10_z, read_uai_marginals
from jaxmrf.graphs import cluster_variation, grid, plaquettes
from jaxmrf.models import Beliefs, FactorGraph
from jaxmrf.variational import belief_propagation, generalized, mean_field, semidefinite

CASE = "approximations"
KINDS = ("mixed_J0.5", "mixed_J1.0", "mixed_J2.0", "attractive_J0.5", "attractive_J1.0")
NUM_GRIDS = {"small": 1, "full": 4}
NUM_TRIALS = {"small": 2, "full": 60}
NUM_REPEATS = 5
# milliseconds of libDAI's double loop, and its names of the methods
LIBDAI_MS = {"mixed_J0.5": 955, "mixed_J1.0": 1878, "mixed_J2.0": 4434}
LIBDAI_NAMES = {
    "mean field": "MF",
    "belief propagation": "BP",
    "belief propagation, damped": "BPdamp",
    "tree-reweighted": "TRWBP",
    "cluster variation": "CVM4",
}
# medians of the mean distance: belief propagation, log-determinant relaxation; from memory
RECALLED = {
    ("complete", "repulsive", 0.25): (0.035, 0.020),
    ("complete", "repulsive", 0.50): (0.066, 0.017),
    ("complete", "mixed", 0.25): (0.003, 0.019),
    ("complete", "mixed", 0.50): (0.035, 0.010),
    ("complete", "attractive", 0.06): (0.021, 0.026),
    ("complete", "attractive", 0.12): (0.422, 0.023),
    ("grid", "repulsive", 1.0): (0.294, 0.047),
    ("grid", "repulsive", 2.0): (0.342, 0.041),
    ("grid", "mixed", 1.0): (0.014, 0.016),
    ("grid", "mixed", 2.0): (0.095, 0.038),
    ("grid", "attractive", 1.0): (0.440, 0.047),
    ("grid", "attractive", 2.0): (0.520, 0.042),
}
Method = Callable[[FactorGraph], Beliefs]


def run(size: str, out: Path) -> list[dict[str, Any]]:
    """Rows of all methods, in a process of its own because of its precision."""
    if data_folder(CASE) is None:
        return []
    command = [sys.executable, "-m", "benchmarks.case_approximations", size]
    child = subprocess.run(command, cwd=rows.ROOT, stdout=subprocess.PIPE, text=True, check=True)
    return [json.loads(line) for line in child.stdout.splitlines() if line.startswith("{")]


def methods(example: FactorGraph) -> dict[str, Method]:
    """The methods for grids of 10 x 10 spins."""
    structure = example.hypergraph
    regions = cluster_variation(structure, plaquettes((10, 10)))
    lines = tuple(f for f, s in enumerate(structure.scopes) if len(s) == 2 and s[1] == s[0] + 1)
    weights = belief_propagation.appearance_probabilities(structure)
    return {
        "mean field": mean_field.solve,
        "structured mean field": lambda model: mean_field.solve(model, tractable=lines),
        "belief propagation": belief_propagation.solve,
        "belief propagation, damped": lambda model: belief_propagation.solve(model, damping=0.5),
        "tree-reweighted": lambda model: belief_propagation.solve(
            model, weights=weights, damping=0.5, max_iters=5000
        ),
        "cluster variation": lambda model: generalized.solve(model, regions),
        "log-determinant": semidefinite.solve,
    }


def measure(size: str) -> Iterator[dict[str, Any]]:
    jax.config.update("jax_enable_x64", True)
    folder = data_folder(CASE) / "ising10x10"
    example = read_uai(folder / f"{KINDS[0]}_s0.uai")
    for method, solve in methods(example).items():
        solve = jax.jit(solve)
        compile_s = rows.time_jitted(solve, example, repeats=1).compile_s
        for kind in KINDS:
            yield measure_kind(size, folder, kind, method, solve, compile_s)
    yield from measure_small_models(size)


def measure_kind(
    size: str, folder: Path, kind: str, method: str, solve: Method, compile_s: float
) -> dict[str, Any]:
    seconds, errors, gaps, libdai, distances = [], [], [], [], []
    num_converged, iters = 0, []
    for seed in range(NUM_GRIDS[size]):
        path = folder / f"{kind}_s{seed}"
        model = read_uai(f"{path}.uai")
        exact = np.array(read_uai_marginals(f"{path}.uai.MAR"))[:, 1]
        log_z = read_uai_log10_z(f"{path}.uai.PR") * np.log(10)
        timing = rows.time_calls(lambda model=model: solve(model), NUM_REPEATS)
        beliefs = timing.result
        seconds.append(timing.run_s["min"])
        ones = np.asarray(beliefs.nodes.flat)[1::2]
        errors.append(np.abs(ones - exact).mean())
        gaps.append(float(beliefs.log_z) - log_z)
        num_converged += int(beliefs.is_converged)
        iters.append(int(beliefs.num_iters))
        name = LIBDAI_NAMES.get(method)
        if name:
            theirs = json.loads(Path(f"{path}.libdai.json").read_text())[name]
            found = np.array(theirs["p1"])
            libdai.append((np.abs(found - exact).mean(), theirs["logZ"] - log_z))
            distances.append((np.abs(found - ones).max(), theirs["logZ"] - beliefs.log_z))
    quality = {
        "error": np.mean(errors),
        "log_z_error": np.mean(gaps),
        "converged": f"{num_converged}/{len(errors)}",
        "max_iters": max(iters),
    }
    if libdai:
        quality["libdai_error"], quality["libdai_log_z_error"] = np.mean(libdai, axis=0).tolist()
    if method == "cluster variation":
        largest = np.abs(np.array(distances)).max(axis=0).tolist()
        quality["from_libdai"], quality["log_z_from_libdai"] = largest
        if kind in LIBDAI_MS:
            quality["libdai_ms"] = LIBDAI_MS[kind]
            quality["times_faster"] = LIBDAI_MS[kind] / 1000 / np.mean(seconds)
    return rows.row(
        CASE, method, size, model=kind, compile_s=compile_s, run_s=seconds, quality=quality
    )


def measure_small_models(size: str) -> Iterator[dict[str, Any]]:
    graphs = {
        "complete": list(itertools.combinations(range(16), 2)),
        "grid": [tuple(edge) for edge in grid((4, 4)).edges.tolist()],
    }
    solvers = {
        "belief propagation, damped": lambda model: belief_propagation.solve(
            model, damping=0.9, max_iters=5000
        ),
        "log-determinant": semidefinite.solve,
    }
    states = 2.0 * (np.arange(2**16)[:, None] >> np.arange(16) & 1) - 1
    products = {
        name: np.stack([states[:, one] * states[:, other] for one, other in pairs], axis=1)
        for name, pairs in graphs.items()
    }
    for place, (method, solve) in enumerate(solvers.items()):
        solve = jax.jit(solve)
        for (name, kind, strength), recalled in RECALLED.items():
            rng = np.random.default_rng(0)
            errors, gaps, seconds, num_converged, compile_s = [], [], [], 0, 0.0
            for trial in range(NUM_TRIALS[size]):
                model, couplings, fields = random_spins(rng, graphs[name], kind, strength)
                logs = states @ fields + products[name] @ couplings
                weights = np.exp(logs - logs.max())
                log_z = logs.max() + np.log(weights.sum())
                ones = weights @ (states + 1) / 2 / weights.sum()
                if not trial:
                    start = time.perf_counter()
                    jax.block_until_ready(solve(model))
                    compile_s = time.perf_counter() - start
                start = time.perf_counter()
                beliefs = jax.block_until_ready(solve(model))
                seconds.append(time.perf_counter() - start)
                errors.append(np.abs(np.asarray(beliefs.nodes.flat)[1::2] - ones).mean())
                gaps.append(float(beliefs.log_z) - log_z)
                num_converged += int(beliefs.is_converged)
            yield rows.row(
                CASE,
                method,
                size,
                model=f"{name} of 16, {kind} {strength}",
                compile_s=max(0.0, compile_s - np.median(seconds)),
                run_s=seconds,
                quality={
                    "median_error": np.median(errors),
                    "recalled": recalled[place],
                    "smallest_log_z_error": min(gaps),
                    "largest_log_z_error": max(gaps),
                    "converged": f"{num_converged}/{len(errors)}",
                },
            )


def random_spins(
    rng: np.random.Generator, pairs: list[tuple[int, int]], kind: str, strength: float
) -> tuple[FactorGraph, np.ndarray, np.ndarray]:
    """A model of 16 spins, its couplings and its fields."""
    ranges = {"repulsive": (-2, 0), "mixed": (-1, 1), "attractive": (0, 2)}
    low, high = ranges[kind]
    couplings = rng.uniform(low * strength, high * strength, len(pairs))
    fields = rng.uniform(-0.25, 0.25, 16)
    spin = np.array([-1.0, 1.0])
    tables = [field * spin for field in fields]
    tables += [coupling * np.outer(spin, spin) for coupling in couplings]
    scopes = [(node,) for node in range(16)] + pairs
    return FactorGraph.from_tables([2] * 16, scopes, tables), couplings, fields


if __name__ == "__main__":
    for measured in measure(sys.argv[1]):
        print(json.dumps(measured, default=float), flush=True)
