r"""Agreement probabilities near a centre, by linear response.

.. math:: \mathrm{logit}\, p_i(w) \approx w_i + h_i(w), \qquad
          h_i(w) = \mathrm{logit}\, p_i^c - w_i^c + \sum_{j \ne i} B_{ij} (w_j - w_j^c), \quad
          B_{ij} = \frac{C_{ij}}{p_i^c (1 - p_i^c)}

where :math:`p^c` and C are the means and covariances of the agreements at the centre
:math:`w^c`: exact by a transfer pass, or from snapshots of Gibbs chains. The linear form in logits
is exact to first order (C is the Hessian of log Z) and keeps probabilities in (0, 1).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.special import logit

from jaxmrf.exact import transfer
from jaxmrf.graphs import FrontierPlan, Graph
from jaxmrf.models import Ising
from jaxmrf.sampling import gibbs
from jaxmrf.sampling.packed import AnyPlan
from jaxmrf.types import Array, Float, Int, Key

__all__ = ["Expansion", "by_sampling", "by_transfer", "messages", "num_snapshots_needed"]

# agreement probabilities this close to 0 or 1 are as good as certain
_SMALLEST = 1e-6
# with fewer samples the noise of the covariance makes the messages drift
_SAMPLES_PER_EDGE = 15
# shrinkage of the covariance to its diagonal at that number
_SHRINKAGE = 0.1


class Expansion(NamedTuple):
    """Agreement probabilities to first order around a centre.

    Attributes:
        center: Logits :math:`w^c` of the edges' agreement parameters.
        messages: :math:`h(w^c)`, so that ``sigmoid(center + messages)`` are the probabilities.
        covariance: C, covariance of the agreements.
        response: Row j holds ``B[:, j]``, zero on the diagonal.
    """

    center: Float[Array, " edges"]
    messages: Float[Array, " edges"]
    covariance: Float[Array, "edges edges"]
    response: Float[Array, "edges edges"]


def messages(expansion: Expansion, logits: Float[Array, " edges"]) -> Float[Array, " edges"]:
    """Messages h to all edges at given logits, to first order."""
    return expansion.messages + (logits - expansion.center) @ expansion.response


def by_transfer(center: Float[Array, " edges"], graph: Graph, plan: FrontierPlan) -> Expansion:
    """The expansion from exact moments.

    Args:
        center: Logits of the edges' agreement parameters.
        graph: Graph of the field.
        plan: Its frontier plan.
    """

    def log_z(logits):
        field = Ising(logits / 2, jnp.zeros(graph.num_nodes, logits.dtype))
        return transfer.log_z(field, graph, plan) + logits.sum() / 2

    means = jnp.clip(jax.grad(log_z)(center), _SMALLEST, 1 - _SMALLEST)
    covariance = jax.hessian(log_z)(center)
    return _expansion(center, means, covariance, means * (1 - means))


def num_snapshots_needed(num_edges: int, num_chains: int) -> int:
    """Snapshots of so many chains that give 15 samples an edge, the fewest seen to be stable."""
    return -(-_SAMPLES_PER_EDGE * num_edges // num_chains)


def by_sampling(
    key: Key,
    center: Float[Array, " edges"],
    particles: Int[Array, "nodes chains"],
    graph: Graph,
    plan: AnyPlan,
    *,
    num_snapshots: int,
    num_sweeps: int = 10,
    num_warmup: int = 200,
) -> tuple[Expansion, Int[Array, "nodes chains"]]:
    """The expansion from Gibbs chains, the means Rao-Blackwellised over both ends of an edge.

    The covariance is shrunk to its diagonal, by a tenth at 15 samples an edge and less with more;
    truncating it instead diverges. Where couplings are strong and frustrated the chains mix slowly,
    and snapshots after every sweep mislead; sweeps cost less than the products of a snapshot.

    Args:
        key: Random key.
        center: Logits of the edges' agreement parameters.
        particles: States of the chains to start from.
        graph: Graph of the field.
        plan: Its sampler plan or sweep plan.
        num_snapshots: Snapshots of all chains.
        num_sweeps: Sweeps between snapshots.
        num_warmup: Sweeps before the first.

    Returns:
        The expansion, and the chains after the last snapshot.
    """
    field = Ising(center / 2, jnp.zeros(graph.num_nodes, center.dtype))
    first, second = graph.edges.T
    num_samples = num_snapshots * particles.shape[1]
    tilt = jnp.exp(center / 2)[:, None]
    key_warmup, key_snapshots = jax.random.split(key)
    particles = gibbs.run(key_warmup, particles, field, plan, num_sweeps=num_warmup)

    def snapshot(carry, key):
        particles, means, agreements, products = carry
        particles = gibbs.run(key, particles, field, plan, num_sweeps=num_sweeps)
        spins = 2 * particles.astype(center.dtype) - 1
        pull = field.couplings[:, None] * spins[second], field.couplings[:, None] * spins[first]
        local = jnp.zeros_like(spins).at[first].add(pull[0]).at[second].add(pull[1])
        # mean spins of both ends without this edge, given the rest of the snapshot
        product = jnp.tanh(local[first] - pull[0]) * jnp.tanh(local[second] - pull[1])
        same, other = tilt * (1 + product), (1 - product) / tilt
        agree = (particles[first] == particles[second]).astype(center.dtype)
        means = means + (same / (same + other)).sum(axis=1)
        return (particles, means, agreements + agree.sum(axis=1), products + agree @ agree.T), None

    zeros = jnp.zeros(graph.num_edges, center.dtype)
    start = (particles, zeros, zeros, jnp.zeros((graph.num_edges,) * 2, center.dtype))
    keys = jax.random.split(key_snapshots, num_snapshots)
    (particles, *sums), _ = jax.lax.scan(snapshot, start, keys)
    means, agreements, products = (total / num_samples for total in sums)
    means = jnp.clip(means, _SMALLEST, 1 - _SMALLEST)
    covariance = products - jnp.outer(agreements, agreements)
    shrinkage = _SHRINKAGE * min(1.0, _SAMPLES_PER_EDGE * graph.num_edges / num_samples)
    variances = jnp.diag(covariance)
    covariance = jnp.fill_diagonal((1 - shrinkage) * covariance, variances, inplace=False)
    variances = jnp.maximum(means * (1 - means), variances)
    variances = variances + _SAMPLES_PER_EDGE / num_samples
    return _expansion(center, means, covariance, variances), particles


def _expansion(center, means, covariance, variances) -> Expansion:
    response = covariance / variances
    response = jnp.fill_diagonal(response, 0, inplace=False)
    return Expansion(center, logit(means) - center, covariance, response)
