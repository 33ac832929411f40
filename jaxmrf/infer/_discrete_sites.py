r"""The discrete latent sites of a NumPyro model, as variables with finitely many values.

.. math:: z_s \in \{v_1, \dots, v_K\}^{n_s}

Every element of a site is a variable of its own, whatever its plates and its event shape.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxmrf.distributions import DiscreteFactorGraph, MarkovRandomField, base_distribution

__all__ = ["VALUE_ERRORS", "DiscreteSite", "discrete_sites", "is_subsampled", "owners"]

VALUE_ERRORS = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
    jax.errors.NonConcreteBooleanIndexError,
)


class DiscreteSite(NamedTuple):
    """A site whose elements are variables of the factor graph.

    Attributes:
        name: Its name.
        shape: Shape of its value.
        dtype: Type of its value.
        support: Values of one element, or of the one that has most.
        num_states: Number of values of every element.
        start: Number of its first variable.
    """

    name: str
    shape: tuple[int, ...]
    dtype: Any
    support: np.ndarray
    num_states: tuple[int, ...]
    start: int

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(np.prod(self.shape, dtype=int))

    @property
    def scopes(self) -> np.ndarray:
        """Every element's own variable, as a scope."""
        found = np.empty(self.size, object)
        found[:] = [frozenset((self.start + element,)) for element in range(self.size)]
        return found.reshape(self.shape)

    def values(self, states):
        """Values from the states of all variables, which are on the last axis."""
        own = jnp.asarray(states)[..., self.start : self.start + self.size]
        return jnp.asarray(self.support, self.dtype)[own].reshape((*own.shape[:-1], *self.shape))


def discrete_sites(trace, names) -> list[DiscreteSite]:
    """The sites to sum out, in the order of the trace; names of None are all discrete ones."""
    latent = [n for n, s in trace.items() if s["type"] == "sample" and not s["is_observed"]]
    discrete = [name for name in latent if trace[name]["fn"].support.is_discrete]
    for name in names or ():
        if name not in discrete:
            raise ValueError(
                f"marginalize: expected names of discrete latent sites, got {name!r}; the model "
                f"has {', '.join(discrete[:8]) or 'none'}"
            )
    chosen = [name for name in discrete if names is None or name in names]
    if not chosen:
        raise ValueError(
            "marginalize: expected a model with a discrete latent site, got one without; use the "
            "model itself"
        )
    subsampled = {n for n, s in trace.items() if s["type"] == "plate" and is_subsampled(s)}
    found, start = [], 0
    for name in chosen:
        site = trace[name]
        for frame in site["cond_indep_stack"]:
            if frame.name in subsampled:
                raise ValueError(
                    f"marginalize: expected site {name!r} outside of subsampled plates, got it in "
                    f"{frame.name!r}, which raises its probability to a power; use the whole plate"
                )
        shape, dtype = jnp.shape(site["value"]), jnp.result_type(site["value"])
        support, counts = _support(name, site["fn"], shape)
        found.append(DiscreteSite(name, shape, dtype, support, counts, start))
        start += found[-1].size
    return found


def _support(name: str, fn, shape) -> tuple[np.ndarray, tuple[int, ...]]:
    """Values of an element, and how many of them each element has."""
    base = base_distribution(fn)
    if isinstance(base, MarkovRandomField | DiscreteFactorGraph):
        is_mixed = isinstance(base, DiscreteFactorGraph)
        counts = np.broadcast_to(base.hypergraph.num_states if is_mixed else base.num_states, shape)
        return np.arange(counts.max(initial=1)), tuple(counts.ravel().tolist())
    reason = f"{type(base).__name__} with event shape {base.event_shape}"
    if base.has_enumerate_support and not base.event_shape:
        try:
            with jax.ensure_compile_time_eval():
                support = np.asarray(base.enumerate_support(expand=False)).ravel()
            return support, (len(support),) * int(np.prod(shape, dtype=int))
        except (NotImplementedError, *VALUE_ERRORS) as error:
            reason = f"{type(base).__name__} ({str(error).splitlines()[0]})"
    raise ValueError(
        f"marginalize: expected site {name!r} to list its values by enumerate_support, got "
        f"{reason}; leave it out of sites, or bound it and write it as a Categorical"
    )


def is_subsampled(plate) -> bool:
    """Whether a plate, out of a trace, holds only some of its elements."""
    return plate["args"][1] is not None and plate["args"][0] != plate["args"][1]


def owners(sites, nodes) -> str:
    """How many elements of which sites some variables are, for a person."""
    counts = {
        site.name: len([n for n in nodes if site.start <= n < site.start + site.size])
        for site in sites
    }
    parts = [f"{count} of {name!r}" for name, count in counts.items() if count]
    return ", ".join(parts[:8]) + (f" and {len(parts) - 8} sites more" if len(parts) > 8 else "")
