r"""Discrete factor graphs as NumPyro distributions, exactly normalised and exactly drawn.

.. math:: \log p(x) = \sum_f \theta_f(x_f) + \sum_i \lambda_i(x_i) - \log Z

:math:`\log Z` and draws come from one elimination of the variables; where its tables would be too
large, ``log_prob`` raises, because an unnormalised one ruins every posterior over the parameters
without a warning. Reference: Kschischang, Frey & Loeliger, "Factor graphs and the sum-product
algorithm", IEEE Transactions on Information Theory 47 (2001).
"""

import math
from functools import cached_property
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.distributions import constraints as numpyro_constraints
from numpyro.distributions.util import validate_sample
from numpyro.util import not_jax_tracer

from jaxmrf.distributions._base import SortedFieldsDistribution, as_floats, broadcast
from jaxmrf.distributions.constraints import StatesBelow
from jaxmrf.distributions.random_field import IntractableNormalizerError
from jaxmrf.exact import draws, junction_tree
from jaxmrf.graphs import EliminationPlan, Hypergraph, elimination_plan
from jaxmrf.models import FactorGraph, log_potential_of

__all__ = ["DiscreteFactorGraph"]

DEFAULT_MAX_MEMORY = 2**30
"""Largest table of an elimination, in bytes of double precision."""

# NaN and plus infinity are outside, minus infinity (an impossible configuration) is inside
_LOG_WEIGHTS = numpyro_constraints.independent(numpyro_constraints.less_than(np.inf), 1)


