r"""Markov random fields in JAX: sampling, inference and learning, as ordinary NumPyro models.

A field on a graph gives every configuration x of its nodes the probability

    p(x) = exp(sum_c log_potential_c(x_c)) / Z,

where c runs over the edges (or larger factors) of the graph. Reference: Jordan, "Graphical models",
Statistical Science 19 (2004).
"""

from jaxmrf import exact
from jaxmrf.formats import read_bif, read_fg, read_uai

__version__ = "0.1.0"

__all__ = ["__version__", "exact", "read_bif", "read_fg", "read_uai"]
