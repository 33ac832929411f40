r"""Noisy-or children as NumPyro distributions: binary, or binomial counts of repeated trials.

.. math:: P(z_k = 0 \mid y) = \prod_j (1 - V_{jk})^{y_j}, \qquad
          x_t \sim \mathrm{Binomial}\Big(C, 1 - \prod_k (1 - W_{kt})^{z_k}\Big)

Reference: Courville, Eck & Bengio, "An infinite factor model hierarchy via a noisy-or mechanism",
NIPS 2009.
"""

import math
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln
from numpyro.distributions import constraints
from numpyro.distributions.util import validate_sample
from numpyro.util import not_jax_tracer

from jaxmrf.distributions._base import SortedFieldsDistribution, as_floats, broadcast
from jaxmrf.logspace import log1mexp
from jaxmrf.models.noisy_or import draw_counts, log_failure, log_off

__all__ = ["NoisyOr", "NoisyOrBinomial"]


class NoisyOr(SortedFieldsDistribution):
    """Binary children, each switched on by any of its parents that are on.

    Args:
        parents: Which parents are on, ``[..., parents]``; leading axes are batch axes.
        weights: V, probability that a parent that is on switches on a child,
            ``[..., parents, children]``. One row more than there are parents makes the first the
            leak's: a parent that is always on.
        validate_args: Whether to check parameters and values; by default as NumPyro is set.

    Raises:
        ValueError: If the shapes do not fit.

    >>> import numpy as np
    >>> weights = np.array([[0.5, 0.0], [0.5, 0.2]])
    >>> child = NoisyOr(np.array([1, 1]), weights)
    >>> np.exp(child.log_prob(np.array([1, 0]))).round(3)
    np.float32(0.6)
    """

    arg_constraints: ClassVar = {
        "parents": constraints.independent(constraints.nonnegative, 1),
        "weights": constraints.independent(constraints.unit_interval, 2),
    }
    pytree_data_fields = ("parents", "weights")
    pytree_aux_fields = ()
    support = constraints.independent(constraints.boolean, 1)

    def __init__(self, parents, weights, *, validate_args: bool | None = None):
        shapes = np.shape(parents), np.shape(weights)
        batch_shape, event_shape = _shapes(type(self).__name__, *shapes)
        self.parents = _with_rank(parents, len(batch_shape) + 1)
        self.weights = _with_rank(weights, len(batch_shape) + 2)
        super().__init__(batch_shape, event_shape, validate_args=validate_args)

    @staticmethod
    def infer_shapes(parents, weights):
        """Batch and event shape from the shapes of the parameters."""
        return _shapes("NoisyOr", parents, weights)

    @property
    def log_off(self) -> jax.Array:
        """Log-probability that each child is off, of batch and event shape."""
        return _log_off(self.parents, self.weights)

    @validate_sample
    def log_prob(self, value) -> jax.Array:
        """Log-probability of the children.

        Args:
            value: 0 or 1, children on the last axis.
        """
        value = jnp.asarray(value)
        return _log_binomial(value, 1 - value, self.log_off).sum(axis=-1)

    def sample(self, key, sample_shape=()) -> jax.Array:
        """Children of shape ``sample_shape + batch_shape + [children]``, int32.

        Args:
            key: Random key.
            sample_shape: Shape of the independent draws.
        """
        shape = (*sample_shape, *self.batch_shape, *self.event_shape)
        is_on = jax.random.uniform(key, shape) < -jnp.expm1(self.log_off)
        return is_on.astype(jnp.int32)


