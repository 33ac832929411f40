"""The one answer type of exact and variational inference."""

from typing import NamedTuple

from jaxmrf.types import Array, Bool, Float, Int

__all__ = ["Beliefs"]


class Beliefs(NamedTuple):
    """What a method says about a model.

    Attributes:
        log_z: Natural log of the normaliser (or its estimate or bound, as the method says).
        nodes: Marginal distribution of every node.
        edges: Joint distribution of the two ends of every edge, first end on the first axis.
        is_converged: Whether the method reached its answer; always true for exact ones.
        num_iters: Iterations used; 0 for direct methods.
    """

    log_z: Float[Array, ""]
    nodes: Float[Array, "nodes states"]
    edges: Float[Array, "edges states states"]
    is_converged: Bool[Array, ""]
    num_iters: Int[Array, ""]
