"""Which relations between 99 senators are of the same kind (Liu & Page, NIPS 2013, section 5).

Experiment 1 trains on the contested votes of the 109th Congress's first session and tests on its
second, experiment 2 the other way round. The paper learned the graph from both sessions; the
stricter variant learns it from the training session alone.
"""

import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import MCMC

from benchmarks import rows
from jaxmrf.datasets import senate109
from jaxmrf.diagnostics import num_groups, representative_grouping
from jaxmrf.distributions import ChineseRestaurantProcess, Ising
from jaxmrf.graphs import Graph
from jaxmrf.infer import ConcentrationGibbs, GroupGibbs, MRFGibbs, StrippedBeta
from jaxmrf.learning import structure
from jaxmrf.models import Ising as IsingModel
from jaxmrf.models import couplings_from_agreements, log_pseudolikelihood

NUM_EDGES = 279  # of the paper's graph
MAX_GROUPS = 48
SWEEPS = {"small": (20, 60), "full": (500, 2500)}  # warm-up and kept
PAPER = {1: {"minutes": 204, "gain": 32.1}, 2: {"minutes": 183, "gain": 44.0}}


def senate(graph: Graph, votes: np.ndarray, max_groups: int = MAX_GROUPS):
    """Agreement parameters of all edges, tied by a Dirichlet process."""
    alpha = numpyro.sample("alpha", dist.Gamma(1.0, 1.0))
    groups = numpyro.sample("groups", ChineseRestaurantProcess(alpha, graph.num_edges))
    with numpyro.plate("atoms", max_groups):
        phi = numpyro.sample("phi", dist.Uniform(0.0, 1.0))
    theta = numpyro.deterministic("theta", phi[groups])
    with numpyro.plate("votes", len(votes)):
        numpyro.sample("x", Ising.from_agreement(graph, theta), obs=votes)


def run(size: str, out: Path) -> list[dict[str, Any]]:
    data = senate109()
    sessions = data.session1, data.session2
    shared = structure.sparse_graph(np.concatenate(sessions), num_edges=NUM_EDGES).graph
    measured, pictured = [], None
    for source in ("both sessions", "training session") if size == "full" else ("both sessions",):
        for experiment, (train, test) in enumerate((sessions, sessions[::-1]), start=1):
            graph = shared
            if source == "training session":
                graph = structure.sparse_graph(train, num_edges=NUM_EDGES).graph
            pair, samples = run_experiment(experiment, source, graph, train, test, size)
            measured += pair
            pictured = pictured or (graph, samples)
    _print_table(measured)
    _picture(*pictured, data, out / "senate.png")
    return measured


def run_experiment(
    experiment, source, graph, train, test, size, method="stripped_beta", likelihood=None
):
    """Rows of the maximum likelihood and of the Bayesian estimate, and the posterior draws."""
    start = time.perf_counter()
    mle = StrippedBeta().maximum_likelihood(train, graph)
    mle_s = time.perf_counter() - start
    common = {"experiment": experiment, "graph": source, "edges": graph.num_edges}
    mle_row = rows.row(
        "senate",
        "mle_pcd",
        size,
        compile_s=None,  # within run_s: one cold call
        run_s=[mle_s],
        quality=_quality(graph, mle, train, test, NUM_EDGES),
        **common,
    )

    num_warmup, num_samples = SWEEPS[size]
    likelihood = StrippedBeta(estimate=mle) if likelihood is None else likelihood
    blocks = [
        (GroupGibbs(senate, likelihood=likelihood), ["groups", "phi"]),
        (ConcentrationGibbs(senate), ["alpha"]),  # NUTS does as well, and compiles longer
    ]
    mcmc = MCMC(
        MRFGibbs(blocks),
        num_warmup=num_warmup,
        num_samples=num_samples,
        num_chains=2,
        chain_method="vectorized",
    )
    start = time.perf_counter()
    mcmc.warmup(jax.random.key(experiment), graph, train)
    warmup_s = time.perf_counter() - start
    start = time.perf_counter()
    mcmc.run(jax.random.key(10 + experiment), graph, train)
    samples = jax.block_until_ready(mcmc.get_samples())
    samples_s = time.perf_counter() - start
    sweep_s = samples_s / num_samples
    run_s = mle_s + sweep_s * (num_warmup + num_samples)
    counts = num_groups(np.asarray(samples["groups"]))
    quality = _quality(graph, samples["theta"].mean(axis=0), train, test, counts.mean())
    quality["num_groups_sd"] = float(counts.std())
    quality["lpl_test_gain"] = quality["lpl_test"] - mle_row["quality"]["lpl_test"]
    bayes_row = rows.row(
        "senate",
        method,
        size,
        compile_s=max(0.0, warmup_s - num_warmup * sweep_s),
        run_s=[run_s],
        quality=quality,
        peak_mb=rows.peak_mb(),
        **common,
    )
    return [mle_row, bayes_row], samples


def _quality(graph, agreements, train, test, groups) -> dict[str, float]:
    """Total log pseudo-likelihood of both sessions, and the number of groups."""
    agreements = jnp.clip(jnp.asarray(agreements), 1e-4, 1 - 1e-4)
    model = IsingModel(couplings_from_agreements(agreements), jnp.zeros(graph.num_nodes))
    return {
        "lpl_train": float(log_pseudolikelihood(model, graph, train).sum()),
        "lpl_test": float(log_pseudolikelihood(model, graph, test).sum()),
        "num_groups": float(groups),
    }


def _print_table(measured: list[dict[str, Any]]) -> None:
    """The layout of the paper's Table 2."""
    print(f"{'graph of':17} {'exp':>3} {'method':14} {'LPL train':>10} {'LPL test':>10} "
          f"{'groups':>12} {'compile s':>9} {'run s':>6}")  # fmt: skip
    for row in measured:
        quality = row["quality"]
        groups = f"{quality['num_groups']:.1f}"
        if "num_groups_sd" in quality:
            groups += f" +- {quality['num_groups_sd']:.1f}"
        print(f"{row['graph']:17} {row['experiment']:3} {row['method']:14} "
              f"{quality['lpl_train']:10.2f} {quality['lpl_test']:10.2f} {groups:>12} "
              f"{row['compile_s'] or 0:9.1f} {row['run_s']['median']:6.1f}")  # fmt: skip
        if row["method"] == "stripped_beta":
            paper = PAPER[row["experiment"]]
            ratio = 60 * paper["minutes"] / ((row["compile_s"] or 0) + row["run_s"]["median"])
            print(f"{'':22} test gain over MLE {quality['lpl_test_gain']:+.1f} (paper "
                  f"{paper['gain']:+.1f}), {ratio:.0f} times faster than the paper's "
                  f"{paper['minutes']} min")  # fmt: skip


def _picture(graph, samples, data, path: Path) -> None:
    try:
        import matplotlib.pyplot as plt

        from jaxmrf import plots
    except ImportError:
        print("no picture: install the extra 'plots'")
        return
    labels = representative_grouping(np.asarray(samples["groups"][::10]))
    theta = np.asarray(samples["theta"].mean(axis=0))
    figure, ax = plt.subplots(figsize=(11, 8))
    plots.voting_network(graph, data.senators, data.parties, labels, theta, ax=ax)
    figure.savefig(path, dpi=120, bbox_inches="tight")
    print(f"picture in {path}")
