r"""One noisy-or layer with infinitely many features: what its frequencies and weights follow.

Lower features have frequencies :math:`\nu_k` of a Poisson process of intensity
:math:`\alpha/\nu`, weights :math:`V_{jk} \sim \mathrm{Beta}(c\nu_k, c(1-\nu_k) + b)` and are on
with probability :math:`1 - \prod_j (1 - y_{nj} V_{jk})`. If parent j is on for N_j objects, then
the probability that nobody has a feature is

.. math:: f(\nu) = \prod_j \prod_{i=0}^{N_j - 1} (1 - \nu\, p_i) = \prod_i (1 - \nu\, p_i)^{n_i},
          \quad p_i = \frac{c}{c + b + i}

with n_i the number of parents that are on for more than i objects. The inactive features are a
Poisson process of intensity :math:`\alpha f(\nu)/\nu`, see ``indian_buffet``. The number of active
ones is Poisson(:math:`\alpha\psi`), with :math:`\psi = \int_0^1 (1 - f(u))/u\, du`. Reference:
Courville, Eck & Bengio, "An infinite factor model hierarchy via a noisy-or mechanism", NIPS 2009,
whose b is 1.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.special import gammaln

from jaxmrf.logspace import draw_log_beta
from jaxmrf.types import Array, Float, Int, Key

__all__ = [
    "Weights",
    "draw_active_sticks",
    "draw_num_tables",
    "draw_weight_rows",
    "draw_weights",
    "log_absence",
    "log_absence_table",
    "log_prob_sticks",
    "mean_uses",
    "num_parents_used",
]

_NUM_EXPLICIT = 3
_PARENTS_AT_ONCE = 8
_SMALLEST_LOG_WEIGHT = -80.0  # keeps weights positive and normal in single precision


def num_parents_used(
    num_uses: Int[Array, " parents"], num_objects: int
) -> Float[Array, " objects"]:
    """n_i, how many parents are on for at least i = 1..N objects: what f depends on."""
    at_least = num_uses[:, None] > jnp.arange(num_objects)
    return at_least.sum(axis=0).astype(float)


def mean_uses(num_parents: Float[Array, " objects"], strength, offset) -> Float[Array, ""]:
    """-f'(0), the sum of n_i p_i."""
    return (num_parents * _shares(num_parents.size, strength, offset)).sum()


def log_absence(
    log_sticks: Float[Array, "*rest"], num_parents: Float[Array, " objects"], strength, offset
) -> Float[Array, "*rest"]:
    """Log f: that no object has a feature of this frequency; the sum of n_i log(1 - nu p_i).

    Args:
        log_sticks: Logs of frequencies.
        num_parents: n_i of ``num_parents_used``.
        strength: c > 0.
        offset: b >= 0.
    """
    return (num_parents * _log_misses(log_sticks, num_parents.size, strength, offset)).sum(axis=-1)


def log_absence_table(
    log_sticks: Float[Array, " points"], num_objects: int, strength, offset
) -> Float[Array, "counts points"]:
    """What a parent that is on for 0..N objects adds to log f."""
    terms = _log_misses(log_sticks, num_objects, strength, offset).T
    return jnp.concatenate([jnp.zeros_like(terms[:1]), jnp.cumsum(terms, axis=0)])


def _log_misses(log_sticks, num_objects: int, strength, offset):
    """log(1 - nu p_i), i on a new last axis."""
    largest = -jnp.finfo(log_sticks.dtype).epsneg
    sticks = jnp.exp(jnp.minimum(log_sticks, largest))[..., None]
    return jnp.log1p(-sticks * _shares(num_objects, strength, offset))


def _shares(num_objects: int, strength, offset) -> Float[Array, " objects"]:
    """p_i = c / (c + b + i), i = 0..N-1."""
    return strength / (strength + offset + jnp.arange(num_objects))


def log_prob_sticks(
    stick: Float[Array, ""],
    successes: Float[Array, " parents"],
    failures: Float[Array, " parents"],
    strength,
    offset,
) -> Float[Array, ""]:
    """Log-density of the frequency of an active feature given its assignments, up to a constant.

    Weights are integrated out. It is log-concave in the frequency.

    Args:
        stick: nu in (0, 1).
        successes: M_j.
        failures: N_j, how often the parent failed.
        strength: c > 0.
        offset: b >= 0.
    """
    on, off = strength * stick, strength * (1 - stick) + offset
    rising = gammaln(on + successes) - gammaln(on) + gammaln(off + failures) - gammaln(off)
    return jnp.where(successes + failures > 0, rising, 0).sum() - jnp.log(stick)


