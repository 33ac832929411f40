r"""The Indian buffet process in its stick-breaking form, without truncation.

Frequencies of features are the points of a Poisson process on (0, 1] of intensity
:math:`\alpha / \mu`; object n has feature k with probability :math:`\mu_k`. Given which objects
have which features,

.. math:: \mu_k \sim \mathrm{Beta}(N_k, 1 + N - N_k) \text{ where } N_k \ge 1, \quad
          \text{the others: a Poisson process of intensity } \alpha f(\mu) / \mu,\;
          f(\mu) = (1 - \mu)^N

for N objects. The same holds for the layers of a hierarchy with another f, the probability that
no object has a feature of frequency :math:`\mu`. So the infinitely many features that nobody has
are drawn by thinning, in decreasing order and as far down as asked. References: Teh, Gorur &
Ghahramani, "Stick-breaking construction for the Indian buffet process", AISTATS 2007; Kingman,
*Poisson Processes* (1993).
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import digamma, gammaln

from jaxmrf.logspace import draw_log_beta
from jaxmrf.types import Array, Bool, Float, Int, Key

__all__ = [
    "LOG_SMALLEST_STICK",
    "InactiveSticks",
    "draw_active_sticks",
    "draw_inactive_sticks",
    "draw_sticks",
    "expected_features",
    "expected_present",
    "log_absence",
    "log_prob_sticks",
    "quadrature",
]

LOG_SMALLEST_STICK = -64.0
"""Points below exp(-64) are not told apart: such a feature is on with probability < 1e-20."""

_NUM_CELLS = 64
_LOG_NEGLIGIBLE = np.log(1e-4)  # below this over the mean, f is linear to 1e-8
_NODES, _NODE_WEIGHTS = np.polynomial.legendre.leggauss(64)

LogAbsence = Callable[[Array], Array]
"""log f as a function of log frequencies, of any shape."""


def log_absence(log_sticks: Float[Array, "*rest"], num_objects) -> Float[Array, "*rest"]:
    """Log f: no one of N objects has a feature of this frequency."""
    largest = -jnp.finfo(log_sticks.dtype).epsneg
    return num_objects * jnp.log1p(-jnp.exp(jnp.minimum(log_sticks, largest)))


def expected_features(num_objects) -> Array:
    """H_N, the N-th harmonic number: features that N objects have, for a concentration of one."""
    return digamma(jnp.asarray(num_objects, float) + 1) + np.euler_gamma


def draw_sticks(key: Key, concentration, num: int) -> Float[Array, " features"]:
    """Logs of the ``num`` largest points of the process, in decreasing order.

    Args:
        key: Random key.
        concentration: alpha > 0.
        num: How many.
    """
    gaps = jax.random.exponential(key, (num,)) / concentration
    return jnp.maximum(-jax.lax.associative_scan(jnp.add, gaps), LOG_SMALLEST_STICK)


def log_prob_sticks(log_sticks: Float[Array, " features"], concentration) -> Float[Array, ""]:
    r"""Log-density of the largest sticks, in any order, with respect to their frequencies.

    .. math:: \log p(\mu) = \sum_k \log\frac{\alpha}{\mu_k} + \alpha \log \min_k \mu_k - \log K!

    Sticks at the smallest value count as "no further point above it".

    Args:
        log_sticks: Logs of the frequencies of the K largest points, in an order that says nothing.
        concentration: alpha > 0.
    """
    is_point = log_sticks > LOG_SMALLEST_STICK + 1e-3  # frequencies round
    num_points = is_point.sum()
    num_slots = log_sticks.size
    density = jnp.where(is_point, jnp.log(concentration) - log_sticks, 0).sum()
    log_orders = gammaln(num_slots + 1.0) - gammaln(num_slots - num_points + 1.0)
    return density + concentration * log_sticks.min() - log_orders


def expected_present(log_absence: LogAbsence, mean_uses, log_upper=0.0) -> Float[Array, ""]:
    r"""Features below a frequency that somebody has, for a concentration of one.

    .. math:: \int_0^{b} \frac{1 - f(u)}{u}\, du

    by Gauss-Legendre quadrature in log u, to about 1e-8 absolute.

    Args:
        log_absence: log f.
        mean_uses: -f'(0), the expected number of objects per unit of frequency.
        log_upper: log b.
    """
    nodes, weights, rest = quadrature(mean_uses, log_upper)
    return -(weights * jnp.expm1(log_absence(nodes))).sum() + rest


def quadrature(mean_uses, log_upper=0.0) -> tuple[Array, Array, Array]:
    """Nodes in log u, their weights, and the integral below the smallest node."""
    mean_uses = jnp.maximum(mean_uses, 1e-6)
    log_upper = jnp.asarray(log_upper, float)
    lower = jnp.minimum(_LOG_NEGLIGIBLE - jnp.log(mean_uses), log_upper)
    half = (log_upper - lower) / 2
    return lower + half * (1 + _NODES), half * _NODE_WEIGHTS, mean_uses * jnp.exp(lower)


def draw_active_sticks(
    key: Key, num_users: Int[Array, " features"], num_objects
) -> Float[Array, " features"]:
    """Logs of Beta(N_k, 1 + N - N_k) draws; meaningless where N_k = 0.

    Args:
        key: Random key.
        num_users: N_k, how many objects have the feature.
        num_objects: N.
    """
    num_on = jnp.maximum(num_users, 1).astype(float)
    log_sticks, _ = draw_log_beta(key, num_on, 1 + num_objects - num_on)
    return log_sticks


class InactiveSticks(NamedTuple):
    """Largest frequencies among the features that no object has.

    Attributes:
        log_sticks: Logs, in decreasing order.
        is_complete: Whether enough candidates survived the thinning to fill all slots; the last
            slots hold the smallest stick if not.
    """

    log_sticks: Float[Array, " features"]
    is_complete: Bool[Array, ""]


def draw_inactive_sticks(
    key: Key, log_absence: LogAbsence, concentration, mean_uses, num: int
) -> InactiveSticks:
    """The ``num`` largest points of the process of intensity alpha f(u) / u, exactly.

    Candidates come from a process whose intensity in log u is constant in cells and bounds f, and
    survive with the ratio of the two.

    Args:
        key: Random key.
        log_absence: log f, of a decreasing f with f(0) = 1.
        concentration: alpha > 0.
        mean_uses: -f'(0), which places the cells.
        num: How many. The first draws do not depend on it.
    """
    key_gap, key_keep = jax.random.split(key)
    num_candidates = 2 * num + 32
    lowest = _LOG_NEGLIGIBLE - jnp.log(jnp.maximum(mean_uses, 1e-3))
    width = -lowest / _NUM_CELLS
    lower_ends = jnp.arange(1, _NUM_CELLS + 1) * -width  # cells from the largest frequency down
    log_bounds = log_absence(lower_ends)
    mass = jnp.concatenate([jnp.zeros(1), jnp.cumsum(jnp.exp(log_bounds) * width)])

    gaps = jax.random.exponential(key_gap, (num_candidates,)) / concentration
    depth = jax.lax.associative_scan(jnp.add, gaps)  # its prefixes do not depend on its length
    cell = jnp.searchsorted(mass, depth, side="right") - 1
    is_below = cell >= _NUM_CELLS
    cell = jnp.minimum(cell, _NUM_CELLS - 1)
    within = (depth - mass[cell]) * jnp.exp(-log_bounds[cell])
    inside = -cell * width - jnp.minimum(within, width)
    log_points = jnp.where(is_below, lowest - (depth - mass[-1]), inside)
    log_keep = log_absence(log_points) - jnp.where(is_below, 0, log_bounds[cell])

    is_kept = jnp.log(jax.random.uniform(key_keep, (num_candidates,))) < log_keep
    kept = jnp.where(is_kept, log_points, -jnp.inf)[jnp.argsort(~is_kept, stable=True)][:num]
    kept = jnp.where(kept > LOG_SMALLEST_STICK, kept, LOG_SMALLEST_STICK)
    return InactiveSticks(kept, is_kept.sum() >= num)
