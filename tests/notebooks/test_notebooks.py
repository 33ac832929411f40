"""Notebooks run in their small form, and the committed pages hold the code of their sources."""

import os
import subprocess
import sys
from pathlib import Path

import jupytext
import pytest

FOLDER = Path(__file__).resolve().parents[2] / "notebooks"
SOURCES = sorted(FOLDER.glob("*.py"))
MAX_LINES, MAX_BYTES = 150, 300_000


def code(path):
    return [cell.source for cell in jupytext.read(path).cells if cell.cell_type == "code"]


def test_there_are_notebooks():
    assert SOURCES


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_page_equals_its_source(source):
    page = source.with_suffix(".ipynb")
    assert code(page) == code(source)
    assert page.stat().st_size <= MAX_BYTES
    assert len(source.read_text().splitlines()) <= MAX_LINES


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_page_was_executed_without_error(source):
    cells = [c for c in jupytext.read(source.with_suffix(".ipynb")).cells if c.cell_type == "code"]
    assert all(cell.execution_count for cell in cells)
    assert not any(out.output_type == "error" for cell in cells for out in cell.outputs)


@pytest.mark.slow
@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_small_form_runs(source):
    environment = {**os.environ, "JAXMRF_NOTEBOOK_SIZE": "small", "MPLBACKEND": "Agg"}
    subprocess.run([sys.executable, source.name], cwd=FOLDER, env=environment, check=True)
