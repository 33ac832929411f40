"""Learning the couplings and fields of a 30 x 30 torus from samples of it; the graph is known.

First what a step of persistent contrastive divergence costs (sweeps of all chains, their moments
and an update of the parameters), in turn with thrml's estimate of the same gradient, which updates
nothing. Then whole fits: seconds, and the root-mean-square errors of couplings and fields against
the truth; `times_pcd` are the seconds as a multiple of those of PCD. jaxmrf counts neighbourhoods
once for pseudo-likelihood; "all items" evaluates it without. One core and its CPU time; wall time
on a GPU.
"""

import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import children, rows
from benchmarks.case_sampling import NUM_ROUNDS, compiled_run, random_ising
from benchmarks.sampling_peers import build_thrml_gradient
from jaxmrf import learning
from jaxmrf.graphs import Graph, torus
from jaxmrf.learning import contrastive, training
from jaxmrf.models import Ising, log_pseudolikelihood
from jaxmrf.sampling import packed, sampler_plan

CASE = "pcd"


class Size(NamedTuple):
    """How large a form of the case is."""

    side: int
    num_items: int
    data_sweeps: int
    num_chains: int
    timed_steps: int
    num_steps: int
    num_sweeps: tuple[int, ...] = (1, 5)  # of a step that is timed
    has_plain: bool = True  # whether pseudo-likelihood is also maximised over all items
    is_gpu: bool = False


SIZES = {
    "tiny": Size(6, 256, 20, 64, 2, 20, num_sweeps=(1,), has_plain=False, is_gpu=True),
    "small": Size(10, 2048, 100, 256, 10, 300, num_sweeps=(1,), has_plain=False),
    "full": Size(30, 2**14, 500, 1024, 200, 1500),
    "gpu": Size(30, 2**14, 500, 1024, 1000, 1500, is_gpu=True),
}


def run(size: str, out: Path) -> list[dict[str, Any]]:
    """Rows of steps and of fits; on a CPU from a process of their own, held to a core."""
    if SIZES[size].is_gpu:
        return list(measure(size))
    return children.rows_of("benchmarks.case_pcd", "one_core", size, environment={"NPROC": "1"})


def one_core(size: str) -> Iterator[dict[str, Any]]:
    children.hold(sorted(children.allowed())[-1:])  # before the first array: threads inherit it
    yield from measure(size)


def measure(size: str) -> Iterator[dict[str, Any]]:
    given = SIZES[size]
    graph = torus((given.side, given.side))
    truth = random_ising(graph, 0.4, 0.2)
    data = draw_data(given, graph, truth)
    clock = time.perf_counter if given.is_gpu else time.process_time
    yield from measure_steps(size, graph, truth, data, clock)
    yield from measure_fits(size, graph, truth, data, clock)


def draw_data(given: Size, graph: Graph, model: Ising) -> np.ndarray:
    """Samples "items nodes", a chain each."""
    plan = sampler_plan(graph, model, num_chains=given.num_items)
    key_start, key_run = jax.random.split(jax.random.key(1))
    fields = packed.init(key_start, model, plan)
    fields = compiled_run(plan, given.data_sweeps)(key_run, fields, model, plan)
    return np.asarray(packed.unpack(fields, plan)).T


def measure_steps(size: str, graph: Graph, model: Ising, data, clock) -> Iterator[dict[str, Any]]:
    """Seconds of a step at the true parameters, of both packages in turn."""
    given, calls, compile_s, seconds = SIZES[size], {}, {}, {}
    for num_sweeps in given.num_sweeps:
        calls["jaxmrf", num_sweeps] = our_steps(given, graph, model, data, num_sweeps)
        if find_spec("thrml"):
            arguments = data[: given.num_chains], given.num_chains, num_sweeps
            gradient, chains = build_thrml_gradient(graph, model, *arguments)
            calls["thrml", num_sweeps] = partial(gradient, chains=chains)
    for name, call in calls.items():
        start = clock()
        call(0)
        compile_s[name], seconds[name] = clock() - start, []
    for number in range(1, 1 + NUM_ROUNDS):
        for name, call in calls.items():
            num_steps = given.timed_steps if name[0] == "jaxmrf" else 1
            start = clock()
            call(number)
            seconds[name].append((clock() - start) / num_steps)
    for method, num_sweeps in calls:
        taken = seconds[method, num_sweeps]
        quality = {"ms": 1e3 * np.median(taken)}
        if method == "jaxmrf" and ("thrml", num_sweeps) in seconds:
            peer = np.median(seconds["thrml", num_sweeps])
            quality["times_thrml"] = peer / np.median(taken)
        yield rows.row(
            CASE,
            f"{method}, a step",
            size,
            num_sweeps=num_sweeps,
            num_chains=given.num_chains,
            compile_s=compile_s[method, num_sweeps],
            run_s=taken,
            quality=quality,
        )


