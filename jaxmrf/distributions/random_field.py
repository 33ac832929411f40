r"""Markov random fields as NumPyro distributions.

.. math:: \log p(x) = \phi(x) - \log Z, \qquad Z = \sum_x e^{\phi(x)}

``log_prob`` is normalised or raises, because an unnormalised one ruins every posterior over the
parameters without a warning; :math:`\phi` itself is ``unnormalized_log_prob``. Reference: Besag,
"Spatial interaction and the statistical analysis of lattice systems", JRSS B 36 (1974).
"""

import copy
import math
from functools import partial
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.distributions.util import validate_sample
from numpyro.util import not_jax_tracer

from jaxmrf.distributions._base import SortedFieldsDistribution, as_floats, broadcast
from jaxmrf.exact import enumeration
from jaxmrf.graphs import Graph
from jaxmrf.models import log_potential, log_pseudolikelihood
from jaxmrf.sampling import gibbs, sampler_plan

__all__ = ["IntractableNormalizerError", "MarkovRandomField"]

DEFAULT_NUM_SWEEPS = 200
DEFAULT_MAX_CONFIGURATIONS = 2**16


class IntractableNormalizerError(NotImplementedError):
    """Raised in place of a log-probability whose normaliser log Z is out of reach."""


class MarkovRandomField(SortedFieldsDistribution):
    """What all random fields on a graph share; build one of its subclasses.

    The parameters' leading axes are batch axes; an event is one configuration of the field,
    integers 0..K-1 of shape ``[nodes]``. The graph and the options are static.

    Attributes:
        graph: The graph.
        num_states: Number K of values of one node.
        num_sweeps: Gibbs sweeps behind one draw where exact draws are out of reach.
        max_configurations: Largest number of configurations to enumerate.
    """

    pytree_data_fields = ()
    pytree_aux_fields = (
        "_is_unnormalized",
        "graph",
        "max_configurations",
        "num_states",
        "num_sweeps",
    )
    # NumPyro reads enumerate_support as the values of one coordinate, which a field is not
    has_enumerate_support = False
    _core: ClassVar[type]  # the class of jaxmrf.models that holds one batch element
    _axes: ClassVar[dict[str, str]]  # parameter -> its event axes, in the order of infer_shapes

    def __init__(
        self,
        graph: Graph,
        parameters: dict,
        *,
        num_states: int,
        num_sweeps: int = DEFAULT_NUM_SWEEPS,
        max_configurations: int = DEFAULT_MAX_CONFIGURATIONS,
        validate_args: bool | None = None,
    ):
        name = type(self).__name__
        _check_options(name, graph, num_sweeps, max_configurations)
        self.graph = graph
        self.num_states = int(num_states)
        self.num_sweeps = int(num_sweeps)
        self.max_configurations = int(max_configurations)
        self._is_unnormalized = False
        sizes = {"edges": graph.num_edges, "nodes": graph.num_nodes, "states": self.num_states}
        events = {
            key: tuple(sizes[axis] for axis in axes.split()) for key, axes in self._axes.items()
        }
        shapes = {
            key: _check_shape(name, key, value, self._axes[key], events[key])
            for key, value in parameters.items()
        }
        batch_shape = _batch_shape(name, shapes, self._axes)
        for key, value in parameters.items():
            event = events[key]
            own = shapes[key][: -len(event)] if shapes[key] else ()
            ones = (1,) * (len(batch_shape) - len(own))
            # equal ranks, as promote_batch_shape asks; the batch axes themselves stay unexpanded
            setattr(self, key, broadcast(value, (*ones, *own, *event)))
        super().__init__(batch_shape, (graph.num_nodes,), validate_args=validate_args)

    def validate_args(self, strict: bool = True) -> None:
        """Check the parameters as NumPyro does, and say which entry is not finite.

        Args:
            strict: Whether parameters that are being traced are an error.

        Raises:
            ValueError: If a known parameter is NaN or infinite.
        """
        for key in self._axes:
            value = getattr(self, key)
            if not_jax_tracer(value) and not np.isfinite(value).all():
                index = tuple(np.argwhere(~np.isfinite(value))[0].tolist())
                raise ValueError(
                    f"{type(self).__name__}: expected finite {key}, got invalid "
                    f"{np.asarray(value)[index]} at index {index}; replace or drop it"
                )
        super().validate_args(strict=strict)

    @classmethod
    def infer_shapes(cls, graph: Graph, *shapes, **named_shapes):
        """Batch and event shape from the graph and the parameters' shapes; options are ignored."""
        named_shapes |= dict(zip(cls._axes, shapes, strict=False))
        shapes_of_arrays = {key: named_shapes.get(key, ()) for key in cls._axes}
        batch_shape = _batch_shape(cls.__name__, shapes_of_arrays, cls._axes)
        return batch_shape, (graph.num_nodes,)

    @property
    def model(self):
        """The field as a pytree of ``jaxmrf.models``, for the functions of the core.

        Raises:
            ValueError: If the distribution is batched.
        """
        if self.batch_shape:
            raise ValueError(
                f"{type(self).__name__}.model: expected batch shape (), got {self.batch_shape}; "
                "vmap over the parameters"
            )
        return self._core(*self._parameters())

    @property
    def is_tractable(self) -> bool:
        """Whether log Z is found by enumeration, within ``max_configurations``."""
        return enumeration.is_enumerable(
            self.graph.num_nodes, self.num_states, self.max_configurations
        )

    @property
    def log_normalizer(self) -> jax.Array:
        """Natural log of Z, of the batch shape; differentiable in the parameters.

        Raises:
            IntractableNormalizerError: If there are more than ``max_configurations``.
        """
        self._check_tractable("log_normalizer")
        return self._vectorize(lambda model: _log_z(model, self.graph), "->()")

    def unnormalized_log_prob(self, value) -> jax.Array:
        """The log potential of each configuration, always available.

        Args:
            value: Configurations, nodes on the last axis.
        """
        return self._vectorize(
            lambda model, states: _log_potential(model, self.graph, states),
            ",(nodes)->()",
            self._states(value),
        )

    @validate_sample
    def log_prob(self, value) -> jax.Array:
        """The normalised log-probability of each configuration.

        Args:
            value: Configurations, nodes on the last axis.

        Raises:
            IntractableNormalizerError: If log Z is out of reach.
        """
        if self._is_unnormalized:
            return self.unnormalized_log_prob(value)
        self._check_tractable("log_prob")
        return self.unnormalized_log_prob(value) - self.log_normalizer

    def pseudo_log_prob(self, value) -> jax.Array:
        """Log pseudo-likelihood of each configuration: a composite likelihood, not ``log_prob``.

        Args:
            value: Configurations, nodes on the last axis.
        """
        return self._vectorize(
            lambda model, states: _log_pseudolikelihood(model, self.graph, states[None])[0],
            ",(nodes)->()",
            self._states(value),
        )

    def unnormalized(self) -> "MarkovRandomField":
        """A copy whose ``log_prob`` leaves out log Z.

        For kernels that hold the parameters fixed or cancel log Z themselves. Anywhere else the
        posterior of the parameters is silently wrong.
        """
        new = copy.copy(self)
        new._is_unnormalized = True
        return new

    def sample(self, key, sample_shape=()) -> jax.Array:
        """Configurations of shape ``sample_shape + batch_shape + [nodes]``, int32.

        Exact and independent where the field is tractable. Elsewhere an approximation: the state
        of independent chains after ``num_sweeps`` coloured Gibbs sweeps from uniform states,
        which may be far from the field at strong couplings.

        Args:
            key: Random key.
            sample_shape: Shape of the independent draws.
        """
        num_samples = math.prod(sample_shape)
        draw = partial(_draw_exact, num_samples=num_samples)
        if not self.is_tractable:
            draw = partial(_draw_gibbs, num_samples=num_samples, num_sweeps=self.num_sweeps)
        if not self.batch_shape:
            drawn = draw(key, self.model, self.graph)
        else:
            count = math.prod(self.batch_shape)
            flat = []
            for value, axes in zip(self._parameters(), self._axes.values(), strict=True):
                event = value.shape[-len(axes.split()) :]
                value = jnp.broadcast_to(value, self.batch_shape + event)
                flat.append(value.reshape((count, *event)))
            keys = jax.random.split(key, count)
            drawn = jax.vmap(lambda k, *p: draw(k, self._core(*p), self.graph))(keys, *flat)
            drawn = jnp.moveaxis(drawn, 0, 1)
        shape = (*sample_shape, *self.batch_shape, *self.event_shape)
        return drawn.reshape(shape).astype(jnp.int32)

    def enumerate_configurations(self) -> jax.Array:
        """All configurations, on a leading axis that broadcasts against the batch shape.

        Raises:
            IntractableNormalizerError: If there are more than ``max_configurations``.
        """
        self._check_tractable("enumerate_configurations")
        table = enumeration.configurations(self.graph.num_nodes, self.num_states)
        shape = (-1, *(1 for _ in self.batch_shape), self.graph.num_nodes)
        return jnp.asarray(table.reshape(shape), dtype=jnp.int32)

    @property
    def mean(self) -> jax.Array:
        """Exact mean state of every node; for two states, the probability of state 1.

        Raises:
            IntractableNormalizerError: If there are more than ``max_configurations``.
        """
        return self._moment(1, "mean")

    @property
    def variance(self) -> jax.Array:
        """Exact variance of the state of every node.

        Raises:
            IntractableNormalizerError: If there are more than ``max_configurations``.
        """
        return self._moment(2, "variance") - self.mean**2

    def _moment(self, power: int, method: str) -> jax.Array:
        self._check_tractable(method)
        levels = jnp.arange(self.num_states) ** power
        return self._vectorize(lambda model: _solve(model, self.graph).nodes @ levels, "->(nodes)")

    def _parameters(self) -> list[jax.Array]:
        """The parameters as floating-point arrays, in the order of the core model."""
        return [as_floats(getattr(self, key)) for key in self._axes]

    def _vectorize(self, function, signature: str, *values) -> jax.Array:
        """Map a function of one core model (and one value) over all batch axes."""
        inputs = ",".join(f"({axes.replace(' ', ',')})" for axes in self._axes.values())
        count = len(self._axes)
        mapped = jnp.vectorize(
            lambda *args: function(self._core(*args[:count]), *args[count:]),
            signature=inputs + signature,
        )
        return mapped(*self._parameters(), *values)

    def _states(self, value) -> jax.Array:
        """A value coded as integers 0..K-1."""
        return jnp.asarray(value).astype(jnp.int32)

    def _check_tractable(self, method: str) -> None:
        if not self.is_tractable:
            raise IntractableNormalizerError(
                f"{type(self).__name__}.{method}: expected at most {self.max_configurations} "
                f"configurations for an exact log Z, got {self.num_states}**"
                f"{self.graph.num_nodes}; update the parameters by an ExchangeMH or GroupGibbs "
                "block inside MRFGibbs, use unnormalized_log_prob or pseudo_log_prob, or take a "
                "smaller graph or a larger max_configurations"
            )


