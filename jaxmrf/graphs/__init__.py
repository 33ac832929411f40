"""What touches what: undirected graphs, lattices, colourings and plans, in NumPy."""

from jaxmrf.graphs.coloring import color
from jaxmrf.graphs.frontier import FrontierPlan, frontier_plan, is_narrow
from jaxmrf.graphs.graph import Graph
from jaxmrf.graphs.hypergraph import Hypergraph
from jaxmrf.graphs.lattices import binary_tree, complete_bipartite, grid, random_regular, torus
from jaxmrf.graphs.neighbors import NeighborBlock, neighbor_blocks
from jaxmrf.graphs.sweeps import SweepPlan, sweep_plan

__all__ = [
    "FrontierPlan",
    "Graph",
    "Hypergraph",
    "NeighborBlock",
    "SweepPlan",
    "binary_tree",
    "color",
    "complete_bipartite",
    "frontier_plan",
    "grid",
    "is_narrow",
    "neighbor_blocks",
    "random_regular",
    "sweep_plan",
    "torus",
]
