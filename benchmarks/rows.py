"""One measurement as a row, how to time it, and the files that hold the rows."""

import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import jax

import jaxmrf

__all__ = ["RESULTS", "Timing", "peak_mb", "read", "row", "time_calls", "time_jitted", "write"]

ROOT = Path(__file__).resolve().parents[1]
RESULTS = Path(__file__).resolve().parent / "results"


class Timing(NamedTuple):
    """A result with the seconds it took and the memory it needed.

    Attributes:
        result: What the last call returned.
        compile_s: Seconds to trace and compile.
        run_s: Seconds a call: "min", "median" and "max" over the repeats.
        peak_mb: Megabytes held at the peak.
    """

    result: Any
    compile_s: float
    run_s: dict[str, float]
    peak_mb: float


def time_jitted(function: Callable, *args: Any, repeats: int = 5) -> Timing:
    """Compiles a function (jitted or not) for its arguments, then times calls of it alone."""
    jitted = function if hasattr(function, "lower") else jax.jit(function)
    start = time.perf_counter()
    compiled = jitted.lower(*args).compile()
    compile_s = time.perf_counter() - start
    result, seconds = _repeat(lambda: compiled(*args), repeats)
    memory = compiled.memory_analysis()
    held = memory.argument_size_in_bytes + memory.output_size_in_bytes + memory.temp_size_in_bytes
    return Timing(result, compile_s, _summary(seconds), held / 1e6)


def time_calls(function: Callable[[], Any], repeats: int = 5) -> Timing:
    """Times calls of any function; what its first call takes above the median is compilation."""
    _, (first,) = _repeat(function, 1)
    result, seconds = _repeat(function, repeats)
    compile_s = max(0.0, first - statistics.median(seconds))
    return Timing(result, compile_s, _summary(seconds), peak_mb())


def peak_mb() -> float:
    """Peak memory so far in megabytes: the accelerator's, or on a CPU the whole process's."""
    stats = jax.devices()[0].memory_stats() or {}
    if "peak_bytes_in_use" in stats:
        return stats["peak_bytes_in_use"] / 1e6
    unit = 1.0 if sys.platform == "darwin" else 1024.0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


def row(
    case: str,
    method: str,
    size: str,
    *,
    compile_s: float | None,
    run_s: dict[str, float] | Sequence[float],
    quality: dict[str, Any],
    peak_mb: float | None = None,
    device: str | None = None,
    **more: Any,
) -> dict[str, Any]:
    """One measurement.

    Args:
        case: Name of the case.
        method: What was measured, a peer's name included.
        size: "small", "full" or "gpu".
        compile_s: Seconds to compile; None where nothing is compiled.
        run_s: "min", "median" and "max" seconds a run, or the seconds of every run.
        quality: How good the result is: error against exact, held-out score, ...
        peak_mb: Megabytes held at the peak.
        device: Where it ran; by default the device jax uses.
        **more: What sets this row apart from others of its case, as in `experiment=1`.

    Returns:
        The row, ready for `write`.
    """
    return {
        "case": case,
        "method": method,
        "size": size,
        **more,
        "device": device or jax.devices()[0].device_kind,
        "cores": _num_cores(),
        "versions": {
            "python": platform.python_version(),
            "jaxmrf": jaxmrf.__version__,
            **{name: version(name) for name in ("jax", "numpyro")},
        },
        "commit": _commit(),
        "compile_s": compile_s,
        "run_s": run_s if isinstance(run_s, dict) else _summary(run_s),
        "quality": quality,
        "peak_mb": peak_mb,
    }


def write(rows: list[dict[str, Any]], folder: Path) -> Path:
    """Stores the rows of one case; older rows of the same size and device give way to them."""
    (case,) = {row["case"] for row in rows}
    path = folder / f"{case}.jsonl"
    new = {(row["size"], row["device"]) for row in rows}
    kept = [row for row in read(path) if (row["size"], row["device"]) not in new]
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(_rounded(row)) + "\n" for row in [*kept, *rows]))
    return path


def read(path: Path) -> list[dict[str, Any]]:
    """The rows of a file; none where it does not exist."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


def _repeat(function: Callable[[], Any], repeats: int) -> tuple[Any, list[float]]:
    """The last result, and the seconds of every call until its arrays were ready."""
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        result = jax.block_until_ready(function())
        seconds.append(time.perf_counter() - start)
    return result, seconds


def _summary(seconds: Sequence[float]) -> dict[str, float]:
    return {
        "min": min(seconds),
        "median": statistics.median(seconds),
        "max": max(seconds),
    }


def _num_cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def _commit() -> str:
    """The commit measured, with a plus sign where the code differs from it."""

    def git(*command: str) -> subprocess.CompletedProcess:
        return subprocess.run(["git", *command], cwd=ROOT, capture_output=True, text=True)

    try:
        head = git("rev-parse", "--short=10", "HEAD")
        changed = git("status", "--porcelain", "--", "jaxmrf", "benchmarks/*.py").stdout
    except OSError:
        return "unknown"
    return head.stdout.strip() + "+" * bool(changed) if head.returncode == 0 else "unknown"


def _rounded(value: Any) -> Any:
    """Plain numbers, floats to five significant digits: the rest is noise."""
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    if hasattr(value, "item"):  # a NumPy or JAX scalar
        value = value.item()
    return float(f"{value:.5g}") if isinstance(value, float) else value
