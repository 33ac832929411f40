r"""One sweep over which edges are in the graph: a spike at independence beside the grouped values.

An edge that is out has agreement parameter 1/2, logit 0, whatever its group. Given the groups,
their values and the other edges, edge i is in with

.. math:: \mathrm{logit}\, P(r_i = 1) = \mathrm{logit}\, \rho_i
          + \log L_i(\phi_{c_i}) - \log L_i(1/2), \quad
          L_i(\theta) = \lambda^{S_i} (1 - \lambda)^{n - S_i},\;
          \lambda = \sigma(\mathrm{logit}\,\theta + h_i)

with the prior probability :math:`\rho_i` and the message :math:`h_i` of ``edge_messages``. Messages
are those of the logits :math:`r_i\, \mathrm{logit}\, \phi_{c_i}`. Liu & Page, NIPS 2013,
section 6, name structure learning with grouped parameters as an open end.
"""

import jax
import jax.numpy as jnp
from jax.scipy.special import logit

from jaxmrf.nonparametric.dirichlet_process import group_sizes
from jaxmrf.nonparametric.edge_messages import EdgeMessages, if_present
from jaxmrf.nonparametric.label_updates import log_likelihood
from jaxmrf.types import Array, Bool, Float, Int, Key

__all__ = ["has_data", "sweep"]


def sweep(
    key: Key,
    is_present: Bool[Array, " edges"],
    logits: Float[Array, " edges"],
    successes: Float[Array, " edges"],
    num_items: Float[Array, ""],
    messages: EdgeMessages,
    *,
    inclusion: Float[Array, "*edges"] | float,
) -> Bool[Array, " edges"]:
    """Which edges are in, after every edge was drawn once, in the order of the messages.

    Args:
        key: Random key.
        is_present: Which edges are in now.
        logits: Logit of the value of every edge's group, its agreement while the edge is in.
        successes: Count of agreements of every edge.
        num_items: n, the number of observations.
        messages: Messages to the edges at the current logits ``if_present``.
        inclusion: Prior probability that an edge is in, one or one per edge.
    """
    order = messages.order
    log_odds = jnp.broadcast_to(logit(inclusion), logits.shape)
    noise = jax.random.logistic(key, order.shape, logits.dtype)
    steps = (is_present[order], logits[order], successes[order], log_odds[order], noise)

    def body(mail, step):
        was_in, logit_in, success, log_odds, noise, inputs = step
        message = messages.offset(mail, inputs)
        log_ratio = log_likelihood(logit_in + message, success, num_items)
        log_ratio = log_ratio - log_likelihood(message, success, num_items)
        is_in = noise < log_odds + log_ratio
        before, after = if_present(logit_in, was_in), if_present(logit_in, is_in)
        return messages.move(mail, inputs, after, after - before), is_in

    _, drawn = jax.lax.scan(body, messages.carry, (*steps, messages.inputs))
    return is_present.at[order].set(drawn)


def has_data(
    labels: Int[Array, " edges"], max_groups: int, is_present: Bool[Array, " edges"] | None
) -> Bool[Array, " groups"]:
    """Whether a slot holds a group with an edge that is in; the others' values are G0's alone."""
    if is_present is None:
        return group_sizes(labels, max_groups) > 0
    return jnp.zeros(max_groups, bool).at[labels].max(is_present)
