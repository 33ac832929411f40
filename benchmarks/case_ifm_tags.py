"""Tags of artists: a latent linear model, the IBP and the hierarchy impute what is hidden.

As in Courville, Eck & Bengio (NIPS 2009), section 5.2: counts of 0..100 for 100 tags of 1000
training artists, binomial with a noisy-or of the factors. Of 600 other artists, 90 % of the cells,
chosen at random once, are hidden; what was learned is fixed, the factors of an artist are inferred
from the observed cells. Quality: `nll`, the mean over hidden cells of minus the log of the mean
probability of the count over all draws (of weights and factors); `latent_linear` is fitted by its
mode, rank and ridge chosen on the last fifth of the training artists, and has one draw. A draw in
which an artist has no factor gives its positive counts probability zero: `empty` is the share of
artists and draws, `impossible` the share of hidden cells that all draws rule out, which `nll`
counts as 745 nats, the smallest probability in double precision. The seconds of `ibp` and
`hierarchy` are those of a sweep.
"""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import gammaln
from tqdm import tqdm

from benchmarks import factor_chains, factor_peers, rows
from jaxmrf.datasets import ArtistTags, artist_tags
from jaxmrf.nonparametric import factor_hierarchy_gibbs, noisy_or_factors
from jaxmrf.nonparametric.factor_hierarchy import HierarchyState

CASE = "ifm_tags"
TOTAL = 100
HIDDEN = 0.9
WEIGHT_PRIOR = (0.1, 1.0)  # chosen for the IBP
START_RATE = 0.05
NUM_UPPER = 0  # at the start, beside the one that everybody has
LARGEST_NLL = 745.0
SWEEPS_A_DRAW = 20  # the later half counts
RANKS, RIDGES = (1, 2, 4), (10.0, 100.0, 1000.0, 10_000.0)
NUM_TOP, NUM_LEADING = 8, 5


class Size(NamedTuple):
    """One form of the case."""

    num_train: int
    num_test: int
    num_tags: int
    num_start: int
    num_burn_in: int
    num_draws: int
    seeds: int
    ranks: tuple[int, ...]
    ridges: tuple[float, ...]


SIZES = {
    "small": Size(150, 60, 20, 15, 20, 2, 1, RANKS[:1], RIDGES[1:3]),
    "full": Size(1000, 600, 100, 60, 100, 8, 5, RANKS, RIDGES),
}


class Hidden(NamedTuple):
    """Test artists, of whom only some cells are observed."""

    counts: np.ndarray
    is_observed: np.ndarray


def run(size: str, out: Path) -> list[dict[str, Any]]:
    folder = factor_chains.data_folder(CASE)
    if folder is None:
        return []
    form = SIZES[size]
    data = artist_tags(folder)
    train = data.train[: form.num_train, : form.num_tags]
    hidden = hide(data.test[: form.num_test, : form.num_tags])
    found, measured = {}, [latent_linear_row(size, form, train, hidden)]
    num_sweeps = form.num_burn_in + form.num_draws * factor_chains.CHUNK
    with tqdm(total=len(factor_chains.MODELS) * form.seeds * num_sweeps, desc=CASE) as bar:
        for model, num_layers in factor_chains.MODELS.items():
            chains = [learn(train, num_layers, seed, form, bar) for seed in range(form.seeds)]
            found[model] = [
                impute(chain, hidden) | factor_chains.shape_of(chain, "artist", (0.1, 0.5, 1.0))
                for chain in chains
            ]
            measured.append(factor_chains.model_row(CASE, size, model, chains, found[model]))
            print_factors(model, chains[0].state, data)
    measured[1]["quality"] |= gain_over(
        "latent_linear", measured[0]["quality"]["nll"], found["ibp"]
    )
    ibp = [one["nll"] for one in found["ibp"]]
    measured[2]["quality"] |= gain_over("ibp", ibp, found["hierarchy"])
    return measured


def hide(counts: np.ndarray) -> Hidden:
    return Hidden(counts, np.random.default_rng(9).random(counts.shape) >= HIDDEN)


