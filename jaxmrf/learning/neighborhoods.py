r"""Data compressed to what predicts one node from its neighbours, and fits of losses on it.

.. math:: \frac1n \sum_{m=1}^n \sum_i \ell_i(x_i^m, x_{N(i)}^m)
          = \sum_i \sum_c \sum_k \frac{n_i(k, c)}{n}\, \ell_i(k, c)

A loss that sees one node and its neighbours N(i) depends on the data only through n_i(k, c), the
number of observations in which node i is in state k and its neighbours are in configuration c. The
counts are taken once; a step of the optimiser then costs K^degree per node instead of the number
of observations. Reference: Besag, "Statistical analysis of non-lattice data", The Statistician 24
(1975), whose coding estimates condition on the same tables.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxmrf.graphs import Graph
from jaxmrf.learning.moments import Build, check_start
from jaxmrf.learning.training import FitResult, minimize
from jaxmrf.models import PairwiseModel
from jaxmrf.types import Array, ArrayLike, Float, Int, Leaf

__all__ = ["NeighborhoodTable", "fit_by_neighborhoods", "log_conditionals", "neighborhood_tables"]

# Entries K^(degree + 1) up to which all configurations of a node's neighbours are counted.
_MAX_ENTRIES = 256
# One more table must save this many columns times nodes: about what it costs to compile it.
_TABLE_COST = 2**18
# Bytes of the words that are combined at once while counting; they stay in a core's cache.
_CACHE_BYTES = 2**19


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class NeighborhoodTable:
    """How often some nodes are in each state while their neighbours are in each configuration.

    An end is a pair of a node of the table and one of its edges.

    Attributes:
        nodes: Nodes of the table, shape ``[block]``.
        owners: Position in ``nodes`` of every end's node, shape ``[ends]``.
        edges: Edge of every end, shape ``[ends]``.
        is_second: Whether the node is the edge's second end, shape ``[ends]``.
        rows: Row of ``states`` that holds the neighbour's states, shape ``[ends]``.
        states: Configurations of neighbours, shape ``[rows, columns]``.
        counts: Number of observations, shape ``[block, states, columns]``.
    """

    nodes: Leaf
    owners: Leaf
    edges: Leaf
    is_second: Leaf
    rows: Leaf
    states: Leaf
    counts: Leaf


def neighborhood_tables(
    states: Int[ArrayLike, "items nodes"],
    graph: Graph,
    num_states: int,
    *,
    table_cost: int = _TABLE_COST,
) -> tuple[NeighborhoodTable, ...]:
    """The data as counts: every node stands in one table.

    The shapes depend on the graph and the number of observations, save that a table of the
    configurations met has the next power of two of columns: other data rarely compile again.

    Args:
        states: Concrete observations, integers 0..num_states-1.
        graph: The graph.
        num_states: Number of values of one variable.
        table_cost: Columns times nodes that one more table must save.

    Returns:
        Tables over all configurations where they are few, over those met in the data where they
        repeat, and over the observations themselves where they do not.
    """
    states = np.asarray(states)
    num_items = len(states)
    # ends of edges sorted by node; end e is the first of edge e, end num_edges + e the second
    order = np.argsort(graph.edges.T.ravel(), kind="stable")
    ends = {
        "owners": graph.edges.T.ravel()[order],
        "edges": order % max(graph.num_edges, 1),
        "is_second": order >= graph.num_edges,
        "others": graph.edges[:, ::-1].T.ravel()[order],
        "slots": np.arange(len(order)) - np.repeat(_starts(graph.degrees), graph.degrees),
    }
    widths = np.minimum(float(num_states) ** np.minimum(graph.degrees, 62), num_items)
    tables = []
    for nodes in _cut(widths, table_cost):
        is_member = np.isin(ends["owners"], nodes)
        part = {name: values[is_member] for name, values in ends.items()}
        part["owners"] = np.searchsorted(nodes, part["owners"])
        top = int(graph.degrees[nodes].max())
        if num_states ** (top + 1) <= _MAX_ENTRIES and 2 * num_states**top <= num_items:
            rows, columns, counts = _all_configurations(states, nodes, part, top, num_states)
        else:
            rows, columns, counts = _met_configurations(states, nodes, part, num_states)
        tables.append(
            NeighborhoodTable(
                nodes=nodes.astype(np.int32),
                owners=part["owners"].astype(np.int32),
                edges=part["edges"].astype(np.int32),
                is_second=part["is_second"],
                rows=rows.astype(np.int32),
                states=columns,
                counts=counts,
            )
        )
    return tuple(tables)


def _starts(sizes: np.ndarray) -> np.ndarray:
    """Where each run of the given sizes begins."""
    return np.cumsum(sizes) - sizes


def _cut(widths: np.ndarray, table_cost: int) -> list[np.ndarray]:
    """Classes of nodes that share a table: cut where most columns are saved, while it pays."""
    nodes = np.argsort(-widths, kind="stable")
    classes = []
    while True:
        left = widths[nodes]
        saved = (left[0] - left) * np.arange(len(nodes), 0, -1)
        first = int(saved.argmax())
        if saved[first] <= table_cost:
            return [*classes, np.sort(nodes)]
        classes.append(np.sort(nodes[:first]))
        nodes = nodes[first:]


def _all_configurations(states, nodes, ends, degree: int, num_states: int):
    """Rows, columns and counts over all configurations; slots a node lacks stay in state 0.

    A word holds one state of one node in 64 observations. The number of observations in which
    chosen nodes are in chosen states, or in any, is a population count of conjunctions; what lacks
    a choice is turned into state 0 by subtraction.
    """
    planes = _bit_planes(states, num_states)
    # the slots from the last to the node itself, so that state c of slot 0 is the lowest digit
    members = np.full((degree + 1, len(nodes)), states.shape[1])
    members[0] = nodes
    members[degree - ends["slots"], ends["owners"]] = ends["others"]
    num_entries, num_words = num_states ** (degree + 1), planes.shape[2]
    size = max(1, _CACHE_BYTES // (8 * num_entries * num_words))
    counts = np.empty((len(nodes), num_entries), dtype=np.int32)
    for start in range(0, len(nodes), size):
        words = planes[:1, :1]
        for slot in members[:, start : start + size]:
            words = words[:, None] & planes[:, slot]
            words = words.reshape(-1, *words.shape[2:])
        counts[start : start + size] = np.bitwise_count(words).sum(axis=2, dtype=np.int32).T
    counts = counts.reshape(len(nodes), *[num_states] * (degree + 1))
    for axis in range(1, degree + 2):
        by_state = np.moveaxis(counts, axis, 0)
        by_state[0] -= by_state[1:].sum(axis=0)
    columns = np.arange(num_states**degree) // num_states ** np.arange(degree)[:, None]
    columns = (columns % num_states).astype(states.dtype)
    return ends["slots"], columns, counts.reshape(len(nodes), num_states, -1)


def _bit_planes(states: np.ndarray, num_states: int) -> np.ndarray:
    """Words ``[states, nodes + 1, words]``: plane 0 marks all observations, plane k state k.

    The last node is a stand-in that is always in state 0.
    """
    num_items, num_nodes = states.shape
    num_words = -(-num_items // 64)
    planes = np.zeros((num_states, num_nodes + 1, 8 * num_words), dtype=np.uint8)
    planes[0, :, : -(-num_items // 8)] = np.packbits(np.ones(num_items, bool), bitorder="little")
    for state in range(1, num_states):
        by_item = np.zeros((8 * num_words, num_nodes), dtype=np.uint8)
        for bit in range(8):
            part = states[bit::8] == state
            by_item[: len(part)] |= part.view(np.uint8) << np.uint8(bit)
        planes[state, :-1] = by_item.T
    return planes.view(np.uint64)


def _met_configurations(states, nodes, ends, num_states: int):
    """Rows, columns and counts over the configurations in the data; over all items if no gain."""
    by_node = np.ascontiguousarray(states.T)
    num_items = by_node.shape[1]
    groups = np.split(ends["others"], np.searchsorted(ends["owners"], np.arange(1, len(nodes))))
    met, width = {}, 1
    for member in sorted(range(len(nodes)), key=lambda member: -len(groups[member])):
        first, _ = met[member] = _distinct(by_node[groups[member]], num_states)
        width = max(width, 1 << (len(first) - 1).bit_length())
        if width >= num_items:
            levels = np.arange(num_states)[:, None]
            return ends["others"], by_node, (by_node[nodes][:, None] == levels).astype(np.uint8)
    columns = np.zeros((len(ends["others"]), width), dtype=states.dtype)
    counts = np.zeros((len(nodes), num_states, width), dtype=np.int32)
    start = 0
    for member, neighbors in enumerate(groups):
        first, column = met[member]
        columns[start : start + len(neighbors), : len(first)] = by_node[neighbors][:, first]
        start += len(neighbors)
        np.add.at(counts[member], (by_node[nodes[member]], column), 1)
    return np.arange(start), columns, counts


def _distinct(rows: np.ndarray, num_states: int) -> tuple[np.ndarray, np.ndarray]:
    """First item of every distinct column, and the number of every item's column."""
    codes, num_codes = np.zeros(rows.shape[1], dtype=np.int64), 1
    for row in rows:
        if num_codes > 2**62 // num_states:  # number anew what is met before digits run out
            met, codes = np.unique(codes, return_inverse=True)
            num_codes = len(met)
        codes = codes * num_states + row
        num_codes *= num_states
    return np.unique(codes, return_index=True, return_inverse=True)[1:]


