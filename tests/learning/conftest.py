"""Planted Ising models with exact data."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import networkx as nx
import numpy as np
import pytest

from jaxmrf.exact import enumeration
from jaxmrf.graphs import Graph, grid
from jaxmrf.models import Ising

GRAPHS = {
    "grid": grid((4, 4)),
    "random": Graph.from_networkx(nx.gnm_random_graph(16, 32, seed=1)),
}


class Planted(NamedTuple):
    """A model whose parameters are known, and observations of it."""

    graph: Graph
    model: Ising
    data: np.ndarray


def plant(name: str, *, seed: int = 3, num_items: int = 2000) -> Planted:
    """Couplings of size 0.4, fields of size 0.2, exact independent draws."""
    graph = GRAPHS[name]
    rng = np.random.default_rng(seed)
    model = Ising(
        couplings=jnp.asarray(0.4 * rng.normal(size=graph.num_edges), jnp.float32),
        fields=jnp.asarray(0.2 * rng.normal(size=graph.num_nodes), jnp.float32),
    )
    data = enumeration.sample(jax.random.key(seed), model, graph, num_samples=num_items)
    return Planted(graph, model, np.asarray(data))


@pytest.fixture(scope="session")
def planted():
    """``plant`` with its answers kept for the session."""
    kept = {}
    return lambda name: kept.setdefault(name, plant(name))


@pytest.fixture(scope="session")
def rms_error():
    """Root mean square error of couplings, or of fields."""

    def error(model, truth, name="couplings"):
        return float(jnp.sqrt(jnp.mean((getattr(model, name) - getattr(truth, name)) ** 2)))

    return error
