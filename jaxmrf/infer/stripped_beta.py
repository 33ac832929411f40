r"""The stripped Beta approximation as the likelihood of ``GroupGibbs``.

.. math:: L_i(\theta) = \theta^{S_i} (1 - \theta)^{n - S_i}, \quad
          S_i = \lfloor n \tilde\theta_i \rfloor

Liu & Page, NIPS 2013, section 3.2 and Algorithm 2: the maximum likelihood estimate by persistent
contrastive divergence takes the place of the neighbourhood's pull. Exact on a forest, where the
estimate is the observed agreement rate.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from jaxmrf.graphs import Graph
from jaxmrf.infer._edge_counts import edge_counts
from jaxmrf.learning import fit_contrastive, no_fields
from jaxmrf.models import Ising, agreements_from_couplings, as_states
from jaxmrf.nonparametric import group_gibbs
from jaxmrf.nonparametric.base_measures import BaseMeasure
from jaxmrf.nonparametric.label_updates import DEFAULT_RULE, LabelRule
from jaxmrf.nonparametric.parallel_labels import Parallel
from jaxmrf.sampling import SamplerPlan, sampler_plan

__all__ = ["StrippedBeta"]

# that a chain of a few thousand steps makes with its particles
_NUM_SWEEPS = 10_000


@dataclass(frozen=True)
class StrippedBeta:
    """Options of the stripped Beta approximation.

    Args:
        estimate: Untied estimate of the agreements, shape ``[edges]``; by default the maximum
            likelihood estimate by persistent contrastive divergence, on a forest in closed form.
        num_particles: Chains of the field behind the tied re-estimates.
        num_steps: Steps of the default estimate.
        num_refits: Tied re-estimation steps in each sweep.
        refit_rate: Size of these steps, in Newton steps for independent edges.
        seed: Seed of the default estimate, one for all chains, so that it is computed once.
        rule: How edges choose their groups: one after the other, see ``ExactLikelihood``, or
            ``Parallel()`` of ``nonparametric.parallel_labels`` for thousands of edges.
    """

    start_clusters = None

    estimate: tuple[float, ...] | None = None
    num_particles: int = 100
    num_steps: int = 1000
    num_refits: int = 3
    refit_rate: float = 0.3
    seed: int = 0
    rule: LabelRule | Parallel = DEFAULT_RULE

    def __post_init__(self):
        if self.estimate is None:
            return
        estimate = np.asarray(self.estimate, dtype=float)
        if estimate.ndim != 1 or not ((estimate > 0) & (estimate < 1)).all():
            raise ValueError(
                f"StrippedBeta: expected estimate to be a vector in (0, 1), got shape "
                f"{estimate.shape} and range {estimate.min():.3g} to {estimate.max():.3g}; pass "
                "agreements, one per edge"
            )
        object.__setattr__(self, "estimate", tuple(estimate.tolist()))

    def prepare(
        self, states: jax.Array | np.ndarray, graph: Graph
    ) -> tuple[group_gibbs.StrippedBetaModel, jax.Array]:
        """Stripped counts of every edge, and the untied estimate behind them."""
        agreements, num_items = edge_counts(states, graph)
        if self.estimate is not None:
            if len(self.estimate) != graph.num_edges:
                raise ValueError(
                    f"StrippedBeta: expected one estimate per edge ({graph.num_edges}), got "
                    f"{len(self.estimate)}; pass agreements in the order of graph.edges"
                )
            estimate = jnp.asarray(self.estimate)
        elif graph.is_forest:
            estimate = agreements / num_items
        else:
            estimate = self._pcd(states, graph)
        # the small excess keeps 0.29 * 100 from being stripped to 28 by rounding
        counts = jnp.floor(num_items * estimate + 1e-3)
        return group_gibbs.StrippedBetaModel(counts, agreements, num_items), estimate

    def init(
        self,
        rng_key,
        labels,
        values,
        data: group_gibbs.StrippedBetaModel,
        graph: Graph,
        num_warmup: int,
    ) -> group_gibbs.GroupState:
        """State of the core sampler at a grouping."""
        plan = self._plan(graph)
        return group_gibbs.init(rng_key, labels, values, plan, num_particles=plan.num_chains)

    def step(
        self,
        rng_key,
        state: group_gibbs.GroupState,
        data: group_gibbs.StrippedBetaModel,
        graph: Graph,
        concentration,
        base: BaseMeasure,
    ) -> tuple[group_gibbs.GroupState, group_gibbs.GroupInfo]:
        """One sweep of the core sampler."""
        return group_gibbs.step(
            rng_key,
            state,
            data,
            graph,
            self._plan(graph),
            concentration=concentration,
            base=base,
            rule=self.rule,
            num_refits=0 if graph.is_forest else self.num_refits,
            refit_rate=self.refit_rate,
        )

    def _plan(self, graph: Graph) -> SamplerPlan:
        """How the particles are swept; a forest needs none."""
        num_particles = 1 if graph.is_forest else self.num_particles
        return sampler_plan(
            graph, Ising(None, None), num_chains=num_particles, num_sweeps=_NUM_SWEEPS
        )

    def maximum_likelihood(self, data, graph: Graph) -> jax.Array:
        """The untied estimate of the agreements alone, shape ``[edges]``.

        Args:
            data: Observations "items nodes", all in {0, 1} or all in {-1, +1}.
            graph: Graph of the field.

        Raises:
            ValueError: If the data do not fit the graph or hold other values.
        """
        states = as_states(data, 2, graph.num_nodes, caller="StrippedBeta.maximum_likelihood")
        return self._pcd(states, graph)

    def _pcd(self, states, graph: Graph) -> jax.Array:
        if isinstance(states, jax.core.Tracer):
            raise ValueError(
                "StrippedBeta: expected data that are known when the chain starts, got data being "
                "traced; pass estimate=StrippedBeta().maximum_likelihood(data, graph)"
            )
        fit = fit_contrastive(
            jax.random.key(self.seed),
            states,
            graph,
            parameters=jnp.zeros(graph.num_edges),
            build=no_fields(graph),
            num_steps=self.num_steps,
        )
        return agreements_from_couplings(fit.parameters)
