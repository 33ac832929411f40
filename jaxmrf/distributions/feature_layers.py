r"""Layers of infinitely many features, written as the ordinary sites of a NumPyro model.

.. math:: \mu \sim \mathrm{IBP}(\alpha),\; y_{nj} \sim \mathrm{Bernoulli}(\mu_j); \qquad
          \nu \sim \mathrm{IBP}(\alpha),\; V_{jk} \sim \mathrm{Beta}(c\nu_k, c(1-\nu_k)+b),\;
          z_n \sim \mathrm{NoisyOr}(y_n, V)

A layer has as many slots as its capacity says. A draw from the prior fills them with the most
frequent features; a posterior draw with all that somebody has and the most frequent of the others.
The infinitely many features without a slot must be off for every object; the probability of that
is a factor of the model, so that the posterior is the one without truncation. Reference:
Courville, Eck & Bengio, "An infinite factor model hierarchy via a noisy-or mechanism", NIPS 2009.
"""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

from jaxmrf.distributions._base import as_floats
from jaxmrf.distributions.feature_sticks import IndianBuffetProcess, NoisyOrWeights
from jaxmrf.distributions.noisy_or import NoisyOr
from jaxmrf.nonparametric import indian_buffet, noisy_or_features

__all__ = ["OtherFeatures", "infinite_features", "noisy_or_layer"]


class OtherFeatures(dist.Unit):
    """Factor of a model for the features that have no slot: that no object has one.

    A class of its own, so that a kernel which accounts for these features itself knows it.
    """


def infinite_features(name: str, *, num_objects: int, capacity: int, concentration) -> jax.Array:
    """Writes the sites of an Indian buffet process and returns its features.

    Sites: ``name_sticks`` (frequencies, ``[capacity]``), ``name`` (features, 0 or 1), and the
    factor ``name_rest``.

    Args:
        name: Name of the features.
        num_objects: N.
        capacity: Number of slots.
        concentration: alpha > 0.

    Returns:
        Features, int32 ``[num_objects, capacity]``.
    """
    sticks = numpyro.sample(f"{name}_sticks", IndianBuffetProcess(concentration, capacity))
    with numpyro.plate(f"{name}_objects", num_objects):
        features = numpyro.sample(name, dist.Bernoulli(probs=sticks).to_event(1))

    def log_absence(log_sticks):
        return indian_buffet.log_absence(log_sticks, num_objects)

    _write_rest(name, log_absence, float(num_objects), sticks, features, concentration)
    return features


def noisy_or_layer(
    name: str,
    parents,
    *,
    capacity: int,
    concentration,
    strength=1.0,
    offset=1.0,
    has_leak: bool = False,
) -> tuple[jax.Array, jax.Array]:
    """Writes the sites of a layer of features below another, and returns features and weights.

    Sites: ``name_sticks`` (frequencies, ``[capacity]``), ``name_weights``
    (``[parents, capacity]``), ``name`` (features, 0 or 1), and the factor ``name_rest``.

    Args:
        name: Name of the features.
        parents: Features of the layer above, ``[objects, parents]``.
        capacity: Number of slots.
        concentration: alpha > 0.
        strength: c > 0, see ``NoisyOrWeights``.
        offset: b >= 0.
        has_leak: Whether there is one more parent, the first row of the weights, that is on for
            every object. Without it an object that has no parents has no features.

    Returns:
        Features, int32 ``[objects, capacity]``, and weights.
    """
    num_objects, num_parents = np.shape(parents)
    sticks = numpyro.sample(f"{name}_sticks", IndianBuffetProcess(concentration, capacity))
    weights = numpyro.sample(
        f"{name}_weights", NoisyOrWeights(sticks, num_parents + has_leak, strength, offset)
    )
    with numpyro.plate(f"{name}_objects", num_objects):
        features = numpyro.sample(name, NoisyOr(parents, weights))

    num_uses = (jnp.asarray(parents) > 0).sum(axis=0)
    if has_leak:
        num_uses = jnp.append(num_uses, num_objects)
    num_used = noisy_or_features.num_parents_used(num_uses, num_objects)
    mean_uses = noisy_or_features.mean_uses(num_used, strength, offset)

    def log_absence(log_sticks):
        return noisy_or_features.log_absence(log_sticks, num_used, strength, offset)

    _write_rest(name, log_absence, mean_uses, sticks, features, concentration)
    return features, weights


def _write_rest(name: str, log_absence, mean_uses, sticks, features, concentration) -> None:
    r"""The factor for the features that have no slot: that nobody has one.

    Slots hold all features that somebody has and the most frequent of the others, down to t:

    .. math:: \exp\Big(-\alpha \int_0^t \frac{1 - f(u)}{u}\, du
              - \alpha \log \frac{\min_k \mu_k}{t}\Big)

    where the last term replaces the smallest stick, of the sticks' own density, by t.
    """
    log_sticks = jnp.log(as_floats(sticks))
    is_active = (features > 0).any(axis=0)
    log_lowest = jnp.where(is_active, 0.0, log_sticks).min()
    present = indian_buffet.expected_present(log_absence, mean_uses, log_lowest)
    factor = OtherFeatures(-concentration * (present + log_sticks.min() - log_lowest))
    numpyro.sample(f"{name}_rest", factor, obs=factor.sample(None), infer={"is_auxiliary": True})
