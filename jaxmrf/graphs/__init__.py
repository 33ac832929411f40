"""What touches what: undirected graphs, lattices, colourings and sweep plans, in NumPy."""

from jaxmrf.graphs.coloring import color
from jaxmrf.graphs.graph import Graph
from jaxmrf.graphs.lattices import binary_tree, complete_bipartite, grid, random_regular, torus
from jaxmrf.graphs.neighbors import NeighborBlock, neighbor_blocks
from jaxmrf.graphs.sweeps import SweepPlan, sweep_plan

__all__ = [
    "Graph",
    "NeighborBlock",
    "SweepPlan",
    "binary_tree",
    "color",
    "complete_bipartite",
    "grid",
    "neighbor_blocks",
    "random_regular",
    "sweep_plan",
    "torus",
]
