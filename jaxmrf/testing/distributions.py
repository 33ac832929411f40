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
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.distributions.batch_util import promote_batch_shape, vmap_over
from numpyro.infer import Predictive
from numpyro.infer.inspect import get_dependencies
from numpyro.infer.util import log_likelihood

from jaxmrf.testing.distribution_case import DistributionCase, assert_equal, assert_raises
from jaxmrf.testing.statistics import chi_square_p_value

__all__ = ["DISTRIBUTION_CHECKS", "DistributionCase", "check_distribution"]

NUM_DRAWS = 20_000
"""Draws behind each statistical check."""
SMALLEST_P_VALUE = 1e-4
"""A goodness-of-fit test below this fails."""
NUM_STANDARD_ERRORS = 5.0
"""A sample mean farther than this from the exact one fails."""


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
    assert_equal(set(fn.get_args()), set(case.parameters), "argument names")
    assert_equal(set(fn.arg_constraints), set(case.parameters), "constrained arguments")
    for constraint in fn.arg_constraints.values():
        assert_equal(constraint.is_discrete, False, "is_discrete of a parameter")
        assert_equal(constraint.event_dim >= 0, True, "an event_dim of each parameter:")
    assert_equal(fn.support.is_discrete, True, "support.is_discrete")
    assert_equal(fn.support.event_dim, fn.event_dim, "support.event_dim")
    # enumerate_support is read as the values of one coordinate
    if fn.event_dim:
        assert_equal(fn.has_enumerate_support, False, "has_enumerate_support")
    assert_equal(type(fn).__name__ in repr(fn), True, "the class in repr:")
    for wrapped in (fn, fn.mask(False), fn.expand_by([2]).to_event(1)):
        assert_equal(wrapped.has_rsample, False, "has_rsample")
        assert_raises(NotImplementedError, "", lambda fn=wrapped: fn.rsample(rng_key))


def check_shapes(case: DistributionCase, rng_key: jax.Array) -> None:
    """Draws are integers of shape sample + batch + event, inside the support."""
    fn = case.build()
    for sample_shape in ((), (2,), (2, 3)):
        value = jax.eval_shape(partial(fn.sample, sample_shape=sample_shape), rng_key)
        assert_equal(jnp.issubdtype(value.dtype, jnp.integer), True, "integer draws:")
        shape = (*sample_shape, *fn.batch_shape, *fn.event_shape)
        assert_equal(value.shape, shape, "shape of draws")
        assert_equal(fn.shape(sample_shape), shape, "fn.shape(...)")
        log_prob = jax.eval_shape(fn.log_prob, value)
        assert_equal(log_prob.shape, sample_shape + fn.batch_shape, "shape of log_prob")
    value = fn.sample(rng_key, (2,))
    assert_equal(isinstance(value, jax.Array), True, "draws in a JAX array:")
    assert_equal(bool(np.all(fn.support(np.asarray(value)))), True, "draws inside the support:")
    assert_equal(fn.log_prob(value).shape, (2, *fn.batch_shape), "shape of log_prob")


def check_infer_shapes(case: DistributionCase, rng_key: jax.Array) -> None:
    """``infer_shapes`` agrees with the distribution that is built."""
    fn = case.build()
    shapes = {name: np.shape(value) for name, value in case.parameters.items()}
    if isinstance(case.make, partial):
        found = case.make.func.infer_shapes(*case.make.args, **case.make.keywords, **shapes)
    else:
        found = case.make.infer_shapes(**shapes)
    assert_equal(found, (fn.batch_shape, fn.event_shape), "inferred shapes")


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
    log_prob(case.rebuild(), value)
    assert_equal(num_traces, 1, "number of traces for two equal distributions")
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
    mean, variance = case.moments(fn)
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
    assert_equal(len(number), len(table), "number of different values")
    for index in np.ndindex(fn.batch_shape):
        values = draws[(slice(None), *index)].reshape(NUM_DRAWS, -1).tolist()
        unknown = {tuple(value) for value in values} - set(number)
        assert_equal(unknown, set(), "draws outside the enumerated values:")
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
            assert_raises(ValueError, name, make)
            assert_raises(ValueError, name, jax.jit(lambda make=make: (make(), 0)[1]))


def check_value_validation(case: DistributionCase, rng_key: jax.Array) -> None:
    """A value outside the support warns and has log-probability -inf, also while tracing."""
    fn = case.build(validate_args=True)
    value = np.full(fn.shape(), case.outside)
    log_prob = partial(fn.log_prob, value)
    for function in (log_prob, jax.jit(log_prob)):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = function()
        is_warned = any("Out-of-support" in str(warning.message) for warning in caught)
        assert_equal(is_warned, True, "a warning of values out of support:")
        assert_equal(bool(np.isneginf(found).all()), True, "log_prob -inf out of support:")


def check_expand(case: DistributionCase, rng_key: jax.Array) -> None:
    """``expand`` keeps log-probabilities, and draws stay with their own batch element."""
    fn = case.build()
    expanded = fn.expand((2, *fn.batch_shape))
    value = expanded.sample(rng_key)
    assert_equal(value.shape, (2, *fn.shape()), "shape of expanded draws")
    twice = expanded.expand((4, 2, *fn.batch_shape))
    assert_equal(twice.batch_shape, (4, 2, *fn.batch_shape), "batch shape expanded twice")
    np.testing.assert_allclose(expanded.log_prob(value), fn.log_prob(value), rtol=1e-5)
    _check_interstitial_expand(case, fn, rng_key)


