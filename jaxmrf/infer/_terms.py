r"""Which sums inside a program are worth taking apart, and how its terms become tables.

.. math:: \sum_e \ell_e(z_{S_e}) = \sum_f \theta_f(z_{S_f}), \qquad
          \theta_f(k) = \sum_{e:\, S_e = S_f} \ell_e(k)

All tables come from few runs of the program, because variables that share no scope may take their
values at the same time: they have one colour, and every set of colours of a scope sees all its
configurations in some run. Reference: Curtis, Powell & Reid, "On the estimation of sparse Jacobian
matrices", J. Inst. Math. Appl. 13 (1974), for the colours.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.extend.core import Literal

from jaxmrf.graphs import Hypergraph, color
from jaxmrf.infer._scopes import EMPTY, structural_function

__all__ = ["Layout", "layout", "split_terms"]

_SUMS = {"add", "add_any", "cumsum", "neg", "reduce_sum", "sub"}
_MAX_FITS = 10**8


def split_terms(jaxpr, facts: dict, atoms: Sequence, num_states: Sequence[int]) -> list:
    """The variables whose weighted sum is the sum of the given ones, with the smallest tables.

    A sum (or another linear operation) is taken apart where its parts together need smaller tables
    than itself. The given atoms come back, in their order, where nothing is gained.

    Args:
        jaxpr: An open jaxpr without calls.
        facts: Facts of its variables.
        atoms: Variables (not literals) whose elements are summed.
        num_states: Number of states of every variable of the scopes.
    """
    logs = np.log2(num_states)

    def cost(scopes) -> float:
        return sum(2.0 ** min(sum(logs[node] for node in scope), 1000.0) for scope in scopes)

    makers = {eqn.outvars[0]: eqn for eqn in jaxpr.eqns if len(eqn.outvars) == 1}
    operands, stack = {}, list(atoms)
    while stack:
        variable = stack.pop()
        if variable not in operands:
            eqn = makers.get(variable)
            operands[variable] = _linear_operands(eqn, facts) if eqn is not None else None
            stack.extend(operands[variable] or ())
    best: dict = {}
    order = [*jaxpr.constvars, *jaxpr.invars, *(v for eqn in jaxpr.eqns for v in eqn.outvars)]
    for variable in order:
        if variable not in operands:
            continue
        scopes = facts[variable].scopes
        own = frozenset() if scopes is None else frozenset(scopes.flat) - {EMPTY}
        best[variable] = ({variable: None}, own)
        if operands[variable]:
            parts = [best[operand] for operand in operands[variable]]
            together = frozenset().union(*(found for _, found in parts))
            if together != own and cost(together) <= cost(own):
                terms = {term: None for found, _ in parts for term in found}
                best[variable] = (terms, together)
    if all(list(best[atom][0]) == [atom] for atom in atoms):
        return list(atoms)
    return list({term: None for atom in atoms for term in best[atom][0]})


def _linear_operands(eqn, facts: dict) -> list | None:
    """The operands that depend on something, if the operation is linear in them; or None."""
    name = eqn.primitive.name
    dependent = [
        atom
        for atom in eqn.invars
        if not isinstance(atom, Literal) and facts[atom].scopes is not None
    ]
    if not dependent or any(not jnp.issubdtype(a.aval.dtype, jnp.floating) for a in dependent):
        return None
    is_first = dependent == [eqn.invars[0]]
    is_linear = (
        name in _SUMS
        or (name in ("mul", "dot_general") and len(dependent) == 1)
        or (name in ("div", "gather", "dynamic_slice") and is_first)
        or (name == "select_n" and eqn.invars[0] not in dependent)
        or (name != "stop_gradient" and structural_function(eqn) is not None)
    )
    return dependent if is_linear else None


class Layout(NamedTuple):
    """How the values of all terms in all runs become log tables.

    Attributes:
        hypergraph: Variables, and one factor for each scope.
        states: State of every variable in every run, ``[runs, nodes]``.
        source: Places in the flat array of values, runs times elements.
        target: Places in the flat array of log tables to add them to.
        constants: Elements without a scope.
        num_elements: Number of elements of all terms.
    """

    hypergraph: Hypergraph
    states: np.ndarray
    source: np.ndarray
    target: np.ndarray
    constants: np.ndarray
    num_elements: int


def layout(scopes: Sequence[frozenset], num_states: Sequence[int]) -> Layout:
    """Tables for elements of given scopes.

    Args:
        scopes: Variables of every element.
        num_states: Number of states of every variable.
    """
    members: dict[tuple[int, ...], list[int]] = {}
    for element, scope in enumerate(scopes):
        members.setdefault(tuple(sorted(scope)), []).append(element)
    constants = np.array(members.pop((), []), int)
    hypergraph = Hypergraph(num_states, list(members))
    colors = color(hypergraph.primal_graph()) if hypergraph.num_nodes else np.zeros(0, int)
    groups: dict[tuple, list[int]] = {}
    for factor, scope in enumerate(hypergraph.scopes):
        key = (tuple(colors[list(scope)].tolist()), hypergraph.table_shape(factor))
        groups.setdefault(key, []).append(factor)
    runs = _runs(list(groups), int(colors.max(initial=-1)) + 1)
    sources, targets = [np.zeros(0, int)], [np.zeros(0, int)]
    elements_of = [np.array(elements, int) for elements in members.values()]
    for (own, shape), factors in groups.items():
        places = _first_places(runs[:, list(own)], shape)
        elements = np.concatenate([elements_of[factor] for factor in factors])
        counts = [len(elements_of[factor]) for factor in factors]
        starts = np.repeat(hypergraph.table_starts[factors], counts)
        sources.append((places * len(scopes) + elements[:, None]).ravel())
        targets.append((starts[:, None] + np.arange(math.prod(shape))).ravel())
    states = np.minimum(runs[:, colors], np.array(num_states, int) - 1)
    return Layout(
        hypergraph,
        states,
        np.concatenate(sources),
        np.concatenate(targets),
        constants,
        len(scopes),
    )


def _runs(needs: list[tuple], num_colors: int) -> np.ndarray:
    """States of the colours, few rows in which every needed set of colours takes all its values."""
    runs = np.zeros((0, num_colors), int)
    for colors, shape in sorted(needs, key=lambda need: (-math.prod(need[1]), need)):
        colors = list(colors)
        wanted = np.indices(shape).reshape(len(shape), -1).T
        present = _codes(runs[:, colors], shape)
        missing = wanted[~np.isin(np.arange(len(wanted)), present)]
        free = np.flatnonzero((runs[:, colors] < 0).any(axis=1))
        added = np.full((len(missing), num_colors), -1)
        added[:, colors] = missing
        is_kept = np.ones(len(missing), bool)
        if len(missing) * len(free) <= _MAX_FITS:
            block = runs[free][:, colors]
            for place, values in enumerate(missing):
                fits = np.flatnonzero(((block == values) | (block < 0)).all(axis=1))
                if len(fits):
                    block[fits[0]] = values
                    is_kept[place] = False
            runs[np.ix_(free, colors)] = block
        runs = np.concatenate([runs, added[is_kept]])
    return np.maximum(runs, 0) if len(runs) else np.zeros((1, num_colors), int)


def _codes(values: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Number of each row as a configuration; -1 if it is none."""
    is_one = ((values >= 0) & (values < np.array(shape, int))).all(axis=1)
    codes = np.ravel_multi_index(tuple(np.where(is_one[:, None], values, 0).T), shape)
    return np.where(is_one, codes, -1)


def _first_places(values: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """The first row that has each configuration."""
    codes = _codes(values, shape)
    found = np.zeros(math.prod(shape), int)
    rows = np.flatnonzero(codes >= 0)[::-1]
    found[codes[rows]] = rows
    return found
