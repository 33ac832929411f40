"""What touches what: undirected graphs, lattices, colourings and plans, in NumPy."""

from jaxmrf.graphs.blankets import BlanketPlan, blanket_plan
from jaxmrf.graphs.checkerboard import CheckerboardPlan, checkerboard_plan
from jaxmrf.graphs.coloring import color
from jaxmrf.graphs.conditionals import ConditionalPlan, conditional_plan, forest_blocks
from jaxmrf.graphs.elimination import (
    EliminationPlan,
    elimination_order,
    elimination_plan,
    order_from_contraction_path,
)
from jaxmrf.graphs.frontier import FrontierPlan, frontier_plan, is_narrow
from jaxmrf.graphs.graph import Graph
from jaxmrf.graphs.hypergraph import Hypergraph
from jaxmrf.graphs.junction import Clique, junction_tree
from jaxmrf.graphs.lattices import binary_tree, complete_bipartite, grid, random_regular, torus
from jaxmrf.graphs.neighbors import NeighborBlock, neighbor_blocks
from jaxmrf.graphs.regions import (
    RegionGraph,
    bethe_regions,
    cluster_variation,
    loops,
    plaquettes,
)
from jaxmrf.graphs.sweeps import SweepPlan, sweep_plan

__all__ = [
    "BlanketPlan",
    "CheckerboardPlan",
    "Clique",
    "ConditionalPlan",
    "EliminationPlan",
    "FrontierPlan",
    "Graph",
    "Hypergraph",
    "NeighborBlock",
    "RegionGraph",
    "SweepPlan",
    "bethe_regions",
    "binary_tree",
    "blanket_plan",
    "checkerboard_plan",
    "cluster_variation",
    "color",
    "complete_bipartite",
    "conditional_plan",
    "elimination_order",
    "elimination_plan",
    "forest_blocks",
    "frontier_plan",
    "grid",
    "is_narrow",
    "junction_tree",
    "loops",
    "neighbor_blocks",
    "order_from_contraction_path",
    "plaquettes",
    "random_regular",
    "sweep_plan",
    "torus",
]
