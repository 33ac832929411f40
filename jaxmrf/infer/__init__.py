"""NumPyro kernels for random fields and infinite features, and exact sums over discrete sites."""

from jaxmrf.infer._feature_sites import hierarchy_sites
from jaxmrf.infer.auxiliary_variable import AuxiliaryVariable
from jaxmrf.infer.checkpointed import run_checkpointed
from jaxmrf.infer.concentration import ConcentrationGibbs
from jaxmrf.infer.exact_likelihood import ExactLikelihood
from jaxmrf.infer.exchange import ExchangeMH
from jaxmrf.infer.factor_hierarchy import FactorHierarchyGibbs
from jaxmrf.infer.group_exchange import GroupExchange
from jaxmrf.infer.group_gibbs import GroupGibbs
from jaxmrf.infer.latent_field import LatentFieldGibbs
from jaxmrf.infer.linear_response import LinearResponse
from jaxmrf.infer.marginalization import marginalize, marginals, sample_marginalized
from jaxmrf.infer.mrf_gibbs import MRFGibbs
from jaxmrf.infer.plate_gibbs import PlateGibbs
from jaxmrf.infer.stripped_beta import StrippedBeta
from jaxmrf.infer.unnormalized import mrf_parents, mrf_sites, unnormalized

__all__ = [
    "AuxiliaryVariable",
    "ConcentrationGibbs",
    "ExactLikelihood",
    "ExchangeMH",
    "FactorHierarchyGibbs",
    "GroupExchange",
    "GroupGibbs",
    "LatentFieldGibbs",
    "LinearResponse",
    "MRFGibbs",
    "PlateGibbs",
    "StrippedBeta",
    "hierarchy_sites",
    "marginalize",
    "marginals",
    "mrf_parents",
    "mrf_sites",
    "run_checkpointed",
    "sample_marginalized",
    "unnormalized",
]
