r"""Exact answers by visiting every configuration, :math:`Z = \sum_x e^{\phi(x)}`.

The oracle of every other method, and log Z itself for models of up to about 20 binary nodes.
"""

from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp

from jaxmrf.graphs import Graph
from jaxmrf.models import Beliefs, PairwiseModel
from jaxmrf.models.pairwise import log_potential
from jaxmrf.types import Array, Float, Int, Key

__all__ = ["MAX_CONFIGURATIONS", "configurations", "is_enumerable", "log_z", "sample", "solve"]

MAX_CONFIGURATIONS = 2**20
"""Refuse beyond this many configurations."""

_BATCH = 4096


def is_enumerable(num_nodes: int, num_states: int, limit: int = MAX_CONFIGURATIONS) -> bool:
    """Whether the number of configurations is within ``limit``."""
    return num_states**num_nodes <= limit


@lru_cache(maxsize=8)
def configurations(num_nodes: int, num_states: int) -> Int[np.ndarray, "configurations nodes"]:
    """All configurations, node 0 changing fastest.

    Raises:
        ValueError: If there are more than ``MAX_CONFIGURATIONS``.

    >>> configurations(2, 2).tolist()
    [[0, 0], [1, 0], [0, 1], [1, 1]]
    """
    if not is_enumerable(num_nodes, num_states):
        raise ValueError(
            f"configurations: expected at most {MAX_CONFIGURATIONS} configurations, got "
            f"{num_states}**{num_nodes}; sample the model instead"
        )
    codes = np.arange(num_states**num_nodes)[:, None]
    table = (codes // num_states ** np.arange(num_nodes) % num_states).astype(np.int8)
    table.setflags(write=False)
    return table


def log_z(model: PairwiseModel, graph: Graph) -> Float[Array, ""]:
    """Natural log of the normaliser; differentiable, its gradient is the mean statistics."""
    return logsumexp(_log_potentials(model, graph))


def sample(
    key: Key, model: PairwiseModel, graph: Graph, *, num_samples: int
) -> Int[Array, "items nodes"]:
    """Exact independent draws, by inversion: the later half of the nodes, then the earlier."""
    num_earlier = model.num_states ** (graph.num_nodes // 2)
    log_potentials = _log_potentials(model, graph)
    weights = jnp.exp(log_potentials - log_potentials.max()).reshape(-1, num_earlier)
    uniform_later, uniform_earlier = jax.random.uniform(key, (2, num_samples), weights.dtype)
    later = _invert(jnp.cumsum(weights.sum(axis=1)), uniform_later)
    earlier = jax.lax.map(
        lambda draw: _invert(jnp.cumsum(weights[draw[0]]), draw[1]),
        (later, uniform_earlier),
        batch_size=_BATCH,
    )
    table = jnp.asarray(configurations(graph.num_nodes, model.num_states))
    return table[later * num_earlier + earlier]


def solve(model: PairwiseModel, graph: Graph) -> Beliefs:
    """Exact log Z, node marginals and edge marginals, by the gradient of log Z."""
    value, means = jax.value_and_grad(log_z)(model.tables(), graph)
    return Beliefs(
        log_z=value,
        nodes=means.node_tables,
        factors=means.edge_tables,
        is_converged=jnp.array(True),
        num_iters=jnp.array(0),
    )


def _log_potentials(model: PairwiseModel, graph: Graph) -> Float[Array, " configurations"]:
    table = jnp.asarray(configurations(graph.num_nodes, model.num_states))
    # in batches and without kept residuals: the statistics of all configurations fill gigabytes
    one = jax.checkpoint(lambda states: log_potential(model, graph, states))
    return jax.lax.map(one, table, batch_size=_BATCH)


def _invert(cumulative: Float[Array, " values"], uniform: Float[Array, "*draws"]) -> Array:
    """Values drawn from their cumulative weights; never one of weight zero."""
    return jnp.searchsorted(cumulative, uniform * cumulative[-1], side="right")
