r"""What the factor hierarchy is measured beside: NumPy sweeps of it, and a latent linear model.

The sweeps take a hierarchy of two layers with linear-Gaussian observations and a weight for every
object and feature. They make the updates of ``jaxmrf.nonparametric.factor_hierarchy_gibbs``, in
double precision: once object by object, as published codes of the Indian buffet process do, and
once all objects at a time. Arrays have the size of the features that somebody has, and causes of
lower features are only looked at where the feature is on.
"""

from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit

__all__ = ["HierarchyPriors", "PeerState", "fit_latent_linear", "infer_latent_linear", "sweep"]

LARGEST_SHARE = np.log(30)
NODES, NODE_WEIGHTS = np.polynomial.legendre.leggauss(64)
SMALLEST_WEIGHT = 1e-34


class HierarchyPriors(NamedTuple):
    """Gamma and inverse gamma priors as shape and rate, and the two constants of the weights."""

    concentration: tuple[float, float] = (1.0, 1.0)
    noise_variance: tuple[float, float] = (1.0, 0.1)
    loading_variance: tuple[float, float] = (1.0, 0.1)
    strength: float = 1.0
    offset: float = 1.0


DEFAULT_PRIORS = HierarchyPriors()


class PeerState(NamedTuple):
    """The features that somebody has, features first, and what belongs to them."""

    upper: np.ndarray
    lower: np.ndarray
    upper_sticks: np.ndarray
    sticks: np.ndarray
    weights: np.ndarray
    activations: np.ndarray
    loadings: np.ndarray
    noise_variance: float
    loading_variance: float
    concentration: float


class Causes(NamedTuple):
    """Lower features that are on: rows are their objects, and log_off sums over their causes."""

    rows: np.ndarray
    columns: np.ndarray
    log_off: np.ndarray
    num_causes: np.ndarray


def sweep(
    rng: np.random.Generator,
    state: PeerState,
    data: np.ndarray,
    priors: HierarchyPriors = DEFAULT_PRIORS,
    *,
    is_looping: bool = False,
) -> PeerState:
    """The state after one sweep, object by object if it is looping."""
    update_upper = loop_upper if is_looping else vectorized_upper
    update_lower = loop_lower if is_looping else vectorized_lower
    draw_assignments = loop_assignments if is_looping else vectorized_assignments
    state, threshold = refresh_upper(rng, state, priors)
    state = without_empty_upper(state._replace(upper=update_upper(rng, state, priors, threshold)))
    state, threshold = refresh_lower(rng, state, priors, draw_assignments)
    residual = data - state.activations.T @ state.loadings
    lower, activations, residual = update_lower(rng, state, threshold, residual)
    state = without_empty_lower(state._replace(lower=lower, activations=activations))
    return update_parameters(rng, state, residual, priors)


def refresh_upper(rng, state: PeerState, priors: HierarchyPriors):
    """Frequencies of the upper layer, inactive features included; only those above the threshold.

    Features below it that somebody has are not to be updated.
    """
    num_objects = state.upper.shape[1]
    num_uses = state.upper.sum(axis=1)
    shape, rate = priors.concentration
    present = (1 / np.arange(1, num_objects + 1)).sum()
    concentration = rng.gamma(shape + len(state.upper)) / (rate + present)
    sticks = rng.beta(num_uses, 1 + num_objects - num_uses)
    threshold = np.exp(-LARGEST_SHARE * rng.random()) / num_objects
    new = inactive_sticks(rng, lambda u: num_objects * np.log1p(-u), concentration, threshold)
    on, off = priors.strength * state.sticks, priors.strength * (1 - state.sticks) + priors.offset
    rows = rng.beta(np.broadcast_to(on, (len(new), len(on))), off)
    return state._replace(
        upper=np.concatenate([state.upper, np.zeros((len(new), num_objects), bool)]),
        upper_sticks=np.concatenate([sticks, new]),
        weights=np.concatenate([state.weights, clip(rows)]),
    ), threshold


def inactive_sticks(rng, log_absence, concentration: float, threshold: float) -> np.ndarray:
    """Frequencies above the threshold of features that nobody has, by thinning."""
    if threshold >= 1:
        return np.zeros(0)
    num = rng.poisson(-concentration * np.log(threshold))
    sticks = threshold ** rng.random(num)
    return sticks[np.log(rng.random(num)) < log_absence(sticks)]


