r"""Discrete factor graphs: variables of any number of states, factors of any number of variables.

.. math:: p(x) = \exp\Big(\sum_f \theta_f(x_f) + \sum_i \lambda_i(x_i)\Big) / Z

The log tables :math:`\theta` and the log evidence :math:`\lambda` are two flat arrays, laid out by
the ``Hypergraph``; an entry of minus infinity is an impossible configuration. Hard evidence is a
:math:`\lambda_i` that leaves one state, soft evidence any likelihood. Reference: Jordan, "Graphical
models", Statistical Science 19 (2004), section 2.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from graphlib import CycleError, TopologicalSorter
from typing import Any, NamedTuple, SupportsIndex

import jax
import jax.numpy as jnp
import numpy as np

from jaxmrf.graphs import Graph, Hypergraph
from jaxmrf.models.beliefs import Tables
from jaxmrf.models.pairwise import PairwiseModel
from jaxmrf.types import Array, ArrayLike, Float, Int, Leaf

__all__ = ["FactorGraph", "Labels", "log_potential_of"]


class Labels(NamedTuple):
    """Names of the variables and of their states.

    Attributes:
        nodes: Name of every variable.
        states: Names of the states of every variable.
    """

    nodes: tuple[str, ...]
    states: tuple[tuple[str, ...], ...]


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class FactorGraph:
    """A discrete factor graph; build one with ``from_tables`` or its siblings.

    Attributes:
        log_tables: Entries of all log tables, shape ``[entries]``, in the order of the hypergraph.
        log_evidence: Log likelihood of every state of every variable, shape ``[node_entries]``.
        hypergraph: Variables and scopes.
        labels: Names, if the model has any.
    """

    log_tables: Leaf
    log_evidence: Leaf
    hypergraph: Hypergraph = field(metadata={"static": True})
    labels: Labels | None = field(default=None, metadata={"static": True})

    @classmethod
    def from_tables(
        cls,
        num_states: Iterable,
        scopes: Iterable,
        log_tables: Sequence[Any],
        *,
        labels: Labels | None = None,
    ) -> "FactorGraph":
        """A factor graph from one log table per factor.

        NumPy tables stay NumPy, in their own precision; JAX arrays and tracers become one array.

        Args:
            num_states: Number of states of every variable.
            scopes: Variables of every factor, in the order of its table's axes.
            log_tables: Log potential of every factor; minus infinity where impossible.
            labels: Names of variables and states.

        Raises:
            ValueError: If a table does not fit its scope, or holds NaN or plus infinity.

        >>> graph = FactorGraph.from_tables([2, 2], [(0, 1)], [np.log([[3.0, 1.0], [1.0, 3.0]])])
        >>> graph.log_table(0).shape
        (2, 2)
        """
        hypergraph = Hypergraph(num_states, scopes)
        if len(log_tables) != hypergraph.num_factors:
            raise ValueError(
                f"FactorGraph: expected {hypergraph.num_factors} tables, got {len(log_tables)}; "
                "pass one table per scope"
            )
        known = np.ndarray | np.generic | list | float
        is_concrete = all(isinstance(table, known) for table in log_tables)
        xp = np if is_concrete else jnp
        tables = [xp.asarray(table) for table in log_tables]
        for factor, table in enumerate(tables):
            if table.shape != hypergraph.table_shape(factor):
                raise ValueError(
                    f"FactorGraph: expected a table of shape {hypergraph.table_shape(factor)} for "
                    f"factor {factor} on {hypergraph.scopes[factor]}, got {table.shape}; order "
                    "its axes as the scope"
                )
            _check_entries(table, f"table {factor}")
        order = [factor for stack in hypergraph.stacks for factor in stack.factors]
        parts = [tables[factor].ravel() for factor in order]
        flat = xp.concatenate(parts) if parts else np.zeros(0)
        flat = flat if xp.issubdtype(flat.dtype, xp.floating) else flat.astype(float)
        evidence = xp.zeros(hypergraph.num_node_entries, flat.dtype)
        return cls(flat, evidence, hypergraph, labels)

    @classmethod
    def from_conditionals(
        cls,
        num_states: Iterable,
        parents: Sequence[Sequence[int]],
        log_tables: Sequence[Any],
        *,
        labels: Labels | None = None,
    ) -> "FactorGraph":
        """A Bayesian network: one conditional table per variable, its own axis last.

        Args:
            num_states: Number of states of every variable.
            parents: Parents of every variable, in the order of its table's axes.
            log_tables: Log p(variable | parents), the variable on the last axis.
            labels: Names of variables and states.

        Raises:
            ValueError: As for ``from_tables``, or if the arrows form a cycle.
        """
        scopes = [(*own, node) for node, own in enumerate(parents)]
        _check_acyclic(parents)
        return cls.from_tables(num_states, scopes, log_tables, labels=labels)

    @classmethod
    def from_pairwise(cls, model: PairwiseModel, graph: Graph) -> "FactorGraph":
        """The factor graph of a pairwise model: its node tables, then its edge tables.

        Args:
            model: Ising, Potts or general tables.
            graph: Its graph.
        """
        tables = model.tables()
        scopes = [(node,) for node in range(graph.num_nodes)] + graph.edges.tolist()
        hypergraph = Hypergraph([model.num_states] * graph.num_nodes, scopes)
        flat = jnp.concatenate([tables.node_tables.ravel(), tables.edge_tables.ravel()])
        evidence = jnp.zeros(hypergraph.num_node_entries, flat.dtype)
        return cls(flat, evidence, hypergraph)

    @property
    def num_nodes(self) -> int:
        """Number of variables."""
        return self.hypergraph.num_nodes

    @property
    def num_states(self) -> tuple[int, ...]:
        """Number of states of every variable."""
        return self.hypergraph.num_states

    @property
    def scopes(self) -> tuple[tuple[int, ...], ...]:
        """Variables of every factor."""
        return self.hypergraph.scopes

    def log_table(self, factor: SupportsIndex) -> ArrayLike:
        """The log table of one factor, axes in the order of its scope."""
        return Tables(self.log_tables, self.hypergraph, is_of_factors=True)[factor]

    def node(self, name: str | int) -> int:
        """Number of a variable from its name.

        Raises:
            ValueError: If there is no such variable.
        """
        if isinstance(name, str):
            names = self.labels.nodes if self.labels else ()
            if name not in names:
                raise ValueError(
                    f"FactorGraph: expected the name of a variable, got {name!r}; names are "
                    f"{', '.join(names[:8]) or 'not known for this model'}"
                )
            return names.index(name)
        if not 0 <= name < self.num_nodes:
            raise ValueError(
                f"FactorGraph: expected a variable in 0..{self.num_nodes - 1}, got {name}; "
                "variables are numbered from 0"
            )
        return int(name)

    def observe(self, evidence: Mapping[str | int, Any]) -> "FactorGraph":
        """The same model given evidence on some variables.

        Args:
            evidence: For each variable (number or name) its state (number or name), or the
                likelihood of each of its states (soft evidence), non-negative and not all zero.

        Raises:
            ValueError: If a variable or state does not exist, or a likelihood is not one.
        """
        added = np.zeros(self.hypergraph.num_node_entries)
        for name, value in evidence.items():
            node = self.node(name)
            start = int(self.hypergraph.node_starts[node])
            added[start : start + self.num_states[node]] += self._log_likelihood(node, value)
        dtype = self.log_evidence.dtype
        return replace(self, log_evidence=self.log_evidence + added.astype(dtype))

    def observe_states(self, states: Int[ArrayLike, " nodes"]) -> "FactorGraph":
        """The same model given the states of some variables, -1 for those not seen.

        Works on tracers, so that ``jax.vmap`` over states is a batch of evidence; a state that
        does not exist makes the evidence impossible.

        Args:
            states: State of every variable, or -1.
        """
        graph = self.hypergraph
        seen = jnp.asarray(states)[graph.node_owners]
        is_allowed = (seen < 0) | (seen == graph.node_levels)
        return replace(
            self, log_evidence=jnp.where(is_allowed, jnp.asarray(self.log_evidence), -jnp.inf)
        )

    def observed(self) -> dict[int, int]:
        """State of every variable whose evidence leaves only one; of concrete evidence.

        Variables with a single state are among them.
        """
        found = {}
        evidence = Tables(np.asarray(self.log_evidence), self.hypergraph, is_of_factors=False)
        for node, log_likelihood in enumerate(evidence):
            possible = np.flatnonzero(log_likelihood > -np.inf)
            if len(possible) == 1:
                found[node] = int(possible[0])
        return found

    def condition(self, states: Mapping[int, Any]) -> "FactorGraph":
        """The model of the other variables, with tables sliced at given states.

        Variables keep their numbers; those given are in no scope any more, and their evidence
        leaves the given state. Cheaper than ``observe`` for every exact method, because the
        structure is smaller, but every set of variables is a new structure.

        Args:
            states: State of each given variable; a number, or a traced integer, which makes the
                evidence impossible if there is no such state.

        Raises:
            ValueError: If a variable or a known state does not exist.
        """
        for node, state in states.items():
            self.node(node)
            if isinstance(state, int | np.integer):
                self._log_likelihood(node, state)
        is_concrete = all(isinstance(state, int | np.integer) for state in states.values())
        xp = np if is_concrete and isinstance(self.log_tables, np.ndarray) else jnp
        scopes, tables = [], []
        for factor, scope in enumerate(self.scopes):
            table = xp.asarray(self.log_table(factor))
            for axis in reversed(range(len(scope))):
                if scope[axis] in states:
                    table = table.take(states[scope[axis]], axis=axis, mode="clip")
            scopes.append(tuple(node for node in scope if node not in states))
            tables.append(xp.asarray(table))
        new = FactorGraph.from_tables(self.num_states, scopes, tables, labels=self.labels)
        parts = list(Tables(xp.asarray(self.log_evidence), self.hypergraph, is_of_factors=False))
        for node, state in states.items():
            is_here = xp.arange(self.num_states[node]) == state
            parts[node] = xp.where(is_here, parts[node], -np.inf)
        evidence = xp.concatenate(parts) if parts else self.log_evidence
        return replace(new, log_evidence=evidence)

    def _log_likelihood(self, node: int, value: Any) -> np.ndarray:
        """Log likelihood of the states of a variable from a state or a likelihood, checked."""
        number = self.num_states[node]
        if isinstance(value, str):
            names = self.labels.states[node] if self.labels else ()
            if value not in names:
                raise ValueError(
                    f"FactorGraph: expected a state of variable {node}, got {value!r}; states are "
                    f"{', '.join(names[:8]) or 'not named in this model'}"
                )
            value = names.index(value)
        value = np.asarray(value)
        with np.errstate(divide="ignore"):
            if value.ndim == 0 and np.issubdtype(value.dtype, np.integer):
                if not 0 <= value < number:
                    raise ValueError(
                        f"FactorGraph: expected a state in 0..{number - 1} of variable {node}, got "
                        f"{value}; states are numbered from 0"
                    )
                return np.log(np.arange(number) == value)
            if value.shape != (number,) or not (value >= 0).all() or not 0 < value.sum() < np.inf:
                raise ValueError(
                    f"FactorGraph: expected a state or {number} likelihoods, non-negative and not "
                    f"all zero, of variable {node}, got {value.tolist()}; pass one per state"
                )
            return np.log(value.astype(float))


def log_potential_of(
    factor_graph: FactorGraph, states: Int[ArrayLike, "nodes *chains"]
) -> Float[Array, "*chains"]:
    """Unnormalised log-probability of configurations, evidence included.

    Args:
        factor_graph: The model.
        states: State of every variable; further axes hold further configurations.
    """
    graph, states = factor_graph.hypergraph, jnp.asarray(states, jnp.int32)
    log_tables = jnp.asarray(factor_graph.log_tables)
    along = (slice(None), *(None,) * (states.ndim - 1))  # what belongs to factors, for all chains
    places = graph.node_starts.astype(np.int32)[along] + states
    total = jnp.asarray(factor_graph.log_evidence)[places].sum(axis=0)
    for stack in graph.stacks:
        places = graph.table_starts[stack.factors].astype(np.int32)[along]
        for axis in range(len(stack.shape)):
            stride = math.prod(stack.shape[axis + 1 :])
            places = places + stride * states[stack.nodes[:, axis]]
        total += log_tables[places].sum(axis=0)
    return total


def _check_entries(table: ArrayLike, name: str) -> None:
    """Raise for NaN or plus infinity in a known table."""
    if isinstance(table, jax.core.Tracer):
        return
    values = np.asarray(table)
    bad = np.isnan(values) | (values == np.inf)
    if bad.any():
        index = tuple(np.argwhere(bad)[0].tolist())
        raise ValueError(
            f"FactorGraph: expected log potentials below infinity, got {values[index]} at "
            f"{index} of {name}; pass the log of a finite, non-negative table"
        )


def _check_acyclic(parents: Sequence[Sequence[int]]) -> None:
    """Raise if the arrows from parents form a cycle."""
    try:
        TopologicalSorter(dict(enumerate(parents))).prepare()
    except CycleError as error:
        raise ValueError(
            f"FactorGraph.from_conditionals: expected arrows without a cycle, got one among "
            f"variables {sorted(set(error.args[1]))[:8]}; use from_tables for an undirected model"
        ) from None
