r"""Parallel tempering of pairwise fields, many ladders at once.

.. math:: P(\text{swap } t, t{+}1) =
          \min\big(1, e^{(\beta_t - \beta_{t+1})(\phi(x_{t+1}) - \phi(x_t))}\big)

Every inverse temperature has as many chains as the sampler plan, in the plan's own layout, and so
is swept as fast as one temperature alone; chain c of a temperature exchanges its state with chain c
of the next, whatever the others do. `tempering` does the same for factor graphs and has the
references.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxmrf.graphs import Graph
from jaxmrf.models import PairwiseModel
from jaxmrf.sampling import packed
from jaxmrf.sampling.plans import SamplerPlan
from jaxmrf.sampling.tempering import TemperingInfo, exchange
from jaxmrf.types import Array, ArrayLike, Bool, Float, Int, Key

__all__ = ["PairwiseTemperingState", "init", "step"]


class PairwiseTemperingState(NamedTuple):
    """State of all replicas.

    Attributes:
        fields: Chains of every temperature in the layout of the plan, temperatures first;
            ``packed.unpack`` reads those of one.
        num_steps: Steps taken, which says whether even or odd pairs are next.
    """

    fields: Array
    num_steps: Int[Array, ""]


def init(
    key: Key, model: PairwiseModel, plan: SamplerPlan, *, num_temperatures: int
) -> PairwiseTemperingState:
    """Independent uniform states.

    Args:
        key: Random key.
        model: Pairwise model.
        plan: Sampler plan for the chains of one temperature. Clamped nodes exchange their states
            like all others, so a chain should have the same ones at every temperature.
        num_temperatures: Number of temperatures.
    """
    keys = jax.random.split(key, num_temperatures)
    fields = jax.vmap(lambda key: packed.init(key, model, plan))(keys)
    return PairwiseTemperingState(fields, jnp.zeros((), jnp.int32))


def step(
    key: Key,
    state: PairwiseTemperingState,
    model: PairwiseModel,
    graph: Graph,
    plan: SamplerPlan,
    *,
    inverse_temperatures: Float[ArrayLike, " temperatures"],
    num_sweeps: int = 1,
) -> tuple[PairwiseTemperingState, TemperingInfo]:
    """Some sweeps of all replicas and one round of exchanges.

    Args:
        key: Random key.
        state: Current state.
        model: Pairwise model.
        graph: Its graph.
        plan: Sampler plan for the chains of one temperature.
        inverse_temperatures: The ladder, monotone; the replicas at 1 have the model's distribution.
        num_sweeps: Sweeps before the exchange.

    Returns:
        New state, and what happened to every chain "temperatures chains".
    """
    key_sweeps, key_swap = jax.random.split(key)
    betas = jnp.asarray(inverse_temperatures)

    def sweep(replica):
        key, fields, beta = replica
        scaled = jax.tree.map(lambda leaf: leaf * beta.astype(jnp.result_type(leaf)), model)
        fields = packed.run(key, fields, scaled, plan, num_sweeps=num_sweeps)
        return fields, packed.log_potentials(fields, model, graph, plan)

    replicas = jax.random.split(key_sweeps, len(betas)), state.fields, betas
    # one temperature after the other on a CPU: a vector of conditions is no wall for fusions
    one_by_one = plan.backend == "cpu"
    fields, potentials = jax.lax.map(sweep, replicas) if one_by_one else jax.vmap(sweep)(replicas)
    info = exchange(key_swap, potentials, betas, state.num_steps)
    came = jnp.roll(info.is_swapped, 1, axis=0)  # from the one before on the ladder
    swapped = _where(info.is_swapped, jnp.roll(fields, -1, axis=0), fields, plan)
    swapped = _where(came, jnp.roll(fields, 1, axis=0), swapped, plan)
    return PairwiseTemperingState(swapped, state.num_steps + 1), info


def _where(
    is_first: Bool[Array, "temperatures chains"], first: Array, other: Array, plan: SamplerPlan
) -> Array:
    """Chains of the first fields where it is true, of the other ones elsewhere."""
    if plan.form == "plain":
        return jnp.where(is_first[:, None, :], first, other)
    if plan.form == "lattice":
        return jnp.where(is_first[:, None, :, None, None], first, other)
    padding = 32 * plan.num_words - plan.num_chains
    words = packed.words_of_bits(jnp.pad(is_first, ((0, 0), (0, padding))))
    mask = words[:, :, None] if plan.form == "sums" else words[:, None, :]
    return (first & mask) | (other & ~mask)
