"""Grouped agreement parameters of 4x4 grids (Liu & Page, NIPS 2013, section 4.2).

Fields of 24 edges in 5 groups, drawn exactly; the error of the blind and of the oracle's maximum
likelihood estimate, both exact, and of the posterior mean under the stripped Beta approximation.
"""

from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import logit, softmax

from benchmarks import rows
from jaxmrf.datasets import grouped_agreements
from jaxmrf.diagnostics import num_groups, variation_of_information_difference
from jaxmrf.exact import enumeration
from jaxmrf.graphs import grid, sweep_plan
from jaxmrf.nonparametric import group_gibbs, parameter_groups
from jaxmrf.nonparametric.base_measures import BetaBase

GRAPH = grid((4, 4))
NUM_GROUPS, MAX_GROUPS, CONCENTRATION = 5, 24, 1.0
SIZES = {  # numbers of observations, replicates, sweeps and burn-in
    "small": ((100, 1000), 2, 60, 20),
    "full": ((100, 200, 500, 1000), 20, 400, 100),
}
STATES = enumeration.configurations(GRAPH.num_nodes, 2)
# node 0 at state 0: the other half agrees on the same edges
AGREE = (STATES[::2, GRAPH.edges[:, 0]] == STATES[::2, GRAPH.edges[:, 1]]).astype(np.float32)


def run(size: str, out: Path) -> list[dict[str, Any]]:
    counts, num_replicates, num_sweeps, burn_in = SIZES[size]
    rng = np.random.default_rng(0)
    measured = []
    for num_items in counts:
        truths = [
            grouped_agreements(rng, GRAPH.num_edges, NUM_GROUPS) for _ in range(num_replicates)
        ]
        theta = np.stack([truth[0] for truth in truths])
        agreements = np.stack([_draw(rng, row, num_items) for row in theta])
        blind = np.broadcast_to(np.eye(GRAPH.num_edges), (num_replicates, *[GRAPH.num_edges] * 2))
        tied = np.stack([np.eye(GRAPH.num_edges)[truth[1]] for truth in truths])
        common = {"num_items": num_items, "replicates": num_replicates}

        def measure(method, timing, estimates, common=common, theta=theta, **quality):
            errors = np.abs(np.asarray(estimates) - theta).mean(axis=1)
            spread = errors.std(ddof=1) / np.sqrt(len(errors))
            seconds = {name: value / len(errors) for name, value in timing.run_s.items()}
            measured.append(
                rows.row(
                    "liu_page_small",
                    method,
                    size,
                    compile_s=timing.compile_s,
                    run_s=seconds,  # of one replicate
                    quality={"error": errors.mean(), "error_se": spread, **quality},
                    **common,
                )
            )

        rates = jnp.asarray(agreements / num_items)
        for method, tie in (("mle_exact", blind), ("oracle_mle", tied)):
            timing = rows.time_jitted(_maximum_likelihood, rates, jnp.asarray(tie))
            measure(method, timing, timing.result)
            mle = timing.result if method == "mle_exact" else mle
        timing = rows.time_jitted(
            partial(_posteriors, num_sweeps=num_sweeps),
            jax.random.split(jax.random.key(num_items), num_replicates),
            mle,
            jnp.asarray(agreements, dtype=float),
            jnp.asarray(float(num_items)),
        )
        draws, labels = (np.asarray(value)[:, burn_in:] for value in timing.result)
        measure("stripped_beta", timing, draws.mean(axis=1), **_grouping_quality(truths, labels))
    return measured


def _draw(rng: np.random.Generator, theta: np.ndarray, num_items: int) -> np.ndarray:
    """Agreement counts of exact draws of the field."""
    chosen = rng.choice(len(AGREE), num_items, p=softmax(AGREE.astype(float) @ logit(theta)))
    return AGREE[chosen].sum(axis=0)


@jax.jit
@jax.vmap
def _maximum_likelihood(rates, tie):
    """Exact estimate by damped Newton steps; columns of ``tie`` are groups of edges."""
    design = AGREE @ tie
    target = rates @ tie

    def body(_, values):
        weights = jax.nn.softmax(design @ values)
        mean = weights @ design
        curvature = (design * weights[:, None]).T @ design - jnp.outer(mean, mean)
        ridge = 1e-4 * jnp.eye(len(values))
        step = jnp.linalg.solve(curvature + ridge, target - mean)
        return jnp.clip(values + jnp.clip(step, -1.0, 1.0), -8.0, 8.0)

    values = jax.lax.fori_loop(0, 40, body, jnp.zeros(tie.shape[1]))
    return jax.nn.sigmoid(tie @ values)


def _posteriors(keys, estimates, agreements, num_items, *, num_sweeps):
    """Agreements and labels of every sweep, the concentration fixed as in the paper."""
    plan = sweep_plan(GRAPH)
    num_clusters = np.floor(CONCENTRATION * np.log(GRAPH.num_edges))

    def one(key, estimate, agreements):
        counts = jnp.floor(num_items * estimate)
        model = group_gibbs.StrippedBetaModel(counts, agreements, num_items)
        labels, values = parameter_groups.cluster(estimate, num_clusters, jnp.full(MAX_GROUPS, 0.5))
        values = jnp.clip(values, 0.01, 0.99)
        key_init, key_steps = jax.random.split(key)
        state = group_gibbs.init(key_init, labels, values, plan, num_particles=200)

        def body(state, key):
            state, _ = group_gibbs.step(
                key, state, model, GRAPH, plan, concentration=CONCENTRATION, base=BetaBase()
            )
            return state, (parameter_groups.tie(state.values, state.labels), state.labels)

        return jax.lax.scan(body, state, jax.random.split(key_steps, num_sweeps))[1]

    return jax.vmap(one)(keys, estimates, agreements)


def _grouping_quality(truths, labels) -> dict[str, float]:
    differences = [
        np.mean([variation_of_information_difference(truth[1], one) for one in draws[::20]])
        for truth, draws in zip(truths, labels, strict=True)
    ]
    return {
        "vi_difference": np.mean(differences),
        "vi_difference_min": np.min(differences),
        "num_groups": np.mean([num_groups(draws).mean() for draws in labels]),
        "num_groups_true": np.mean([len(np.unique(truth[1])) for truth in truths]),
    }
