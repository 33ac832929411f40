"""Tied parameters and the clustering that starts them."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxmrf.nonparametric import parameter_groups


def test_tie_looks_values_up_and_marks_labels_beyond_the_buffer():
    tied = parameter_groups.tie(jnp.array([0.2, 0.8]), jnp.array([1, 0, 2], dtype=jnp.int32))
    np.testing.assert_allclose(tied[:2], [0.8, 0.2])
    assert np.isnan(tied[2])


def test_cluster_finds_separated_values_under_jit():
    estimates = jnp.array([0.1, 0.9, 0.11, 0.89, 0.1])
    values = jnp.full(4, 0.5)
    labels, found = jax.jit(parameter_groups.cluster)(estimates, 2.0, values)
    assert len(set(labels.tolist())) == 2
    np.testing.assert_allclose(found[labels], [0.31 / 3, 0.895, 0.31 / 3, 0.895, 0.31 / 3], 1e-5)
    np.testing.assert_allclose(found[2:], 0.5)


def test_cluster_takes_no_more_clusters_than_different_estimates():
    labels, _ = parameter_groups.cluster(jnp.full(3, 0.4), 3.0, jnp.full(4, 0.5))
    assert labels.tolist() == [0, 0, 0]
