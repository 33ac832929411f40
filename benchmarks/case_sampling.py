"""Gibbs sampling of Ising models beside peers: sweeps only, all of them in turn in one process.

Workloads: "lattice", a torus at its critical point, one chain; "torus", a 30 x 30 torus with a
coupling an edge and a field a node; "random", a random graph of mean degree 6; "senate-sized".
One core, one thread and CPU time on a CPU; `jaxmrf, two cores` is another process with two virtual
devices, over which the chains are split (two chains of the lattice), and its wall time is set
against the seconds of one core. On a GPU wall time, of larger workloads and of peers that run
there. thrml's lattice is smaller, because building one of 1024^2 takes it half a minute; its rate
is the higher there.

Quality: `flips_per_ns` are attempted updates a nanosecond; `times_*` are ratios of such rates,
medians over rounds; `max_z` and `rms_z` are the largest and root-mean-square error in standard
errors: of all means and pair products on a 16-node sibling against enumeration, or of six
correlations of a 64 x 8 torus at the critical point against its transfer matrix.
"""

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import networkx as nx
import numpy as np
from jax.sharding import Mesh

from benchmarks import children, rows
from benchmarks.sampling_checks import (
    batch_z_scores,
    enumeration_z_scores,
    offset_products,
    torus_correlations,
)
from benchmarks.sampling_peers import LATTICE_PEERS, PEERS, Sampler
from jaxmrf import sharding
from jaxmrf.graphs import CheckerboardPlan, Graph, torus
from jaxmrf.models import Ising
from jaxmrf.sampling import SamplerPlan, packed, sampler_plan

