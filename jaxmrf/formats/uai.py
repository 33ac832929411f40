"""Models in the UAI format of the inference competitions.

A preamble (``MARKOV`` or ``BAYES``, the numbers of states, the scopes), then one table per scope
with its last variable running fastest. Reference: the file formats of the UAI 2008-2022
inference competitions.
"""

from collections.abc import Mapping
from os import PathLike
from pathlib import Path

import numpy as np

from jaxmrf.formats.decimals import decimals_of, factors_to_write
from jaxmrf.formats.tokens import MAX_STATES, Tokens
from jaxmrf.formats.uai_answers import parse_evidence
from jaxmrf.models import FactorGraph

__all__ = ["read_uai", "write_uai"]


def read_uai(
    path: str | PathLike, evidence: str | PathLike | Mapping[int, int] | None = None
) -> FactorGraph:
    """A factor graph from a ``.uai`` file, in float64 NumPy arrays.

    Tables are kept as printed: those of a Bayesian network are not renormalised. A table of zeros
    is legal; it makes the model impossible.

    Args:
        path: The model. In a ``BAYES`` file the child is the last variable of its scope.
        evidence: An ``.evid`` file, or the state of each observed variable.

    Returns:
        The model given the evidence, factors in the order of the file.

    Raises:
        OSError: If a file cannot be read.
        ValueError: If a file breaks a rule of the format; the message names file, line, token.
    """
    tokens = Tokens(path, "read_uai")
    kinds = ("MARKOV", "BAYES")
    is_network = tokens.word("MARKOV or BAYES", "begin with one of them", among=kinds) == "BAYES"
    num_nodes = tokens.integer(
        "the number of variables, no more than the rest of the file has tokens",
        "give a whole number",
        high=tokens.num_left,
    )
    start = tokens.place
    num_states = tokens.integers(
        num_nodes, f"{num_nodes} numbers of states, each a positive whole number", _COUNT, low=1
    )
    if sum(num_states) > MAX_STATES:
        raise tokens.error(
            f"at most {MAX_STATES} states of all variables",
            "correct the numbers of states",
            at=start + int(np.argmax(num_states)),
            got=str(sum(num_states)),
        )
    num_factors = tokens.integer(
        "the number of functions, no more than the rest of the file has tokens",
        "give a whole number",
        high=tokens.num_left,
    )
    scopes, starts = _scopes(tokens, num_states, num_factors)
    if is_network:
        _check_children(tokens, num_nodes, scopes, starts)
    log_tables = []
    for factor, scope in enumerate(scopes):
        shape = [num_states[node] for node in scope]
        place = tokens.place
        written = tokens.integer(f"the number of entries of table {factor}", _COUNT)
        if written != (size := tokens.check_shape(shape, starts[factor], high=2**62)):
            raise tokens.error(
                f"{size} entries in table {factor}, on variables {', '.join(map(str, scope))} "
                f"with {' x '.join(map(str, shape))} states",
                "correct this count, the scope or the numbers of states",
                at=place,
            )
        rule = f"{size} finite, non-negative entries in table {factor}"
        table = tokens.floats(size, rule, "give potentials or probabilities")
        with np.errstate(divide="ignore"):
            log_tables.append(np.log(table).reshape(shape))
    tokens.finish("the last table")
    graph = FactorGraph.from_tables(num_states, scopes, log_tables)
    if isinstance(evidence, str | PathLike):
        evidence = parse_evidence(Tokens(evidence, "read_uai"), graph.num_states)
    return graph.observe(evidence) if evidence else graph


def write_uai(
    factor_graph: FactorGraph,
    path: str | PathLike,
    *,
    kind: str = "MARKOV",
) -> None:
    """Write a factor graph as a ``.uai`` file.

    Every potential is written as a short decimal whose logarithm is the entry of the log
    table, so that a model read from a file is written and read back to the same bits. An entry
    that is not the logarithm of any float64 (many are not, if computed) comes back changed in its
    last digits.

    Args:
        factor_graph: The model; its evidence, if any, becomes one more factor per variable.
        path: The file, replaced if it exists.
        kind: ``"MARKOV"``, or ``"BAYES"`` for a Bayesian network: every variable the last of
            exactly one scope, arrows without a cycle.

    Raises:
        ValueError: If a potential is no float64, or the model is not of this kind.
    """
    if kind not in ("MARKOV", "BAYES"):
        raise ValueError(f"write_uai: expected kind MARKOV or BAYES, got {kind!r}; choose one")
    scopes, tables = factors_to_write(factor_graph, "write_uai", is_network=kind == "BAYES")
    lines = [kind, str(factor_graph.num_nodes), " ".join(map(str, factor_graph.num_states))]
    lines += [str(len(scopes)), *(" ".join(map(str, (len(scope), *scope))) for scope in scopes)]
    for words in decimals_of(tables, "write_uai"):
        lines += ["", str(len(words)), " ".join(words)]
    Path(path).write_text("\n".join(lines) + "\n", encoding="utf-8")


_COUNT = "give a positive whole number"


def _scopes(
    tokens: Tokens, num_states: list[int], num_factors: int
) -> tuple[list[list[int]], list[int]]:
    """Scopes of the factors, and the place of each in the file."""
    scopes, starts = [], []
    last = len(num_states) - 1
    for factor in range(num_factors):
        starts.append(tokens.place)
        arity = tokens.integer(
            f"the number of variables of function {factor}, at most {last + 1}",
            "give the length of the scope, then the scope",
            high=last + 1,
        )
        rule = f"{arity} variables in 0..{last} in the scope of function {factor}"
        scope = tokens.integers(arity, rule, "variables are numbered from 0", high=last)
        if len(set(scope)) < arity:
            raise tokens.error(
                f"different variables in the scope of function {factor}",
                "name each variable once",
                at=starts[-1],
                got=f"{scope}",
            )
        scopes.append(scope)
    return scopes, starts


def _check_children(
    tokens: Tokens, num_nodes: int, scopes: list[list[int]], starts: list[int]
) -> None:
    """Raise unless every variable is the last of exactly one scope and arrows form no cycle."""
    owner: dict[int, int] = {}
    for factor, scope in enumerate(scopes):
        if not scope or scope[-1] in owner:
            raise tokens.error(
                f"a variable without a table yet at the end of the scope of function {factor}",
                "put the child last and give it one table, or write MARKOV",
                at=starts[factor],
                got=f"{scope}",
            )
        owner[scope[-1]] = factor
    if len(owner) < num_nodes:
        missing = next(node for node in range(num_nodes) if node not in owner)
        raise tokens.error(
            f"one table per variable of a BAYES model, {num_nodes} in all",
            "add its conditional table, or write MARKOV",
            got=f"none for variable {missing}",
        )
    tokens.check_network(scopes, starts)
