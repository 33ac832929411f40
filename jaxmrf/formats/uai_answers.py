"""Evidence and answers in the UAI formats: ``.evid``, ``.MAR``, ``.PR`` and ``.MAP``.

Files of the older competitions, which have one line more (the number of samples, always 1), are
read too.
"""

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path

import numpy as np

from jaxmrf.formats.tokens import MAX_STATES, Tokens
from jaxmrf.models import Tables
from jaxmrf.types import ArrayLike

__all__ = [
    "parse_evidence",
    "read_uai_evidence",
    "read_uai_log10_z",
    "read_uai_marginals",
    "read_uai_mode",
    "write_uai_evidence",
    "write_uai_log10_z",
    "write_uai_marginals",
    "write_uai_mode",
]

_WHOLE = "give a whole number"


def read_uai_evidence(path: str | PathLike) -> dict[int, int]:
    """State of each observed variable in an ``.evid`` file; empty if there is none.

    Args:
        path: The file.

    Raises:
        OSError: If the file cannot be read.
        ValueError: If it breaks a rule of the format.
    """
    return parse_evidence(Tokens(path, "read_uai_evidence"), None)


def parse_evidence(tokens: Tokens, num_states: Sequence[int] | None) -> dict[int, int]:
    """Evidence from tokens, checked against the model if it is known."""
    if not tokens.num_left:
        return {}
    if tokens.num_left % 2 == 0 and tokens.line(0) < tokens.line(1):  # the count comes second
        tokens.integer("1 sample of evidence", "put every sample in its own file", low=1, high=1)
    num_observed = tokens.integer("the number of observed variables", _WHOLE)
    found: dict[int, int] = {}
    for _ in range(num_observed):
        start = tokens.place
        last = None if num_states is None else len(num_states) - 1
        among = "" if num_states is None else f" in 0..{last}"
        node = tokens.integer(
            f"an observed variable{among}, {num_observed} in all",
            "correct it or the count before it; variables are numbered from 0",
            high=last,
        )
        last = None if num_states is None else num_states[node] - 1
        among = "" if num_states is None else f" in 0..{last}"
        state = tokens.integer(
            f"a state{among} of variable {node}", "states are numbered from 0", high=last
        )
        if found.setdefault(node, state) != state:
            raise tokens.error(
                f"one state of variable {node}",
                "observe it once",
                at=start,
                got=f"{found[node]} and {state}",
            )
    tokens.finish(f"{num_observed} observed variables")
    return found


def write_uai_evidence(evidence: Mapping[int, int], path: str | PathLike) -> None:
    """Write an ``.evid`` file.

    Args:
        evidence: State of each observed variable, as ``FactorGraph.observed`` returns it.
        path: The file, replaced if it exists.
    """
    words = [len(evidence), *(number for pair in sorted(evidence.items()) for number in pair)]
    _write(path, [" ".join(str(int(word)) for word in words)])


def read_uai_marginals(path: str | PathLike) -> tuple[np.ndarray, ...]:
    """Marginal distribution of every variable from a ``.MAR`` file.

    Args:
        path: The file.

    Raises:
        OSError: If the file cannot be read.
        ValueError: If it breaks a rule of the format.
    """
    tokens = _start(path, "read_uai_marginals", "MAR")
    if _has_samples(tokens):
        tokens.place += 1
    num_nodes = tokens.integer("the number of variables", _WHOLE, high=tokens.num_left)
    found = []
    for node in range(num_nodes):
        number = tokens.integer(
            f"the number of states of variable {node}",
            "give a positive whole number",
            low=1,
            high=MAX_STATES,
        )
        rule = f"{number} probabilities of variable {node}"
        found.append(tokens.floats(number, rule, "give numbers from 0 to 1"))
    tokens.finish("the last marginal")
    return tuple(found)


def write_uai_marginals(nodes: Tables | Sequence[ArrayLike], path: str | PathLike) -> None:
    """Write marginal distributions as a ``.MAR`` file, with all their digits.

    Args:
        nodes: Marginal distribution of every variable: ``Beliefs.nodes``.
        path: The file, replaced if it exists.
    """
    words = [str(len(nodes))]
    for marginal in nodes:
        values = np.asarray(marginal, float).tolist()
        words += [str(len(values)), *map(repr, values)]
    _write(path, ["MAR", " ".join(words)])


def read_uai_log10_z(path: str | PathLike) -> float:
    """Logarithm to base 10 of the normaliser (or of the probability of evidence): a ``.PR`` file.

    Args:
        path: The file.

    Returns:
        A number, minus infinity for impossible evidence.

    Raises:
        OSError: If the file cannot be read.
        ValueError: If it breaks a rule of the format.
    """
    tokens = _start(path, "read_uai_log10_z", "PR")
    if tokens.num_left == 2:
        tokens.integer("at most 1 sample of evidence", _WHOLE, low=1, high=1)
    rule, mend = "a number below infinity", "give log10 of the normaliser"
    if not tokens.num_left:
        raise tokens.error(rule, mend)
    value = float(tokens.numbers_at([tokens.place], rule, mend)[0])
    if not value < np.inf:
        raise tokens.error(rule, mend)
    tokens.place += 1
    tokens.finish("the number")
    return value


def write_uai_log10_z(log10_z: float | ArrayLike, path: str | PathLike) -> None:
    """Write a ``.PR`` file.

    Args:
        log10_z: Logarithm to base 10: ``Beliefs.log_z / log(10)``.
        path: The file, replaced if it exists.
    """
    _write(path, ["PR", repr(float(log10_z))])


def read_uai_mode(path: str | PathLike) -> np.ndarray:
    """Most probable state of every variable from a ``.MAP`` (or ``.MPE``) file, shape ``[nodes]``.

    Args:
        path: The file.

    Raises:
        OSError: If the file cannot be read.
        ValueError: If it breaks a rule of the format.
    """
    tokens = _start(path, "read_uai_mode", ("MAP", "MPE"))
    if tokens.num_left > 2 and tokens.words[tokens.place] == "1":
        tokens.place += 1
    num_nodes = tokens.integer("the number of variables", _WHOLE, high=tokens.num_left)
    rule = f"{num_nodes} states"
    states = tokens.integers(num_nodes, rule, "states are numbered from 0", high=MAX_STATES)
    tokens.finish("the last state")
    return np.array(states, int)


def write_uai_mode(states: Sequence[int] | ArrayLike, path: str | PathLike) -> None:
    """Write a ``.MAP`` file.

    Args:
        states: State of every variable.
        path: The file, replaced if it exists.
    """
    words = np.asarray(states, int).tolist()
    _write(path, ["MAP", " ".join(map(str, (len(words), *words)))])


def _start(path: str | PathLike, reader: str, heads: str | Sequence[str]) -> Tokens:
    """The tokens of an answer after its first word."""
    heads = (heads,) if isinstance(heads, str) else heads
    tokens = Tokens(path, reader)
    tokens.word(" or ".join(heads), "begin with it", among=heads)
    return tokens


def _has_samples(tokens: Tokens) -> bool:
    """Whether a line of one number, 1, precedes marginals that do not fit as one variable's."""
    first, *others = tokens.words[tokens.place : tokens.place + 2] or [""]
    if first != "1" or not others or tokens.line(tokens.place) == tokens.line(tokens.place + 1):
        return False
    return not others[0].isdigit() or tokens.num_left != 2 + int(others[0][:9])


def _write(path: str | PathLike, lines: list[str]) -> None:
    """Write lines of text."""
    Path(path).write_text("\n".join(lines) + "\n", encoding="utf-8")
