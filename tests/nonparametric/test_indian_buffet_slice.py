"""The published slice sampler agrees with what replaces it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hierarchy_chains import Setting, draw_state, statistics
from scipy import stats

from jaxmrf.nonparametric import indian_buffet, indian_buffet_slice

ONE_LAYER = Setting(capacities=(16,), concentrations=(0.8,))


@pytest.mark.slow
def test_next_stick_by_rejection_is_the_next_point_of_the_thinned_process(key):
    num_objects, concentration, num = 4, 1.3, 4000

    def log_absence(log_sticks):
        return indian_buffet.log_absence(log_sticks, num_objects)

    @jax.jit
    @jax.vmap
    def draw(key):
        key_thin, *keys = jax.random.split(key, 3)
        thinned = indian_buffet.draw_inactive_sticks(
            key_thin, log_absence, concentration, float(num_objects), 2
        )
        first, is_ok = indian_buffet_slice.draw_next_stick(
            keys[0], jnp.zeros(()), num_objects, concentration
        )
        second, is_found = indian_buffet_slice.draw_next_stick(
            keys[1], first, num_objects, concentration
        )
        return thinned.log_sticks, jnp.stack([first, second]), is_ok & is_found

    thinned, by_rejection, is_ok = draw(jax.random.split(key, num))
    assert is_ok.all()
    for place in range(2):
        found = stats.ks_2samp(np.asarray(thinned[:, place]), np.asarray(by_rejection[:, place]))
        assert found.pvalue > 1e-4


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_slice_sampler_leaves_the_joint_law_invariant(key):
    @jax.jit
    @jax.vmap
    def replicate(key):
        key_start, key_step = jax.random.split(key)
        state = draw_state(key_start, ONE_LAYER)
        before = statistics(state)
        for sweep in range(2):
            state = indian_buffet_slice.step(jax.random.fold_in(key_step, sweep), state)
        return before, statistics(state), state.is_truncated

    before, after, is_truncated = replicate(jax.random.split(key, 6000))
    assert is_truncated.mean() < 1e-3
    for name in before:
        difference = np.asarray(after[name] - before[name], float)[~np.asarray(is_truncated)]
        error = difference.std() / np.sqrt(len(difference))
        assert abs(difference.mean()) <= 4.5 * error, (name, difference.mean() / error)
