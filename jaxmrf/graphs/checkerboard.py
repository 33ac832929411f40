"""The checkerboard of a torus, each colour in words that hold every 32nd stretch of rows.

Row ``bit * rows_of_words + r`` of the lattice is the given bit of the words in row r, so a
neighbour above or below is the same bit of the next row of words, and only the first and the last
rotate their bits. Reference: multi-spin coding as in Jacobs & Rebbi, Journal of Computational
Physics 41 (1981).
"""

from dataclasses import dataclass, field

import jax

from jaxmrf.graphs.graph import Graph
from jaxmrf.graphs.lattices import torus

__all__ = ["CheckerboardPlan", "checkerboard_plan"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class CheckerboardPlan:
    """Where the spins of a torus are: words ``[2, chains, rows / 32, columns / 2]``.

    Attributes:
        num_rows: Rows of the torus, a multiple of 64.
        num_columns: Columns of the torus, even.
        block: Words of a row that round their thresholds alike.
    """

    num_rows: int = field(metadata={"static": True})
    num_columns: int = field(metadata={"static": True})
    block: int = field(metadata={"static": True})

    @property
    def num_nodes(self) -> int:
        """Number of spins."""
        return self.num_rows * self.num_columns

    def __str__(self) -> str:
        return (
            f"CheckerboardPlan: torus of {self.num_rows} x {self.num_columns}, 2 colours of "
            f"{self.num_nodes // 64} words, thresholds shared by {32 * self.block} spins"
        )


def checkerboard_plan(graph: Graph) -> CheckerboardPlan | None:
    """The plan of a graph that is a torus as ``graphs.torus`` numbers it; None of any other.

    Args:
        graph: The graph.

    >>> print(checkerboard_plan(torus((64, 8))))
    CheckerboardPlan: torus of 64 x 8, 2 colours of 8 words, thresholds shared by 128 spins
    """
    if graph.num_edges != 2 * graph.num_nodes:
        return None
    # the first edges of a torus join the first rows
    num_columns = int(graph.edges[0, 1] - graph.edges[0, 0])
    num_rows = graph.num_nodes // num_columns
    if num_rows % 64 or num_columns % 2 or graph != torus((num_rows, num_columns)):
        return None
    half = num_columns // 2
    block = max(size for size in range(1, min(half, 256) + 1) if half % size == 0)
    return CheckerboardPlan(num_rows, num_columns, block)