def start(train: np.ndarray, num_layers: int, seed: int, num_start: int) -> HierarchyState:
    """A factor that everybody has, so that all counts are possible, and those of random artists."""
    rng = np.random.default_rng(seed)
    num_objects = len(train)
    models = rng.permutation(num_objects)[:num_start]
    lower = rng.random((num_objects, 1 + num_start)) < START_RATE
    lower[:, 0] = True
    lower[models, np.arange(1, 1 + num_start)] = True
    layers = factor_chains.start(rng, lower, num_layers, NUM_UPPER)
    rates = np.concatenate([train.mean(axis=0, keepdims=True) / 5, train[models]])
    weights = (rates + 0.1) / (TOTAL + 2)
    likelihood = noisy_or_factors.observe(
        train, TOTAL, factor_chains.CAPACITIES[-1], prior=WEIGHT_PRIOR
    )
    likelihood = replace(
        likelihood,
        log_weights=likelihood.log_weights.at[: len(weights)].set(np.log(weights)),
        log_failures=likelihood.log_failures.at[: len(weights)].set(np.log1p(-weights)),
    )
    return factor_hierarchy_gibbs.init(layers, likelihood)


def learn(train: np.ndarray, num_layers: int, seed: int, form: Size, bar) -> factor_chains.Chain:
    return factor_chains.run_chain(
        jax.random.key(seed),
        start(train, num_layers, seed, form.num_start),
        factor_chains.priors_of(num_layers),
        form.num_burn_in,
        form.num_draws,
        summarize,
        lambda state: learned(state, form),
        bar,
    )


def log_probability(likelihood, features, counts) -> jax.Array:
    """Of every count given the features, -inf where no feature is on but the count is positive."""
    log_off = likelihood.prepare(features).log_off()
    gain = jnp.where(counts > 0, counts * jnp.log(jnp.abs(jnp.expm1(log_off))), 0)
    return gain + (TOTAL - counts) * log_off


def summarize(state: HierarchyState, info) -> dict[str, jax.Array]:
    likelihood, features = state.likelihood, state.layers[-1].features
    log_probabilities = log_probability(likelihood, features, likelihood.successes)
    num_objects = features.shape[1]
    return {
        "log_likelihood": log_probabilities.mean(),  # of a cell, less the binomial coefficient
        "num_active": info.num_active,
        "features_per_object": jnp.stack([x.features.sum() / num_objects for x in state.layers]),
    }


class Learned(NamedTuple):
    """A draw for other artists."""

    layers: tuple
    log_weights: np.ndarray
    log_failures: np.ndarray


def learned(state: HierarchyState, form: Size) -> Learned:
    sizes = factor_chains.SIZES_OF_DRAWS[-len(state.layers) :]
    layers, slots = factor_chains.learned_layers(state.layers, form.num_test, sizes)
    log_weights = np.full((sizes[-1], form.num_tags), -80.0, np.float32)
    log_failures = np.full((sizes[-1], form.num_tags), -1e-35, np.float32)
    log_weights[: len(slots)] = np.asarray(state.likelihood.log_weights)[slots]
    log_failures[: len(slots)] = np.asarray(state.likelihood.log_failures)[slots]
    return Learned(layers, log_weights, log_failures)


def impute(chain: factor_chains.Chain, hidden: Hidden) -> dict[str, float]:
    """Quality of one chain on the hidden cells."""
    draws = jax.tree.map(lambda *values: jnp.asarray(np.stack(values)), *chain.draws)
    scores, empty = infer(jax.random.key(7), draws, *hidden)
    scores = np.asarray(scores, float) + log_choices(hidden.counts)
    return quality_of(-scores, hidden) | {"empty": float(empty)}


def log_choices(counts: np.ndarray) -> np.ndarray:
    return gammaln(TOTAL + 1) - gammaln(counts + 1) - gammaln(TOTAL - counts + 1)


def quality_of(loss: np.ndarray, hidden: Hidden) -> dict[str, float]:
    is_hidden, is_positive = ~hidden.is_observed, hidden.counts > 0
    impossible = np.isinf(loss)
    loss = np.where(impossible, LARGEST_NLL, loss)
    return {
        "nll": float(loss[is_hidden].mean()),
        "nll_of_zeros": float(loss[is_hidden & ~is_positive].mean()),
        "nll_of_others": float(loss[is_hidden & is_positive].mean()),
        "impossible": float(impossible[is_hidden].mean()),
    }


