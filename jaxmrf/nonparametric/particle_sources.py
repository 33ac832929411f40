r"""Sources of particles: n draws of a field without node fields, given by their agreement counts.

.. math:: Y_1, \dots, Y_n \sim P(\cdot \mid w), \qquad
          S_i(Y) = \sum_j 1[y_{ju} = y_{jv}] \text{ for edge } i = (u, v)

They stand in for the normaliser where it is intractable; see ``group_auxiliary``.
"""

from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np

from jaxmrf.graphs import FrontierPlan, Graph, frontier_plan, sweep_plan
from jaxmrf.models import Ising
from jaxmrf.sampling import gibbs, perfect
from jaxmrf.types import Array, Bool, Float, Int, Key

__all__ = ["ParticleSource", "Particles", "Source"]

METHODS = ("exact", "perfect", "gibbs")


class Particles(NamedTuple):
    """Draws of the field, as far as the sampler looks at them.

    Attributes:
        agreements: Number of particles in which the ends of each edge agree.
        is_exact: Whether all of them are exact draws.
    """

    agreements: Float[Array, " edges"]
    is_exact: Bool[Array, ""]


@runtime_checkable
class Source(Protocol):
    """What a sampler asks of a source of particles; hashable, so that it can be static."""

    num_items: int

    def __call__(self, key: Key, logits: Array) -> Particles:
        """Fresh particles at the logits of all edges' agreement parameters."""


@dataclass(frozen=True)
class ParticleSource:
    """Independent draws of the field at the logits of all its edges' agreement parameters.

    Exact draws need a graph of small frontier. Perfect ones need none, but their time grows
    exponentially in strong couplings. Gibbs chains from uniform states are never exact.

    Args:
        graph: Graph of the field.
        num_items: Number of particles, n of the data.
        method: "exact", "perfect" or "gibbs".
        num_sweeps: Length of the Gibbs chains.
        max_sweeps: Budget of perfect sampling, whose failures are counted as inexact.

    Raises:
        ValueError: If the method is none of these, or a number is below 1.

    >>> from jaxmrf.graphs import grid
    >>> particles = ParticleSource(grid((2, 2)), 50)(jax.random.key(0), jnp.full(4, 13.0))
    >>> particles.agreements.tolist(), bool(particles.is_exact)
    ([50.0, 50.0, 50.0, 50.0], True)
    """

    graph: Graph
    num_items: int
    method: str = "exact"
    num_sweeps: int = 100
    max_sweeps: int = 1024

    def __post_init__(self):
        if self.method not in METHODS:
            raise ValueError(
                f"ParticleSource: expected method to be one of {METHODS}, got {self.method!r}; "
                "pass 'exact' on a small graph"
            )
        for name in ("num_items", "num_sweeps", "max_sweeps"):
            if getattr(self, name) < 1:
                raise ValueError(
                    f"ParticleSource: expected {name} to be at least 1, got "
                    f"{getattr(self, name)}; raise it"
                )

    def __call__(self, key: Key, logits: Float[Array, " edges"]) -> Particles:
        """Agreement counts of fresh draws."""
        if self.method == "exact":
            states = _exact_states(key, logits, frontier_plan(self.graph), self.num_items)
            is_exact = jnp.array(True)
        else:
            plan = sweep_plan(self.graph)
            field = Ising(logits / 2, jnp.zeros(self.graph.num_nodes, logits.dtype))
            if self.method == "perfect":
                draws = perfect.sample(
                    key, field, plan, num_chains=self.num_items, max_sweeps=self.max_sweeps
                )
                states, is_exact = draws.states, draws.is_exact.all()
            else:
                key_init, key_run = jax.random.split(key)
                states = gibbs.init(key_init, field, plan, num_chains=self.num_items)
                states = gibbs.run(key_run, states, field, plan, num_sweeps=self.num_sweeps)
                is_exact = jnp.array(False)
        first, second = self.graph.edges.T
        return Particles((states[first] == states[second]).sum(axis=1, dtype=float), is_exact)


def _exact_states(
    key: Key, logits: Float[Array, " edges"], plan: FrontierPlan, num_items: int
) -> Int[Array, "nodes items"]:
    """Exact draws of a field without node fields; isolated nodes get any state.

    A pass along the frontier, then every node at its last edge, from the last step backwards. As
    ``exact.transfer.sample``, but the conditional probabilities of a binary node are tabulated
    before the draws, so that one costs a look-up and a comparison.
    """
    indices = jnp.arange(2**plan.width)

    def body(table, step):
        slots, is_last, logit = step
        is_same = (indices >> slots[0]) & 1 == (indices >> slots[1]) & 1
        table = product = table * jax.nn.sigmoid(jnp.where(is_same, logit, -logit))
        for end in (0, 1):
            total = table + table[indices ^ (1 << slots[end])]
            table = jnp.where(is_last[end], total, table)
        return table / table.max(), product

    steps = jnp.asarray(plan.slots), jnp.asarray(plan.is_last), logits[plan.edges]
    _, tables = jax.lax.scan(body, jnp.ones(indices.size, logits.dtype), steps)
    # a step may close both its nodes: the first is drawn with the second summed out
    closings = [(k, 0) for k in np.flatnonzero(plan.is_last[:, 0])]
    closings += [(k, 1) for k in np.flatnonzero(plan.is_last[:, 1])]
    closings = np.array(sorted(closings, key=lambda closing: (-closing[0], closing[1])))
    step, end = closings.T
    place = 1 << plan.slots[step, end]
    place_summed = np.where((end == 0) & plan.is_last[step, 1], 1 << plan.slots[step, 1], 0)
    weights = tables[step]
    other = jnp.take_along_axis(weights, indices ^ place_summed[:, None], axis=1)
    weights += jnp.where(place_summed[:, None] > 0, other, 0)
    up = jnp.take_along_axis(weights, indices | place[:, None], axis=1)
    down = jnp.take_along_axis(weights, indices & ~place[:, None], axis=1)

    def draw(code, step):
        chance, place, uniform = step
        is_up = uniform < chance[code]
        return jnp.where(is_up, code | place, code & ~place), is_up

    uniforms = jax.random.uniform(key, (len(closings), num_items), logits.dtype)
    steps = up / (up + down), place.astype(np.int32), uniforms
    _, states = jax.lax.scan(draw, jnp.zeros(num_items, jnp.int32), steps)
    rows = np.zeros(plan.num_nodes, np.int32)
    rows[plan.nodes[step, end]] = np.arange(len(closings))
    return states[rows].astype(jnp.int8)
