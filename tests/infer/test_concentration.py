"""The concentration's block: what it refuses (its law is tested with GroupGibbs)."""

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
import pytest

from jaxmrf.distributions import ChineseRestaurantProcess
from jaxmrf.infer import ConcentrationGibbs

LABELS = jnp.array([0, 0, 1, 0], dtype=jnp.int32)


def partition(prior=None, scale=1.0, extra=False, labels=LABELS):
    alpha = numpyro.sample("alpha", dist.Gamma(1.0, 1.0) if prior is None else prior)
    numpyro.sample("groups", ChineseRestaurantProcess(scale * alpha, 4), obs=labels)
    if extra:
        numpyro.sample("y", dist.Normal(alpha, 1.0), obs=0.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prior": dist.LogNormal()}, "a scalar Gamma, got"),
        ({"scale": 2.0}, r"got \[1.0, 4.0\] where it is 0.5 and 2.0"),
        ({"extra": True}, r"got \['y'\] too"),
        ({"labels": None}, "one latent site, a scalar Gamma"),
    ],
)
def test_models_it_cannot_update_are_refused(key, options, message):
    kernel = ConcentrationGibbs(lambda: partition(**options))
    with pytest.raises(ValueError, match=message):
        kernel.init(key, 0, None, (), {})


def test_model_without_labels_is_refused(key):
    kernel = ConcentrationGibbs(lambda: numpyro.sample("alpha", dist.Gamma(1.0)))
    with pytest.raises(ValueError, match="one ChineseRestaurantProcess given"):
        kernel.init(key, 0, None, (), {})


def test_alone_it_samples_the_posterior_and_starts_where_told(key):
    kernel = ConcentrationGibbs(partition)
    state = kernel.init(key, 0, {"alpha": jnp.log(3.0)}, (), {})
    assert float(state.z["alpha"]) == pytest.approx(3.0)
    after = jax.jit(lambda s: kernel.sample(s, (), {}))(state)
    assert float(after.z["alpha"]) > 0 and float(after.z["alpha"]) != 3.0
