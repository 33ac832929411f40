r"""The free energy that belief propagation makes stationary, of any beliefs.

.. math:: -F(b) = \sum_a \langle b_a, \theta_a \rangle + \sum_i \langle b_i, \lambda_i \rangle
    + \sum_i H(b_i) - \sum_a \rho_a \Big(\sum_{i \in a} H(b_i) - H(b_a)\Big)

Weights :math:`\rho` of one give Bethe's approximation, exact if the beliefs are the marginals of
a tree; the probabilities of the edges in a random spanning tree give a concave bound (Wainwright,
Jaakkola & Willsky 2005). All three are differentiable in beliefs, potentials and weights.
"""

import jax.numpy as jnp
import numpy as np

from jaxmrf.models import Beliefs, FactorGraph
from jaxmrf.types import Array, ArrayLike, Float

__all__ = ["bethe_entropy", "bethe_free_energy", "entropy", "expected_log_potential"]


def entropy(
    probabilities: Float[ArrayLike, "*rest"], axis: int | tuple[int, ...]
) -> Float[Array, "*left"]:
    """Entropy in nats over some axes; states of probability 0 count nothing.

    Args:
        probabilities: Non-negative numbers that sum to one over the axes.
        axis: The axes of the states.
    """
    probabilities = jnp.asarray(probabilities)
    is_positive = probabilities > 0
    logs = jnp.log(jnp.where(is_positive, probabilities, 1))
    return -jnp.where(is_positive, probabilities * logs, 0).sum(axis=axis)


def expected_log_potential(factor_graph: FactorGraph, beliefs: Beliefs) -> Float[Array, ""]:
    """Mean log potential under the beliefs, evidence included; the negative energy.

    Minus infinity if the beliefs give weight to what is impossible.

    Args:
        factor_graph: The model.
        beliefs: Its beliefs.
    """
    return _inner(beliefs.factors.flat, factor_graph.log_tables) + _inner(
        beliefs.nodes.flat, factor_graph.log_evidence
    )


def bethe_entropy(
    beliefs: Beliefs, *, weights: Float[ArrayLike, " factors"] | None = None
) -> Float[Array, ""]:
    """Entropies of the nodes less the weighted mutual informations of the factors.

    Args:
        beliefs: Of a factor graph.
        weights: Weight of every factor; by default ones.
    """
    graph = beliefs.nodes.hypergraph
    nodes, factors = jnp.asarray(beliefs.nodes.flat), jnp.asarray(beliefs.factors.flat)
    numbers = np.array(graph.num_states)
    by_node = jnp.zeros(graph.num_nodes, nodes.dtype)
    for number in np.unique(numbers):
        own = np.flatnonzero(numbers == number)
        states = graph.node_starts[own][:, None] + np.arange(number)
        by_node = by_node.at[own].set(entropy(nodes[states], axis=1))
    total = by_node.sum()
    rho = jnp.ones(graph.num_factors, nodes.dtype) if weights is None else jnp.asarray(weights)
    for stack in graph.stacks:
        if len(stack.shape) > 1:
            tables = factors[stack.start : stack.stop].reshape(len(stack.factors), -1)
            mutual = by_node[stack.nodes].sum(axis=1) - entropy(tables, axis=1)
            total -= (rho[stack.factors.astype(np.int32)] * mutual).sum()
    return total


def bethe_free_energy(
    factor_graph: FactorGraph,
    beliefs: Beliefs,
    *,
    weights: Float[ArrayLike, " factors"] | None = None,
) -> Float[Array, ""]:
    """The free energy of beliefs; at a fixed point of belief propagation, minus its ``log_z``.

    Args:
        factor_graph: The model.
        beliefs: Its beliefs.
        weights: Weight of every factor; by default ones.
    """
    expected = expected_log_potential(factor_graph, beliefs)
    return -(expected + bethe_entropy(beliefs, weights=weights))


def _inner(beliefs: ArrayLike, logs: ArrayLike) -> Array:
    """Sum of products, where nothing times minus infinity is nothing."""
    is_used = jnp.asarray(beliefs) != 0
    products = jnp.where(is_used, beliefs, 0) * jnp.where(is_used, logs, 0)
    return products.sum()
