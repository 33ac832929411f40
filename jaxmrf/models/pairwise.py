r"""Pairwise Markov random fields: Ising, Potts and general tables.

.. math:: p(x) = \exp\Big(\sum_i a_i(x_i) + \sum_{e=(u,v)} b_e(x_u, x_v)\Big) / Z

Every model is linear in its parameters, so its sufficient statistics have the model's own shape:
``log_potential = <model, model.statistics(graph, states)>``. States are integers 0..K-1; the
Ising model reads them as spins s = 2x - 1. Liu & Page (NIPS 2013, section 2) write the Ising
model without fields by agreement parameters: a factor theta if the two ends agree, 1 - theta if
not, which is the coupling J = logit(theta) / 2.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np

from jaxmrf.graphs import Graph, NeighborBlock
from jaxmrf.types import Array, ArrayLike, Float, Int, Leaf

__all__ = [
    "Ising",
    "Pairwise",
    "PairwiseModel",
    "Potts",
    "agreements_from_couplings",
    "as_states",
    "couplings_from_agreements",
    "log_potential",
    "log_pseudolikelihood",
]


@runtime_checkable
class PairwiseModel(Protocol):
    """What samplers, learners and exact methods ask of a pairwise model (a pytree)."""

    @property
    def num_states(self) -> int:
        """Number of values of one variable."""

    def statistics(self, graph: Graph, states: Array) -> "PairwiseModel":
        """Sufficient statistics of one configuration, in the shape of the model."""

    def relative_logits(self, block: NeighborBlock, states: Array) -> Array:
        """Log odds of states 1..K-1 against 0 for a block's nodes given the rest."""

    def tables(self) -> "Pairwise":
        """The same potential as general tables."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Ising:
    """Spins -1, +1: log potential ``sum_e J_e s_u s_v + sum_i h_i s_i``.

    Attributes:
        couplings: J, shape ``[edges]``; positive favours agreement.
        fields: h, shape ``[nodes]``; positive favours state 1.
    """

    couplings: Leaf
    fields: Leaf

    @property
    def num_states(self) -> int:
        """Two."""
        return 2

    def statistics(self, graph: Graph, states: Int[ArrayLike, " nodes"]) -> "Ising":
        """Products of neighbouring spins, and the spins."""
        spins = (2 * jnp.asarray(states, jnp.int8) - 1).astype(self.fields.dtype)
        first, second = graph.edges.T
        return Ising(couplings=spins[first] * spins[second], fields=spins)

    def relative_logits(
        self, block: NeighborBlock, states: Int[Array, "nodes chains"]
    ) -> Float[Array, "1 block chains"]:
        """Log odds of state 1 for a block's nodes: twice the local field."""
        spins = 2 * states.astype(jnp.int8) - 1

        def add(total, coupling, neighbors):
            return total + coupling[:, None] * _rows(spins, neighbors).astype(total.dtype)

        start = _rows(self.fields, block.nodes)[:, None]
        start = jnp.broadcast_to(start, (len(block.nodes), states.shape[1]))
        couplings = _rows(jnp.append(self.couplings, 0.0), block.edges)
        return 2 * _fold_slots(add, start, couplings, block.neighbors, unroll=8)[None]

    def tables(self) -> "Pairwise":
        """The same potential as general tables."""
        spins = jnp.array([-1.0, 1.0])
        return Pairwise(
            edge_tables=self.couplings[:, None, None] * spins[:, None] * spins,
            node_tables=self.fields[:, None] * spins,
        )


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Potts:
    """K states without order: log potential ``sum_e J_e [x_u = x_v] + sum_i h_i(x_i)``.

    Attributes:
        couplings: J, shape ``[edges]``; positive favours agreement.
        fields: h, shape ``[nodes, states]``.
    """

    couplings: Leaf
    fields: Leaf

    @property
    def num_states(self) -> int:
        """Number of columns of the fields."""
        return self.fields.shape[-1]

    def statistics(self, graph: Graph, states: Int[ArrayLike, " nodes"]) -> "Potts":
        """Agreements of neighbours, and one-hot states."""
        first, second = graph.edges.T
        agree = (states[first] == states[second]).astype(self.couplings.dtype)
        one_hot = jax.nn.one_hot(states, self.num_states, dtype=self.fields.dtype)
        return Potts(couplings=agree, fields=one_hot)

    def relative_logits(
        self, block: NeighborBlock, states: Int[Array, "nodes chains"]
    ) -> Float[Array, "states_minus_one block chains"]:
        """Log odds of states 1..K-1 against 0 for a block's nodes."""
        levels = jnp.arange(self.num_states, dtype=states.dtype)[:, None, None]

        def add(total, coupling, neighbors):
            return total + jnp.where(_rows(states, neighbors) == levels, coupling[:, None], 0)

        start = _rows(self.fields, block.nodes).T[..., None]
        start = jnp.broadcast_to(start, (*start.shape[:2], states.shape[1]))
        couplings = _rows(jnp.append(self.couplings, 0.0), block.edges)
        total = _fold_slots(add, start, couplings, block.neighbors, unroll=2)
        return total[1:] - total[:1]

    def tables(self) -> "Pairwise":
        """The same potential as general tables."""
        return Pairwise(
            edge_tables=self.couplings[:, None, None] * jnp.eye(self.num_states),
            node_tables=self.fields,
        )


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Pairwise:
    """General tables: log potential ``sum_e b_e(x_u, x_v) + sum_i a_i(x_i)``.

    Entries are finite; forbid a pair of states by a large negative one such as -50.

    Attributes:
        edge_tables: b, shape ``[edges, states, states]``, the edge's smaller node on the
            first axis.
        node_tables: a, shape ``[nodes, states]``.
    """

    edge_tables: Leaf
    node_tables: Leaf

    @property
    def num_states(self) -> int:
        """Number of columns of the node tables."""
        return self.node_tables.shape[-1]

    def statistics(self, graph: Graph, states: Int[ArrayLike, " nodes"]) -> "Pairwise":
        """One-hot pairs of neighbours, and one-hot states."""
        one_hot = jax.nn.one_hot(states, self.num_states, dtype=self.node_tables.dtype)
        first, second = graph.edges.T
        return Pairwise(
            edge_tables=one_hot[first][:, :, None] * one_hot[second][:, None, :],
            node_tables=one_hot,
        )

    def relative_logits(
        self, block: NeighborBlock, states: Int[Array, "nodes chains"]
    ) -> Float[Array, "states_minus_one block chains"]:
        """Log odds of states 1..K-1 against 0 for a block's nodes."""

        def add(total, tables, neighbors):
            others = _rows(states, neighbors)
            for level in range(self.num_states):
                column = tables[:, :, level].T[..., None]
                total = total + jnp.where(others == level, column, 0)
            return total

        start = _rows(self.node_tables, block.nodes).T[..., None]
        start = jnp.broadcast_to(start, (*start.shape[:2], states.shape[1]))
        tables = _rows(jnp.pad(self.edge_tables, ((0, 1), (0, 0), (0, 0))), block.edges)
        own_first = jnp.where(block.is_second[..., None, None], tables.swapaxes(-1, -2), tables)
        total = _fold_slots(add, start, own_first, block.neighbors, unroll=1)
        return total[1:] - total[:1]

    def tables(self) -> "Pairwise":
        """The model itself."""
        return self


