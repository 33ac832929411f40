"""What the block kernels of this package share: one chain or many, hooks, pickling, guards.

A subclass writes three methods: ``_prepare`` (static facts of the model, raises), ``_init_one`` and
``_sample_one`` (one chain, pure). Nothing that may be traced is stored on the kernel, and data are
never bound at ``init``, so a kernel runs alone under every chain method and as a block.
"""

import copy
from typing import Any

import jax
import numpy as np
from numpyro import handlers
from numpyro.infer.gibbs import (
    GIBBS_SITES_KWARG,
    conditioned,
    latent_sample_sites,
    prototype_trace,
)
from numpyro.infer.mcmc import MCMCKernel
from numpyro.util import identity, is_prng_key

from jaxmrf.graphs import Graph
from jaxmrf.infer._warnings import warn_of_flags

__all__ = ["BlockKernel", "StaticArguments", "abstract_sites", "is_composite"]


class BlockKernel(MCMCKernel):
    """A kernel that runs alone and as a block of ``numpyro.infer.Gibbs`` or ``MRFGibbs``.

    Attributes:
        handles_intractable: Whether the kernel may own parents of an intractable random field.
            ``MRFGibbs`` hands such kernels the model with its normalisers in place.
        is_supervised: Whether a composite gives the warnings, once for all its chains.
    """

    sample_field = "z"
    handles_intractable = False
    is_supervised = False

    def __init__(self, model):
        self._model = model
        self._reset()

    def _reset(self) -> None:
        """Forget what `init` found out about the model."""
        self._num_warmup = 0
        self._arguments = None
        self._sample_fn = None  # MCMC reads this name: None means that init has to run

    def _prepare(self, model_args: tuple, model_kwargs: dict) -> None:
        """Find and check the static facts of the model; called once by every `init`."""
        raise NotImplementedError

    def _init_one(self, rng_key, init_params, model_args: tuple, model_kwargs: dict):
        """The state of one chain."""
        raise NotImplementedError

    def _sample_one(self, state, model_args: tuple, model_kwargs: dict):
        """One transition of one chain."""
        raise NotImplementedError

    @property
    def model(self):
        """The model; ArviZ reads it."""
        return self._model

    def init(self, rng_key, num_warmup, init_params, model_args, model_kwargs):
        """The state of one chain, or of as many chains as there are keys."""
        model_kwargs = {} if model_kwargs is None else dict(model_kwargs)
        self._num_warmup = num_warmup
        self._prepare(model_args, model_kwargs)
        self._arguments = StaticArguments(model_args, model_kwargs)

        def init_one(key, params):
            return self._init_one(key, params, model_args, model_kwargs)

        self._sample_fn = self._sample_one
        if is_prng_key(rng_key):
            return init_one(rng_key, init_params)
        return jax.vmap(init_one, in_axes=(0, None if init_params is None else 0))(
            rng_key, init_params
        )

    def sample(self, state, model_args, model_kwargs):
        """The next state of one chain or of a batch of chains."""
        model_kwargs = {} if model_kwargs is None else dict(model_kwargs)
        self._arguments.check(type(self).__name__, model_args, model_kwargs)
        if is_prng_key(state.rng_key):
            state = self._sample_one(state, model_args, model_kwargs)
        else:
            state = jax.vmap(lambda s: self._sample_one(s, model_args, model_kwargs))(state)
        if not self.is_supervised:
            warn_of_flags(self, state)
        return state

    def get_constrain_fn(self, model_args, model_kwargs):
        """Identity: discrete values are their own constrained form."""
        return identity

    def postprocess_fn(self, model_args, model_kwargs):
        """Constrained values and the model's deterministic sites, for one chain."""
        model_kwargs = {} if model_kwargs is None else model_kwargs
        constrain = self.get_constrain_fn(model_args, model_kwargs)

        def postprocess(z):
            values = constrain(z)
            model = handlers.substitute(handlers.seed(conditioned(self._model), 0), data=values)
            sites = handlers.trace(model).get_trace(*model_args, **model_kwargs)
            return values | {
                name: site["value"]
                for name, site in sites.items()
                if site["type"] == "deterministic"
            }

        return postprocess

    def refresh(self, state, model_args, model_kwargs):
        """Identity: nothing in the state depends on the values conditioned on."""
        return state

    def wrap_model(self, wrapper):
        """A copy for ``wrapper(model)``, which prepares itself at its own `init`."""
        kernel = copy.copy(self)
        kernel._model = wrapper(self._model)
        kernel._reset()
        return kernel

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_sample_fn": None}


class StaticArguments:
    """The static part of a model's arguments, kept at `init` and compared at every `sample`."""

    def __init__(self, model_args: tuple, model_kwargs: dict):
        own = {name: value for name, value in model_kwargs.items() if name != GIBBS_SITES_KWARG}
        arguments = (tuple(model_args), own)
        self._structure = jax.tree.structure(arguments)
        leaves = jax.tree_util.tree_leaves_with_path(
            arguments, is_leaf=lambda leaf: isinstance(leaf, Graph)
        )
        self._graphs = {
            jax.tree_util.keystr(path[1:]): leaf for path, leaf in leaves if isinstance(leaf, Graph)
        }

    def check(self, kernel: str, model_args: tuple, model_kwargs: dict) -> None:
        """Raise if a graph or another static argument is not the one of `init`."""
        new = StaticArguments(model_args, model_kwargs)
        if new._structure == self._structure:
            return
        before, after = f"{self._structure}", f"{new._structure}"
        for path in self._graphs.keys() & new._graphs.keys():
            if self._graphs[path] != new._graphs[path]:
                before, after = f"{self._graphs[path]}", f"another {new._graphs[path]}"
                after += f" as argument {path}"
        raise ValueError(
            f"{kernel}.sample: expected the static arguments of init, {before}, got {after}; "
            "run a new MCMC for other arguments"
        )


def is_composite(model_kwargs: dict) -> bool:
    """Whether the kernel runs as a block; `init_params` are then constrained values."""
    return GIBBS_SITES_KWARG in model_kwargs


def abstract_sites(model, model_args: tuple, model_kwargs: dict, describe) -> tuple:
    """What ``describe(trace)`` says of a prototype trace, and the shapes of its latent values.

    The model is traced, not run: no field is sampled. ``describe`` must return static facts only.
    """
    facts = []

    def run():
        trace = prototype_trace(conditioned(model), jax.random.key(0), model_args, model_kwargs)
        facts.append(describe(trace))
        return {name: trace[name]["value"] for name in latent_sample_sites(trace)}

    shapes = jax.eval_shape(run)
    return facts[0], {
        name: jax.ShapeDtypeStruct(np.shape(s), s.dtype) for name, s in shapes.items()
    }
