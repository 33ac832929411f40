"""Array aliases and the one table of axis names used in every annotation.

================  ==========================================================================
axis              meaning
================  ==========================================================================
nodes             variables of the field, numbered 0..num_nodes-1
edges             unordered pairs of nodes, in the order of ``Graph.edges``
states            values 0..num_states-1 of one variable
chains            independent copies of the field, last in memory
temperatures      inverse temperatures of a ladder
items             observations, the rows of a data matrix
groups            slots of a buffer that holds the distinct values of tied parameters
features          slots of a buffer that holds the features of one layer of a factor model
parents           the leak unit if there is one, then the features of the layer above
objects           observations of a factor model, which have features
dims              measurements of one object
layers            layers of features, from the top down
factors           factors of a factor graph, in the order of ``Hypergraph.scopes``
entries           entries of all its tables, flat, in the order of ``Hypergraph.stacks``
node_entries      states of all its variables, one variable after the other
points            abscissae on the line, of a quadrature or of the hull of a density
block             the nodes of one neighbour table: a class of degrees, or a tile of a sweep
degree            neighbour slots of a block, padded to the largest degree in it
rows              states in the order of a sweep plan, its padding included
words             unsigned integers that hold a chain, or a row of a lattice, in each bit
================  ==========================================================================
"""

from typing import Any, TypeAlias

import jax
import numpy as np
from jaxtyping import Array, Bool, Float, Int, UInt

__all__ = ["Array", "ArrayLike", "Bool", "Float", "Int", "Key", "Leaf", "UInt"]

ArrayLike: TypeAlias = jax.Array | np.ndarray
"""Data as callers have it: a JAX array, a tracer or a NumPy array."""

Key: TypeAlias = jax.Array
"""A single random key, typed (``jax.random.key``) or legacy ``uint32[2]``."""

Leaf: TypeAlias = Any
"""An array held by a pytree. Not checked: JAX rebuilds pytrees around placeholders and batches."""
