r"""Counts of binary features seen through a noisy-or.

.. math:: x_{nt} \sim \mathrm{Binomial}\Big(C, 1 - \prod_k (1 - z_{nk} W_{kt})\Big), \quad
          W_{kt} \sim \mathrm{Beta}(a, b)

With C = 1 it is the noisy-or of binary data. Weights are conjugate once every success is
attributed to the first feature that caused it, in a random order. Reference: Courville, Eck &
Bengio, "An infinite factor model hierarchy via a noisy-or mechanism", NIPS 2009, section 5.2.
"""

from dataclasses import dataclass, field, replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxmrf.models.noisy_or import (
    CauseSums,
    add_cause,
    log_on_ratio,
    no_causes,
    remove_cause,
)
from jaxmrf.nonparametric.noisy_or_features import Weights, draw_weight_rows
from jaxmrf.types import Array, Bool, Float, Int, Key, Leaf

__all__ = ["Cells", "NoisyOrFactors", "find_cells", "observe"]


class Cells(NamedTuple):
    """Cells of the data matrix with a success, which are the ones that need a cause.

    Attributes:
        rows: Object of each.
        columns: Measurement of each.
        counts: Successes.
    """

    rows: Int[Array, " cells"]
    columns: Int[Array, " cells"]
    counts: Float[Array, " cells"]


def find_cells(counts: np.ndarray, is_observed: np.ndarray) -> Cells:
    """The observed cells with a success, of known data."""
    rows, columns = np.nonzero(np.where(is_observed, counts, 0))
    values = np.asarray(counts)[rows, columns].astype(np.float32)
    return Cells(jnp.asarray(rows), jnp.asarray(columns), jnp.asarray(values))


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class NoisyOrFactors:
    """Binomial noisy-or likelihood with its weights.

    Attributes:
        successes: x, ``[objects, dims]``, zero where a cell is missing.
        failures: C - x, zero where a cell is missing.
        cells: The cells that may have a success; None if weights are not drawn.
        log_weights: log W, ``[features, dims]``.
        log_failures: log(1 - W).
        prior: a and b.
        is_learned: Whether the weights are drawn.
    """

    successes: Leaf
    failures: Leaf
    cells: Cells | None
    log_weights: Leaf
    log_failures: Leaf
    prior: tuple = (1.0, 1.0)
    is_learned: bool = field(default=True, metadata={"static": True})

    def prepare(self, features: Bool[Array, "features objects"]) -> CauseSums:
        """Sums of log-failures over the features of every object."""
        is_active = features.any(axis=1)
        order = jnp.argsort(~is_active, stable=True)

        def add(i, sums):
            k = order[i]
            return add_cause(sums, self.log_failures[k], features[k][:, None])

        num_objects = features.shape[1]
        empty = no_causes(self.successes.shape, (num_objects, 1), self.log_failures.dtype)
        return jax.lax.fori_loop(0, is_active.sum(), add, empty)

    def log_odds(self, cache: CauseSums, index, column):
        """Log likelihood ratio of the feature on against off; the notes are the sums without it."""
        failure = self.log_failures[index]
        others = remove_cause(cache, failure, column[:, None])
        on = log_on_ratio(others.log_off(), self.log_weights[index])
        gain = jnp.where(self.successes > 0, self.successes * on, 0)
        return (gain + self.failures * failure).sum(axis=1), others

    def replace(self, key, cache: CauseSums, notes: CauseSums, index, column, proposed):
        """The column is taken."""
        return add_cause(notes, self.log_failures[index], proposed[:, None]), proposed

    def renew(self, key: Key, is_active: Bool[Array, " features"]) -> "NoisyOrFactors":
        """Weights of features that nobody has, from their prior."""
        if not self.is_learned:
            return self
        none = jnp.zeros_like(self.log_weights)
        drawn, failures = self._draw_weights(key, none, none)
        is_active = is_active[:, None]
        return replace(
            self,
            log_weights=jnp.where(is_active, self.log_weights, drawn),
            log_failures=jnp.where(is_active, self.log_failures, failures),
        )

    def store(self, cache: CauseSums) -> "NoisyOrFactors":
        """The likelihood itself: objects have no variables of their own."""
        return self

    def update(self, key: Key, cache: CauseSums, features) -> "NoisyOrFactors":
        """Weights given causes of all successes, which are drawn."""
        if not self.is_learned:
            return self
        key_cause, key_weight = jax.random.split(key)
        counts = self._draw_causes(key_cause, features)
        log_weights, log_failures = self._draw_weights(key_weight, *counts)
        return replace(self, log_weights=log_weights, log_failures=log_failures)

    def _draw_weights(self, key, successes, failures) -> Weights:
        a, b = self.prior
        return draw_weight_rows(key, a + successes, b + failures)

    def _draw_causes(self, key: Key, features):
        """Successes that each feature caused, and failures of features that were asked.

        In a random order of all features, the first of every object takes a binomial share of its
        successes, then the second of what is left, and so on.
        """
        key_order, key_share = jax.random.split(key)
        is_active = features.any(axis=1)
        order = jnp.argsort(jnp.where(is_active, jax.random.uniform(key_order, is_active.shape), 2))
        is_on = features[order]
        rank = jnp.cumsum(is_on, axis=0)
        rows, columns, num_left = self.cells
        sums = self.prepare(features)
        left = CauseSums(
            sums.high[rows, columns], sums.low[rows, columns], sums.num_causes[rows, 0]
        )

        def share(place, carry):
            num_left, left, successes, failures = carry
            is_next = is_on & (rank == place + 1)
            feature = order[jnp.argmax(is_next, axis=0)][rows]
            is_asked = is_next.any(axis=0)[rows]
            chance = jnp.exp(self.log_weights[feature, columns]) / jnp.abs(
                jnp.expm1(left.log_off())
            )
            # the last cause takes all, whatever rounding makes of its chance
            chance = jnp.where(left.num_causes == 1, 1, jnp.minimum(chance, 1))
            key_cell = jax.random.fold_in(key_share, place)
            taken = jax.random.binomial(key_cell, num_left, jnp.where(is_asked, chance, 0))
            num_left = num_left - taken
            left = remove_cause(left, self.log_failures[feature, columns], is_asked)
            successes = successes.at[feature, columns].add(taken)
            failures = failures.at[feature, columns].add(jnp.where(is_asked, num_left, 0))
            return num_left, left, successes, failures

        none = jnp.zeros_like(self.log_weights)
        carry = (num_left, left, none, none)
        *_, successes, failures = jax.lax.fori_loop(0, rank[-1].max(), share, carry)

        def miss(i, failures):
            k = order[i]
            return failures.at[k].add(features[k].astype(self.failures.dtype) @ self.failures)

        return successes, jax.lax.fori_loop(0, is_active.sum(), miss, failures)

    def grow(self, capacity: int) -> "NoisyOrFactors":
        """The same in a larger buffer."""
        rows = ((0, capacity - len(self.log_weights)), (0, 0))
        return replace(
            self,
            log_weights=jnp.pad(self.log_weights, rows, constant_values=-1.0),
            log_failures=jnp.pad(self.log_failures, rows, constant_values=-1.0),
        )


