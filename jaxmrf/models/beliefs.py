"""The one answer type of exact and variational inference."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, SupportsIndex

import jax

from jaxmrf.graphs import Hypergraph
from jaxmrf.types import ArrayLike, Bool, Float, Int, Leaf

__all__ = ["Beliefs", "Tables"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Tables(Sequence):
    """A sequence of tables of different shapes, kept in one flat array (a pytree of one leaf).

    Attributes:
        flat: The entries of all tables on the last axis; leading axes are batch axes.
        hypergraph: Structure of the factor graph.
        is_of_factors: Whether these are tables of the factors, or else of the variables.
    """

    flat: Leaf
    hypergraph: Hypergraph = field(metadata={"static": True})
    is_of_factors: bool = field(metadata={"static": True})

    def __len__(self) -> int:
        graph = self.hypergraph
        return graph.num_factors if self.is_of_factors else graph.num_nodes

    def __getitem__(self, index: SupportsIndex):
        if not -len(self) <= index < len(self):
            raise IndexError(f"Tables: expected an index below {len(self)}, got {index}")
        index = index % len(self)
        graph = self.hypergraph
        if self.is_of_factors:
            shape, start = graph.table_shape(index), int(graph.table_starts[index])
        else:
            shape, start = (graph.num_states[index],), int(graph.node_starts[index])
        part = self.flat[..., start : start + math.prod(shape)]
        return part.reshape((*self.flat.shape[:-1], *shape))


class Beliefs(NamedTuple):
    """What a method says about a model.

    Attributes:
        log_z: Natural log of the normaliser (or its estimate or bound, as the method says).
        nodes: Marginal distribution of every node: of a pairwise model "nodes states", of a factor
            graph a sequence in the order of its variables.
        factors: Joint distribution of every factor's variables: of a pairwise model "edges states
            states", first end on the first axis, of a factor graph a sequence in the order of its
            factors.
        is_converged: Whether the method reached its answer; always true for exact ones.
        num_iters: Iterations used; 0 for direct methods.
    """

    log_z: Float[ArrayLike, ""]
    nodes: Float[ArrayLike, "nodes states"] | Tables
    factors: Float[ArrayLike, "edges states states"] | Tables
    is_converged: Bool[ArrayLike, ""]
    num_iters: Int[ArrayLike, ""]
