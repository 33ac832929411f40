"""What to ask of posterior draws of a grouping: how close, how many, who with whom.

    VI(a, b) = H(a | b) + H(b | a) = 2 H(a, b) - H(a) - H(b)   (nats),

where H is the entropy of the group of an item drawn uniformly at random. Reference: Meila,
"Comparing clusterings: an information based distance", J. Multivariate Analysis 98 (2007).
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

__all__ = [
    "co_clustering",
    "num_groups",
    "representative_grouping",
    "to_arviz",
    "variation_of_information",
    "variation_of_information_difference",
]


def variation_of_information(labels_a: ArrayLike, labels_b: ArrayLike) -> float:
    """The distance in nats between two groupings of the same items, blind to label names.

    Args:
        labels_a: Group of every item, integers "items".
        labels_b: Another grouping of the same items.

    Returns:
        A number in [0, log(items)]; 0 only for the same grouping.

    Raises:
        ValueError: If the two are not integer vectors of one positive length.

    Example:
        >>> variation_of_information([0, 0, 1, 1], [5, 5, 3, 3])
        0.0
        >>> round(variation_of_information([0, 0, 1, 1], [0, 1, 0, 1]), 4)  # 2 log 2
        1.3863
    """
    pair = _groupings("variation_of_information", labels_a, labels_b)
    joint = _entropy(np.unique(np.stack(pair), axis=1, return_counts=True)[1])
    apart = [_entropy(np.unique(labels, return_counts=True)[1]) for labels in pair]
    return max(0.0, 2.0 * joint - sum(apart))


def variation_of_information_difference(
    labels_true: ArrayLike,
    labels_estimated: ArrayLike,
    *,
    seed: int = 0,
    num_random: int = 100,
) -> float:
    """How much closer to the truth an estimated grouping is than a random one is.

    The random groupings have exactly as many groups as the estimate; the value is their mean
    distance to the truth minus the estimate's (Liu & Page 2013, section 4).

    Args:
        labels_true: True group of every item, integers "items".
        labels_estimated: Estimated group of every item.
        seed: Seed of the random groupings.
        num_random: Number of random groupings, at least 1.

    Returns:
        The difference in nats; positive when the estimate beats chance.

    Raises:
        ValueError: If the groupings do not match or `num_random` is below 1.
    """
    name = "variation_of_information_difference"
    truth, estimate = _groupings(name, labels_true, labels_estimated)
    if num_random < 1:
        raise ValueError(f"{name}: expected num_random >= 1, got {num_random}; pass 100")
    rng = np.random.default_rng(seed)
    count = len(np.unique(estimate))

    def random_grouping():
        rest = rng.integers(count, size=len(truth) - count)
        return rng.permutation(np.concatenate([np.arange(count), rest]))

    chance = [variation_of_information(truth, random_grouping()) for _ in range(num_random)]
    return float(np.mean(chance)) - variation_of_information(truth, estimate)


def co_clustering(draws: ArrayLike) -> np.ndarray:
    """The posterior probability of every two items to be in one group.

    Args:
        draws: Groups of the items in every draw, integers "... draws items"; leading axes such
            as chains count as more draws.

    Returns:
        Symmetric float64 matrix "items items" with ones on the diagonal.

    Raises:
        ValueError: If `draws` holds no draw, no item, or values that are not integers.

    Example:
        >>> co_clustering([[0, 0, 1], [0, 1, 1]])[0]
        array([1. , 0.5, 0. ])
    """
    draws = _draws("co_clustering", draws)
    draws = draws.reshape(-1, draws.shape[-1])
    together = np.zeros((draws.shape[1], draws.shape[1]), dtype=np.int64)
    for labels in draws:  # one draw at a time: draws x items x items may not fit into memory
        together += labels[:, None] == labels
    return together / len(draws)


def num_groups(draws: ArrayLike) -> np.ndarray:
    """The number of distinct groups in every draw.

    Args:
        draws: Groups of the items in every draw, integers "... items".

    Returns:
        Integers "...".

    Raises:
        ValueError: If `draws` holds no item or values that are not integers.

    Example:
        >>> num_groups([[0, 0, 1], [2, 2, 2]])
        array([2, 1])
    """
    ordered = np.sort(_draws("num_groups", draws), axis=-1)
    return 1 + (ordered[..., 1:] != ordered[..., :-1]).sum(axis=-1)


def representative_grouping(draws: ArrayLike) -> np.ndarray:
    """The draw whose co-clustering is closest to the posterior's, in squared distance (Dahl 2006).

    Args:
        draws: Integer labels "draws items"; leading axes may be chains and draws.

    Returns:
        Labels "items" of one of the draws.

    Raises:
        ValueError: If the draws are not integers or there is none.

    Example:
        >>> representative_grouping([[0, 0, 1], [0, 1, 1], [0, 0, 1]]).tolist()
        [0, 0, 1]
    """
    draws = _draws("representative_grouping", draws)
    together = co_clustering(draws)
    distances = [np.square((labels[:, None] == labels) - together).sum() for labels in draws]
    return draws[int(np.argmin(distances))]


def to_arviz(mcmc: Any, **options: Any) -> Any:
    """An ArviZ `InferenceData` of a finished `numpyro.infer.MCMC` run.

    The pointwise log likelihood is left out: a random field's is known up to its normaliser only.

    Args:
        mcmc: The run, after `mcmc.run(...)`.
        **options: Passed on to `arviz.from_numpyro` (`coords`, `dims`, ...).

    Returns:
        The draws, sampler statistics and observed data.

    Raises:
        ImportError: If ArviZ is not installed.
    """
    try:
        import arviz
    except ImportError as error:
        raise ImportError(
            "to_arviz: expected arviz (before 1.0) to be installed, found none; "
            'pip install "jaxmrf[examples]"'
        ) from error
    return arviz.from_numpyro(mcmc, **{"log_likelihood": False, **options})


def _entropy(counts: np.ndarray) -> float:
    """Entropy in nats of the frequencies that belong to positive counts."""
    shares = counts / counts.sum()
    return float(-np.sum(shares * np.log(shares)))


def _draws(name: str, draws: ArrayLike) -> np.ndarray:
    """The draws as an array, checked to be integers with at least one item."""
    draws = np.asarray(draws)
    if draws.ndim < 1 or draws.size == 0 or not np.issubdtype(draws.dtype, np.integer):
        raise ValueError(
            f"{name}: expected integer labels with items last, "
            f"got shape {draws.shape} of {draws.dtype}; pass the groups site of the draws"
        )
    return draws


def _groupings(name: str, *labels: ArrayLike) -> list[np.ndarray]:
    """Groupings of the same items as arrays, checked to match."""
    arrays = [_draws(name, array) for array in labels]
    if len({array.shape for array in arrays}) > 1 or arrays[0].ndim != 1:
        shapes = " and ".join(str(array.shape) for array in arrays)
        raise ValueError(
            f"{name}: expected two groupings of the same items, got shapes {shapes}; "
            "pass one label an item in each"
        )
    return arrays
