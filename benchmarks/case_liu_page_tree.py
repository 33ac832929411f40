"""Liu & Page (NIPS 2013), section 4.1: a tree of 8,190 edges in 25 groups.

Agreements of the ends of the edges of a tree are independent binomials, so the data are drawn
without the field, the blind and the oracle's maximum likelihood estimates are agreement rates, and
the grouped posterior is exact; its estimate is the posterior mean of 500 sweeps less burn-in. What
grouping can reach is measured too: the posterior mean given the values of all groups, though not
who belongs to which. Test log-likelihoods are expectations, per object.
"""

import time
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import softmax

from benchmarks import rows
from jaxmrf.datasets import grouped_agreements
from jaxmrf.diagnostics import variation_of_information_difference
from jaxmrf.graphs import binary_tree, sweep_plan
from jaxmrf.nonparametric import group_gibbs, parameter_groups
from jaxmrf.nonparametric.base_measures import BetaBase
from jaxmrf.nonparametric.label_updates import DEFAULT_RULE
from jaxmrf.nonparametric.parallel_labels import Parallel

NUM_GROUPS, MAX_GROUPS, CONCENTRATION, NUM_SWEEPS, BURN_IN = 25, 64, 1.0, 500, 100
# numbers of observations, depth of the tree, replicates
SIZES = {"small": ((100, 1000), 7, 1), "full": ((100, 200, 500, 1000), 12, 5)}
# draws whose groupings are compared with the truth
NUM_COMPARED = 8
METHODS = {
    "grouped_parallel": Parallel(),
    "grouped_parallel_without_moves": Parallel(num_split_merge=0),
    "grouped_sequential": DEFAULT_RULE,
}


def run(size: str, out: Path) -> list[dict[str, Any]]:
    counts, depth, num_replicates = SIZES[size]
    tree = binary_tree(depth)
    samplers = {
        name: _compile(partial(_sample, tree=tree, rule=rule), tree.num_edges)
        for name, rule in METHODS.items()
    }
    measured = []
    for num_items in counts:
        data = [_draw(num_items, seed, tree.num_edges) for seed in range(num_replicates)]

        def measure(method, compile_s, seconds, quality, num_items=num_items):
            names = quality[0]
            means = {name: np.mean([one[name] for one in quality]) for name in names}
            if len(quality) > 1:
                errors = [one["error"] for one in quality]
                means["error_se"] = np.std(errors, ddof=1) / np.sqrt(len(errors))
            measured.append(
                rows.row(
                    "liu_page_tree",
                    method,
                    size,
                    compile_s=compile_s,
                    run_s=seconds,  # of one replicate, one number for each
                    quality=means,
                    num_items=num_items,
                    nodes=tree.num_nodes,
                    replicates=len(quality),
                )
            )

        for name, estimate in BASELINES.items():
            found = [_timed(estimate, *one, num_items) for one in data]
            quality = [_quality(theta, one[0]) for (theta, _), one in zip(found, data, strict=True)]
            measure(name, None, [seconds for _, seconds in found], quality)
        for name, (sampler, compile_s) in samplers.items():
            # edge by edge a sweep takes many times as long: the most observations only
            if name == "grouped_sequential" and num_items != max(counts):
                continue
            timings, quality = [], []
            for seed, (theta, groups, successes) in enumerate(data):
                inputs = (jnp.asarray(successes, dtype=float), jnp.asarray(float(num_items)))
                draws, seconds = _timed(sampler, jax.random.key(seed), *inputs)
                timings.append(seconds)
                quality.append(
                    _quality(np.asarray(draws["theta"]), theta) | _grouping_quality(draws, groups)
                )
            measure(name, compile_s, timings, quality)
    return measured


def _compile(function, num_edges: int):
    """A sampler compiled for all numbers of observations, and the seconds that took."""
    start = time.perf_counter()
    inputs = (jax.random.key(0), jnp.zeros(num_edges), jnp.zeros(()))
    return jax.jit(function).lower(*inputs).compile(), time.perf_counter() - start


