"""Files and runs that survive interruptions: kept bits, planted crashes, real kills, refusals."""

import dataclasses
import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import NamedTuple

import checkpoint_runs
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from checkpoint_runs import PLAN, SQUARE, model

from jaxmrf import checkpoints
from jaxmrf.checkpoints import restore, run, save
from jaxmrf.learning import contrastive
from jaxmrf.learning.training import fit


def walk(key, state, scale=1.0, *, drift=0.0):
    """A step with floats, an integer that starts as a Python number, and a key."""
    noise = scale * jax.random.normal(key, state["x"].shape) + drift
    state = {"x": 0.9 * state["x"] + noise, "count": state["count"] + 1, "last": key}
    return state, (state["x"], key, None)


def start():
    return {"x": jnp.zeros(3), "count": 0, "last": jax.random.key(9)}


def assert_same(one, other):
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert a.dtype == b.dtype
        if jax.dtypes.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        assert a.shape == b.shape and np.asarray(a).tobytes() == np.asarray(b).tobytes()


class Point(NamedTuple):
    x: object
    y: object = None


def everything():
    return {
        "point": Point(jnp.array([jnp.nan, -0.0, 1e-42]), None),
        "key": jax.random.key(3),
        "keys": jax.random.split(jax.random.key(4, impl="rbg"), (2, 3)),
        "legacy": jax.random.PRNGKey(5),
        "brain": jnp.array([1.5, -3.0], jnp.bfloat16),
        "nibbles": jnp.array([-8, 7], jnp.int4),
        "flags": jnp.array([[True, False]]),
        "words": [jnp.array(2**32 - 1, jnp.uint32), np.array([255], np.uint8)],
        "host": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "empty": jnp.zeros((0, 2)),
        "scalar": np.float64(0.1),
        "numbers": (3, 0.1, True),
    }


def blank(leaf):
    """A leaf of the same kind with other values."""
    if jax.dtypes.issubdtype(jnp.result_type(leaf), jax.dtypes.prng_key):
        words = jnp.zeros_like(jax.random.key_data(leaf))
        return jax.random.wrap_key_data(words, impl=jax.random.key_impl(leaf))
    if isinstance(leaf, jax.Array):
        return jnp.zeros_like(leaf)
    return np.zeros_like(leaf) if isinstance(leaf, np.ndarray) else type(leaf)(0)


def test_every_kind_of_leaf_comes_back_as_it_was(tmp_path):
    save(tmp_path / "a.npz", everything())
    back = restore(tmp_path / "a.npz", jax.tree.map(blank, everything()))
    assert list(tmp_path.iterdir()) == [tmp_path / "a.npz"]
    for a, b in zip(jax.tree.leaves(everything()), jax.tree.leaves(back), strict=True):
        assert type(a) is type(b)
    as_arrays = partial(jax.tree.map, lambda x: x if hasattr(x, "dtype") else np.array(x))
    assert_same(as_arrays(everything()), as_arrays(back))


def test_archive_is_plain_and_shapes_alone_are_enough(tmp_path):
    tree = {"a": jnp.arange(3), "b": jax.random.split(jax.random.key(0))}
    save(tmp_path / "a.npz", tree)
    with np.load(tmp_path / "a.npz", allow_pickle=False) as archive:
        np.testing.assert_array_equal(archive["tree['a']"], [0, 1, 2])
    back = restore(tmp_path / "a.npz", jax.eval_shape(lambda: tree))
    assert isinstance(back["a"], np.ndarray)
    assert_same(back, {"a": np.arange(3, dtype=np.int32), "b": tree["b"]})


def test_array_comes_back_where_it_was_committed(tmp_path):
    mesh = jax.make_mesh((1,), ("chains",))
    sharding = jax.NamedSharding(mesh, jax.P("chains"))
    tree = [jax.device_put(jnp.arange(4), sharding), jnp.arange(2)]
    save(tmp_path / "a.npz", tree)
    placed, free = restore(tmp_path / "a.npz", tree)
    assert placed.sharding == sharding and not free.committed


@pytest.mark.parametrize(
    ("like", "message"),
    [
        ({"a": jnp.zeros(3)}, "expected float32(3,) at tree['a'], got int8(3,)"),
        ({"a": jnp.zeros(2, jnp.int8)}, "expected int8(2,) at tree['a'], got int8(3,)"),
        ({"a": jnp.zeros(3, jnp.int8), "b": 1}, "expected int64() at tree['b'], got no leaf"),
        ({"c": jnp.zeros(3, jnp.int8)}, "expected no leaf at tree['a'], got int8(3,)"),
        ({"a": jnp.zeros(3, jnp.int8), "b": None}, "expected PyTreeDef({'a': *, 'b': None}), got"),
        ({"a": jax.random.key(0)}, "expected key<fry>() at tree['a'], got int8(3,)"),
    ],
)
def test_another_tree_is_refused(tmp_path, like, message):
    save(tmp_path / "a.npz", {"a": jnp.zeros(3, jnp.int8)})
    with pytest.raises(ValueError) as error:
        restore(tmp_path / "a.npz", like)
    assert f"restore: {message}" in str(error.value)


