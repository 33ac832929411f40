"""NumPyro's MCMC interrupted and resumed: the draws, the state and what is printed of them."""

import os

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from kernel_models import latent_field, mixture_with_location
from numpyro.infer import AIES, HMC, MCMC, NUTS

from jaxmrf import checkpoints
from jaxmrf.infer import (
    LatentFieldGibbs,
    MRFGibbs,
    PlateGibbs,
    run_checkpointed,
)

Y = jnp.array([0.3, 2.5, 1.9, -0.4])


def two_parameters(y, *, scale=1.0):
    location = numpyro.sample("location", dist.Normal(0.0, 1.0))
    width = numpyro.sample("width", dist.HalfNormal(1.0))
    numpyro.deterministic("upper", location + width)
    numpyro.sample("y", dist.Normal(location, scale * width), obs=y)


def two_blocks(step_size=0.4):
    model = mixture_with_location
    hmc = HMC(model, step_size=step_size, num_steps=2, trajectory_length=None)
    return MRFGibbs([(hmc, ["location"]), (PlateGibbs(model), ["z"])])


def new(kernel=two_blocks, **options):
    options = {"num_warmup": 4, "num_samples": 8, "progress_bar": False} | options
    return MCMC(kernel(), **options)


def go(mcmc, folder, *args, key=0, every=4, **kwargs):
    fields = kwargs.pop("extra_fields", ())
    key = jax.random.key(key)
    run_checkpointed(mcmc, folder, key, *args, every=every, extra_fields=fields, **kwargs)
    return mcmc


def interrupted(patcher, num_files, mcmc, folder, *args, **kwargs):
    """A run that stops when it has written a number of files, before the next gets its name."""
    replace, count = os.replace, iter(range(num_files))

    def crash(*paths):
        if next(count, None) is None:
            raise KeyboardInterrupt
        replace(*paths)

    with patcher.context() as patch:
        patch.setattr(checkpoints.os, "replace", crash)
        with pytest.raises(KeyboardInterrupt):
            go(mcmc, folder, *args, **kwargs)


def assert_same(one, other):
    """Two MCMCs hold the same draws, extra fields and last state, bit for bit."""
    for by_chain in (False, True):
        for method in ("get_samples", "get_extra_fields"):
            assert_trees_same(*(getattr(m, method)(group_by_chain=by_chain) for m in (one, other)))
    assert_trees_same(one.last_state, other.last_state)


def assert_trees_same(one, other):
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        if jax.dtypes.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        assert a.dtype == b.dtype and a.shape == b.shape
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


@pytest.fixture(scope="module")
def complete(tmp_path_factory):
    """A folder with a complete run of two blocks, and its MCMC."""
    folder = tmp_path_factory.mktemp("complete")
    return folder, go(new(), folder, Y)


def test_blocks_interrupted_twice_and_resumed_are_the_same(complete, tmp_path, monkeypatch, capsys):
    folder, whole = complete
    interrupted(monkeypatch, 1, whole, tmp_path, Y)  # in the warm-up, with a stray piece
    resumed = new()
    interrupted(monkeypatch, 5, resumed, tmp_path, Y)  # in the second piece of the samples
    assert (resumed.num_samples, resumed.post_warmup_state) == (8, None)
    go(resumed, tmp_path, Y)
    assert_same(resumed, go(whole, folder, Y))
    assert resumed.get_samples()["z"].shape == (8, 4)
    with np.errstate(invalid="ignore"):  # z hardly moves in eight draws
        resumed.print_summary()
    assert "location" in capsys.readouterr().out


def test_other_settings_of_the_kernel_are_refused(complete):
    with pytest.raises(ValueError, match="collect: expected kernel "):
        go(new(lambda: two_blocks(step_size=0.3)), complete[0], Y)


@pytest.mark.parametrize(("every", "thinning"), [(0, 1), (3, 2), (2.5, 1)])
def test_piece_that_is_no_multiple_of_the_thinning_is_refused(tmp_path, every, thinning):
    mcmc = new(lambda: PlateGibbs(mixture_with_location), thinning=thinning)
    with pytest.raises(ValueError, match=f"run_checkpointed: expected every .* {thinning}, got"):
        go(mcmc, tmp_path, Y, every=every)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ({"key": 1}, {}, "expected rng_key "),
        ({}, {"num_samples": 9}, "expected num_samples 8 as in the run in .*, got num_samples 9"),
        ({}, {"num_warmup": 5}, "expected num_warmup 4"),
        ({}, {"thinning": 2}, "expected thinning 1"),
        ({"extra_fields": ("accept_prob",)}, {}, "expected extra_fields "),
        ({"init_params": {"location": jnp.array(0.1)}}, {}, "expected init_params "),
        ({"size": 4}, {}, "expected args "),
    ],
)
def test_another_run_is_refused(complete, change, options, message):
    with pytest.raises(ValueError, match=f"collect: {message}"):
        go(new(**options), complete[0], Y, **change)


@pytest.mark.slow
def test_other_data_are_refused(complete):
    with pytest.raises(ValueError, match="collect: expected args "):
        go(new(), complete[0], Y + 1)


CASES = {
    "nuts": (lambda: NUTS(two_parameters), (Y,), {"num_warmup": 10, "num_samples": 11}),
    "vectorized": (
        lambda: NUTS(two_parameters),
        (Y,),
        {"num_chains": 2, "chain_method": "vectorized", "thinning": 2, "num_samples": 9},
    ),
    "sequential": (two_blocks, (Y,), {"num_chains": 2, "chain_method": "sequential"}),
    "ensemble": (
        lambda: AIES(two_parameters),
        (Y,),
        {"num_chains": 4, "chain_method": "vectorized"},
    ),
    "field": (lambda: LatentFieldGibbs(latent_field), (Y,), {"num_warmup": 0}),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_resumed_run_equals_the_one_of_numpyro(tmp_path, monkeypatch, case):
    kernel, args, options = CASES[case]
    kwargs = {"scale": 2.0} if case == "nuts" else {}
    fields = ("energy", "adapt_state.step_size") if "scale" in kwargs else ()
    plain, resumed = new(kernel, **options), new(kernel, **options)
    plain.run(jax.random.key(0), *args, extra_fields=fields, **kwargs)
    for num_files in (1, 2, 1, 0):
        interrupted(monkeypatch, num_files, resumed, tmp_path, *args, extra_fields=fields, **kwargs)
    resumed = new(kernel, **options)
    assert_same(go(resumed, tmp_path, *args, extra_fields=fields, **kwargs), plain)
    assert (resumed.num_samples, resumed.thinning) == (plain.num_samples, plain.thinning)


@pytest.mark.slow
def test_run_after_a_warm_up_starts_there(tmp_path):
    plain, checkpointed = new(), new()
    for mcmc in (plain, checkpointed):
        mcmc.warmup(jax.random.key(5), Y)
    plain.run(jax.random.key(0), Y)
    assert_same(go(checkpointed, tmp_path, Y), plain)
    assert not (tmp_path / "warmup").exists()
    assert_trees_same(checkpointed.post_warmup_state, plain.post_warmup_state)
