"""Runs the cases: `python -m benchmarks [--only CASE ...] [--size small|full|gpu] [--out DIR]`."""

import argparse
import tempfile
import time
from importlib import import_module
from pathlib import Path

import jax

from benchmarks import rows, table

CASES = sorted(path.stem.removeprefix("case_") for path in Path(__file__).parent.glob("case_*.py"))


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=CASES, metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--size", choices=["small", "full", "gpu"], default="full")
    parser.add_argument(
        "--gpu",
        action="store_const",
        const="gpu",
        dest="size",
        help="the same as --size gpu: the form for an accelerator, of the cases that have one",
    )
    parser.add_argument(
        "--out",
        type=Path,
        help="folder of the rows; by default benchmarks/results, or a new one for --size small",
    )
    options = parser.parse_args(arguments)
    if options.size == "gpu" and jax.default_backend() == "cpu":
        parser.error("argument --size: gpu needs an accelerator, and JAX has none here")
    out = options.out
    if out is None:
        is_kept = options.size != "small"
        out = rows.RESULTS if is_kept else Path(tempfile.mkdtemp(prefix="jaxmrf-benchmarks-"))
    out.mkdir(parents=True, exist_ok=True)
    # equal programs compile once in a run; a cache kept from earlier runs would flatter compile_s
    jax.config.update("jax_compilation_cache_dir", tempfile.mkdtemp(prefix="jaxmrf-compiled-"))
    for case in options.only or CASES:
        start = time.perf_counter()
        module = import_module(f"benchmarks.case_{case}")
        if options.size == "gpu" and "gpu" not in getattr(module, "SIZES", {}):
            print(f"{case}: skipped, it has no form for an accelerator")
            continue
        measured = module.run(options.size, out)
        if not measured:  # the case has said why
            continue
        path = rows.write(measured, out)
        print(table.render(measured))
        print(f"{case}: {time.perf_counter() - start:.1f} s, rows in {path}")


if __name__ == "__main__":
    main()
