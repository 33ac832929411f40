"""Random groupings of the parameters of a Markov random field.

    g_e ~ Uniform{0..K-1},    phi_g ~ G_0,    theta_e = phi_{g_e}.

Reference: Liu & Page, "Bayesian estimation of latently-grouped parameters in undirected graphical
models", NIPS 2013, section 4.
"""

from collections.abc import Callable

import numpy as np

__all__ = ["grouped_agreements"]


def grouped_agreements(
    rng: np.random.Generator,
    num_edges: int,
    num_groups: int,
    base: str | Callable[[np.random.Generator, int], np.ndarray] = "uniform",
) -> tuple[np.ndarray, np.ndarray]:
    """Agreement parameters tied in random groups: every edge joins a group uniformly at random.

    Args:
        rng: Source of randomness.
        num_edges: Number of edges of the graph, at least 1.
        num_groups: Number of groups to choose from, at least 1; by chance some may stay empty.
        base: Distribution of a group's parameter: "uniform" on (0, 1), or a function of the
            generator and a count that returns so many values in (0, 1).

    Returns:
        The agreement parameter of every edge, float64 "edges", and its group, int32 "edges".

    Raises:
        ValueError: If a count is below 1 or a value of the base leaves (0, 1).

    Example:
        >>> theta, groups = grouped_agreements(np.random.default_rng(0), 24, num_groups=5)
        >>> theta.shape, len(set(theta))
        ((24,), 5)
    """
    for name, count in (("num_edges", num_edges), ("num_groups", num_groups)):
        if count < 1:
            raise ValueError(
                f"grouped_agreements: expected {name} >= 1, got {count}; pass a positive count"
            )
    values = rng.uniform(size=num_groups) if base == "uniform" else base(rng, num_groups)
    values = np.asarray(values, dtype=np.float64)
    if values.shape != (num_groups,) or not np.all((values > 0) & (values < 1)):
        raise ValueError(
            f"grouped_agreements: expected base to return {num_groups} values in (0, 1), "
            f"got {values}; pass a function of (rng, count)"
        )
    groups = rng.integers(num_groups, size=num_edges, dtype=np.int32)
    return values[groups], groups
