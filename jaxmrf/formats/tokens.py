"""A text file as a row of tokens, every error naming the file, the line and the token.

Files are read whole and split once; numbers are converted in bulk, and the line of a token is
looked up only when there is an error to report.
"""

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import islice
from os import PathLike
from pathlib import Path

import numpy as np

__all__ = ["MAX_AXES", "MAX_ENTRIES", "MAX_STATES", "Tokens"]

MAX_AXES = 64
"""Largest number of axes of a NumPy array."""

MAX_STATES = 2**22
"""Largest number of states of all variables together."""

MAX_ENTRIES = 2**24
"""Largest number of entries of all tables together that a file may leave unwritten (128 MiB)."""


class Tokens:
    """The tokens of a file and the place of the next one.

    Args:
        path: The file.
        reader: Name of the public function, for its errors.
        pattern: Regular expression of one token; without it, tokens are separated by blanks.
        clean: What removes comments; it must keep line breaks.

    Raises:
        OSError: If the file cannot be read.
        ValueError: If it is not UTF-8.
    """

    def __init__(
        self,
        path: str | PathLike,
        reader: str,
        *,
        pattern: re.Pattern | None = None,
        clean: Callable[[str], str] | None = None,
    ):
        self.path, self.reader, self.place = path, reader, 0
        raw = Path(path).read_bytes()
        try:
            text = raw.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            before = raw[: error.start]
            raise ValueError(
                f"{reader}: expected UTF-8 text, got byte {raw[error.start]:#04x} at {path}, line "
                f"{before.count(10) + 1} (token {len(before.split()) + 1}); save the file as UTF-8"
            ) from None
        self._text = clean(text) if clean else text
        self._pattern = pattern
        self.words = pattern.findall(self._text) if pattern else self._text.split()

    @property
    def num_left(self) -> int:
        """Number of tokens not read yet."""
        return len(self.words) - self.place

    def error(self, rule: str, mend: str, *, at: int | None = None, got: str = "") -> ValueError:
        """The error of a broken rule, at the next token unless told otherwise."""
        at = self.place if at is None else at
        if at < len(self.words):
            word = self.words[at]
            got = got or repr(word if len(word) <= 40 else word[:37] + "...")
        return ValueError(
            f"{self.reader}: expected {rule}, got {got or 'the end of the file'} at {self.path}, "
            f"line {self.line(at)} (token {at + 1}); {mend}"
        )

    def line(self, place: int) -> int:
        """The line of a token, counted from 1; after the last token, the last line."""
        end = len(self._text.rstrip())
        if place < len(self.words):
            found = (self._pattern or re.compile(r"\S+")).finditer(self._text)
            end = next(islice(found, place, None)).start()
        return self._text.count("\n", 0, end) + 1

    def word(self, rule: str, mend: str, *, among: Collection[str] = ()) -> str:
        """The next token, one of `among` if given."""
        if not self.num_left or (among and self.words[self.place] not in among):
            raise self.error(rule, mend)
        self.place += 1
        return self.words[self.place - 1]

    def integer(self, rule: str, mend: str, *, low: int = 0, high: int | None = None) -> int:
        """The next token as a whole number in low..high."""
        return self.integers(1, rule, mend, low=low, high=high)[0]

    def integers(
        self, count: int, rule: str, mend: str, *, low: int = 0, high: int | None = None
    ) -> list[int]:
        """The next tokens as whole numbers in low..high."""
        values = []
        for word in self.words[self.place : self.place + count]:
            if not (word.isascii() and word.isdigit() and len(word) <= 18):
                raise self.error(rule, mend)
            value = int(word)
            if value < low or (high is not None and value > high):
                raise self.error(rule, mend)
            values.append(value)
            self.place += 1
        if len(values) < count:
            raise self.error(rule, "the file is cut short, or a count before this is too large")
        return values

    def floats(self, count: int, rule: str, mend: str) -> np.ndarray:
        """The next tokens as finite, non-negative numbers, shape ``[count]``."""
        start = self.place
        self.place = min(start + count, len(self.words))
        values = self.floats_at(range(start, self.place), rule, mend)
        if len(values) < count:
            raise self.error(rule, "the file is cut short, or a count before this is too large")
        return values

    def floats_at(self, places: Sequence[int], rule: str, mend: str) -> np.ndarray:
        """Tokens at given places as finite, non-negative numbers, shape ``[places]``."""
        values = self.numbers_at(places, rule, mend)
        bad = ~((values >= 0) & (values < np.inf))
        if bad.any():
            raise self.error(rule, mend, at=places[int(np.argmax(bad))])
        return values

    def numbers_at(self, places: Sequence[int], rule: str, mend: str) -> np.ndarray:
        """Tokens at given places as numbers of any kind, shape ``[places]``."""
        words = [self.words[place] for place in places]
        values = _floats(words)
        if values is None:
            bad = next(i for i, word in enumerate(words) if _floats([word]) is None)
            raise self.error(rule, mend, at=places[bad])
        return values

    def finish(self, what: str) -> None:
        """Raise unless all tokens are read."""
        if self.num_left:
            raise self.error(
                f"the end of the file after {what}", "remove the rest, or correct a count before it"
            )

    def check_shape(self, shape: Iterable[int], at: int, *, high: int = MAX_ENTRIES) -> int:
        """Number of entries of a table, raising before anything too large is built."""
        shape, size = tuple(shape), 1
        if len(shape) > MAX_AXES:
            raise self.error(
                f"at most {MAX_AXES} variables in one table",
                "split the factor",
                at=at,
                got=str(len(shape)),
            )
        for number in shape:
            size *= number
            if size > high:
                raise self.error(
                    f"at most {high} entries in the tables that are left",
                    "give the variables fewer states, or the factor fewer variables",
                    at=at,
                    got=f"a table of shape {' x '.join(map(str, shape))}",
                )
        return size

    def check_network(self, scopes: Sequence[Sequence[int]], starts: Sequence[int]) -> None:
        """Raise if an arrow leads back to where it came from; child last, `starts` for errors."""
        try:
            TopologicalSorter({scope[-1]: scope[:-1] for scope in scopes}).prepare()
        except CycleError as error:
            cycle = error.args[1]
            child = next(i for i, scope in enumerate(scopes) if scope[-1] == cycle[0])
            raise self.error(
                "arrows without a cycle",
                "turn one of the arrows, or write the model as MARKOV",
                at=starts[child],
                got=f"the cycle {' - '.join(map(str, cycle))} of variables",
            ) from None


def _floats(words: Sequence[str]) -> np.ndarray | None:
    """The numbers that tokens spell in plain digits, if all do."""
    joined = "".join(words)
    if "_" in joined or not joined.isascii():  # float("1_0") is ten; other scripts too
        return None
    try:
        return np.array(list(map(float, words)))
    except ValueError:
        return None
