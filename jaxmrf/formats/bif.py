"""Bayesian networks in the Interchange Format (BIF), version 0.15, as the bnlearn repository uses.

Blocks ``variable NAME { type discrete [ 2 ] { yes, no }; }`` and ``probability ( CHILD | PARENTS )
{ (yes, no) 0.1, 0.9; ... }``. Reference: Cozman (1998), "The Interchange Format for Bayesian
Networks".
"""

import re
from collections.abc import Iterable
from os import PathLike
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jaxmrf.formats.decimals import decimals_of, factors_to_write
from jaxmrf.formats.tokens import MAX_ENTRIES, MAX_STATES, Tokens
from jaxmrf.models import FactorGraph, Labels

__all__ = ["read_bif", "write_bif"]

_MARKS = "{}()[],;|"
_COMMENT = re.compile(r'"[^"]*"|//[^\n]*|/\*(?:.*?\*/|.*)', re.DOTALL)
_TOKEN = re.compile(r'"[^"]*"|[{}()\[\],;|]|[^\s{}()\[\],;|"]+|"')


class _Table(NamedTuple):
    """A probability block as written: rows are (place in the file, parents' states, numbers)."""

    start: int
    child: str
    parents: list[str]
    rows: list[tuple[int, list[str] | None, int, np.ndarray]]


def read_bif(path: str | PathLike) -> FactorGraph:
    """A Bayesian network from a ``.bif`` file, in float64 NumPy arrays, with its names.

    Tables are kept as printed, not renormalised. Numbers after ``table`` are read as the format
    says, the last variable running fastest, the child being the first; a row after ``default``
    stands for the rows that are not written.

    Args:
        path: The file.

    Returns:
        The network; variables in the order of their blocks, factor i the table of variable i,
        its axes the parents as written and then the child.

    Raises:
        OSError: If the file cannot be read.
        ValueError: If it breaks a rule of the format; the message names file, line, token.
    """
    tokens = Tokens(path, "read_bif", pattern=_TOKEN, clean=_without_comments)
    states: dict[str, list[str]] = {}
    blocks: dict[str, _Table] = {}
    if not tokens.num_left:
        raise tokens.error("a network, variable or probability block", "give a BIF file")
    while tokens.num_left:
        keyword = tokens.word(
            "a network, variable or probability block",
            "remove the rest or put it in a comment",
            among=("network", "variable", "probability"),
        )
        if keyword == "network":
            _skip_network(tokens)
        elif keyword == "variable":
            _read_variable(tokens, states)
        else:
            block = _read_probability(tokens)
            if block.child in blocks:
                raise tokens.error(
                    "one probability block per variable",
                    "remove one",
                    at=block.start,
                    got=f"another for {block.child!r}",
                )
            blocks[block.child] = block
    return _build(tokens, states, blocks)


def write_bif(factor_graph: FactorGraph, path: str | PathLike) -> None:
    """Write a Bayesian network as a ``.bif`` file, probabilities as ``write_uai`` spells them.

    Args:
        factor_graph: Every variable the last of exactly one scope, and no evidence. Without
            labels, variables are named x0, x1, ... and states s0, s1, ...
        path: The file, replaced if it exists.

    Raises:
        ValueError: If the model is no such network, a name contains a quotation mark, or a
            probability is no float64.
    """
    scopes, tables = factors_to_write(factor_graph, "write_bif", is_network=True)
    labels = factor_graph.labels or Labels(
        tuple(f"x{node}" for node in range(factor_graph.num_nodes)),
        tuple(tuple(f"s{state}" for state in range(n)) for n in factor_graph.num_states),
    )
    names = [_quoted(name) for name in labels.nodes]
    states = [[_quoted(name) for name in own] for own in labels.states]
    lines = ["network unknown {", "}"]
    for name, own in zip(names, states, strict=True):
        kind = f"type discrete [ {len(own)} ] {{ {', '.join(own)} }};"
        lines += [f"variable {name} {{", f"  {kind}", "}"]
    for scope, words in zip(scopes, decimals_of(tables, "write_bif"), strict=True):
        *parents, child = scope
        given = f" | {', '.join(names[node] for node in parents)}" if parents else ""
        lines.append(f"probability ( {names[child]}{given} ) {{")
        width = len(states[child])
        for row, index in enumerate(np.ndindex(*(len(states[node]) for node in parents))):
            pairs = zip(parents, index, strict=True)
            head = f"({', '.join(states[node][i] for node, i in pairs)})" if parents else "table"
            lines.append(f"  {head} {', '.join(words[row * width : (row + 1) * width])};")
        lines.append("}")
    Path(path).write_text("\n".join(lines) + "\n", encoding="utf-8")