def our_steps(given: Size, graph: Graph, model: Ising, data, num_sweeps: int) -> Callable:
    """A function of a seed that makes the timed number of steps, and goes on where it was."""
    plan = sampler_plan(graph, model, num_chains=given.num_chains)
    optimizer = contrastive.default_optimizer()
    step = partial(contrastive.step, optimizer=optimizer, num_sweeps=num_sweeps)
    state = contrastive.init(
        jax.random.key(0), model, plan, optimizer=optimizer, num_chains=given.num_chains
    )
    aim = contrastive.target(data, graph, model)

    @partial(jax.jit, compiler_options=plan.compiler_options)
    def steps(key, state, aim, plan):
        arguments = aim, graph, plan
        return training.fit(key, state, step, given.timed_steps, args=arguments)[0]

    def call(seed):
        nonlocal state
        state = jax.block_until_ready(steps(jax.random.key(seed), state, aim, plan))

    return call


def measure_fits(size: str, graph: Graph, truth: Ising, data, clock) -> Iterator[dict[str, Any]]:
    """Seconds and errors of whole fits; the first call of each compiles."""
    given, results, compile_s, seconds = SIZES[size], {}, {}, {}
    fits = {
        "pcd": partial(fit_pcd, given),
        "pseudo-likelihood": learning.fit_pseudolikelihood,
        "probability flow": learning.fit_probability_flow,
    }
    if given.has_plain:
        fits["pseudo-likelihood, all items"] = fit_all_items
    for method, fit in fits.items():
        # programs depend on the number of steps of PCD, but not on that of the optimisers
        first = {} if method == "pcd" else {"max_iters": 1}
        taken = []
        for options in (first, {}):
            start = clock()
            result = jax.block_until_ready(fit(data, graph, **options))
            taken.append(clock() - start)
        results[method], seconds[method] = result, taken[1]
        compile_s[method] = max(0.0, taken[0] - taken[1]) if method == "pcd" else taken[0]
    for method, result in results.items():
        yield rows.row(
            CASE,
            method,
            size,
            num_items=given.num_items,
            compile_s=compile_s[method],
            run_s=[seconds[method]],
            quality={
                "rmse_couplings": rmse(result.model.couplings, truth.couplings),
                "rmse_fields": rmse(result.model.fields, truth.fields),
                "times_pcd": seconds[method] / seconds["pcd"],
                "num_iters": int(result.num_iters),
            },
        )


def fit_pcd(given: Size, data, graph: Graph):
    """PCD from zero, averaged over the second half of its steps."""
    return learning.fit_contrastive(
        jax.random.key(2),
        data,
        graph,
        num_chains=given.num_chains,
        num_steps=given.num_steps,
    )


def fit_all_items(data, graph: Graph, max_iters: int = 500) -> training.FitResult:
    """Maximum pseudo-likelihood with every item in every evaluation, as a user writes it."""
    model, gap, num_iters = training.minimize(
        minus_log_pseudolikelihood,
        Ising(jnp.zeros(graph.num_edges), jnp.zeros(graph.num_nodes)),
        args=(graph, jnp.asarray(data)),
        tolerance=1e-5,
        max_iters=max_iters,
    )
    return training.FitResult(model, model, model, None, gap, gap <= 1e-5, num_iters)


def minus_log_pseudolikelihood(model: Ising, graph: Graph, data) -> jax.Array:
    return -jnp.mean(log_pseudolikelihood(model, graph, data))


def rmse(found, truth) -> float:
    return float(np.sqrt(np.mean((np.asarray(found) - np.asarray(truth)) ** 2)))


if __name__ == "__main__":
    children.serve({"one_core": one_core}, sys.argv[1:])
