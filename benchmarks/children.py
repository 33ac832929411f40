"""Measurements in processes of their own, held to one core or to several."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from benchmarks.rows import ROOT

__all__ = ["allowed", "hold", "rows_of", "serve"]

HAS_AFFINITY = hasattr(os, "sched_setaffinity")


def rows_of(module: str, *arguments: str, environment: dict[str, str] | None = None) -> list[dict]:
    """The rows that a module prints as a program, one JSON object a line.

    Args:
        module: Its dotted name; its last lines call `serve`.
        *arguments: Name of the measurement, and its arguments.
        environment: Variables for the process beside those of this one.
    """
    child = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT,
        env=os.environ | (environment or {}),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return [json.loads(line) for line in child.stdout.splitlines() if line.startswith("{")]


def serve(
    measurements: dict[str, Callable[..., Iterable[dict[str, Any]]]], arguments: list[str]
) -> None:
    """Prints the rows of the measurement named first, as `rows_of` reads them."""
    name, *rest = arguments
    for row in measurements[name](*rest):
        print(json.dumps(row, default=float), flush=True)


def allowed() -> set[int]:
    """The cores this process may use; empty where that cannot be told."""
    return os.sched_getaffinity(0) if HAS_AFFINITY else set()


def hold(cores: Iterable[int]) -> None:
    """Keeps every thread of this process on the cores, where the system has a way to."""
    if not HAS_AFFINITY:
        return
    for task in Path("/proc/self/task").iterdir():
        os.sched_setaffinity(int(task.name), cores)
