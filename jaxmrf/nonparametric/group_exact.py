r"""Gibbs sampling of grouped agreement parameters with the exact likelihood.

The normaliser is linear in one parameter, so with the exact agreement probability
:math:`p_i = P(x_u = x_v; \theta)` every candidate value of an edge has a closed form,

.. math:: \frac{Z(\theta_i')}{Z(\theta_i)}
          = p_i \frac{\theta_i'}{\theta_i} + (1 - p_i) \frac{1 - \theta_i'}{1 - \theta_i},

and one transfer pass serves a whole sweep over the edges. The values follow by a Newton proposal
that Metropolis and Hastings correct. Edges may be in or out of the graph, see ``edge_inclusion``.
Reference: Liu & Page, NIPS 2013 (Gibbs_ExactL), who take hours where this takes seconds.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.special import logit

from jaxmrf.exact import transfer
from jaxmrf.graphs import FrontierPlan, Graph
from jaxmrf.models import Ising
from jaxmrf.nonparametric import edge_inclusion, edge_messages, group_values, label_updates
from jaxmrf.nonparametric.base_measures import LARGEST_LOGIT, BaseMeasure
from jaxmrf.nonparametric.edge_messages import if_present
from jaxmrf.nonparametric.label_updates import DEFAULT_RULE, LabelRule, log_density
from jaxmrf.nonparametric.parameter_groups import sort_groups
from jaxmrf.types import Array, Bool, Float, Int, Key

__all__ = ["EdgeCounts", "ExactInfo", "ExactState", "init", "step"]

# mostly fresh draws; small steps get away from where the quadratic model is poor
_MEMORIES = (0.0, 0.0, 0.9)


class EdgeCounts(NamedTuple):
    """The data as the sampler sees them; sufficient for a field without node fields.

    Attributes:
        agreements: Number of observations in which the ends of each edge agree.
        num_items: n, the number of observations.
    """

    agreements: Float[Array, " edges"]
    num_items: Float[Array, ""]


class ExactState(NamedTuple):
    """Position of the chain.

    Attributes:
        labels: Canonical group of every edge.
        values: Agreement parameter of every group; slots past the last group hold prior draws.
        is_truncated: Whether some edge has ever found the buffer without a free slot.
        is_present: Which edges are in the graph; read by steps with ``inclusion`` alone.
    """

    labels: Int[Array, " edges"]
    values: Float[Array, " groups"]
    is_truncated: Bool[Array, ""]
    is_present: Bool[Array, " edges"]


class ExactInfo(NamedTuple):
    """What a person plots.

    Attributes:
        num_groups: Number of groups in use.
        accept_prob: Acceptance probability of the values' proposal.
    """

    num_groups: Int[Array, ""]
    accept_prob: Float[Array, ""]


def init(
    labels: Int[Array, " edges"],
    values: Float[Array, " groups"],
    is_present: Bool[Array, " edges"] | None = None,
) -> ExactState:
    """State at a given grouping.

    Args:
        labels: Group of every edge, 0..groups-1.
        values: Agreement parameter of every slot, in (0, 1).
        is_present: Which edges are in the graph, by default all.
    """
    is_present = jnp.ones(labels.shape, bool) if is_present is None else is_present
    return ExactState(*sort_groups(labels, values), jnp.array(False), is_present)


def step(
    key: Key,
    state: ExactState,
    model: EdgeCounts,
    graph: Graph,
    plan: FrontierPlan,
    *,
    concentration: Float[Array, ""] | float,
    base: BaseMeasure,
    rule: LabelRule = DEFAULT_RULE,
    inclusion: Float[Array, "*edges"] | float | None = None,
) -> tuple[ExactState, ExactInfo]:
    """One sweep: the group of every edge in turn, whether it is in, then all values at once.

    Args:
        key: Random key.
        state: Current state.
        model: Data.
        graph: Graph of the field.
        plan: Its frontier plan.
        concentration: alpha of the Dirichlet process.
        base: G0.
        rule: How an edge chooses its group, one of Neal's algorithms.
        inclusion: Prior probability that an edge is in the graph, one or one per edge; None takes
            the graph as given.
    """
    key_labels, key_values, key_empty, key_edges = jax.random.split(key, 4)
    logits = logit(state.values)
    is_present = None if inclusion is None else state.is_present
    labels, logits, is_full = label_updates.sweep(
        key_labels,
        state.labels,
        logits,
        model.agreements,
        model.num_items,
        edge_messages.by_transfer(if_present(logits[state.labels], is_present), plan),
        concentration=concentration,
        base=base,
        rule=rule,
        is_present=is_present,
    )
    labels, logits = sort_groups(labels, logits)
    if is_present is not None:
        edge_logits = logits[labels]
        is_present = edge_inclusion.sweep(
            key_edges,
            is_present,
            edge_logits,
            model.agreements,
            model.num_items,
            edge_messages.by_transfer(if_present(edge_logits, is_present), plan),
            inclusion=inclusion,
        )
    has_data = edge_inclusion.has_data(labels, logits.size, is_present)
    logits, accept_prob = _update_values(
        key_values, logits, labels, is_present, has_data, model, graph, plan, base
    )
    logits = group_values.fill_empty(key_empty, logits, has_data, base)
    state = ExactState(
        labels,
        jax.nn.sigmoid(logits),
        state.is_truncated | is_full,
        state.is_present if is_present is None else is_present,
    )
    return state, ExactInfo(labels.max() + 1, accept_prob)


def _update_values(key, logits, labels, is_present, has_data, model, graph, plan, base):
    """A Newton proposal for the values of all groups, accepted by Metropolis and Hastings."""
    key_memory, key_propose, key_accept = jax.random.split(key, 3)
    totals = jnp.zeros_like(logits).at[labels].add(if_present(model.agreements, is_present))
    rho = jax.random.choice(key_memory, jnp.asarray(_MEMORIES, logits.dtype))

    def log_z(logits):
        couplings = if_present(logits[labels], is_present) / 2
        field = Ising(couplings, jnp.zeros(graph.num_nodes, logits.dtype))
        return transfer.log_z(field, graph, plan) + couplings.sum()

    def moments(logits):
        value, means = jax.value_and_grad(log_z)(logits)
        return means, (value, means)

    def evaluate(logits):
        covariance, (value, means) = jax.jacfwd(moments, has_aux=True)(logits)
        log_prior = jnp.where(has_data, log_density(logits, base), 0.0).sum()
        frame = group_values.newton_frame(
            logits, totals - model.num_items * means, model.num_items * covariance, has_data, base
        )
        return totals @ logits - model.num_items * value + log_prior, frame

    log_current, frame = evaluate(logits)
    proposal = jnp.where(has_data, group_values.propose(key_propose, logits, frame, rho), logits)
    is_inside = (jnp.abs(proposal) <= LARGEST_LOGIT).all()
    proposal = jnp.clip(proposal, -LARGEST_LOGIT, LARGEST_LOGIT)
    log_proposed, frame_back = evaluate(proposal)
    log_ratio = (
        log_proposed
        - log_current
        + group_values.log_proposal(logits, proposal, frame_back, rho)
        - group_values.log_proposal(proposal, logits, frame, rho)
    )
    accept_prob = jnp.where(is_inside, jnp.exp(jnp.minimum(log_ratio, 0.0)), 0.0)
    is_accepted = jax.random.uniform(key_accept) < accept_prob
    return jnp.where(is_accepted, proposal, logits), accept_prob
