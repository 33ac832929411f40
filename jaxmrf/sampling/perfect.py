r"""Perfect sampling of Ising fields of any sign: coupling from the past with a bounding chain.

.. math:: \tfrac12 \ell_i^{\pm} = h_i + \sum_{j \sim i}
          \big(\max(J_{ij}, 0)\, s_j^{\pm} + \min(J_{ij}, 0)\, s_j^{\mp}\big)

Every heat-bath chain started anywhere stays between the lower configuration :math:`s^-` and the
upper one :math:`s^+`, which share one random number per node. Where the two have met at time 0,
so have the chains from all starts, infinitely long ago included: the value is an exact draw.
Without negative couplings the two are the monotone chains from all 0 and all 1. Reference: Propp
& Wilson, Random Structures and Algorithms 9 (1996); Haggstrom & Nelander, Scandinavian Journal of
Statistics 26 (1999); Huber, Annals of Applied Probability 14 (2004).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxmrf.graphs import NeighborBlock, SweepPlan
from jaxmrf.models import Ising, PairwiseModel
from jaxmrf.sampling.plain_gibbs import scan_tiles
from jaxmrf.types import Array, Bool, Int, Key

__all__ = ["PerfectDraws", "sample"]


class PerfectDraws(NamedTuple):
    """Independent draws, with the honest word on each.

    Attributes:
        states: States 0, 1; an exact draw where ``is_exact``, elsewhere the upper bound.
        is_exact: Whether the two bounds have met in every node. If not all chains are exact, to
            keep only those that are favours configurations that are reached fast: raise
            ``max_sweeps`` under the same key, which leaves the exact ones as they are.
        num_sweeps: Sweeps from the last start to time 0.
    """

    states: Int[Array, "nodes chains"]
    is_exact: Bool[Array, " chains"]
    num_sweeps: Int[Array, ""]


def sample(
    key: Key, model: PairwiseModel, plan: SweepPlan, *, num_chains: int, max_sweeps: int = 4096
) -> PerfectDraws:
    """Exact independent draws of an Ising field, without burn-in.

    The start lies 1, 2, 4, ... sweeps in the past until the bounds of all chains have met: soon at
    weak coupling, not within anyone's patience at strong. For 100 chains of a 32 x 32 grid it lay
    64 sweeps back at J = 0.3, 512 at 0.4 and beyond 2048 at 0.44, the phase transition; with random
    signs 128 at |J| = 0.3 and beyond 2048 at 0.4.

    Args:
        key: Random key.
        model: An ``Ising`` model with finite couplings of any sign.
        plan: Sweep plan of the graph, without clamped nodes.
        num_chains: Number of independent draws.
        max_sweeps: Furthest start, in sweeps; all starts together cost up to three times as many.

    Raises:
        ValueError: If the model is not an Ising model, nodes are clamped, or a number is below 1.

    >>> from jaxmrf.graphs import grid, sweep_plan
    >>> model = Ising(couplings=jnp.full(4, 0.3), fields=jnp.zeros(4))
    >>> draws = sample(jax.random.key(0), model, sweep_plan(grid((2, 2))), num_chains=5)
    >>> draws.states.shape, bool(draws.is_exact.all())
    ((4, 5), True)
    """
    _check(model, plan, num_chains, max_sweeps)

    def is_waiting(carry):
        num_sweeps, lower, upper = carry
        return (num_sweeps < max_sweeps) & (lower != upper).any()

    def start_further_back(carry):
        num_sweeps = jnp.minimum(2 * carry[0], max_sweeps)
        return num_sweeps, *_bounds(key, model, plan, num_chains, num_sweeps)

    one = jnp.ones((), jnp.int32)
    carry = one, *_bounds(key, model, plan, num_chains, one)
    num_sweeps, lower, upper = jax.lax.while_loop(is_waiting, start_further_back, carry)
    return PerfectDraws(upper, (lower == upper).all(axis=0), num_sweeps)


def _bounds(
    key: Key, model: Ising, plan: SweepPlan, num_chains: int, num_sweeps: Int[Array, ""]
) -> tuple[Int[Array, "nodes chains"], Int[Array, "nodes chains"]]:
    """Lower and upper configuration at time 0, started ``num_sweeps`` before it."""
    attractive = Ising(jnp.maximum(model.couplings, 0), model.fields)
    repulsive = Ising(jnp.minimum(model.couplings, 0), jnp.zeros_like(model.fields))

    def draw(key: Key, block: NeighborBlock, rows: Array) -> Array:
        own = attractive.relative_logits(block, rows)[0]
        other = repulsive.relative_logits(block, rows)[0]
        uniform = jax.random.uniform(key, (own.shape[0], num_chains), own.dtype)
        # the uniform's logit against the sums, not the uniform against their sigmoids: sums of
        # +-J round monotonically, a computed sigmoid need not, and bounds must never cross
        noise = jnp.log(uniform / (1 - uniform))
        lower = noise < own[:, :num_chains] + other[:, num_chains:]
        # NaN must keep the bounds apart
        upper = ~(noise >= own[:, num_chains:] + other[:, :num_chains])
        return jnp.concatenate([lower, upper], axis=1)

    def body(i, rows):
        # numbered backwards from time 0: a sweep draws the same whatever the start
        return scan_tiles(jax.random.fold_in(key, num_sweeps - 1 - i), rows, plan, draw)

    start = jnp.repeat(jnp.array([0, 1], jnp.int8), num_chains)
    rows = jnp.broadcast_to(start, (plan.num_rows, 2 * num_chains))
    states = jax.lax.fori_loop(0, num_sweeps, body, rows)[plan.rows]
    return states[:, :num_chains], states[:, num_chains:]


def _check(model: PairwiseModel, plan: SweepPlan, num_chains: int, max_sweeps: int) -> None:
    """What must hold before the first sweep."""
    if not isinstance(model, Ising):
        raise ValueError(
            f"sample: expected a models.Ising, got {type(model).__name__}; "
            "write a field of two states as Ising, or run sampling.gibbs"
        )
    if plan.num_clamped:
        raise ValueError(
            f"sample: expected a plan without clamped nodes, got {plan.num_clamped} of them; "
            "add their pull to the fields of their neighbours and leave them out"
        )
    for name, value in (("num_chains", num_chains), ("max_sweeps", max_sweeps)):
        if value < 1:
            raise ValueError(f"sample: expected {name} >= 1, got {value}; raise it")
