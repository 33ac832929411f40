r"""Metropolis-Hastings for grouped agreement parameters with auxiliary variables: no normaliser.

A proposal :math:`w \to w^*` of the logits of the agreement parameters comes with n particles
:math:`Y \sim P(\cdot \mid w^*)^n`, whose density cancels the intractable ratio of normalisers,

.. math:: \log r = (w^* - w) \cdot (S(X) - S(Y)) + (w - \tilde w) \cdot (S(Z) - S(Y)),

with S the agreement counts. Moller et al. (Biometrika 2006) keep the particles of the last
accepted proposal as Z, whose law is :math:`P(\cdot \mid \tilde w)^n` at a fixed estimate; the
exchange algorithm (Murray, Ghahramani & MacKay, UAI 2006) keeps none and has no second term, whose
spread makes Moller's chains stick unless the estimate is close. Reference: Liu & Page, NIPS
2013, Algorithm 1 (Moller's scheme).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.special import logit

from jaxmrf.nonparametric import group_values
from jaxmrf.nonparametric.base_measures import LARGEST_LOGIT, BaseMeasure
from jaxmrf.nonparametric.dirichlet_process import group_sizes, propose_label
from jaxmrf.nonparametric.group_exact import EdgeCounts
from jaxmrf.nonparametric.parameter_groups import sort_groups
from jaxmrf.nonparametric.particle_sources import Source
from jaxmrf.types import Array, Bool, Float, Int, Key

__all__ = [
    "AuxiliaryInfo",
    "AuxiliaryState",
    "init",
    "step",
]

SCHEMES = ("exchange", "moller")


class AuxiliaryState(NamedTuple):
    """Position of the chain.

    Attributes:
        labels: Canonical group of every edge.
        values: Agreement parameter of every group; slots past the last group hold prior draws.
        auxiliary: S(Z), the agreement counts of Moller's particles; exchange lets them be.
        is_truncated: Whether a proposed group has ever found the buffer without a free slot.
        is_inexact: Whether any particles so far were not exact draws, or not n of them. The chain
            then has the written posterior only as nearly as the particles have their law.
    """

    labels: Int[Array, " edges"]
    values: Float[Array, " groups"]
    auxiliary: Float[Array, " edges"]
    is_truncated: Bool[Array, ""]
    is_inexact: Bool[Array, ""]


class AuxiliaryInfo(NamedTuple):
    """What a person plots.

    Attributes:
        num_groups: Number of groups in use.
        accept_labels: Accepted fraction of the proposals of another value to an edge.
        accept_values: Accepted fraction of the steps of the groups' values.
        num_inexact: Number of proposals whose particles were not exact.
    """

    num_groups: Int[Array, ""]
    accept_labels: Float[Array, ""]
    accept_values: Float[Array, ""]
    num_inexact: Int[Array, ""]


def init(
    key: Key,
    labels: Int[Array, " edges"],
    values: Float[Array, " groups"],
    draw: Source,
) -> AuxiliaryState:
    """State at a given grouping, with Moller's first particles drawn there.

    From particles drawn at Moller's estimate, where a chain in equilibrium has them, it would not
    move before they are overcome, for ever if the start fits the data badly.

    Args:
        key: Random key.
        labels: Group of every edge, 0..groups-1.
        values: Agreement parameter of every slot, in (0, 1).
        draw: Source of particles.
    """
    labels, values = sort_groups(labels, values)
    auxiliary = draw(key, _bounded_logit(values)[labels]).agreements
    return AuxiliaryState(labels, values, auxiliary, jnp.array(False), jnp.array(False))


def step(
    key: Key,
    state: AuxiliaryState,
    model: EdgeCounts,
    draw: Source,
    *,
    concentration: Float[Array, ""] | float,
    base: BaseMeasure,
    scheme: str = "exchange",
    estimate: Float[Array, " edges"] | None = None,
    num_proposals: int = 5,
    num_value_steps: int = 5,
    value_scale: Float[Array, ""] | float = 0.03,
) -> tuple[AuxiliaryState, AuxiliaryInfo]:
    """One sweep: the group of every edge in turn, then the value of every group in turn.

    Args:
        key: Random key.
        state: Current state.
        model: Data.
        draw: Source of ``model.num_items`` particles, static; the cost is its calls, num_proposals
            for an edge and num_value_steps for a group.
        concentration: alpha of the Dirichlet process.
        base: G0.
        scheme: "exchange" or "moller".
        estimate: Agreement parameters of Moller's fixed estimate, the same in every step. Closer
            than the noise of the data: from few items the posterior mean of another sampler, not
            the maximum likelihood.
        num_proposals: Proposals to every edge from the prior of its label given the others'.
        num_value_steps: Steps of a random walk of every group's value.
        value_scale: Standard deviation of such a step, on the scale of (0, 1).

    Raises:
        ValueError: If the scheme is neither, lacks its estimate, or a number is below 1.
    """
    _check(scheme, estimate, num_proposals, num_value_steps)
    key_labels, key_values, key_empty = jax.random.split(key, 3)
    reference = _bounded_logit(estimate) if scheme == "moller" else None
    sampler = _Sampler(model.agreements, draw, base, reference)
    labels, logits, auxiliary, is_lost, labels_tally = _update_labels(
        key_labels, sampler, state, concentration, num_proposals
    )
    labels, logits = sort_groups(labels, logits)
    logits, auxiliary, values_tally = _update_values(
        key_values, sampler, labels, logits, auxiliary, num_value_steps, value_scale
    )
    is_used = group_sizes(labels, logits.size) > 0
    logits = group_values.fill_empty(key_empty, logits, is_used, base)
    num_inexact = labels_tally.num_inexact + values_tally.num_inexact
    is_inexact = (num_inexact > 0) | (model.num_items != draw.num_items)
    state = AuxiliaryState(
        labels=labels,
        values=jax.nn.sigmoid(logits),
        auxiliary=auxiliary,
        is_truncated=state.is_truncated | is_lost,
        is_inexact=state.is_inexact | is_inexact,
    )
    info = AuxiliaryInfo(is_used.sum(), labels_tally.rate(), values_tally.rate(), num_inexact)
    return state, info


class _Tally(NamedTuple):
    """Counts of proposals."""

    num_proposed: Int[Array, ""]
    num_accepted: Int[Array, ""]
    num_inexact: Int[Array, ""]

    @classmethod
    def zero(cls):
        return cls(*jnp.zeros((3,), jnp.int32))

    def add(self, is_accepted, is_exact, is_counted=True):
        return _Tally(
            self.num_proposed + is_counted,
            self.num_accepted + (is_accepted & is_counted),
            self.num_inexact + ~is_exact,
        )

    def rate(self):
        return self.num_accepted / jnp.maximum(self.num_proposed, 1)


class _Sampler(NamedTuple):
    """What stays the same during a step."""

    counts: Float[Array, " edges"]
    draw: Source
    base: BaseMeasure
    reference: Float[Array, " edges"] | None

    def log_ratio(self, proposed, current, particles, auxiliary):
        """The module's equation; without a reference it has no second term."""
        log_ratio = (proposed - current) @ (self.counts - particles)
        if self.reference is not None:
            log_ratio += (current - self.reference) @ (auxiliary - particles)
        return log_ratio

    def remember(self, is_accepted, particles, auxiliary):
        """Moller's particles after a proposal; exchange keeps none."""
        return auxiliary if self.reference is None else jnp.where(is_accepted, particles, auxiliary)


