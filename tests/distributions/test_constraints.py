"""The supports, on NumPy and JAX arrays of any type."""

import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.distributions import constraints as numpyro_constraints

from jaxmrf.distributions import canonical_labels, spins

SPINS = [
    ([0, 1, 1], True),
    ([0, 0, 0], True),
    ([1, 1, 1], True),
    ([-1, 1, -1], True),
    ([-1, -1, -1], True),
    ([-1, 0, 1], False),
    ([-1, 0, 0], False),
    ([0, 1, 2], False),
    ([0.0, np.nan, 1.0], False),
    ([0.5, 1.0, 1.0], False),
    ([False, True, True], True),
    (np.array([0, 1, 255], dtype=np.uint8), False),
    (np.array([-127, 1, 1], dtype=np.int8), False),
]
LABELS = [
    ([0, 0, 0], True),
    ([0, 1, 2], True),
    ([0, 1, 0], True),
    ([1, 0, 0], False),
    ([0, 2, 1], False),
    ([0, -1, 0], False),
    ([0.0, 0.5, 1.0], False),
    ([0.0, np.nan, 1.0], False),
    (np.array([0, 1, 3], dtype=np.uint8), False),
]


@pytest.mark.parametrize("convert", [np.asarray, jnp.asarray])
@pytest.mark.parametrize(("value", "expected"), SPINS)
def test_spins_are_all_binary_or_all_signed(value, expected, convert):
    assert bool(spins(convert(value))) is expected


@pytest.mark.parametrize("convert", [np.asarray, jnp.asarray])
@pytest.mark.parametrize(("value", "expected"), LABELS)
def test_labels_are_canonical_in_order_of_first_appearance(value, expected, convert):
    assert bool(canonical_labels(convert(value))) is expected


@pytest.mark.parametrize("constraint", [spins, canonical_labels])
def test_constraint_checks_each_event_by_itself(constraint):
    found = constraint(np.array([[[0, 1], [0, 0]], [[0, 2], [1, 5]]]))
    np.testing.assert_array_equal(found, [[True, True], [False, False]])
    assert constraint.event_dim == 1 and constraint.is_discrete
    assert constraint(constraint.feasible_like(np.full((3,), 9)))
    assert constraint == type(constraint)() and constraint != numpyro_constraints.boolean
