r"""Ising, Potts and general pairwise fields as NumPyro distributions.

.. math:: p(x) = \exp\Big(\sum_i a_i(x_i) + \sum_{e=(u,v)} b_e(x_u, x_v)\Big) / Z

The agreement form of the Ising field is of Liu & Page, "Bayesian estimation of latently-grouped
parameters in undirected graphical models", NIPS 2013, section 2.
"""

from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.distributions import constraints as numpyro_constraints
from numpyro.util import not_jax_tracer

from jaxmrf import models
from jaxmrf.distributions._base import as_floats
from jaxmrf.distributions.constraints import spins
from jaxmrf.distributions.random_field import (
    DEFAULT_MAX_CONFIGURATIONS,
    DEFAULT_NUM_SWEEPS,
    MarkovRandomField,
)
from jaxmrf.graphs import Graph

__all__ = ["Ising", "PairwiseMRF", "Potts"]

_REAL_VECTOR = numpyro_constraints.real_vector
_REAL_MATRIX = numpyro_constraints.independent(numpyro_constraints.real, 2)
_REAL_TABLES = numpyro_constraints.independent(numpyro_constraints.real, 3)


class Ising(MarkovRandomField):
    """The Ising field, log potential ``sum_e J_e s_u s_v + sum_i h_i s_i`` with s = 2x - 1.

    Draws are in {0, 1}. Observations may be all in {0, 1} or all in {-1, +1}.

    Args:
        graph: The graph.
        couplings: J, shape ``[..., edges]`` or a scalar; positive favours agreement.
        fields: h, shape ``[..., nodes]`` or a scalar; positive favours state 1.
        num_sweeps: Gibbs sweeps behind one draw where exact draws are out of reach.
        max_configurations: Largest number of configurations to enumerate for log Z and draws.
        validate_args: Whether to check parameters and values; by default as NumPyro is set.

    Raises:
        ValueError: If a parameter has the wrong width or, where known, is not finite.

    >>> import jax
    >>> from jaxmrf.graphs import grid
    >>> field = Ising(grid((2, 2)), 0.5)
    >>> field.sample(jax.random.key(0), (3,)).shape
    (3, 4)
    """

    arg_constraints: ClassVar = {"couplings": _REAL_VECTOR, "fields": _REAL_VECTOR}
    support = spins
    pytree_data_fields = ("couplings", "fields")
    _core = models.Ising
    _axes: ClassVar = {"couplings": "edges", "fields": "nodes"}

    def __init__(
        self,
        graph: Graph,
        couplings,
        fields=0.0,
        *,
        num_sweeps: int = DEFAULT_NUM_SWEEPS,
        max_configurations: int = DEFAULT_MAX_CONFIGURATIONS,
        validate_args: bool | None = None,
    ):
        parameters = {"couplings": couplings, "fields": fields}
        super().__init__(
            graph,
            parameters,
            num_states=2,
            num_sweeps=num_sweeps,
            max_configurations=max_configurations,
            validate_args=validate_args,
        )

    @classmethod
    def from_agreement(cls, graph: Graph, agreements, fields=0.0, **options) -> "Ising":
        """The field with a factor theta on every edge whose ends agree, 1 - theta on the others.

        Args:
            graph: The graph.
            agreements: theta in (0, 1), shape ``[..., edges]`` or a scalar.
            fields: h, shape ``[..., nodes]`` or a scalar.
            **options: Options of the class.

        Raises:
            ValueError: If a known theta is NaN or outside (0, 1). Under tracing only NumPyro's
                own validation of the resulting couplings remains.
        """
        if not not_jax_tracer(agreements):
            couplings = models.couplings_from_agreements(as_floats(agreements))
            return cls(graph, couplings, fields, **options)
        agreements = np.asarray(agreements)
        is_inside = (agreements > 0) & (agreements < 1)
        if not is_inside.all():
            raise ValueError(
                "Ising.from_agreement: expected agreements in (0, 1), got "
                f"{agreements[~is_inside].ravel()[0]}; clip them, or pass couplings"
            )
        with jax.ensure_compile_time_eval():  # known values stay known, and so are validated
            couplings = models.couplings_from_agreements(as_floats(agreements))
        return cls(graph, couplings, fields, **options)

    @property
    def agreements(self) -> jax.Array:
        """Agreement parameters theta = sigmoid(2 J) of the couplings."""
        return models.agreements_from_couplings(as_floats(self.couplings))

    def _states(self, value) -> jax.Array:
        return (jnp.asarray(value) > 0).astype(jnp.int8)


