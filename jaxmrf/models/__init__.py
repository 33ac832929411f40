"""What the probability is: log potentials of random fields as frozen pytrees of parameters."""

from jaxmrf.models.beliefs import Beliefs, Tables
from jaxmrf.models.factor_graph import FactorGraph, Labels, log_potential_of
from jaxmrf.models.pairwise import (
    Ising,
    Pairwise,
    PairwiseModel,
    Potts,
    agreements_from_couplings,
    as_states,
    couplings_from_agreements,
    log_potential,
    log_pseudolikelihood,
)

__all__ = [
    "Beliefs",
    "FactorGraph",
    "Ising",
    "Labels",
    "Pairwise",
    "PairwiseModel",
    "Potts",
    "Tables",
    "agreements_from_couplings",
    "as_states",
    "couplings_from_agreements",
    "log_potential",
    "log_potential_of",
    "log_pseudolikelihood",
]