_log_potential = jax.jit(log_potential)
_log_pseudolikelihood = jax.jit(log_pseudolikelihood)
_log_z = jax.jit(enumeration.log_z)
_solve = jax.jit(enumeration.solve)
_draw_exact = jax.jit(enumeration.sample, static_argnames="num_samples")


@partial(jax.jit, static_argnames=("num_samples", "num_sweeps"))
def _draw_gibbs(key, model, graph, *, num_samples, num_sweeps):
    """Chains last while they run, one draw a row when they return."""
    plan = sampler_plan(graph, model, num_chains=num_samples, num_sweeps=num_sweeps)
    key_start, key_run = jax.random.split(key)
    states = gibbs.init(key_start, model, plan, num_chains=num_samples)
    return gibbs.run(key_run, states, model, plan, num_sweeps=num_sweeps).T


def _check_options(name: str, graph, num_sweeps: int, max_configurations: int) -> None:
    if not isinstance(graph, Graph):
        raise ValueError(
            f"{name}: expected graph to be a jaxmrf.graphs.Graph, got {type(graph).__name__}; "
            "pass Graph(num_nodes, edges) or Graph.from_networkx(graph)"
        )
    if num_sweeps < 1:
        raise ValueError(
            f"{name}: expected num_sweeps to be at least 1, got {num_sweeps}; raise it"
        )
    if not 0 <= max_configurations <= enumeration.MAX_CONFIGURATIONS:
        raise ValueError(
            f"{name}: expected max_configurations in 0..{enumeration.MAX_CONFIGURATIONS}, got "
            f"{max_configurations}; lower it"
        )


def _check_shape(name: str, key: str, value, axes: str, event: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of a parameter, checked to be a scalar or to end in its event shape."""
    shape = np.shape(value)
    if shape and shape[-len(event) :] != event:
        wanted = ", ".join(axes.split())
        raise ValueError(
            f"{name}: expected {key} of shape [..., {wanted}] = [..., "
            f"{', '.join(map(str, event))}] or a scalar, got {shape}; align it with the graph"
        )
    return shape


def _batch_shape(name: str, shapes: dict, axes: dict[str, str]) -> tuple[int, ...]:
    batches = [tuple(shape)[: -len(axes[key].split())] for key, shape in shapes.items() if shape]
    try:
        return jnp.broadcast_shapes(*batches) if batches else ()
    except ValueError:
        raise ValueError(
            f"{name}: expected leading axes that broadcast, got shapes {shapes}; "
            "align the batch axes of the parameters"
        ) from None