class Potts(MarkovRandomField):
    """The Potts field, log potential ``sum_e J_e [x_u = x_v] + sum_i h_i(x_i)``.

    Args:
        graph: The graph.
        couplings: J, shape ``[..., edges]`` or a scalar; positive favours agreement.
        fields: h, shape ``[..., nodes, states]``, or a scalar together with ``num_states``.
        num_states: Number of values of one node; by default the last axis of ``fields``.
        num_sweeps: Gibbs sweeps behind one draw where exact draws are out of reach.
        max_configurations: Largest number of configurations to enumerate for log Z and draws.
        validate_args: Whether to check parameters and values; by default as NumPyro is set.

    Raises:
        ValueError: If a parameter has the wrong width or, where known, is not finite, or if the
            number of states is not given.
    """

    arg_constraints: ClassVar = {"couplings": _REAL_VECTOR, "fields": _REAL_MATRIX}
    pytree_data_fields = ("couplings", "fields")
    _core = models.Potts
    _axes: ClassVar = {"couplings": "edges", "fields": "nodes states"}

    def __init__(
        self,
        graph: Graph,
        couplings,
        fields=0.0,
        *,
        num_states: int | None = None,
        num_sweeps: int = DEFAULT_NUM_SWEEPS,
        max_configurations: int = DEFAULT_MAX_CONFIGURATIONS,
        validate_args: bool | None = None,
    ):
        num_states = _num_states("Potts", "fields", fields, num_states)
        parameters = {"couplings": couplings, "fields": fields}
        super().__init__(
            graph,
            parameters,
            num_states=num_states,
            num_sweeps=num_sweeps,
            max_configurations=max_configurations,
            validate_args=validate_args,
        )

    @numpyro_constraints.dependent_property(is_discrete=True, event_dim=1)
    def support(self):
        """Vectors of integers 0..K-1."""
        return _integers(self.num_states)


class PairwiseMRF(MarkovRandomField):
    """The general pairwise field, log potential ``sum_e b_e(x_u, x_v) + sum_i a_i(x_i)``.

    Args:
        graph: The graph.
        edge_tables: b, shape ``[..., edges, states, states]``, the edge's smaller node first.
        node_tables: a, shape ``[..., nodes, states]``, or a scalar.
        num_sweeps: Gibbs sweeps behind one draw where exact draws are out of reach.
        max_configurations: Largest number of configurations to enumerate for log Z and draws.
        validate_args: Whether to check parameters and values; by default as NumPyro is set.

    Raises:
        ValueError: If a parameter has the wrong width or, where known, is not finite.
    """

    arg_constraints: ClassVar = {"edge_tables": _REAL_TABLES, "node_tables": _REAL_MATRIX}
    pytree_data_fields = ("edge_tables", "node_tables")
    _core = models.Pairwise
    _axes: ClassVar = {"edge_tables": "edges states states", "node_tables": "nodes states"}

    def __init__(
        self,
        graph: Graph,
        edge_tables,
        node_tables=0.0,
        *,
        num_sweeps: int = DEFAULT_NUM_SWEEPS,
        max_configurations: int = DEFAULT_MAX_CONFIGURATIONS,
        validate_args: bool | None = None,
    ):
        num_states = _num_states("PairwiseMRF", "edge_tables", edge_tables, None)
        parameters = {"edge_tables": edge_tables, "node_tables": node_tables}
        super().__init__(
            graph,
            parameters,
            num_states=num_states,
            num_sweeps=num_sweeps,
            max_configurations=max_configurations,
            validate_args=validate_args,
        )

    @numpyro_constraints.dependent_property(is_discrete=True, event_dim=1)
    def support(self):
        """Vectors of integers 0..K-1."""
        return _integers(self.num_states)


def _integers(num_states: int):
    interval = numpyro_constraints.integer_interval(0, num_states - 1)
    return numpyro_constraints.independent(interval, 1)


def _num_states(name: str, key: str, value, num_states: int | None) -> int:
    """The number of states, from the last axis of a table or as given."""
    found = num_states if num_states is not None else (np.shape(value) or (None,))[-1]
    if found is None or found < 1:
        raise ValueError(
            f"{name}: expected a number of states, got {key} of shape {np.shape(value)} and "
            f"num_states {num_states}; pass {key} with an axis of states last"
            + (", or num_states" if name == "Potts" else "")
        )
    return found
