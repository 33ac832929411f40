"""The contract of ``numpyro.infer.mcmc.MCMCKernel`` as a dictionary of checks.

Each check takes a ``KernelCase`` and raises ``AssertionError`` with what it found::

    @pytest.mark.parametrize("check", KERNEL_CHECKS)
    def test_kernel_keeps_the_contract(check):
        KERNEL_CHECKS[check](KernelCase(lambda: PlateGibbs(model), (data,)))
"""

import copy
import pickle
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import jax
import numpy as np
from numpyro.infer import MCMC
from numpyro.infer.mcmc import MCMCKernel

__all__ = ["KERNEL_CHECKS", "KernelCase"]

_NUM_CHAINS = 2


@dataclass(frozen=True, eq=False)
class KernelCase:
    """A kernel and the arguments of its model.

    Attributes:
        make: Builds the kernel anew.
        args: Arguments of the model.
        kwargs: Keyword arguments of the model.
        num_steps: Steps of warm-up and of sampling in each run.
    """

    make: Callable[[], MCMCKernel]
    args: tuple = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    num_steps: int = 3


def _run(case: KernelCase, *, key=None, **options) -> MCMC:
    options = {"num_warmup": case.num_steps, "num_samples": case.num_steps} | options
    mcmc = MCMC(case.make(), progress_bar=False, **options)
    with warnings.catch_warnings():
        # NumPyro donates its buffers under vmap too, where some have another shape
        warnings.filterwarnings("ignore", "Some donated buffers were not usable")
        mcmc.run(jax.random.key(0) if key is None else key, *case.args, **case.kwargs)
    return mcmc


@lru_cache(maxsize=64)
def _chains(case: KernelCase, method) -> MCMC:
    """A run of two chains, kept because several checks look at it."""
    mcmc = _run(case, num_chains=_NUM_CHAINS, chain_method=method)
    for draws in jax.tree.leaves(mcmc.get_samples(group_by_chain=True)):
        _require(
            draws.shape[:2] == (_NUM_CHAINS, case.num_steps),
            f"draws of shape {draws.shape} for {_NUM_CHAINS} chains of {case.num_steps}",
        )
    return mcmc


def _trace(case: KernelCase, key, **options) -> None:
    """Trace a run without compiling it, which is where kernels fail and saves most of the time."""
    draws = jax.eval_shape(lambda key: _run(case, key=key, **options).get_samples(), key)
    _require(jax.tree.leaves(draws), "no draws")


def _model(case: KernelCase) -> None:
    """ArviZ reads `model`."""
    _require(callable(getattr(case.make(), "model", None)), "no model attribute")


def _sample_field(case: KernelCase) -> None:
    """The sample field stands first in the default fields."""
    kernel = case.make()
    _require(kernel.default_fields[0] == kernel.sample_field, f"{kernel.default_fields}")


def _sequential(case: KernelCase) -> None:
    """Chains run one after the other."""
    _chains(case, "sequential")


def _vectorized(case: KernelCase) -> None:
    """Chains run at once, by one call with a batch of keys."""
    _chains(case, "vectorized")


def _callable(case: KernelCase) -> None:
    """Chains run under jax.vmap."""
    _chains(case, jax.vmap)


def _same_draws(case: KernelCase) -> None:
    """The chain methods give the same draws for the same keys."""
    first, *others = (
        jax.tree.leaves(_chains(case, method).get_samples())
        for method in ("sequential", "vectorized", jax.vmap)
    )
    for other in others:
        for a, b in zip(first, other, strict=True):
            _require(np.allclose(a, b, atol=1e-3), f"largest difference {np.abs(a - b).max()}")


def _state(case: KernelCase) -> None:
    """The state keeps its structure, shapes and types; `_replace` and `rng_key` exist."""
    kernel = case.make()
    state = kernel.init(
        jax.random.key(0), 3, None, model_args=case.args, model_kwargs=dict(case.kwargs)
    )
    after = jax.eval_shape(lambda s: kernel.sample(s, case.args, dict(case.kwargs)), state)
    before = jax.eval_shape(lambda s: s, state)
    _require(before == after, f"state changes from {before} to {after}")
    _require(hasattr(state, "_replace") and hasattr(state, "rng_key"), "no _replace or rng_key")


