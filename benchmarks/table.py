"""Renders the rows in `results/`, small ones left out, into the README: `-m benchmarks.table`."""

from pathlib import Path
from typing import Any

from benchmarks.rows import RESULTS, ROOT, read

__all__ = ["render", "updated"]

BEGIN, END = "<!-- results:begin -->", "<!-- results:end -->"
HEADER = ("case", "method", "device", "run (s)", "compile (s)", "quality")
SHARED = {  # what every row has; other keys set it apart within its case
    *("case", "method", "size", "device", "cores", "versions", "commit"),
    *("compile_s", "run_s", "quality", "peak_mb"),
}


def render(rows: list[dict[str, Any]]) -> str:
    """A Markdown table, one line a row: median (min to max) seconds a run, and the quality."""
    lines = [HEADER, ("---",) * len(HEADER), *map(_cells, rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def updated(text: str, folder: Path = RESULTS) -> str:
    """The text with the table between its markers made anew; unchanged where it has none."""
    if BEGIN not in text:
        return text
    before, _, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise ValueError(f"updated: expected {END!r} after {BEGIN!r}, got none; add it")
    rows = [row for path in sorted(folder.glob("*.jsonl")) for row in read(path)]
    kept = [row for row in rows if row["size"] != "small"]
    return f"{before}{BEGIN}\n{render(kept)}\n{END}{after}"


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    setting = [f"{key} {value}" for key, value in row.items() if key not in SHARED]
    run = row["run_s"]
    spread = f" ({run['min']:.3g} to {run['max']:.3g})" if run["min"] < run["max"] else ""
    compile_s = "" if row["compile_s"] is None else f"{row['compile_s']:.3g}"
    quality = ", ".join(f"{name} {_number(value)}" for name, value in row["quality"].items())
    return (
        ", ".join([row["case"], *setting]),
        row["method"],
        row["device"],
        f"{run['median']:.3g}{spread}",
        compile_s,
        quality,
    )


def _number(value: Any) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def main() -> None:
    readme = ROOT / "README.md"
    readme.write_text(updated(readme.read_text()))


if __name__ == "__main__":
    main()
