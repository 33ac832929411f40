"""Small NumPyro models at module level, where pickle finds them, and their exact answers."""

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist

MIXTURE_DATA = jnp.array([[-0.5, 0.2, 2.9], [3.1, 0.4, 1.6]])


def mixture(y=None, *, shape=(2, 3)):
    """Three groups in two plates, with one observation an element and one vector a column."""
    with numpyro.plate("rows", shape[0], dim=-2), numpyro.plate("columns", shape[1]):
        z = numpyro.sample("z", dist.Categorical(jnp.array([0.5, 0.2, 0.3])))
        numpyro.sample("y", dist.Normal(jnp.array([0.0, 1.0, 3.0])[z], 0.8), obs=y)


def mixture_with_location(y=None, *, size=4):
    """A mixture of two groups whose second location is unknown."""
    location = numpyro.sample("location", dist.Normal(2.0, 1.0))
    with numpyro.plate("items", size):
        z = numpyro.sample("z", dist.Bernoulli(0.4))
        numpyro.sample("y", dist.Normal(location * z, 0.8), obs=y)


def mixture_by_event(y=None, *, size=3):
    """Observations of two channels an item, declared by ``to_event`` inside the plate."""
    with numpyro.plate("items", size):
        z = numpyro.sample("z", dist.Categorical(jnp.array([0.3, 0.7])))
        loc = jnp.stack([1.0 * z, -1.0 * z], axis=-1)
        numpyro.sample("y", dist.Normal(loc, 1.0).to_event(1), obs=y)
