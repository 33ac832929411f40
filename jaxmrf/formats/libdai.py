"""Factor graphs in libDAI's ``.fg`` format.

Blocks of numbers separated by blank lines: scope, numbers of states, and the entries that are not
zero with their places in the table, of which the first variable runs fastest. Reference: Mooij
(2010), "libDAI", Journal of Machine Learning Research 11.
"""

import re
from os import PathLike
from pathlib import Path

import numpy as np

from jaxmrf.formats.decimals import decimals_of, factors_to_write
from jaxmrf.formats.tokens import MAX_ENTRIES, MAX_STATES, Tokens
from jaxmrf.models import FactorGraph

__all__ = ["read_fg", "write_fg"]

_WHOLE = "give a whole number"


def read_fg(path: str | PathLike) -> FactorGraph:
    """A factor graph from a ``.fg`` file, in float64 NumPy arrays.

    A variable below the largest number that is in no scope gets one state.

    Args:
        path: The file; ``#`` begins a comment.

    Returns:
        The model, factors in the order of the file, axes of the tables in the order of their
        scopes.

    Raises:
        OSError: If the file cannot be read.
        ValueError: If it breaks a rule of the format; the message names file, line, token.
    """
    tokens = Tokens(path, "read_fg", clean=lambda text: re.sub(r"#[^\n]*", "", text))
    num_factors = tokens.integer(
        "the number of factors, no more than the rest of the file has tokens",
        "begin with the number of blocks",
        high=tokens.num_left,
    )
    num_states: dict[int, int] = {}
    scopes, log_tables = [], []
    left = MAX_ENTRIES + tokens.num_left
    for factor in range(num_factors):
        start = tokens.place
        scope = _scope(tokens, factor, num_states)
        shape = [num_states[node] for node in scope]
        left -= tokens.check_shape(shape, start, high=left)
        table = _entries(tokens, factor, shape)
        scopes.append(scope)
        with np.errstate(divide="ignore"):
            log_tables.append(np.log(table).reshape(shape[::-1]).transpose())
    tokens.finish("the last factor")
    num_nodes = max(num_states, default=-1) + 1
    total = num_nodes - len(num_states) + sum(num_states.values())
    if total > MAX_STATES:
        raise tokens.error(
            f"at most {MAX_STATES} states of all variables",
            "number the variables from 0 and without gaps",
            got=f"{total}",
        )
    numbers = [num_states.get(node, 1) for node in range(num_nodes)]
    return FactorGraph.from_tables(numbers, scopes, log_tables)


def write_fg(factor_graph: FactorGraph, path: str | PathLike) -> None:
    """Write a factor graph as a ``.fg`` file, potentials as ``write_uai`` spells them.

    Args:
        factor_graph: The model; its evidence, if any, becomes one more factor per variable, and a
            variable in no scope gets a factor of ones.
        path: The file, replaced if it exists.

    Raises:
        ValueError: If a potential is no float64.
    """
    scopes, tables = factors_to_write(factor_graph, "write_fg", is_network=False)
    for node in sorted(set(range(factor_graph.num_nodes)) - {n for scope in scopes for n in scope}):
        scopes.append((node,))
        tables.append(np.zeros(factor_graph.num_states[node]))
    lines = [str(len(scopes))]
    words_of = decimals_of([table.transpose() for table in tables], "write_fg")
    for scope, words in zip(scopes, words_of, strict=True):
        entries = [f"{place} {word}" for place, word in enumerate(words) if word != "0"]
        shape = (factor_graph.num_states[node] for node in scope)
        lines += ["", str(len(scope)), " ".join(map(str, scope)), " ".join(map(str, shape))]
        lines += [str(len(entries)), *entries]
    Path(path).write_text("\n".join(lines) + "\n", encoding="utf-8")


def _scope(tokens: Tokens, factor: int, num_states: dict[int, int]) -> list[int]:
    """Scope of a factor; its variables' numbers of states are added."""
    start = tokens.place
    arity = tokens.integer(
        f"the number of variables of factor {factor}", _WHOLE, high=tokens.num_left
    )
    rule = f"{arity} variables in the scope of factor {factor}"
    scope = tokens.integers(arity, rule, "variables are numbered from 0", high=MAX_STATES - 1)
    if len(set(scope)) < arity:
        raise tokens.error(
            f"different variables in the scope of factor {factor}",
            "name each variable once",
            at=start,
            got=f"{scope}",
        )
    for node in scope:
        number = tokens.integer(
            f"a positive number of states of variable {node}",
            "give one per variable of the scope",
            low=1,
            high=MAX_STATES,
        )
        if num_states.setdefault(node, number) != number:
            raise tokens.error(
                f"{num_states[node]} states of variable {node} as before",
                "give every variable one number of states",
                at=tokens.place - 1,
            )
    return scope


def _entries(tokens: Tokens, factor: int, shape: list[int]) -> np.ndarray:
    """The flat table of a factor."""
    table = np.zeros(int(np.prod(shape, dtype=int)))
    count = tokens.integer(
        f"the number of non-zero entries of factor {factor}, at most {table.size}",
        _WHOLE,
        high=table.size,
    )
    rule = (
        f"{count} pairs of a place in 0..{table.size - 1}, each once, and a finite, non-negative "
        f"entry in the table of factor {factor}"
    )
    mend = "correct it or the number of entries before it"
    start = tokens.place
    if tokens.num_left < 2 * count:
        tokens.place = len(tokens.words)
        raise tokens.error(rule, "the file is cut short, or a count before this is too large")
    tokens.place += 2 * count
    places, values = tokens.numbers_at(range(start, tokens.place), rule, mend).reshape(count, 2).T
    is_place = np.array([word.isdigit() for word in tokens.words[start : tokens.place : 2]], bool)
    is_first = np.zeros(count, bool)
    is_first[np.unique(places, return_index=True)[1]] = True
    is_good = np.stack(
        [is_place & is_first & (places < table.size), (values >= 0) & (values < np.inf)], axis=1
    )
    if not is_good.all():
        raise tokens.error(rule, mend, at=start + int(np.argmin(is_good)))
    table[places.astype(int)] = values
    return table
