"""Grouped agreement parameters of 30x30 grids (Liu & Page, NIPS 2013, section 4.3).

Fields of 1,740 edges in 10 groups, drawn by long Gibbs runs; the estimates of the blind and of the
oracle's maximum likelihood by persistent contrastive divergence, and the posterior means under
the stripped Beta approximation and under the likelihood corrected by linear response.
"""

from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import rows
from jaxmrf.datasets import grouped_agreements
from jaxmrf.diagnostics import num_groups, variation_of_information_difference
from jaxmrf.graphs import grid, sweep_plan
from jaxmrf.infer import LinearResponse, StrippedBeta
from jaxmrf.learning import fit_contrastive, tied_couplings
from jaxmrf.models import (
    Ising,
    agreements_from_couplings,
    couplings_from_agreements,
    log_pseudolikelihood,
)
from jaxmrf.nonparametric import group_gibbs
from jaxmrf.nonparametric.base_measures import BetaBase
from jaxmrf.nonparametric.parallel_labels import Parallel
from jaxmrf.nonparametric.parameter_groups import cluster, tie
from jaxmrf.sampling import gibbs, sampler_plan

NUM_GROUPS, MAX_GROUPS, CONCENTRATION, NUM_TEST = 10, 96, 1.0, 500
SIZES = {  # side, {items: replicates}, sweeps of the chains and of burn-in, sweeps behind a draw
    "small": (8, {200: 1}, 40, 20, 200),
    "full": (30, {100: 1, 200: 1, 500: 1, 1000: 5}, 1000, 200, 2000),
}
SCALE_SIDES = {"small": (30,), "full": (250, 500, 1000)}
SCALE_ITEMS = 50


def run(size: str, out: Path) -> list[dict[str, Any]]:
    side, replicates, num_sweeps, burn_in, num_draw_sweeps = SIZES[size]
    graph = grid((side, side))
    rng = np.random.default_rng(0)
    results = []
    for num_items, count in replicates.items():
        measured = [
            _replicate(rng, graph, num_items, num_sweeps, burn_in, num_draw_sweeps)
            for _ in range(count)
        ]
        for method in measured[0]:
            several = [one[method] for one in measured]
            quality = {
                name: float(np.mean([one[name] for one in several]))
                for name in several[0]
                if not name.endswith("_s")
            }
            quality["error_max"] = max(one["error"] for one in several)
            seconds = [one["run_s"] for one in several]
            results.append(
                rows.row(
                    "liu_page_large",
                    method,
                    size,
                    compile_s=several[0]["compile_s"],
                    run_s=seconds,
                    quality=quality,
                    num_items=num_items,
                    replicates=count,
                    edges=graph.num_edges,
                )
            )
    return results + [_scale_row(size, side) for side in SCALE_SIDES[size]]


def _scale_row(size: str, side: int) -> dict[str, Any]:
    """One sweep under the stripped Beta approximation, all edges at once; not its quality."""
    graph = grid((side, side))
    plan = sweep_plan(graph)
    theta, _ = grouped_agreements(np.random.default_rng(0), graph.num_edges, NUM_GROUPS)
    truth = _field(theta, graph)
    start = gibbs.init(jax.random.key(0), truth, plan, num_chains=SCALE_ITEMS)
    draw = jax.jit(partial(gibbs.run, num_sweeps=50))
    states = draw(jax.random.key(1), start, truth, plan)
    first, second = graph.edges.T
    agreements = (states[first] == states[second]).sum(axis=1).astype(jnp.float32)
    estimate = (agreements + 0.5) / (SCALE_ITEMS + 1)
    model = group_gibbs.StrippedBetaModel(
        jnp.floor(SCALE_ITEMS * estimate), agreements, jnp.asarray(float(SCALE_ITEMS))
    )
    labels = jnp.minimum((8 * estimate).astype(jnp.int32), 7)
    values = jnp.full(32, 0.5).at[:8].set((jnp.arange(8) + 0.5) / 8)
    swept = sampler_plan(graph, Ising(None, None), num_chains=100)
    state = group_gibbs.init(jax.random.key(2), labels, values, swept, num_particles=100)
    step = partial(
        group_gibbs.step,
        graph=graph,
        plan=swept,
        concentration=CONCENTRATION,
        base=BetaBase(),
        rule=Parallel(),
    )
    timing = rows.time_jitted(step, jax.random.key(3), state, model, repeats=3)
    return rows.row(
        "liu_page_large",
        "stripped_beta, one sweep",
        size,
        compile_s=timing.compile_s,
        run_s=timing.run_s,
        quality={"ns_per_edge": 1e9 * timing.run_s["median"] / graph.num_edges},
        peak_mb=timing.peak_mb,
        side=side,
        num_items=SCALE_ITEMS,
        edges=graph.num_edges,
    )


