r"""The one training loop, the one deterministic optimiser, and the answer all learners give.

.. math:: \theta_{t+1} = \theta_t + \mathrm{update}_t(g_t), \qquad
          \bar\theta = \frac{1}{T - t_0} \sum_{t > t_0} \theta_t

A noisy gradient is followed by ``fit`` with any optax transform and averaged over the last steps
(Polyak & Juditsky 1992); an exact one goes to ``minimize``, optax's L-BFGS with the zoom line
search of Nocedal & Wright (2006, algorithm 3.6).
"""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from tqdm.auto import tqdm

from jaxmrf.learning.moments import largest_entry
from jaxmrf.models import PairwiseModel
from jaxmrf.types import Array, Bool, Float, Int, Key

__all__ = ["FitResult", "fit", "jitted", "minimize", "running_mean"]

# chunks of a scan that shows progress: enough for a smooth bar, few enough to cost nothing
_NUM_CHUNKS = 50


class FitResult(NamedTuple):
    """What a learner found.

    Attributes:
        parameters: The estimate, in the form that ``build`` takes; where the method averages, the
            mean over its last steps.
        last_parameters: Parameters after the last step.
        model: ``build(parameters)``.
        history: Info of every step, stacked; None for methods that keep none.
        moment_mismatch: Largest absolute entry of the gradient at the estimate: a mean statistic
            of the data minus what the method sets against it, summed over all statistics that
            share a parameter. Zero at the solution.
        is_converged: Whether the mismatch is within the method's tolerance.
        num_iters: Steps taken.
    """

    parameters: Any
    last_parameters: Any
    model: PairwiseModel
    history: Any
    moment_mismatch: Float[Array, ""]
    is_converged: Bool[Array, ""]
    num_iters: Int[Array, ""]


def fit(
    key: Key,
    init_state: Any,
    step: Callable,
    num_steps: int,
    *,
    args: tuple = (),
    progress: bool = False,
    compiler_options: dict | None = None,
) -> tuple[Any, Any]:
    """State after ``num_steps`` steps, and the stacked Info of all of them.

    The loop is a ``jax.lax.scan``. The same ``step`` object with arguments of the same shapes does
    not compile again, so pass what changes from fit to fit in ``args``.

    Args:
        key: Random key; the same key gives the same result with and without progress.
        init_state: State before the first step.
        step: Function ``(key, state, *args) -> (State, Info)``, pure.
        num_steps: Number of steps, at least 1.
        args: Pytrees handed to every step, such as the data.
        progress: Whether to show a progress bar; the scan then runs in pieces.
        compiler_options: Options for XLA; of no effect inside another ``jax.jit``.

    Returns:
        The last state and the Infos, steps on the leading axis.

    Raises:
        ValueError: If ``num_steps`` is not a positive integer.

    >>> def step(key, state):
    ...     return state + 1, 2 * state
    >>> fit(jax.random.key(0), 0, step, 3)[1].tolist()
    [0, 2, 4]
    """
    if int(num_steps) != num_steps or num_steps < 1:
        raise ValueError(
            f"fit: expected num_steps to be a positive integer, got {num_steps}; take at least "
            "one step"
        )
    keys = jax.random.split(key, int(num_steps))
    scan = jitted(_scan, compiler_options, (keys, args), static_argnames="step")
    if not progress:
        return scan(step, init_state, keys, args)
    size = -(-num_steps // _NUM_CHUNKS)
    state, infos = init_state, []
    with tqdm(total=num_steps, desc="training") as bar:
        for start in range(0, num_steps, size):
            state, info = scan(step, state, keys[start : start + size], args)
            jax.block_until_ready(info)
            infos.append(info)
            bar.update(min(size, num_steps - start))
    return state, jax.tree.map(lambda *parts: jnp.concatenate(parts), *infos)


def jitted(
    function: Callable, compiler_options: dict | None, args: Any, static_argnames: str | None = None
) -> Callable:
    """A function compiled with options for XLA, without them where its arguments are traced.

    Args:
        function: Function; the same object with the same options does not compile again.
        compiler_options: Options, which JAX refuses inside another ``jax.jit``.
        args: Pytree of arguments.
        static_argnames: As for ``jax.jit``.
    """
    is_nested = any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(args))
    options = () if is_nested else tuple((compiler_options or {}).items())
    return _jitted(function, options, static_argnames)


@lru_cache(maxsize=128)
def _jitted(function: Callable, options: tuple, static_argnames: str | None) -> Callable:
    return jax.jit(
        function, static_argnames=static_argnames, compiler_options=dict(options) or None
    )


def _scan(step: Callable, state: Any, keys: Key, args: tuple) -> tuple[Any, Any]:
    return jax.lax.scan(lambda state, key: step(key, state, *args), state, keys)


def running_mean(mean: Any, value: Any, count: Array | int) -> Any:
    """Mean of ``count + 1`` values from the mean of the first ``count`` and the next one.

    Args:
        mean: Mean so far, a pytree; ignored if ``count`` is 0 or less.
        value: Next value.
        count: Number of values in ``mean``.
    """
    weight = 1.0 / (jnp.maximum(count, 0) + 1)
    return jax.tree.map(
        lambda old, new: old + (weight * (new - old)).astype(old.dtype), mean, value
    )


def minimize(
    objective: Callable, parameters: Any, *, args: tuple = (), tolerance: float, max_iters: int
) -> tuple[Any, Float[Array, ""], Int[Array, ""]]:
    """Minimiser of a smooth function by L-BFGS.

    Args:
        objective: Function ``(parameters, *args) -> scalar``, of order 1 (a mean over items).
        parameters: Start, a pytree of arrays.
        args: Pytrees handed to the objective.
        tolerance: Stop once no entry of the gradient is larger.
        max_iters: Stop after this many iterations.

    Returns:
        The minimiser, the largest entry of the gradient there, and the iterations used.
    """
    return _minimize(objective, parameters, args, tolerance, max_iters)


@partial(jax.jit, static_argnames="objective")
def _minimize(objective, parameters, args, tolerance, max_iters):
    optimizer = optax.lbfgs()

    def value(parameters):
        return objective(parameters, *args)

    def go_on(carry):
        _, _, _, gradient, num_iters = carry
        return (largest_entry(gradient) > tolerance) & (num_iters < max_iters)

    def iterate(carry):
        parameters, state, current, gradient, num_iters = carry
        updates, state = optimizer.update(
            gradient, state, parameters, value=current, grad=gradient, value_fn=value
        )
        parameters = optax.apply_updates(parameters, updates)
        # the line search has evaluated the new point already
        current, gradient = (optax.tree_utils.tree_get(state, name) for name in ("value", "grad"))
        return parameters, state, current, gradient, num_iters + 1

    start = (parameters, optimizer.init(parameters), *jax.value_and_grad(value)(parameters), 0)
    parameters, _, _, gradient, num_iters = jax.lax.while_loop(go_on, iterate, start)
    return parameters, largest_entry(gradient), num_iters
