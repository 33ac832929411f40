"""Chains over several devices, and the size at which a GPU is full.

On a CPU one run of a 30 x 30 torus with a coupling an edge and a field a node, its chains over 1,
2, 4 and 8 virtual devices of one process: `is_equal` says that the draws are those of one device,
bit for bit; wall time, so more devices than cores gain nothing. On a GPU attempted updates a
nanosecond of wall time on critical lattices of growing side and on more and more chains.
"""

import os
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from benchmarks import children, rows
from benchmarks.case_sampling import (
    build_jaxmrf,
    build_large_lattice,
    compiled_run,
    random_ising,
)
from jaxmrf.graphs import torus
from jaxmrf.sampling import packed, sampler_plan
from jaxmrf.sharding import device_mesh, place

CASE = "scaling"
FLAGS = "--xla_force_host_platform_device_count=8"


class Size(NamedTuple):
    """How large a form of the case is; sides of lattices and numbers of chains are for a GPU."""

    num_chains: int
    num_sweeps: int
    sides: tuple[int, ...] = ()
    chains: tuple[int, ...] = ()
    updates: float = 0.0


SIZES = {
    "tiny": Size(256, 2, (64, 128), (256,), 1e5),
    "small": Size(256, 20),
    "full": Size(1024, 500),
    "gpu": Size(
        *(1024, 500),
        sides=tuple(2**power for power in range(10, 16)),
        chains=tuple(2**power for power in (10, 13, 16, 18)),
        updates=2e10,
    ),
}


def run(size: str, out: Path) -> list[dict[str, Any]]:
    """Rows of virtual devices, measured in a process that has them; or those of a GPU."""
    if SIZES[size].sides:
        return [*devices(size), *growing_lattices(size), *growing_chains(size)]
    flags = f"{os.environ.get('XLA_FLAGS', '')} {FLAGS}"
    return children.rows_of(
        "benchmarks.case_scaling", "devices", size, environment={"XLA_FLAGS": flags}
    )


def devices(size: str) -> Iterator[dict[str, Any]]:
    """The same run with its chains over more and more devices; nothing if there is but one."""
    given, graph = SIZES[size], torus((30, 30))
    model = random_ising(graph)
    plan = sampler_plan(graph, model, num_chains=given.num_chains)
    sweeps = compiled_run(plan, given.num_sweeps)
    key_start, key_run = jax.random.split(jax.random.key(0))
    start = packed.init(key_start, model, plan)
    counts = [count for count in (1, 2, 4, 8) if count <= len(jax.devices())]
    if len(counts) < 2:
        return
    timings = {}
    for count in counts:
        layout = packed.sharding(plan, device_mesh(jax.devices()[:count]))
        fields = place(start, layout)
        timings[count] = rows.time_calls(partial(sweeps, key_run, fields, model, plan))
    for count, timing in timings.items():
        is_equal = np.array_equal(timing.result, timings[1].result)
        rate = graph.num_nodes * given.num_chains * given.num_sweeps / timing.run_s["median"] / 1e9
        yield make_row(
            *(size, "torus", graph.num_nodes, given.num_chains, given.num_sweeps),
            *(timing, {"flips_per_ns": rate, "is_equal": is_equal}, count),
        )


def growing_lattices(size: str) -> Iterator[dict[str, Any]]:
    """One chain of a critical lattice, for every side."""
    for side in SIZES[size].sides:
        yield timed_row(size, "lattice", partial(build_large_lattice, side, {}), side**2, 1)


def growing_chains(size: str) -> Iterator[dict[str, Any]]:
    """A 30 x 30 torus with a coupling an edge and a field a node, for every number of chains."""
    graph = torus((30, 30))
    model = random_ising(graph)
    for num_chains in SIZES[size].chains:
        build = partial(build_jaxmrf, {}, graph, model, num_chains)
        yield timed_row(size, "torus", build, graph.num_nodes, num_chains)


def timed_row(size: str, workload: str, build, num_nodes: int, num_chains: int) -> dict[str, Any]:
    num_sweeps = int(np.clip(SIZES[size].updates / (num_nodes * num_chains), 2, 20_000))
    sampler = build(num_sweeps)
    states = sampler.start(0)
    timing = rows.time_calls(lambda: sampler.run(1, states))
    rate = num_nodes * num_chains * num_sweeps / timing.run_s["median"] / 1e9
    quality = {"flips_per_ns": rate}
    return make_row(size, workload, num_nodes, num_chains, num_sweeps, timing, quality)


def make_row(
    size: str,
    workload: str,
    num_nodes: int,
    num_chains: int,
    num_sweeps: int,
    timing: rows.Timing,
    quality: dict[str, Any],
    num_devices: int = 1,
) -> dict[str, Any]:
    return rows.row(
        CASE,
        "jaxmrf",
        size,
        workload=workload,
        num_devices=num_devices,
        num_nodes=num_nodes,
        num_chains=num_chains,
        num_sweeps=num_sweeps,
        compile_s=timing.compile_s,
        run_s=timing.run_s,
        quality=quality,
        peak_mb=timing.peak_mb,
    )


if __name__ == "__main__":
    children.serve({"devices": devices}, sys.argv[1:])
