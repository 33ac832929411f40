r"""Gibbs sampling of grouped agreement parameters with messages by linear response.

The exact conditional of an edge is binomial in :math:`\sigma(w_i + h_i)`; here the message
:math:`h_i` from the rest of the field is expanded around a centre,

.. math:: P(c_i = g) \propto m_{-i,g} e^{S_i (w_g + h_i)} (1 + e^{w_g + h_i})^{-n}, \qquad
          h \leftarrow h + B_{:,i}\, \Delta w_i \text{ after every move},

and the values are drawn by one Newton step with covariance C. The centre follows the posterior
mean during warm-up and is then fixed. On graphs where the exact sampler runs the two agree within
Monte Carlo error; the approximation is that of ``expansion``, whose error at a new centre is kept.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.special import logit

from jaxmrf.nonparametric import (
    edge_inclusion,
    edge_messages,
    expansion,
    group_values,
    label_updates,
)
from jaxmrf.nonparametric.base_measures import BaseMeasure
from jaxmrf.nonparametric.edge_messages import if_present
from jaxmrf.nonparametric.expansion import Expansion
from jaxmrf.nonparametric.group_exact import EdgeCounts
from jaxmrf.nonparametric.label_updates import DEFAULT_RULE, LabelRule
from jaxmrf.nonparametric.parameter_groups import sort_groups
from jaxmrf.types import Array, Bool, Float, Int, Key

__all__ = ["CorrectedInfo", "CorrectedState", "Expand", "error_of", "init", "recenter", "step"]

Expand = Callable[[Key, Array, Array], tuple[Expansion, Array]]
"""``expand(key, center, particles)``: an expansion, and the chains after it."""

# far from the mode the quadratic model of the values is trusted this far
_MAX_STEP = 0.5
# the first centre is a noisy estimate, possibly at infinity; later ones are posterior means
_MAX_FIRST_CENTER = 5.0


class CorrectedState(NamedTuple):
    """Position of the chain.

    Attributes:
        labels: Canonical group of every edge.
        values: Agreement parameter of every group; slots past the last group hold prior draws.
        expansion: Where the messages come from.
        particles: Chains of the field behind the next expansion.
        mean_logits: Mean of the edges' logits since the last expansion.
        num_steps: Steps since the last expansion.
        surrogate_error: Largest error, in logits of an agreement probability, of the expansion
            before the last one at the centre of the last one; NaN before there are two.
        is_truncated: Whether some edge has ever found the buffer without a free slot.
        is_present: Which edges are in the graph; read by steps with ``inclusion`` alone. Logits
            behind messages, centers and means are 0 for the others.
    """

    labels: Int[Array, " edges"]
    values: Float[Array, " groups"]
    expansion: Expansion
    particles: Int[Array, "nodes chains"]
    mean_logits: Float[Array, " edges"]
    num_steps: Int[Array, ""]
    surrogate_error: Float[Array, ""]
    is_truncated: Bool[Array, ""]
    is_present: Bool[Array, " edges"]


class CorrectedInfo(NamedTuple):
    """What a person plots.

    Attributes:
        num_groups: Number of groups in use.
        step_size: Largest entry of the Newton step of the values.
    """

    num_groups: Int[Array, ""]
    step_size: Float[Array, ""]


def init(
    key: Key,
    labels: Int[Array, " edges"],
    values: Float[Array, " groups"],
    estimate: Float[Array, " edges"],
    particles: Int[Array, "nodes chains"],
    expand: Expand,
    is_present: Bool[Array, " edges"] | None = None,
) -> CorrectedState:
    """State at a given grouping, with the expansion at an estimate.

    Args:
        key: Random key.
        labels: Group of every edge, 0..groups-1.
        values: Agreement parameter of every slot, in (0, 1).
        estimate: Untied estimate of every edge's agreement parameter, the first center.
        particles: States of the chains that ``expand`` reads.
        expand: How to expand; see ``expansion``.
        is_present: Which edges are in the graph, by default all.
    """
    center = jnp.clip(logit(estimate), -_MAX_FIRST_CENTER, _MAX_FIRST_CENTER)
    first, particles = expand(key, center, particles)
    labels, values = sort_groups(labels, values)
    return CorrectedState(
        labels=labels,
        values=values,
        expansion=first,
        particles=particles,
        mean_logits=jnp.zeros_like(center),
        num_steps=jnp.array(0),
        surrogate_error=jnp.array(jnp.nan, center.dtype),
        is_truncated=jnp.array(False),
        is_present=jnp.ones(labels.shape, bool) if is_present is None else is_present,
    )


def step(
    key: Key,
    state: CorrectedState,
    model: EdgeCounts,
    *,
    concentration: Float[Array, ""] | float,
    base: BaseMeasure,
    rule: LabelRule = DEFAULT_RULE,
    inclusion: Float[Array, "*edges"] | float | None = None,
) -> tuple[CorrectedState, CorrectedInfo]:
    """One sweep: the group of every edge in random order, whether it is in, then all values.

    Args:
        key: Random key.
        state: Current state.
        model: Data.
        concentration: alpha of the Dirichlet process.
        base: G0.
        rule: How an edge chooses its group, one of Neal's algorithms.
        inclusion: Prior probability that an edge is in the graph, one or one per edge; None takes
            the graph as given.
    """
    key_order, key_labels, key_values, key_empty, key_edges = jax.random.split(key, 5)
    logits = logit(state.values)
    is_present = None if inclusion is None else state.is_present
    order = jax.random.permutation(key_order, state.labels.size)

    def messages(edge_logits, is_present):
        start = expansion.messages(state.expansion, if_present(edge_logits, is_present))
        return edge_messages.by_linear_response(order, start, state.expansion.response)

    labels, logits, is_full = label_updates.sweep(
        key_labels,
        state.labels,
        logits,
        model.agreements,
        model.num_items,
        messages(logits[state.labels], is_present),
        concentration=concentration,
        base=base,
        rule=rule,
        is_present=is_present,
    )
    labels, logits = sort_groups(labels, logits)
    if is_present is not None:
        is_present = edge_inclusion.sweep(
            key_edges,
            is_present,
            logits[labels],
            model.agreements,
            model.num_items,
            messages(logits[labels], is_present),
            inclusion=inclusion,
        )
    has_data = edge_inclusion.has_data(labels, logits.size, is_present)

    edge_logits = if_present(logits[labels], is_present)
    shifted = edge_logits + expansion.messages(state.expansion, edge_logits)
    gaps = model.agreements - model.num_items * jax.nn.sigmoid(shifted)
    member = jax.nn.one_hot(labels, logits.size, dtype=logits.dtype)
    if is_present is not None:
        member = member * is_present[:, None]
    information = model.num_items * (member.T @ state.expansion.covariance @ member)
    frame = group_values.newton_frame(
        logits, gaps @ member, information, has_data, base, max_step=_MAX_STEP
    )
    drawn = group_values.propose(key_values, logits, frame)
    logits = group_values.fill_empty(key_empty, drawn, has_data, base)

    num_steps = state.num_steps + 1
    change = if_present(logits[labels], is_present) - state.mean_logits
    state = state._replace(
        labels=labels,
        values=jax.nn.sigmoid(logits),
        mean_logits=state.mean_logits + change / num_steps,
        num_steps=num_steps,
        is_truncated=state.is_truncated | is_full,
        is_present=state.is_present if is_present is None else is_present,
    )
    return state, CorrectedInfo(labels.max() + 1, jnp.abs(frame.step).max())


def recenter(key: Key, state: CorrectedState, expand: Expand) -> CorrectedState:
    """The state with a fresh expansion at the mean of the logits since the last one.

    Args:
        key: Random key.
        state: Current state, after at least one step.
        expand: How to expand.
    """
    fresh, particles = expand(key, state.mean_logits, state.particles)
    return state._replace(
        expansion=fresh,
        particles=particles,
        mean_logits=jnp.zeros_like(state.mean_logits),
        num_steps=jnp.zeros_like(state.num_steps),
        surrogate_error=error_of(state.expansion, fresh),
    )


def error_of(used: Expansion, fresh: Expansion) -> Float[Array, ""]:
    """Largest error of the used expansion's agreement logits at the centre of a fresh one."""
    return jnp.abs(expansion.messages(used, fresh.center) - fresh.messages).max()
