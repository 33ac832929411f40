r"""Variable elimination in any commutative semiring.

.. math:: \bigoplus_x \bigotimes_f f(x_f)

With (sum, product) this is Z, with (max, product) the probability of the mode, with (or, and)
whether anything is possible, with (+, x) on integers how many configurations are. Reference: Aji &
McEliece, "The generalized distributive law", IEEE Trans. Inf. Theory 46 (2000).
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxmrf.exact.draws import MAX_CELLS
from jaxmrf.graphs import EliminationPlan, Hypergraph
from jaxmrf.graphs.elimination import plan_for
from jaxmrf.graphs.gather import split_plan
from jaxmrf.logspace import log_sum
from jaxmrf.types import Array

__all__ = ["BOOLEAN", "COUNTING", "MAX_PRODUCT", "SUM_PRODUCT", "Semiring", "eliminate"]


class Semiring(NamedTuple):
    """Two commutative operations on numbers, the second distributing over the first.

    Attributes:
        add: Function ``(values, axis) -> values`` that adds along an axis.
        multiply: Function ``(values, axis) -> values`` that multiplies along an axis.
        zero: What changes nothing when added and makes every product zero.
        one: What changes nothing when multiplied.
    """

    add: Callable[..., Array]
    multiply: Callable[..., Array]
    zero: float
    one: float


SUM_PRODUCT = Semiring(log_sum, jnp.sum, -jnp.inf, 0.0)
"""Sums and products of the logs' exponentials: log Z from log tables."""

MAX_PRODUCT = Semiring(jnp.max, jnp.sum, -jnp.inf, 0.0)
"""Maxima and products, from log tables: the log potential of the mode."""

BOOLEAN = Semiring(jnp.any, jnp.all, False, True)
"""Or and and, from tables of what is allowed: whether any configuration is."""

COUNTING = Semiring(jnp.sum, jnp.prod, 0, 1)
"""Plain sums and products, from non-negative tables; of zeros and ones, a count."""


def eliminate(
    hypergraph: Hypergraph,
    tables: Array,
    semiring: Semiring = SUM_PRODUCT,
    plan: EliminationPlan | None = None,
) -> Array:
    """The semiring's sum over all configurations of the product of all tables.

    Differentiable where the semiring is. For log Z with its derivatives, ``junction_tree.log_z``
    is faster and has no limit but memory.

    Args:
        hypergraph: Variables and scopes.
        tables: Entries of all tables in the semiring's domain, in the order of the hypergraph.
        semiring: The two operations.
        plan: Elimination plan; by default the cheapest of a few.

    Raises:
        ValueError: If the tables have another number of entries, or the plan is of another model
            or visits more than ``draws.MAX_CELLS`` configurations.

    >>> structure = Hypergraph([2, 2, 2], [(0, 1), (1, 2)])
    >>> differs = jnp.array([0, 1, 1, 0])
    >>> int(eliminate(structure, jnp.tile(differs, 2), COUNTING))
    2
    """
    plan = plan_for("eliminate", hypergraph, plan)
    if plan.total_cells > MAX_CELLS:
        raise ValueError(
            f"eliminate: expected an elimination of at most {MAX_CELLS} configurations, got "
            f"{plan.total_cells:.3g}; use junction_tree.log_z or host.mode"
        )
    if jnp.shape(tables) != (hypergraph.num_entries,):
        raise ValueError(
            f"eliminate: expected {hypergraph.num_entries} entries of all tables, got shape "
            f"{jnp.shape(tables)}; lay them out as FactorGraph.log_tables"
        )
    return _eliminate(plan, semiring, jnp.asarray(tables))


@partial(jax.jit, static_argnums=(0, 1))
def _eliminate(plan: EliminationPlan, semiring: Semiring, tables: Array) -> Array:
    gather = split_plan(plan, MAX_CELLS).gather
    fill = lambda size, value: jnp.full(size, value, tables.dtype)  # noqa: E731
    buffer = jnp.concatenate(
        [
            tables,
            fill(plan.hypergraph.num_node_entries, semiring.one),
            fill(1, semiring.one),
            fill(1, semiring.zero),
            fill(gather.size - gather.start, semiring.one),
        ]
    )

    def step(buffer, xs):
        place, index = xs
        row = semiring.add(semiring.multiply(buffer[index], axis=2), axis=1)
        row = row.astype(buffer.dtype)
        return jax.lax.dynamic_update_slice_in_dim(buffer, row, place, 0), None

    buffer, _ = jax.lax.scan(step, buffer, (gather.step_starts, gather.index))
    return semiring.multiply(buffer[gather.roots], axis=0)