def shares(num_objects: int, priors: HierarchyPriors) -> np.ndarray:
    return priors.strength / (priors.strength + priors.offset + np.arange(num_objects))


def absence_table(sticks: np.ndarray, num_objects: int, priors: HierarchyPriors) -> np.ndarray:
    """What a parent of 0..N objects adds to the log-probability that nobody has a feature."""
    terms = np.log1p(-np.outer(shares(num_objects, priors), sticks))
    return np.concatenate([np.zeros((1, len(sticks))), np.cumsum(terms, axis=0)])


def expected_present(num_uses: np.ndarray, num_objects: int, priors: HierarchyPriors):
    """Quadrature of psi: its nodes' weights, the table of parents, log f at the nodes and psi."""
    mean_uses = np.cumsum(np.concatenate([[0], shares(num_objects, priors)]))[num_uses].sum()
    lowest = min(np.log(1e-4) - np.log(max(mean_uses, 1e-6)), 0.0)
    nodes = np.exp(lowest / 2 * (1 - NODES))
    node_weights = -lowest / 2 * NODE_WEIGHTS
    table = absence_table(nodes, num_objects, priors)
    log_absence = table[num_uses].sum(axis=0)
    psi = -(node_weights * np.expm1(log_absence)).sum() + mean_uses * np.exp(lowest)
    node_weights[0] += 1.0  # the smallest node answers for all below it
    return node_weights, table, log_absence, psi


def find_causes(upper: np.ndarray, lower: np.ndarray, log_failures: np.ndarray) -> Causes:
    columns, rows = np.nonzero(lower)
    log_off = upper.T.astype(float) @ log_failures
    return Causes(rows, columns, log_off[rows, columns], upper.sum(axis=0)[rows])


def upper_log_odds(causes: Causes, column, weights, log_failures, num_objects: int):
    """Log odds of a parent from the active features below; and the causes without it."""
    is_on = column[causes.rows]
    failures = log_failures[causes.columns]
    log_off = np.minimum(causes.log_off - is_on * failures, 0)
    others = causes._replace(log_off=log_off, num_causes=causes.num_causes - is_on)
    ratio = on_ratio(others, weights[causes.columns])
    gain = np.bincount(causes.rows, ratio - failures, minlength=num_objects)
    return gain + log_failures.sum(), others


def on_ratio(others: Causes, weights: np.ndarray) -> np.ndarray:
    """Log of P(on with one more cause) / P(on)."""
    below = np.where(others.num_causes > 0, np.minimum(others.log_off, -1e-300), 0)
    with np.errstate(divide="ignore"):  # infinite without another cause
        return np.log1p(weights * np.exp(below) / np.abs(np.expm1(below)))


def vectorized_upper(
    rng, state: PeerState, priors: HierarchyPriors, threshold: float
) -> np.ndarray:
    """Upper features, column by column; a column is taken or refused as a whole."""
    upper = state.upper.copy()
    num_objects = upper.shape[1]
    num_uses = upper.sum(axis=1)
    log_failures = np.log1p(-state.weights)
    node_weights, table, log_absence, _ = expected_present(num_uses, num_objects, priors)
    causes = find_causes(upper, state.lower, log_failures)
    for j in rng.permutation(np.flatnonzero(state.upper_sticks > threshold)):
        gain, others = upper_log_odds(
            causes, upper[j], state.weights[j], log_failures[j], num_objects
        )
        prior = np.log(state.upper_sticks[j]) - np.log1p(-state.upper_sticks[j])
        column = rng.random(num_objects) < expit(prior + gain)
        count = column.sum()
        moved = log_absence + table[count] - table[num_uses[j]]
        change = (node_weights * (np.exp(log_absence) - np.exp(moved))).sum()
        if np.log(rng.random()) < -state.concentration * change:
            upper[j], num_uses[j], log_absence = column, count, moved
        is_on = upper[j][causes.rows]
        causes = others._replace(
            log_off=others.log_off + is_on * log_failures[j][causes.columns],
            num_causes=others.num_causes + is_on,
        )
    return upper


