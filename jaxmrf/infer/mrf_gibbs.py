r"""Composite Gibbs sampling of models that hold random fields.

.. math:: \theta_b \sim K_b(\,\cdot \mid \theta_{-b}, x), \qquad b = 1..B, \text{ in turn}

Every block runs on the model conditioned on the others' values (Geman & Geman, PAMI 6, 1984). A
field's normaliser :math:`\log Z(\theta)` is constant for a block that owns none of the sites behind
:math:`\theta`, and is left out for it; a block that owns one must know how to do without.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from numpyro import handlers
from numpyro.distributions import biject_to
from numpyro.infer import HMC, Gibbs
from numpyro.infer.gibbs import GibbsState, conditioned
from numpyro.infer.initialization import init_to_sample
from numpyro.infer.mcmc import MCMCKernel
from numpyro.util import identity, is_prng_key

from jaxmrf.infer._block import BlockKernel, StaticArguments, is_composite
from jaxmrf.infer._ownership import Owners, compensates, find_owners, has_model, plan_text
from jaxmrf.infer._warnings import warn_of_flags
from jaxmrf.infer.unnormalized import UnnormalizedModel

__all__ = ["MRFGibbs", "MRFGibbsState"]


class MRFGibbsState(GibbsState):
    """Position of the chain: ``z``, ``block_states`` and ``rng_key`` of ``GibbsState``.

    Any other name is looked up in the states of the blocks. A statistic of one block is returned
    as it is; flags of several (``diverging``) are true if any is, and other statistics of several
    (``accept_prob``) stand on a last axis in the order of the blocks.
    """

    __slots__ = ()

    def __getattr__(self, name: str):
        found = [] if name.startswith("_") else self._statistics(name)
        if not found:
            raise AttributeError(f"{type(self).__name__} has no statistic '{name}'")
        if len(found) == 1:
            return found[0]
        if all(value.dtype == bool for value in found):
            return jnp.stack(found).any(axis=0)
        return jnp.stack(found, axis=-1)

    def _statistics(self, name: str) -> list:
        return [
            getattr(state, name)
            for state in self.block_states
            if name in getattr(state, "_fields", ())
            or (isinstance(state, MRFGibbsState) and state._statistics(name))
        ]


class MRFGibbs(MCMCKernel):
    """``numpyro.infer.Gibbs`` for models that hold random fields.

    Adds to it: the check that no block owns a parameter of an intractable field unless its kernel
    compensates the normaliser; models without the constant normalisers for the other blocks;
    ``chain_method="vectorized"``; new draws when a run is resumed with a new key; the blocks'
    statistics (``diverging``, ``accept_prob``, ...) in ArviZ and in the summary; and a plan to
    print. Runs as a block of another composite too.

    Args:
        blocks: Pairs of a kernel and its sites: names, a function from a trace to names, or, for
            one block, None for the rest. All kernels are built on one model. Standalone,
            ``init_params`` are unconstrained values of continuous sites, whichever block owns them.

    Raises:
        ValueError: If there is no block, or the kernels are not built on one model.

    >>> import jax
    >>> import numpyro
    >>> import numpyro.distributions as dist
    >>> from numpyro.infer import NUTS
    >>> from jaxmrf.distributions import Ising
    >>> from jaxmrf.graphs import grid
    >>> from jaxmrf.infer import ExchangeMH
    >>> def model(x, y):
    ...     coupling = numpyro.sample("coupling", dist.Normal(0, 1))
    ...     scale = numpyro.sample("scale", dist.HalfNormal(1))
    ...     numpyro.sample("x", Ising(grid((5, 5)), coupling), obs=x)
    ...     numpyro.sample("y", dist.Normal(coupling, scale), obs=y)
    >>> kernel = MRFGibbs([(ExchangeMH(model), ["coupling"]), (NUTS(model), None)])
    >>> print(kernel.plan(jax.numpy.ones(25, int), 0.3))
    MRFGibbs: 2 blocks
      coupling -> ExchangeMH: parametrises x, the kernel cancels log Z
      scale -> NUTS: no field depends on it
      field x: observed Ising of 25 nodes, log Z out of reach, left out where constant
    """

    sample_field = "z"
    handles_intractable = True  # it checks the owners of its own sites

    def __init__(self, blocks: Sequence[tuple[MCMCKernel, Any]]):
        blocks = [tuple(block) for block in blocks]
        models = [kernel.model for kernel, _ in blocks if has_model(kernel)]
        if not models or any(model != models[0] for model in models[1:]):
            raise ValueError(
                f"MRFGibbs: expected kernels built on one model, got {models}; build all on the "
                "same function"
            )
        Gibbs(blocks)  # raises what NumPyro asks of blocks
        self._blocks = tuple(blocks)
        self._model = models[0]
        self._inner, self._arguments, self._sample_fn = None, None, None

    @property
    def model(self):
        """The model of all blocks; ArviZ reads it."""
        return self._model

    @property
    def blocks(self) -> tuple[tuple[MCMCKernel, Any], ...]:
        """The kernels and their sites, as given."""
        return self._blocks

    @property
    def default_fields(self) -> tuple[str, ...]:
        """The sites, and every statistic that some block collects by default."""
        names = {"z": None}
        for kernel, _ in self._blocks:
            names |= dict.fromkeys(n for n in kernel.default_fields if n != kernel.sample_field)
            names |= {"accept_prob": None} if isinstance(kernel, HMC) else {}
        return tuple(names)

    def plan(self, *args, **kwargs) -> str:
        """Which kernel updates which site and why, for printing; raises like `init`.

        Args:
            *args: Arguments of the model.
            **kwargs: Keyword arguments of the model.
        """
        return plan_text(self._blocks, find_owners(self._model, self._blocks, args, kwargs))

    def init(self, rng_key, num_warmup, init_params, model_args, model_kwargs):
        """The state of one chain, or of as many chains as there are keys."""
        model_kwargs = {} if model_kwargs is None else dict(model_kwargs)
        owners = find_owners(self._model, self._blocks, model_args, model_kwargs)
        self._inner = self._compose(owners)
        self._arguments = StaticArguments(model_args, model_kwargs)
        self._check_init_params(init_params, owners)

        def init_one(key, params):
            params = self._as_gibbs_takes_them(params, owners, model_args, model_kwargs)
            state = self._inner.init(key, num_warmup, params, model_args, model_kwargs)
            return MRFGibbsState(*state)

        if is_prng_key(rng_key):
            state = init_one(rng_key, init_params)
        else:
            axes = (0, None if init_params is None else 0)
            state = jax.vmap(init_one, in_axes=axes)(rng_key, init_params)
        self._sample_fn = self._sample_one
        return state

    def sample(self, state, model_args, model_kwargs):
        """One visit to every block, for one chain or a batch of chains."""
        model_kwargs = {} if model_kwargs is None else dict(model_kwargs)
        self._arguments.check("MRFGibbs", model_args, model_kwargs)
        if is_prng_key(state.rng_key):
            state = self._sample_one(state, model_args, model_kwargs)
        else:
            state = jax.vmap(lambda s: self._sample_one(s, model_args, model_kwargs))(state)
        for (kernel, _), block_state in zip(self._inner.blocks, state.block_states, strict=True):
            warn_of_flags(kernel, block_state)
        return state

    def _sample_one(self, state, model_args, model_kwargs):
        # Gibbs leaves the blocks' keys alone, so that a new key at resume would change nothing
        key, *keys = jax.random.split(state.rng_key, 1 + len(state.block_states))
        reseeded = tuple(
            block_state._replace(rng_key=key_block)
            for block_state, key_block in zip(state.block_states, keys, strict=True)
        )
        state = state._replace(block_states=reseeded)
        return self._inner.sample(state, model_args, model_kwargs)._replace(rng_key=key)

    def get_diagnostics_str(self, state) -> str:
        """What the blocks say of themselves, for the progress bar."""
        return "" if self._inner is None else self._inner.get_diagnostics_str(state)

    def get_constrain_fn(self, model_args, model_kwargs) -> Callable:
        """Every block's own map to constrained values."""
        return (
            identity
            if self._inner is None
            else self._inner.get_constrain_fn(model_args, model_kwargs)
        )

    def postprocess_fn(self, model_args, model_kwargs) -> Callable:
        """Constrained values and the model's deterministic sites, for one chain."""
        return (
            identity
            if self._inner is None
            else self._inner.postprocess_fn(model_args, model_kwargs)
        )

    def refresh(self, state, model_args, model_kwargs):
        """Identity: every block is refreshed when it is visited."""
        return state

    def wrap_model(self, wrapper: Callable) -> "MRFGibbs":
        """A copy whose blocks share ``wrapper(model)``."""
        model = wrapper(self._model)
        return MRFGibbs([(_rebind(kernel, model), sites) for kernel, sites in self._blocks])

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_inner": None, "_sample_fn": None}

    def _compose(self, owners: Owners) -> Gibbs:
        """NumPyro's composite, each block on its own variant of the model."""
        other = self._model
        if owners.stripped:
            other = UnnormalizedModel(self._model, owners.stripped)
        blocks = [
            (_rebind(kernel, self._model if compensates(kernel) else other), sites)
            for kernel, sites in self._blocks
        ]
        for kernel, _ in blocks:
            if isinstance(kernel, BlockKernel):
                kernel.is_supervised = True
        return Gibbs(blocks)

    def _check_init_params(self, init_params, owners: Owners) -> None:
        given = set(init_params or {})
        unknown = sorted(given - {name for names in owners.sites for name in names})
        if unknown:
            raise ValueError(
                f"MRFGibbs.init: expected init_params of latent sites, got {unknown}; drop them"
            )
        for (kernel, _), names in zip(self._blocks, owners.sites, strict=True):
            part = sorted(given & set(names))
            if isinstance(kernel, HMC) and part and len(part) < len(names):
                raise ValueError(
                    f"MRFGibbs.init: expected init_params for all or none of {list(names)}, which "
                    f"{type(kernel).__name__} owns, got {part}; add the others"
                )

    def _as_gibbs_takes_them(self, params, owners: Owners, model_args, model_kwargs):
        """Start values as `Gibbs` wants them: unconstrained for HMC, constrained for others."""
        if not params:
            return None
        model = handlers.substitute(
            handlers.seed(conditioned(self._model), 0), substitute_fn=init_to_sample
        )
        trace = handlers.trace(model).get_trace(*model_args, **model_kwargs)
        converted = dict(params)
        for (kernel, _), names in zip(self._blocks, owners.sites, strict=True):
            for name in set(names) & set(params):
                support = trace[name]["fn"].support
                if support.is_discrete:
                    continue
                if isinstance(kernel, HMC) and is_composite(model_kwargs):
                    converted[name] = biject_to(support).inv(params[name])
                elif not isinstance(kernel, HMC) and not is_composite(model_kwargs):
                    converted[name] = biject_to(support)(params[name])
        return converted


def _rebind(kernel: MCMCKernel, model) -> MCMCKernel:
    """A copy of the kernel on another model."""
    return kernel.wrap_model(lambda _: model) if has_model(kernel) else kernel
