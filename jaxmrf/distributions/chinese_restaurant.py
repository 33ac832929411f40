r"""The Chinese restaurant process as a NumPyro distribution over partitions.

.. math:: P(c) = \frac{\alpha^{K}\,\Gamma(\alpha)}{\Gamma(\alpha + r)} \prod_{g=1}^{K} \Gamma(m_g)

for r items in K groups of sizes m_g, c their canonical labels. Reference: Pitman, "Exchangeable
and partially exchangeable random partitions", Probability Theory and Related Fields 102 (1995).
"""

import math
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.distributions import constraints as numpyro_constraints
from numpyro.distributions.util import validate_sample

from jaxmrf.distributions._base import SortedFieldsDistribution, as_floats
from jaxmrf.distributions.constraints import canonical_labels
from jaxmrf.nonparametric import dirichlet_process

__all__ = ["ChineseRestaurantProcess"]


class ChineseRestaurantProcess(SortedFieldsDistribution):
    """Partitions of ``size`` items, written as integer labels in the order of first appearance.

    Args:
        concentration: alpha > 0, of the batch shape; larger makes more groups.
        size: Number of items, at least 1.
        validate_args: Whether to check parameters and values; by default as NumPyro is set.

    Raises:
        ValueError: If the size is not a positive integer.

    >>> import jax
    >>> prior = ChineseRestaurantProcess(1.0, 3)
    >>> prior.sample(jax.random.key(0), (2,)).shape
    (2, 3)
    >>> round(float(jnp.exp(prior.log_prob(np.array([0, 1, 2])))), 4)
    0.1667
    """

    arg_constraints: ClassVar = {"concentration": numpyro_constraints.positive}
    support = canonical_labels
    pytree_data_fields = ("concentration",)
    pytree_aux_fields = ("size",)

    def __init__(self, concentration, size: int, *, validate_args: bool | None = None):
        if int(size) != size or size < 1:
            raise ValueError(
                f"ChineseRestaurantProcess: expected size to be a positive integer, got {size}; "
                "pass the number of items"
            )
        self.concentration = concentration
        self.size = int(size)
        super().__init__(np.shape(concentration), (self.size,), validate_args=validate_args)

    @staticmethod
    def infer_shapes(concentration=(), size: int = 1):
        """Batch and event shape from the shape of the concentration and the number of items."""
        return tuple(concentration), (size,)

    @validate_sample
    def log_prob(self, value) -> jax.Array:
        """The log-probability of the partition that each vector of labels describes.

        Args:
            value: Canonical labels, items on the last axis.
        """
        labels = jnp.asarray(value).astype(jnp.int32)
        return jnp.vectorize(_log_prob, signature="(items),()->()")(
            labels, as_floats(self.concentration)
        )

    def sample(self, key, sample_shape=()) -> jax.Array:
        """Labels of shape ``sample_shape + batch_shape + [items]``, int32, exact draws.

        Args:
            key: Random key.
            sample_shape: Shape of the independent draws.
        """
        shape = (*sample_shape, *self.batch_shape)
        if not shape:
            return _draw(key, as_floats(self.concentration), num_items=self.size)
        keys = jax.random.split(key, math.prod(shape))
        concentration = jnp.broadcast_to(as_floats(self.concentration), shape).ravel()
        drawn = jax.vmap(lambda k, alpha: _draw(k, alpha, num_items=self.size))(keys, concentration)
        return drawn.reshape((*shape, self.size))


_log_prob = jax.jit(dirichlet_process.log_prob)
_draw = jax.jit(dirichlet_process.draw, static_argnames="num_items")
