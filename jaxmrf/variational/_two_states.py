r"""Messages between binary nodes as single numbers, their log odds.

With spins, coupling J and cavity log odds c,

.. math:: m = \log \frac{e^{2J} + e^{-c}}{1 + e^{2J - c}}, \qquad
    m_{\max} = |J + c / 2| - |J - c / 2|
"""

import jax.numpy as jnp

from jaxmrf.types import Array

__all__ = ["change_of_odds", "prepare", "send_max", "send_sum", "spin_parts"]


def spin_parts(tables: Array) -> tuple[Array, Array, Array]:
    """Coupling, field on the first end and field on the second of log tables, states first."""
    (off_off, off_on), (on_off, on_on) = tables
    coupling = (off_off + on_on - off_on - on_off) / 4
    first = (on_off + on_on - off_off - off_on) / 4
    second = (off_on + on_on - off_off - on_off) / 4
    return coupling, first, second


def prepare(couplings: Array, is_max: bool) -> Array:
    """The couplings as the messages want them."""
    if is_max:
        return couplings
    limit = 80 if couplings.dtype.itemsize == 4 else 700
    return jnp.exp(jnp.clip(2 * couplings, -limit, limit))


def send_sum(scale: Array, odds: Array) -> Array:
    """Log odds sent along an edge, from those of its other end; odd in them, so none overflow."""
    is_positive = odds >= 0
    small = jnp.exp(-jnp.where(is_positive, odds, -odds))
    sent = jnp.log((scale + small) / (1 + scale * small))
    return jnp.where(is_positive, sent, -sent)


def send_max(couplings: Array, odds: Array) -> Array:
    """The same for maxima."""
    return jnp.abs(couplings + odds / 2) - jnp.abs(couplings - odds / 2)


def change_of_odds(new: Array, old: Array) -> Array:
    """Bounds on the changes of messages whose largest entry is 1, from their log odds."""
    is_same_side = new * old > 0
    top = jnp.where(is_same_side, jnp.minimum(jnp.abs(new), jnp.abs(old)), 0)
    return jnp.abs(new - old) / (1 + top + top * top / 2)
