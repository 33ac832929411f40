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

_NUM_NEW_PARENTS = 8.0  # on for everyone; more of them cost accuracy slowly


@runtime_checkable
class Child(Protocol):
    """What the update of a column asks of the layer or the observations below."""

    def prepare(self, features: Bool[Array, "features objects"]) -> Any:
        """Cache of everything that depends on all columns."""

    def log_odds(self, cache: Any, index, column) -> tuple[Float[Array, " objects"], Any]:
        """Log-probability below with the feature on, minus with it off; and notes for `replace`."""

    def replace(self, key: Key, cache: Any, notes: Any, index, column, proposed):
        """Cache and column after the proposal, which may be refused as a whole."""


class NoisyOrChildCache(NamedTuple):
    """Causes of the features below.

    Attributes:
        sums: Log-failures that sum to L, features below by objects.
        num_uses: N_j, for how many objects each parent is on.
        node_weights: Quadrature weights of psi.
        terms: What a parent adds to log f at the nodes, by the number of its objects.
        log_absence: log f at the nodes.
    """

    sums: CauseSums
    num_uses: Int[Array, " parents"]
    node_weights: Float[Array, " nodes"]
    terms: Float[Array, "counts nodes"]
    log_absence: Float[Array, " nodes"]


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
        """Sums over all causes of every feature below, one parent after the other."""
        parents = with_leak(features, self.log_failures)
        num_uses = parents.sum(axis=1)
        order = jnp.argsort(num_uses == 0, stable=True)

        def add(i, sums):
            j = order[i]
            return add_cause(sums, self.log_failures[j][:, None], parents[j][None])

        num_objects = features.shape[1]
        empty = no_causes(self.features.shape, (1, num_objects), self.log_failures.dtype)
        sums = jax.lax.fori_loop(0, (num_uses > 0).sum(), add, empty)
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
        return NoisyOrChildCache(sums, num_uses, weights, terms, log_absence)

    def log_odds(self, cache, index, column):
        """The sum over active features: log1p(V e^L / (1 - e^L)) where on, log(1 - V) where off.

        The notes are the sums without this parent.
        """
        row = index + self.has_leak
        failure = self.log_failures[row][:, None]
        others = remove_cause(cache.sums, failure, column[None])
        on = log_on_ratio(others.log_off(), self.log_weights[row][:, None])
        change = jnp.where(self.features, on, failure)
        return jnp.where(self.is_active[:, None], change, 0).sum(axis=0), others

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
        return NoisyOrChildCache(
            sums=add_cause(notes, self.log_failures[row][:, None], taken[None]),
            num_uses=cache.num_uses.at[row].set(counts[is_accepted.astype(int)]),
            node_weights=cache.node_weights,
            terms=cache.terms,
            log_absence=jnp.where(is_accepted, log_absence, cache.log_absence),
        ), taken


def with_leak(
    features: Bool[Array, "features objects"], weights: Float[Array, "parents below"]
) -> Bool[Array, "parents objects"]:
    """Parents of a layer: where the weights have a row for it the leak, then the features above."""
    if len(weights) == len(features):
        return features
    return jnp.concatenate([jnp.ones_like(features[:1]), features])