def _update_labels(key, sampler, state, concentration, num_proposals):
    """The group of every edge in turn, by Neal's Algorithm 5.

    The proposals to an edge depend on the other edges alone, so all their particles are drawn at
    once, before the first of them is judged.
    """
    num_edges, num_groups = state.labels.size, state.values.size

    def body(carry, inputs):
        labels, logits, auxiliary, is_lost, tally = carry
        edge, key = inputs
        key_choice, key_value, key_draw, key_accept = jax.random.split(key, 4)
        sizes = group_sizes(labels, num_groups).at[labels[edge]].add(-1)
        has_free = (sizes == 0).any()
        uniforms = jax.random.uniform(key_choice, (num_proposals,))
        slots, is_new = jax.vmap(lambda u: propose_label(u, sizes, concentration))(uniforms)
        fresh = _bounded_logit(sampler.base.sample(key_value, (num_proposals,)))
        proposals = jnp.where(is_new, fresh, logits[slots])
        current = logits[labels]
        fields = _with_proposals(current, edge, proposals)
        particles = jax.vmap(sampler.draw)(jax.random.split(key_draw, num_proposals), fields)
        log_uniforms = -jax.random.exponential(key_accept, (num_proposals,))

        def judge(carry, proposal):
            label, current, auxiliary, tally = carry
            slot, logit, is_possible, (particles, is_exact), log_uniform = proposal
            proposed = jnp.where(jnp.arange(num_edges) == edge, logit, current)
            log_ratio = sampler.log_ratio(proposed, current, particles, auxiliary)
            is_accepted = is_possible & (log_uniform < log_ratio)
            tally = tally.add(is_accepted, is_exact, is_counted=logit != current[edge])
            label = jnp.where(is_accepted, slot, label)
            current = jnp.where(is_accepted, proposed, current)
            auxiliary = sampler.remember(is_accepted, particles, auxiliary)
            return (label, current, auxiliary, tally), None

        # without a free slot a new group is lost, and reported
        proposals = (slots, proposals, ~is_new | has_free, particles, log_uniforms)
        start = labels[edge], current, auxiliary, tally
        (label, current, auxiliary, tally), _ = jax.lax.scan(judge, start, proposals)
        is_lost |= is_new.any() & ~has_free
        logits = logits.at[label].set(current[edge])
        return (labels.at[edge].set(label), logits, auxiliary, is_lost, tally), None

    logits = _bounded_logit(state.values)
    start = state.labels, logits, state.auxiliary, jnp.array(False), _Tally.zero()
    keys = jax.random.split(key, num_edges)
    return jax.lax.scan(body, start, (jnp.arange(num_edges), keys))[0]


