"""NumPyro kernels for random fields: blocks for composite Gibbs sampling, and their facade."""

from jaxmrf.infer.plate_gibbs import PlateGibbs

__all__ = ["PlateGibbs"]
