r"""The likelihood corrected by linear response as the likelihood of ``GroupGibbs``, on any graph.

.. math:: L_i(\theta) = \lambda^{S_i} (1 - \lambda)^{n - S_i}, \quad
          \lambda = \sigma(\mathrm{logit}\,\theta + h_i), \quad
          h \leftarrow h + B_{:,i}\, \Delta w_i

with the messages h of the rest of the field expanded to first order around a center that follows
the posterior mean during warm-up. An approximation whose error is a field of the state; on small
graphs it agrees with ``ExactLikelihood`` within Monte Carlo error.
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxmrf.graphs import Graph, frontier_plan, is_narrow
from jaxmrf.infer._edge_counts import edge_counts, untied_estimate
from jaxmrf.models import Ising
from jaxmrf.nonparametric import expansion, group_corrected
from jaxmrf.nonparametric.base_measures import BaseMeasure
from jaxmrf.nonparametric.group_exact import EdgeCounts
from jaxmrf.nonparametric.label_updates import DEFAULT_RULE, LabelRule
from jaxmrf.sampling import sampler_plan

__all__ = ["LinearResponse", "LinearResponseState"]


# two matrices of edges x edges are kept, 3 GB; 15 samples an edge, a byte each, would take more
_MAX_EDGES = 20_000
# logits; runs that settle stay below 3, in runs that do not errors grow to 10 and more
_MAX_ERROR = 4.0
# of a chain, ten sweeps a snapshot
_NUM_EXPANSIONS = 10


class LinearResponseState(NamedTuple):
    """State of the core sampler, and where its warm-up is.

    Attributes:
        core: State of ``nonparametric.group_corrected``; its ``surrogate_error`` tells the error
            of the last expansion but one.
        num_steps: Steps taken.
        num_warmup: Steps of warm-up, during which the expansion moves.
    """

    core: group_corrected.CorrectedState
    num_steps: jax.Array
    num_warmup: jax.Array

    @property
    def labels(self) -> jax.Array:
        """Group of every edge."""
        return self.core.labels

    @property
    def values(self) -> jax.Array:
        """Agreement parameter of every group."""
        return self.core.values

    @property
    def is_present(self) -> jax.Array:
        """Which edges are in the graph."""
        return self.core.is_present

    @property
    def is_inexact(self) -> jax.Array:
        """Whether the expansion has failed: after warm-up it was still wrong by far."""
        return (self.num_steps >= self.num_warmup) & (self.core.surrogate_error > _MAX_ERROR)

    @property
    def is_truncated(self) -> jax.Array:
        """Whether the buffer has ever been too small."""
        return self.core.is_truncated


@dataclass(frozen=True)
class LinearResponse:
    """Options of the expansion.

    Args:
        rule: How an edge chooses its group; see ``ExactLikelihood``.
        num_chains: Chains of the field behind an expansion.
        num_snapshots: Snapshots of these chains, or None for 15 samples an edge and at least
            100 snapshots.
        first_expansion: Step of warm-up of the first re-expansion, 1 or more; the next ones are
            at twice the step, and the last is at the end of warm-up.
        start_clusters: Clusters of a start at the estimate, at most half the atoms. Many keep the
            start close to the estimate, where the first expansion holds; from a coarse start the
            messages of strongly coupled fields run away.
        max_exact_width: Frontier up to which an expansion is exact instead; 0 always samples.
    """

    handles_inclusion = True

    rule: LabelRule = DEFAULT_RULE
    num_chains: int = 300
    num_snapshots: int | None = None
    first_expansion: int = 1
    start_clusters: int = 32
    max_exact_width: int = 0

    def __post_init__(self):
        for name in ("num_chains", "first_expansion", "start_clusters"):
            if getattr(self, name) < 1:
                raise ValueError(
                    f"LinearResponse: expected {name} to be at least 1, got "
                    f"{getattr(self, name)}; raise it"
                )

    @property
    def inexactness_message(self) -> str:
        """What to do when the expansion failed."""
        return (
            f"LinearResponse: at the end of warm-up the expansion erred by more than {_MAX_ERROR} "
            "logits at its next center, and the draws are not to be trusted; start at the "
            "estimate with more atoms, lengthen warm-up, or use ExactLikelihood or "
            "AuxiliaryVariable"
        )

    def prepare(self, states, graph: Graph):
        """Agreement counts of every edge, and the pseudo-likelihood estimate to start from."""
        if graph.num_edges > _MAX_EDGES:
            raise ValueError(
                f"LinearResponse: expected at most {_MAX_EDGES} edges, whose covariance fits into "
                f"memory, got {graph.num_edges}; use StrippedBeta(rule=Parallel())"
            )
        estimate = untied_estimate(states, graph)
        return LinearResponseData(edge_counts(states, graph), estimate), estimate

    def init(
        self, rng_key, labels, values, data, graph: Graph, num_warmup: int, is_present=None
    ) -> LinearResponseState:
        """State of the core sampler at a grouping, the first center at the estimate."""
        key_particles, key_expand = jax.random.split(rng_key)
        num_chains = 1 if self._is_exact(graph) else self.num_chains
        shape = (graph.num_nodes, num_chains)
        particles = jax.random.randint(key_particles, shape, 0, 2, dtype=jnp.int8)
        core = group_corrected.init(
            key_expand, labels, values, data.estimate, particles, self._expand(graph), is_present
        )
        return LinearResponseState(core, jnp.array(0), jnp.asarray(num_warmup))

    def step(
        self,
        rng_key,
        state: LinearResponseState,
        data,
        graph: Graph,
        concentration,
        base: BaseMeasure,
        inclusion=None,
    ) -> tuple[LinearResponseState, group_corrected.CorrectedInfo]:
        """One sweep of the core sampler, and a fresh expansion where warm-up asks for one."""
        key_step, key_expand = jax.random.split(rng_key)
        core, info = group_corrected.step(
            key_step,
            state.core,
            data.counts,
            concentration=concentration,
            base=base,
            rule=self.rule,
            inclusion=inclusion,
        )
        num_steps = state.num_steps + 1
        is_power = (num_steps % self.first_expansion == 0) & _is_power_of_two(
            num_steps // self.first_expansion
        )
        is_due = (is_power & (num_steps < state.num_warmup)) | (num_steps == state.num_warmup)

        # chains one after the other: a vectorised conditional would expand at every step
        @jax.custom_batching.sequential_vmap
        def expand_if(is_due, key, core):
            recenter = lambda: group_corrected.recenter(key, core, self._expand(graph))  # noqa: E731
            return jax.lax.cond(is_due, recenter, lambda: core)

        core = expand_if(is_due, key_expand, core)
        return LinearResponseState(core, num_steps, state.num_warmup), info

    def surrogate_error(self, rng_key, state: LinearResponseState, graph: Graph) -> jax.Array:
        """Error of the expansion in use, by a fresh one at the mean of the steps since it.

        Args:
            rng_key: Random key.
            state: The sampler's state, ``mcmc.last_state.sampler`` of a ``GroupGibbs`` run.
            graph: Graph of the field.

        Returns:
            The largest error of an agreement probability, in logits.
        """
        return group_corrected.recenter(rng_key, state.core, self._expand(graph)).surrogate_error

    def _is_exact(self, graph: Graph) -> bool:
        return self.max_exact_width > 0 and is_narrow(graph, self.max_exact_width)

    def _expand(self, graph: Graph) -> group_corrected.Expand:
        if self._is_exact(graph):
            plan = frontier_plan(graph, max_width=self.max_exact_width)
            return lambda key, center, particles: (
                expansion.by_transfer(center, graph, plan),
                particles,
            )
        num_snapshots = self.num_snapshots
        if num_snapshots is None:
            needed = expansion.num_snapshots_needed(graph.num_edges, self.num_chains)
            num_snapshots = max(100, needed)
        plan = sampler_plan(
            graph,
            Ising(None, None),
            num_chains=self.num_chains,
            num_sweeps=_NUM_EXPANSIONS * 10 * num_snapshots,
        )
        return lambda key, center, particles: expansion.by_sampling(
            key, center, particles, graph, plan, num_snapshots=num_snapshots
        )


class LinearResponseData(NamedTuple):
    """Counts of the data, and the untied estimate."""

    counts: EdgeCounts
    estimate: jax.Array


def _is_power_of_two(number: jax.Array) -> jax.Array:
    return (number > 0) & (number & (number - 1) == 0)