def _with_proposals(current, edge, proposals):
    """Logits of all edges under every proposal to one of them."""
    fields = jnp.broadcast_to(current, (proposals.size, current.size))
    return fields.at[:, edge].set(proposals)


def _update_values(key, sampler, labels, logits, auxiliary, num_steps, scale):
    """A random walk of the value of every group in use, one after the other."""

    def is_waiting(carry):
        return carry[0] < (labels.max() + 1) * num_steps

    def body(carry):
        index, logits, auxiliary, tally = carry
        key_walk, key_draw, key_accept = jax.random.split(jax.random.fold_in(key, index), 3)
        group = index // num_steps
        value = jax.nn.sigmoid(logits[group])
        value_proposed = value + scale * jax.random.normal(key_walk, (), logits.dtype)
        smallest = jax.nn.sigmoid(-LARGEST_LOGIT)
        is_inside = (value_proposed > smallest) & (value_proposed < 1 - smallest)
        value_proposed = jnp.where(is_inside, value_proposed, value)
        logits_proposed = logits.at[group].set(logit(value_proposed))
        current, proposed = logits[labels], logits_proposed[labels]
        particles, is_exact = sampler.draw(key_draw, proposed)
        log_ratio = (
            sampler.log_ratio(proposed, current, particles, auxiliary)
            + sampler.base.log_density(value_proposed)
            - sampler.base.log_density(value)
        )
        is_accepted = is_inside & (-jax.random.exponential(key_accept) < log_ratio)
        logits = jnp.where(is_accepted, logits_proposed, logits)
        auxiliary = sampler.remember(is_accepted, particles, auxiliary)
        return index + 1, logits, auxiliary, tally.add(is_accepted, is_exact)

    start = jnp.zeros((), jnp.int32), logits, auxiliary, _Tally.zero()
    return jax.lax.while_loop(is_waiting, body, start)[1:]


def _bounded_logit(values):
    return jnp.clip(logit(values), -LARGEST_LOGIT, LARGEST_LOGIT)


def _check(scheme, estimate, num_proposals, num_value_steps):
    """What must hold before the first draw."""
    if scheme not in SCHEMES:
        raise ValueError(
            f"step: expected scheme to be one of {SCHEMES}, got {scheme!r}; "
            "pass 'exchange', which accepts more often"
        )
    if (scheme == "moller") != (estimate is not None):
        raise ValueError(
            f"step: expected an estimate under 'moller' and none under 'exchange', got "
            f"{'none' if estimate is None else 'one'} under {scheme!r}; "
            "pass one to 'moller' alone"
        )
    for name, value in (("num_proposals", num_proposals), ("num_value_steps", num_value_steps)):
        if value < 1:
            raise ValueError(f"step: expected {name} to be at least 1, got {value}; raise it")
