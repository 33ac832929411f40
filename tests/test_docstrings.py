"""Runs the examples in the package's docstrings, found by ast so that no decorator hides one."""

import ast
import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef


def examples(path: Path):
    """(name, docstring, line) of every docstring of a file that holds an example."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, DOCUMENTED) and ">>>" in (text := ast.get_docstring(node) or ""):
            yield getattr(node, "name", "module"), text, getattr(node, "lineno", 1)


def run(name: str, text: str, namespace: dict) -> str:
    """What a doctest run has to complain about."""
    complaints = []
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    test = doctest.DocTestParser().get_doctest(text, namespace, name, name, 0)
    doctest.DocTestRunner(optionflags=flags).run(test, out=complaints.append)
    return "".join(complaints)


FOUND = [
    pytest.param(path, name, text, id=f"{path.relative_to(ROOT)}:{line}")
    for path in sorted((ROOT / "jaxmrf").rglob("*.py"))
    for name, text, line in examples(path)
]


@pytest.mark.parametrize(("path", "name", "text"), FOUND)
def test_docstring_example_holds(path, name, text):
    parts = path.relative_to(ROOT).with_suffix("").parts
    module = importlib.import_module(".".join(part for part in parts if part != "__init__"))
    assert run(name, text, dict(vars(module))) == ""


def test_wrong_example_is_caught():
    assert "Expected:\n    3" in run("planted", ">>> 1 + 1\n3\n", {})
