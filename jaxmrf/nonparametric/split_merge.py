r"""Moves that split a group of edges in two, or merge two groups.

Two edges are chosen; if they share a group it is split between them, else their groups are
merged. A split deals out the other members independently, with probabilities

.. math:: r_k = \sigma\!\left(\mathrm{logit}\,\rho + \log L_k(\phi_1) - \log L_k(\phi_2)\right)

at a point :math:`(\rho, \phi_1, \phi_2)` that depends on the members and the two edges alone. With
the values integrated out it is accepted with the ratio, and a merge with its inverse,

.. math:: \alpha\, \frac{\Gamma(m_1) \Gamma(m_2)}{\Gamma(m)} \,
          \frac{\int L_1 \, dG_0 \int L_2 \, dG_0}{\int L_1 L_2 \, dG_0} \Big/
          \prod_k r_k^{z_k} (1 - r_k)^{1 - z_k}

Reference: Jain & Neal, "Splitting and merging components of a nonconjugate Dirichlet process
mixture model", Bayesian Analysis 2007; here every scan is one array operation over the edges.
"""

import jax
import jax.numpy as jnp
from jax.nn import log_sigmoid, softplus
from jax.scipy.special import betaln, gammaln

from jaxmrf.nonparametric.base_measures import BaseMeasure, BetaBase, draw_logits
from jaxmrf.nonparametric.dirichlet_process import group_sizes
from jaxmrf.nonparametric.label_updates import log_density
from jaxmrf.types import Array, Bool, Float, Int, Key

__all__ = ["log_evidence_ratio", "step"]

# steps of EM behind a split
_NUM_STEPS = 4
# edges among which the partner of an edge is chosen
_NUM_CANDIDATES = 16


def step(
    key: Key,
    labels: Int[Array, " edges"],
    logits: Float[Array, " groups"],
    successes: Float[Array, " edges"],
    num_items: Float[Array, ""],
    *,
    concentration: Float[Array, ""] | float,
    base: BaseMeasure,
    num_moves: int = 1,
) -> tuple[Int[Array, " edges"], Float[Array, " groups"], Float[Array, ""], Bool[Array, ""]]:
    """Labels and values after a number of split or merge moves.

    Args:
        key: Random key.
        labels: Group of every edge, any numbering of the slots.
        logits: Logit of the value of every slot.
        successes: Count of agreements of every edge.
        num_items: n, the number of observations.
        concentration: alpha of the Dirichlet process.
        base: G0.
        num_moves: Number of moves, at least 1.

    Returns:
        Labels, logits, the share of moves accepted, and whether a split found no free slot.
    """

    def body(carry, key):
        labels, logits, is_accepted, is_full = _move(
            key, *carry, successes, num_items, concentration, base
        )
        return (labels, logits), (is_accepted, is_full)

    keys = jax.random.split(key, num_moves)
    (labels, logits), (is_accepted, is_full) = jax.lax.scan(body, (labels, logits), keys)
    return labels, logits, is_accepted.mean(dtype=logits.dtype), is_full.any()


def log_evidence_ratio(
    successes: Float[Array, " sides"],
    failures: Float[Array, " sides"],
    a: Float[Array, ""] | float,
    b: Float[Array, ""] | float,
) -> Float[Array, ""]:
    """Log of the evidence of counts apart over that of their sum, under Beta(a, b).

    The large parts of the log Beta functions cancel before they are rounded.

    Args:
        successes: Number of successes on every side.
        failures: Number of failures on every side.
        a: First shape.
        b: Second shape.
    """
    apart_a, apart_b = a + successes, b + failures
    whole_a, whole_b = a + successes.sum(), b + failures.sum()
    rate = whole_a / (whole_a + whole_b)
    shift = apart_a / (apart_a + apart_b) - rate
    gain = apart_a * jnp.log1p(shift / rate) + apart_b * jnp.log1p(-shift / (1 - rate))
    small = _log_beta_remainder(apart_a, apart_b).sum() - _log_beta_remainder(whole_a, whole_b)
    per_side = a * jnp.log(rate) + b * jnp.log1p(-rate) - betaln(a, b)
    return gain.sum() + small + (successes.size - 1) * per_side


def _log_beta_remainder(a, b):
    """``log B(a, b) - a log(a / (a + b)) - b log(b / (a + b))``."""
    total = a + b
    remainder = _stirling_remainder(a) + _stirling_remainder(b) - _stirling_remainder(total)
    return remainder + (jnp.log(2 * jnp.pi) - jnp.log(a) - jnp.log(b) + jnp.log(total)) / 2


def _stirling_remainder(x):
    """``log Gamma(x) - (x - 1/2) log x + x - log(2 pi) / 2``."""
    large, small = jnp.maximum(x, 8.0), jnp.minimum(x, 8.0)
    series = (1 / 12 - 1 / (360 * large**2)) / large
    direct = gammaln(small) - (small - 0.5) * jnp.log(small) + small - jnp.log(2 * jnp.pi) / 2
    return jnp.where(x < 8, direct, series)


