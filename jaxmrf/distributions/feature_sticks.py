r"""Frequencies and weights of infinitely many features, the most frequent ones, as distributions.

.. math:: \mu_{(1)} > \mu_{(2)} > \dots \text{ of a Poisson process of intensity } \alpha/\mu, \quad
          V_{jk} \sim \mathrm{Beta}(c\nu_k, c(1 - \nu_k) + b)

References: Teh, Gorur & Ghahramani, "Stick-breaking construction for the Indian buffet process",
AISTATS 2007; Courville, Eck & Bengio, "An infinite factor model hierarchy via a noisy-or
mechanism", NIPS 2009.
"""

import math
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import betaln
from numpyro.distributions import constraints
from numpyro.distributions.util import validate_sample
from numpyro.util import not_jax_tracer

from jaxmrf.distributions._base import SortedFieldsDistribution, as_floats
from jaxmrf.models.noisy_or import log_failure
from jaxmrf.nonparametric import indian_buffet, noisy_or_features

__all__ = ["IndianBuffetProcess", "NoisyOrWeights"]


class IndianBuffetProcess(SortedFieldsDistribution):
    """The ``capacity`` largest frequencies of the features of an Indian buffet process.

    They come in random order, so that a feature may stay in its slot while others come and go.
    Frequencies below exp(-64) are all given that value.

    Args:
        concentration: alpha > 0, of the batch shape; N objects have alpha H_N features on average.
        capacity: Number of slots, at least 1.
        validate_args: Whether to check parameters and values; by default as NumPyro is set.

    Raises:
        ValueError: If the capacity is not a positive integer or the concentration not positive.

    >>> import jax
    >>> sticks = IndianBuffetProcess(2.0, capacity=8).sample(jax.random.key(0))
    >>> sticks.shape, bool((sticks > 0).all() & (sticks <= 1).all())
    ((8,), True)
    """

    arg_constraints: ClassVar = {"concentration": constraints.positive}
    support = constraints.independent(constraints.unit_interval, 1)
    pytree_data_fields = ("concentration",)
    pytree_aux_fields = ("capacity",)

    def __init__(self, concentration, capacity: int, *, validate_args: bool | None = None):
        if not not_jax_tracer(capacity) or int(capacity) != capacity or capacity < 1:
            raise ValueError(
                "IndianBuffetProcess: expected capacity to be a positive integer, got "
                f"{capacity}; take about twice the features you expect objects to have"
            )
        _check_positive("IndianBuffetProcess", "concentration", concentration)
        self.concentration = concentration
        self.capacity = int(capacity)
        super().__init__(np.shape(concentration), (self.capacity,), validate_args=validate_args)

    @staticmethod
    def infer_shapes(concentration=(), capacity: int = 1):
        """Batch and event shape from the shape of the concentration and the capacity."""
        return tuple(concentration), (capacity,)

    @validate_sample
    def log_prob(self, value) -> jax.Array:
        """Log-density of the frequencies, in whatever order they are.

        Args:
            value: Frequencies in (0, 1], slots on the last axis.
        """
        log_sticks = jnp.log(as_floats(value))
        return jnp.vectorize(indian_buffet.log_prob_sticks, signature="(features),()->()")(
            log_sticks, as_floats(self.concentration)
        )

    def sample(self, key, sample_shape=()) -> jax.Array:
        """Frequencies of shape ``sample_shape + batch_shape + [capacity]``.

        Args:
            key: Random key.
            sample_shape: Shape of the independent draws.
        """
        shape = (*sample_shape, *self.batch_shape)
        keys = jax.random.split(key, max(math.prod(shape), 1))
        concentration = jnp.broadcast_to(as_floats(self.concentration), shape).ravel()

        def draw(key, concentration):
            key_stick, key_order = jax.random.split(key)
            log_sticks = indian_buffet.draw_sticks(key_stick, concentration, self.capacity)
            return jnp.exp(jax.random.permutation(key_order, log_sticks))

        return jax.vmap(draw)(keys[: concentration.size], concentration).reshape(
            *shape, self.capacity
        )


class NoisyOrWeights(SortedFieldsDistribution):
    """Weights of a noisy-or layer from every parent to every feature, given frequencies.

    Args:
        sticks: nu, ``[features]``.
        num_parents: Number of rows, the leak's included.
        strength: c > 0; large makes weights of one feature alike, small makes them 0 or 1.
        offset: b >= 0; 1 in the paper. With 0 the mean weight is nu.
        validate_args: Whether to check parameters and values; by default as NumPyro is set.

    Raises:
        ValueError: If the sticks are not a vector or the strength is not positive.
    """

    arg_constraints: ClassVar = {
        "sticks": constraints.independent(constraints.unit_interval, 1),
        "strength": constraints.positive,
        "offset": constraints.nonnegative,
    }
    support = constraints.independent(constraints.unit_interval, 2)
    pytree_data_fields = ("sticks", "strength", "offset")
    pytree_aux_fields = ("num_parents",)

    def __init__(self, sticks, num_parents: int, strength=1.0, offset=1.0, *, validate_args=None):
        if np.ndim(sticks) != 1 or np.ndim(strength) or np.ndim(offset):
            raise ValueError(
                "NoisyOrWeights: expected a vector of sticks and scalars, got shapes "
                f"{np.shape(sticks)}, {np.shape(strength)} and {np.shape(offset)}; vmap over more"
            )
        _check_positive("NoisyOrWeights", "strength", strength)
        self.sticks, self.strength, self.offset = sticks, strength, offset
        self.num_parents = int(num_parents)
        event_shape = (self.num_parents, np.shape(sticks)[0])
        super().__init__((), event_shape, validate_args=validate_args)

    @validate_sample
    def log_prob(self, value) -> jax.Array:
        """Log-density of the weights.

        Args:
            value: V, ``[..., parents, features]``.
        """
        value = as_floats(value)
        on = self.strength * as_floats(self.sticks)
        off = self.strength - on + self.offset
        terms = (on - 1) * jnp.log(value) + (off - 1) * log_failure(value) - betaln(on, off)
        return terms.sum(axis=(-2, -1))

    def sample(self, key, sample_shape=()) -> jax.Array:
        """Weights of shape ``sample_shape + [parents, features]``, never zero.

        Args:
            key: Random key.
            sample_shape: Shape of the independent draws.
        """
        log_sticks = jnp.log(as_floats(self.sticks))
        none = jnp.zeros((log_sticks.size, self.num_parents))

        def draw(key):
            drawn = noisy_or_features.draw_weights(
                key, log_sticks, none, none, self.strength, self.offset
            )
            return jnp.exp(drawn.log_weights)

        keys = jax.random.split(key, max(math.prod(sample_shape), 1))
        drawn = jax.vmap(draw)(keys)[: math.prod(sample_shape)]
        return drawn.reshape(*sample_shape, *self.event_shape)


def _check_positive(name: str, parameter: str, value) -> None:
    if not_jax_tracer(value) and not (np.asarray(value) > 0).all():
        raise ValueError(
            f"{name}: expected {parameter} > 0, got {np.asarray(value).tolist()}; "
            "give it a prior on the positive numbers, such as Gamma(1, 1)"
        )
