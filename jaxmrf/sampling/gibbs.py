r"""Coloured block Gibbs sampling of any pairwise field, from integers to integers.

.. math:: p(x_i = k \mid x_{-i}) \propto
          \exp\Big(a_i(k) + \sum_{j \sim i} b_{ij}(k, x_j)\Big)

A sweep plan runs the plain kernel (`plain_gibbs`), a sampler plan the form it has chosen; what
draws again and again and needs only moments keeps its chains packed (`packed`). The state is
"nodes chains", chains last in memory; run one chain with a last axis of 1. Reference: Besag (1974);
Geman & Geman (1984).
"""

from jaxmrf.graphs import SweepPlan
from jaxmrf.models import PairwiseModel
from jaxmrf.sampling import packed
from jaxmrf.sampling.plans import SamplerPlan
from jaxmrf.types import Array, Int, Key

__all__ = ["init", "run", "sweep"]


def init(
    key: Key, model: PairwiseModel, plan: SweepPlan | SamplerPlan, *, num_chains: int
) -> Int[Array, "nodes chains"]:
    """Independent uniform states, the start of a chain.

    Args:
        key: Random key.
        model: Pairwise model; only its number of states is read.
        plan: Sweep plan of the graph, or sampler plan.
        num_chains: Number of independent copies.
    """
    layout = plan.layout if isinstance(plan, SamplerPlan) else plan
    return packed.uniform_states(key, model, layout.num_nodes, num_chains)


def sweep(
    key: Key,
    states: Int[Array, "nodes chains"],
    model: PairwiseModel,
    plan: SweepPlan | SamplerPlan,
) -> Int[Array, "nodes chains"]:
    """Update every unclamped node of every chain once, tile by tile.

    Args:
        key: Random key.
        states: Current states 0..K-1.
        model: Pairwise model.
        plan: Sweep plan or sampler plan; fixes the order and the clamped nodes.

    Returns:
        New states; the joint distribution of the model is left invariant.
    """
    return run(key, states, model, plan, num_sweeps=1)


def run(
    key: Key,
    states: Int[Array, "nodes chains"],
    model: PairwiseModel,
    plan: SweepPlan | SamplerPlan,
    *,
    num_sweeps: int,
) -> Int[Array, "nodes chains"]:
    """States after ``num_sweeps`` sweeps.

    Args:
        key: Random key.
        states: Current states 0..K-1; as many chains as a sampler plan has.
        model: Pairwise model.
        plan: Sweep plan or sampler plan.
        num_sweeps: Number of sweeps.

    Raises:
        ValueError: If the states are not those of a sampler plan, or the model is not one that its
            form can sample.
    """
    fields = packed.run(key, packed.pack(states, plan), model, plan, num_sweeps=num_sweeps)
    return packed.unpack(fields, plan).astype(states.dtype)
