r"""An upper bound on log Z of binary pairwise models by a semidefinite log-determinant relaxation.

The spins' moment matrix :math:`X` (with a first row for the constant) has a unit diagonal and is
positive semidefinite, and spins plus uniform noise have at most a Gaussian's entropy:

.. math:: \log Z \le \max_{X \succeq 0,\; X_{ii} = 1} \langle\Theta, X\rangle
    + \tfrac12 \log\det\big(X + \tfrac13 \mathrm{diag}(0, 1, \dots, 1)\big)
    + \tfrac n2 \log\tfrac{\pi e}{2}

The problem is solved over :math:`X = V V^T` with unit rows of V. The value returned is certified:
that of the linear bound on the concave objective at the X reached, so that it is above log Z even
where the solver was stopped early. Reference: Wainwright & Jordan (2006), "Log-determinant
relaxation for approximate inference in discrete Markov random fields".
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxmrf.models import Beliefs, FactorGraph
from jaxmrf.models.beliefs import Tables
from jaxmrf.types import Array, Bool, Float, Int
from jaxmrf.variational._fixed_point import value_with_gradient

__all__ = ["solve"]

# log potentials lower than the largest of their table by more are raised to this: Z grows by less
# than rounding, and the bound stays one
_RANGE = 30.0
_MEMORY = 8  # steps and changes of gradient that a step is made from
_ARMIJO = 1e-4
_MAX_HALVINGS = 20


class _Search(NamedTuple):
    """State of the solver.

    Attributes:
        rows: Unit vectors, one for the constant and one per variable.
        value: Objective, less a constant.
        slope: Its gradient along the spheres.
        steps: The last steps, newest last.
        bends: The changes of slope over them.
        gap: Largest entry of the slope.
        num_iters: Steps so far.
        is_stuck: Whether the last step found no higher value.
    """

    rows: Float[Array, "rows dims"]
    value: Float[Array, ""]
    slope: Float[Array, "rows dims"]
    steps: Float[Array, "memory rows dims"]
    bends: Float[Array, "memory rows dims"]
    gap: Float[Array, ""]
    num_iters: Int[Array, ""]
    is_stuck: Bool[Array, ""]


def solve(
    factor_graph: FactorGraph, *, tolerance: float | None = None, max_iters: int = 1000
) -> Beliefs:
    """The log-determinant upper bound on log Z, and its moments as beliefs.

    The gradient of ``log_z`` is the beliefs; these have no derivative of their own. Beliefs of
    factors of two variables can have slightly negative entries in strongly coupled models: the
    relaxation does not ask for more than moments. Dense in the variables: a few hundred at most.

    Args:
        factor_graph: Binary variables, factors of at most two of them. Log potentials more than 30
            below the largest of their table count as 30 below it.
        tolerance: Largest slope of the objective that counts as none; by default 1e-4, or 1e-8 in
            double precision.
        max_iters: Steps after which to give up.

    Raises:
        ValueError: If a variable is not binary, or a factor has more than two.

    >>> pair = FactorGraph.from_tables([2, 2], [(0, 1)], [np.log([[3.0, 1.0], [1.0, 3.0]])])
    >>> bool(solve(pair).log_z > np.log(8))
    True
    """
    _check(factor_graph, max_iters)
    structure = factor_graph.hypergraph
    tables = jnp.asarray(factor_graph.log_tables), jnp.asarray(factor_graph.log_evidence)
    if tolerance is None:
        tolerance = 1e-4 if jnp.finfo(tables[0].dtype).bits <= 32 else 1e-8
    known = jax.lax.stop_gradient(tables)
    is_possible = (known[1].reshape(-1, 2).max(axis=1) > -jnp.inf).all()
    for stack in structure.stacks:
        own = known[0][stack.start : stack.stop].reshape(len(stack.factors), -1)
        is_possible &= (own.max(axis=1) > -jnp.inf).all()
    constant, theta = _coefficients(structure, *known)
    end = _maximize(theta, tolerance, max_iters)
    moments, inverse, log_det = _at(end.rows)
    num_nodes = structure.num_nodes
    value = (theta * moments).sum() + log_det / 2
    # at any other X the objective is below its tangent, which an eigenvalue bounds in turn
    slope = theta + inverse / 2
    levels = (slope * moments).sum(axis=1)
    excess = jnp.linalg.eigvalsh(slope - jnp.diag(levels))[-1]
    value += (num_nodes + 1) * jnp.maximum(excess, 0)
    bound = constant + value + num_nodes / 2 * math.log(math.pi * math.e / 2)
    bound = jnp.where(is_possible, bound, -jnp.inf)
    nodes, factors = _beliefs(structure, moments)
    return Beliefs(
        log_z=value_with_gradient(bound, tables, (factors, nodes)),
        nodes=Tables(nodes, structure, is_of_factors=False),
        factors=Tables(factors, structure, is_of_factors=True),
        is_converged=end.gap <= tolerance,
        num_iters=end.num_iters,
    )


def _coefficients(structure, log_tables, log_evidence) -> tuple[Array, Array]:
    """The constant, and the symmetric matrix of half the fields and half the couplings."""
    evidence = _raised(log_evidence.reshape(-1, 2))
    theta = jnp.zeros((structure.num_nodes + 1,) * 2, log_tables.dtype)
    theta = theta.at[0, 1:].add((evidence[:, 1] - evidence[:, 0]) / 2)
    constant = evidence.mean(axis=1).sum()
    for stack in structure.stacks:
        own = log_tables[stack.start : stack.stop].reshape(len(stack.factors), -1)
        own = _raised(own)
        constant += own.mean(axis=1).sum()
        ends = stack.nodes + 1
        if len(stack.shape) == 1:
            theta = theta.at[0, ends[:, 0]].add((own[:, 1] - own[:, 0]) / 2)
        elif len(stack.shape) == 2:
            theta = theta.at[0, ends[:, 0]].add(own @ jnp.array([-1, -1, 1, 1]) / 4)
            theta = theta.at[0, ends[:, 1]].add(own @ jnp.array([-1, 1, -1, 1]) / 4)
            theta = theta.at[ends[:, 0], ends[:, 1]].add(own @ jnp.array([1, -1, -1, 1]) / 4)
    return constant, (theta + theta.T) / 2


def _raised(logs: Array) -> Array:
    top = logs.max(axis=1, keepdims=True)
    return jnp.maximum(logs, jnp.where(top > -jnp.inf, top, 0) - _RANGE)


def _beliefs(structure, moments: Array) -> tuple[Array, Array]:
    spins = np.array([-1, 1])
    means = moments[0, 1:]
    nodes = (1 + means[:, None] * spins) / 2
    parts = [jnp.zeros(0, moments.dtype)]
    for stack in structure.stacks:
        if len(stack.shape) == 0:
            own = jnp.ones(len(stack.factors), moments.dtype)
        elif len(stack.shape) == 1:
            own = nodes[stack.nodes[:, 0]]
        else:
            one, other = stack.nodes.T
            own = 1 + means[one, None, None] * spins[:, None] + means[other, None, None] * spins
            product = moments[one + 1, other + 1][:, None, None]
            own = (own + product * spins[:, None] * spins) / 4
        parts.append(own.ravel())
    return nodes.ravel(), jnp.concatenate(parts)


def _at(rows: Array) -> tuple[Array, Array, Array]:
    """Moments, and the inverse and log determinant of moments plus noise."""
    moments = rows @ rows.T
    noise = np.full(len(rows), 1 / 3)
    noise[0] = 0
    inverse, log_det = _inverse(moments + jnp.diag(jnp.asarray(noise, rows.dtype)))
    return moments, inverse, log_det


def _inverse(matrix: Array) -> tuple[Array, Array]:
    """Inverse and log determinant of a positive definite matrix, by sweeping its pivots.

    Plain arithmetic, which unlike factorisations is safe in batched loops.
    """

    def sweep(place, state):
        matrix, log_det = state
        pivot = matrix[place, place]
        column = matrix[:, place]
        swept = matrix - jnp.outer(column, column) / pivot
        edge = (column / pivot).at[place].set(-1 / pivot)
        return swept.at[:, place].set(edge).at[place].set(edge), log_det + jnp.log(pivot)

    start = matrix, jnp.zeros((), matrix.dtype)
    swept, log_det = jax.lax.fori_loop(0, len(matrix), sweep, start)
    return -swept, log_det


def _maximize(theta: Array, tolerance: float, max_iters: int) -> _Search:
    """Limited-memory BFGS on the product of spheres."""

    def evaluate(rows):
        moments, inverse, log_det = _at(rows)
        slope = (2 * theta + inverse) @ rows
        slope -= (slope * rows).sum(axis=1, keepdims=True) * rows
        return (theta * moments).sum() + log_det / 2, slope

    def advance(state):
        step = _direction(state.slope, state.steps, state.bends)
        rise = (step * state.slope).sum()
        is_uphill = rise > 0
        step = jnp.where(is_uphill, step, state.slope)
        rise = jnp.where(is_uphill, rise, (state.slope**2).sum())

        def move(size):
            rows = state.rows + size * step
            return rows / jnp.sqrt((rows**2).sum(axis=1, keepdims=True))

        # near the top values differ by less than their rounding, and slopes still tell
        floor = state.value - 4 * jnp.finfo(theta.dtype).eps * jnp.abs(state.value)

        def is_low(search):
            size, (value, _), halvings = search
            is_enough = value >= floor + _ARMIJO * size * rise
            return ~is_enough & (halvings < _MAX_HALVINGS)

        def halve(search):
            size, _, halvings = search
            return size / 2, evaluate(move(size / 2)), halvings + 1

        one = jnp.ones((), theta.dtype)
        first = (one, evaluate(move(one)), 0)
        size, (value, slope), _ = jax.lax.while_loop(is_low, halve, first)
        is_higher = value >= floor
        rows, value, slope = jax.tree.map(
            lambda new, old: jnp.where(is_higher, new, old),
            (move(size), value, slope),
            (state.rows, state.value, state.slope),
        )
        taken, bend = rows - state.rows, state.slope - slope
        is_useful = (taken * bend).sum() > 1e-10 * (taken**2).sum()
        return _Search(
            rows,
            value,
            slope,
            jnp.where(is_useful, jnp.roll(state.steps, -1, 0).at[-1].set(taken), state.steps),
            jnp.where(is_useful, jnp.roll(state.bends, -1, 0).at[-1].set(bend), state.bends),
            jnp.abs(slope).max(),
            state.num_iters + 1,
            ~is_higher,
        )

    def is_moving(state):
        return (state.gap > tolerance) & (state.num_iters < max_iters) & ~state.is_stuck

    rows = jnp.eye(len(theta), dtype=theta.dtype)
    value, slope = evaluate(rows)
    nothing = jnp.zeros((_MEMORY, *rows.shape), theta.dtype)
    gap = jnp.abs(slope).max()
    start = _Search(rows, value, slope, nothing, nothing, gap, jnp.array(0), jnp.array(False))
    return jax.lax.while_loop(is_moving, advance, start)


def _direction(slope: Array, steps: Array, bends: Array) -> Array:
    """Slope times the approximate inverse curvature, by the two-loop recursion."""
    products = (steps * bends).sum(axis=(1, 2))
    is_used = products > 0
    rates = jnp.where(is_used, 1 / jnp.where(is_used, products, 1), 0)
    weights = [jnp.zeros(())] * len(steps)
    for place in reversed(range(len(steps))):
        weights[place] = rates[place] * (steps[place] * slope).sum()
        slope = slope - weights[place] * bends[place]
    newest = (bends[-1] ** 2).sum()
    slope = slope * jnp.where(newest > 0, products[-1] / jnp.where(newest > 0, newest, 1), 1)
    for place in range(len(steps)):
        back = rates[place] * (bends[place] * slope).sum()
        slope = slope + (weights[place] - back) * steps[place]
    return slope


def _check(factor_graph: FactorGraph, max_iters: int) -> None:
    for node, number in enumerate(factor_graph.num_states):
        if number != 2:
            raise ValueError(
                f"semidefinite.solve: expected binary variables, got {number} states of variable "
                f"{node}; use belief_propagation with tree-reweighted weights for a bound"
            )
    for factor, scope in enumerate(factor_graph.scopes):
        if len(scope) > 2:
            raise ValueError(
                f"semidefinite.solve: expected factors of at most two variables, got {len(scope)} "
                f"in factor {factor}; use belief_propagation with tree-reweighted weights"
            )
    if max_iters < 1:
        raise ValueError(
            f"semidefinite.solve: expected max_iters of at least 1, got {max_iters}; allow some "
            "steps"
        )
