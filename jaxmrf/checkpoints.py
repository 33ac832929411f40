r"""Long runs that survive an interruption: pytrees in npz files, and loops that resume from them.

.. math:: (s_{t+1}, o_t) = \mathrm{step}(k_t, s_t), \qquad (k_0, \dots, k_{T-1}) = \mathrm{split}(k)

The keys are those of the whole run, so a loop that stops after any piece and goes on later draws
what one that never stopped draws. A file is written beside its target, flushed and then renamed: a
name always holds a complete file. With a cost :math:`\delta` of a checkpoint and a mean time
:math:`M` between failures, one every :math:`\sqrt{2 \delta M}` wastes the least time. Reference:
Young, "A first order approximation to the optimum checkpoint interval", CACM 17 (1974).
"""

import hashlib
import io
import json
import os
import re
import zipfile
from collections.abc import Callable
from functools import lru_cache, partial
from os import PathLike
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from tqdm.auto import tqdm

from jaxmrf.types import Key

__all__ = ["collect", "restore", "run", "save"]


def save(path: str | PathLike, tree: Any) -> None:
    """Write a pytree to a file; if that is interrupted, the file that was there before stays.

    The file is an npz archive of the leaves under their paths in the tree, readable by
    ``numpy.load``. Random keys are kept as their words and types that NumPy lacks (bfloat16) as
    unsigned integers of the same bits.

    Args:
        path: File to write, whose folder exists.
        tree: Pytree of arrays, random keys and numbers. An array that is spread over several
            processes has to be gathered first.

    Raises:
        ValueError: If a leaf is not an array or a number.
    """
    path = Path(path)
    named = _named_leaves(tree)
    for name, leaf in named.items():
        if not _is_data(leaf):
            raise ValueError(
                f"save: expected arrays, random keys and numbers, got {type(leaf).__name__} at "
                f"{name}; take it out of the tree"
            )
    header = {
        "structure": _without_addresses(jax.tree.structure(tree)),
        "leaves": {name: _kind(leaf) for name, leaf in named.items()},
        "generators": {k: str(jax.random.key_impl(v)) for k, v in named.items() if _is_key(v)},
    }
    arrays = {name: _as_stored(leaf) for name, leaf in named.items()}
    beside = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with open(beside, "wb") as file:
            np.savez(file, header=np.array(json.dumps(header)), **arrays)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)
    if os.name == "posix":  # elsewhere a folder cannot be opened, and the rename is not flushed
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def restore(path: str | PathLike, like: Any) -> Any:
    """The pytree in a file of ``save``.

    Args:
        path: The file.
        like: Pytree of the same structure, shapes and dtypes, such as a fresh state; its values are
            not read. Each leaf comes back as what it is here: a JAX array (of the same sharding if
            it is committed to one), a NumPy array, a NumPy or Python number, or a random key; a
            ``jax.ShapeDtypeStruct`` as a NumPy array.

    Raises:
        ValueError: If the file is damaged, or its structure, a shape or a dtype is not that of
            ``like``.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(f"{folder}/state.npz", {"spins": np.array([0, 1, 1]), "count": 7})
    ...     restore(f"{folder}/state.npz", {"spins": np.zeros(3, int), "count": 0})
    {'count': 7, 'spins': array([0, 1, 1])}
    """
    return _rebuild(path, *_read(path), like)


def run(
    path: str | PathLike,
    key: Key,
    state: Any,
    step: Callable,
    num_steps: int,
    *,
    every: int,
    args: tuple = (),
    progress: bool = False,
    compiler_options: dict | None = None,
) -> tuple[Any, Any]:
    """State after ``num_steps`` steps and the Infos of all of them, resuming what a folder holds.

    Like ``jax.lax.scan`` of the step over ``jax.random.split(key, num_steps)``, which is also what
    ``learning.training.fit`` does, with a checkpoint after every piece. Call it again, with the
    same arguments, after an interruption: it goes on after the last complete piece, and the result
    is bit for bit that of a run without interruptions on the same machine and JAX version. Once
    complete it only reads. One process at a time may work in the folder; the processes of
    ``jax.distributed`` need one each, and a state that they hold whole.

    Args:
        path: Folder of this run, made if needed.
        key: Random key.
        state: State before the first step, a pytree of arrays.
        step: Function ``(key, state, *args) -> (State, Info)``, pure. What it reads apart from its
            arguments and the keywords of a ``functools.partial`` is not compared with the
            interrupted run's.
        num_steps: Number of steps, at least 1.
        every: Steps between checkpoints, at least 1. A resumed run may choose another number.
        args: Pytrees handed to every step, such as a model and its plan.
        progress: Whether to show a progress bar.
        compiler_options: Options for XLA, such as those of a sampler plan.

    Returns:
        The last state, and the Infos with steps on the leading axis, as NumPy arrays: they need
        not fit on the device.

    Raises:
        ValueError: If the folder holds a run with another key, state, step, number of steps or
            arguments, a file in it is damaged, or a number is out of range.

    >>> import tempfile
    >>> def walk(key, position):
    ...     position += jax.random.rademacher(key, (), int)
    ...     return position, position
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     len(run(folder, jax.random.key(0), 0, walk, 5, every=2)[1])
    5
    """
    for name, number in {"num_steps": num_steps, "every": every}.items():
        if int(number) != number or number < 1:
            raise ValueError(
                f"run: expected {name} to be a positive integer, got {number}; pass at least 1"
            )
    num_steps, every = int(num_steps), int(every)
    keys = jax.random.split(key, num_steps)
    scan = _jitted_scan(tuple((compiler_options or {}).items()))

    def advance(state, start, stop):
        return scan(step, state, keys[start:stop], args)

    return collect(
        path,
        state,
        advance,
        num_steps,
        every=every,
        identity={
            "num_steps": num_steps,
            "key": key,
            "step": _description(step),
            "state": state,
            "args": args,
        },
        one_piece=lambda: jax.eval_shape(partial(advance, start=0, stop=1), state)[1],
        progress=progress,
    )