def _rows(table: ArrayLike, index: ArrayLike) -> Array:
    """Rows of a table; indices of a plan are never out of bounds."""
    return jnp.asarray(table).at[index].get(mode="promise_in_bounds")


def _fold_slots(add: Callable[..., Array], total: Array, *slots: ArrayLike, unroll: int) -> Array:
    """The total after adding one neighbour slot after another, a few in one fused loop.

    One gather over all slots would be 11 times slower on the CPU. The number to unroll is measured
    there: a total of several states is cheaper stored than fused into everything that reads it.
    """
    num_slots = slots[0].shape[0]
    if num_slots == 0:
        return total
    body = lambda total, slot: (add(total, *slot), None)  # noqa: E731
    return jax.lax.scan(body, total, slots, unroll=min(num_slots, unroll))[0]


def log_potential(
    model: PairwiseModel, graph: Graph, states: Int[ArrayLike, " nodes"]
) -> Float[Array, ""]:
    """Unnormalised log-probability of one configuration: the inner product with its statistics."""
    products = jax.tree.map(
        lambda parameter, statistic: jnp.sum(parameter * statistic),
        model,
        model.statistics(graph, states),
    )
    return sum(jax.tree.leaves(products))


def log_pseudolikelihood(
    model: PairwiseModel, graph: Graph, states: Int[ArrayLike, "items nodes"]
) -> Float[Array, " items"]:
    """Log pseudo-likelihood of each observation, ``sum_i log p(x_i | all other x)`` (Besag 1975).

    Args:
        model: Pairwise model.
        graph: Its graph.
        states: Observations, integers 0..K-1.
    """
    columns = jnp.asarray(states).T
    tables = model.tables()
    first, second = graph.edges.T
    odds = tables.node_tables[:, 1:] - tables.node_tables[:, :1]
    logits = jnp.broadcast_to(odds[..., None], (*odds.shape, columns.shape[1]))
    flipped = tables.edge_tables.swapaxes(1, 2)
    # edge by edge: neighbour tables are 2 to 5 times slower here, gradient included
    for own, other, table in ((first, second, tables.edge_tables), (second, first, flipped)):
        odds = (table[:, 1:] - table[:, :1])[..., None]
        message = odds[:, :, 0]
        for state in range(1, model.num_states):
            message = jnp.where(columns[other][:, None] == state, odds[:, :, state], message)
        logits = logits.at[own].add(message)
    top = jax.lax.stop_gradient(logits.max(axis=1, initial=0))
    log_norms = top + jnp.log(jnp.exp(-top) + jnp.exp(logits - top[:, None]).sum(axis=1))
    levels = jnp.arange(1, model.num_states)[:, None]
    chosen = jnp.where(columns[:, None] == levels, logits, 0).sum(axis=1)
    return (chosen - log_norms).sum(axis=0)