def _without_comments(text: str) -> str:
    """The text with comments blanked, line breaks and quoted names kept."""

    def blank(match: re.Match) -> str:
        found = match.group()
        return found if found[0] == '"' else " " + "\n" * found.count("\n")

    return _COMMENT.sub(blank, text)


def _quoted(name: str) -> str:
    """A name as one token."""
    if '"' in name:
        raise ValueError(
            f"write_bif: expected names without quotation marks, got {name!r}; rename it"
        )
    return (
        name if _TOKEN.fullmatch(name) and name not in _MARKS and "/" not in name else f'"{name}"'
    )


def _name(tokens: Tokens, what: str) -> str:
    """The next token as a name, without its quotation marks."""
    mend = "write it as a word, or between quotation marks"
    if tokens.num_left and tokens.words[tokens.place] in _MARKS + '"':
        raise tokens.error(what, mend)
    word = tokens.word(what, mend)
    return word[1:-1] if word[0] == '"' else word


def _names(tokens: Tokens, end: str, what: str) -> list[str]:
    """Names up to a closing mark, commas between them or not."""
    found = []
    while True:
        if tokens.num_left and tokens.words[tokens.place] == end:
            tokens.place += 1
            return found
        found.append(_name(tokens, f"{what} or {end}"))
        if tokens.num_left and tokens.words[tokens.place] == ",":
            tokens.place += 1


def _mark(tokens: Tokens, mark: str, where: str) -> None:
    """Read one given token."""
    tokens.word(f"{mark} {where}", "put it here", among=(mark,))


def _skip_property(tokens: Tokens) -> None:
    """Read up to the semicolon."""
    while tokens.word("; after a property", "end the property with it") != ";":
        pass


def _skip_network(tokens: Tokens) -> None:
    """Read the network block, which says nothing about the model."""
    if tokens.num_left and tokens.words[tokens.place] != "{":
        _name(tokens, "the name of the network or {")
    _mark(tokens, "{", "after network and its name")
    while tokens.word("property or }", "end the block with }", among=("property", "}")) != "}":
        _skip_property(tokens)


def _read_variable(tokens: Tokens, states: dict[str, list[str]]) -> None:
    """Read a variable block into `states`."""
    start = tokens.place
    name = _name(tokens, "the name of a variable")
    if name in states:
        raise tokens.error("one block per variable", "remove or rename it", at=start)
    own: list[str] = []
    _mark(tokens, "{", f"after variable {name}")
    ends = ("type", "property", "}")
    while True:
        start = tokens.place
        keyword = tokens.word("type, property or }", f"end variable {name} with }}", among=ends)
        if keyword == "property":
            _skip_property(tokens)
        elif keyword == "}":
            break
        else:
            if own:
                raise tokens.error(f"one type of variable {name}", "remove one", at=start)
            _mark(tokens, "discrete", "after type; other types are not supported")
            _mark(tokens, "[", "before the number of states")
            place = tokens.place
            rule = f"the positive number of states of variable {name}"
            number = tokens.integer(rule, "give a whole number", low=1, high=MAX_STATES)
            _mark(tokens, "]", "after the number of states")
            _mark(tokens, "{", "before the names of states")
            own = _names(tokens, "}", f"a state of variable {name}")
            if len(own) != number or len(set(own)) < number:
                raise tokens.error(
                    f"as many different states of variable {name} as names in braces",
                    "correct the number or the names",
                    at=place,
                    got=f"{number} states named {', '.join(own[:8])}",
                )
            _mark(tokens, ";", "after the names of states")
    if not own:
        raise tokens.error(
            f"a type of variable {name}", "say type discrete [ 2 ] { yes, no };", at=start
        )
    states[name] = own


def _read_probability(tokens: Tokens) -> _Table:
    """Read a probability block, without looking up its names."""
    _mark(tokens, "(", "after probability")
    start = tokens.place
    child = _name(tokens, "the name of the child")
    if tokens.num_left and tokens.words[tokens.place] in ("|", ","):
        tokens.place += 1
    parents = _names(tokens, ")", f"a parent of {child}")
    _mark(tokens, "{", "before the numbers")
    rows: list[tuple[int, list[str] | None, int, np.ndarray]] = []
    while True:
        place = tokens.place
        keyword = tokens.word(
            "table, default, property, ( or }",
            f"end the block of {child} with }}",
            among=("table", "default", "property", "(", "}"),
        )
        if keyword == "}":
            return _Table(start, child, parents, rows)
        if keyword == "property":
            _skip_property(tokens)
            continue
        given = _names(tokens, ")", "a state of a parent") if keyword == "(" else None
        first = tokens.place
        rows.append((place, given, first, _read_numbers(tokens, child)))