def loop_upper(rng, state: PeerState, priors, threshold: float) -> np.ndarray:
    """Upper features, object by object."""
    upper = state.upper.T.copy()
    num_objects = len(upper)
    num_uses = upper.sum(axis=0)
    log_failures = np.log1p(-state.weights)
    node_weights, table, log_absence, _ = expected_present(num_uses, num_objects, priors)
    prior = np.log(state.upper_sticks) - np.log1p(-state.upper_sticks)
    order = rng.permutation(np.flatnonzero(state.upper_sticks > threshold))
    lower = state.lower.T.copy()
    for n in range(num_objects):
        is_on = np.flatnonzero(lower[n])
        failures, weights = log_failures[:, is_on], state.weights[:, is_on]
        none = log_failures.sum(axis=1) - failures.sum(axis=1)
        for j in order:
            without = log_absence + table[num_uses[j] - upper[n, j]] - table[num_uses[j]]
            num_others = num_uses[j] - upper[n, j]
            together = without + table[num_others + 1] - table[num_others]
            change = (node_weights * (np.exp(without) - np.exp(together))).sum()
            causes = upper[n].copy()
            causes[j] = False
            others = Causes(is_on, is_on, causes @ failures, causes.sum())
            odds = prior[j] + on_ratio(others, weights[j]).sum() + none[j]
            upper[n, j] = rng.random() < expit(odds - state.concentration * change)
            num_uses[j] = num_others + upper[n, j]
            log_absence = together if upper[n, j] else without
    return upper.T.copy()


def refresh_lower(rng, state: PeerState, priors: HierarchyPriors, draw_assignments):
    """Concentration, frequencies and weights of the lower layer, inactive features included."""
    num_objects = state.upper.shape[1]
    num_uses = state.upper.sum(axis=1)
    *_, present = expected_present(num_uses, num_objects, priors)
    shape, rate = priors.concentration
    concentration = rng.gamma(shape + len(state.lower)) / (rate + present)
    counts = draw_assignments(rng, state)
    strength, offset = priors.strength, priors.offset
    on, off = strength * state.sticks, strength * (1 - state.sticks)
    tables_on, tables_off = np.zeros(len(on), int), np.zeros(len(on), int)
    for successes, failures in zip(*counts, strict=True):
        tables_on += num_tables(rng, on, 0, successes)
        tables_off += num_tables(rng, off, offset, failures)
    sticks = rng.beta(np.maximum(tables_on, 1), 1 + tables_off)

    num_parents = (num_uses[:, None] > np.arange(num_objects)).sum(axis=0)
    share = shares(num_objects, priors)
    threshold = np.exp(-LARGEST_SHARE * rng.random()) / max(num_parents @ share, 1e-300)
    log_absence = lambda u: np.log1p(-np.outer(u, share)) @ num_parents  # noqa: E731
    new = inactive_sticks(rng, log_absence, concentration, threshold)

    weights = rng.beta(strength * sticks + counts[0], strength * (1 - sticks) + offset + counts[1])
    new_weights = rng.beta(strength * new, strength * (1 - new) + offset + num_uses[:, None])
    num_dims = state.loadings.shape[1]
    loadings = np.sqrt(state.loading_variance) * rng.normal(size=(len(new), num_dims))
    nobody = np.zeros((len(new), num_objects))
    return state._replace(
        concentration=concentration,
        sticks=np.concatenate([sticks, new]),
        weights=np.concatenate([clip(weights), clip(new_weights)], axis=1),
        lower=np.concatenate([state.lower, nobody.astype(bool)]),
        activations=np.concatenate([state.activations, nobody]),
        loadings=np.concatenate([state.loadings, loadings]),
    ), threshold


def num_tables(rng, concentration: np.ndarray, first: float, num_trials: np.ndarray) -> np.ndarray:
    """Sums of Bernoulli(a / (a + b + i)), i below the number of trials."""
    trials = np.arange(num_trials.max(initial=0))
    uniform = rng.random((len(concentration), len(trials)))
    a = concentration[:, None]
    is_success = uniform * (a + first + trials) < a
    return (is_success & (trials < num_trials[:, None])).sum(axis=1)


