"""The README's own code blocks, commands and results table hold."""

import re
from pathlib import Path

import pytest

from benchmarks import table

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
RUN_LENGTH = re.compile(r"\b(num_(?:warmup|samples|steps|sweeps)=)\d[\d_]*")


def small_blocks(text: str) -> str:
    """The python blocks of a Markdown text as one program of the same length, runs cut short.

    Other lines become empty, so that a traceback names the line of the text.
    """
    inside, lines = False, []
    for line in text.splitlines():
        if line.startswith("```"):
            inside = line.strip() == "```python"
            line = ""
        lines.append(RUN_LENGTH.sub(r"\g<1>10", line) if inside else "")
    return "\n".join(lines)


def test_readme_code_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(small_blocks(README), "README.md", "exec"), {"__name__": "readme"})


def test_readme_table_equals_the_rows():
    assert table.updated(README) == README


@pytest.mark.parametrize("command", ["python -m pytest", "python -m benchmarks --only senate"])
def test_readme_commands_are_those_run_in_continuous_testing(command):
    assert command in README
    assert command in (ROOT / ".ci" / "run").read_text()


def test_blocks_run_in_order_in_one_namespace_with_short_runs():
    text = "```python\nx = dict(num_samples=2_500, num_chains=2)\n```\nb\n```python\ny = x\n```\n"
    namespace = {}
    exec(small_blocks(text), namespace)
    assert namespace["y"] == {"num_samples": 10, "num_chains": 2}


def test_block_that_fails_names_its_line():
    with pytest.raises(ZeroDivisionError) as caught:
        exec(compile(small_blocks("text\n```python\n1 / 0\n```"), "README.md", "exec"), {})
    assert caught.traceback[-1].lineno == 2  # counted from 0
