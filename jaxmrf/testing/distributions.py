r"""The laws every discrete NumPyro distribution keeps, as functions that raise ``AssertionError``.

.. math:: \sum_x p(x) = 1, \qquad \mathrm{E}\,x = \sum_x x\,p(x), \qquad x \sim p

and the same distribution under ``jit``, ``vmap``, ``expand``, ``mask``, ``pickle`` and inside a
model. Rewritten from the checks that NumPyro runs on its own distributions
(``test/test_distributions.py``, Phan, Pradhan & Jankowiak, arXiv:1912.11554).

>>> import pytest
>>> run = pytest.mark.parametrize("check", DISTRIBUTION_CHECKS.values(), ids=DISTRIBUTION_CHECKS)
"""

import copy
import pickle
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.distributions.batch_util import promote_batch_shape, vmap_over
from numpyro.infer import Predictive
from numpyro.infer.inspect import get_dependencies
from numpyro.infer.util import log_likelihood

from jaxmrf.testing.statistics import chi_square_p_value

__all__ = ["DISTRIBUTION_CHECKS", "DistributionCase", "check_distribution"]

NUM_DRAWS = 20_000
"""Draws behind each statistical check."""
SMALLEST_P_VALUE = 1e-4
"""A goodness-of-fit test below this fails."""
NUM_STANDARD_ERRORS = 5.0
"""A sample mean farther than this from the exact one fails."""


class DistributionCase(NamedTuple):
    """A distribution to check.

    Attributes:
        make: A class, or a ``functools.partial`` of one that binds what is not an array.
        parameters: Arrays by name, in full event shape; multiplied by 3 they must stay valid.
        values: Maps a distribution to all its values, on a leading axis that broadcasts against
            the batch shape; by default its ``enumerate_configurations()``.
        outside: A number that, in every coordinate, makes a value outside the support.
    """

    make: Callable[..., dist.Distribution]
    parameters: dict[str, Any]
    values: Callable[[dist.Distribution], Any] | None = None
    outside: int = -7

    def build(self, **options) -> dist.Distribution:
        """The distribution."""
        return self.make(**self.parameters, **options)

    def enumerate(self, distribution: dist.Distribution) -> jax.Array:
        """All values of a distribution that ``make`` built."""
        if self.values is None:
            return distribution.enumerate_configurations()
        return jnp.asarray(self.values(distribution))


def check_distribution(
    make: Callable[..., dist.Distribution],
    parameters: dict[str, Any],
    *,
    rng_key: jax.Array,
    values: Callable | None = None,
    outside: int = -7,
) -> None:
    """Run every check of ``DISTRIBUTION_CHECKS`` on one distribution.

    Args:
        make: A class, or a ``functools.partial`` of one that binds what is not an array.
        parameters: Arrays by name; see ``DistributionCase``.
        rng_key: Random key.
        values: Maps a distribution to all its values; see ``DistributionCase``.
        outside: A number outside the support.

    Raises:
        AssertionError: If a check fails.
    """
    case = DistributionCase(make, parameters, values, outside)
    keys = jax.random.split(rng_key, len(DISTRIBUTION_CHECKS))
    for check, key in zip(DISTRIBUTION_CHECKS.values(), keys, strict=True):
        check(case, key)


def check_declarations(case: DistributionCase, rng_key: jax.Array) -> None:
    """Constraints say their event dimension, nothing claims to be reparametrised or enumerable."""
    fn = case.build()
    assert set(fn.get_args()) == set(case.parameters) == set(fn.arg_constraints)
    for constraint in fn.arg_constraints.values():
        assert constraint.event_dim >= 0 and not constraint.is_discrete
    assert fn.support.is_discrete and fn.support.event_dim == fn.event_dim
    # enumerate_support is read as the values of one coordinate
    assert not (fn.event_dim and fn.has_enumerate_support)
    assert type(fn).__name__ in repr(fn)
    for wrapped in (fn, fn.mask(False), fn.expand_by([2]).to_event(1)):
        assert not wrapped.has_rsample
        _assert_raises(NotImplementedError, "", lambda fn=wrapped: fn.rsample(rng_key))


def check_shapes(case: DistributionCase, rng_key: jax.Array) -> None:
    """Draws are integers of shape sample + batch + event, inside the support."""
    fn = case.build()
    for sample_shape in ((), (2,), (2, 3)):
        value = fn.sample(rng_key, sample_shape)
        assert isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jnp.integer)
        assert (
            value.shape == sample_shape + fn.batch_shape + fn.event_shape == fn.shape(sample_shape)
        )
        assert fn.log_prob(value).shape == sample_shape + fn.batch_shape
        assert fn.support(value).all()