def vectorized_assignments(rng, state: PeerState) -> tuple[np.ndarray, np.ndarray]:
    """How often each parent switched a feature on, and how often it failed; all objects at once."""
    order = rng.permutation(len(state.upper))
    num_lower = len(state.lower)
    columns, rows = np.nonzero(state.lower)
    is_on = state.upper[order][:, rows]
    log_failures = np.log1p(-state.weights[order])
    sums = np.cumsum(is_on * log_failures[:, columns], axis=0)
    total = sums[-1:].sum(axis=0)  # also of no parents
    target = np.log1p(rng.random(len(rows)) * np.expm1(total))
    is_reached = sums <= np.maximum(target, total)
    first = is_reached.argmax(axis=0) if len(order) else rows
    successes = np.zeros((len(order), num_lower), int)
    failures = np.repeat(state.upper.sum(axis=1)[:, None], num_lower, axis=1)
    for position, j in enumerate(order):
        successes[j] = np.bincount(columns[first == position], minlength=num_lower)
        is_spared = is_on[position] & (first <= position)
        failures[j] -= np.bincount(columns[is_spared], minlength=num_lower)
    return successes, failures


def loop_assignments(rng, state: PeerState) -> tuple[np.ndarray, np.ndarray]:
    """The same, object by object."""
    order = rng.permutation(len(state.upper))
    upper, lower = state.upper[order].T.copy(), state.lower.T.copy()
    log_failures = np.log1p(-state.weights[order])
    successes = np.zeros(log_failures.shape, int)
    failures = np.zeros(log_failures.shape, int)
    for n in range(len(upper)):
        failures[upper[n]] += 1
        for k in np.flatnonzero(lower[n]):
            sums = np.cumsum(upper[n] * log_failures[:, k])
            target = np.log1p(rng.random() * np.expm1(sums[-1]))
            first = (sums <= max(target, sums[-1])).argmax()
            successes[first, k] += 1
            failures[first:, k] -= upper[n, first:]
    back = np.argsort(order)
    return successes[back], failures[back]


def lower_prior_odds(state: PeerState) -> np.ndarray:
    log_off = np.log1p(-state.weights).T @ state.upper
    log_off = np.where(state.upper.any(axis=0), np.minimum(log_off, -1e-300), 0)
    with np.errstate(divide="ignore"):
        return np.log(np.abs(np.expm1(log_off))) - log_off


def lower_log_odds(residual, activation, loading, noise_variance: float):
    """Log likelihood ratio of a feature, and mean and variance of its weights where it is on."""
    square = loading @ loading
    variance = 1 / (1 + square / noise_variance)
    mean = variance * (residual @ loading + activation * square) / noise_variance
    return (np.log(variance) + mean**2 / variance) / 2, mean, variance


def vectorized_lower(rng, state: PeerState, threshold: float, residual: np.ndarray):
    """Lower features and their weights, column by column."""
    lower, activations = state.lower.copy(), state.activations.copy()
    prior_odds = lower_prior_odds(state)
    for k in rng.permutation(np.flatnonzero(state.sticks > threshold)):
        loading = state.loadings[k]
        gain, mean, variance = lower_log_odds(
            residual, activations[k], loading, state.noise_variance
        )
        is_on = rng.random(len(mean)) < expit(prior_odds[k] + gain)
        weights = np.where(is_on, mean + np.sqrt(variance) * rng.normal(size=len(mean)), 0)
        residual -= np.outer(weights - activations[k], loading)
        lower[k], activations[k] = is_on, weights
    return lower, activations, residual


def loop_lower(rng, state: PeerState, threshold: float, residual: np.ndarray):
    """Lower features and their weights, object by object."""
    lower, activations = state.lower.T.copy(), state.activations.T.copy()
    prior_odds = lower_prior_odds(state).T.copy()
    order = rng.permutation(np.flatnonzero(state.sticks > threshold))
    for n in range(len(lower)):
        for k in order:
            loading = state.loadings[k]
            gain, mean, variance = lower_log_odds(
                residual[n], activations[n, k], loading, state.noise_variance
            )
            is_on = rng.random() < expit(prior_odds[n, k] + gain)
            weight = mean + np.sqrt(variance) * rng.normal() if is_on else 0.0
            residual[n] -= (weight - activations[n, k]) * loading
            lower[n, k], activations[n, k] = is_on, weight
    return lower.T.copy(), activations.T.copy(), residual


def update_parameters(rng, state: PeerState, residual, priors: HierarchyPriors) -> PeerState:
    """Loadings, one feature after the other, then both variances."""
    loadings = state.loadings.copy()
    for k, weights in enumerate(state.activations):
        square = weights @ weights
        precision = square / state.noise_variance + 1 / state.loading_variance
        mean = (weights @ residual + square * loadings[k]) / state.noise_variance / precision
        drawn = mean + rng.normal(size=mean.shape) / np.sqrt(precision)
        residual -= np.outer(weights, drawn - loadings[k])
        loadings[k] = drawn
    return state._replace(
        loadings=loadings,
        noise_variance=draw_variance(rng, priors.noise_variance, residual),
        loading_variance=draw_variance(rng, priors.loading_variance, loadings),
    )