def log_conditionals(
    model: PairwiseModel, table: NeighborhoodTable
) -> Float[Array, "block states columns"]:
    """Log-probability of every state of every node given the configurations of its neighbours.

    Args:
        model: Pairwise model.
        table: Table of its graph. Where its count is 0 the answer is 0: the entry has no say, and
            a loss of it no chance to overflow.
    """
    tables = model.tables()
    odds = tables.node_tables[table.nodes]
    odds = odds[:, 1:] - odds[:, :1]
    logits = jnp.broadcast_to(odds[..., None], (*odds.shape, table.states.shape[1]))
    edge_tables = tables.edge_tables[table.edges]
    is_second = jnp.asarray(table.is_second)[:, None, None]
    edge_tables = jnp.where(is_second, edge_tables.swapaxes(1, 2), edge_tables)
    odds = (edge_tables[:, 1:] - edge_tables[:, :1])[..., None]
    # edge by edge, as in log_pseudolikelihood: faster than slot by slot if columns are many
    neighbors = jnp.asarray(table.states)[table.rows][:, None]
    message = odds[:, :, 0]
    for state in range(1, model.num_states):
        message = jnp.where(neighbors == state, odds[:, :, state], message)
    logits = logits.at[table.owners].add(message)
    values = jax.nn.log_softmax(jnp.pad(logits, ((0, 0), (1, 0), (0, 0))), axis=1)
    return jnp.where(table.counts > 0, values, 0)


