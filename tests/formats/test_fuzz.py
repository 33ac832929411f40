"""Mutated files parse or are refused in the house's form, and nothing else."""

import re

import numpy as np
import pytest

from jaxmrf.formats import read_bif, read_fg, read_uai

UAI = "BAYES\n3\n2 3 2\n3\n1 0\n2 0 1\n3 1 0 2\n\n2\n0.25 0.75\n6\n0.1 0.2 0.7 0.5 0.5 0\n12\n" + (
    "0.5 0.5 0 1 0.125 0.875\n1e-3 0.999 1 0 0.5 0.5\n"
)
FG = "# a grid\n3\n\n2\n0 1\n2 3\n4\n0 1.5\n2 0.5\n3 2\n5 1e-3\n\n" + (
    "1\n2\n2\n2\n0 1\n1 2\n\n2\n1 2\n3 2\n1\n5 1\n"
)
BIF = """network unknown {
}
variable a { // first
  type discrete [ 2 ] { yes, no };
}
variable "b c" {
  type discrete [ 3 ] { <5, 5-12, "12 +" };
  property position = (1, 2);
}
probability ( a | "b c" ) {
  (<5) 0.5, 0.5;
  ("12 +") 0.25, 0.75;
  default 1.0, 0.0;
}
probability ( "b c" ) {
  table 0.2, 0.3, 0.5;
}
"""
WORDS = (
    "-1 0 1 2 3 7 nan inf -0.0 1e400 0x1f 1_0 x ² 99999 2000000 4294967296 " + "9" * 5000
).split()
WORDS += [
    '"',
    "{",
    "}",
    "(",
    ")",
    ";",
    "|",
    ",",
    "/*",
    "//",
    "#",
    "\x00",
    "table",
    "\ufeff",
    "\u2028",
]
FORM = re.compile(r"(?s)(\w+): expected .+, got .+ at (\S+), line (\d+) \(token (\d+)\); .+")


def mutated(text, rng):
    """The bytes of a file after one to three accidents."""
    for _ in range(rng.integers(1, 4)):
        tokens = re.split(r"(\s+)", text)
        place = int(rng.integers(len(tokens)))
        lines = text.splitlines(keepends=True) or [""]
        first, second = rng.integers(len(lines), size=2)
        match rng.integers(7):
            case 0:
                del tokens[place]
            case 1:
                tokens.insert(place, f" {tokens[int(rng.integers(len(tokens)))]} ")
            case 2 | 3:
                tokens[place] = f" {WORDS[int(rng.integers(len(WORDS)))]} "
            case 4:
                tokens = [text[: int(rng.integers(len(text) + 1))]]
            case 5:
                lines[first], lines[second] = lines[second], lines[first]
                tokens = lines
            case 6:
                raw = bytearray(text.encode())
                for byte in rng.integers(len(raw) + 1, size=3):
                    raw[byte : byte + 1] = bytes([int(rng.integers(256))])
                return bytes(raw)
        text = "".join(tokens)
    return text.encode()


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("read", "text"), [(read_uai, UAI), (read_bif, BIF), (read_fg, FG)], ids=["uai", "bif", "fg"]
)
def test_mutated_file_parses_or_is_refused_with_its_place(tmp_path, read, text):
    path, num_refused = tmp_path / "model", 0
    path.write_text(text)
    whole = read(path)
    for seed in range(100):
        raw = mutated(text, np.random.default_rng(seed))
        path.write_bytes(raw)
        try:
            graph = read(path)
        except ValueError as error:
            num_refused += 1
            form = FORM.fullmatch(str(error))
            assert form, (seed, str(error))
            assert form[1] == read.__name__ and form[2] == str(path), (seed, str(error))
            assert 1 <= int(form[3]) <= raw.count(b"\n") + 1, (seed, str(error))
        else:
            assert not np.isnan(graph.log_tables).any() and (graph.log_tables < np.inf).all(), seed
    assert whole.num_nodes > 1 and 40 < num_refused < 100
