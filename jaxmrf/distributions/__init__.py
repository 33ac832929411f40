"""NumPyro distributions: random fields, and the Chinese restaurant process over partitions."""

from jaxmrf.distributions.chinese_restaurant import ChineseRestaurantProcess
from jaxmrf.distributions.constraints import canonical_labels, spins
from jaxmrf.distributions.pairwise import Ising, PairwiseMRF, Potts
from jaxmrf.distributions.random_field import IntractableNormalizerError, MarkovRandomField
from jaxmrf.distributions.wrappers import base_distribution, map_base

__all__ = [
    "ChineseRestaurantProcess",
    "IntractableNormalizerError",
    "Ising",
    "MarkovRandomField",
    "PairwiseMRF",
    "Potts",
    "base_distribution",
    "canonical_labels",
    "map_base",
    "spins",
]