CASE = "sampling"
NUM_ROUNDS = 9
SIBLING_SWEEPS = 20  # between draws
CRITICAL = float(np.arcsinh(1) / 2)
FORMS = {  # options of the plan
    "jaxmrf": {},
    "jaxmrf, Philox-7": {"num_rounds": 7},
    "jaxmrf, independent": {"num_bits": 32},
    "jaxmrf, plain": {"form": "plain"},
}
UPDATES = {"jaxmrf": 2e8, "jaxmrf, Philox-7": 2e8, "jaxmrf, independent": 2e8}  # in a call
SLOW_UPDATES = 1e7
TWO_CORES = {"NPROC": "1", "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
GPU_PEERS = ("thrml", "plain JAX")


class Size(NamedTuple):
    """How large a form of the case is."""

    side: int  # of the lattice
    peer_sides: dict[str, int]  # where a peer's lattice is another
    num_chains: int  # on the torus
    num_nodes: int  # of the random graph
    num_chains_random: int
    scale: float  # of the updates in a call
    chains: int  # on a sibling
    draws: int  # of each of them
    peer_chains: int
    lattice_draws: int
    seconds: float  # that a method is timed for in a round, at least
    forms: tuple[str, ...] = tuple(FORMS)
    workloads: tuple[str, ...] = ("lattice", "torus", "random")
    is_gpu: bool = False


SIZES = {
    "tiny": Size(
        *(64, {}, 256, 64, 32, 1e-3, 2**11, 1, 2**9, 200, 0.0),
        forms=("jaxmrf",),
        is_gpu=True,
    ),
    "small": Size(
        *(256, {"thrml": 32}, 256, 1000, 64, 0.05, 2**12, 4, 2**10, 2000, 0.02),
        forms=("jaxmrf",),
        workloads=("lattice", "torus"),
    ),
    "full": Size(
        *(1024, {"thrml": 256}, 1000, 10_000, 64, 1.0, 2**16, 40, 2**14, 16_000, 0.2),
        workloads=("lattice", "torus", "random", "senate-sized"),
    ),
    "gpu": Size(
        *(16_384, {"thrml": 256, "plain JAX": 2048}, 2**16, 10_000, 2**13, 20.0),
        *(2**18, 10, 2**16, 2000, 0.2),
        forms=("jaxmrf", "jaxmrf, Philox-7", "jaxmrf, independent"),
        is_gpu=True,
    ),
}


class Workload(NamedTuple):
    """A graph, its number of chains, and a graph of 16 nodes like it."""

    graph: Graph
    num_chains: int
    sibling: Graph


class Entry(NamedTuple):
    """A method on a workload."""

    build: Callable[[int], Sampler]  # from a number of sweeps
    num_nodes: int
    num_chains: int
    num_sweeps: int

    @property
    def updates(self) -> int:
        """Attempted updates in a call."""
        return self.num_nodes * self.num_chains * self.num_sweeps


def run(size: str, out: Path) -> list[dict[str, Any]]:
    """Rows of all samplers; on a CPU from processes of their own, held to a core or to two."""
    if SIZES[size].is_gpu:
        return list(measure(size))
    module, environment = "benchmarks.case_sampling", {"NPROC": "1"}  # idle threads cost time
    measured = children.rows_of(module, "one_core", size, environment=environment)
    if len(children.allowed()) > 1:
        rates = {
            row["workload"]: row["quality"]["flips_per_ns"]
            for row in measured
            if row["method"] == "jaxmrf"
        }
        for row in children.rows_of(module, "two_cores", size, environment=TWO_CORES):
            rate = row["quality"]["flips_per_ns"]
            row["quality"]["times_one_core"] = rate / rates[row["workload"]]
            measured.append(row)
    return measured


def workloads(size: str) -> Iterator[tuple[str, Workload]]:
    """The workloads but for the lattice."""
    given, sibling = SIZES[size], random_graph(16, 40)
    if "torus" in given.workloads:
        yield "torus", Workload(torus((30, 30)), given.num_chains, torus((4, 4)))
    if "random" in given.workloads:
        graph = random_graph(given.num_nodes, 3 * given.num_nodes)
        yield "random", Workload(graph, given.num_chains_random, sibling)
    if "senate-sized" in given.workloads:
        yield "senate-sized", Workload(random_graph(99, 279), 500, sibling)


def one_core(size: str) -> Iterator[dict[str, Any]]:
    children.hold(sorted(children.allowed())[-1:])  # before the first array: threads inherit it
    yield from measure(size)


def measure(size: str) -> Iterator[dict[str, Any]]:
    """Rows of the samplers on every workload."""
    yield from measure_one(size, "lattice", lattice_entries(size), None)
    for name, workload in workloads(size):
        yield from measure_one(size, name, graph_entries(size, workload), workload.sibling)


def measure_one(
    size: str, workload: str, entries: dict[str, Entry], sibling: Graph | None
) -> Iterator[dict[str, Any]]:
    timed = time_in_turn(size, entries, clock_of(size))
    rates = {
        method: entry.updates / np.array(timed[method].seconds) / 1e9
        for method, entry in entries.items()
    }
    for method, entry in entries.items():
        # within a round both meet the same load of a shared machine
        ratios = {
            f"times_{peer}": np.median(rates[method] / rates[peer])
            for peer in entries
            if method in FORMS and peer not in FORMS
        }
        quality = {"flips_per_ns": np.median(rates[method]), **ratios}
        quality |= check(size, method, timed[method].sampler.form, sibling)
        yield make_row(size, method, workload, timed[method], entry, quality)


def make_row(size, method, workload, timed, entry, quality) -> dict[str, Any]:
    form = timed.sampler.form
    return rows.row(
        CASE,
        method,
        size,
        workload=workload,
        **({"form": form} if form else {}),
        num_nodes=entry.num_nodes,
        num_chains=entry.num_chains,
        num_sweeps=entry.num_sweeps,
        compile_s=timed.compile_s,
        run_s=timed.seconds,
        quality=quality,
    )


def lattice_entries(size: str, mesh: Mesh | None = None) -> dict[str, Entry]:
    """Methods for one chain of a torus with one coupling and no fields; one on each device."""
    given, entries = SIZES[size], {}
    num_chains = 1 if mesh is None else mesh.size
    for method, build in methods(given, LATTICE_PEERS).items():
        side = given.peer_sides.get(method, given.side)
        if given.is_gpu and method in FORMS:
            builder = partial(build_large_lattice, side, FORMS[method])
        else:
            graph = torus((side, side))
            builder = partial(build, graph, uniform_ising(graph), num_chains)
        if mesh is not None and method in FORMS:
            builder = partial(builder, mesh=mesh)
        entries[method] = make_entry(given, method, builder, side**2, num_chains)
    return entries


def graph_entries(size: str, workload: Workload, mesh: Mesh | None = None) -> dict[str, Entry]:
    """Methods for any graph; ours may have their chains over a mesh of devices."""
    given, graph = SIZES[size], workload.graph
    model = random_ising(graph)
    ours = {method: partial(build, mesh=mesh) for method, build in methods(given, {}).items()}
    return {
        method: make_entry(
            *(given, method, partial(build, graph, model, workload.num_chains)),
            *(graph.num_nodes, workload.num_chains),
        )
        for method, build in (methods(given, PEERS) | ours).items()
    }


def methods(given: Size, peers: dict[str, Callable]) -> dict[str, Callable[..., Sampler]]:
    if given.is_gpu:
        peers = {method: build for method, build in peers.items() if method in GPU_PEERS}
    return {method: partial(build_jaxmrf, FORMS[method]) for method in given.forms} | peers


def make_entry(given: Size, method: str, build, num_nodes: int, num_chains: int) -> Entry:
    wanted = given.scale * UPDATES.get(method, SLOW_UPDATES)
    num_sweeps = max(2, round(wanted / (num_nodes * num_chains)))
    return Entry(partial(build, num_sweeps), num_nodes, num_chains, num_sweeps)


class Timed(NamedTuple):
    """A sampler, its states, how often a round calls it, and seconds: of a call, and to build."""

    sampler: Sampler
    states: Any
    num_calls: int
    seconds: list[float]
    compile_s: float


def build_and_call(entry: Entry, clock: Callable[[], float], least: float) -> Timed:
    """A sampler after two calls: what the first takes above the second is compilation."""
    start = clock()
    sampler = entry.build()
    states = sampler.run(0, sampler.start(0))
    first = clock() - start
    states, second = timed_call(sampler, 1, states, clock)
    num_calls = int(np.clip(least / max(second, 1e-6), 1, 200))
    return Timed(sampler, states, num_calls, [], max(0.0, first - second))


def clock_of(size: str) -> Callable[[], float]:
    return time.perf_counter if SIZES[size].is_gpu else time.process_time


def timed_call(sampler: Sampler, seed: int, states: Any, clock: Callable[[], float]):
    """The states after a call, and its seconds without those of an idle one."""
    start = clock()
    states = sampler.run(seed, states)
    taken = clock() - start
    if sampler.idle:
        start = clock()
        sampler.idle(seed, states)
        taken -= clock() - start
    return states, taken


def time_in_turn(
    size: str, entries: dict[str, Entry], clock: Callable[[], float]
) -> dict[str, Timed]:
    """Seconds of a call of every method, each called for a while in every round."""
    least = SIZES[size].seconds
    timed = {method: build_and_call(entry, clock, least) for method, entry in entries.items()}
    for number in range(NUM_ROUNDS):
        for method, (sampler, states, num_calls, seconds, _) in timed.items():
            total = 0.0
            for call in range(num_calls):
                states, taken = timed_call(sampler, 2 + number * num_calls + call, states, clock)
                total += taken
            seconds.append(total / num_calls)
            timed[method] = timed[method]._replace(states=states)
    return timed


def two_cores(size: str) -> Iterator[dict[str, Any]]:
    """Wall time on two cores, the chains over two devices."""
    children.hold(sorted(children.allowed())[-2:])
    mesh = sharding.device_mesh()
    entries = {"lattice": lattice_entries(size, mesh)["jaxmrf"]} | {
        name: graph_entries(size, workload, mesh)["jaxmrf"] for name, workload in workloads(size)
    }
    for name, entry in entries.items():
        timed = time_in_turn(size, {"jaxmrf": entry}, time.perf_counter)["jaxmrf"]
        quality = {"flips_per_ns": entry.updates / np.median(timed.seconds) / 1e9}
        yield make_row(size, "jaxmrf, two cores", name, timed, entry, quality)


def build_jaxmrf(
    options: dict[str, Any],
    graph: Graph,
    model: Ising,
    num_chains: int,
    num_sweeps: int,
    mesh: Mesh | None = None,
) -> Sampler:
    """The sampler of jaxmrf; the options are those of the plan."""
    plan = sampler_plan(graph, model, num_chains=num_chains, **options)
    run = compiled_run(plan, num_sweeps)

    def start(seed):
        fields = packed.init(jax.random.key(seed), model, plan)
        return fields if mesh is None else sharding.place(fields, packed.sharding(plan, mesh))

    return Sampler(
        start=start,
        run=lambda seed, fields: jax.block_until_ready(
            run(jax.random.key(seed), fields, model, plan)
        ),
        states=lambda fields: packed.unpack(fields, plan),
        form=plan.form,
    )


def compiled_run(plan: SamplerPlan, num_sweeps: int) -> Callable:
    """`packed.run` of so many sweeps under the compiler options of the plan."""
    run = partial(packed.run, num_sweeps=num_sweeps)
    return jax.jit(run, compiler_options=plan.compiler_options)


def build_large_lattice(side: int, options: dict[str, Any], num_sweeps: int) -> Sampler:
    """The lattice without a graph, whose edges would fill the memory."""
    graph = torus((64, 64))
    options = {"form": "lattice"} | options  # the stand-in is small
    plan = sampler_plan(graph, uniform_ising(graph), num_chains=1, **options)
    plan = replace(plan, layout=CheckerboardPlan(side, side, block=min(64, side // 2)))

    def model():  # inside of compiled functions, which read three numbers of it
        return Ising(jnp.full(2 * side**2, CRITICAL), jnp.zeros(side**2))

    start = jax.jit(lambda key: packed.init(key, model(), plan))
    run = jax.jit(
        lambda key, fields: packed.run(key, fields, model(), plan, num_sweeps=num_sweeps),
        compiler_options=plan.compiler_options,
    )
    return Sampler(
        start=lambda seed: start(jax.random.key(seed)),
        run=lambda seed, fields: jax.block_until_ready(run(jax.random.key(seed), fields)),
        states=lambda fields: packed.unpack(fields, plan),
        form=plan.form,
    )


def uniform_ising(graph: Graph) -> Ising:
    couplings = np.full(graph.num_edges, CRITICAL, np.float32)
    return Ising(jnp.asarray(couplings), jnp.zeros(graph.num_nodes))


def random_ising(graph: Graph, coupling_scale: float = 0.5, field_scale: float = 0.3) -> Ising:
    rng = np.random.default_rng(0)
    couplings = rng.normal(0, coupling_scale, graph.num_edges)
    fields = rng.normal(0, field_scale, graph.num_nodes)
    return Ising(jnp.asarray(couplings, jnp.float32), jnp.asarray(fields, jnp.float32))


def random_graph(num_nodes: int, num_edges: int) -> Graph:
    return Graph.from_networkx(nx.gnm_random_graph(num_nodes, num_edges, seed=1))


@lru_cache
def check(size: str, method: str, form: str | None, sibling: Graph | None) -> dict[str, float]:
    """Errors of a method in standard errors; none for peers on the lattice."""
    given, is_ours = SIZES[size], method in FORMS
    options = FORMS.get(method, {}) | {"form": form}  # that of the workload
    if sibling is None and not is_ours:
        return {}
    if sibling is None:  # the lattice
        z = lattice_z_scores(options, given.lattice_draws // (8 if form == "plain" else 1))
        return {"max_z": np.abs(z).max()}  # too few and too much alike for a mean square
    build = partial(build_jaxmrf, options) if is_ours else PEERS[method]
    model, num_chains = random_ising(sibling), given.chains if is_ours else given.peer_chains
    sampler = build(sibling, model, num_chains, SIBLING_SWEEPS)
    num_draws = given.draws if is_ours else min(given.draws, 8)
    z = enumeration_z_scores(sampler, model, sibling, num_draws)
    return {"max_z": np.abs(z).max(), "rms_z": np.sqrt((z**2).mean())}


def lattice_z_scores(options: dict[str, Any], num_draws: int) -> np.ndarray:
    """Errors of the correlations of a critical 64 x 8 torus, from draws 40 sweeps apart."""
    graph = torus((64, 8))
    model = uniform_ising(graph)
    plan = sampler_plan(graph, model, num_chains=1, **options)

    @partial(jax.jit, compiler_options=plan.compiler_options)
    def draw(keys, fields):
        def body(fields, key):
            fields = packed.run(key, fields, model, plan, num_sweeps=40)
            spins = 2.0 * packed.unpack(fields, plan).reshape(64, 8) - 1
            return fields, offset_products(spins)

        return jax.lax.scan(body, fields, keys)[1]

    key_start, key_run = jax.random.split(jax.random.key(1))
    keys = jax.random.split(key_run, num_draws + num_draws // 20)
    found = draw(keys, packed.init(key_start, model, plan))[-num_draws:]
    return batch_z_scores(np.asarray(found, float), torus_correlations(64, 8, CRITICAL))


if __name__ == "__main__":
    children.serve({"one_core": one_core, "two_cores": two_cores}, sys.argv[1:])
