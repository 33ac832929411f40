r"""From free parameters to a model, and the moments in which a model and data are compared.

.. math:: \nabla \log p(x^{1..n}) / n = \frac1n \sum_i s(x^i) - E_\theta\, s(x)

Every pairwise model is linear in its parameters, so its statistics, its moments and this gradient
all have the model's own shape. A user's free parameters are mapped to a model by a differentiable
``build``; a vector-Jacobian product carries the gradient back. Reference: Wainwright & Jordan,
"Graphical models, exponential families, and variational inference" (2008), section 3.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxmrf.graphs import Graph
from jaxmrf.models import Ising, PairwiseModel, as_states
from jaxmrf.types import Array, ArrayLike, Float, Int

__all__ = [
    "Build",
    "check_start",
    "identity",
    "largest_entry",
    "mean_over_items",
    "mean_statistics",
    "no_fields",
    "pull_back",
    "tied_couplings",
]

Build = Callable[[Any], PairwiseModel]
"""A differentiable map from free parameters to a model."""


def identity(parameters: PairwiseModel) -> PairwiseModel:
    """The model itself as its free parameters: every coupling and field on its own."""
    return parameters


def tied_couplings(labels, num_nodes: int) -> Build:
    """A map from one value per group to an Ising model without fields.

    Equal labels give the same function object, so a second fit does not compile again.

    Args:
        labels: Group of every edge, integers 0..num_groups-1, in the order of ``Graph.edges``.
        num_nodes: Number of nodes of the graph.

    Returns:
        A function of the values "groups": edge e gets the coupling ``values[labels[e]]``.

    Raises:
        ValueError: If the labels are not a vector of integers, 0 or more.

    >>> build = tied_couplings([0, 1, 0], num_nodes=3)
    >>> build(jnp.array([0.5, -0.25])).couplings.tolist()
    [0.5, -0.25, 0.5]
    """
    labels = np.asarray(labels)
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer) or (labels < 0).any():
        raise ValueError(
            "tied_couplings: expected labels to be a vector of integers >= 0, got shape "
            f"{labels.shape}, type {labels.dtype}, smallest {labels.min(initial=0)}; number the "
            "groups 0, 1, ... and give one label per edge"
        )
    return _tied_couplings(tuple(labels.tolist()), int(num_nodes))


def no_fields(graph: Graph) -> Build:
    """A map from one coupling per edge to an Ising model without fields."""
    return tied_couplings(np.arange(graph.num_edges), graph.num_nodes)


@lru_cache(maxsize=128)
def _tied_couplings(labels: tuple[int, ...], num_nodes: int) -> Build:
    """The map, kept by content."""
    index = np.array(labels, dtype=np.int32)

    def build(values):
        return Ising(couplings=values[index], fields=jnp.zeros(num_nodes, values.dtype))

    return build


def check_start(data, graph: Graph, parameters, build: Build, *, caller: str):
    """Free parameters and coded data, checked against the graph.

    Args:
        data: Observations "items nodes".
        graph: The graph.
        parameters: Start of the search in the form that ``build`` takes; None for an Ising model
            with all couplings and fields zero.
        build: Map from parameters to a model.
        caller: Name of the calling function, for the message.

    Returns:
        The parameters as a pytree of arrays, and the states "items nodes", integers 0..K-1.

    Raises:
        ValueError: If ``build`` comes without parameters, the model does not fit the graph, or the
            data are not observations of its nodes.
    """
    if parameters is None:
        if build is not identity:
            raise ValueError(
                f"{caller}: expected parameters together with build, got None; pass the start of "
                "the search in the form that build takes"
            )
        parameters = Ising(jnp.zeros(graph.num_edges), jnp.zeros(graph.num_nodes))
    parameters = jax.tree.map(jnp.asarray, parameters)
    model = build(parameters)
    states = jax.ShapeDtypeStruct((graph.num_nodes,), jnp.int8)
    wanted = jax.eval_shape(lambda states: model.statistics(graph, states), states)
    got_shapes, wanted_shapes = (
        [leaf.shape for leaf in jax.tree.leaves(m)] for m in (model, wanted)
    )
    if got_shapes != wanted_shapes:
        raise ValueError(
            f"{caller}: expected a model of {graph.num_edges} edges and {graph.num_nodes} nodes "
            f"with parameters of shapes {wanted_shapes}, got {got_shapes}; pass parameters (and "
            "build) for this graph"
        )
    coded = as_states(data, model.num_states, graph.num_nodes, caller=caller)
    return parameters, coded


def mean_statistics(
    model: PairwiseModel, graph: Graph, data: Int[ArrayLike, "items nodes"]
) -> PairwiseModel:
    """Mean of the sufficient statistics over observations, in the shape of the model.

    Args:
        model: Pairwise model; only its shape is read.
        graph: Its graph.
        data: Observations, integers 0..K-1.
    """
    return mean_over_items(lambda states: model.statistics(graph, states), data)


def mean_over_items(
    function: Callable, data: Int[ArrayLike, "items nodes"], *, batch_size: int = 256
) -> Any:
    """Mean of a pytree-valued function of one observation, holding one batch in memory."""
    data = jnp.asarray(data)
    num_items = data.shape[0]
    batch_size = min(batch_size, num_items)
    num_padding = -num_items % batch_size
    rows = jnp.pad(data, ((0, num_padding), (0, 0))).reshape(-1, batch_size, data.shape[1])
    is_real = (jnp.arange(num_items + num_padding) < num_items).reshape(-1, batch_size)

    def add(total, batch):
        values = jax.vmap(function)(batch[0])
        sums = jax.tree.map(
            lambda value: jnp.tensordot(batch[1].astype(value.dtype), value, 1), values
        )
        return jax.tree.map(jnp.add, total, sums), None

    shapes = jax.eval_shape(function, data[0])
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    total, _ = jax.lax.scan(add, zeros, (rows, is_real))
    return jax.tree.map(lambda value: value / num_items, total)


def pull_back(build: Build, parameters: Any) -> tuple[PairwiseModel, Callable]:
    """The model, and the map that carries a gradient in its shape back to the parameters."""
    model, transpose = jax.vjp(build, parameters)

    def carry(gradient):
        typed = jax.tree.map(lambda value, leaf: value.astype(leaf.dtype), gradient, model)
        return transpose(typed)[0]

    return model, carry


def largest_entry(tree: Any) -> Float[Array, ""]:
    """Largest absolute value in a pytree; 0 if it holds no number."""
    return jnp.max(
        jnp.array([jnp.max(jnp.abs(leaf), initial=0.0) for leaf in jax.tree.leaves(tree)])
    )