class DiscreteFactorGraph(SortedFieldsDistribution):
    """A factor graph as a distribution over the configurations of its variables.

    An event is one configuration, integers of shape ``[nodes]``, each variable in its own
    ``0..num_states-1``. Leading axes of the parameters are batch axes; the structure, the plan and
    the limit of memory are static. An impossible configuration has log-probability minus infinity.

    Args:
        hypergraph: Variables and scopes.
        log_tables: Entries of all log tables, ``[..., entries]``, in the order of the hypergraph;
            minus infinity where impossible.
        log_evidence: Log likelihood of every state of every variable, ``[..., node_entries]``;
            none by default.
        plan: Elimination plan; by default the cheapest of a few.
        max_memory: Largest table of an elimination, in bytes of double precision, beyond which
            log Z is out of reach.
        validate_args: Whether to check parameters and values; by default as NumPyro is set.

    Raises:
        ValueError: If a parameter has the wrong width or, where known, is NaN or plus infinity,
            or the plan is of another hypergraph.

    >>> agree = np.log([[3.0, 1.0], [1.0, 3.0]])
    >>> pair = FactorGraph.from_tables([2, 2], [(0, 1)], [agree])
    >>> fn = DiscreteFactorGraph.from_factor_graph(pair)
    >>> round(float(jnp.exp(fn.log_prob(jnp.array([1, 1])))), 3)
    0.375
    """

    arg_constraints: ClassVar = {"log_evidence": _LOG_WEIGHTS, "log_tables": _LOG_WEIGHTS}
    pytree_data_fields = ("log_evidence", "log_tables")
    pytree_aux_fields = ("hypergraph", "max_memory", "plan")
    # NumPyro reads enumerate_support as the values of one coordinate
    has_enumerate_support = False

    def __init__(
        self,
        hypergraph: Hypergraph,
        log_tables,
        log_evidence=None,
        *,
        plan: EliminationPlan | None = None,
        max_memory: float = DEFAULT_MAX_MEMORY,
        validate_args: bool | None = None,
    ):
        _check_structure(hypergraph, plan)
        self.hypergraph = hypergraph
        self.plan = plan
        self.max_memory = max_memory
        if log_evidence is None:
            log_evidence = np.zeros(hypergraph.num_node_entries, jnp.result_type(log_tables, float))
        shapes = {"log_tables": np.shape(log_tables), "log_evidence": np.shape(log_evidence)}
        batch_shape = _batch_shape(hypergraph, shapes)
        for key, value in (("log_tables", log_tables), ("log_evidence", log_evidence)):
            # equal ranks, as promote_batch_shape asks; the batch axes stay unexpanded
            ones = (1,) * (len(batch_shape) + 1 - len(shapes[key]))
            setattr(self, key, broadcast(value, (*ones, *shapes[key])))
        super().__init__(batch_shape, (hypergraph.num_nodes,), validate_args=validate_args)

    @classmethod
    def from_factor_graph(cls, factor_graph: FactorGraph, **options) -> "DiscreteFactorGraph":
        """The distribution of a factor graph given its evidence; its labels are left behind.

        Args:
            factor_graph: The model.
            options: Keyword-only arguments of the class.
        """
        return cls(
            factor_graph.hypergraph, factor_graph.log_tables, factor_graph.log_evidence, **options
        )

    @classmethod
    def infer_shapes(cls, hypergraph: Hypergraph, *shapes, **named_shapes):
        """Batch and event shape from the structure and the parameters' shapes."""
        named_shapes |= dict(zip(("log_tables", "log_evidence"), shapes, strict=False))
        shapes = {
            "log_tables": named_shapes["log_tables"],
            "log_evidence": named_shapes.get("log_evidence", (hypergraph.num_node_entries,)),
        }
        return _batch_shape(hypergraph, shapes), (hypergraph.num_nodes,)

    def validate_args(self, strict: bool = True) -> None:
        """Check the parameters as NumPyro does, and say which entry is not a log weight.

        Args:
            strict: Whether parameters that are being traced are an error.

        Raises:
            ValueError: If a known parameter is NaN or plus infinity.
        """
        for key in self.arg_constraints:
            value = getattr(self, key)
            if not_jax_tracer(value) and not (np.asarray(value) < np.inf).all():
                index = tuple(np.argwhere(~(np.asarray(value) < np.inf))[0].tolist())
                raise ValueError(
                    f"DiscreteFactorGraph: expected {key} below infinity, got "
                    f"{np.asarray(value)[index]} at index {index}; pass logs of finite, "
                    "non-negative weights"
                )
        super().validate_args(strict=strict)

    @numpyro_constraints.dependent_property(is_discrete=True, event_dim=1)
    def support(self):
        """Vectors of integers, each below its variable's number of states."""
        return StatesBelow(self.hypergraph.num_states)

    @property
    def factor_graph(self) -> FactorGraph:
        """The factor graph, for the functions of the core.

        Raises:
            ValueError: If the distribution is batched.
        """
        if self.batch_shape:
            raise ValueError(
                "DiscreteFactorGraph.factor_graph: expected batch shape (), got "
                f"{self.batch_shape}; vmap over the parameters"
            )
        return FactorGraph(
            as_floats(self.log_tables), as_floats(self.log_evidence), self.hypergraph
        )

    @property
    def is_tractable(self) -> bool:
        """Whether the elimination stays within ``max_memory``."""
        return self._found_plan.memory <= self.max_memory

    @property
    def log_normalizer(self) -> jax.Array:
        """Natural log of Z, of the batch shape; differentiable to any order.

        Raises:
            IntractableNormalizerError: If a table of the elimination would be too large.
        """
        plan = self._plan_for("log_normalizer")
        return self._vectorize(lambda graph: junction_tree.log_z(graph, plan), "->()")

    def unnormalized_log_prob(self, value) -> jax.Array:
        """The log potential of each configuration, always available.

        Args:
            value: Configurations, nodes on the last axis.
        """
        states = jnp.asarray(value).astype(jnp.int32)
        return self._vectorize(log_potential_of, ",(nodes)->()", states)

    @validate_sample
    def log_prob(self, value) -> jax.Array:
        """The normalised log-probability of each configuration, minus infinity if impossible.

        Args:
            value: Configurations, nodes on the last axis.

        Raises:
            IntractableNormalizerError: If a table of the elimination would be too large.
        """
        self._plan_for("log_prob")
        log_z = self.log_normalizer
        # without any possible configuration every log potential is minus infinity, as it stays
        return self.unnormalized_log_prob(value) - jnp.where(log_z > -jnp.inf, log_z, 0.0)

    def sample(self, key, sample_shape=()) -> jax.Array:
        """Exact independent draws of shape ``sample_shape + batch_shape + [nodes]``, int32.

        Args:
            key: Random key.
            sample_shape: Shape of the independent draws.

        Raises:
            IntractableNormalizerError: If a table of the elimination would be too large.
        """
        plan = self._plan_for("sample")
        num_samples = math.prod(sample_shape)

        def draw(key, log_tables, log_evidence):
            graph = FactorGraph(log_tables, log_evidence, self.hypergraph)
            return draws.sample(key, graph, plan, num_samples=num_samples)

        count = math.prod(self.batch_shape)
        flat = [
            jnp.broadcast_to(value, (*self.batch_shape, value.shape[-1])).reshape(count, -1)
            for value in self._parameters()
        ]
        if self.batch_shape:
            drawn = jax.vmap(draw)(jax.random.split(key, count), *flat)
            drawn = jnp.moveaxis(drawn, 0, 1)
        else:
            drawn = draw(key, *(value[0] for value in flat))
        return drawn.reshape((*sample_shape, *self.batch_shape, *self.event_shape))

    @property
    def mean(self) -> jax.Array:
        """Exact mean state of every variable; for two states, the probability of state 1.

        Raises:
            IntractableNormalizerError: If a table of the elimination would be too large.
        """
        return self._moment(1, "mean")

    @property
    def variance(self) -> jax.Array:
        """Exact variance of the state of every variable.

        Raises:
            IntractableNormalizerError: If a table of the elimination would be too large.
        """
        return self._moment(2, "variance") - self.mean**2

    def _moment(self, power: int, method: str) -> jax.Array:
        plan, graph = self._plan_for(method), self.hypergraph
        owner, levels = graph.node_owners, graph.node_levels**power

        def moment(factor_graph):
            marginals = junction_tree.solve(factor_graph, plan).nodes.flat
            return jnp.zeros(graph.num_nodes, marginals.dtype).at[owner].add(levels * marginals)

        return self._vectorize(moment, "->(nodes)")

    @cached_property
    def _found_plan(self) -> EliminationPlan:
        return self.plan or elimination_plan(self.hypergraph, max_memory=math.inf)

    def _plan_for(self, method: str) -> EliminationPlan:
        if not self.is_tractable:
            plan = self._found_plan
            raise IntractableNormalizerError(
                f"DiscreteFactorGraph.{method}: expected tables of at most {self.max_memory:.3g} "
                f"bytes, got {plan.memory:.3g} (2^{plan.width:.1f} entries, treewidth "
                f"{plan.treewidth}); use unnormalized_log_prob, a better plan, a larger "
                "max_memory, or a method of jaxmrf.variational or jaxmrf.sampling"
            )
        return self._found_plan

    def _parameters(self) -> list[jax.Array]:
        return [as_floats(self.log_tables), as_floats(self.log_evidence)]

    def _vectorize(self, function, signature: str, *values) -> jax.Array:
        """Map a function of one factor graph (and one value) over all batch axes."""
        mapped = jnp.vectorize(
            lambda log_tables, log_evidence, *rest: function(
                FactorGraph(log_tables, log_evidence, self.hypergraph), *rest
            ),
            signature="(entries),(node_entries)" + signature,
        )
        return mapped(*self._parameters(), *values)


