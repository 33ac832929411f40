"""Grouped agreement parameters of 4x4 grids (Liu & Page, NIPS 2013, section 4.2).

Fields of 24 edges in 5 groups, drawn exactly; the error of the blind and of the oracle's maximum
likelihood estimate, both exact, and of the posterior mean: with the exact likelihood, under the
stripped Beta approximation, with messages by linear response, and by auxiliary variables.
"""

from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import logit, softmax

from benchmarks import rows
from jaxmrf.datasets import grouped_agreements
from jaxmrf.diagnostics import num_groups, variation_of_information_difference
from jaxmrf.exact import enumeration
from jaxmrf.graphs import frontier_plan, grid, sweep_plan
from jaxmrf.nonparametric import (
    expansion,
    group_auxiliary,
    group_corrected,
    group_exact,
    group_gibbs,
    parameter_groups,
)
from jaxmrf.nonparametric.base_measures import BetaBase
from jaxmrf.nonparametric.group_exact import EdgeCounts
from jaxmrf.nonparametric.particle_sources import ParticleSource

GRAPH = grid((4, 4))
NUM_GROUPS, MAX_GROUPS, CONCENTRATION = 5, 24, 1.0
PRIOR = {"concentration": CONCENTRATION, "base": BetaBase()}
SIZES = {  # numbers of observations, replicates, those with auxiliary variables, sweeps, burn-in
    "small": ((100,), 2, 1, 20, 8),
    "full": ((100, 200, 300, 500, 1000), 50, 3, 400, 100),
}
PAPER_EXACT_S = {100: 88_136, 500: 91_055, 1000: 92_503}  # Table 1, Gibbs_ExactL
PAPER_AUXILIARY_S = {100: 540, 500: 3342, 1000: 4547}  # Table 1, MH AuxVar
STATES = enumeration.configurations(GRAPH.num_nodes, 2)
# node 0 at state 0: the other half agrees on the same edges
AGREE = (STATES[::2, GRAPH.edges[:, 0]] == STATES[::2, GRAPH.edges[:, 1]]).astype(np.float32)


def run(size: str, out: Path) -> list[dict[str, Any]]:
    counts, num_replicates, num_auxiliary, num_sweeps, burn_in = SIZES[size]
    rng = np.random.default_rng(0)
    measured = []
    for num_items in counts:
        data = _simulate(rng, num_items, num_replicates)
        rates = jnp.asarray(data.agreements / num_items)
        estimates, timings, labels = {}, {}, {}
        for method, tie in (("mle_exact", data.blind), ("oracle_mle", data.tied)):
            timings[method] = rows.time_jitted(_maximum_likelihood, rates, jnp.asarray(tie))
            estimates[method] = np.asarray(timings[method].result)
        arguments = (
            jax.random.split(jax.random.key(num_items), num_replicates),
            jnp.asarray(estimates["mle_exact"]),
            jnp.asarray(data.agreements, dtype=float),
            jnp.asarray(float(num_items)),
        )
        extras = {}
        for method, chain in CHAINS.items():
            chains = jax.vmap(partial(chain, num_sweeps=num_sweeps), in_axes=(0, 0, 0, None))
            timings[method] = rows.time_jitted(chains, *arguments, repeats=1)  # of many chains
            draws, found, extra = jax.tree.map(np.asarray, timings[method].result)
            estimates[method] = draws[:, burn_in:].mean(axis=1)
            labels[method] = found[:, burn_in:]
            extras[method] = {name: value.mean() for name, value in extra.items()}
        errors = {
            name: np.abs(value - data.theta).mean(axis=1) for name, value in estimates.items()
        }
        for method, error in errors.items():
            quality = {"error": error.mean(), "error_se": _standard_error(error)}
            if method in CHAINS:
                gap = error - errors["exact_gibbs"]
                quality |= {"excess_over_exact": gap.mean(), "excess_se": _standard_error(gap)}
                quality |= _grouping_quality(data.groups, labels[method]) | extras[method]
            seconds = timings[method].run_s.items()
            measured.append(
                rows.row(
                    "liu_page_small",
                    method,
                    size,
                    compile_s=timings[method].compile_s,
                    run_s={name: value / num_replicates for name, value in seconds},
                    quality=quality,
                    num_items=num_items,
                    replicates=num_replicates,
                )
            )
        one = [leaf if leaf.ndim == 0 else leaf[0] for leaf in arguments]
        timing = rows.time_jitted(partial(_exact, num_sweeps=100), *one)
        measured.append(
            rows.row(
                "liu_page_small",
                "exact_gibbs, one run of 100 sweeps",
                size,
                compile_s=timing.compile_s,
                run_s=timing.run_s,
                quality={"paper_s": PAPER_EXACT_S[num_items]} if num_items in PAPER_EXACT_S else {},
                num_items=num_items,
                replicates=1,
            )
        )
        if num_items in PAPER_AUXILIARY_S:
            stripped = labels["stripped_beta"][:num_auxiliary]
            measured += _auxiliary_rows(size, data, arguments, stripped, num_sweeps, burn_in)
    return measured