def fit_by_neighborhoods(
    loss: Callable[[PairwiseModel, NeighborhoodTable], Array],
    data,
    graph: Graph,
    *,
    parameters: Any,
    build: Build,
    l2: float,
    tolerance: float,
    max_iters: int,
    caller: str,
) -> FitResult:
    """Minimiser of a mean over observations of a sum over nodes, and a ridge penalty.

    Args:
        loss: Function of a model and a table to losses "block states columns", 0 where the count
            is 0; the same object compiles once.
        data: Observations "items nodes": states 0..K-1, or spins -1, +1.
        graph: The graph.
        parameters: Start of the search; None for an Ising model with couplings and fields zero.
        build: Differentiable map from parameters to a model.
        l2: Weight of the ridge penalty, 0 or more.
        tolerance: Largest entry of the gradient at which to stop.
        max_iters: Largest number of L-BFGS iterations.
        caller: Name of the calling function, for messages.

    Returns:
        The estimate.

    Raises:
        ValueError: If the data or the model do not fit the graph, or ``l2`` is negative.
    """
    if not l2 >= 0:
        raise ValueError(f"{caller}: expected l2 to be 0 or more, got {l2}; raise it")
    with jax.ensure_compile_time_eval():  # data are counted now, also inside a caller's jax.jit
        parameters, states = check_start(data, graph, parameters, build, caller=caller)
    num_states = jax.eval_shape(build, parameters).num_states
    estimate, gap, num_iters = minimize(
        _objective(loss, build),
        parameters,
        args=(neighborhood_tables(states, graph, num_states), float(len(states)), float(l2)),
        tolerance=tolerance,
        max_iters=max_iters,
    )
    return FitResult(
        parameters=estimate,
        last_parameters=estimate,
        model=build(estimate),
        history=None,
        moment_mismatch=gap,
        is_converged=gap <= tolerance,
        num_iters=num_iters,
    )


@lru_cache(maxsize=128)
def _objective(loss: Callable, build: Build):
    """The function to minimise, one object per loss and ``build``, so that it compiles once."""

    def objective(parameters, tables, num_items, l2):
        model = build(parameters)
        total = sum(jnp.sum(table.counts * loss(model, table)) for table in tables)
        size = sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(parameters))
        return total / num_items + l2 / 2 * size

    return objective