def check_infer_shapes(case: DistributionCase, rng_key: jax.Array) -> None:
    """``infer_shapes`` agrees with the distribution that is built."""
    fn = case.build()
    shapes = {name: np.shape(value) for name, value in case.parameters.items()}
    if isinstance(case.make, partial):
        found = case.make.func.infer_shapes(*case.make.args, **case.make.keywords, **shapes)
    else:
        found = case.make.infer_shapes(**shapes)
    assert found == (fn.batch_shape, fn.event_shape)


def check_jit(case: DistributionCase, rng_key: jax.Array) -> None:
    """Compiled and plain log-probabilities agree, and an equal distribution does not retrace."""
    fn = case.build()
    value = fn.sample(rng_key, (2,))
    num_traces = 0

    @jax.jit
    def log_prob(fn, value):
        nonlocal num_traces
        num_traces += 1
        return fn.log_prob(value)

    compiled = log_prob(fn, value)
    np.testing.assert_allclose(compiled, fn.log_prob(value), rtol=2e-5, atol=2e-5)
    log_prob(_rebuild(case), value)
    assert num_traces == 1
    from_parameters = jax.jit(lambda parameters: case.make(**parameters).log_prob(value))
    np.testing.assert_allclose(from_parameters(case.parameters), compiled, rtol=2e-5, atol=2e-5)


def check_gradient(case: DistributionCase, rng_key: jax.Array) -> None:
    """The gradient of ``log_prob`` in each parameter agrees with finite differences."""
    parameters = jax.tree.map(jnp.asarray, case.parameters)
    value = case.build().sample(rng_key)
    total = jax.jit(lambda parameters: case.make(**parameters).log_prob(value).sum())
    gradients = jax.jit(jax.grad(total))(parameters)
    for name, parameter in parameters.items():
        step = 1e-2 * jax.random.normal(rng_key, parameter.shape)
        expected = total(parameters | {name: parameter + step})
        expected -= total(parameters | {name: parameter - step})
        found = 2 * jnp.sum(gradients[name] * step)
        np.testing.assert_allclose(found, expected, rtol=0.05, atol=2e-4, err_msg=name)


def check_normalized(case: DistributionCase, rng_key: jax.Array) -> None:
    """Probabilities of all values sum to one."""
    fn = case.build()
    total = jnp.exp(fn.log_prob(case.enumerate(fn))).sum(axis=0)
    np.testing.assert_allclose(total, np.ones(fn.batch_shape), rtol=1e-4)


def check_mean(case: DistributionCase, rng_key: jax.Array) -> None:
    """Mean and variance are those of the enumerated values, or raise ``NotImplementedError``."""
    fn = case.build()
    mean, variance = _moments(case, fn)
    for name, exact in (("mean", mean), ("variance", variance)):
        try:
            found = getattr(fn, name)
        except NotImplementedError:
            continue
        np.testing.assert_allclose(found, exact, rtol=1e-4, atol=1e-5, err_msg=name)


def check_goodness_of_fit(case: DistributionCase, rng_key: jax.Array) -> None:
    """Counts of the values in many draws pass a chi-square test against ``log_prob``."""
    fn = case.build()
    table = np.asarray(case.enumerate(fn))
    draws = np.asarray(fn.sample(rng_key, (NUM_DRAWS,)))
    log_probs = np.asarray(fn.log_prob(jnp.asarray(table)), dtype=np.float64)
    table = table.reshape(len(table), -1)
    number = {tuple(value): i for i, value in enumerate(table.tolist())}
    for index in np.ndindex(fn.batch_shape):
        values = draws[(slice(None), *index)].reshape(NUM_DRAWS, -1).tolist()
        counts = np.bincount([number[tuple(value)] for value in values], minlength=len(table))
        probs = np.exp(log_probs[(slice(None), *index)])
        p_value = chi_square_p_value(counts, probs / probs.sum())
        assert p_value > SMALLEST_P_VALUE, f"chi-square p-value {p_value} at batch index {index}"


def check_parameter_validation(case: DistributionCase, rng_key: jax.Array) -> None:
    """A NaN parameter raises where it is known, also while tracing, unless validation is off."""
    for name, value in case.parameters.items():
        bad = np.array(value, dtype=float)
        bad.flat[0] = np.nan
        make = partial(case.make, **(case.parameters | {name: bad}))
        make(validate_args=False)
        for known in (bad, jnp.asarray(bad)):
            make = partial(case.make, **(case.parameters | {name: known}), validate_args=True)
            _assert_raises(ValueError, name, make)
            _assert_raises(ValueError, name, lambda make=make: jax.jit(lambda: make().log_prob)())


