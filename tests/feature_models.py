"""Small NumPyro models of infinitely many features, at module level where pickle finds them."""

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist

from jaxmrf.distributions import NoisyOrBinomial, infinite_features, noisy_or_layer

NUMBERS = jnp.array([0.3, 2.2, 1.1])
COUNTS = jnp.array([[0, 2], [1, 0], [3, 1]])
SLOT_WEIGHTS = jnp.linspace(0.2, 0.8, 40).reshape(20, 2)


def one_layer(x=None, *, num_objects=3):
    """An Indian buffet process factor model with one number an object."""
    alpha = numpyro.sample("alpha", dist.Gamma(4.0, 4.0))
    z = infinite_features("z", num_objects=num_objects, capacity=20, concentration=alpha)
    with numpyro.plate("objects", num_objects):
        numpyro.sample("x", dist.Normal(z.sum(axis=-1), 0.8), obs=x)


def two_layers(x=None, *, num_objects=3):
    """Counts of two measurements an object, whose weights are known and differ between slots."""
    y = infinite_features("y", num_objects=num_objects, capacity=16, concentration=1.0)
    z, _ = noisy_or_layer("z", y, capacity=20, concentration=1.2, strength=0.8, has_leak=True)
    with numpyro.plate("objects", num_objects):
        numpyro.sample("x", NoisyOrBinomial(z, SLOT_WEIGHTS, total_count=3), obs=x)


def mixed_blocks(x=None, *, num_objects=3):
    """A feature model whose scale and concentration other kernels draw."""
    alpha = numpyro.sample("alpha", dist.Gamma(4.0, 4.0))
    scale = numpyro.sample("scale", dist.Gamma(4.0, 4.0))
    z = infinite_features("z", num_objects=num_objects, capacity=20, concentration=alpha)
    with numpyro.plate("objects", num_objects):
        numpyro.sample("x", dist.Normal(scale * z.sum(axis=-1), 0.8), obs=x)
