r"""One sweep over the groups of all edges at once, by slices of the Dirichlet process.

Given the labels the weights of the groups are drawn, and then every label given the weights:

.. math:: (\pi_1, \dots, \pi_K, \pi_*) \sim \mathrm{Dir}(m_1, \dots, m_K, \alpha), \qquad
          u_i \sim \mathrm{Unif}(0, \pi_{c_i}), \qquad
          P(c_i = g) \propto 1[\pi_g \ge u_i] \, L_i(\phi_g)

The remainder :math:`\pi_*` is broken into sticks with values from :math:`G_0` until what is left
is below every :math:`u_i`, so finitely many groups compete and nothing is truncated. For messages
zero: exact on a forest, and under the stripped Beta approximation as good as a sweep edge by edge.
References: Walker, "Sampling the Dirichlet mixture model with slices", Commun. Stat. Simul.
Comput. 2007; Papaspiliopoulos & Roberts, "Retrospective Markov chain Monte Carlo methods for
Dirichlet process hierarchical models", Biometrika 2008; Kalli, Griffin & Walker 2011.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from jaxmrf.logspace import draw_log_gamma
from jaxmrf.nonparametric import edge_messages, label_updates, split_merge
from jaxmrf.nonparametric.base_measures import BaseMeasure
from jaxmrf.nonparametric.dirichlet_process import group_sizes
from jaxmrf.nonparametric.group_values import fill_empty
from jaxmrf.nonparametric.label_updates import DEFAULT_RULE, LabelRule
from jaxmrf.types import Array, Bool, Float, Int, Key

__all__ = ["Parallel", "sweep", "update"]


@dataclass(frozen=True)
class Parallel:
    """All edges choose at once; then moves for the groups that the prior seldom proposes.

    Args:
        num_split_merge: Split-merge moves, at least 0.
        num_sequential: Edges that then choose one after the other, at least 0.
        rule: How those choose their groups.
    """

    num_split_merge: int = 1
    num_sequential: int = 0
    rule: LabelRule = DEFAULT_RULE

    def __post_init__(self):
        for name in ("num_split_merge", "num_sequential"):
            count = getattr(self, name)
            if count < 0:
                raise ValueError(
                    f"Parallel: expected {name} to be at least 0, got {count}; pass 0 for none"
                )


def update(
    key: Key,
    labels: Int[Array, " edges"],
    logits: Float[Array, " groups"],
    successes: Float[Array, " edges"],
    num_items: Float[Array, ""],
    *,
    concentration: Float[Array, ""] | float,
    base: BaseMeasure,
    rule: Parallel,
) -> tuple[Int[Array, " edges"], Float[Array, " groups"], Bool[Array, ""]]:
    """Labels and values after a sweep over all edges and the moves that the rule adds to it.

    Args:
        key: Random key.
        labels: Group of every edge, any numbering of the slots.
        logits: Logit of the value of every slot.
        successes: Count of agreements of every edge.
        num_items: n, the number of observations.
        concentration: alpha of the Dirichlet process.
        base: G0.
        rule: What follows the sweep.

    Returns:
        Labels, logits, and whether the buffer had too few free slots.
    """
    key_sweep, key_moves, key_start, key_edges = jax.random.split(key, 4)
    options = {"concentration": concentration, "base": base}
    labels, logits, is_full = sweep(key_sweep, labels, logits, successes, num_items, **options)
    if rule.num_split_merge:
        labels, logits, _, is_short = split_merge.step(
            key_moves, labels, logits, successes, num_items,
            num_moves=rule.num_split_merge, **options,
        )  # fmt: skip
        is_full = is_full | is_short
    num_edges = labels.size
    count = min(rule.num_sequential, num_edges)
    if count:
        start = jax.random.randint(key_start, (), 0, num_edges)
        messages = edge_messages.none(count)
        messages = messages._replace(order=(start + messages.order) % num_edges)
        labels, logits, is_short = label_updates.sweep(
            key_edges, labels, logits, successes, num_items, messages, rule=rule.rule, **options
        )
        is_full = is_full | is_short
    return labels, logits, is_full


def sweep(
    key: Key,
    labels: Int[Array, " edges"],
    logits: Float[Array, " groups"],
    successes: Float[Array, " edges"],
    num_items: Float[Array, ""],
    *,
    concentration: Float[Array, ""] | float,
    base: BaseMeasure,
) -> tuple[Int[Array, " edges"], Float[Array, " groups"], Bool[Array, ""]]:
    """Labels and values after all edges have chosen their groups at once, given the weights.

    Args:
        key: Random key.
        labels: Group of every edge, any numbering of the slots.
        logits: Logit of the value of every slot.
        successes: Count of agreements of every edge.
        num_items: n, the number of observations.
        concentration: alpha of the Dirichlet process.
        base: G0.

    Returns:
        Labels, logits, and whether the sticks that the slices ask for outnumber the free slots.
    """
    key_weights, key_values, key_slices, key_choice = jax.random.split(key, 4)
    is_used = group_sizes(labels, logits.size) > 0
    logits = fill_empty(key_values, logits, is_used, base)
    weights, rest = _draw_weights(key_weights, labels, logits.size, concentration)

    # in (0, pi], so that an edge's own group always competes
    slices = weights[labels] * (1 - jax.random.uniform(key_slices, labels.shape, logits.dtype))
    lowest = slices.min()
    is_live = weights >= lowest
    order = jnp.argsort(~is_live)
    num_live = is_live.sum()
    penalties = num_items * jax.nn.softplus(logits)

    def score(rank):
        slot = order[rank]
        is_allowed = slices <= weights[slot]
        return slot, jnp.where(is_allowed, successes * logits[slot] - penalties[slot], -jnp.inf)

    # a loop over the live groups alone, three times, needs no array of edges and groups
    def find_top(rank, top):
        return jnp.maximum(top, score(rank)[1])

    def add_up(rank, total):
        return total + jnp.exp(score(rank)[1] - top)

    def choose(rank, carry):
        below, chosen = carry
        slot, log_weight = score(rank)
        weight = jnp.exp(log_weight - top)
        chosen = jnp.where((weight > 0) & (below <= target), slot, chosen)
        return below + weight, chosen.astype(labels.dtype)

    zeros = jnp.zeros_like(slices)
    top = jax.lax.fori_loop(0, num_live, find_top, zeros - jnp.inf)
    total = jax.lax.fori_loop(0, num_live, add_up, zeros)
    target = jax.random.uniform(key_choice, labels.shape, logits.dtype) * total
    _, labels = jax.lax.fori_loop(0, num_live, choose, (zeros, labels))
    return labels, logits, rest >= lowest


def _draw_weights(
    key: Key,
    labels: Int[Array, " edges"],
    max_groups: int,
    concentration: Float[Array, ""] | float,
) -> tuple[Float[Array, " groups"], Float[Array, ""]]:
    """Weights of all slots given the labels, sticks in the free ones, and what is left over."""
    key_groups, key_sticks = jax.random.split(key)
    sizes = group_sizes(labels, max_groups)
    is_used = sizes > 0
    breaks = jax.random.exponential(key_sticks, sizes.shape)
    shapes = jnp.where(is_used, sizes, 1).astype(breaks.dtype)
    shapes = jnp.append(shapes, jnp.asarray(concentration, breaks.dtype))
    log_weights = draw_log_gamma(key_groups, shapes)
    is_part = jnp.append(is_used, True)
    weights = jax.nn.softmax(jnp.where(is_part, log_weights, -jnp.inf))
    # a stick of Beta(1, alpha) leaves exp(-E / alpha) of the remainder
    breaks = jnp.where(is_used, 0, breaks / concentration)
    after = jnp.cumsum(breaks)
    sticks = weights[-1] * jnp.exp(-(after - breaks)) * -jnp.expm1(-breaks)
    return jnp.where(is_used, weights[:-1], sticks), weights[-1] * jnp.exp(-after[-1])