def test_key_of_another_generator_is_refused(tmp_path):
    save(tmp_path / "a.npz", jax.random.key(0))
    with pytest.raises(ValueError, match="expected key<rbg>"):
        restore(tmp_path / "a.npz", jax.random.key(0, impl="rbg"))


def test_another_static_field_is_refused(tmp_path):
    save(tmp_path / "a.npz", PLAN)
    assert_same(restore(tmp_path / "a.npz", PLAN), PLAN)
    other = dataclasses.replace(PLAN, num_clamped=1)
    with pytest.raises(ValueError, match=r"restore: expected PyTreeDef\(.*, got PyTreeDef\("):
        restore(tmp_path / "a.npz", other)


def test_leaf_that_is_no_array_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"save: expected arrays.*got object at tree\['a'\]"):
        save(tmp_path / "a.npz", {"a": object()})
    assert list(tmp_path.iterdir()) == []


def test_damaged_file_is_refused_or_harmless(tmp_path):
    file, tree = tmp_path / "a.npz", {"a": np.arange(3), "key": jax.random.key(0)}
    save(file, tree)
    content = file.read_bytes()
    damaged = [content[:length] for length in range(0, len(content), 7)]
    for i in range(0, len(content), 2):
        damaged.append(content[:i] + bytes([content[i] ^ 0xFF]) + content[i + 1 :])
    num_refused = 0
    for bytes_ in damaged:
        file.write_bytes(bytes_)
        try:
            assert_same(restore(file, tree), tree)
        except ValueError as error:
            assert "restore: expected a complete file of save" in str(error)
            num_refused += 1
    assert num_refused > 0.8 * len(damaged)


def test_crash_between_writing_and_renaming_leaves_the_old_file(tmp_path, monkeypatch):
    save(tmp_path / "a.npz", jnp.arange(3))
    monkeypatch.setattr(checkpoints.os, "replace", planted_crash(0))
    with pytest.raises(KeyboardInterrupt):
        save(tmp_path / "a.npz", jnp.arange(3) + 1)
    assert restore(tmp_path / "a.npz", jnp.arange(3)).tolist() == [0, 1, 2]
    assert list(tmp_path.iterdir()) == [tmp_path / "a.npz"]


def planted_crash(num_before):
    """``os.replace`` that is interrupted in call ``num_before``."""
    replace, calls = os.replace, iter(range(10**6))

    def crash(*paths):
        if next(calls) == num_before:
            raise KeyboardInterrupt
        replace(*paths)

    return crash


def test_run_equals_one_scan_in_pieces_of_any_length(tmp_path, key):
    whole = fit(key, start(), walk, 11, args=(0.5,))
    for every in (1, 4, 11, 50):
        found = run(tmp_path / f"{every}", key, start(), walk, 11, every=every, args=(0.5,))
        assert_same(found, jax.tree.map(lambda x: jnp.asarray(x), whole))
        assert isinstance(found[1][0], np.ndarray)


def test_run_interrupted_at_any_file_and_resumed_is_the_same(tmp_path, key, monkeypatch):
    whole = run(tmp_path / "whole", key, start(), walk, 8, every=2)
    for num_before in range(8):
        folder = tmp_path / f"{num_before}"
        with monkeypatch.context() as patch:
            patch.setattr(checkpoints.os, "replace", planted_crash(num_before))
            with pytest.raises(KeyboardInterrupt):
                run(folder, key, start(), walk, 8, every=2)
        every = 3 if num_before % 2 else 2  # a resumed run may choose
        assert_same(run(folder, key, start(), walk, 8, every=every), whole)


def test_complete_run_is_only_read(tmp_path, key, monkeypatch):
    whole = run(tmp_path, key, start(), walk, 8, every=2)
    monkeypatch.setattr(checkpoints, "save", None)
    assert_same(run(tmp_path, key, start(), walk, 8, every=2), whole)


def test_writing_grows_linearly_with_the_run(tmp_path, key):
    run(tmp_path, key, start(), walk, 8, every=2)
    names = sorted(file.name for file in tmp_path.iterdir())
    assert names == ["state.npz", *(f"steps_{i:012d}.npz" for i in (0, 2, 4, 6))]
    sizes = {(tmp_path / name).stat().st_size for name in names[1:]}
    assert len(sizes) == 1


