"""Small NumPyro models at module level, where pickle finds them, and their exact answers."""

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist

from jaxmrf.distributions import ChineseRestaurantProcess, Ising, PairwiseMRF, Potts
from jaxmrf.graphs import grid

SQUARE = grid((2, 2))
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


PATH = grid((1, 5))
SQUARE = grid((2, 2))
VOTES = jnp.array([[1, 1, 0, 0], [0, 0, 0, 1], [1, 1, 1, 1]])


def grouped(x=None, *, graph=PATH, num_items=6, max_groups=5, base=None):
    """Agreement parameters tied by a Dirichlet process, the model of Liu & Page."""
    alpha = numpyro.sample("alpha", dist.Gamma(2.0, 2.0))
    groups = numpyro.sample("groups", ChineseRestaurantProcess(alpha, graph.num_edges))
    with numpyro.plate("atoms", max_groups):
        phi = numpyro.sample("phi", dist.Uniform(0.0, 1.0) if base is None else base)
    theta = numpyro.deterministic("theta", phi[groups])
    with numpyro.plate("items", num_items):
        numpyro.sample("x", Ising.from_agreement(graph, theta), obs=x)


def grouped_square(x, num_items=None):
    """The same on a cycle, where the stripped Beta approximation approximates."""
    grouped(x, graph=SQUARE, num_items=len(x) if num_items is None else num_items)


def observed_field(x=None, *, graph=SQUARE, num_items=3):
    """Observations of an Ising field with unknown coupling and field, the field positive."""
    coupling = numpyro.sample("coupling", dist.Normal(0.0, 1.0))
    tilt = numpyro.sample("tilt", dist.Exponential(1.0))
    with numpyro.plate("items", num_items):
        numpyro.sample("x", Ising(graph, coupling / 2, (coupling - tilt) / 2), obs=x)


def latent_field(y=None):
    """A noisy image of two states, one observation a node."""
    z = numpyro.sample("z", Ising(SQUARE, 0.4, jnp.array([0.3, 0.0, -0.2, 0.1])))
    with numpyro.plate("pixels", SQUARE.num_nodes):
        numpyro.sample("y", dist.Normal(1.5 * z, 1.0), obs=y)


def latent_images(y=None):
    """Two images of three states with two channels; the nodes are an axis of the event."""
    couplings = jnp.array([[0.2], [0.8]]) * jnp.ones(SQUARE.num_edges)
    with numpyro.plate("images", 2):
        z = numpyro.sample("z", Potts(SQUARE, couplings, num_states=3))
        means = jnp.array([[0.0, 1.0], [1.0, 0.0], [2.0, 2.0]])[z]
        numpyro.sample("y", dist.Normal(means, 1.0).to_event(2), obs=y)


def field_and_mixture(x=None, y=None, *, num_items=2):
    """A coupling behind an observed field and behind a mixture of unknown scale."""
    coupling = numpyro.sample("coupling", dist.Normal(0.0, 1.0))
    scale = numpyro.sample("scale", dist.LogNormal(0.0, 0.5))
    numpyro.sample("x", Ising(SQUARE, coupling, max_configurations=1, num_sweeps=20), obs=x)
    with numpyro.plate("items", num_items):
        z = numpyro.sample("z", dist.Bernoulli(0.4))
        numpyro.sample("y", dist.Normal(coupling + 2.0 * z, scale), obs=y)


def hidden_field(y=None):
    """A latent field of unknown coupling under a mean of unknown height."""
    coupling = numpyro.sample("coupling", dist.Normal(0.2, 0.5))
    height = numpyro.sample("height", dist.Normal(1.5, 0.5))
    z = numpyro.sample("z", Ising(SQUARE, coupling))
    with numpyro.plate("pixels", SQUARE.num_nodes):
        numpyro.sample("y", dist.Normal(height * z, 0.7), obs=y)


def grouped_tables(x=None, *, graph=SQUARE, num_items=3, max_groups=4):
    """Edge tables of three states tied by a Dirichlet process."""
    groups = numpyro.sample("groups", ChineseRestaurantProcess(1.0, graph.num_edges))
    with numpyro.plate("atoms", max_groups):
        tables = numpyro.sample("tables", dist.Normal(0.0, 1.0).expand([3, 3]).to_event(2))
    with numpyro.plate("items", num_items):
        numpyro.sample("x", PairwiseMRF(graph, tables[groups]), obs=x)
