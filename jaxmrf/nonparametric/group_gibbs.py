r"""Gibbs sampling of grouped agreement parameters with the stripped Beta approximation.

The agreement parameters of a random field are tied by a Dirichlet process,
:math:`\theta_i = \phi_{c_i}`. Given everything else, edge i joins group g with probability

.. math:: P(c_i = g) \propto m_{-i,g} L_i(\phi_g), \qquad
          P(c_i = \text{new}) \propto \alpha \int L_i \, dG_0,
          \qquad L_i(\theta) = \theta^{S_i} (1 - \theta)^{n - S_i},
          \quad S_i = \lfloor n \tilde\theta_i \rfloor

with :math:`\tilde\theta` the maximum likelihood estimate (Liu & Page, NIPS 2013, section 3.2 and
Algorithm 2). The values are then re-estimated with the parameters tied, by a few steps of
persistent contrastive divergence, and drawn from Beta(m n phi^ + 1, m n (1 - phi^) + 1). On a
forest both steps are exact: the likelihood factorises over edges and phi^ is a ratio of counts.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.special import logit

from jaxmrf.graphs import Graph
from jaxmrf.models import Ising
from jaxmrf.nonparametric import edge_messages, label_updates, parallel_labels
from jaxmrf.nonparametric.base_measures import BaseMeasure, update
from jaxmrf.nonparametric.dirichlet_process import group_sizes
from jaxmrf.nonparametric.label_updates import DEFAULT_RULE, LabelRule
from jaxmrf.nonparametric.parallel_labels import Parallel
from jaxmrf.nonparametric.parameter_groups import sort_groups
from jaxmrf.sampling import packed
from jaxmrf.sampling.packed import AnyPlan
from jaxmrf.types import Array, Bool, Float, Int, Key

__all__ = ["GroupInfo", "GroupState", "StrippedBetaModel", "init", "step"]


class StrippedBetaModel(NamedTuple):
    """The data as the sampler sees them.

    Attributes:
        counts: S, stripped agreement counts ``floor(n * estimate)`` of each edge.
        agreements: Number of observations in which the ends of each edge agree.
        num_items: n, the number of observations.
    """

    counts: Float[Array, " edges"]
    agreements: Float[Array, " edges"]
    num_items: Float[Array, ""]


class GroupState(NamedTuple):
    """Position of the chain.

    Attributes:
        labels: Canonical group of every edge.
        values: Agreement parameter of every group; slots past the last group hold prior draws.
        particles: Persistent states of the field under the current parameters, in the layout of
            the plan.
        is_truncated: Whether some edge has ever found the buffer without a free slot.
    """

    labels: Int[Array, " edges"]
    values: Float[Array, " groups"]
    particles: Array
    is_truncated: Bool[Array, ""]


class GroupInfo(NamedTuple):
    """What a person plots.

    Attributes:
        num_groups: Number of groups in use.
        mismatch: Largest distance, over groups, between data and model agreement rates.
    """

    num_groups: Int[Array, ""]
    mismatch: Float[Array, ""]


def init(
    key: Key,
    labels: Int[Array, " edges"],
    values: Float[Array, " groups"],
    plan: AnyPlan,
    *,
    num_particles: int,
) -> GroupState:
    """State at a given grouping, with particles at independent uniform states.

    Args:
        key: Random key.
        labels: Group of every edge, 0..groups-1.
        values: Agreement parameter of every slot, in (0, 1).
        plan: Sampler plan of so many chains, or sweep plan of the graph.
        num_particles: Number of persistent chains.
    """
    particles = packed.init(key, Ising(None, None), plan, num_chains=num_particles)
    labels, values = sort_groups(labels, values)
    return GroupState(labels, values, particles, jnp.array(False))


def step(
    key: Key,
    state: GroupState,
    model: StrippedBetaModel,
    graph: Graph,
    plan: AnyPlan,
    *,
    concentration: Float[Array, ""] | float,
    base: BaseMeasure,
    rule: LabelRule | Parallel = DEFAULT_RULE,
    num_refits: int = 3,
    refit_rate: float = 0.3,
) -> tuple[GroupState, GroupInfo]:
    """One sweep: the group of every edge in turn, then the value of every group.

    Args:
        key: Random key.
        state: Current state.
        model: Data.
        graph: Graph of the field.
        plan: Its sampler plan or sweep plan.
        concentration: alpha of the Dirichlet process.
        base: G0.
        rule: How an edge chooses its group, one of Neal's algorithms, or ``Parallel()`` for all
            edges at once, as large graphs need.
        num_refits: Steps of persistent contrastive divergence behind phi^; 0 on a forest, where
            the ratio of counts is the estimate.
        refit_rate: Size of those steps in units of a Newton step for independent edges.
    """
    key_labels, key_refit, key_values = jax.random.split(key, 3)
    inputs = (key_labels, state.labels, logit(state.values), model.counts, model.num_items)
    options = {"concentration": concentration, "base": base, "rule": rule}
    if isinstance(rule, Parallel):
        labels, logits, is_full = parallel_labels.update(*inputs, **options)
    else:
        messages = edge_messages.none(graph.num_edges)
        labels, logits, is_full = label_updates.sweep(*inputs, messages, **options)
    labels, values = sort_groups(labels, jax.nn.sigmoid(logits))

    sizes = group_sizes(labels, values.size)
    trials = jnp.maximum(sizes * model.num_items, 1.0)
    rates = jnp.zeros_like(values).at[labels].add(model.agreements) / trials
    if num_refits:
        estimates, particles, mismatch = _refit(
            key_refit, labels, values, rates, state.particles, model, graph, plan,
            num_refits=num_refits, refit_rate=refit_rate,
        )  # fmt: skip
    else:
        estimates, particles, mismatch = rates, state.particles, jnp.zeros(())

    # without data, in an empty slot, the posterior is the base measure
    total = sizes * model.num_items
    values = update(key_values, values, total * estimates, total * (1 - estimates), base)
    state = GroupState(labels, values, particles, state.is_truncated | is_full)
    return state, GroupInfo(num_groups=(sizes > 0).sum(), mismatch=mismatch)


def _refit(
    key: Key,
    labels: Int[Array, " edges"],
    values: Float[Array, " groups"],
    rates: Float[Array, " groups"],
    particles: Array,
    model: StrippedBetaModel,
    graph: Graph,
    plan: AnyPlan,
    *,
    num_refits: int,
    refit_rate: float,
) -> tuple[Float[Array, " groups"], Array, Float[Array, ""]]:
    """Tied estimates by persistent contrastive divergence from the current values."""
    sizes = group_sizes(labels, values.size)

    def body(carry, key):
        logits, particles = carry
        field = Ising(couplings=logits[labels] / 2, fields=jnp.zeros(graph.num_nodes))
        particles = packed.run(key, particles, field, plan, num_sweeps=1)
        products = packed.mean_statistics(particles, field, graph, plan).couplings
        agree = (1 + products) / 2
        means = jnp.zeros_like(values).at[labels].add(agree) / jnp.maximum(sizes, 1)
        scale = jnp.maximum(means * (1 - means), rates * (1 - rates))
        gap = jnp.where(sizes > 0, rates - means, 0.0)
        logits = logits + refit_rate * gap / jnp.maximum(scale, 1 / model.num_items)
        return (logits, particles), jnp.abs(gap).max()

    keys = jax.random.split(key, num_refits)
    (logits, particles), mismatch = jax.lax.scan(body, (logit(values), particles), keys)
    return jax.nn.sigmoid(logits), particles, mismatch[-1]