def _read_numbers(tokens: Tokens, child: str) -> np.ndarray:
    """Probabilities up to the semicolon, commas between them or not."""
    start = tokens.place
    try:
        stop = tokens.words.index(";", start)
    except ValueError:
        tokens.place = len(tokens.words)
        raise tokens.error("; after the probabilities", "end every row with it") from None
    places = [place for place in range(start, stop) if tokens.words[place] != ","]
    rule = f"finite, non-negative probabilities of {child} and ; after them"
    values = []
    for tokens.place in places:
        values.append(tokens.floats(1, rule, "give a number")[0])
    tokens.place = stop + 1
    return np.array(values)


def _build(tokens: Tokens, states: dict[str, list[str]], blocks: dict[str, _Table]) -> FactorGraph:
    """The network of the blocks, all names looked up."""
    number_of = {name: node for node, name in enumerate(states)}
    for block in blocks.values():
        for name in (block.child, *block.parents):
            if name not in number_of:
                raise tokens.error(
                    "the name of a variable block",
                    "declare the variable",
                    at=block.start,
                    got=f"{name!r}",
                )
        if len({block.child, *block.parents}) <= len(block.parents):
            raise tokens.error(
                f"different variables in the block of {block.child}",
                "name each once",
                at=block.start,
                got=", ".join((block.child, *block.parents)),
            )
    scopes, tables, left = [], [], MAX_ENTRIES + len(tokens.words)
    for name in states:
        if name not in blocks:
            raise tokens.error(
                "one probability block per variable",
                "add its table",
                at=len(tokens.words),
                got=f"none for {name!r}",
            )
        block = blocks[name]
        shape = [len(states[parent]) for parent in (*block.parents, name)]
        left -= tokens.check_shape(shape, block.start, high=left)
        scopes.append(tuple(number_of[parent] for parent in (*block.parents, name)))
        tables.append(_fill(tokens, block, shape, [states[parent] for parent in block.parents]))
    tokens.check_network(scopes, [blocks[name].start for name in states])
    with np.errstate(divide="ignore"):
        log_tables = [np.log(table) for table in tables]
    labels = Labels(tuple(states), tuple(map(tuple, states.values())))
    sizes = [len(own) for own in states.values()]
    return FactorGraph.from_tables(sizes, scopes, log_tables, labels=labels)


def _fill(
    tokens: Tokens, block: _Table, shape: list[int], states: Iterable[list[str]]
) -> np.ndarray:
    """The table of a block, child last."""
    places_of = [{name: place for place, name in enumerate(own)} for own in states]
    table = np.full(shape, np.nan)
    is_full = np.zeros(shape[:-1], bool)
    default = None
    for place, given, first, values in block.rows:
        keyword = tokens.words[place]
        expected = table.size if keyword == "table" else shape[-1]
        if len(values) != expected:
            raise tokens.error(
                f"{expected} probabilities of {block.child} after {keyword}",
                "one per state (and per row of a whole table)",
                at=first,
                got=str(len(values)),
            )
        if keyword == "default":
            if default is not None:
                raise tokens.error(f"one default of {block.child}", "remove one", at=place)
            default = values
            continue
        index: tuple = ()
        if given is not None:
            if len(given) != len(places_of) or any(
                name not in own for name, own in zip(given, places_of, strict=True)
            ):
                raise tokens.error(
                    f"one state of each parent of {block.child}: {', '.join(block.parents)}",
                    "use the names in their variable blocks",
                    at=place,
                    got=f"({', '.join(given)})",
                )
            index = tuple(own[name] for name, own in zip(given, places_of, strict=True))
        if is_full[index].any():
            raise tokens.error(
                f"every row of {block.child} once", "remove or correct one", at=place
            )
        is_full[index] = True
        whole = values.reshape(shape[-1], *shape[:-1]) if keyword == "table" else values
        table[index] = np.moveaxis(whole, 0, -1) if keyword == "table" else whole
    if default is not None:
        table[~is_full] = default
    elif not is_full.all():
        row = np.argwhere(~is_full)[0].tolist()
        pairs = zip(places_of, row, strict=True)
        missing = ", ".join(list(own)[place] for own, place in pairs)
        raise tokens.error(
            f"a row of {block.child} for every state of its parents, or a default",
            "add it",
            at=block.start,
            got=f"none for ({missing})",
        )
    return table