@pytest.fixture(scope="module")
def complete(tmp_path_factory):
    """A complete run; the tests that change it copy it."""
    folder = tmp_path_factory.mktemp("complete")
    run(folder, jax.random.key(0), start(), walk, 8, every=2, args=(0.5,))
    return folder


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"key": jax.random.key(1)}, "expected key "),
        ({"key": jax.random.PRNGKey(0)}, "expected key "),
        ({"num_steps": 9}, "expected num_steps 8 as in the run in .*, got num_steps 9; pass"),
        ({"state": start() | {"x": jnp.ones(3)}}, "expected state "),
        ({"args": (0.6,)}, "expected args "),
        ({"args": (jnp.array(0.5),)}, "expected args "),
        ({"step": fit}, "expected step walk as in the run in .*, got step fit; pass"),
        ({"step": partial(walk, drift=1.0)}, "expected step walk"),
    ],
)
def test_another_run_is_refused(complete, change, message):
    same = {"key": jax.random.key(0), "state": start(), "step": walk, "num_steps": 8, "every": 2}
    with pytest.raises(ValueError, match=f"collect: {message}"):
        run(complete, **(same | {"args": (0.5,)} | change))


def test_options_of_a_partial_step_are_compared(tmp_path, key):
    whole = run(tmp_path, key, start(), partial(walk, drift=1.0), 8, every=8)
    assert_same(run(tmp_path, key, start(), partial(walk, drift=1.0), 8, every=8), whole)
    with pytest.raises(ValueError, match="expected step"):
        run(tmp_path, key, start(), partial(walk, drift=2.0), 8, every=8)


@pytest.mark.parametrize("number", [0, -1, 1.5])
@pytest.mark.parametrize("name", ["every", "num_steps"])
def test_number_out_of_range_is_refused(tmp_path, key, name, number):
    numbers = {"every": 2, "num_steps": 8} | {name: number}
    with pytest.raises(ValueError, match=f"run: expected {name} to be a positive integer"):
        run(tmp_path / "a", key, start(), walk, **numbers)
    assert not (tmp_path / "a").exists()


def test_damaged_or_missing_piece_is_refused(tmp_path, complete):
    def again():
        return run(folder, jax.random.key(0), start(), walk, 8, every=2, args=(0.5,))

    folder = shutil.copytree(complete, tmp_path / "copy")
    piece = folder / "steps_000000000004.npz"
    piece.write_bytes(piece.read_bytes()[:-30])
    with pytest.raises(ValueError, match=r"expected a complete file.*steps_000000000004.npz; dele"):
        again()
    piece.unlink()
    with pytest.raises(FileNotFoundError, match="steps_000000000004.npz"):
        again()
    (folder / "state.npz").write_bytes(b"")
    with pytest.raises(ValueError, match=r"expected a complete file.*state.npz; delete"):
        again()


@pytest.mark.slow
def test_persistent_contrastive_divergence_resumes(tmp_path, key, monkeypatch):
    """A learner through its step and through ``fit`` is the same run."""
    data = jax.random.bernoulli(key, 0.6, (50, SQUARE.num_nodes)).astype(jnp.int8)
    optimizer = contrastive.default_optimizer()
    state = contrastive.init(key, model(), PLAN, optimizer=optimizer, num_chains=20)
    step = partial(contrastive.step, optimizer=optimizer, average_from=5)
    args = (contrastive.target(data, SQUARE, model()), SQUARE, PLAN)
    whole = fit(key, state, step, 12, args=args)
    with monkeypatch.context() as patch:
        patch.setattr(checkpoints.os, "replace", planted_crash(3))
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path, key, state, step, 12, every=4, args=args)
    assert_same(run(tmp_path, key, state, step, 12, every=4, args=args), whole)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs processes that can be forked")
@pytest.mark.parametrize(
    "seeds", ["0", pytest.param("1 2 3 4", marks=pytest.mark.slow)], ids=["one", "many"]
)
def test_run_killed_at_random_moments_and_resumed_is_the_same(tmp_path, seeds):
    seeds, script = seeds.split(), Path(checkpoint_runs.__file__)
    command = [sys.executable, str(script), str(tmp_path), *seeds]
    environment = os.environ | {"PYTHONPATH": str(script.parents[1])}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    num_kills = [int(number) for number in done.stdout.split()]
    assert len(num_kills) == len(seeds) and min(num_kills) >= 1
    whole = checkpoint_runs.sample(tmp_path / "whole")
    for seed in seeds:
        assert not list((tmp_path / seed).glob("*.part"))
        assert_same(checkpoint_runs.sample(tmp_path / seed), whole)