def _check_structure(hypergraph, plan) -> None:
    if not isinstance(hypergraph, Hypergraph):
        raise ValueError(
            "DiscreteFactorGraph: expected hypergraph to be a jaxmrf.graphs.Hypergraph, got "
            f"{type(hypergraph).__name__}; pass Hypergraph(num_states, scopes), or use "
            "from_factor_graph"
        )
    if plan is not None and getattr(plan, "hypergraph", None) != hypergraph:
        raise ValueError(
            f"DiscreteFactorGraph: expected a plan of {hypergraph}, got {plan!r}; pass "
            "elimination_plan(hypergraph)"
        )


def _batch_shape(hypergraph: Hypergraph, shapes: dict) -> tuple[int, ...]:
    widths = {
        "log_tables": ("entries", hypergraph.num_entries),
        "log_evidence": ("node_entries", hypergraph.num_node_entries),
    }
    for key, shape in shapes.items():
        axis, width = widths[key]
        if tuple(shape[-1:]) != (width,):
            raise ValueError(
                f"DiscreteFactorGraph: expected {key} of shape [..., {axis}] = [..., {width}], "
                f"got {tuple(shape)}; align it with the hypergraph"
            )
    try:
        return jnp.broadcast_shapes(*(tuple(shape[:-1]) for shape in shapes.values()))
    except ValueError:
        raise ValueError(
            f"DiscreteFactorGraph: expected leading axes that broadcast, got shapes {shapes}; "
            "align the batch axes of the parameters"
        ) from None