def _auxiliary_rows(size, data, arguments, stripped, num_sweeps, burn_in) -> list[dict[str, Any]]:
    """Rows of both auxiliary-variable schemes on the first replicates, one run after the other."""
    keys, mle, agreements, num_items = arguments
    source = ParticleSource(GRAPH, int(num_items), method="exact")
    measured = []
    for scheme in ("exchange", "moller"):
        chain = jax.jit(partial(_auxiliary, source=source, scheme=scheme, num_sweeps=num_sweeps))
        timings = [
            rows.time_jitted(chain, keys[i], mle[i], agreements[i], num_items, repeats=1)
            for i in range(len(stripped))
        ]
        results = [jax.tree.map(np.asarray, timing.result) for timing in timings]
        theta = np.stack([draws[burn_in:].mean(axis=0) for draws, _, _ in results])
        labels = [found[burn_in:] for _, found, _ in results]
        error = np.abs(theta - data.theta[: len(theta)]).mean(axis=1)
        groups = data.groups[: len(theta)]
        quality = _grouping_quality(groups, labels)
        stripped_quality = _grouping_quality(groups, stripped)
        measured.append(
            rows.row(
                "liu_page_small",
                f"auxiliary variable, {scheme}",
                size,
                compile_s=timings[0].compile_s,
                run_s=[timing.run_s["median"] for timing in timings],
                quality={
                    "error": error.mean(),
                    **quality,
                    "vi_difference_stripped_beta": stripped_quality["vi_difference"],
                    **{
                        name: np.mean([extra[name].mean() for _, _, extra in results])
                        for name in ("accept_labels", "accept_values")
                    },
                    "paper_s": PAPER_AUXILIARY_S[int(num_items)],
                },
                num_items=int(num_items),
                replicates=len(theta),
            )
        )
    return measured


class _Data(NamedTuple):
    """Replicates of one experiment, and the design of the blind and the oracle's estimate."""

    theta: np.ndarray
    groups: np.ndarray
    agreements: np.ndarray
    blind: np.ndarray
    tied: np.ndarray


def _simulate(rng: np.random.Generator, num_items: int, num_replicates: int) -> _Data:
    truths = [grouped_agreements(rng, GRAPH.num_edges, NUM_GROUPS) for _ in range(num_replicates)]
    theta, groups = (np.stack(leaves) for leaves in zip(*truths, strict=True))
    agreements = np.stack([_draw(rng, row, num_items) for row in theta])
    blind = np.broadcast_to(np.eye(GRAPH.num_edges), (num_replicates, *[GRAPH.num_edges] * 2))
    return _Data(theta, groups, agreements, blind, np.eye(GRAPH.num_edges)[groups])


def _standard_error(values: np.ndarray) -> float:
    return values.std(ddof=1) / np.sqrt(len(values))


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


def _start(estimate, num_clusters=None):
    """Labels and values of a k-means clustering of the estimate, by default as in the paper."""
    if num_clusters is None:
        num_clusters = np.floor(CONCENTRATION * np.log(GRAPH.num_edges))
    labels, values = parameter_groups.cluster(estimate, num_clusters, jnp.full(MAX_GROUPS, 0.5))
    return labels, jnp.clip(values, 0.01, 0.99)


def _run(step, state, key, num_sweeps):
    """Agreements and labels of every sweep, the concentration fixed as in the paper."""

    def body(state, inputs):
        state, info = step(*inputs, state)
        return state, (parameter_groups.tie(state.values, state.labels), state.labels, info)

    keys = jax.random.split(key, num_sweeps)
    state, (draws, labels, info) = jax.lax.scan(body, state, (jnp.arange(num_sweeps), keys))
    return state, draws, labels, info