def _check_interstitial_expand(case, fn, rng_key) -> None:
    """A batch axis of size 1 between others is expanded without shuffling the draws."""
    parameters = {name: np.asarray(value) for name, value in fn.get_args().items()}
    column = {name: np.stack([value, 3 * value])[:, None] for name, value in parameters.items()}
    narrow = case.make(**column)
    wide = narrow.expand((2, 4, *fn.batch_shape))
    num_draws = NUM_DRAWS // 10
    draws = np.asarray(wide.sample(rng_key, (num_draws,)), dtype=np.float64)
    mean, variance = case.moments(narrow)
    error = np.abs(draws.mean(axis=0) - mean)
    is_close = error <= NUM_STANDARD_ERRORS * np.sqrt(variance / num_draws) + 1e-6
    assert_equal(bool(is_close.all()), True, "means of an interstitial expand near exact ones:")


def check_mask_and_to_event(case: DistributionCase, rng_key: jax.Array) -> None:
    """Masked elements have log-probability 0; ``to_event`` sums the rightmost batch axes."""
    fn = case.build()
    value = fn.sample(rng_key, (2,))
    mask = np.arange(np.prod(fn.batch_shape, dtype=int)).reshape(fn.batch_shape) % 2 == 0
    expected = np.where(mask, fn.log_prob(value), 0.0)
    np.testing.assert_allclose(fn.mask(mask).log_prob(value), expected, rtol=1e-5)
    np.testing.assert_array_equal(fn.mask(False).log_prob(value), np.zeros_like(expected))
    joint = fn.expand_by([2]).to_event()
    assert_equal(joint.event_shape, (2, *fn.shape()), "event shape")
    assert_equal(joint.support.event_dim, joint.event_dim, "support.event_dim of to_event")
    np.testing.assert_allclose(joint.log_prob(value), fn.log_prob(value).sum(), rtol=1e-4)


def check_pytree(case: DistributionCase, rng_key: jax.Array) -> None:
    """A distribution passes through jit, map, scan and cond, beside an equal one built apart."""
    fn, rebuilt = case.build(), case.rebuild()
    returned = jax.jit(case.build)()
    structure = jax.tree.structure(fn)
    for other in (rebuilt, returned):
        found = jax.tree.structure(other)
        assert_equal(found, structure, "tree structure")
        assert_equal(hash(found), hash(structure), "hash of the tree structure")
    value = fn.sample(rng_key)
    np.testing.assert_array_equal(returned.sample(rng_key), value)
    np.testing.assert_allclose(returned.log_prob(value), fn.log_prob(value), rtol=1e-5)
    jax.lax.map(lambda _: case.build(), np.ones(2))
    start = jax.tree.map(jnp.asarray, fn)
    jax.lax.scan(lambda carry, _: (carry, carry.log_prob(value)), start, length=2)
    chosen = jax.lax.cond(True, lambda: start, lambda: jax.tree.map(jnp.asarray, rebuilt))
    assert_equal(chosen.shape(), fn.shape(), "shape after cond")
    for wrap in (lambda fn: fn.expand_by([2]), lambda fn: fn.mask(False)):
        returned = jax.jit(lambda wrap=wrap: wrap(case.build()))()
        assert_equal(returned.event_shape, fn.event_shape, "event shape after jit")


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
    for mapped in (set(parameters), {next(iter(parameters))}):
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
        assert_equal(promoted.batch_shape, (2, *fn.batch_shape), "promoted batch shape")
        np.testing.assert_allclose(promoted.log_prob(value), found, rtol=1e-4, atol=1e-4)
        drawn = jax.eval_shape(promoted.sample, rng_key)
        assert_equal(drawn.shape, (2, *fn.shape()), "shape of draws after promotion")


def check_random_keys(case: DistributionCase, rng_key: jax.Array) -> None:
    """Any kind of random key will do; equal keys give equal draws."""
    fn = case.build()
    raw = jax.random.PRNGKey(0)
    assert_equal(jax.eval_shape(fn.sample, raw).shape, fn.shape(), "shape from a raw key")
    key = jax.random.key(0, impl="rbg")
    value = np.asarray(fn.sample(key, (2,)))
    assert_equal(value.shape, fn.shape((2,)), "shape from an rbg key")
    assert_equal(bool(np.all(fn.support(value))), True, "draws inside the support:")
    np.testing.assert_array_equal(value, fn.sample(key, (2,)))


def check_in_model(case: DistributionCase, rng_key: jax.Array) -> None:
    """A site in a plate is predicted, scored, and found to depend on what it depends on."""
    fn = case.build()

    def model(value=None):
        scale = numpyro.sample("scale", dist.LogNormal(0.0, 0.1))
        scaled = {name: scale * parameter for name, parameter in fn.get_args().items()}
        with numpyro.plate("items", 2):
            numpyro.sample("value", case.make(**scaled).to_event(), obs=value)

    drawn = jax.eval_shape(Predictive(model, num_samples=3), rng_key)
    assert_equal(drawn["value"].shape, (3, 2, *fn.shape()), "predicted shape")
    value = fn.sample(rng_key, (2,))
    found = log_likelihood(model, {"scale": jnp.ones(3)}, value=value)["value"]
    expected = fn.log_prob(value).reshape(2, -1).sum(axis=1)
    np.testing.assert_allclose(found, np.stack([expected] * 3), rtol=1e-4, atol=1e-4)
    dependencies = get_dependencies(model, (), {"value": value})["prior_dependencies"]
    assert_equal(dependencies["value"], {"value": set(), "scale": set()}, "dependencies")


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
