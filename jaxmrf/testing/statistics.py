r"""Tests of draws against exact probabilities.

.. math:: X^2 = \sum_k (O_k - E_k)^2 / E_k

Reference: Pearson, "On the criterion ...", Philosophical Magazine 50 (1900).
"""

import numpy as np
from scipy.stats import chi2

__all__ = ["chi_square_p_value"]


def chi_square_p_value(counts: np.ndarray, probabilities: np.ndarray) -> float:
    """Pearson's p-value, with all values of expected count below 5 merged into one cell.

    Args:
        counts: Number of independent draws of each value.
        probabilities: Exact probability of each value; they sum to one.

    >>> round(chi_square_p_value(np.array([60, 40]), np.array([0.5, 0.5])), 4)
    0.0455
    """
    counts = np.asarray(counts, dtype=np.float64)
    expected = np.asarray(probabilities, dtype=np.float64) * counts.sum()
    is_rare = expected < 5
    if is_rare.any():
        counts = np.append(counts[~is_rare], counts[is_rare].sum())
        expected = np.append(expected[~is_rare], expected[is_rare].sum())
    if counts[expected == 0].any():
        return 0.0
    cells = expected > 0
    statistic = ((counts - expected)[cells] ** 2 / expected[cells]).sum()
    return float(chi2.sf(statistic, max(cells.sum() - 1, 1)))