def check_value_validation(case: DistributionCase, rng_key: jax.Array) -> None:
    """A value outside the support warns and has log-probability -inf, also while tracing."""
    fn = case.build(validate_args=True)
    value = np.full(fn.shape(), case.outside)
    log_prob = partial(fn.log_prob, value)
    for function in (log_prob, jax.jit(log_prob)):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = function()
        assert any("Out-of-support" in str(warning.message) for warning in caught)
        assert np.isneginf(found).all()


def check_expand(case: DistributionCase, rng_key: jax.Array) -> None:
    """``expand`` keeps log-probabilities, and draws stay with their own batch element."""
    fn = case.build()
    expanded = fn.expand((2, *fn.batch_shape))
    value = expanded.sample(rng_key, (3,))
    assert value.shape == (3, 2, *fn.batch_shape, *fn.event_shape)
    assert expanded.expand((4, 2, *fn.batch_shape)).batch_shape == (4, 2, *fn.batch_shape)
    np.testing.assert_allclose(expanded.log_prob(value), fn.log_prob(value), rtol=1e-5)
    _check_interstitial_expand(case, fn, rng_key)


def _check_interstitial_expand(case, fn, rng_key) -> None:
    """A batch axis of size 1 between others is expanded without shuffling the draws."""
    parameters = {name: np.asarray(value) for name, value in fn.get_args().items()}
    column = {name: np.stack([value, 3 * value])[:, None] for name, value in parameters.items()}
    narrow = case.make(**column)
    wide = narrow.expand((2, 4, *fn.batch_shape))
    num_draws = NUM_DRAWS // 4
    draws = np.asarray(wide.sample(rng_key, (num_draws,)), dtype=np.float64)
    mean, variance = _moments(case, narrow)
    error = np.abs(draws.mean(axis=0) - mean)
    assert (error <= NUM_STANDARD_ERRORS * np.sqrt(variance / num_draws) + 1e-6).all()


def check_mask_and_to_event(case: DistributionCase, rng_key: jax.Array) -> None:
    """Masked elements have log-probability 0; ``to_event`` sums the rightmost batch axes."""
    fn = case.build()
    value = fn.sample(rng_key)
    mask = np.arange(np.prod(fn.batch_shape, dtype=int)).reshape(fn.batch_shape) % 2 == 0
    expected = np.where(mask, fn.log_prob(value), 0.0)
    np.testing.assert_allclose(fn.mask(mask).log_prob(value), expected, rtol=1e-5)
    assert not fn.mask(False).log_prob(value).any()
    joint = fn.expand_by([2]).to_event()
    values = jnp.stack([value, value])
    assert joint.event_shape == (2, *fn.shape()) and joint.support.event_dim == joint.event_dim
    np.testing.assert_allclose(joint.log_prob(values), 2 * fn.log_prob(value).sum(), rtol=1e-4)


def check_pytree(case: DistributionCase, rng_key: jax.Array) -> None:
    """A distribution passes through jit, map, scan and cond, beside an equal one built apart."""
    fn, rebuilt = case.build(), _rebuild(case)
    returned = jax.jit(case.build)()
    structure = jax.tree.structure(fn)
    for other in (rebuilt, returned):
        assert jax.tree.structure(other) == structure
        assert hash(jax.tree.structure(other)) == hash(structure)
    value = fn.sample(rng_key)
    np.testing.assert_array_equal(returned.sample(rng_key), value)
    np.testing.assert_allclose(returned.log_prob(value), fn.log_prob(value), rtol=1e-5)
    jax.lax.map(lambda _: case.build(), np.ones(2))
    start = jax.tree.map(jnp.asarray, fn)
    jax.lax.scan(lambda carry, _: (carry, carry.log_prob(value)), start, length=2)
    chosen = jax.lax.cond(True, lambda: start, lambda: jax.tree.map(jnp.asarray, rebuilt))
    assert chosen.batch_shape == fn.batch_shape and chosen.event_shape == fn.event_shape
    for wrap in (lambda fn: fn.expand_by([2]), lambda fn: fn.mask(False)):
        assert jax.jit(lambda wrap=wrap: wrap(case.build()))().event_shape == fn.event_shape


def check_copies(case: DistributionCase, rng_key: jax.Array) -> None:
    """Pickled and deep copies draw the same values with the same log-probability."""
    fn = case.build()
    value = fn.sample(rng_key)
    for other in (pickle.loads(pickle.dumps(fn)), copy.deepcopy(fn)):
        np.testing.assert_array_equal(other.sample(rng_key), value)
        np.testing.assert_array_equal(other.log_prob(value), fn.log_prob(value))