def collect(
    path: str | PathLike,
    state: Any,
    advance: Callable[[Any, int, int], tuple[Any, Any]],
    num_steps: int,
    *,
    every: int,
    identity: dict[str, Any],
    one_piece: Callable[[], Any],
    progress: bool = False,
) -> tuple[Any, Any]:
    """The loop behind ``run``, over any function that advances a state by several steps.

    The folder holds ``state.npz``, replaced after every piece, and the outputs of every piece in a
    file of its own, so that all writing together grows linearly with the run.

    Args:
        path: Folder of this run, made if needed.
        state: State before the first step.
        advance: Function ``(state, start, stop) -> (state, outputs)`` that makes the steps
            ``start`` to ``stop - 1``; the outputs have these steps on their leading axis.
        num_steps: Number of steps, at least 1.
        every: Steps between checkpoints, at least 1.
        identity: What has to be the same when the run is resumed: numbers, strings and pytrees.
        one_piece: Function that returns the outputs of any piece, or their shapes; called if this
            call makes no step itself.
        progress: Whether to show a progress bar.

    Returns:
        The last state, and the outputs of all steps as NumPy arrays.

    Raises:
        ValueError: If the folder holds a run of another identity, or a file in it is damaged.
    """
    folder, done, outputs = Path(path), 0, None
    folder.mkdir(parents=True, exist_ok=True)
    for left_behind in folder.glob("*.part"):
        left_behind.unlink()
    identity = {name: _summary(value) for name, value in identity.items()}
    state, file = _without_weak_types(state), folder / "state.npz"
    if file.exists():
        header, arrays = _read(file)
        for name, new in identity.items():
            old = arrays.get(f"tree['identity']['{name}']")
            if old != new:
                raise ValueError(
                    f"collect: expected {name} {old} as in the run in {folder}, got {name} {new}; "
                    "pass what that run was given, or another folder"
                )
        record = {"identity": identity, "done": 0, "state": state}
        record = _rebuild(file, header, arrays, record)
        done, state = record["done"], record["state"]
    with tqdm(total=num_steps, initial=done, disable=not progress) as bar:
        while done < num_steps:
            stop = min(done + every, num_steps)
            state, outputs = advance(state, done, stop)
            state = _without_weak_types(state)
            save(_piece(folder, done), {"stop": stop, "outputs": outputs})
            # last: a piece counts once the state behind it is there, else it is made again
            save(file, {"identity": identity, "done": stop, "state": state})
            bar.update(stop - done)
            done = stop
    return state, _outputs(folder, one_piece() if outputs is None else outputs, num_steps)


@lru_cache
def _jitted_scan(options: tuple) -> Callable:
    """The loop, one object for each set of options, so that it compiles once."""
    return jax.jit(_scan, static_argnames="step", compiler_options=dict(options) or None)


def _scan(step: Callable, state: Any, keys: Key, args: tuple) -> tuple[Any, Any]:
    return jax.lax.scan(lambda state, key: step(key, state, *args), state, keys)


def _piece(folder: Path, start: int) -> Path:
    return folder / f"steps_{start:012d}.npz"


def _outputs(folder: Path, like: Any, num_steps: int) -> Any:
    """The outputs of all pieces, one behind the other."""
    pieces, start = [], 0
    while start < num_steps:
        file = _piece(folder, start)
        header, arrays = _read(file)
        stop = int(arrays["tree['stop']"])
        shapes = jax.tree.map(partial(_of_length, stop - start), like)
        piece = _rebuild(file, header, arrays, {"stop": 0, "outputs": shapes})
        pieces.append(piece["outputs"])
        start = stop
    return jax.tree.map(_concatenated, *pieces)


