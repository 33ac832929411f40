"""What the cases of the factor hierarchy share: data, starts, chains and the draws kept of them."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from benchmarks import rows
from benchmarks.rows import ROOT
from jaxmrf.nonparametric import factor_hierarchy, factor_hierarchy_gibbs
from jaxmrf.nonparametric.factor_hierarchy import FeatureLayer, HierarchyState, LayerPrior
from jaxmrf.nonparametric.indian_buffet import LOG_SMALLEST_STICK

__all__ = [
    "CAPACITIES",
    "CHUNK",
    "MODELS",
    "SIZES_OF_DRAWS",
    "Chain",
    "compare",
    "data_folder",
    "known_priors",
    "learned_layers",
    "model_row",
    "priors_of",
    "run_chain",
    "shape_of",
    "start",
]

# chosen for the IBP, and kept for the hierarchy
CONCENTRATION_PRIOR = (1.0, 1.0)
STRENGTH = 1.0
MODELS = {"ibp": 1, "hierarchy": 2}
UPPER_RATE = 0.3
CAPACITIES = (32, 256)
SIZES_OF_DRAWS = (32, 512)
CHUNK = 10
DATA_VARIABLE = "JAXMRF_DATA"


def data_folder(case: str) -> Path | None:
    """The folder of data sets: an environment variable's, or the one beside the repository."""
    path = Path(os.environ.get(DATA_VARIABLE, ROOT.parent / "shared" / "data"))
    if path.is_dir():
        return path
    print(f"{case}: skipped, there is no folder of data sets; name it in {DATA_VARIABLE}")
    return None


def priors_of(num_layers: int) -> tuple[LayerPrior, ...]:
    shape, rate = CONCENTRATION_PRIOR
    prior = LayerPrior(strength=STRENGTH, concentration_shape=shape, concentration_rate=rate)
    return (prior,) * num_layers


def known_priors(num_layers: int) -> tuple[LayerPrior, ...]:
    """The same, with concentrations that stay where they are."""
    return (LayerPrior(strength=STRENGTH),) * num_layers


def start(
    rng: np.random.Generator, lower: np.ndarray, num_layers: int, num_upper: int
) -> tuple[FeatureLayer, ...]:
    """Layers with the given lowest features, and above one that everybody has and random ones."""
    upper = rng.random((len(lower), 1 + num_upper)) < UPPER_RATE
    upper[:, 0] = True
    features = [upper, lower][-num_layers:]
    return factor_hierarchy.start(features, CAPACITIES[-num_layers:], [1.0] * num_layers)


class Chain(NamedTuple):
    """What is kept of a chain.

    Attributes:
        state: The last one.
        trace: Summaries of all sweeps.
        draws: Kept states, without objects, as of ``learned``.
        seconds: A sweep, without compilation.
    """

    state: HierarchyState
    trace: Any
    draws: list[Any]
    seconds: float


def run_chain(
    key: jax.Array,
    state: HierarchyState,
    priors: tuple[LayerPrior, ...],
    num_burn_in: int,
    num_kept: int,
    summarize: Callable,
    learned: Callable[[HierarchyState], Any],
    bar,
) -> Chain:
    """Burn-in, then a state is kept after every further ten sweeps."""
    parts, draws, seconds = [], [], []
    for index in range(num_burn_in // CHUNK + num_kept):
        start = time.perf_counter()
        state, part = factor_hierarchy_gibbs.run(
            jax.random.fold_in(key, index), state, priors, CHUNK,
            summarize=summarize, chunk_size=CHUNK,
        )  # fmt: skip
        seconds.append((time.perf_counter() - start) / CHUNK)
        parts.append(part)
        bar.update(CHUNK)
        if index >= num_burn_in // CHUNK:
            draws.append(learned(state))
    trace = jax.tree.map(lambda *values: np.concatenate(values), *parts)
    return Chain(state, trace, draws, float(np.median(seconds)))


def learned_layers(
    layers: tuple[FeatureLayer, ...], num_objects: int, sizes: tuple[int, ...]
) -> tuple[tuple[FeatureLayer, ...], np.ndarray]:
    """Layers for other objects: the active features, in buffers of one size for all draws.

    Returns:
        The layers with all of these features on, and the slots of the lowest ones.
    """
    kept, above = [], None
    for layer, size in zip(layers, sizes, strict=True):
        slots = np.flatnonzero(np.asarray(layer.features).any(axis=1))
        if len(slots) > size:
            raise ValueError(
                f"learned_layers: expected at most {size} active features, got {len(slots)}; "
                "raise the sizes"
            )
        num_parents = 0 if above is None else len(above)
        log_sticks = np.full(size, LOG_SMALLEST_STICK, np.float32)
        log_sticks[: len(slots)] = np.asarray(layer.log_sticks)[slots]
        shape = (0 if above is None else sizes[len(kept) - 1], size)
        weights, failures = np.full(shape, -80.0, np.float32), np.full(shape, -1e-35, np.float32)
        if above is not None:
            block = np.ix_(above, slots)
            weights[:num_parents, : len(slots)] = np.asarray(layer.log_weights)[block]
            failures[:num_parents, : len(slots)] = np.asarray(layer.log_failures)[block]
        features = np.broadcast_to((np.arange(size) < len(slots))[:, None], (size, num_objects))
        kept.append(FeatureLayer(log_sticks, features, weights, failures, np.zeros((), np.float32)))
        above = slots
    return tuple(kept), above


def compare(first: list[float], second: list[float]) -> tuple[float, float]:
    """Mean of second minus first over seeds, and its standard error (NaN for one seed)."""
    change = np.asarray(second) - np.asarray(first)
    error = change.std(ddof=1) / np.sqrt(len(change)) if len(change) > 1 else np.nan
    return float(change.mean()), float(error)


def shape_of(chain: Chain, noun: str, shares: tuple[float, ...]) -> dict[str, float]:
    """Sizes over the second half of the chain, and the log likelihood at shares of its length."""
    trace = chain.trace
    num = len(trace["log_likelihood"])
    late, found = slice(num // 2, None), {}
    for name, depth in (("lower", -1), ("upper", 0)):
        if trace["num_active"].shape[1] > (name == "upper"):
            found[f"active_{name}"] = trace["num_active"][late, depth].mean()
            found[f"{name}_per_{noun}"] = trace["features_per_object"][late, depth].mean()
    for share in shares:
        sweep = max(int(share * num), 1)
        found[f"train_log_likelihood_{sweep}"] = trace["log_likelihood"][sweep - 1]
    return {name: float(value) for name, value in found.items()}


def model_row(case: str, size: str, model: str, chains, qualities, **facts) -> dict[str, Any]:
    """The row of a model: mean qualities of its chains, one a seed."""
    quality = {name: np.mean([one[name] for one in qualities]) for name in qualities[0]}
    return rows.row(
        case, model, size,
        compile_s=None,
        run_s=[chain.seconds for chain in chains],
        quality=quality,
        peak_mb=rows.peak_mb(),
        **facts,
        sweeps=len(chains[0].trace["log_likelihood"]),
        seeds=len(chains),
    )  # fmt: skip
