r"""Swendsen-Wang sampling of attractive Ising and Potts fields: whole clusters at once.

.. math:: P(b_e = 1 \mid x) = (1 - e^{-c_e})\, [x_u = x_v], \qquad
          P(x_C = k \mid b) \propto \exp\Big(\sum_{i \in C} h_i(k)\Big)

An edge opens if its ends agree, with c = 2J for Ising spins and c = J for Potts states; the nodes
that open edges join are a cluster, and every cluster takes one state anew. External fields enter
only there; strong ones that differ from node to node take the gain away. At the critical point of
a torus of 128 x 128 nodes nine steps do what takes 3,900 sweeps of Gibbs sampling, which is about
the same time in the form "lattice" of a sampler plan; on smaller tori those sweeps are faster, on
larger ones these steps, which at 64 x 64 nodes are as fast as the form "sums". References:
Swendsen & Wang, Physical Review Letters 58 (1987); Edwards & Sokal, Physical Review D 38 (1988).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxmrf.graphs import Graph
from jaxmrf.logspace import draw_from_relative_logits
from jaxmrf.models import Ising, PairwiseModel, Potts
from jaxmrf.sampling.packed import uniform_states
from jaxmrf.types import Array, Bool, Float, Int, Key

__all__ = ["ClusterInfo", "components", "init", "step"]


class ClusterInfo(NamedTuple):
    """The clusters of one step.

    Attributes:
        labels: Smallest node of the cluster of every node.
        num_clusters: Number of clusters.
        is_attractive: Whether no coupling is negative; if one is, the step is wrong.
    """

    labels: Int[Array, "nodes chains"]
    num_clusters: Int[Array, " chains"]
    is_attractive: Bool[Array, ""]


def init(
    key: Key, model: PairwiseModel, graph: Graph, *, num_chains: int
) -> Int[Array, "nodes chains"]:
    """Independent uniform states.

    Args:
        key: Random key.
        model: Ising or Potts model without negative couplings.
        graph: Its graph.
        num_chains: Number of chains.

    Raises:
        ValueError: If the model is another.
    """
    _check("init", model)
    return uniform_states(key, model, graph.num_nodes, num_chains)


def step(
    key: Key, states: Int[Array, "nodes chains"], model: PairwiseModel, graph: Graph
) -> tuple[Int[Array, "nodes chains"], ClusterInfo]:
    """Open edges, find the clusters, draw their states.

    Args:
        key: Random key.
        states: Current states 0..K-1.
        model: Ising or Potts model without negative couplings.
        graph: Its graph.

    Returns:
        New states, and the clusters that took them.

    Raises:
        ValueError: If the model is of another kind, or its numbers are known and a coupling is
            negative.

    >>> from jaxmrf.graphs import grid
    >>> model = Ising(100 * jnp.ones(4), jnp.array([0.0, 0.0, 0.0, 100.0]))
    >>> states, info = step(jax.random.key(0), jnp.zeros((4, 1), jnp.int8), model, grid((2, 2)))
    >>> states.ravel().tolist(), info.num_clusters.tolist()
    ([1, 1, 1, 1], [1])
    """
    _check("step", model)
    key_bonds, key_states = jax.random.split(key)
    first, second = graph.edges.T
    couplings = jnp.asarray(model.couplings)
    closed_prob = jnp.exp(-2 * couplings if isinstance(model, Ising) else -couplings)
    uniform = jax.random.uniform(key_bonds, (graph.num_edges, states.shape[1]), closed_prob.dtype)
    is_open = (states[first] == states[second]) & (uniform >= closed_prob[:, None])
    labels = components(is_open, graph)

    # states of every label; those of labels that are not a cluster's are drawn and never read
    logits = _relative_fields(model)
    chains = np.arange(states.shape[1])
    sums = jnp.zeros((len(logits), *states.shape), logits.dtype)
    sums = sums.at[:, labels, chains].add(logits[..., None], mode="promise_in_bounds")
    drawn = draw_from_relative_logits(key_states, sums).astype(states.dtype)
    states = drawn.at[labels, chains].get(mode="promise_in_bounds")
    is_root = labels == np.arange(graph.num_nodes)[:, None]
    return states, ClusterInfo(labels, is_root.sum(axis=0), (couplings >= 0).all())


def components(is_open: Bool[Array, "edges chains"], graph: Graph) -> Int[Array, "nodes chains"]:
    """Smallest node of the connected component of every node, by hooking and pointer jumping.

    Every root of a tree is hooked to the smallest root that an open edge leads to, and pointers
    jump to their pointer's pointer; the number of rounds grows as the log of the number of nodes.

    Args:
        is_open: Whether an edge joins its ends.
        graph: The graph.
    """
    num_chains = is_open.shape[1]
    first, second = graph.edges.T

    def follow(parents):
        return parents.ravel().at[parents].get(mode="promise_in_bounds")

    def hook(state):
        old, _ = state
        one = old.at[first].get(mode="promise_in_bounds")
        other = jnp.where(is_open, old.at[second].get(mode="promise_in_bounds"), one)
        higher, lower = jnp.maximum(one, other), jnp.minimum(one, other)
        hooked = old.ravel().at[higher].min(lower, mode="promise_in_bounds")
        parents = follow(follow(hooked.reshape(old.shape)))
        return parents, (parents != old).any()

    # a pointer is a place in the flat array of all chains
    start = jnp.arange(graph.num_nodes * num_chains, dtype=jnp.int32).reshape(-1, num_chains)
    parents, _ = jax.lax.while_loop(lambda state: state[1], hook, (start, jnp.array(True)))
    return parents // num_chains


def _relative_fields(model: PairwiseModel) -> Float[Array, "states_minus_one nodes"]:
    """Log odds of states 1..K-1 against 0 of a node without neighbours."""
    fields = jnp.asarray(model.fields)
    if isinstance(model, Ising):
        return 2 * fields[None]
    return (fields[:, 1:] - fields[:, :1]).T


def _check(caller: str, model: PairwiseModel) -> None:
    """Raise for another kind of model, and for a negative coupling if it is known."""
    if not isinstance(model, Ising | Potts):
        raise ValueError(
            f"{caller}: expected an Ising or a Potts model, got {type(model).__name__}; sample "
            "other models by gibbs"
        )
    if isinstance(model.couplings, jax.core.Tracer):
        return
    couplings = np.asarray(model.couplings)
    if (couplings < 0).any():
        raise ValueError(
            f"{caller}: expected couplings of at least 0, got {couplings.min():.4g}; sample fields "
            "that are not attractive by gibbs or pairwise_tempering"
        )
