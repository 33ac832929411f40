r"""What stands below a layer of features, as seen by one feature at a time.

A column (one feature, all objects) is drawn from :math:`p(z_{nk} \mid \text{rest}) \propto
p(z_{nk} \mid \text{parents})\, p(\text{below} \mid z_{nk})`, in parallel over objects. Below are
the observations, or another layer of features. The latter comes with a factor that couples the
objects: infinitely many features must stay off, :math:`e^{-\alpha\psi(N)}`, where N counts for
how many objects each parent is on. A column is proposed without that factor and accepted or
rejected as a whole with it.
"""

from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp

from jaxmrf.models.noisy_or import CauseSums, add_cause, log_on_ratio, no_causes, remove_cause
from jaxmrf.nonparametric import noisy_or_features
from jaxmrf.nonparametric.indian_buffet import quadrature
from jaxmrf.types import Array, Bool, Float, Int, Key, Leaf

__all__ = ["Child", "NoisyOrChild", "NoisyOrChildCache"]

_PLACES_AT_ONCE = 16
_NUM_NEW_PARENTS = 8.0  # on for everyone; more of them cost accuracy slowly


@runtime_checkable
class Child(Protocol):
    """What the update of a column asks of the layer or the observations below."""

    def prepare(self, features: Bool[Array, "features objects"]) -> Any:
        """Cache of everything that depends on all columns."""

    def log_odds(self, cache: Any, index, column) -> tuple[Float[Array, " objects"], Any]:
        """Log-probability below with the feature on, minus with it off; and notes for `replace`."""

    def replace(self, key: Key, cache: Any, notes: Any, index, column, proposed):
        """Cache and column after the proposal, which may be refused as a whole.

        A column is replaced at most once after `prepare`.
        """


