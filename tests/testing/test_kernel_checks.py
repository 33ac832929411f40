"""The checks for kernels catch kernels that break them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from kernel_models import MIXTURE_DATA, mixture, mixture_by_event
from numpyro.util import is_prng_key

from jaxmrf.infer import PlateGibbs
from jaxmrf.testing import KERNEL_CHECKS, KernelCase, exact_stationarity, prior_invariance


class OneKeyOnly(PlateGibbs):
    def init(self, rng_key, *args, **kwargs):
        assert is_prng_key(rng_key), "one key only"
        return super().init(rng_key, *args, **kwargs)


class DeafToTheKey(PlateGibbs):
    def _sample_one(self, state, model_args, model_kwargs):
        fixed = super()._sample_one(
            state._replace(rng_key=jax.random.key(5)), model_args, model_kwargs
        )
        return fixed._replace(rng_key=state.rng_key)


class Forgetful(PlateGibbs):
    def init(self, *args, **kwargs):
        state = super().init(*args, **kwargs)
        self._sample_fn = None
        return state


class Drifting(PlateGibbs):
    def _sample_one(self, state, model_args, model_kwargs):
        state = super()._sample_one(state, model_args, model_kwargs)
        return state._replace(z={"z": state.z["z"] * 1.0})


class NoModel(PlateGibbs):
    model = None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kernel", "check", "message"),
    [
        (NoModel, "model attribute", "no model"),
        (OneKeyOnly, "chains vectorized", "one key only"),
        (DeafToTheKey, "resumes with the new key", "same draws for different keys"),
        (Forgetful, "initialises once", "init called 2 times"),
        (Drifting, "state is a fixed point", "state changes"),
    ],
)
def test_broken_kernel_is_caught(kernel, check, message):
    with pytest.raises(AssertionError, match=message):
        KERNEL_CHECKS[check](KernelCase(lambda: kernel(mixture), (MIXTURE_DATA,), num_steps=2))


def test_there_are_fourteen_checks():
    assert len(KERNEL_CHECKS) == 14


def test_exact_stationarity_is_zero_for_the_stationary_law_alone():
    transition = np.array([[0.9, 0.1], [0.3, 0.7]])
    assert exact_stationarity(transition, [3.0, 1.0]) < 1e-12
    assert abs(exact_stationarity(transition, [1.0, 1.0]) - 0.1) < 1e-12


def test_exact_stationarity_refuses_rows_that_are_no_distribution():
    with pytest.raises(ValueError, match="expected rows that are distributions, got smallest"):
        exact_stationarity([[0.9, 0.2], [0.3, 0.7]], [3.0, 1.0])


def test_prior_invariance_refuses_unknown_sites_and_starts():
    kernel = PlateGibbs(mixture)
    with pytest.raises(ValueError, match=r"expected observed sites among \['y', 'z'\], got"):
        prior_invariance(kernel, mixture, "data")
    with pytest.raises(ValueError, match='expected init "prior" or a function, got 3'):
        prior_invariance(kernel, mixture, "y", init=3)


def test_prior_invariance_takes_exact_cdfs_and_other_starts():
    def shifted(sites):
        return {name: jnp.zeros_like(site["value"]) for name, site in sites.items()}

    kernel = PlateGibbs(mixture_by_event)
    p_values = prior_invariance(
        kernel,
        mixture_by_event,
        {"y": "y"},
        num_replicates=500,
        num_steps=1,
        init=shifted,
        statistics={"always 1": lambda values: jnp.int32(1)},
    )
    assert p_values["always 1"] == 1.0
    assert p_values["z"] > 1e-3  # one exact Gibbs step forgets any start
