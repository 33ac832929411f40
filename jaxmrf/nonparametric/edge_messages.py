r"""What the rest of the field tells an edge, kept up to date while a sweep moves the couplings.

With the other parameters fixed, the likelihood of edge i's agreement parameter is binomial in

.. math:: \lambda_i = \sigma(w_i + h_i), \qquad w_i = \mathrm{logit}\,\theta_i, \quad
          h_i = \mathrm{logit}\, P(x_u = x_v \text{ with edge } i \text{ removed})

because the normaliser is linear in :math:`\theta_i`. The message :math:`h_i` is zero on a forest
and under the stripped Beta approximation, exact from a transfer pass on graphs of small frontier,
and follows by linear response, :math:`\partial h_i / \partial w_j = C_{ij} / (p_i (1 - p_i))`
with C the covariance of the agreements, where neither is at hand.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxmrf.graphs import FrontierPlan
from jaxmrf.types import Array, Bool, Float, Int

__all__ = ["EdgeMessages", "by_linear_response", "by_transfer", "if_present", "none"]


class EdgeMessages(NamedTuple):
    """Messages to the edges in the order of a sweep; lives inside one sweep.

    Attributes:
        order: Edge of every step of the sweep.
        inputs: Arrays with a leading axis of steps, read at their step.
        carry: What a sweep carries from step to step.
        offset: ``offset(carry, inputs)``, the message to the edge of this step.
        move: ``move(carry, inputs, logit, change)``, the carry after that edge's logit has become
            ``logit`` by ``change``.
    """

    order: Int[Array, " edges"]
    inputs: Any
    carry: Any
    offset: Callable[[Any, Any], Array]
    move: Callable[[Any, Any, Array, Array], Any]


def if_present(
    values: Float[Array, "*edges"], is_present: Bool[Array, "*edges"] | None
) -> Float[Array, "*edges"]:
    """Values of edges, 0 where an edge is out of the graph; None takes all edges as in.

    The logit of an absent edge's agreement is 0, and it has no counts.
    """
    return values if is_present is None else jnp.where(is_present, values, 0)


def none(num_edges: int) -> EdgeMessages:
    """Messages zero: every edge on its own."""
    return EdgeMessages(
        order=jnp.arange(num_edges),
        inputs=None,
        carry=None,
        offset=lambda carry, inputs: jnp.zeros(()),
        move=lambda carry, inputs, logit, change: None,
    )


def by_linear_response(
    order: Int[Array, " edges"],
    messages: Float[Array, " edges"],
    response: Float[Array, "edges edges"],
) -> EdgeMessages:
    """Messages that follow every move by its linear response.

    Args:
        order: Order of the sweep, a permutation of the edges.
        messages: Messages at the start.
        response: Row j holds the change of every message for a unit change of the logit of edge
            j; its diagonal is zero.
    """
    return EdgeMessages(
        order=order,
        inputs=order,
        carry=messages,
        offset=lambda messages, edge: messages[edge],
        move=lambda messages, edge, logit, change: messages + change * response[edge],
    )


def by_transfer(logits: Float[Array, " edges"], plan: FrontierPlan) -> EdgeMessages:
    """Exact messages: a table of what lies behind the frontier, one sweep back and one forth.

    The edges of the sweep come in the order of the plan, so a message to the front reads one table
    from the part that has been updated and one from the part that has not.

    Args:
        logits: Logits of all edges at the start of the sweep.
        plan: Frontier plan of the graph.
    """
    indices = jnp.arange(2**plan.width)

    def agree(slots):
        first, second = (indices >> slots[0]) & 1, (indices >> slots[1]) & 1
        return first == second

    def sum_out(table, slots, is_last):
        for side in range(2):
            flipped = table[indices ^ (1 << slots[side])]
            table = jnp.where(is_last[side], table + flipped, table)
        return table / table.max()

    def weigh(table, slots, logit):
        return table * jax.nn.sigmoid(jnp.where(agree(slots), logit, -logit))

    def backward(table, step):
        slots, is_last, logit = step
        table = sum_out(table, slots, is_last)
        return weigh(table, slots, logit), table

    ones = jnp.ones(indices.size, logits.dtype)
    slots, is_last = jnp.asarray(plan.slots), jnp.asarray(plan.is_last)
    order = jnp.asarray(plan.edges)
    _, behind = jax.lax.scan(backward, ones, (slots, is_last, logits[order]), reverse=True)

    def offset(table, inputs):
        slots, _, ahead = inputs
        both = table * ahead
        is_agreed = agree(slots)
        same = jnp.where(is_agreed, both, 0).sum()
        return jnp.log(same) - jnp.log(jnp.where(is_agreed, 0, both).sum())

    def move(table, inputs, logit, change):
        slots, is_last, _ = inputs
        return sum_out(weigh(table, slots, logit), slots, is_last)

    return EdgeMessages(order, (slots, is_last, behind), ones, offset, move)