def observe(
    counts: np.ndarray,
    total_count: int,
    capacity: int,
    *,
    is_observed: np.ndarray | None = None,
    prior: tuple[float, float] = (1.0, 1.0),
) -> NoisyOrFactors:
    """The likelihood of counts, with weights that the first steps of the sampler draw.

    Args:
        counts: Successes, ``[objects, dims]``.
        total_count: C, the number of trials behind each count.
        capacity: Slots for features.
        is_observed: Which cells count; by default all.
        prior: a and b of the Beta prior of the weights.

    Raises:
        ValueError: If an observed count is not an integer in 0..C, or the prior is not positive.
    """
    counts = np.asarray(counts)
    is_observed = np.broadcast_to(True if is_observed is None else is_observed, counts.shape)
    is_good = (counts >= 0) & (counts <= total_count) & (counts == np.floor(counts))
    if (is_observed & ~is_good).any():
        index = tuple(np.argwhere(is_observed & ~is_good)[0].tolist())
        raise ValueError(
            f"observe: expected integers in 0..{total_count}, got {counts[index]} at index "
            f"{index}; mark cells without data by is_observed, or raise total_count"
        )
    if not min(prior) > 0:
        raise ValueError(f"observe: expected a positive prior, got {prior}; take (1, 1)")
    successes = np.where(is_observed, counts, 0).astype(np.float32)
    failures = np.where(is_observed, total_count - counts, 0).astype(np.float32)
    cells = find_cells(counts, is_observed)
    half = jnp.full((capacity, counts.shape[1]), np.log(0.5), float)
    prior = tuple(jnp.asarray(value, float) for value in prior)
    return NoisyOrFactors(jnp.asarray(successes), jnp.asarray(failures), cells, half, half, prior)