def draw_variance(rng, prior: tuple[float, float], values: np.ndarray) -> float:
    shape, rate = prior
    return (rate + (values**2).sum() / 2) / rng.gamma(shape + values.size / 2)


def without_empty_upper(state: PeerState) -> PeerState:
    kept = state.upper.any(axis=1)
    sticks = state.upper_sticks[kept]
    return state._replace(upper=state.upper[kept], upper_sticks=sticks, weights=state.weights[kept])


def without_empty_lower(state: PeerState) -> PeerState:
    kept = state.lower.any(axis=1)
    return state._replace(
        lower=state.lower[kept],
        sticks=state.sticks[kept],
        weights=state.weights[:, kept],
        activations=state.activations[kept],
        loadings=state.loadings[kept],
    )


def clip(weights: np.ndarray) -> np.ndarray:
    return np.clip(weights, SMALLEST_WEIGHT, 1 - 1e-16)


def fit_latent_linear(
    rng: np.random.Generator,
    counts: np.ndarray,
    total_count: int,
    rank: int,
    ridge: float,
    num_iterations: int = 150,
) -> tuple[np.ndarray, np.ndarray]:
    r"""Loadings and intercepts of the mode of a generalised latent linear model.

    .. math:: x_{nt} \sim \mathrm{Binomial}(C, \sigma(u_n \cdot w_t + b_t)), \quad
              u_n \sim N(0, I / \lambda), \quad w_t \sim N(0, I)

    Args:
        rng: Source of randomness, for the start.
        counts: x.
        total_count: C.
        rank: Dimensions of u and w.
        ridge: lambda.
        num_iterations: Of L-BFGS, at most.
    """
    num_dims, num_scores = counts.shape[1], len(counts) * rank
    rates = (counts.mean(axis=0) + 0.1) / (total_count + 0.2)
    start = 0.1 * rng.normal(size=num_scores + rank * num_dims)
    start = np.concatenate([start, np.log(rates) - np.log1p(-rates)])

    def split(values):
        scores, loadings = values[:num_scores], values[num_scores:-num_dims]
        return scores.reshape(-1, rank), loadings.reshape(rank, -1), values[-num_dims:]

    def objective(values):
        scores, loadings, intercepts = split(values)
        loss, slope = binomial_loss(scores @ loadings + intercepts, counts, total_count)
        loss += (ridge * (scores**2).sum() + (loadings**2).sum()) / 2
        slopes = slope @ loadings.T + ridge * scores, scores.T @ slope + loadings, slope.sum(axis=0)
        return loss, np.concatenate([part.ravel() for part in slopes])

    found = minimize(
        objective, start, jac=True, method="L-BFGS-B", options={"maxiter": num_iterations}
    )
    return split(found.x)[1:]


def infer_latent_linear(
    loadings: np.ndarray,
    intercepts: np.ndarray,
    counts: np.ndarray,
    is_observed: np.ndarray,
    total_count: int,
    ridge: float,
    num_iterations: int = 300,
) -> np.ndarray:
    """Logits of all cells of new objects, at the mode of their scores given the observed cells."""
    shape = (len(counts), len(loadings))

    def objective(values):
        scores = values.reshape(shape)
        logits = scores @ loadings + intercepts
        loss, slope = binomial_loss(logits, counts, total_count, is_observed)
        slope = slope @ loadings.T + ridge * scores
        return loss + ridge * (scores**2).sum() / 2, slope.ravel()

    found = minimize(
        objective, np.zeros(np.prod(shape)), jac=True, method="L-BFGS-B",
        options={"maxiter": num_iterations},
    )  # fmt: skip
    return found.x.reshape(shape) @ loadings + intercepts


def binomial_loss(logits, counts, total_count, is_observed=True):
    """Negative log likelihood less its constant, and its slope in the logits."""
    loss = np.where(is_observed, total_count * np.logaddexp(0, logits) - counts * logits, 0)
    return loss.sum(), np.where(is_observed, total_count * expit(logits) - counts, 0)
