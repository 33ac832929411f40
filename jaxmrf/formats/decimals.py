"""Log potentials as decimals that are read back to the same logarithms."""

from collections.abc import Iterator, Sequence
from graphlib import CycleError, TopologicalSorter

import numpy as np

from jaxmrf.models import FactorGraph, Tables

__all__ = ["decimals_of", "factors_to_write"]


_STEPS = 32


def decimals_of(log_tables: Sequence[np.ndarray], writer: str) -> Iterator[list[str]]:
    """The potentials of every table in its own order, as short decimals of these logarithms.

    Raises:
        ValueError: If a potential overflows or underflows.
    """
    flat = np.concatenate([np.zeros(0), *(np.ravel(table) for table in log_tables)])
    distinct, places = np.unique(flat.astype(float), return_inverse=True)
    words = np.array(_short(distinct, writer), dtype=object)[places.ravel()]
    stops = np.cumsum([np.size(table) for table in log_tables])
    for stop, table in zip(stops, log_tables, strict=True):
        yield words[stop - np.size(table) : stop].tolist()


def _short(log_values: np.ndarray, writer: str) -> list[str]:
    """For each number, a short decimal with that logarithm, or its exponential."""
    with np.errstate(over="ignore", divide="ignore"):
        values = np.exp(log_values)
        bad = ~np.isfinite(values) | ((values == 0) & (log_values > -np.inf))
        if bad.any():
            raise ValueError(
                f"{writer}: expected potentials within the range of float64, got the log potential "
                f"{log_values[bad][0]}; subtract a constant from the log table"
            )
        words = [repr(value) for value in values.tolist()]
        left = np.arange(len(values))
        for digits in (12, 15, 16, 17):
            spelled = [f"{value:.{digits}g}" for value in values[left].tolist()]
            is_found = np.log([float(word) for word in spelled]) == log_values[left]
            for place in np.flatnonzero(is_found):
                words[left[place]] = spelled[place]
            left = left[~is_found]
        for toward in (0.0, np.inf):  # exp may miss the float64 that had this logarithm
            near = values.copy()
            for _ in range(_STEPS):
                near[left] = np.nextafter(near[left], toward)
                is_found = np.log(near[left]) == log_values[left]
                for place in left[is_found]:
                    words[place] = repr(float(near[place]))
                left = left[~is_found]
    return words


def factors_to_write(
    factor_graph: FactorGraph, writer: str, *, is_network: bool
) -> tuple[list[tuple[int, ...]], list[np.ndarray]]:
    """Scopes and log tables of the factors and, after them, of the evidence.

    Raises:
        ValueError: If a network is asked for and the model is none, or has evidence.
    """
    graph = factor_graph.hypergraph
    scopes = list(graph.scopes)
    tables = list(Tables(np.asarray(factor_graph.log_tables), graph, is_of_factors=True))
    evidence = list(Tables(np.asarray(factor_graph.log_evidence), graph, is_of_factors=False))
    observed = [node for node, values in enumerate(evidence) if values.any()]
    if is_network:
        children = sorted(scope[-1] if scope else -1 for scope in scopes)
        if children != list(range(graph.num_nodes)):
            raise ValueError(
                f"{writer}: expected every variable to be the last of exactly one scope, got "
                f"{children[:8]} at the ends of the scopes; write the model as MARKOV"
            )
        try:
            TopologicalSorter({scope[-1]: scope[:-1] for scope in scopes}).prepare()
        except CycleError as error:
            raise ValueError(
                f"{writer}: expected arrows without a cycle, got {error.args[1]}; write the model "
                "as MARKOV"
            ) from None
        if observed:
            raise ValueError(
                f"{writer}: expected a network without evidence, got some on variables "
                f"{observed[:8]}; write the model before observing, or as MARKOV"
            )
    scopes += [(node,) for node in observed]
    return scopes, tables + [evidence[node] for node in observed]
