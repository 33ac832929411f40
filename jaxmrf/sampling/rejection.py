r"""Adaptive rejection sampling: independent exact draws of log-concave densities on the line.

.. math:: \max(\text{chords}) \;\le\; \log f(x) \;\le\;
          u(x) = \min_i \big(\log f(x_i) + (x - x_i)\,(\log f)'(x_i)\big)

A candidate from the piecewise exponential density :math:`e^{u}`, tails included, is kept with
probability :math:`f(x) / e^{u(x)}`; a refused one adds its tangent to the hull. Any tangent bounds
a concave function everywhere, so rounding of the knots between tangents costs no exactness.
Reference: Gilks & Wild, "Adaptive rejection sampling for Gibbs sampling", Applied Statistics 41
(1992).
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxmrf.types import Array, ArrayLike, Bool, Float, Int, Key

__all__ = ["RejectionDraw", "draw"]

Scalar = Float[ArrayLike, ""] | float | int


class RejectionDraw(NamedTuple):
    """One draw, with the honest word on it.

    Attributes:
        value: The draw, exact where ``is_ok``, NaN elsewhere.
        is_ok: Whether a candidate was accepted and nothing below went wrong. Where only the budget
            ran out, keeping the draws that are fine favours regions where the hull is tight: raise
            ``max_proposals`` or ``num_points``, or give better start points.
        is_bracketed: Whether the start points increase, lie in the support, and lean inwards on
            every side where it is infinite: positive slope at the first if ``lower`` is -inf,
            negative slope at the last if ``upper`` is inf.
        is_log_concave: Whether nothing seen contradicts it: no value above a tangent, no hole, no
            NaN, no +inf. What is not seen is not checked.
        num_evaluations: Evaluations of the log density, start points included.
    """

    value: Float[Array, ""]
    is_ok: Bool[Array, ""]
    is_bracketed: Bool[Array, ""]
    is_log_concave: Bool[Array, ""]
    num_evaluations: Int[Array, ""]


class _Hull(NamedTuple):
    """Tangents in increasing order; unused slots repeat the last one, which adds no mass."""

    points: Float[Array, " hull"]
    heights: Float[Array, " hull"]
    slopes: Float[Array, " hull"]
    size: Int[Array, ""]


class _Segments(NamedTuple):
    """The interval on which each tangent is the hull, and its log mass."""

    left: Float[Array, " hull"]
    right: Float[Array, " hull"]
    log_masses: Float[Array, " hull"]


def draw(
    key: Key,
    log_density: Callable[[Array], Array],
    points: Float[ArrayLike, " points"],
    *,
    derivative: Callable[[Array], Array] | None = None,
    lower: Scalar = -np.inf,
    upper: Scalar = np.inf,
    num_points: int = 16,
    max_proposals: int = 100,
    tolerance: float = 1e-3,
) -> RejectionDraw:
    """One exact draw of a log-concave density.

    Under ``vmap`` all lanes share one loop, which ends when the last of them has its draw.

    Args:
        key: Random key.
        log_density: Concave, up to a constant, from a scalar to a scalar: finite inside the
            support, or -inf towards its ends; never evaluated at a finite end itself.
        points: Start points in increasing order, one or more, which bracket the mode where the
            support is infinite. Their dtype is that of the draw.
        derivative: Of ``log_density``; by forward differentiation if not given.
        lower: Lower end of the support, -inf included.
        upper: Upper end of the support, inf included.
        num_points: Tangents the hull can hold; once full it is kept as it is, still exact.
        max_proposals: Candidates before giving up.
        tolerance: Excess of the density over a tangent, in nats, that is put down to rounding, on
            top of 16 units in the last place of the numbers compared. A smaller excess than this
            is a relative error of at most this size in the density drawn from.

    Returns:
        The draw and whether it may be used.

    Raises:
        ValueError: If the hull cannot hold the start points, or where it can be known beforehand:
            the support is empty, the points do not increase or are outside it, ``log_density`` is
            no scalar, or a number is not positive.

    >>> half_normal = lambda x: -x**2 / 2
    >>> one = draw(jax.random.key(0), half_normal, jnp.array([0.5, 2.0]), lower=0.0)
    >>> bool(one.is_ok), bool(one.value > 0)
    (True, True)
    """
    points = jnp.asarray(points)
    _check(log_density, points, lower, upper, num_points, max_proposals, tolerance)
    lower, upper = jnp.asarray(lower, points.dtype), jnp.asarray(upper, points.dtype)
    smallest, largest = _inside(lower, upper)

    def evaluate(x: Array) -> tuple[Array, Array]:
        if derivative is None:
            height, slope = jax.jvp(log_density, (x,), (jnp.ones_like(x),))
        else:
            height, slope = log_density(x), derivative(x)
        return jnp.asarray(height, x.dtype), jnp.asarray(slope, x.dtype)

    heights, slopes = jax.vmap(evaluate)(points)
    padded = (
        jnp.pad(row, (0, num_points - len(points)), mode="edge")
        for row in (points, heights, slopes)
    )
    hull = _Hull(*padded, size=jnp.asarray(len(points), jnp.int32))
    is_bracketed = _is_bracketed(points, slopes, lower, upper)
    is_concave = (jnp.isfinite(heights) & jnp.isfinite(slopes)).all() & _is_below(
        heights, heights[:, None], slopes[:, None], points - points[:, None], tolerance
    ).all()

    def is_waiting(carry):
        _, _, is_accepted, is_concave, _, num_proposals = carry
        return is_bracketed & is_concave & ~is_accepted & (num_proposals < max_proposals)

    def propose(carry):
        hull, _, _, is_concave, num_evaluations, num_proposals = carry
        uniforms = jax.random.uniform(jax.random.fold_in(key, num_proposals), (3,), points.dtype)
        x, segment = _candidate(uniforms, hull, _segments(hull, lower, upper))
        x = jnp.clip(x, smallest, largest)
        log_uniform = jnp.log1p(-uniforms[2])
        is_squeezed = log_uniform <= _squeeze(hull, segment, x)
        skip = lambda x: (hull.heights[segment], hull.slopes[segment])  # noqa: E731
        height, slope = jax.lax.cond(is_squeezed, skip, evaluate, x)
        offset = hull.slopes[segment] * (x - hull.points[segment])
        is_accepted = is_squeezed | (log_uniform <= height - hull.heights[segment] - offset)
        is_concave &= is_squeezed | _agrees(hull, x, height, slope, tolerance)
        hull = _insert(hull, x, height, slope)
        return hull, x, is_accepted, is_concave, num_evaluations + ~is_squeezed, num_proposals + 1

    counts = hull.size, jnp.zeros((), jnp.int32)
    start = hull, jnp.full_like(lower, jnp.nan), jnp.asarray(False), is_concave, *counts
    carry = jax.lax.while_loop(is_waiting, propose, start)
    _, x, is_accepted, is_concave, num_evaluations, _ = carry
    is_ok = is_accepted & is_concave
    value = jnp.where(is_ok, x, jnp.nan)
    return RejectionDraw(value, is_ok, is_bracketed, is_concave, num_evaluations)


def _segments(hull: _Hull, lower: Float[Array, ""], upper: Float[Array, ""]) -> _Segments:
    """Where each tangent is the lowest, and the log of the integral of its exponential there."""
    points, heights, slopes, _ = hull
    gap = points[1:] - points[:-1]
    turn = slopes[:-1] - slopes[1:]
    # where the tangents are parallel but for rounding, any knot between the points will do
    knot = (heights[1:] - heights[:-1] - slopes[1:] * gap) / jnp.where(turn > 0, turn, 1)
    knots = points[:-1] + jnp.clip(jnp.where(turn > 0, knot, gap / 2), 0, gap)
    left = jnp.concatenate([lower[None], knots])
    right = jnp.concatenate([knots, upper[None]])
    top = heights + slopes * (jnp.where(slopes > 0, right, left) - points)
    return _Segments(left, right, top + jnp.log(_length(jnp.abs(slopes), right - left)))


def _length(rate: Float[Array, "*rest"], width: Float[Array, "*rest"]) -> Float[Array, "*rest"]:
    """Integral of exp(-rate x) over (0, width)."""
    decay = rate * width
    is_flat = decay < 1e-10
    return jnp.where(is_flat, width, -jnp.expm1(-decay) / jnp.where(is_flat, 1, rate))


def _candidate(
    uniforms: Float[Array, " 3"], hull: _Hull, segments: _Segments
) -> tuple[Float[Array, ""], Int[Array, ""]]:
    """A draw of the exponential of the hull, and the tangent it lies under."""
    sums = jnp.cumsum(jnp.exp(segments.log_masses - segments.log_masses.max()))
    segment = (sums <= uniforms[0] * sums[-1]).sum()
    segment = jnp.minimum(segment, len(sums) - 1)
    left, right, slope = segments.left[segment], segments.right[segment], hull.slopes[segment]
    # distance from the high end: an exponential cut off at the width
    decay = jnp.abs(slope) * (right - left)
    is_flat = decay < 1e-10
    log_survival = jnp.log1p(uniforms[1] * jnp.expm1(-decay))
    flat = uniforms[1] * (right - left)
    distance = jnp.where(is_flat, flat, -log_survival / jnp.where(is_flat, 1, jnp.abs(slope)))
    return jnp.clip(jnp.where(slope > 0, right - distance, left + distance), left, right), segment


def _squeeze(hull: _Hull, segment: Int[Array, ""], x: Float[Array, ""]) -> Float[Array, ""]:
    """Chord below the density minus tangent above it, -inf outside the outermost points."""
    points, heights, slopes, _ = hull
    offset = x - points[segment]
    other = jnp.clip(jnp.where(offset < 0, segment - 1, segment + 1), 0, len(points) - 1)
    gap = points[other] - points[segment]
    chord = (heights[other] - heights[segment]) / jnp.where(gap == 0, 1, gap)
    return jnp.where(gap == 0, -jnp.inf, (chord - slopes[segment]) * offset)


def _is_below(height: Array, base: Array, slope: Array, offset: Array, tolerance: float) -> Array:
    """Whether heights exceed tangents, given at their base, by no more than rounding explains."""
    rise = slope * offset
    sizes = jnp.maximum(jnp.maximum(jnp.abs(height), jnp.abs(base)), jnp.abs(rise))
    slack = tolerance + 16 * jnp.finfo(rise.dtype).eps * sizes
    return ~(height - base - rise > slack)


def _agrees(hull: _Hull, x: Array, height: Array, slope: Array, tolerance: float) -> Array:
    """Whether a new height and slope can belong to the same concave function as the hull."""
    offset = x - hull.points
    is_fair = _is_below(height, hull.heights, hull.slopes, offset, tolerance).all()
    is_fair &= _is_below(hull.heights, height, slope, -offset, tolerance).all()
    is_outside = (x < hull.points[0]) | (x > hull.points[-1])
    is_finite = jnp.isfinite(height) & ~jnp.isnan(slope)
    return jnp.where(height == -jnp.inf, is_outside, is_finite & is_fair)


def _insert(hull: _Hull, x: Array, height: Array, slope: Array) -> _Hull:
    """The hull with one tangent more, if it has room for it and the tangent is of use."""
    slots = jnp.arange(len(hull.points))
    is_new = (hull.points != x).all() & jnp.isfinite(height) & jnp.isfinite(slope)
    at = ((hull.points < x) & (slots < hull.size)).sum()
    is_last = at == hull.size

    def put(row: Array, item: Array) -> Array:
        later = jnp.where((slots == at) | is_last, item, jnp.roll(row, 1))
        return jnp.where(is_added & (slots >= at), later, row)

    is_added = is_new & (hull.size < len(slots))
    rows = zip(hull[:3], (x, height, slope), strict=True)
    return _Hull(*(put(row, item) for row, item in rows), size=hull.size + is_added)


def _inside(lower: Array, upper: Array) -> tuple[Array, Array]:
    """The outermost floats inside the support: a density may be NaN at an end itself."""
    tiny, eps = jnp.finfo(lower.dtype).tiny, jnp.finfo(lower.dtype).eps
    above = lower + jnp.maximum(tiny, eps * jnp.abs(lower))
    below = upper - jnp.maximum(tiny, eps * jnp.abs(upper))
    return (
        jnp.where(jnp.isfinite(lower), above, lower),
        jnp.where(jnp.isfinite(upper), below, upper),
    )


def _is_bracketed(points: Array, slopes: Array, lower: Array, upper: Array) -> Array:
    """Whether the tangents at the start points, in order and inside, leave a finite mass."""
    is_ordered = (points[1:] > points[:-1]).all() & jnp.isfinite(points).all()
    is_within = (lower < upper) & (points[0] >= lower) & (points[-1] <= upper)
    is_left = (lower > -jnp.inf) | (slopes[0] > 0)
    is_right = (upper < jnp.inf) | (slopes[-1] < 0)
    return is_ordered & is_within & is_left & is_right


def _check(log_density, points, lower, upper, num_points, max_proposals, tolerance) -> None:
    """What can be known to be wrong before the first evaluation."""
    if len(points) < 1:
        raise ValueError("draw: expected at least one start point, got none; pass points")
    if num_points < len(points):
        raise ValueError(
            f"draw: expected num_points >= the {len(points)} start points, got {num_points}; "
            "raise num_points or start with fewer points"
        )
    for name, value in (("max_proposals", max_proposals), ("tolerance", tolerance)):
        if not value > 0:
            raise ValueError(f"draw: expected {name} > 0, got {value}; raise it")
    shape = jax.eval_shape(log_density, jax.ShapeDtypeStruct((), points.dtype)).shape
    if shape != ():
        raise ValueError(
            f"draw: expected a log_density from scalar to scalar, got the shape {shape}; "
            "give one density per call and vmap draw"
        )
    ends = [None if isinstance(end, jax.core.Tracer) else float(end) for end in (lower, upper)]
    lowest, highest = ends
    if None not in ends and not lowest < highest:
        raise ValueError(
            f"draw: expected lower < upper, got {lowest} and {highest}; exchange or mend them"
        )
    if isinstance(points, jax.core.Tracer):
        return
    values = np.asarray(points)
    if not (np.isfinite(values).all() and (np.diff(values) > 0).all()):
        raise ValueError(
            f"draw: expected finite points in increasing order, got {values.tolist()}; sort them "
            "and drop the repeated ones"
        )
    is_out = (lowest is not None and values[0] < lowest) or (
        highest is not None and values[-1] > highest
    )
    if is_out:
        raise ValueError(
            f"draw: expected points between lower and upper, got {values.tolist()} for {lowest} "
            f"and {highest}; move them inside"
        )
