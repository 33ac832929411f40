r"""Iteration to a fixed point, with derivatives that do not depend on how it was reached.

.. math:: m = T(m, \theta), \qquad
    dm = (I - \partial_m T)^{-1}\, \partial_\theta T\, d\theta

Nothing of the iteration is kept: the linear equation is solved by GMRES at the fixed point.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.sparse.linalg import gmres

__all__ = ["FixedPoint", "Stopping", "fixed_point", "stopping", "value_with_gradient"]


class Stopping(NamedTuple):
    """When an iteration ends; arrays, so that another rule is not another program.

    Attributes:
        tolerance: It has converged when the residual is at most this.
        max_iters: It gives up after so many iterations.
    """

    tolerance: Any
    max_iters: Any


class FixedPoint(NamedTuple):
    """Where an iteration ended.

    Attributes:
        messages: The last messages.
        residual: The largest change of the last iteration.
        num_iters: Number of iterations.
    """

    messages: Any
    residual: Any
    num_iters: Any


def stopping(caller: str, tolerance: float | None, max_iters: int, dtype: Any) -> Stopping:
    """The rule to stop by, checked; without a tolerance one that the precision allows."""
    if tolerance is None:
        tolerance = 1e-5 if jnp.finfo(dtype).bits <= 32 else 1e-9
    if not tolerance >= 0:
        raise ValueError(
            f"{caller}: expected a tolerance of at least 0, got {tolerance}; it is the largest "
            "change of a message, of largest entry 1, that counts as none"
        )
    if max_iters < 1:
        raise ValueError(
            f"{caller}: expected max_iters of at least 1, got {max_iters}; allow some iterations"
        )
    return Stopping(np.asarray(tolerance, dtype), np.asarray(max_iters, np.int32))


@partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def fixed_point(
    sweep: Callable, update: Callable, rule: Stopping, parameters: Any, start: Any
) -> FixedPoint:
    """The fixed point of `update`, reached by repeating `sweep` from `start`.

    Args:
        sweep: From parameters and messages to new messages and their residual.
        update: The map whose fixed point it is, from parameters and messages to messages.
        rule: When to stop.
        parameters: What derivatives are taken by.
        start: The first messages; the answer has no derivative by them.
    """

    def is_moving(state):
        return (state.residual > rule.tolerance) & (state.num_iters < rule.max_iters)

    def body(state):
        messages, residual = sweep(parameters, state.messages)
        return FixedPoint(messages, residual, state.num_iters + 1)

    dtype = jax.tree.leaves(start)[0].dtype
    first = FixedPoint(start, jnp.array(jnp.inf, dtype), jnp.zeros((), jnp.int32))
    return jax.lax.while_loop(is_moving, body, first)


@fixed_point.defjvp
def _fixed_point_jvp(sweep, update, primals, tangents):
    parameters = primals[1]
    end = fixed_point(sweep, update, *primals)
    _, pushed = jax.jvp(lambda known: update(known, end.messages), (parameters,), (tangents[1],))
    _, along = jax.linearize(lambda messages: update(parameters, messages), end.messages)

    def matvec(direction):
        return jax.tree.map(jnp.subtract, direction, along(direction))

    dtype = end.residual.dtype
    tolerance = 1e-5 if jnp.finfo(dtype).bits <= 32 else 1e-10

    def solve(matvec, right):
        return gmres(matvec, right, tol=tolerance, restart=20, maxiter=50)[0]

    # gmres alone scales its tolerance by the right side and so has no reverse mode
    moved = jax.lax.custom_linear_solve(matvec, pushed, solve, transpose_solve=solve)
    still = jnp.zeros_like(end.residual)
    return end, FixedPoint(moved, still, np.zeros((), jax.dtypes.float0))


@jax.custom_jvp
def value_with_gradient(value: Any, parameters: Any, gradient: Any) -> Any:
    """The value, differentiated as if its gradient by the parameters were the one given.

    The gradient may itself depend on the parameters; second derivatives are taken through it.
    """
    return value


@value_with_gradient.defjvp
def _value_with_gradient_jvp(primals, tangents):
    value, _, gradient = primals
    products = jax.tree.map(lambda own, tangent: jnp.sum(own * tangent), gradient, tangents[1])
    return value, sum(jax.tree.leaves(products), jnp.zeros_like(value))
