r"""Log potentials of chains in words, without unpacking them.

.. math:: \phi_c = \text{constant} + \sum_t w_t (-1)^{b_{tc}}

Bit b of a term t is the exclusive or of the two ends of an edge, or the negation of a node; weights
are added 32 chains at a time, the bit flipping the weight's sign. This takes less time than a
sweep; with unpacked states it is more than twenty sweeps.
"""

import jax
import jax.numpy as jnp

from jaxmrf.graphs import Graph
from jaxmrf.models import Ising, PairwiseModel
from jaxmrf.types import Array, Float, UInt

__all__ = ["log_potentials"]

# terms that one iteration adds; XLA turns 8 or 32 into code that is seven times slower
_NUM_TERMS = 16
_SIGN = 0x80000000


def log_potentials(
    words: UInt[Array, "nodes words"], model: PairwiseModel, graph: Graph
) -> Float[Array, " chains"]:
    """Log potential of every bit of the words, in single precision.

    Args:
        words: Words of every node, a chain in every bit.
        model: Pairwise model of two states.
        graph: Its graph.
    """
    constant, weights = _spin_weights(model, graph)
    first, second = graph.edges.T
    terms = jnp.concatenate([words[first] ^ words[second], ~words])
    padding = -len(weights) % _NUM_TERMS
    weights = jnp.pad(weights.astype(jnp.float32), (0, padding)).reshape(-1, _NUM_TERMS)
    terms = jnp.pad(terms, ((0, padding), (0, 0))).reshape(-1, _NUM_TERMS, words.shape[1])
    places = jnp.arange(31, -1, -1, dtype=jnp.uint32)[:, None]

    def add(total, some):
        weights, terms = some
        patterns = jax.lax.bitcast_convert_type(weights, jnp.uint32)
        for term in range(_NUM_TERMS):
            signed = patterns[term] ^ ((terms[term] << places) & jnp.uint32(_SIGN))
            total = total + jax.lax.bitcast_convert_type(signed, jnp.float32)
        return total, None

    start = jnp.zeros((32, words.shape[1]), jnp.float32)
    total, _ = jax.lax.scan(add, start, (weights, terms))
    return total.T.ravel() + constant


def _spin_weights(model: PairwiseModel, graph: Graph) -> tuple[Array, Array]:
    """The model as a constant, and weights of the spins' products and then of the spins."""
    if isinstance(model, Ising):
        return jnp.float32(0), jnp.concatenate([model.couplings, model.fields])
    tables = model.tables()
    edges = jnp.asarray(tables.edge_tables, jnp.float32)
    nodes = jnp.asarray(tables.node_tables, jnp.float32)
    first, second = graph.edges.T
    means = (edges[:, 1] - edges[:, 0]).sum(axis=1) / 4, (edges[..., 1] - edges[..., 0]).sum(1) / 4
    fields = (nodes[:, 1] - nodes[:, 0]) / 2
    fields = fields.at[first].add(means[0]).at[second].add(means[1])
    couplings = (edges[:, 0, 0] + edges[:, 1, 1] - edges[:, 0, 1] - edges[:, 1, 0]) / 4
    return edges.sum() / 4 + nodes.sum() / 2, jnp.concatenate([couplings, fields])
