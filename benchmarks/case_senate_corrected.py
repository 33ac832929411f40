"""The senators again, with the likelihood corrected by linear response (see ``case_senate``)."""

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.case_senate import NUM_EDGES, run_experiment
from jaxmrf.datasets import senate109
from jaxmrf.infer import LinearResponse
from jaxmrf.learning import structure


def run(size: str, out: Path) -> list[dict[str, Any]]:
    data = senate109()
    sessions = data.session1, data.session2
    graph = structure.sparse_graph(np.concatenate(sessions), num_edges=NUM_EDGES).graph
    measured = []
    for experiment, (train, test) in enumerate((sessions, sessions[::-1]), start=1):
        pair, _ = run_experiment(
            experiment, "both sessions", graph, train, test, size,
            method="linear_response", likelihood=LinearResponse(),
        )  # fmt: skip
        measured += [row | {"case": "senate_corrected"} for row in pair]
    return measured
