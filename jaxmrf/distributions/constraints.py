r"""Supports of fields and partitions as NumPyro constraints.

.. math:: \{0,1\}^n \cup \{-1,+1\}^n
          \qquad \{c : c_1 = 0,\ c_i \le 1 + \max_{j<i} c_j\}

Reference for canonical labels (restricted growth strings): Knuth, "The Art of Computer
Programming", volume 4A, section 7.2.1.5.
"""

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.distributions.constraints import Constraint

__all__ = ["StatesBelow", "canonical_labels", "spins"]


class _VectorConstraint(Constraint):
    """A constraint without parameters on discrete vectors, of which the zero vector is one."""

    is_discrete = True
    event_dim = 1

    def tree_flatten(self):
        return (), ((), {})

    def eq(self, other, static=False):
        return type(self) is type(other)

    def feasible_like(self, prototype):
        return jnp.zeros_like(prototype)


class _Spins(_VectorConstraint):
    """All in {0, 1} or all in {-1, +1}."""

    def __call__(self, x):
        x = _as_array(x)
        # x + 1 == 0 rather than x == -1: the latter overflows for unsigned integers
        is_minus = (x < 0) & (x + 1 == 0)
        is_plus = x == 1
        return ((x == 0) | is_plus).all(-1) | (is_minus | is_plus).all(-1)


class _CanonicalLabels(_VectorConstraint):
    """Integer labels in order of first appearance."""

    def __call__(self, x):
        x = _as_array(x)
        if isinstance(x, jax.Array):
            largest = jax.lax.cummax(x, axis=x.ndim - 1)
        else:
            largest = np.maximum.accumulate(x, axis=-1)
        grows = (x[..., 1:] <= largest[..., :-1] + 1).all(-1)
        return (x[..., 0] == 0) & grows & ((x >= 0) & (x % 1 == 0)).all(-1)


class StatesBelow(_VectorConstraint):
    """Vectors of integers 0..K-1, every coordinate with its own K.

    Args:
        num_states: Number K of states of every coordinate.
    """

    def __init__(self, num_states: tuple[int, ...]):
        self.num_states = tuple(num_states)

    def __call__(self, x):
        """Whether each vector, on the last axis, is one of them."""
        x = _as_array(x)
        return ((x >= 0) & (x < np.array(self.num_states)) & (x % 1 == 0)).all(-1)

    def tree_flatten(self):
        """No arrays; the numbers of states are static."""
        return (), ((), {"num_states": self.num_states})

    def eq(self, other, static=False):
        """Whether both are of the same vectors."""
        return type(self) is type(other) and self.num_states == other.num_states


def _as_array(x):
    """A value as an array; what is not JAX's becomes NumPy's, to stay known while tracing."""
    return x if isinstance(x, jax.Array) else np.asarray(x)


spins = _Spins()
canonical_labels = _CanonicalLabels()
