"""NumPyro distributions: random fields, partitions, and layers of infinitely many features."""

from jaxmrf.distributions.chinese_restaurant import ChineseRestaurantProcess
from jaxmrf.distributions.constraints import StatesBelow, canonical_labels, spins
from jaxmrf.distributions.factor_graph import DiscreteFactorGraph
from jaxmrf.distributions.feature_layers import OtherFeatures, infinite_features, noisy_or_layer
from jaxmrf.distributions.feature_sticks import IndianBuffetProcess, NoisyOrWeights
from jaxmrf.distributions.noisy_or import NoisyOr, NoisyOrBinomial
from jaxmrf.distributions.pairwise import Ising, PairwiseMRF, Potts
from jaxmrf.distributions.random_field import IntractableNormalizerError, MarkovRandomField
from jaxmrf.distributions.wrappers import base_distribution, map_base

__all__ = [
    "ChineseRestaurantProcess",
    "DiscreteFactorGraph",
    "IndianBuffetProcess",
    "IntractableNormalizerError",
    "Ising",
    "MarkovRandomField",
    "NoisyOr",
    "NoisyOrBinomial",
    "NoisyOrWeights",
    "OtherFeatures",
    "PairwiseMRF",
    "Potts",
    "StatesBelow",
    "base_distribution",
    "canonical_labels",
    "infinite_features",
    "map_base",
    "noisy_or_layer",
    "spins",
]
