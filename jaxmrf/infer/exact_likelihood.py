r"""The exact likelihood as the likelihood of ``GroupGibbs``, on graphs of small frontier.

.. math:: L_i(\theta) = \lambda^{S_i} (1 - \lambda)^{n - S_i}, \quad
          \lambda = \sigma(\mathrm{logit}\,\theta + h_i)

with the message :math:`h_i` of the rest of the field summed exactly. Reference: Liu & Page, NIPS
2013, section 4.2 (Gibbs_ExactL).
"""

from dataclasses import dataclass

from jaxmrf.graphs import Graph, frontier_plan
from jaxmrf.infer._edge_counts import edge_counts, untied_estimate
from jaxmrf.nonparametric import group_exact
from jaxmrf.nonparametric.base_measures import BaseMeasure
from jaxmrf.nonparametric.label_updates import DEFAULT_RULE, LabelRule

__all__ = ["ExactLikelihood"]


@dataclass(frozen=True)
class ExactLikelihood:
    """Options of the exact likelihood.

    Args:
        rule: How an edge chooses its group: ``Auxiliary``, ``Quadrature`` or ``Metropolis`` of
            ``nonparametric.label_updates``, which are Neal's Algorithms 8, 2 and 5.
        max_width: Largest frontier of the graph; memory and time double with every node.
    """

    start_clusters = None
    handles_inclusion = True

    rule: LabelRule = DEFAULT_RULE
    max_width: int = 16

    def prepare(self, states, graph: Graph):
        """Agreement counts of every edge, and the pseudo-likelihood estimate to start from."""
        self._plan(graph)
        return edge_counts(states, graph), untied_estimate(states, graph)

    def init(
        self,
        rng_key,
        labels,
        values,
        data: group_exact.EdgeCounts,
        graph: Graph,
        num_warmup: int,
        is_present=None,
    ) -> group_exact.ExactState:
        """State of the core sampler at a grouping."""
        return group_exact.init(labels, values, is_present)

    def step(
        self,
        rng_key,
        state: group_exact.ExactState,
        data: group_exact.EdgeCounts,
        graph: Graph,
        concentration,
        base: BaseMeasure,
        inclusion=None,
    ) -> tuple[group_exact.ExactState, group_exact.ExactInfo]:
        """One sweep of the core sampler."""
        return group_exact.step(
            rng_key,
            state,
            data,
            graph,
            self._plan(graph),
            concentration=concentration,
            base=base,
            rule=self.rule,
            inclusion=inclusion,
        )

    def _plan(self, graph: Graph):
        return frontier_plan(graph, max_width=self.max_width)
