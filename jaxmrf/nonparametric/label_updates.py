r"""One sweep over the groups of edges: Neal's Algorithms 2, 5 and 8 with any message to an edge.

Given everything else edge i joins a group with probability

.. math:: P(c_i = g) \propto m_{-i,g} L_i(\phi_g), \quad
          P(c_i = \text{new}) \propto \alpha \int L_i \, dG_0, \quad
          L_i(\theta) = \lambda^{S_i} (1 - \lambda)^{n - S_i},\;
          \lambda = \sigma(\mathrm{logit}\,\theta + h_i)

where S_i counts agreements and h_i is the message of ``edge_messages``. The three rules treat the
integral differently: by quadrature, by proposals from the prior, by values that stand in for it.
Reference: Neal, "Markov chain sampling methods for Dirichlet process mixture models", J. Comput.
Graph. Stat. 2000.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jax.nn import log_sigmoid
from jax.scipy.special import betaln, digamma, logsumexp, polygamma

from jaxmrf.nonparametric.base_measures import LARGEST_LOGIT, BaseMeasure, draw_logits
from jaxmrf.nonparametric.dirichlet_process import group_sizes, propose_label
from jaxmrf.nonparametric.edge_messages import EdgeMessages, if_present
from jaxmrf.types import Array, Bool, Float, Int, Key

__all__ = [
    "DEFAULT_RULE",
    "Auxiliary",
    "EdgeView",
    "LabelRule",
    "Metropolis",
    "Quadrature",
    "log_density",
    "log_likelihood",
    "sweep",
]


class EdgeView(NamedTuple):
    """What a rule sees of one edge, taken out of its group.

    Attributes:
        sizes: Size of every group without the edge.
        logits: Logit of every group's value.
        label: The edge's own slot.
        logit: Its logit.
        is_alone: Whether that group is empty without the edge.
        successes: S, its count of agreements.
        num_items: n, 0 as the successes are for an edge that is absent.
        message: h, from the rest of the field; 0 too for an absent edge.
    """

    sizes: Float[Array, " groups"]
    logits: Float[Array, " groups"]
    label: Int[Array, ""]
    logit: Float[Array, ""]
    is_alone: Bool[Array, ""]
    successes: Float[Array, ""]
    num_items: Float[Array, ""]
    message: Float[Array, ""]

    def log_likelihood(self, logits: Array) -> Array:
        """Log L at agreement parameters given by their logits."""
        return log_likelihood(logits + self.message, self.successes, self.num_items)


@runtime_checkable
class LabelRule(Protocol):
    """How one edge chooses its group."""

    def draw(self, key: Key, successes, num_items, base: BaseMeasure, max_groups: int) -> Any:
        """All random numbers of a sweep, with a leading axis of edges."""

    def choose(self, random: Any, edge: EdgeView, concentration, base: BaseMeasure):
        """Index of the chosen group, or -1 for a new one, and the logit of its value."""


def sweep(
    key: Key,
    labels: Int[Array, " edges"],
    logits: Float[Array, " groups"],
    successes: Float[Array, " edges"],
    num_items: Float[Array, ""],
    messages: EdgeMessages,
    *,
    concentration: Float[Array, ""] | float,
    base: BaseMeasure,
    rule: LabelRule,
    is_present: Bool[Array, " edges"] | None = None,
) -> tuple[Int[Array, " edges"], Float[Array, " groups"], Bool[Array, ""]]:
    """Labels and values after every edge has chosen its group once, in the order of the messages.

    Args:
        key: Random key.
        labels: Group of every edge, any numbering of the slots.
        logits: Logit of the value of every slot.
        successes: Count of agreements of every edge.
        num_items: n, the number of observations.
        messages: Messages to the edges at the current parameters; edges that are not in their
            order keep their labels.
        concentration: alpha of the Dirichlet process.
        base: G0.
        rule: Neal's algorithm.
        is_present: Which edges are in the graph, by default all. An absent edge has no data and
            its label follows the prior; messages are those of the logits ``if_present``.

    Returns:
        Labels, logits, and whether some edge found the buffer without a free slot.
    """
    slots = jnp.arange(logits.size, dtype=labels.dtype)
    order = messages.order
    successes = if_present(successes, is_present)
    presence = None
    if is_present is not None:
        num_items = if_present(jnp.broadcast_to(num_items, labels.shape), is_present)[order]
        presence = is_present[order], num_items
    random = rule.draw(key, successes[order], num_items, base, logits.size)
    steps = (labels[order], successes[order], presence, random)

    # comparisons with all slots, not indexing: XLA fuses them into fewer kernels
    def body(carry, step):
        sizes, logits, mail, is_full = carry
        label, success, presence, random, inputs = step
        is_in, num_own = (None, num_items) if presence is None else presence
        is_own = slots == label
        sizes = sizes - is_own
        edge = EdgeView(
            sizes=sizes,
            logits=logits,
            label=label,
            logit=jnp.where(is_own, logits, 0).sum(),
            is_alone=~(is_own & (sizes > 0)).any(),
            successes=success,
            num_items=num_own,
            message=if_present(messages.offset(mail, inputs), is_in),
        )
        chosen, logit = rule.choose(random, edge, concentration, base)
        # without a free slot a new group is lost, and reported
        has_free = (sizes == 0).any()
        is_lost = (chosen < 0) & ~has_free
        free = jnp.where(has_free, jnp.argmin(sizes), label)
        logit = jnp.where(is_lost, edge.logit, logit)
        is_chosen = slots == jnp.where(chosen < 0, free, chosen)
        logits = jnp.where(is_chosen, logit, logits)
        change = if_present(logit - edge.logit, is_in)
        mail = messages.move(mail, inputs, if_present(logit, is_in), change)
        label = jnp.where(chosen < 0, free, chosen).astype(labels.dtype)
        return (sizes + is_chosen, logits, mail, is_full | ~has_free), label

    sizes = group_sizes(labels, logits.size).astype(logits.dtype)
    carry = (sizes, logits, messages.carry, jnp.array(False))
    (_, logits, _, is_full), chosen = jax.lax.scan(body, carry, (*steps, messages.inputs))
    return labels.at[order].set(chosen), logits, is_full


@dataclass(frozen=True)
class Auxiliary:
    """Algorithm 8: a few values stand in for the groups that do not exist.

    Values are proposed from the edge's own reference posterior and weighed by importance, not from
    G0, so one is enough: with a Beta base and no message its weight is the integral itself. A lone
    edge's value is the first of them.

    Args:
        num_values: Number of stand-ins, at least 1.
    """

    num_values: int = 1

    def __post_init__(self):
        if self.num_values < 1:
            raise ValueError(
                f"Auxiliary: expected num_values to be at least 1, got {self.num_values}; pass 1"
            )

    def draw(self, key, successes, num_items, base, max_groups):
        """Logits of the proposals before the message is taken off, their normaliser, noise."""
        key_values, key_choice = jax.random.split(key)
        shape = (successes.size, self.num_values)
        a = jnp.broadcast_to((base.a + successes)[:, None], shape)
        b = jnp.broadcast_to((base.b + num_items - successes)[:, None], shape)
        noise = jax.random.gumbel(key_choice, (successes.size, max_groups + self.num_values))
        return draw_logits(key_values, a, b), betaln(a[:, 0], b[:, 0]), noise

    def choose(self, random, edge, concentration, base):
        """One of the groups and the stand-ins, by its weight."""
        proposals, log_normalizer, noise = random
        is_kept = edge.is_alone & (jnp.arange(self.num_values) == 0)
        values = jnp.where(is_kept, edge.logit, proposals - edge.message)
        values = jnp.clip(values, -LARGEST_LOGIT, LARGEST_LOGIT)
        # likelihood times G0 over the density of the proposal
        shifted = values + edge.message
        log_reference = base.a * log_sigmoid(shifted) + base.b * log_sigmoid(-shifted)
        log_new = log_normalizer + log_density(values, base) - log_reference
        log_new = log_new + jnp.log(concentration / self.num_values)
        log_old = jnp.log(edge.sizes) + edge.log_likelihood(edge.logits)
        num_groups = edge.sizes.size
        scores_old, scores_new = log_old + noise[:num_groups], log_new + noise[num_groups:]
        old, new = jnp.argmax(scores_old), jnp.argmax(scores_new)
        is_new = scores_new[new] > scores_old[old]
        logit = jnp.where(is_new, values[new], edge.logits[old])
        return jnp.where(is_new, -1, old), logit


DEFAULT_RULE = Auxiliary()
"""Algorithm 8 with one stand-in: the cheapest rule, and exact for every base."""


@dataclass(frozen=True)
class Quadrature:
    """Algorithm 2: the integral by a quadrature rule, the new value drawn from the same rule.

    Args:
        num_points: Number of equidistant points, which span ten standard deviations of the edge's
            reference posterior either way.
    """

    num_points: int = 128

    def __post_init__(self):
        if self.num_points < 16:
            raise ValueError(
                f"Quadrature: expected num_points to be at least 16, got {self.num_points}; "
                "take 128"
            )

    def draw(self, key, successes, num_items, base, max_groups):
        """Centre and scale of the points of every edge, and noise for the choice and the draw."""
        key_choice, key_point, key_cell = jax.random.split(key, 3)
        a, b = base.a + successes, base.b + num_items - successes
        num_edges = successes.size
        return (
            digamma(a) - digamma(b),
            jnp.sqrt(polygamma(1, a) + polygamma(1, b)),
            jax.random.gumbel(key_choice, (num_edges, max_groups + 1)),
            jax.random.gumbel(key_point, (num_edges, self.num_points)),
            jax.random.uniform(key_cell, (num_edges,), minval=-0.5, maxval=0.5),
        )

    def choose(self, random, edge, concentration, base):
        """One of the groups, or a new one by its integral."""
        center, scale, noise, noise_points, place = random
        spacing = 20 * scale / (self.num_points - 1)
        points = (
            center
            - edge.message
            + spacing * (jnp.arange(self.num_points) - (self.num_points - 1) / 2)
        )
        points = jnp.clip(points, -LARGEST_LOGIT, LARGEST_LOGIT)
        log_integrand = edge.log_likelihood(points) + log_density(points, base)
        log_new = logsumexp(log_integrand) + jnp.log(spacing * concentration)
        log_old = jnp.log(edge.sizes) + edge.log_likelihood(edge.logits)
        scores = log_old + noise[:-1]
        old = jnp.argmax(scores)
        is_new = log_new + noise[-1] > scores[old]
        drawn = points[jnp.argmax(log_integrand + noise_points)] + place * spacing
        return jnp.where(is_new, -1, old), jnp.where(is_new, drawn, edge.logits[old])


@dataclass(frozen=True)
class Metropolis:
    """Algorithm 5: proposals from the prior of the label, accepted by the likelihood ratio.

    Args:
        num_proposals: Proposals to every edge, at least 1.
    """

    num_proposals: int = 5

    def __post_init__(self):
        if self.num_proposals < 1:
            raise ValueError(
                f"Metropolis: expected num_proposals to be at least 1, got {self.num_proposals}; "
                "pass 5"
            )

    def draw(self, key, successes, num_items, base, max_groups):
        """Uniforms for the proposals, values from G0, and thresholds of acceptance."""
        key_choice, key_value, key_accept = jax.random.split(key, 3)
        shape = (successes.size, self.num_proposals)
        values = base.sample(key_value, shape)
        logits = jnp.clip(jax.scipy.special.logit(values), -LARGEST_LOGIT, LARGEST_LOGIT)
        uniforms = jax.random.uniform(key_choice, shape)
        return uniforms, logits, -jax.random.exponential(key_accept, shape)

    def choose(self, random, edge, concentration, base):
        """The label after all proposals."""
        chosen, logit = jnp.where(edge.is_alone, -1, edge.label), edge.logit
        for uniform, fresh, log_threshold in zip(*random, strict=True):
            slot, is_new = propose_label(uniform, edge.sizes, concentration)
            proposal = jnp.where(is_new, fresh, edge.logits[slot])
            log_ratio = edge.log_likelihood(proposal) - edge.log_likelihood(logit)
            is_accepted = log_threshold < log_ratio
            chosen = jnp.where(is_accepted, jnp.where(is_new, -1, slot), chosen)
            logit = jnp.where(is_accepted, proposal, logit)
        return chosen, logit


def log_likelihood(shifted: Array, successes: Array, num_items: Array) -> Array:
    """Log of ``lambda ** S * (1 - lambda) ** (n - S)`` at lambda = sigmoid(shifted)."""
    return successes * shifted - num_items * jax.nn.softplus(shifted)


def log_density(logits: Array, base: BaseMeasure) -> Array:
    """Log density of G0 on the logit scale."""
    jacobian = log_sigmoid(logits) + log_sigmoid(-logits)
    return base.log_density(jax.nn.sigmoid(logits)) + jacobian
