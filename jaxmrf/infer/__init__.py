"""NumPyro kernels for random fields: blocks for composite Gibbs sampling, and their facade."""

from jaxmrf.infer.exchange import ExchangeMH
from jaxmrf.infer.latent_field import LatentFieldGibbs
from jaxmrf.infer.mrf_gibbs import MRFGibbs
from jaxmrf.infer.plate_gibbs import PlateGibbs
from jaxmrf.infer.unnormalized import mrf_parents, mrf_sites, unnormalized

__all__ = [
    "ExchangeMH",
    "LatentFieldGibbs",
    "MRFGibbs",
    "PlateGibbs",
    "mrf_parents",
    "mrf_sites",
    "unnormalized",
]