def draw_active_sticks(
    key: Key,
    successes: Float[Array, "features parents"],
    failures: Float[Array, "features parents"],
    log_sticks: Float[Array, " features"],
    strength,
    offset,
) -> Float[Array, " features"]:
    r"""Logs of frequencies of active features given assignments, by auxiliary table counts.

    Given t tables of the successes and u of the failures, nu is Beta(t, 1 + u). Exact.

    Args:
        key: Random key.
        successes: M_jk.
        failures: N_jk.
        log_sticks: Logs of the present frequencies.
        strength: c.
        offset: b.
    """
    key_table, key_beta = jax.random.split(key)
    sticks = jnp.exp(log_sticks)[:, None]
    first = jnp.asarray(offset, sticks.dtype)
    is_used = (successes + failures).any(axis=0)
    order = jnp.argsort(~is_used, stable=True)
    num_blocks = -(-is_used.sum() // _PARENTS_AT_ONCE)

    # parents that nobody has cost nothing, and draws do not depend on how many there are
    def add(block, tables):
        tables_on, tables_off = tables
        key_on, key_off = jax.random.split(jax.random.fold_in(key_table, block))
        place = block * _PARENTS_AT_ONCE + jnp.arange(_PARENTS_AT_ONCE)
        parents, is_in = order[place], place < is_used.sum()
        on = jnp.where(is_in, successes[:, parents], 0)
        off = jnp.where(is_in, failures[:, parents], 0)
        tables_on += draw_num_tables(key_on, strength * sticks, jnp.zeros(()), on).sum(axis=1)
        tables_off += draw_num_tables(key_off, strength * (1 - sticks), first, off).sum(axis=1)
        return tables_on, tables_off

    none = jnp.zeros_like(log_sticks)
    tables_on, tables_off = jax.lax.fori_loop(0, num_blocks, add, (none, none))
    log_sticks, _ = draw_log_beta(key_beta, jnp.maximum(tables_on, 1), 1 + tables_off)
    return log_sticks


def draw_num_tables(
    key: Key,
    concentration: Float[Array, "features #parents"],
    first: Float[Array, ""],
    num_trials: Float[Array, "features parents"],
) -> Float[Array, "features parents"]:
    r"""Sums of independent Bernoulli(a / (a + b + i)), i = 0..n-1, at a cost that log n bounds.

    The first few trials are drawn one by one. A later trial succeeds if a Poisson process has a
    point in its cell; the points come by thinning a process of intensity a / x.

    Args:
        key: Random key.
        concentration: a > 0.
        first: b >= 0.
        num_trials: n.
    """
    key_first, key_rest = jax.random.split(key)
    shape = num_trials.shape
    trials = jnp.arange(_NUM_EXPLICIT)
    rows = _row_keys(key_first, shape[0])
    uniform = jax.vmap(lambda k: jax.random.uniform(k, (shape[1], _NUM_EXPLICIT)))(rows)
    a = jnp.broadcast_to(concentration, shape)
    is_success = uniform * (a[..., None] + first + trials) < a[..., None]
    num_tables = (is_success & (trials < num_trials[..., None])).sum(axis=-1)

    # later trials have cells (x - 1, x], x = b + i; a log(x / (x - 1)) bounds log1p(a / x)
    log_start = jnp.log(first + _NUM_EXPLICIT - 1)
    log_end = jnp.log(jnp.maximum(first + num_trials - 1, first + _NUM_EXPLICIT - 1))

    def proceed(carry):
        step, log_point, last_cell, num_tables = carry
        keys = _row_keys(jax.random.fold_in(key_rest, step), shape[0])
        gap, uniform = jax.vmap(lambda k: _gap_and_uniform(k, shape[1]))(keys)
        log_point = log_point + gap / a
        x = jnp.ceil(jnp.exp(log_point) - first) + first
        is_kept = uniform * a * -jnp.log1p(-1 / x) < jnp.log1p(a / x)
        is_new = (log_point < log_end) & is_kept & (x > last_cell)
        return step + 1, log_point, jnp.where(is_new, x, last_cell), num_tables + is_new

    carry = (0, jnp.full(shape, log_start), jnp.zeros(shape), num_tables.astype(num_trials.dtype))
    is_open = lambda carry: (carry[1] < log_end).any()  # noqa: E731
    return jax.lax.while_loop(is_open, proceed, carry)[3]


def _row_keys(key: Key, num: int) -> Key:
    return jax.vmap(lambda row: jax.random.fold_in(key, row))(jnp.arange(num))


def _gap_and_uniform(key: Key, num: int) -> tuple[Array, Array]:
    key_gap, key_keep = jax.random.split(key)
    return jax.random.exponential(key_gap, (num,)), jax.random.uniform(key_keep, (num,))


class Weights(NamedTuple):
    """Noisy-or weights as logs, because Beta draws underflow.

    Attributes:
        log_weights: log V.
        log_failures: log(1 - V), finite.
    """

    log_weights: Float[Array, "parents features"]
    log_failures: Float[Array, "parents features"]


def draw_weights(
    key: Key,
    log_sticks: Float[Array, " features"],
    successes: Float[Array, "features parents"],
    failures: Float[Array, "features parents"],
    strength,
    offset,
) -> Weights:
    r"""Weights given assignments: Beta(c nu + M, c (1 - nu) + b + N); the prior where both are 0.

    Args:
        key: Random key.
        log_sticks: log nu.
        successes: M_jk.
        failures: N_jk; for an inactive feature N_j, since nobody's parents switched it on.
        strength: c.
        offset: b.
    """
    sticks = jnp.exp(log_sticks)[:, None]
    on = strength * sticks + successes
    off = strength * (1 - sticks) + offset + failures
    weights = draw_weight_rows(key, on, off)
    return Weights(weights.log_weights.T, weights.log_failures.T)


def draw_weight_rows(
    key: Key, on: Float[Array, "features others"], off: Float[Array, "features others"]
) -> Weights:
    """Beta(on, off) draws, a key to each row: draws do not depend on how many rows there are."""
    log_weights, log_failures = jax.vmap(draw_log_beta)(_row_keys(key, len(on)), on, off)
    log_weights = jnp.clip(log_weights, _SMALLEST_LOG_WEIGHT, -jnp.finfo(on.dtype).epsneg)
    # log(1 - V) < -V, also where it rounds to zero
    return Weights(log_weights, jnp.minimum(log_failures, -jnp.exp(log_weights)))
