r"""Parameters tied in groups, :math:`\theta_i = \phi_{c_i}`, in a buffer of stated capacity."""

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.cluster import KMeans

from jaxmrf.nonparametric.dirichlet_process import ranks
from jaxmrf.types import Array, Float, Int

__all__ = ["cluster", "sort_groups", "tie"]


def tie(values: Float[Array, " groups"], labels: Int[Array, " items"]) -> Float[Array, " items"]:
    """``values[labels]``, with NaN, not a neighbour's value, for a label beyond the buffer.

    >>> tie(jnp.array([0.2, 0.8]), jnp.array([1, 0, 2])).tolist()[:2]
    [0.800000011920929, 0.20000000298023224]
    """
    return values.at[labels].get(mode="fill", fill_value=jnp.nan)


def sort_groups(
    labels: Int[Array, " items"], values: Float[Array, "groups *event"]
) -> tuple[Int[Array, " items"], Float[Array, "groups *event"]]:
    """The same grouping with canonical labels, values moved along."""
    rank = ranks(labels, values.shape[0])
    return rank[labels], jnp.zeros_like(values).at[rank].set(values)


def cluster(
    estimates: Float[Array, " items"],
    num_clusters: Float[Array, ""] | Int[Array, ""] | float,
    values: Float[Array, " groups"],
) -> tuple[Int[Array, " items"], Float[Array, " groups"]]:
    """Labels and centres of a k-means clustering, by scikit-learn, also under ``jit``.

    Args:
        estimates: One number per item.
        num_clusters: Wanted number of clusters; at most the number of different estimates.
        values: Buffer; its first slots are overwritten by the centres.

    Returns:
        Label of every item, and the buffer.
    """
    shapes = (
        jax.ShapeDtypeStruct(estimates.shape, jnp.int32),
        jax.ShapeDtypeStruct(values.shape, values.dtype),
    )
    return jax.pure_callback(
        _cluster, shapes, estimates, num_clusters, values, vmap_method="sequential"
    )


def _cluster(estimates, num_clusters, values):
    points = np.asarray(estimates)[:, None]
    num_clusters = min(int(num_clusters), len(np.unique(points)), len(values))
    fit = KMeans(num_clusters, n_init=4, random_state=0).fit(points)
    values = np.array(values)
    values[:num_clusters] = fit.cluster_centers_[:, 0]
    return fit.labels_.astype(np.int32), values
