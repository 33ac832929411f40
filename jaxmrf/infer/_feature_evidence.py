r"""Any observation site as what is below the last layer of a factor hierarchy.

.. math:: \log p(x_n \mid z_{nk} = 1, z_{n,-k}) - \log p(x_n \mid z_{nk} = 0, z_{n,-k})

from two evaluations of the model with column k on and off for every object, if the log-probability
is a sum over objects of terms that depend on their own features alone.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np

from jaxmrf.infer._evidence import Dependant, evaluate_now, log_evidence, prior_conditioning

__all__ = ["SiteFactors", "check_objects"]

_NUM_MIXTURES = 16


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class SiteFactors:
    """The likelihood of ``factor_hierarchy_gibbs`` by evaluation of a model.

    Attributes:
        evaluate: Maps features, ``[features, objects]``, to the log-probability of every object.
    """

    evaluate: Callable = field(metadata={"static": True})

    def prepare(self, features):
        """The features themselves."""
        return features

    def log_odds(self, cache, index, column):
        """Difference of two evaluations; zero where the data are impossible either way."""
        on = self.evaluate(cache.at[index].set(True))
        off = self.evaluate(cache.at[index].set(False))
        return jnp.where(jnp.isneginf(on) & jnp.isneginf(off), 0, on - off), None

    def replace(self, key, cache, notes, index, column, proposed):
        """The column is taken."""
        return cache.at[index].set(proposed), proposed

    def renew(self, key, is_active):
        """Unchanged: parameters belong to other kernels."""
        return self

    def update(self, key, cache, features):
        """Unchanged: parameters belong to other kernels."""
        return self


def check_objects(
    model, site: str, shape, dependants: tuple[Dependant, ...], model_args, model_kwargs
) -> str | None:
    """The first dependant whose log-probability of an object depends on another's features.

    Evaluated at two random feature matrices and at mixtures of their rows; parameters are drawn
    from the prior. Data that are being traced cannot be evaluated.
    """
    rng = np.random.default_rng(0)
    first, second = rng.integers(2, size=(2, *shape))
    is_first = rng.integers(2, size=(_NUM_MIXTURES, shape[0])).astype(bool)
    mixed = np.where(is_first[..., None], first, second)

    def evaluate():
        kwargs, prototype = prior_conditioning(model, site, model_args, model_kwargs)

        def at(value):
            value = jnp.asarray(value, jnp.result_type(prototype))
            arguments = (model, site, value, dependants, model_args, kwargs)
            return log_evidence(*arguments, shape=shape[:1])

        return at(first), at(second), jax.vmap(at)(mixed)

    found = evaluate_now(evaluate, model_args, model_kwargs)
    if found is None:
        return None
    first, second, mixed = found
    for name in mixed:
        expected = np.where(is_first, first[name], second[name])
        if not np.allclose(mixed[name], expected, rtol=1e-4, atol=1e-4, equal_nan=True):
            return name
    return None
