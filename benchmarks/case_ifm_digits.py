r"""Factors of handwritten threes: one layer (the IBP) beside the hierarchy of two.

As in Courville, Eck & Bengio (NIPS 2009), section 5.1: 1000 training threes in 64 principal
components, linear-Gaussian with a weight for every digit and factor, hyperparameters chosen for
the IBP and kept. Gaussian noise of standard deviation 0.5 is added to all 64 components of 500
other threes; what was learned is fixed, their factors are inferred from the noisy components (the
noise variance is then sigma^2 + 0.25). Quality, per test digit: `log_likelihood`, the log of the
mean over draws of N(clean; (z g) theta, sigma^2 I); `log_predictive`, that of the mean of
p(clean | noisy, z, theta), weights integrated out, once a draw; the squared error of the mean
(z g) theta per component, 0.25 before denoising. `gaussian` is one Gaussian of the training
covariance. The seconds of all rows but that one are those of a sweep: of a chain's, or from a
state it reached.
"""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_solve
from sklearn.decomposition import PCA
from tqdm import tqdm

from benchmarks import factor_chains, factor_peers, rows
from jaxmrf.datasets import handwritten_threes
from jaxmrf.nonparametric import factor_hierarchy, factor_hierarchy_gibbs, gaussian_factors
from jaxmrf.nonparametric.factor_hierarchy import HierarchyState
from jaxmrf.nonparametric.gaussian_factors import GaussianFactors

CASE = "ifm_digits"
NOISE = 0.5
NOISE_PRIOR, LOADING_PRIOR = (1.0, 0.1), (1.0, 0.1)  # shape and rate, chosen for the IBP
NUM_UPPER = 12  # at the start, beside the one that everybody has
START_RATE, START_NOISE, START_SPREAD = 0.1, 0.3, 0.3
SWEEPS_A_DRAW = 10  # the later half counts


class Size(NamedTuple):
    """One form of the case."""

    num_train: int
    num_test: int
    num_dims: int
    num_start: int
    num_burn_in: int
    num_draws: int
    seeds: int
    scale: tuple[int, ...]


SIZES = {
    "small": Size(200, 50, 16, 24, 20, 2, 1, (1000,)),
    "full": Size(1000, 500, 64, 128, 200, 15, 5, (6000, 20_000, 60_000)),
}


def run(size: str, out: Path) -> list[dict[str, Any]]:
    folder = factor_chains.data_folder(CASE)
    if folder is None:
        return []
    form = SIZES[size]
    train, test, _ = components(folder, form)
    measured = [gaussian_row(size, train, test)]
    found = {}
    num_sweeps = form.num_burn_in + form.num_draws * factor_chains.CHUNK
    with tqdm(total=len(factor_chains.MODELS) * form.seeds * num_sweeps, desc=CASE) as bar:
        for model, num_layers in factor_chains.MODELS.items():
            chains = [learn(train, num_layers, seed, form, bar) for seed in range(form.seeds)]
            qualities = [
                denoise(chain, *noisy(test, seed)) | digit_shape(chain)
                for seed, chain in enumerate(chains)
            ]
            found[model] = chains[0], qualities
            facts = {"num_digits": len(train)}
            measured.append(factor_chains.model_row(CASE, size, model, chains, qualities, **facts))
    measured[-1]["quality"] |= gains(found)
    measured += peer_rows(size, found["hierarchy"][0], train)
    return measured + scale_rows(size, form)


def components(folder: Path, form: Size) -> tuple[np.ndarray, np.ndarray, PCA]:
    """Principal components of training and test pictures, of a fit to the training ones."""
    pictures = handwritten_threes(folder)
    flat = [values.reshape(len(values), -1) for values in pictures]
    pca = PCA(form.num_dims, svd_solver="full").fit(flat[0][: form.num_train])
    train, test = pca.transform(flat[0][: form.num_train]), pca.transform(flat[1][: form.num_test])
    return train.astype(np.float32), test.astype(np.float32), pca


