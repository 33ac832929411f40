r"""Auxiliary draws that cancel the normalisers in the acceptance ratio of an exchange move.

.. math:: y \sim p(y \mid \theta'), \qquad \log q_\theta(y) - \log q_{\theta'}(y)

Reference: Murray, Ghahramani & MacKay, "MCMC for doubly-intractable distributions", UAI 2006.
"""

import jax
import jax.numpy as jnp

__all__ = ["draw_auxiliary", "log_auxiliary_ratio"]


def draw_auxiliary(key, current, proposed):
    """One realisation of every field at the proposed parameters.

    Args:
        key: Random key.
        current: Fields at the current parameters, by name.
        proposed: The same at the proposed ones.
    """
    keys = jax.random.split(key, max(len(proposed), 1))
    return {
        name: field.sample(key_field)
        for (name, field), key_field in zip(proposed.items(), keys, strict=False)
    }


def log_auxiliary_ratio(draws, current, proposed):
    """Log q(y) at the current parameters minus at the proposed ones, over all fields.

    Args:
        draws: What ``draw_auxiliary`` returned.
        current: Unnormalised fields at the current parameters, by name.
        proposed: The same at the proposed ones.
    """
    return sum(
        jnp.sum(current[name].log_prob(y)) - jnp.sum(proposed[name].log_prob(y))
        for name, y in draws.items()
    )
