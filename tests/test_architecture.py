"""The rules of the house, read from the source by ast: layers, importers, sizes, names."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ROWS = (  # a unit imports from rows above it in this list, never from its own row
    {"types"},
    {"logspace", "checkpoints", "sharding"},
    {"graphs"},
    {"models"},
    {"sampling", "exact", "variational", "formats"},
    {"learning", "nonparametric"},
    {"distributions"},
    {"infer"},
    {"applications"},
    {"datasets", "diagnostics", "plots", "testing"},  # leaves: imported by nothing
)
ROW_OF = {unit: row for row, units in enumerate(ROWS) for unit in units}
NUMPYRO_IMPORTERS = {"distributions", "infer", "testing", "diagnostics"}
MAX_LINES = 400
MACHINE_PATH = re.compile(r"(?<![\w.:/~-])/(home|root|tmp|work|Users|mnt)/")
SOURCES = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "jaxmrf").rglob("*.py"))


def imported_names(tree: ast.Module, path: str):
    """Every dotted name a module imports anywhere in it, relative ones resolved."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = path.split("/")[:-1]
            above = package[: len(package) + 1 - node.level] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Attribute) and ast.unparse(node) == "jax.numpy":
            yield "jax.numpy"


def violations(path: str, source: str) -> list[str]:
    """The house rules that the module at `path` (as in 'jaxmrf/graphs/graph.py') breaks."""
    tree = ast.parse(source)
    unit = path.split("/")[1].removesuffix(".py")
    found = []
    if unit != "__init__" and unit not in ROW_OF:
        found.append(f"{unit} has no layer")
    for name in imported_names(tree, path):
        top, _, rest = name.partition(".")
        target = rest.split(".")[0]
        if top == "jaxmrf" and unit != "__init__" and target != unit:
            if ROW_OF.get(target, len(ROWS)) >= ROW_OF.get(unit, -1):
                found.append(f"layer: {unit} imports {name}")
        if top == "numpyro" and unit not in NUMPYRO_IMPORTERS:
            found.append(f"numpyro imported by {unit}")
        if name.startswith("jax.numpy") and unit == "graphs":
            found.append("jax.numpy in graphs")
    is_public = not re.search(r"(^|/)_(?!_init__)", path)
    names = {
        target.id
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    if is_public and "__all__" not in names:
        found.append("no __all__")
    if not ast.get_docstring(tree):
        found.append("no module docstring")
    if (num_lines := len(source.splitlines())) > MAX_LINES:
        found.append(f"{num_lines} lines, at most {MAX_LINES}")
    return found


@pytest.mark.parametrize("path", SOURCES)
def test_module_keeps_the_rules(path):
    assert violations(path, (ROOT / path).read_text()) == []


GOOD = '"""A module."""\n\nfrom jaxmrf.types import Array\n\n__all__ = ["Array"]\n'
PLANTED = [
    ("jaxmrf/models/a.py", "from jaxmrf.sampling import gibbs", "layer: models imports"),
    ("jaxmrf/models/a.py", "from ..sampling.gibbs import step", "layer: models imports"),
    ("jaxmrf/exact/a.py", "from jaxmrf import sampling", "layer: exact imports"),
    ("jaxmrf/infer/a.py", "import jaxmrf.plots", "layer: infer imports"),
    ("jaxmrf/infer/a.py", "from jaxmrf import Graph", "layer: infer imports"),
    ("jaxmrf/types.py", "def f():\n    import jaxmrf.graphs", "layer: types imports"),
    ("jaxmrf/other/a.py", "", "other has no layer"),
    ("jaxmrf/models/a.py", "import numpyro.distributions as dist", "numpyro imported by models"),
    ("jaxmrf/graphs/a.py", "import jax.numpy as jnp", "jax.numpy in graphs"),
    ("jaxmrf/graphs/a.py", "from jax import numpy", "jax.numpy in graphs"),
    ("jaxmrf/graphs/a.py", "import jax\nx = jax.numpy.zeros(3)", "jax.numpy in graphs"),
    ("jaxmrf/models/a.py", "x = 1\n" * MAX_LINES, "405 lines, at most 400"),
]


@pytest.mark.parametrize(("path", "line", "message"), PLANTED)
def test_planted_violation_is_caught(path, line, message):
    assert any(message in found for found in violations(path, GOOD + line))


def test_module_that_keeps_the_rules_passes():
    allowed = "from ..graphs import Graph\nfrom . import b\nfrom jaxmrf.models.c import d\n"
    assert violations("jaxmrf/models/a.py", GOOD + allowed) == []
    assert violations("jaxmrf/models/a.py", "x = 1") == ["no __all__", "no module docstring"]


def test_no_text_file_names_a_machine_path():
    assert MACHINE_PATH.search("open('/" + "home/me/x.csv')")
    assert not MACHINE_PATH.search("https://example.org/" + "home/x")
    folders = ("jaxmrf", "tests", "benchmarks", "notebooks", ".ci")
    paths = [path for folder in folders for path in (ROOT / folder).rglob("*")]
    paths += [path for path in ROOT.iterdir() if path.is_file()]
    texts = {".py", ".md", ".toml", ".cff", ".jsonl", ".ipynb", ""}
    bad = [
        f"{path.relative_to(ROOT)}: {match.group()}"
        for path in paths
        if path.is_file() and path.suffix in texts
        if (match := MACHINE_PATH.search(path.read_text()))
    ]
    assert bad == []


@pytest.mark.parametrize("command", [("check",), ("format", "--check")])
def test_ruff_is_clean(command):
    run = [sys.executable, "-m", "ruff", *command, "."]
    done = subprocess.run(run, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