def couplings_from_agreements(agreements: Float[Array, "*rest"]) -> Float[Array, "*rest"]:
    """Ising couplings J = logit(theta) / 2 of agreement parameters theta in (0, 1)."""
    return (jnp.log(agreements) - jnp.log1p(-agreements)) / 2


def agreements_from_couplings(couplings: Float[Array, "*rest"]) -> Float[Array, "*rest"]:
    """Agreement parameters theta = sigmoid(2 J) of Ising couplings."""
    return jax.nn.sigmoid(2 * couplings)


def as_states(data, num_states: int, num_nodes: int, *, caller: str) -> np.ndarray:
    """Observations checked and coded as integers 0..K-1; spins -1, +1 become 0, 1.

    Args:
        data: Concrete matrix "items nodes".
        num_states: Number of values of one variable.
        num_nodes: Number of variables.
        caller: Name of the calling function, for the message.

    Raises:
        ValueError: If the data are empty, of the wrong width, hold NaN, or hold values that are
            neither all in 0..K-1 nor, for two states, all in {-1, +1}.
    """
    data = np.asarray(data)
    if data.ndim != 2 or data.shape[1] != num_nodes:
        raise ValueError(
            f"{caller}: expected data of shape [items, {num_nodes}], got {data.shape}; "
            "pass one row per observation and one column per node of the graph"
        )
    if data.shape[0] == 0:
        raise ValueError(f"{caller}: expected at least one observation, got 0; pass data")
    if np.issubdtype(data.dtype, np.floating) and np.isnan(data).any():
        raise ValueError(
            f"{caller}: expected data without gaps, got {int(np.isnan(data).sum())} NaN; "
            "impute or drop the missing values"
        )
    code = np.int8 if num_states <= 128 else np.int32
    # the usual integers first: np.unique takes 20 times longer than two passes over them
    if data.dtype.kind in "bui" and data.min() >= 0 and data.max() < num_states:
        return data.astype(code)
    values = np.unique(data)
    if num_states == 2 and np.isin(values, (-1, 1)).all() and values[0] == -1:
        return (data > 0).astype(np.int8)
    if not np.isin(values, np.arange(num_states)).all():
        spins = " or all in {-1, +1}" if num_states == 2 else ""
        raise ValueError(
            f"{caller}: expected values all in 0..{num_states - 1}{spins}, got "
            f"{values[:6].tolist()}; recode the data"
        )
    return data.astype(code)