def _timed(function, *inputs):
    """A result, and the seconds of the call."""
    start = time.perf_counter()
    return jax.block_until_ready(function(*inputs)), time.perf_counter() - start


def _draw(num_items: int, seed: int, num_edges: int):
    """True agreements, true groups, and counts of agreements."""
    rng = np.random.default_rng((num_items, seed))
    theta, groups = grouped_agreements(rng, num_edges, NUM_GROUPS)
    return theta, groups, rng.binomial(num_items, theta)


def _blind(theta, groups, successes, num_items):
    return successes / num_items


def _oracle(theta, groups, successes, num_items):
    totals = np.bincount(groups, weights=successes) / num_items
    return (totals / np.maximum(np.bincount(groups), 1))[groups]


def _known_values(theta, groups, successes, num_items):
    """Posterior mean of every edge given the values of all groups, each as likely."""
    values = np.unique(theta)
    log_weights = np.outer(successes, np.log(values))
    log_weights += np.outer(num_items - successes, np.log1p(-values))
    return softmax(log_weights, axis=1) @ values


BASELINES = {"mle_blind": _blind, "mle_oracle": _oracle, "known_values": _known_values}


def _quality(estimate: np.ndarray, theta: np.ndarray) -> dict[str, float]:
    """Error, and the expected log-likelihood of a test object beside that of the truth."""

    def score(estimate):
        bounded = np.clip(estimate, 1e-3, 1 - 1e-3)  # a rate of 0 or 1 would score -inf
        root = np.log(0.5)
        return root + (theta * np.log(bounded) + (1 - theta) * np.log1p(-bounded)).sum()

    return {
        "error": np.abs(estimate - theta).mean(),
        "test_log_likelihood": score(estimate),
        "test_log_likelihood_true": score(theta),
    }


def _grouping_quality(draws: dict[str, jax.Array], groups: np.ndarray) -> dict[str, float]:
    differences = [
        variation_of_information_difference(groups, labels, num_random=5)
        for labels in np.asarray(draws["labels"])
    ]
    return {
        "vi_difference": np.mean(differences),
        "num_groups": np.asarray(draws["num_groups"])[BURN_IN:].mean(),
        "num_groups_true": len(np.unique(groups)),
        "is_truncated": float(draws["is_truncated"]),
    }


def _sample(key, successes, num_items, *, tree, rule):
    """Posterior mean, groupings and numbers of groups of a chain started by k-means."""
    key_init, key_steps = jax.random.split(key)
    plan = sweep_plan(tree)
    model = group_gibbs.StrippedBetaModel(successes, successes, num_items)
    num_clusters = np.floor(CONCENTRATION * np.log(tree.num_edges))
    labels, values = parameter_groups.cluster(
        successes / num_items, num_clusters, jnp.full(MAX_GROUPS, 0.5)
    )
    state = group_gibbs.init(
        key_init, labels, jnp.clip(values, 1e-3, 1 - 1e-3), plan, num_particles=1
    )
    every = (NUM_SWEEPS - BURN_IN) // NUM_COMPARED
    kept = jnp.zeros((NUM_COMPARED, tree.num_edges), labels.dtype)

    def body(carry, step):
        state, total, kept = carry
        index, key = step
        state, info = group_gibbs.step(
            key, state, model, tree, plan,
            concentration=CONCENTRATION, base=BetaBase(), rule=rule, num_refits=0,
        )  # fmt: skip
        theta = parameter_groups.tie(state.values, state.labels)
        total = total + jnp.where(index >= BURN_IN, theta, 0)
        kept = kept.at[jnp.maximum(index - BURN_IN, 0) // every].set(state.labels)
        return (state, total, kept), info.num_groups

    steps = (jnp.arange(NUM_SWEEPS), jax.random.split(key_steps, NUM_SWEEPS))
    carry = (state, jnp.zeros(tree.num_edges), kept)
    (state, total, kept), num_groups = jax.lax.scan(body, carry, steps)
    return {
        "theta": total / (NUM_SWEEPS - BURN_IN),
        "labels": kept,
        "num_groups": num_groups,
        "is_truncated": state.is_truncated,
    }