class NoisyOrChildCache(NamedTuple):
    """Causes of the features below that are on, and psi.

    A feature below that is off asks for no sum. Those that are on are listed for every object, so
    that the work is that of the features objects have, not of all there are.

    Attributes:
        children: The i-th feature below that is on for an object.
        num_children: How many are on.
        log_all_off: Sum of the log-failures from each parent to all active features below.
        sums: Log-failures that sum to L, in the order of ``children``.
        num_uses: N_j, for how many objects each parent is on.
        node_weights: Quadrature weights of psi.
        terms: What a parent adds to log f at the nodes, by the number of its objects.
        log_absence: log f at the nodes.
    """

    children: Int[Array, "places objects"]
    num_children: Int[Array, " objects"]
    log_all_off: Float[Array, " parents"]
    sums: CauseSums
    num_uses: Int[Array, " parents"]
    node_weights: Float[Array, " nodes"]
    terms: Float[Array, "counts nodes"]
    log_absence: Float[Array, " nodes"]

    def num_blocks(self) -> Int[Array, ""]:
        """Blocks of places that some object fills."""
        return -(-self.num_children.max() // _PLACES_AT_ONCE)

    def block(self, index) -> tuple[Array, Array, CauseSums]:
        """Children of a block of places, which of these are filled, and their sums."""
        start = index * _PLACES_AT_ONCE
        children, high, low = (
            jax.lax.dynamic_slice_in_dim(values, start, _PLACES_AT_ONCE)
            for values in (self.children, self.sums.high, self.sums.low)
        )
        places = start + jnp.arange(_PLACES_AT_ONCE)
        is_filled = places[:, None] < self.num_children
        return children, is_filled, CauseSums(high, low, self.sums.num_causes)

    def with_block(self, index, sums: CauseSums) -> "NoisyOrChildCache":
        """The cache with other sums in a block; the number of causes stays."""
        start = index * _PLACES_AT_ONCE
        high = jax.lax.dynamic_update_slice_in_dim(self.sums.high, sums.high, start, 0)
        low = jax.lax.dynamic_update_slice_in_dim(self.sums.low, sums.low, start, 0)
        return self._replace(sums=CauseSums(high, low, self.sums.num_causes))


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class NoisyOrChild:
    """A layer of features as the child of another.

    Attributes:
        features: Which features below are on.
        is_active: Which of them count: those that somebody has; the others are integrated out.
        log_weights: log V.
        log_failures: log(1 - V); the first row is the leak's if there is one.
        concentration: alpha of the layer below; zero if its features are a fixed finite set.
        strength: c of that layer.
        offset: b of that layer.
        has_leak: Whether the first parent is the leak.
    """

    features: Leaf
    is_active: Leaf
    log_weights: Leaf
    log_failures: Leaf
    concentration: Leaf
    strength: Leaf
    offset: Leaf
    has_leak: bool = field(metadata={"static": True})

    def prepare(self, features: Bool[Array, "parents objects"]) -> NoisyOrChildCache:
        """Sums over all causes of every feature below that is on, one parent after the other."""
        parents = with_leak(features, self.log_failures)
        num_uses = parents.sum(axis=1)
        order = jnp.argsort(num_uses == 0, stable=True)
        num_features, num_objects = self.features.shape
        num_places = -(-num_features // _PLACES_AT_ONCE) * _PLACES_AT_ONCE
        place = jnp.where(self.features, jnp.cumsum(self.features, axis=0) - 1, num_places)
        children = jnp.zeros((num_places, num_objects), int)
        children = children.at[place, jnp.arange(num_objects)].set(
            jnp.arange(num_features)[:, None], mode="drop"
        )
        empty = no_causes(children.shape, (1, num_objects), self.log_failures.dtype)
        empty = empty._replace(num_causes=parents.sum(axis=0)[None])

        num_parents = noisy_or_features.num_parents_used(num_uses, num_objects)
        mean_uses = noisy_or_features.mean_uses(num_parents, self.strength, self.offset)
        # the nodes must do for all counts of this sweep, also from none at all
        room = jnp.full(num_objects, _NUM_NEW_PARENTS)
        room = noisy_or_features.mean_uses(room, self.strength, self.offset)
        nodes, weights, _ = quadrature(mean_uses + room)
        log_absence = noisy_or_features.log_absence(nodes, num_parents, self.strength, self.offset)
        # the nodes stay where they are while the counts change; the smallest one answers for
        # everything below it, where f is linear
        terms = noisy_or_features.log_absence_table(nodes, num_objects, self.strength, self.offset)
        weights = weights.at[0].add(1.0)
        cache = NoisyOrChildCache(
            children=children,
            num_children=self.features.sum(axis=0),
            log_all_off=jnp.where(self.is_active[:, None], self.log_failures.T, 0).sum(axis=0),
            sums=empty,
            num_uses=num_uses,
            node_weights=weights,
            terms=terms,
            log_absence=log_absence,
        )

        def fill(block, cache):
            below, _, sums = cache.block(block)

            def add(i, sums):
                j = order[i]
                return add_cause(sums, self.log_failures[j][below], parents[j][None])

            sums = jax.lax.fori_loop(0, (num_uses > 0).sum(), add, sums)
            return cache.with_block(block, sums)

        return jax.lax.fori_loop(0, cache.num_blocks(), fill, cache)

    def log_odds(self, cache, index, column):
        """The sum over active features: log1p(V e^L / (1 - e^L)) where on, log(1 - V) where off."""
        row = index + self.has_leak
        failures, weights = self.log_failures[row], self.log_weights[row]

        def add(block, total):
            below, is_filled, sums = cache.block(block)
            others = remove_cause(sums, failures[below], column[None])
            on = log_on_ratio(others.log_off(), weights[below]) - failures[below]
            return total + jnp.where(is_filled, on, 0).sum(axis=0)

        all_off = jnp.broadcast_to(cache.log_all_off[row], column.shape)
        return jax.lax.fori_loop(0, cache.num_blocks(), add, all_off), None

    def replace(self, key, cache, notes, index, column, proposed):
        """Accept the column with min(1, exp(-alpha change of psi))."""
        counts = jnp.stack([column.sum(), proposed.sum()])
        terms = cache.terms[counts]
        log_absence = cache.log_absence + (terms[1] - terms[0])
        change = (cache.node_weights * (jnp.exp(cache.log_absence) - jnp.exp(log_absence))).sum()
        log_uniform = -jax.random.exponential(key)
        is_accepted = log_uniform < -self.concentration * change

        taken = jnp.where(is_accepted, proposed, column)
        row = index + self.has_leak
        failures = self.log_failures[row]

        def exchange(block, cache):
            below, _, sums = cache.block(block)
            sums = remove_cause(sums, failures[below], column[None])
            return cache.with_block(block, add_cause(sums, failures[below], taken[None]))

        cache = jax.lax.fori_loop(0, cache.num_blocks(), exchange, cache)
        change = taken.astype(int) - column.astype(int)
        return cache._replace(
            sums=cache.sums._replace(num_causes=cache.sums.num_causes + change),
            num_uses=cache.num_uses.at[row].set(counts[is_accepted.astype(int)]),
            log_absence=jnp.where(is_accepted, log_absence, cache.log_absence),
        ), taken


def with_leak(
    features: Bool[Array, "features objects"], weights: Float[Array, "parents below"]
) -> Bool[Array, "parents objects"]:
    """Parents of a layer: where the weights have a row for it the leak, then the features above."""
    if len(weights) == len(features):
        return features
    return jnp.concatenate([jnp.ones_like(features[:1]), features])