class NoisyOrBinomial(SortedFieldsDistribution):
    """Counts of trials, in each of which any feature that is on may be the cause of a success.

    Args:
        features: Which features are on, ``[..., features]``; leading axes are batch axes.
        weights: W, probability that a feature that is on causes a success,
            ``[..., features, measurements]``. One row more than there are features makes the first
            the leak's.
        total_count: C, number of trials, a positive integer.
        is_observed: Which measurements count, ``[..., measurements]``; by default all. The others
            may hold any number in the support and add nothing to ``log_prob``.
        validate_args: Whether to check parameters and values; by default as NumPyro is set.

    Raises:
        ValueError: If the shapes do not fit, or the number of trials is not a positive integer.
    """

    arg_constraints: ClassVar = {
        "features": constraints.independent(constraints.nonnegative, 1),
        "weights": constraints.independent(constraints.unit_interval, 2),
    }
    pytree_data_fields = ("features", "weights", "is_observed")
    pytree_aux_fields = ("total_count",)

    def __init__(
        self,
        features,
        weights,
        total_count: int = 1,
        *,
        is_observed=None,
        validate_args: bool | None = None,
    ):
        is_integer = not_jax_tracer(total_count) and np.ndim(total_count) == 0
        if not is_integer or int(total_count) != total_count or total_count < 1:
            raise ValueError(
                "NoisyOrBinomial: expected total_count to be a positive integer, got "
                f"{total_count}; mark cells without data by is_observed"
            )
        shapes = np.shape(features), np.shape(weights)
        batch_shape, event_shape = _shapes("NoisyOrBinomial", *shapes)
        if is_observed is not None:
            observed, shape = np.shape(is_observed), (*batch_shape, *event_shape)
            missing = len(shape) - len(observed)
            if missing < 0 or any(
                a not in (1, b) for a, b in zip(observed, shape[missing:], strict=True)
            ):
                raise ValueError(
                    f"NoisyOrBinomial: expected is_observed to broadcast to {shape}, got "
                    f"{observed}; mark every measurement"
                )
            is_observed = _with_rank(is_observed, len(batch_shape) + 1)
        self.features = _with_rank(features, len(batch_shape) + 1)
        self.weights = _with_rank(weights, len(batch_shape) + 2)
        self.total_count = int(total_count)
        self.is_observed = is_observed
        super().__init__(batch_shape, event_shape, validate_args=validate_args)

    @staticmethod
    def infer_shapes(features, weights, total_count: int = 1):
        """Batch and event shape from the shapes of the parameters."""
        return _shapes("NoisyOrBinomial", features, weights)

    @constraints.dependent_property(is_discrete=True, event_dim=1)
    def support(self):
        """Integers from 0 to the number of trials."""
        return constraints.independent(constraints.integer_interval(0, self.total_count), 1)

    @property
    def log_off(self) -> jax.Array:
        """Log-probability that one trial fails, of batch and event shape."""
        return _log_off(self.features, self.weights)

    @validate_sample
    def log_prob(self, value) -> jax.Array:
        """Log-probability of the counts.

        Args:
            value: Integers in 0..total_count, measurements on the last axis.
        """
        value = as_floats(value)
        rest = self.total_count - value
        orders = gammaln(self.total_count + 1.0) - gammaln(value + 1) - gammaln(rest + 1)
        terms = _log_binomial(value, rest, self.log_off) + orders
        return (terms if self.is_observed is None else jnp.where(self.is_observed, terms, 0)).sum(
            axis=-1
        )

    def sample(self, key, sample_shape=()) -> jax.Array:
        """Counts of shape ``sample_shape + batch_shape + [measurements]``, int32.

        Args:
            key: Random key.
            sample_shape: Shape of the independent draws.
        """
        shape = (*sample_shape, *self.batch_shape, *self.event_shape)
        log_off = jnp.broadcast_to(self.log_off, shape)
        return draw_counts(key, log_off, float(self.total_count)).astype(jnp.int32)


def _log_off(parents, weights) -> jax.Array:
    failures = log_failure(as_floats(weights))
    parents = as_floats(parents)
    if failures.shape[-2] > parents.shape[-1]:
        parents = jnp.concatenate([jnp.ones_like(parents[..., :1]), parents], axis=-1)
    shape = failures.shape[-2:]
    if failures.size == math.prod(shape):
        return log_off(parents, failures.reshape(shape))
    return jnp.vectorize(log_off, signature="(parents),(parents,children)->(children)")(
        parents, failures
    )


def _log_binomial(successes, failures, log_off) -> jax.Array:
    """Without the number of orders; impossible successes are -inf, and gradients are never NaN."""
    is_needed = successes > 0
    log_on = log1mexp(jnp.where(is_needed, log_off, -1.0))
    return jnp.where(is_needed, successes * log_on, 0) + failures * log_off


def _with_rank(value, rank: int):
    """The value with leading axes of length one, as promote_batch_shape asks."""
    shape = np.shape(value)
    return broadcast(value, (*(1,) * (rank - len(shape)), *shape))


def _shapes(name: str, parents: tuple, weights: tuple) -> tuple[tuple, tuple]:
    if len(parents) < 1 or len(weights) < 2 or weights[-2] - parents[-1] not in (0, 1):
        raise ValueError(
            f"{name}: expected parents [..., J] and weights [..., J, K], or J + 1 rows with a "
            f"leak, got shapes {tuple(parents)} and {tuple(weights)}; give every parent a row"
        )
    try:
        batch_shape = np.broadcast_shapes(tuple(parents[:-1]), tuple(weights[:-2]))
    except ValueError:
        raise ValueError(
            f"{name}: expected batch shapes that broadcast, got {tuple(parents[:-1])} of the "
            f"parents and {tuple(weights[:-2])} of the weights; align their leading axes"
        ) from None
    return batch_shape, (weights[-1],)