@jax.jit
def infer(key, draws: Learned, counts, is_observed):
    """Log of the mean probability of every count, and how often an artist has no factor."""
    num_draws, num_counted = len(draws.log_weights), SWEEPS_A_DRAW // 2
    counts = counts.astype(float)

    def one_draw(carry, inputs):
        features, scores = carry
        key, draw = inputs
        layers = [
            layer._replace(features=on) for layer, on in zip(draw.layers, features, strict=True)
        ]
        likelihood = noisy_or_factors.NoisyOrFactors(
            successes=jnp.where(is_observed, counts, 0),
            failures=jnp.where(is_observed, TOTAL - counts, 0),
            cells=None,
            log_weights=draw.log_weights,
            log_failures=draw.log_failures,
            is_learned=False,
        )

        def one_sweep(carry, index):
            layers, (total, num_empty) = carry
            key_sweep = jax.random.fold_in(key, index)
            layers, _ = factor_hierarchy_gibbs.step_objects(key_sweep, layers, likelihood)
            on = layers[-1].features
            is_counted = index >= SWEEPS_A_DRAW - num_counted
            score = jnp.where(is_counted, log_probability(likelihood, on, counts), -jnp.inf)
            num_empty = num_empty + is_counted * (~on.any(axis=0)).mean()
            return (layers, (jnp.logaddexp(total, score), num_empty)), None

        carry = (tuple(layers), scores)
        (layers, scores), _ = jax.lax.scan(one_sweep, carry, jnp.arange(SWEEPS_A_DRAW))
        return ([layer.features for layer in layers], scores), None

    features = [layer.features[0] for layer in draws.layers]
    carry = (features, (jnp.full(counts.shape, -jnp.inf), jnp.zeros(())))
    keys = jax.random.split(key, num_draws)
    (_, (total, num_empty)), _ = jax.lax.scan(one_draw, carry, (keys, draws))
    num = num_draws * num_counted
    return total - jnp.log(num), num_empty / num


def latent_linear_row(size: str, form: Size, train, hidden: Hidden) -> dict[str, Any]:
    """The latent linear model with the rank and ridge that impute best, fitted to all artists."""
    begin = time.perf_counter()
    num_fitted = len(train) * 4 // 5
    validation = hide(train[num_fitted:])
    losses = {}
    for rank in form.ranks:
        for ridge in form.ridges:
            rng = np.random.default_rng(0)
            loss = linear_loss(rng, train[:num_fitted], validation, rank, ridge)
            losses[rank, ridge] = quality_of(loss, validation)["nll"]
    rank, ridge = min(losses, key=losses.get)
    loss = linear_loss(np.random.default_rng(0), train, hidden, rank, ridge)
    return rows.row(
        CASE, "latent_linear", size,
        compile_s=None,
        run_s=[time.perf_counter() - begin],
        quality=quality_of(loss, hidden) | {"rank": rank, "ridge": ridge},
    )  # fmt: skip


def linear_loss(rng, train, hidden: Hidden, rank: int, ridge: float) -> np.ndarray:
    parameters = factor_peers.fit_latent_linear(rng, train, TOTAL, rank, ridge)
    logits = factor_peers.infer_latent_linear(*parameters, *hidden, TOTAL, ridge)
    gain = hidden.counts * logits - TOTAL * np.logaddexp(0, logits)
    return -gain - log_choices(hidden.counts)


def gain_over(name: str, losses, qualities) -> dict[str, float]:
    """How much lower the loss is than that of another model, and its standard error over seeds."""
    own = [one["nll"] for one in qualities]
    gain, error = factor_chains.compare(own, np.broadcast_to(losses, len(own)))
    found = {f"gain_over_{name}": gain}
    return found | ({f"gain_over_{name}_se": error} if len(own) > 1 else {})


def leading_tags(state: HierarchyState, tags: tuple[str, ...]) -> list[tuple[int, list[str]]]:
    """How many artists have each of the most frequent factors, and its tags of largest weight."""
    num_users = np.asarray(state.layers[-1].features.sum(axis=1))
    weights = np.exp(np.asarray(state.likelihood.log_weights))
    return [
        (int(num_users[k]), [tags[t] for t in np.argsort(-weights[k])[:NUM_LEADING]])
        for k in np.argsort(-num_users)[:NUM_TOP]
    ]


def print_factors(model: str, state: HierarchyState, data: ArtistTags) -> None:
    print(f"\n{model}: artists that have a factor, and its leading tags")
    for num_users, tags in leading_tags(state, data.tags):
        print(f"{num_users:5} {', '.join(tags)}")