def _replicate(rng, graph, num_items, num_sweeps, burn_in, num_draw_sweeps) -> dict[str, dict]:
    """Quality and seconds of every method on one data set."""
    theta, groups = grouped_agreements(rng, graph.num_edges, NUM_GROUPS)
    key = jax.random.key(rng.integers(2**31))
    key_data, key_chain = jax.random.split(key)
    truth = _field(theta, graph)
    plan = sweep_plan(graph)
    start = gibbs.init(key_data, truth, plan, num_chains=num_items + NUM_TEST)
    draw = jax.jit(partial(gibbs.run, num_sweeps=num_draw_sweeps))
    states = np.asarray(draw(key_data, start, truth, plan)).T
    data, test = states[:num_items], states[num_items:]

    def measure(estimate, run_s, compile_s=None, **quality):
        field = _field(estimate, graph)
        return {
            "error": float(np.abs(np.asarray(estimate) - theta).mean()),
            "lpl_test": float(log_pseudolikelihood(field, graph, jnp.asarray(test)).mean()),
            "run_s": run_s,
            "compile_s": compile_s,
            **quality,
        }

    measured, estimates = {"truth": measure(theta, 0.0)}, {}
    for method, labels in (("mle_pcd", np.arange(graph.num_edges)), ("oracle_pcd", groups)):
        began = perf_counter()
        fit = fit_contrastive(
            jax.random.key(0),
            data,
            graph,
            parameters=jnp.zeros(labels.max() + 1),
            build=tied_couplings(labels, graph.num_nodes),
        )
        estimates[method] = np.asarray(agreements_from_couplings(fit.model.couplings))
        measured[method] = measure(estimates[method], perf_counter() - began)
    mle = tuple(np.clip(estimates["mle_pcd"], 1e-4, 1 - 1e-4).tolist())
    for method, likelihood in (
        ("stripped_beta", StrippedBeta(estimate=mle)),
        ("linear_response", LinearResponse()),
    ):
        began = perf_counter()
        prepared, estimate = likelihood.prepare(data, graph)
        num_clusters = likelihood.start_clusters or np.floor(CONCENTRATION * np.log(len(theta)))
        labels, values = cluster(estimate, num_clusters, jnp.full(MAX_GROUPS, 0.5))
        values = jnp.clip(values, 0.01, 0.99)
        state = likelihood.init(key_chain, labels, values, prepared, graph, burn_in)
        keys = jax.random.split(key_chain, num_sweeps)
        options = StrippedBeta() if method == "stripped_beta" else likelihood
        compiled_from = perf_counter()
        compiled = _chain.lower(state, keys, prepared, graph=graph, likelihood=options).compile()
        compile_s = perf_counter() - compiled_from
        state, (draws, labels) = jax.block_until_ready(compiled(state, keys, prepared))
        run_s = perf_counter() - began - compile_s
        draws, labels = np.asarray(draws[burn_in:]), np.asarray(labels[burn_in:])
        quality = {
            "vi_difference": np.mean(
                [variation_of_information_difference(groups, one) for one in labels[::100]]
            ),
            "num_groups": num_groups(labels).mean(),
            "error_last_quarter": np.abs(draws[-len(draws) // 4 :].mean(axis=0) - theta).mean(),
        }
        if method == "linear_response":
            quality["surrogate_error"] = float(likelihood.surrogate_error(key_chain, state, graph))
        measured[method] = measure(draws.mean(axis=0), run_s, compile_s, **quality)
    return measured


@partial(jax.jit, static_argnames=("graph", "likelihood"))
def _chain(state, keys, prepared, *, graph, likelihood):
    """Agreements and labels of every sweep."""

    def body(state, key):
        state, _ = likelihood.step(key, state, prepared, graph, CONCENTRATION, BetaBase())
        return state, (tie(state.values, state.labels), state.labels)

    return jax.lax.scan(body, state, keys)


def _field(theta, graph) -> Ising:
    theta = jnp.clip(jnp.asarray(theta, jnp.float32), 1e-4, 1 - 1e-4)
    couplings = couplings_from_agreements(theta)
    return Ising(couplings, jnp.zeros(graph.num_nodes))