def noisy(test: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The clean and the noisy digits; the noise of a seed is that of all models."""
    noise = np.random.default_rng(1000 + seed).normal(size=test.shape)
    return test, (test + NOISE * noise).astype(np.float32)


def start(train: np.ndarray, num_layers: int, seed: int, num_start: int) -> HierarchyState:
    """Factors along the differences of random pairs of digits, of random digits."""
    rng = np.random.default_rng(seed)
    num_objects = len(train)
    first, second = (rng.permutation(num_objects)[:num_start] for _ in range(2))
    lower = rng.random((num_objects, num_start)) < START_RATE
    loadings = START_SPREAD * (train[first] - train[second])
    layers = factor_chains.start(rng, lower, num_layers, NUM_UPPER)
    weights = rng.normal(size=(num_start, num_objects))
    likelihood = observe(train, factor_chains.CAPACITIES[-1], loadings, weights, START_NOISE)
    return factor_hierarchy_gibbs.init(layers, likelihood)


def observe(data, capacity: int, loadings, activations, noise_variance: float):
    """The likelihood of data, with given parameters of its first features."""
    likelihood = gaussian_factors.observe(
        data,
        capacity,
        noise_variance=noise_variance,
        loading_variance=START_NOISE,
        noise_prior=NOISE_PRIOR,
        loading_prior=LOADING_PRIOR,
        has_weights=True,
    )
    num = len(loadings)
    return replace(
        likelihood,
        loadings=likelihood.loadings.at[:num].set(loadings),
        activations=likelihood.activations.at[:num].set(activations),
    )


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


def summarize(state: HierarchyState, info) -> dict[str, jax.Array]:
    likelihood, features = state.likelihood, state.layers[-1].features
    activations = jnp.where(features, likelihood.activations, 0)
    residual = likelihood.data - activations.T @ likelihood.loadings
    variance = likelihood.noise_variance
    log_densities = -(residual**2 / variance + jnp.log(2 * jnp.pi * variance)) / 2
    num_objects = features.shape[1]
    return {
        "log_likelihood": log_densities.sum() / num_objects,
        "num_active": info.num_active,
        "features_per_object": jnp.stack([x.features.sum() / num_objects for x in state.layers]),
        "noise_variance": variance,
    }


class Learned(NamedTuple):
    """A draw for other objects."""

    layers: tuple
    loadings: np.ndarray
    noise_variance: np.ndarray


def learned(state: HierarchyState, form: Size) -> Learned:
    sizes = factor_chains.SIZES_OF_DRAWS[-len(state.layers) :]
    layers, slots = factor_chains.learned_layers(state.layers, form.num_test, sizes)
    loadings = np.zeros((sizes[-1], form.num_dims), np.float32)
    loadings[: len(slots)] = np.asarray(state.likelihood.loadings)[slots]
    return Learned(layers, loadings, np.asarray(state.likelihood.noise_variance))


def denoise(chain: factor_chains.Chain, clean: np.ndarray, noisy: np.ndarray) -> dict[str, float]:
    """Quality of one chain on the test digits."""
    draws = jax.tree.map(lambda *values: jnp.asarray(np.stack(values)), *chain.draws)
    scores = infer(jax.random.key(7), draws, clean, noisy)
    log_likelihood, log_predictive, denoised = (np.asarray(values) for values in scores)
    return {
        "log_likelihood": float(log_likelihood.mean()),
        "log_predictive": float(log_predictive.mean()),
        "squared_error": float(((denoised - clean) ** 2).mean()),
    }


@jax.jit
def infer(key, draws: Learned, clean, noisy):
    """Log of mean densities of each digit over all draws, and the digits without noise."""
    num_draws, (num_test, num_dims) = len(draws.noise_variance), clean.shape
    num_counted = SWEEPS_A_DRAW // 2

    def one_draw(carry, inputs):
        features, activations, scores = carry
        key, draw = inputs
        layers = [
            layer._replace(features=on) for layer, on in zip(draw.layers, features, strict=True)
        ]
        likelihood = GaussianFactors(
            data=noisy,
            loadings=draw.loadings,
            activations=activations,
            noise_variance=draw.noise_variance + NOISE**2,
            loading_variance=jnp.ones(()),
            has_weights=True,
            is_learned=False,
        )

        def one_sweep(index, carry):
            key_sweep = jax.random.fold_in(key, index)
            return factor_hierarchy_gibbs.step_objects(key_sweep, *carry)

        def counted_sweep(index, carry):
            objects, (log_likelihood, total) = carry
            layers, likelihood = objects = one_sweep(index, objects)
            mean = jnp.where(layers[-1].features, likelihood.activations, 0).T @ draw.loadings
            density = log_normal(clean - mean, draw.noise_variance)
            return objects, (jnp.logaddexp(log_likelihood, density), total + mean)

        num_free = SWEEPS_A_DRAW - num_counted
        objects = jax.lax.fori_loop(0, num_free, one_sweep, (tuple(layers), likelihood))
        log_likelihood, log_predictive, total = scores
        (layers, likelihood), (log_likelihood, total) = jax.lax.fori_loop(
            num_free, SWEEPS_A_DRAW, counted_sweep, (objects, (log_likelihood, total))
        )
        predictive = log_predictive_density(layers[-1].features, draw, clean, noisy)
        scores = log_likelihood, jnp.logaddexp(log_predictive, predictive), total
        return ([layer.features for layer in layers], likelihood.activations, scores), None

    none = jnp.full(num_test, -jnp.inf)
    features = [layer.features[0] for layer in draws.layers]
    activations = jnp.zeros(features[-1].shape)
    carry = (features, activations, (none, none, jnp.zeros((num_test, num_dims))))
    keys = jax.random.split(key, num_draws)
    (_, _, scores), _ = jax.lax.scan(one_draw, carry, (keys, draws))
    num = num_draws * num_counted
    return scores[0] - jnp.log(num), scores[1] - jnp.log(num_draws), scores[2] / num


def log_normal(residual: jax.Array, variance: jax.Array) -> jax.Array:
    return -(residual**2 / variance + jnp.log(2 * jnp.pi * variance)).sum(axis=-1) / 2


def log_predictive_density(on, draw: Learned, clean, noisy) -> jax.Array:
    """Log p(clean | noisy, z, theta), the weights integrated out."""
    outer = draw.loadings[:, :, None] * draw.loadings[:, None, :]
    num_dims = clean.shape[1]
    explained = (on.T.astype(float) @ outer.reshape(len(outer), -1)).reshape(-1, num_dims, num_dims)
    covariance = explained + draw.noise_variance * jnp.eye(num_dims)
    root = jnp.linalg.cholesky(covariance + NOISE**2 * jnp.eye(num_dims))
    gain = jax.vmap(lambda r, c: cho_solve((r, True), c))(root, covariance)  # C+N inverse times C
    mean = jnp.einsum("nij,ni->nj", gain, noisy)
    # C - C (C + N)^-1 C = N (C + N)^-1 C
    spread = NOISE**2 * (gain + gain.mT) / 2
    root = jnp.linalg.cholesky(spread)
    whitened = jax.vmap(lambda r, x: jax.scipy.linalg.solve_triangular(r, x, lower=True))(
        root, clean - mean
    )
    log_volume = jnp.log(jnp.diagonal(root, axis1=1, axis2=2)).sum(axis=1)
    return -(whitened**2).sum(axis=1) / 2 - log_volume - num_dims * jnp.log(2 * jnp.pi) / 2


def gaussian_row(size: str, train: np.ndarray, test: np.ndarray) -> dict[str, Any]:
    """One Gaussian of the components' variances, which are uncorrelated on the training digits."""
    begin = time.perf_counter()
    clean, blurred = noisy(test, 0)
    variance = train.var(axis=0)
    share = variance / (variance + NOISE**2)
    spread = share * NOISE**2
    residual = clean - share * blurred
    density = -(residual**2 / spread + np.log(2 * np.pi * spread)).sum(axis=1) / 2
    quality = {
        "log_predictive": float(density.mean()),
        "squared_error": float((residual**2).mean()),
    }
    seconds = time.perf_counter() - begin
    return rows.row(CASE, "gaussian", size, compile_s=None, run_s=[seconds], quality=quality)


def digit_shape(chain: factor_chains.Chain) -> dict[str, float]:
    late = chain.trace["noise_variance"][len(chain.trace["noise_variance"]) // 2 :]
    shape = factor_chains.shape_of(chain, "digit", (0.1, 0.25, 0.5, 0.75, 1.0))
    return {"noise_variance": float(late.mean())} | shape


def gains(found) -> dict[str, float]:
    """The hierarchy less the IBP of the same seed, and the standard error over seeds."""
    quality = {}
    for name in ("log_likelihood", "log_predictive", "squared_error", "active_lower"):
        values = [[one[name] for one in found[model][1]] for model in factor_chains.MODELS]
        gain, error = factor_chains.compare(*values)
        quality[f"{name}_gain"] = gain
        if len(values[0]) > 1:
            quality[f"{name}_gain_se"] = error
    return quality


def peer_state(state: HierarchyState) -> factor_peers.PeerState:
    """The active features of a state of two layers, in double precision."""
    upper, lower = state.layers
    above, kept = (np.asarray(layer.features).any(axis=1) for layer in state.layers)
    double = lambda values: np.asarray(values, float)  # noqa: E731
    likelihood = state.likelihood
    features = np.asarray(lower.features)[kept]
    return factor_peers.PeerState(
        upper=np.asarray(upper.features)[above],
        lower=features,
        upper_sticks=np.exp(double(upper.log_sticks)[above]),
        sticks=np.exp(double(lower.log_sticks)[kept]),
        weights=np.exp(double(lower.log_weights)[np.ix_(above, kept)]),
        activations=np.where(features, double(likelihood.activations)[kept], 0),
        loadings=double(likelihood.loadings)[kept],
        noise_variance=float(likelihood.noise_variance),
        loading_variance=float(likelihood.loading_variance),
        concentration=float(lower.concentration),
    )


def peer_rows(size: str, chain: factor_chains.Chain, train: np.ndarray) -> list[dict[str, Any]]:
    """Seconds of a sweep from the state the chain reached: this package's and two of NumPy."""
    priors = factor_chains.priors_of(2)
    own = []
    for index in range(3):
        begin = time.perf_counter()
        _, trace = factor_hierarchy_gibbs.run(
            jax.random.key(index), chain.state, priors, factor_chains.CHUNK,
            summarize=summarize, chunk_size=factor_chains.CHUNK,
        )  # fmt: skip
        own.append((time.perf_counter() - begin) / factor_chains.CHUNK)
    active = dict(zip(("active_upper", "active_lower"), trace["num_active"][-1], strict=True))
    first = rows.row(
        CASE, "sweep_jaxmrf", size, compile_s=None, run_s=own, quality=active, dtype="float32"
    )
    measured, begin_state = [first], peer_state(chain.state)
    data = train.astype(float)
    for method, is_looping, repeats in (("all_objects", False, 5), ("each_object", True, 2)):
        rng, seconds = np.random.default_rng(0), []
        for _ in range(repeats):
            begin = time.perf_counter()
            swept = factor_peers.sweep(rng, begin_state, data, is_looping=is_looping)
            seconds.append(time.perf_counter() - begin)
        quality = {
            "active_upper": len(swept.upper),
            "active_lower": len(swept.lower),
            "times_jaxmrf": float(np.median(seconds) / np.median(own)),
        }
        row = rows.row(
            CASE, f"sweep_numpy_{method}", size, compile_s=None, run_s=seconds, quality=quality,
            dtype="float64",
        )  # fmt: skip
        measured.append(row)
    return measured


def synthetic(num_objects: int, num_dims: int, num_features: int) -> HierarchyState:
    """A hierarchy of 16 upper and the given number of lower features, at its own truth."""
    rng = np.random.default_rng(0)
    upper = rng.random((16, num_objects)) < 0.2
    upper[0] = True
    weights = rng.beta(0.2, 1.0, (16, num_features))
    off = np.exp(np.log1p(-weights).T @ upper)
    lower = rng.random(off.shape) > off
    capacities = (32, 2 * num_features)
    layers = factor_hierarchy.start([upper.T, lower.T], capacities, [1.0, 4.0])
    loadings = 0.3 * rng.normal(size=(num_features, num_dims))
    activations = np.where(lower, rng.normal(size=lower.shape), 0)
    data = activations.T @ loadings + 0.2 * rng.normal(size=(num_objects, num_dims))
    likelihood = observe(data, capacities[-1], loadings, activations, 0.04)
    return factor_hierarchy_gibbs.init(layers, likelihood)


def scale_rows(size: str, form: Size) -> list[dict[str, Any]]:
    """Sweeps over more and more objects, and the power of their number that the seconds follow."""
    num_features = 200 if size == "full" else 20
    priors = factor_chains.known_priors(2)
    measured, before = [], None
    for num_objects in form.scale:
        state = synthetic(num_objects, form.num_dims, num_features)
        timing = rows.time_jitted(
            factor_hierarchy_gibbs.step, jax.random.key(0), state, priors, repeats=3
        )
        _, info = timing.result
        if bool(info.is_truncated):
            raise ValueError("scale_rows: the buffers are too small; raise them")
        point = np.log([num_objects, timing.run_s["median"]])
        quality = {"active_lower": int(info.num_active[1])}
        if before is not None:
            quality["power"] = float(np.divide(*(point - before)[::-1]))
        before = point
        row = rows.row(
            CASE, "sweep_jaxmrf", size, compile_s=timing.compile_s, run_s=timing.run_s,
            quality=quality, peak_mb=timing.peak_mb, synthetic_objects=num_objects,
            dims=form.num_dims, features=num_features,
        )  # fmt: skip
        measured.append(row)
    return measured
