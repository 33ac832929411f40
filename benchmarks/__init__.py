"""Measurements of jaxmrf, each with its quality beside its time: `python -m benchmarks --help`.

A case is a module `case_NAME.py` with one function, `run(size, out) -> list[dict]`: it does the
work in its "small" or "full" form (or "gpu", for an accelerator, if its `SIZES` name that), may
write pictures into the folder `out`, and returns one `rows.row` for every method, or none if its
data are not there. Its rows are kept in `results/NAME.jsonl`.
"""

import os

# Before jax starts: with two threads jaxlib's CPU client can deadlock on vmapped solves.
os.environ.setdefault("NPROC", "8")
