"""Small graphs and random models that many tests share."""

import jax
import jax.numpy as jnp
import numpy as np
import oracles

from jaxmrf.graphs import Graph, complete_bipartite, grid
from jaxmrf.models import Ising, Pairwise, Potts

# a hub of degree 6, a triangle, an isolated node: every kind of padding at once
UNEVEN = Graph(9, [(0, 1), (2, 1), (2, 0), (3, 2), (3, 4), (0, 5), (6, 0), (0, 7), (3, 0)])
SMALL_UNEVEN = Graph(5, [(3, 1), (0, 1), (2, 1), (0, 2)])
EMPTY = Graph(3, [])
GRAPHS = {
    "uneven": UNEVEN,
    "grid": grid((2, 3)),
    "bipartite": complete_bipartite(2, 3),
    "single": Graph(1, []),
    "empty": EMPTY,
}
KINDS = ("ising", "potts", "pairwise")
NUM_STATES = {"ising": 2, "potts": 3, "pairwise": 3}


def random_model(kind, graph, num_states=None, seed=0, scale=0.7):
    """A model of the kind with normal parameters."""
    num_states = num_states or NUM_STATES[kind]
    rng = np.random.default_rng(seed)

    def normal(*shape):
        return jnp.asarray(rng.normal(0, scale, shape), jnp.float32)

    if kind == "ising":
        return Ising(normal(graph.num_edges), normal(graph.num_nodes))
    if kind == "potts":
        return Potts(normal(graph.num_edges), normal(graph.num_nodes, num_states))
    tables = normal(graph.num_edges, num_states, num_states)
    return Pairwise(tables, normal(graph.num_nodes, num_states))


def potential_of(model, graph):
    """The oracle's log potential of a model."""
    edges = graph.edges.tolist()
    if isinstance(model, Ising):
        parameters, build = (model.couplings, model.fields), oracles.ising_potential
    elif isinstance(model, Potts):
        parameters, build = (model.couplings, model.fields), oracles.potts_potential
    else:
        parameters, build = (model.edge_tables, model.node_tables), oracles.table_potential
    return build(edges, *(np.asarray(values, np.float64).tolist() for values in parameters))


def random_states(graph, num_states, num_items, seed=0):
    """Uniform observations, items by nodes."""
    shape = (num_items, graph.num_nodes)
    return np.random.default_rng(seed).integers(0, num_states, shape).astype(np.int8)


def tiles_of(plan):
    """(nodes of a tile without its padding, the tile's tables), in the order of the sweep."""
    owner = np.full(plan.num_rows, -1)
    owner[plan.rows] = np.arange(plan.num_nodes)
    first_row = 0
    for stack in plan.tiles:
        for tile in range(len(stack.nodes)):
            block = jax.tree.map(lambda table, tile=tile: table[tile], stack)
            nodes = owner[first_row : first_row + block.nodes.size]
            yield nodes[nodes >= 0], block
            first_row += block.nodes.size
