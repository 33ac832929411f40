"""Discrete sites summed out of NumPyro models."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from marginal_models import CASES
from numpyro.infer.util import log_density

from jaxmrf.infer import marginalize


def values_of(case):
    return jax.tree.map(jnp.asarray, CASES[case].values)


def by_hand(model, values):
    """Log of the sum over all values of all discrete sites, found by running the model."""
    compiled = marginalize(model).compile()
    supports = [site.support for site in compiled.sites for _ in range(site.size)]
    table = np.array(list(itertools.product(*supports)))
    configurations = {
        site.name: table[:, site.start : site.start + site.size]
        .reshape(-1, *site.shape)
        .astype(site.dtype)
        for site in compiled.sites
    }
    log_joint = jax.vmap(lambda z: log_density(model, (), {}, {**values, **z})[0])
    return jax.scipy.special.logsumexp(log_joint(configurations))


@pytest.mark.parametrize("case", CASES)
def test_log_density_and_gradient_equal_the_sum_over_all_configurations(case):
    model = CASES[case].model

    def summed_out(values):
        return log_density(marginalize(model), (), {}, values)[0]

    def summed(values):
        return by_hand(model, values)

    found, expected = jax.jit(
        lambda values: tuple(jax.value_and_grad(f)(values) for f in (summed_out, summed))
    )(values_of(case))
    np.testing.assert_allclose(found[0], expected[0], rtol=2e-5)
    for name, gradient in found[1].items():
        assert np.isfinite(gradient).all()
        np.testing.assert_allclose(gradient, expected[1][name], rtol=1e-3, atol=1e-4)