def _move(key, labels, logits, successes, num_items, concentration, base):
    """One split or merge."""
    key_pair, key_deal, key_values, key_accept = jax.random.split(key, 4)
    first, second = _choose_pair(key_pair, successes, num_items)
    one, other = labels[first], labels[second]
    is_split = one == other
    is_member = (labels == one) | (labels == other)
    edges = jnp.arange(labels.size)
    is_anchor = (edges == first) | (edges == second)

    log_odds = _launch(is_member, first, second, successes, num_items, base)
    # the sides as they would be after a split, or as they are before a merge
    uniform = jax.random.uniform(key_deal, labels.shape, logits.dtype)
    is_dealt = jnp.where(is_anchor, edges == first, uniform < jax.nn.sigmoid(log_odds))
    is_first = is_member & jnp.where(is_split, is_dealt, labels == one)
    sides = jnp.stack([is_first, is_member & ~is_first])
    log_deal = log_sigmoid(jnp.where(is_first, log_odds, -log_odds))
    log_deal = jnp.where(is_member & ~is_anchor, log_deal, 0.0).sum()
    sizes = sides.sum(axis=1).astype(logits.dtype)
    counts = jnp.where(sides, successes, 0.0).sum(axis=1)
    failures = sizes * num_items - counts

    # values of the two sides and of the whole: those at hand, and draws given the counts
    a = jnp.append(counts, counts.sum()) + base.a
    b = jnp.append(failures, failures.sum()) + base.b
    current = logits[jnp.stack([one, other, one])]
    is_current = is_split == jnp.array([False, False, True])
    values = jnp.where(is_current, current, draw_logits(key_values, a, b))

    log_ratio = jnp.log(concentration) + betaln(sizes[0], sizes[1]) - log_deal
    log_ratio = log_ratio + log_evidence_ratio(counts, failures, base.a, base.b)
    if not isinstance(base, BetaBase):
        log_weight = log_density(values, base) - log_density(values, BetaBase(base.a, base.b))
        log_ratio = log_ratio + log_weight[0] + log_weight[1] - log_weight[2]
    log_ratio = jnp.where(is_split, log_ratio, -log_ratio)
    all_sizes = group_sizes(labels, logits.size)
    is_full = is_split & (all_sizes > 0).all()
    is_accepted = (-jax.random.exponential(key_accept) < log_ratio) & ~is_full

    slots = jnp.arange(logits.size)
    target = jnp.where(is_split, jnp.argmin(all_sizes), one).astype(labels.dtype)
    new_labels = jnp.where(sides[1], target, labels)
    new_logits = jnp.where(slots == one, jnp.where(is_split, values[0], values[2]), logits)
    new_logits = jnp.where(is_split & (slots == target), values[1], new_logits)
    labels = jnp.where(is_accepted, new_labels, labels)
    return labels, jnp.where(is_accepted, new_logits, logits), is_accepted, is_full


def _choose_pair(key, successes, num_items):
    """An edge, and another that is close to it among a few: the data choose, not the labels."""
    key_first, key_others, key_second = jax.random.split(key, 3)
    num_edges = successes.size
    first = jax.random.randint(key_first, (), 0, num_edges)
    offsets = jax.random.randint(key_others, (_NUM_CANDIDATES,), 1, num_edges)
    others = (first + offsets) % num_edges
    rate = (successes[first] + 1) / (num_items + 2)
    distance = jnp.abs(successes[others] - successes[first])
    distance = distance * jax.lax.rsqrt(num_items * rate * (1 - rate))
    noise = jax.random.gumbel(key_second, distance.shape)
    return first, others[jnp.argmax(noise - distance)]


def _launch(is_member, first, second, successes, num_items, base):
    """Log odds of the side of ``first`` for every edge, from a few steps of EM for two groups.

    Blind to how the members are divided, so that a merge finds the odds of the split it undoes.
    """
    is_free = is_member.at[first].set(False).at[second].set(False)
    size = is_member.sum(dtype=successes.dtype)
    total = jnp.where(is_member, successes, 0).sum()
    ends = successes[jnp.stack([first, second])]
    start = jnp.log(base.a + ends) - jnp.log(base.b + num_items - ends)

    def log_odds(point):
        odds, one, other = point
        slope, level = one - other, softplus(one) - softplus(other)
        return odds + successes * slope - num_items * level

    def body(point, _):
        shares = jnp.where(is_free, jax.nn.sigmoid(log_odds(point)), 0)
        inner, hits = shares.sum(), (shares * successes).sum()
        # the sums are rounded, the sides are not empty
        sizes = 1 + jnp.stack([inner, jnp.maximum(size - 2 - inner, 0)])
        hits = ends + jnp.stack([hits, jnp.maximum(total - ends.sum() - hits, 0)])
        misses = jnp.maximum(num_items * sizes - hits, 0)
        logits = jnp.log(base.a + hits) - jnp.log(base.b + misses)
        return jnp.append(jnp.log(sizes[0]) - jnp.log(sizes[1]), logits), None

    point, _ = jax.lax.scan(body, jnp.append(jnp.zeros_like(start[0]), start), length=_NUM_STEPS)
    return log_odds(point)
