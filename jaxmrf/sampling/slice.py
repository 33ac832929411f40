r"""Slice sampling on the line: a step that leaves any density unchanged, whatever the width.

.. math:: y \sim U(0, f(x)), \qquad x' \sim U\{x' : f(x') > y\} \cap I

The interval :math:`I` grows from one of the stated width around x in steps of that width, at most
m widths in all, divided at random between the two sides; candidates outside the slice shrink it
towards x. Reference: Neal, "Slice sampling", Annals of Statistics 31 (2003), Figures 3 and 5.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxmrf.types import Array, ArrayLike, Bool, Float, Int, Key

__all__ = ["SliceInfo", "step"]

Scalar = Float[ArrayLike, ""] | float | int


class SliceInfo(NamedTuple):
    """What one step did.

    Attributes:
        is_ok: Whether a point of the slice was found. If not, the value stays where it is, which
            leaves the density unchanged too; so does a log density that is NaN or +inf where it is
            evaluated, or not finite at the value itself.
        num_evaluations: Evaluations of the log density.
        interval: Length of the interval before it shrank; where it is always ``max_steps`` widths,
            or the evaluations are many, another width serves better.
    """

    is_ok: Bool[Array, ""]
    num_evaluations: Int[Array, ""]
    interval: Float[Array, ""]


def step(
    key: Key,
    value: Float[ArrayLike, ""],
    log_density: Callable[[Array], Array],
    *,
    width: Scalar,
    max_steps: int = 32,
    max_shrinks: int = 100,
    lower: Scalar = -np.inf,
    upper: Scalar = np.inf,
) -> tuple[Float[Array, ""], SliceInfo]:
    """The next value of a chain that leaves the density unchanged.

    Args:
        key: Random key.
        value: Where the chain is, inside the support.
        log_density: Up to a constant, from a scalar to a scalar, -inf allowed.
        width: Length of the first interval, positive, chosen without regard to ``value``: about
            the spread of the density.
        max_steps: Longest interval, in widths (m in the paper); 1 keeps the first interval.
        max_shrinks: Candidates before the value is kept as it is.
        lower: Lower end of the support, -inf included.
        upper: Upper end of the support, inf included.

    Returns:
        The value and what the step did.

    Raises:
        ValueError: If a count is below 1, ``log_density`` is no scalar, or where they are known
            beforehand: the width is not positive and finite or the support is empty.

    >>> normal = lambda x: -x**2 / 2
    >>> value, info = step(jax.random.key(0), jnp.array(0.3), normal, width=2.0)
    >>> bool(info.is_ok), bool(value != 0.3)
    (True, True)
    """
    value = jnp.asarray(value)
    _check(log_density, value, width, max_steps, max_shrinks, lower, upper)
    width, lower, upper = (jnp.asarray(each, value.dtype) for each in (width, lower, upper))
    key_level, key_place, key_split, key_shrink = jax.random.split(key, 4)
    at_value = log_density(value)
    is_fair = jnp.isfinite(at_value) & (value >= lower) & (value <= upper) & (width > 0)
    level = _level(key_level, at_value)

    left = value - width * jax.random.uniform(key_place, (), value.dtype)
    ends = jnp.stack([left, left + width])
    ends, is_fair, num_evaluations = _step_out(
        log_density, level, ends, _share(key_split, max_steps), width, lower, upper, is_fair
    )
    ends = jnp.clip(ends, lower, upper)

    def is_waiting(carry):
        _, _, is_found, is_fair, num_shrinks = carry
        return is_fair & ~is_found & (num_shrinks < max_shrinks)

    def shrink(carry):
        ends, _, _, is_fair, num_shrinks = carry
        key = jax.random.fold_in(key_shrink, num_shrinks)
        tiny = jnp.finfo(value.dtype).tiny  # not at an end, where the density may be NaN
        uniform = jax.random.uniform(key, (), value.dtype, minval=tiny)
        candidate = jnp.clip(ends[0] + uniform * (ends[1] - ends[0]), *ends)
        height = log_density(candidate)
        ends = _cut(ends, value, candidate)
        return ends, candidate, height >= level, is_fair & ~_is_wrong(height), num_shrinks + 1

    start = ends, value, jnp.asarray(False), is_fair, jnp.zeros((), jnp.int32)
    _, candidate, is_found, is_fair, num_shrinks = jax.lax.while_loop(is_waiting, shrink, start)
    is_ok = is_found & is_fair
    info = SliceInfo(is_ok, 1 + num_evaluations + num_shrinks, ends[1] - ends[0])
    return jnp.where(is_ok, candidate, value), info


def _level(key: Key, at_value: Float[Array, ""]) -> Float[Array, ""]:
    """Log of a uniform height under the density at the value."""
    return at_value - jax.random.exponential(key, (), at_value.dtype)


def _share(key: Key, max_steps: int) -> Int[Array, " 2"]:
    """Steps allowed to the left and to the right; at random, or they would favour a side."""
    to_left = jax.random.randint(key, (), 0, max_steps)
    return jnp.stack([to_left, max_steps - 1 - to_left])


def _step_out(
    log_density, level, ends, num_left, width, lower, upper, is_fair
) -> tuple[Float[Array, " 2"], Bool[Array, ""], Int[Array, ""]]:
    """Both ends moved outwards until outside the slice or the support, or out of steps."""
    outwards = jnp.stack([-width, width])

    def is_waiting(carry):
        _, _, is_open, is_fair, _ = carry
        return is_fair & is_open.any()

    def expand(carry):
        ends, num_left, is_open, is_fair, num_evaluations = carry
        is_open &= (ends > lower) & (ends < upper)
        heights = jax.vmap(log_density)(jnp.clip(ends, lower, upper))
        is_moved = is_open & (heights >= level)
        num_left -= is_moved
        is_fair &= ~(is_open & _is_wrong(heights)).any()
        num_evaluations += is_open.sum(dtype=jnp.int32)
        ends = ends + jnp.where(is_moved, outwards, 0)
        return ends, num_left, is_moved & (num_left > 0), is_fair, num_evaluations

    start = ends, num_left, num_left > 0, is_fair, jnp.zeros((), jnp.int32)
    ends, _, _, is_fair, num_evaluations = jax.lax.while_loop(is_waiting, expand, start)
    return ends, is_fair, num_evaluations


def _cut(
    ends: Float[Array, " 2"], value: Float[Array, ""], candidate: Float[Array, ""]
) -> Float[Array, " 2"]:
    """The interval cut off at a candidate, on its side of the value."""
    is_left = candidate < value
    return jnp.where(jnp.stack([is_left, ~is_left]), candidate, ends)


def _is_wrong(height: Array) -> Array:
    """Whether a value is none that a log density can have."""
    return jnp.isnan(height) | (height == jnp.inf)


def _check(log_density, value, width, max_steps, max_shrinks, lower, upper) -> None:
    """What can be known to be wrong before the first evaluation."""
    for name, count in (("max_steps", max_steps), ("max_shrinks", max_shrinks)):
        if count < 1:
            raise ValueError(f"step: expected {name} >= 1, got {count}; raise it")
    shape = jax.eval_shape(log_density, jax.ShapeDtypeStruct((), value.dtype)).shape
    if shape != ():
        raise ValueError(
            f"step: expected a log_density from scalar to scalar, got the shape {shape}; "
            "give one density per call and vmap step"
        )
    if not isinstance(width, jax.core.Tracer) and not 0 < float(width) < np.inf:
        raise ValueError(
            f"step: expected a positive finite width, got {float(width)}; "
            "pass the spread of the density"
        )
    ends = [end for end in (lower, upper) if not isinstance(end, jax.core.Tracer)]
    if len(ends) == 2 and not float(lower) < float(upper):
        raise ValueError(
            f"step: expected lower < upper, got {float(lower)} and {float(upper)}; "
            "exchange or mend them"
        )
