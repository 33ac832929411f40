r"""Newton draws of the values of tied parameters, given the groups.

On the logit scale the values w of the groups have log posterior f with score s and precision H,

.. math:: s_g = \sum_{i \in g} (S_i - n p_i) + \frac{d \log G_0}{d w_g}, \qquad
          H_{gh} = n \operatorname{Cov}(T_g, T_h) - [g = h] \frac{d^2 \log G_0}{d w_g^2},
          \quad T_g = \sum_{i \in g} 1[x_u = x_v],

and :math:`w + (1 - \rho) H^{-1} s + \sqrt{1 - \rho^2}\, H^{-1/2} \xi` leaves a Gaussian posterior
invariant for every :math:`\rho`, and draws from it afresh for :math:`\rho = 0`.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxmrf.nonparametric.base_measures import LARGEST_LOGIT, BaseMeasure
from jaxmrf.nonparametric.label_updates import log_density
from jaxmrf.types import Array, Bool, Float, Key

__all__ = ["NewtonFrame", "fill_empty", "log_proposal", "newton_frame", "propose"]

# a group at the edge of (0, 1) has next to no curvature; a step is at most a few units
_SMALLEST_PRECISION = 0.1
_RIDGE = 0.01


class NewtonFrame(NamedTuple):
    """Quadratic model of the log posterior at a point.

    Attributes:
        step: ``H^-1 s``, from the point to the mode of the model.
        root: V with ``V V' = H^-1``.
        log_det: Log determinant of V.
        precision: H.
    """

    step: Float[Array, " groups"]
    root: Float[Array, "groups groups"]
    log_det: Float[Array, ""]
    precision: Float[Array, "groups groups"]


def newton_frame(
    logits: Float[Array, " groups"],
    score: Float[Array, " groups"],
    information: Float[Array, "groups groups"],
    is_used: Bool[Array, " groups"],
    base: BaseMeasure,
    *,
    max_step: float = jnp.inf,
) -> NewtonFrame:
    """The quadratic model from the likelihood's score and information; G0 is added here.

    Args:
        logits: The point.
        score: Gradient of the log-likelihood.
        information: Its negative Hessian, or an estimate of it, positive semidefinite.
        is_used: Whether a slot holds a group; the others stay where they are.
        base: G0.
        max_step: Bound on every entry of the step.
    """
    slopes = jax.grad(lambda logits: log_density(logits, base).sum())
    slope, curvature = jax.jvp(slopes, (logits,), (jnp.ones_like(logits),))
    pair = is_used[:, None] & is_used
    precision = jnp.where(pair, information, 0.0)
    diagonal = jnp.maximum(-curvature, 0.0) + _RIDGE * jnp.diag(precision) + _SMALLEST_PRECISION
    precision = precision + jnp.diag(jnp.where(is_used, diagonal, 1.0))
    root, log_det = _inverse_root(precision)
    step = root @ (root.T @ jnp.where(is_used, score + slope, 0.0))
    return NewtonFrame(jnp.clip(step, -max_step, max_step), root, log_det, precision)


def propose(
    key: Key,
    logits: Float[Array, " groups"],
    frame: NewtonFrame,
    rho: Float[Array, ""] | float = 0.0,
) -> Float[Array, " groups"]:
    """A draw from the quadratic model that remembers the point by ``rho`` in [0, 1)."""
    noise = jax.random.normal(key, logits.shape, logits.dtype)
    return logits + (1 - rho) * frame.step + jnp.sqrt(1 - rho**2) * frame.root @ noise


def log_proposal(
    proposal: Float[Array, " groups"],
    logits: Float[Array, " groups"],
    frame: NewtonFrame,
    rho: Float[Array, ""] | float = 0.0,
) -> Float[Array, ""]:
    """Log density of ``propose`` up to a constant."""
    distance = proposal - logits - (1 - rho) * frame.step
    return -distance @ frame.precision @ distance / (2 * (1 - rho**2)) - frame.log_det


def fill_empty(
    key: Key, logits: Float[Array, " groups"], is_used: Bool[Array, " groups"], base: BaseMeasure
) -> Float[Array, " groups"]:
    """The logits with draws from G0, the posterior without data, in the empty slots."""
    fresh = jax.scipy.special.logit(base.sample(key, logits.shape))
    return jnp.clip(jnp.where(is_used, logits, fresh), -LARGEST_LOGIT, LARGEST_LOGIT)


def _inverse_root(
    precision: Float[Array, "groups groups"],
) -> tuple[Float[Array, "groups groups"], Float[Array, ""]]:
    """V with ``V' H V = 1`` by Gram-Schmidt, and its log determinant.

    In array operations of its own because batches of small LAPACK factorisations are slow, and on
    few cores may not finish.
    """

    def body(carry, column):
        root, log_det = carry
        index, row = column
        vector = (jnp.arange(len(row)) == index) - root @ (root.T @ row)
        square = vector @ precision @ vector
        root = root.at[:, index].set(vector * jax.lax.rsqrt(square))
        return (root, log_det - jnp.log(square) / 2), None

    start = (jnp.zeros_like(precision), jnp.zeros((), precision.dtype))
    columns = (jnp.arange(len(precision)), precision)
    return jax.lax.scan(body, start, columns)[0]