def check_vmap(case: DistributionCase, rng_key: jax.Array) -> None:
    """Distributions may be built, drawn from and read under vmap over any one or all parameters."""
    fn = case.build()
    value = fn.sample(rng_key)
    parameters = {name: jnp.asarray(value) for name, value in fn.get_args().items()}
    log_prob = jax.jit(lambda parameters: case.make(**parameters).log_prob(value))
    for mapped in (set(parameters), *({name} for name in parameters if len(parameters) > 1)):
        axes = {name: 0 if name in mapped else None for name in parameters}
        scaled = {n: jnp.stack([p, 3 * p]) if n in mapped else p for n, p in parameters.items()}
        fn_axes = vmap_over(fn, **{name: 0 for name in mapped})
        batch = jax.vmap(lambda p: case.make(**p), in_axes=(axes,), out_axes=fn_axes)(scaled)
        expected = [
            log_prob({n: f * p if n in mapped else p for n, p in parameters.items()})
            for f in (1, 3)
        ]
        found = jax.vmap(lambda fn: fn.log_prob(value), in_axes=(fn_axes,))(batch)
        np.testing.assert_allclose(found, np.stack(expected), rtol=1e-4, atol=1e-4)
        promoted = promote_batch_shape(batch)
        assert promoted.batch_shape == (2, *fn.batch_shape)
        np.testing.assert_allclose(promoted.log_prob(value), found, rtol=1e-4, atol=1e-4)
        assert promoted.sample(rng_key).shape == (2, *fn.shape())


def check_random_keys(case: DistributionCase, rng_key: jax.Array) -> None:
    """Any kind of random key will do; equal keys give equal draws."""
    fn = case.build()
    raw = (
        jax.random.key_data(rng_key)
        if jnp.issubdtype(rng_key.dtype, jax.dtypes.prng_key)
        else rng_key
    )
    for key in (raw, jax.random.key(0, impl="rbg")):
        value = fn.sample(key, (2,))
        assert value.shape == fn.shape((2,)) and fn.support(value).all()
        np.testing.assert_array_equal(value, fn.sample(key, (2,)))


def check_in_model(case: DistributionCase, rng_key: jax.Array) -> None:
    """A site in a plate is predicted, scored, and found to depend on what it depends on."""
    fn = case.build()

    def model(value=None):
        scale = numpyro.sample("scale", dist.LogNormal(0.0, 0.1))
        scaled = {name: scale * parameter for name, parameter in fn.get_args().items()}
        with numpyro.plate("items", 3):
            numpyro.sample("value", case.make(**scaled).to_event(), obs=value)

    drawn = Predictive(model, num_samples=2)(rng_key)
    assert drawn["value"].shape == (2, 3, *fn.shape())
    value = drawn["value"][0]
    found = log_likelihood(model, {"scale": jnp.ones(2)}, value=value)["value"]
    expected = fn.log_prob(value).reshape(3, -1).sum(axis=1)
    np.testing.assert_allclose(found, np.stack([expected, expected]), rtol=1e-4, atol=1e-4)
    dependencies = get_dependencies(model, (), {"value": value})["prior_dependencies"]
    assert dependencies["value"] == {"value": set(), "scale": set()}


DISTRIBUTION_CHECKS: dict[str, Callable[[DistributionCase, jax.Array], None]] = {
    "declarations": check_declarations,
    "shapes": check_shapes,
    "infer_shapes": check_infer_shapes,
    "jit": check_jit,
    "gradient": check_gradient,
    "normalized": check_normalized,
    "mean": check_mean,
    "goodness_of_fit": check_goodness_of_fit,
    "parameter_validation": check_parameter_validation,
    "value_validation": check_value_validation,
    "expand": check_expand,
    "mask_and_to_event": check_mask_and_to_event,
    "pytree": check_pytree,
    "copies": check_copies,
    "vmap": check_vmap,
    "random_keys": check_random_keys,
    "in_model": check_in_model,
}
"""Every check by name; each takes a case and a random key."""


def _rebuild(case: DistributionCase) -> dist.Distribution:
    """The distribution from arguments that are equal and not identical, as another run makes it."""
    return pickle.loads(pickle.dumps(case.make))(**case.parameters)


def _moments(case: DistributionCase, fn: dist.Distribution) -> tuple[np.ndarray, np.ndarray]:
    """Exact mean and variance of every coordinate."""
    table = np.asarray(case.enumerate(fn), dtype=np.float64)
    probs = np.exp(np.asarray(fn.log_prob(case.enumerate(fn)), dtype=np.float64))
    probs = probs.reshape(probs.shape + (1,) * fn.event_dim)
    mean = (probs * table).sum(axis=0)
    return mean, (probs * table**2).sum(axis=0) - mean**2


def _assert_raises(error: type[Exception], message: str, function: Callable) -> None:
    try:
        function()
    except error as raised:
        assert message in str(raised), f"expected {message!r} in {raised}"
    else:
        raise AssertionError(f"expected {error.__name__}")