def _of_length(length: int, leaf: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((length, *leaf.shape[1:]), leaf.dtype)


def _concatenated(*parts: Any) -> Any:
    return (jnp if _is_key(parts[0]) else np).concatenate(parts)


def _without_weak_types(state: Any) -> Any:
    """The state as arrays that promote other types as restored ones do."""

    def convert(leaf):
        leaf = jnp.asarray(leaf)
        return leaf if _is_key(leaf) else leaf.astype(leaf.dtype)

    return jax.tree.map(convert, state)


def _summary(value: Any) -> str:
    """Text that is the same for equal values: numbers and strings as they are, else a digest."""
    if isinstance(value, int | str):
        return _without_addresses(value)
    leaves, structure = jax.tree.flatten(value)
    digest = hashlib.sha256(_without_addresses(structure).encode())
    for leaf in leaves:
        data = _as_stored(leaf) if _is_data(leaf) else np.array(_without_addresses(leaf))
        digest.update(_kind(leaf).encode() + data.tobytes())
    return digest.hexdigest()[:16]


def _description(function: Callable) -> Any:
    """The name of a function, with the arguments that a ``partial`` holds."""
    if isinstance(function, partial):
        return [_description(function.func), function.args, function.keywords]
    return getattr(function, "__qualname__", type(function).__name__)


def _without_addresses(value: Any) -> str:
    return re.sub(r" at 0x[0-9a-f]+", "", str(value))


def _is_key(leaf: Any) -> bool:
    return hasattr(leaf, "dtype") and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _named_leaves(tree: Any) -> dict[str, Any]:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {f"tree{jax.tree_util.keystr(path)}": leaf for path, leaf in leaves}


def _is_data(leaf: Any) -> bool:
    return _is_key(leaf) or _dtype(leaf).kind != "O"


def _dtype(leaf: Any) -> Any:
    return leaf.dtype if hasattr(leaf, "dtype") else np.asarray(leaf).dtype


def _kind(leaf: Any) -> str:
    """Type and shape of a leaf, such as ``float32(3, 2)``."""
    return f"{_dtype(leaf)}{np.shape(leaf)}"


def _as_stored(leaf: Any) -> np.ndarray:
    """The leaf as an array of a type that NumPy can write."""
    array = np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf)
    is_foreign = array.dtype.isbuiltin == 2
    return array.view(f"uint{8 * array.dtype.itemsize}") if is_foreign else array


def _read(path: str | PathLike) -> tuple[dict, dict[str, np.ndarray]]:
    """Header and arrays of a file."""
    try:
        with zipfile.ZipFile(path) as archive:  # which checks the sums of what it reads whole
            content = {name.removesuffix(".npy"): archive.read(name) for name in archive.namelist()}
        arrays = {
            k: np.lib.format.read_array(io.BytesIO(v), allow_pickle=False)
            for k, v in content.items()
        }
        header = json.loads(str(arrays.pop("header")))
        if header["leaves"].keys() != arrays.keys():
            raise KeyError(*(header["leaves"].keys() ^ arrays.keys()))
        return header, arrays
    except (FileNotFoundError, IsADirectoryError, PermissionError):
        raise
    except Exception as error:  # damaged bytes can raise anything inside the parsers
        raise ValueError(
            f"restore: expected a complete file of save, got {error!r} from {path}; delete it, and "
            "the other files of its run if it has some, to start again"
        ) from error


def _rebuild(path: str | PathLike, header: dict, arrays: dict[str, np.ndarray], like: Any) -> Any:
    """The arrays in the form of ``like``."""
    named = _named_leaves(like)
    saved, wanted = header["leaves"], {name: _kind(leaf) for name, leaf in named.items()}
    mend = "pass a tree like the one that was saved"
    for name in sorted(saved.keys() | wanted.keys()):
        if saved.get(name) != wanted.get(name):
            raise ValueError(
                f"restore: expected {wanted.get(name, 'no leaf')} at {name}, got "
                f"{saved.get(name, 'no leaf')} in {path}; {mend}"
            )
    structure, generators = jax.tree.structure(like), header["generators"]
    if header["structure"] != (text := _without_addresses(structure)):
        raise ValueError(f"restore: expected {text}, got {header['structure']} in {path}; {mend}")
    leaves = [_revived(arrays[k], leaf, generators.get(k)) for k, leaf in named.items()]
    return jax.tree.unflatten(structure, leaves)


def _revived(array: np.ndarray, like: Any, generator: str | None) -> Any:
    """One leaf, of the Python type of ``like``."""
    if generator is not None:
        return jax.random.wrap_key_data(jnp.asarray(array), impl=generator)
    array = array.view(_dtype(like))
    if isinstance(like, jax.Array):
        return jax.device_put(array, like.sharding if like.committed else None)
    if isinstance(like, np.ndarray | jax.ShapeDtypeStruct):
        return array
    return array[()] if isinstance(like, np.generic) else array.item()