def _stripped(key, estimate, agreements, num_items, *, num_sweeps):
    counts = jnp.floor(num_items * estimate)
    model = group_gibbs.StrippedBetaModel(counts, agreements, num_items)
    plan = sweep_plan(GRAPH)
    key_init, key_steps = jax.random.split(key)

    def step(_, key, state):
        return group_gibbs.step(key, state, model, GRAPH, plan, **PRIOR)

    state = group_gibbs.init(key_init, *_start(estimate), plan, num_particles=200)
    _, draws, labels, _ = _run(step, state, key_steps, num_sweeps)
    return draws, labels, {}


def _exact(key, estimate, agreements, num_items, *, num_sweeps):
    model, plan = EdgeCounts(agreements, num_items), frontier_plan(GRAPH)

    def step(_, key, state):
        return group_exact.step(key, state, model, GRAPH, plan, **PRIOR)

    _, draws, labels, info = _run(step, group_exact.init(*_start(estimate)), key, num_sweeps)
    return draws, labels, {"accept_prob": info.accept_prob}


def _linear_response(key, estimate, agreements, num_items, *, num_sweeps, expand):
    """Expansions after 1, 2, 4, ... sweeps of the burn-in and at its end."""
    model = EdgeCounts(agreements, num_items)
    key_start, key_init, key_steps = jax.random.split(key, 3)
    particles = jax.random.randint(key_start, (GRAPH.num_nodes, 150), 0, 2, dtype=jnp.int8)
    burn_in = num_sweeps // 4
    is_due = np.zeros(num_sweeps, bool)
    is_due[[2**i - 1 for i in range(20) if 2**i < burn_in] + [burn_in - 1]] = True

    def step(i, key, state):
        key_step, key_expand = jax.random.split(key)
        state, info = group_corrected.step(key_step, state, model, **PRIOR)
        recenter = lambda: group_corrected.recenter(key_expand, state, expand)  # noqa: E731
        return jax.lax.cond(jnp.asarray(is_due)[i], recenter, lambda: state), info

    start = _start(estimate, MAX_GROUPS // 2)
    state = group_corrected.init(key_init, *start, estimate, particles, expand)
    state, draws, labels, _ = _run(step, state, key_steps, num_sweeps)
    return draws, labels, {"surrogate_error": state.surrogate_error}


def _auxiliary(key, estimate, agreements, num_items, *, source, scheme, num_sweeps):
    model = EdgeCounts(agreements, num_items)
    key_init, key_steps = jax.random.split(key)
    options = {"estimate": jnp.clip(estimate, 1e-3, 1 - 1e-3)} if scheme == "moller" else {}

    def step(_, key, state):
        return group_auxiliary.step(key, state, model, source, scheme=scheme, **options, **PRIOR)

    state = group_auxiliary.init(key_init, *_start(estimate), source)
    _, draws, labels, info = _run(step, state, key_steps, num_sweeps)
    extra = {"accept_labels": info.accept_labels, "accept_values": info.accept_values}
    return draws, labels, extra


def _sample_moments(key, center, particles):
    return expansion.by_sampling(
        key, center, particles, GRAPH, sweep_plan(GRAPH), num_snapshots=100
    )


def _exact_moments(key, center, particles):
    return expansion.by_transfer(center, GRAPH, frontier_plan(GRAPH)), particles


CHAINS = {
    "stripped_beta": _stripped,
    "exact_gibbs": _exact,
    "linear_response, exact moments": partial(_linear_response, expand=_exact_moments),
    "linear_response": partial(_linear_response, expand=_sample_moments),
}


def _grouping_quality(groups, labels) -> dict[str, float]:
    """Quality of every 20th grouping of every replicate."""
    differences = [
        np.mean([variation_of_information_difference(truth, one) for one in found[::20]])
        for truth, found in zip(groups, labels, strict=True)
    ]
    return {
        "vi_difference": np.mean(differences),
        "vi_difference_min": np.min(differences),
        "num_groups": np.mean([num_groups(found).mean() for found in labels]),
        "num_groups_true": np.mean([len(np.unique(truth)) for truth in groups]),
    }