def _resume(case: KernelCase) -> None:
    """Resuming with another key gives other draws, with the same key the same."""
    mcmc = copy.copy(_chains(case, "vectorized"))
    state, draws = mcmc.last_state, []
    for seed in (1, 2, 1):
        mcmc.post_warmup_state = state
        mcmc.run(jax.random.key(seed), *case.args, **case.kwargs)
        draws.append(jax.tree.leaves(mcmc.get_samples()))
    _require(not _equal(draws[0], draws[1]), "same draws for different keys")
    _require(_equal(draws[0], draws[2]), "different draws for the same key")


def _one_init(case: KernelCase) -> None:
    """`run` after `warmup` does not initialise again."""
    kernel, calls = case.make(), []
    init = kernel.init

    def counted(*args, **kwargs):
        calls.append(1)
        return init(*args, **kwargs)

    def warm_up_and_run(key):
        mcmc = MCMC(kernel, num_warmup=1, num_samples=1, progress_bar=False)
        mcmc.warmup(key, *case.args, **case.kwargs)
        mcmc.run(key, *case.args, **case.kwargs)
        return mcmc.get_samples()

    kernel.init = counted
    jax.eval_shape(warm_up_and_run, jax.random.key(0))
    _require(len(calls) == 1, f"init called {len(calls)} times")


def _pickle(case: KernelCase) -> None:
    """A pickled run repeats itself."""
    mcmc = _chains(case, "vectorized")
    again = pickle.loads(pickle.dumps(mcmc))
    _require(_equal(mcmc.get_samples(), again.get_samples()), "draws change")
    again.run(jax.random.key(0), *case.args, **case.kwargs)
    _require(_equal(mcmc.get_samples(), again.get_samples()), "the copy draws something else")


def _legacy_keys(case: KernelCase) -> None:
    """Keys of type uint32[2] work."""
    _trace(case, jax.random.PRNGKey(0))


def _jit_model_args(case: KernelCase) -> None:
    """The model's arguments may be traced."""
    _trace(case, jax.random.key(0), jit_model_args=True)


def _inside_jit(case: KernelCase) -> None:
    """A whole run may be traced."""
    _trace(case, jax.random.key(0))


def _hooks(case: KernelCase) -> None:
    """The hooks of composite Gibbs sampling are written and leave the kernel alone."""
    kernel = case.make()
    for hook in ("refresh", "wrap_model"):
        _require(getattr(type(kernel), hook) is not getattr(MCMCKernel, hook), f"no {hook}")
    model = kernel.model
    wrapped = kernel.wrap_model(lambda inner: _Wrapped(inner))
    _require(kernel.model is model, "wrap_model changes the kernel itself")
    _require(isinstance(wrapped.model, _Wrapped), "wrap_model does not wrap the model")


class _Wrapped:
    """A wrapper that passes everything on."""

    def __init__(self, model):
        self.model = model

    def __call__(self, *args, **kwargs):
        return self.model(*args, **kwargs)


def _require(condition, message: str) -> None:
    if not condition:
        raise AssertionError(message)


def _equal(a, b) -> bool:
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(np.array_equal(x, y) for x, y in pairs)


KERNEL_CHECKS: dict[str, Callable[[KernelCase], None]] = {
    "model attribute": _model,
    "sample field first": _sample_field,
    "chains sequential": _sequential,
    "chains vectorized": _vectorized,
    "chains under jax.vmap": _callable,
    "same draws by all chain methods": _same_draws,
    "state is a fixed point": _state,
    "pickles": _pickle,
    "resumes with the new key": _resume,
    "initialises once": _one_init,
    "takes legacy keys": _legacy_keys,
    "takes traced arguments": _jit_model_args,
    "runs inside jit": _inside_jit,
    "has the composite hooks": _hooks,
}
"""The fourteen checks by name."""
