"""Helpers see through what plates, masks and to_event wrap around a distribution."""

import numpy as np
import numpyro
from numpyro.handlers import seed, trace

from jaxmrf.distributions import Ising, base_distribution, map_base
from jaxmrf.graphs import Graph

EDGE = Graph(2, [(0, 1)])


def wrapped_site():
    def model():
        with numpyro.plate("items", 3):
            fn = Ising(EDGE, np.full((4, 1), 0.5)).to_event(1).mask(np.array([True, True, False]))
            numpyro.sample("x", fn)

    return trace(seed(model, 0)).get_trace()["x"]


def test_base_distribution_is_found_inside_all_wrappers():
    fn = wrapped_site()["fn"]
    assert not isinstance(fn, Ising)
    assert isinstance(base_distribution(fn), Ising)
    plain = Ising(EDGE, 0.5)
    assert base_distribution(plain) is plain


def test_map_base_keeps_the_wrappers_and_the_original():
    site = wrapped_site()
    fn, value = site["fn"], site["value"]
    before = fn.log_prob(value)
    changed = map_base(fn, lambda field: field.unnormalized())
    log_z = np.where([True, True, False], base_distribution(fn).log_normalizer.sum(), 0.0)
    np.testing.assert_allclose(changed.log_prob(value) - log_z, before, atol=1e-5)
    assert changed.batch_shape == fn.batch_shape and changed.event_shape == fn.event_shape
    np.testing.assert_array_equal(fn.log_prob(value), before)
