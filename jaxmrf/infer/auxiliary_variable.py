r"""Metropolis-Hastings with auxiliary variables as the likelihood of ``GroupGibbs``, on any graph.

.. math:: \log r = (w^* - w) \cdot (S(X) - S(Y)), \qquad Y \sim P(\cdot \mid w^*)^n

The particles Y of a proposal cancel the intractable normalisers (exchange; Moller's scheme keeps
them for a second term). Exact if they are exact draws, at the price of n of them for every
proposal. Reference: Liu & Page, NIPS 2013, Algorithm 1.
"""

from dataclasses import dataclass, field
from typing import Literal

import jax

from jaxmrf.graphs import Graph, frontier_plan, is_narrow
from jaxmrf.infer._edge_counts import edge_counts, untied_estimate
from jaxmrf.nonparametric import group_auxiliary
from jaxmrf.nonparametric.base_measures import BaseMeasure
from jaxmrf.nonparametric.group_exact import EdgeCounts
from jaxmrf.nonparametric.particle_sources import METHODS, ParticleSource

__all__ = ["AuxiliaryVariable", "AuxiliaryVariableData"]

# tables of 1024 entries an edge: far below the cost of chains of 100 sweeps
_MAX_AUTO_WIDTH = 10


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class AuxiliaryVariableData:
    """What the sampler keeps of the data.

    Attributes:
        counts: Agreement counts of every edge.
        estimate: Untied estimate of the agreements, the fixed point of Moller's scheme.
        source: Source of as many particles as there are observations.
    """

    counts: EdgeCounts
    estimate: jax.Array
    source: ParticleSource = field(metadata={"static": True})


@dataclass(frozen=True)
class AuxiliaryVariable:
    """Options of the sampler with auxiliary variables.

    The flag ``is_inexact`` of the sampler's state, ``mcmc.last_state.sampler.is_inexact`` of a
    ``GroupGibbs`` run, tells whether any particles were not exact draws. With particles "gibbs" it
    is always true; with "perfect", where a budget ran out, there is a warning too.

    Args:
        scheme: "exchange", or Liu & Page's "moller", which sticks unless the untied estimate is
            close to the posterior.
        particles: "exact" on graphs of narrow frontier; "perfect" for weak couplings on any graph;
            "gibbs" runs a chain for every particle and approximates; "auto" is "exact" where the
            frontier is at most 10 nodes and "gibbs" elsewhere.
        num_proposals: Proposals to every edge in a sweep.
        num_value_steps: Steps of a random walk of every group's value in a sweep.
        value_scale: Standard deviation of such a step, on the scale of (0, 1).
        num_sweeps: Length of the chains of "gibbs".
        max_sweeps: Budget of "perfect".

    Raises:
        ValueError: If an option is unknown or a number is out of range.
    """

    start_clusters = None

    scheme: Literal["exchange", "moller"] = "exchange"
    particles: Literal["auto", "exact", "perfect", "gibbs"] = "auto"
    num_proposals: int = 5
    num_value_steps: int = 5
    value_scale: float = 0.03
    num_sweeps: int = 100
    max_sweeps: int = 1024

    def __post_init__(self):
        known = {"scheme": group_auxiliary.SCHEMES, "particles": ("auto", *METHODS)}
        for name, values in known.items():
            if getattr(self, name) not in values:
                raise ValueError(
                    f"AuxiliaryVariable: expected {name} to be one of {values}, got "
                    f"{getattr(self, name)!r}; leave it out for {values[0]!r}"
                )
        for name in ("num_proposals", "num_value_steps", "num_sweeps", "max_sweeps"):
            if getattr(self, name) < 1:
                raise ValueError(
                    f"AuxiliaryVariable: expected {name} to be at least 1, got "
                    f"{getattr(self, name)}; raise it"
                )
        if not 0 < self.value_scale < 1:
            raise ValueError(
                f"AuxiliaryVariable: expected value_scale in (0, 1), got {self.value_scale}; "
                "pass the width of the posterior of a group's value"
            )

    @property
    def inexactness_message(self) -> str | None:
        """What to do when perfect draws were not finished; None where none were asked for."""
        if self.particles != "perfect":
            return None
        return (
            f"AuxiliaryVariable: some draws were not perfect after {self.max_sweeps} sweeps, and "
            "the posterior is approximate; raise max_sweeps, or pass particles='gibbs' where "
            "couplings are strong"
        )

    def prepare(self, states, graph: Graph) -> tuple[AuxiliaryVariableData, jax.Array]:
        """Agreement counts and source of particles, and the pseudo-likelihood estimate."""
        method = self.particles
        if method == "auto":
            method = "exact" if is_narrow(graph, _MAX_AUTO_WIDTH) else "gibbs"
        if method == "exact":
            frontier_plan(graph)  # refuses wide graphs before the first step
        estimate = untied_estimate(states, graph)
        source = ParticleSource(
            graph,
            states.shape[0],
            method,
            num_sweeps=self.num_sweeps,
            max_sweeps=self.max_sweeps,
        )
        return AuxiliaryVariableData(edge_counts(states, graph), estimate, source), estimate

    def init(
        self, rng_key, labels, values, data: AuxiliaryVariableData, graph: Graph, num_warmup: int
    ) -> group_auxiliary.AuxiliaryState:
        """State of the core sampler at a grouping."""
        return group_auxiliary.init(rng_key, labels, values, data.source)

    def step(
        self,
        rng_key,
        state: group_auxiliary.AuxiliaryState,
        data: AuxiliaryVariableData,
        graph: Graph,
        concentration,
        base: BaseMeasure,
    ) -> tuple[group_auxiliary.AuxiliaryState, group_auxiliary.AuxiliaryInfo]:
        """One sweep of the core sampler."""
        return group_auxiliary.step(
            rng_key,
            state,
            data.counts,
            data.source,
            concentration=concentration,
            base=base,
            scheme=self.scheme,
            estimate=data.estimate if self.scheme == "moller" else None,
            num_proposals=self.num_proposals,
            num_value_steps=self.num_value_steps,
            value_scale=self.value_scale,
        )
