r"""Sources of particles: n draws of a field without node fields, given by their agreement counts.

.. math:: Y_1, \dots, Y_n \sim P(\cdot \mid w), \qquad
          S_i(Y) = \sum_j 1[y_{ju} = y_{jv}] \text{ for edge } i = (u, v)

They stand in for the normaliser where it is intractable; see ``group_auxiliary``.
"""

from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp

from jaxmrf.exact import transfer
from jaxmrf.graphs import Graph, sweep_plan
from jaxmrf.models import Ising
from jaxmrf.sampling import gibbs, perfect, sampler_plan
from jaxmrf.types import Array, Bool, Float, Key

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
        field = Ising(logits / 2, jnp.zeros(self.graph.num_nodes, logits.dtype))
        if self.method == "exact":
            states = transfer.sample(key, field, self.graph, num_samples=self.num_items).T
            is_exact = jnp.array(True)
        else:
            if self.method == "perfect":
                plan = sweep_plan(self.graph)
                draws = perfect.sample(
                    key, field, plan, num_chains=self.num_items, max_sweeps=self.max_sweeps
                )
                states, is_exact = draws.states, draws.is_exact.all()
            else:
                key_init, key_run = jax.random.split(key)
                plan = sampler_plan(self.graph, field, num_chains=self.num_items)
                states = gibbs.init(key_init, field, plan, num_chains=self.num_items)
                states = gibbs.run(key_run, states, field, plan, num_sweeps=self.num_sweeps)
                is_exact = jnp.array(False)
        first, second = self.graph.edges.T
        return Particles((states[first] == states[second]).sum(axis=1, dtype=float), is_exact)
