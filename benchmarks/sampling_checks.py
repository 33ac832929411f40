"""Errors of samplers in standard errors, against enumeration and against transfer matrices."""

import jax.numpy as jnp
import numpy as np

from benchmarks.sampling_peers import Sampler
from jaxmrf.exact import enumeration
from jaxmrf.graphs import Graph
from jaxmrf.models import Ising
from jaxmrf.types import Array

__all__ = ["batch_z_scores", "enumeration_z_scores", "offset_products", "torus_correlations"]

NUM_DISCARDED = 3
OFFSETS = ((0, 1), (1, 0), (1, 1), (0, 2), (0, 4), (8, 0))


def enumeration_z_scores(
    sampler: Sampler, model: Ising, graph: Graph, num_draws: int
) -> np.ndarray:
    """Errors of all means and pair products in standard errors of independent draws.

    After a few runs that are discarded every run gives one draw of every chain.
    """
    table = 2.0 * enumeration.configurations(graph.num_nodes, 2) - 1
    first, second = graph.edges.T
    log_weights = table @ np.asarray(model.fields, float)
    log_weights += (table[:, first] * table[:, second]) @ np.asarray(model.couplings, float)
    weights = np.exp(log_weights - log_weights.max())
    weights /= weights.sum()
    upper = np.triu_indices(graph.num_nodes, 1)
    exact = np.concatenate([weights @ table, ((table * weights[:, None]).T @ table)[upper]])
    found, states = [], sampler.start(0)
    for number in range(NUM_DISCARDED + num_draws):
        states = sampler.run(1 + number, states)
        if number >= NUM_DISCARDED:
            spins = 2 * np.asarray(sampler.states(states), np.float32) - 1
            products = (spins @ spins.T)[upper] / spins.shape[1]
            found.append(np.concatenate([spins.mean(axis=1, dtype=float), products]))
    errors = np.mean(found, axis=0) - exact
    return errors / np.sqrt((1 - exact**2) / (num_draws * spins.shape[1]))


def offset_products(spins: Array) -> Array:
    """Mean products of the spins of a torus, "rows columns", that are an offset apart."""
    shifted = (jnp.roll(spins, (-down, -right), (0, 1)) for down, right in OFFSETS)
    return jnp.stack([(spins * other).mean() for other in shifted])


def torus_correlations(num_rows: int, num_columns: int, coupling: float) -> np.ndarray:
    """What `offset_products` is in the mean, by the transfer matrix from row to row."""
    table = 2.0 * enumeration.configurations(num_columns, 2) - 1
    within = coupling * (table * np.roll(table, -1, 1)).sum(axis=1)
    transfer = np.exp(coupling * table @ table.T + (within[:, None] + within) / 2)
    values, vectors = np.linalg.eigh(transfer)
    values /= values.max()

    def correlation(down, right):
        down, right = down % num_rows, right % num_columns
        here = vectors.T @ (table[:, :1] * vectors)
        there = vectors.T @ (table[:, right : right + 1] * vectors)
        weights = values[:, None] ** (num_rows - down) * values**down
        return (weights * here * there.T).sum() / (values**num_rows).sum()

    return np.array([correlation(*offset) for offset in OFFSETS])


def batch_z_scores(values: np.ndarray, exact: np.ndarray, num_batches: int = 40) -> np.ndarray:
    """Errors of the means of a chain's values in standard errors of means over batches of it."""
    size = len(values) // num_batches
    means = values[: size * num_batches].reshape(num_batches, size, -1).mean(axis=1)
    errors = means.std(axis=0, ddof=1) / np.sqrt(num_batches)
    return (means.mean(axis=0) - exact) / errors
