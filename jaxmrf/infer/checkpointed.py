r"""NumPyro's MCMC with checkpoints: a killed run goes on and draws what it would have drawn.

.. math:: (z_{t+1}, k_{t+1}) = \mathrm{kernel}(z_t, k_t)

The state of a NumPyro kernel holds its key :math:`k` and its adaptation, so warm-up and sampling
are one chain that may stop after any step. Phan, Pradhan & Jankowiak, arXiv:1912.11554 (2019).
"""

from dataclasses import is_dataclass
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from numpyro.infer import HMC, MCMC
from numpyro.infer.mcmc import MCMCKernel
from numpyro.util import is_prng_key

from jaxmrf.checkpoints import collect

__all__ = ["run_checkpointed"]


def run_checkpointed(
    mcmc: MCMC,
    path: str | PathLike,
    rng_key: jax.Array,
    /,
    *args: Any,
    every: int,
    extra_fields: tuple[str, ...] = (),
    init_params: Any = None,
    **kwargs: Any,
) -> None:
    """``mcmc.run`` with a checkpoint after every piece of the run, warm-up included.

    Call it again, with the same arguments, after an interruption: it goes on after the last
    complete piece. Afterwards ``mcmc`` is as after ``mcmc.run``: ``get_samples``,
    ``print_summary`` and ``last_state`` give what a run without interruptions gives, bit for bit on
    the same machine and versions, with the samples in the memory of the host. They also equal those
    of ``mcmc.run``, up to what the compiler rounds otherwise in a loop of another length.

    Every length of a piece is compiled, so let ``every`` divide the warm-up and the samples; chains
    with ``chain_method="parallel"`` are compiled again for every piece, so make these long.

    Args:
        mcmc: An MCMC of any kernel. If its ``post_warmup_state`` is set, the warm-up is skipped, as
            in ``mcmc.run``.
        path: Folder of this run, made if needed.
        rng_key: Random key, or one for every chain.
        *args: Arguments of the model.
        every: Steps between checkpoints, a multiple of ``mcmc.thinning``. A resumed run may choose
            another number.
        extra_fields: Fields of the state to collect, as in ``mcmc.run``.
        init_params: Start values, as in ``mcmc.run``.
        **kwargs: Keyword arguments of the model.

    Raises:
        ValueError: If ``every`` is no positive multiple of the thinning, a file is damaged, or the
            folder holds a run with another key, other arguments or other settings. What the model
            reads apart from its arguments is not compared.
    """
    if int(every) != every or every < 1 or every % mcmc.thinning:
        raise ValueError(
            f"run_checkpointed: expected every to be a positive multiple of the thinning, "
            f"{mcmc.thinning}, got {every}; pass such a number of steps"
        )
    every, folder = int(every), Path(path)
    if mcmc.num_chains > 1 and is_prng_key(rng_key):
        rng_key = jax.random.split(rng_key, mcmc.num_chains)
    has_one_key = mcmc.sampler.is_ensemble_kernel and mcmc.num_chains > 1
    state = _first_state(mcmc, rng_key, init_params, args, kwargs)
    if mcmc.post_warmup_state is not None:
        key = rng_key[0] if has_one_key else rng_key
        state = mcmc.post_warmup_state._replace(rng_key=key)
    identity = {
        "num_chains": mcmc.num_chains,
        "num_warmup": mcmc.num_warmup,
        "num_samples": mcmc.num_samples,
        "thinning": mcmc.thinning,
        "chain_method": str(mcmc.chain_method),
        "rng_key": rng_key,
        "kernel": _settings(mcmc.sampler),
        "init_params": init_params,
        "post_warmup_state": mcmc.post_warmup_state,
        "extra_fields": list(extra_fields),
        "args": (args, kwargs),
    }
    options = {name: getattr(mcmc, name) for name in ("num_samples", "thinning", "progress_bar")}
    num_draws, left_over = divmod(mcmc.num_samples, mcmc.thinning)
    warm_state, thinning = mcmc.post_warmup_state, mcmc.thinning

    def advance(state, num_steps):
        """Steps of the chain from any state of it; NumPyro calls this sampling after a warm-up."""
        mcmc.num_samples, mcmc.post_warmup_state = num_steps, state
        key = state.rng_key
        if has_one_key:  # of which NumPyro takes the first
            key = jnp.broadcast_to(key, (mcmc.num_chains, *key.shape))
        mcmc.run(key, *args, extra_fields=extra_fields, **kwargs)
        return mcmc.last_state, jax.tree.map(_swap_chains_and_steps, mcmc._states)

    def warm_up(state, start, stop):
        mcmc.thinning = 1
        return advance(state, stop - start)[0], None

    def sample(state, start, stop):
        # like NumPyro, drop the first steps if the thinning does not divide their number
        mcmc.thinning = thinning
        return advance(state, (stop - start) * thinning + (left_over if start == 0 else 0))

    loop = partial(collect, identity=identity, progress=mcmc.progress_bar)
    try:
        mcmc.progress_bar = False
        if mcmc.num_warmup and warm_state is None:
            state, _ = loop(
                folder / "warmup",
                state,
                warm_up,
                mcmc.num_warmup,
                every=every,
                one_piece=lambda: None,
            )
        state, fields = loop(
            folder / "samples",
            state,
            sample,
            num_draws,
            every=every // thinning,
            one_piece=lambda: jax.eval_shape(partial(sample, start=1, stop=2), state)[1],
        )
    finally:
        for name, value in options.items():
            setattr(mcmc, name, value)
        mcmc.post_warmup_state = warm_state
    mcmc._args, mcmc._kwargs = args, kwargs
    mcmc._last_state, mcmc._states_flat = state, None
    mcmc._states = jax.tree.map(_swap_chains_and_steps, fields)


def _first_state(mcmc: MCMC, rng_key: jax.Array, init_params, args: tuple, kwargs: dict) -> Any:
    """The state of all chains before the warm-up; a resumed run needs the kernel it prepares."""
    kernel = mcmc.sampler
    if isinstance(kernel, HMC):
        kernel._init_fn = None  # else a second init batches over chains once more

    def init(key, params):
        return kernel.init(key, mcmc.num_warmup, params, model_args=args, model_kwargs=kwargs)

    init_params = jax.tree.map(lambda x: jnp.asarray(x, jnp.result_type(x)), init_params)
    if mcmc.num_chains == 1 or mcmc.chain_method == "vectorized":
        return init(rng_key, init_params)
    chains = range(mcmc.num_chains)
    states = [init(rng_key[i], jax.tree.map(lambda x, i=i: x[i], init_params)) for i in chains]
    return jax.tree.map(lambda *parts: jnp.stack(parts), *states)


def _settings(kernel: MCMCKernel) -> list:
    """Numbers, text and options that a kernel and those inside it were built with."""
    found = [type(kernel).__name__]
    for name, value in sorted(vars(kernel).items()):
        for leaf in jax.tree.leaves(value):
            if isinstance(leaf, MCMCKernel):
                found += [name, *_settings(leaf)]
            elif isinstance(leaf, int | float | str) or is_dataclass(leaf):
                found += [name, leaf]
    return found


def _swap_chains_and_steps(values):
    return values.swapaxes(0, 1)
