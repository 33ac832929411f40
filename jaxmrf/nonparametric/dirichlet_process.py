r"""The partition prior of a Dirichlet process, also called the Chinese restaurant process.

.. math:: P(c) = \frac{\alpha^{K}\,\Gamma(\alpha)}{\Gamma(\alpha + r)} \prod_{g=1}^{K} \Gamma(m_g)

for r items in K groups of sizes m_g (the exchangeable partition probability function; Ewens 1972,
Pitman 1995). A partition is written as a vector of canonical labels: groups are numbered in the
order of their first item, so every partition has exactly one vector.
"""

import jax
import jax.numpy as jnp
from jax.scipy.special import gammaln

from jaxmrf.logspace import draw_log_gamma
from jaxmrf.types import Array, Bool, Float, Int, Key

__all__ = [
    "canonical_labels",
    "draw",
    "draw_concentration",
    "first_items",
    "group_sizes",
    "is_canonical",
    "log_prob",
    "propose_label",
    "ranks",
]


def log_prob(
    labels: Int[Array, " items"], concentration: Float[Array, ""] | float
) -> Float[Array, ""]:
    """Log-probability of the partition that the labels describe.

    Args:
        labels: Group of each item, any numbering in 0..items-1.
        concentration: alpha > 0; the prior mean of the number of groups is about
            ``alpha * log(1 + items / alpha)``.
    """
    num_items = labels.shape[0]
    sizes = group_sizes(labels, num_items)
    log_blocks = jnp.where(sizes > 0, gammaln(jnp.maximum(sizes, 1)), 0.0).sum()
    num_groups = (sizes > 0).sum()
    normalizer = gammaln(concentration) - gammaln(concentration + num_items)
    return num_groups * jnp.log(concentration) + normalizer + log_blocks


def draw(key: Key, concentration: Float[Array, ""] | float, num_items: int) -> Int[Array, " items"]:
    """A partition of ``num_items`` items from the prior, as canonical labels.

    Item i starts a group with probability ``alpha / (alpha + i)``, else it joins the group of an
    earlier item chosen uniformly.
    """
    key_new, key_earlier = jax.random.split(key)
    order = jnp.arange(num_items)
    is_new = jax.random.uniform(key_new, (num_items,)) * (concentration + order) < concentration
    is_new = is_new.at[0].set(True)
    earlier = jax.random.randint(key_earlier, (num_items,), 0, jnp.maximum(order, 1))

    def body(labels, item):
        position, starts, other = item
        label = jnp.where(starts, labels.max() + 1, labels[other])
        return labels.at[position].set(label), None

    start = jnp.full(num_items, -1, dtype=jnp.int32)
    return jax.lax.scan(body, start, (order, is_new, earlier))[0]


def propose_label(
    uniform: Float[Array, ""],
    sizes: Float[Array, " groups"] | Int[Array, " groups"],
    concentration: Float[Array, ""] | float,
) -> tuple[Int[Array, ""], Bool[Array, ""]]:
    """The label of one item from its prior given the others': a slot, and whether it is new.

    Args:
        uniform: A uniform number in [0, 1).
        sizes: Sizes of all groups without the item.
        concentration: alpha.

    Returns:
        The group, for a new one the first empty slot, and whether it is new.
    """
    ends = jnp.cumsum(sizes)
    target = uniform * (ends[-1] + concentration)
    is_new = target >= ends[-1]
    slot = jnp.minimum((ends <= target).sum(), ends.size - 1)
    return jnp.where(is_new, jnp.argmin(sizes), slot), is_new


def group_sizes(labels: Int[Array, " items"], max_groups: int) -> Int[Array, " groups"]:
    """Number of items with each label 0..max_groups-1."""
    return jnp.zeros(max_groups, dtype=jnp.int32).at[labels].add(1)


def first_items(labels: Int[Array, " items"], max_groups: int) -> Int[Array, " groups"]:
    """Position of the first item of every group; the number of items for an empty group."""
    num_items = labels.shape[0]
    empty = jnp.full(max_groups, num_items, dtype=jnp.int32)
    return empty.at[labels].min(jnp.arange(num_items, dtype=jnp.int32))


def ranks(labels: Int[Array, " items"], max_groups: int) -> Int[Array, " groups"]:
    """Canonical label of every group; empty groups come last, in their order."""
    order = jnp.argsort(first_items(labels, max_groups))
    return jnp.zeros(max_groups, jnp.int32).at[order].set(jnp.arange(max_groups, dtype=jnp.int32))


def canonical_labels(labels: Int[Array, " items"]) -> Int[Array, " items"]:
    """The same partition with groups numbered in the order of their first item.

    Args:
        labels: Group of each item, any numbering in 0..items-1.

    >>> canonical_labels(jnp.array([2, 0, 2, 1])).tolist()
    [0, 1, 0, 2]
    """
    return ranks(labels, labels.shape[0])[labels]


def is_canonical(labels: Int[Array, " items"]) -> Bool[Array, ""]:
    """Whether each label is at most one more than the largest before it, starting from 0."""
    largest_before = jnp.concatenate([jnp.array([-1]), jax.lax.cummax(labels)[:-1]])
    return ((labels >= 0) & (labels <= largest_before + 1)).all()


def draw_concentration(
    key: Key,
    concentration: Float[Array, ""],
    num_groups: Int[Array, ""],
    num_items: int,
    *,
    shape: Float[Array, ""] | float,
    rate: Float[Array, ""] | float,
) -> Float[Array, ""]:
    """The concentration from its conditional under a Gamma prior (Escobar & West 1995, sec. 6).

    Args:
        key: Random key.
        concentration: Current value.
        num_groups: Number of groups K.
        num_items: Number of items r.
        shape: Shape of the Gamma prior.
        rate: Rate of the Gamma prior.
    """
    key_gamma, key_mixture, key_more = jax.random.split(key, 3)
    smaller = shape + num_groups - 1.0
    # one loop for the two gammas behind the Beta and for the Gamma
    shapes = jnp.stack([concentration + 1.0, jnp.full_like(concentration, num_items), smaller])
    log_first, log_second, log_gamma = draw_log_gamma(key_gamma, shapes)
    rate = rate - jax.nn.log_sigmoid(log_first - log_second)
    odds = smaller / (num_items * rate)
    is_larger = jax.random.uniform(key_mixture) * (1.0 + odds) < odds
    # Gamma(a + 1) = Gamma(a) + Exponential
    more = jnp.where(is_larger, jax.random.exponential(key_more), 0.0)
    return (jnp.exp(log_gamma) + more) / rate
