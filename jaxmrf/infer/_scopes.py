r"""Arrays of scopes (frozensets of input elements), and how array operations move elements.

.. math:: S(a \circ b) = S(a) \cup S(b)

Moving an element is the same for its value, for what is known of it and for its scope, so one
function serves all three. Reference: Griewank & Walther, "Evaluating Derivatives" (2008), 7.1.
"""

import numpy as np

__all__ = [
    "EMPTY",
    "boxed",
    "coordinates",
    "empty",
    "full",
    "reduce_axes",
    "structural_function",
    "union",
]

EMPTY: frozenset = frozenset()


def boxed(scopes, shape=None) -> np.ndarray:
    """An array of scopes, also where NumPy has taken the only element out of it."""
    if not isinstance(scopes, np.ndarray):
        scopes = full((), scopes)
    return scopes if shape is None or scopes.shape == tuple(shape) else scopes.reshape(shape)


def full(shape, scope: frozenset) -> np.ndarray:
    """The same scope everywhere."""
    found = np.empty(shape, object)
    found[...] = scope
    return found


def empty(shape) -> np.ndarray:
    """Elements that depend on nothing."""
    return full(shape, EMPTY)


def union(*arrays) -> np.ndarray | None:
    """Union element by element; None stands for elements that depend on nothing."""
    found = None
    for array in arrays:
        if array is None or array is found:
            continue
        found = boxed(array) if found is None else boxed(np.bitwise_or(found, array))
    return found


def reduce_axes(scopes: np.ndarray, axes, keepdims: bool = False) -> np.ndarray:
    """Union along axes."""
    axes = tuple(axis % scopes.ndim for axis in axes)
    if not axes:
        return scopes
    rest = [axis for axis in range(scopes.ndim) if axis not in axes]
    lead = [scopes.shape[axis] for axis in rest]
    moved = np.transpose(scopes, (*rest, *axes))
    size = int(np.prod([scopes.shape[axis] for axis in axes], dtype=int))
    merged = boxed(np.bitwise_or.reduce(moved.reshape(*lead, size), axis=-1, initial=EMPTY))
    if keepdims:
        shape = [1 if axis in axes else size for axis, size in enumerate(scopes.shape)]
        return merged.reshape(shape)
    return merged


def structural_function(eqn):
    """What an operation that only moves elements does to NumPy arrays; None for any other."""
    name = eqn.primitive.name
    if name in _IDENTITIES:
        return lambda *xs: list(xs)
    if name in _MOVES:
        move = _MOVES[name]
        return lambda *xs: [*move(eqn.params, *xs)] if name in _MANY else [move(eqn.params, *xs)]
    return None


_IDENTITIES = {"convert_element_type", "copy", "copy_p", "device_put", "optimization_barrier"}
_IDENTITIES |= {"reduce_precision", "sharding_constraint", "stop_gradient"}
_MANY = {"split", "unstack"}


def _broadcast_in_dim(params, x, *_):
    shape = [1] * len(params["shape"])
    for axis, size in zip(params["broadcast_dimensions"], np.shape(x), strict=True):
        shape[axis] = size
    return np.broadcast_to(np.reshape(x, shape), params["shape"])


def _reshape(params, x, *_):
    if params.get("dimensions") is not None:
        x = np.transpose(x, params["dimensions"])
    return np.reshape(x, params["new_sizes"])


def _slice(params, x):
    strides = params["strides"] or (1,) * x.ndim
    bounds = zip(params["start_indices"], params["limit_indices"], strides, strict=True)
    return x[tuple(slice(int(a), int(b), int(s)) for a, b, s in bounds)]


def _pad(params, x, fill):
    config = [tuple(map(int, axis)) for axis in params["padding_config"]]
    shape = [
        low + high + size + max(size - 1, 0) * gap
        for size, (low, high, gap) in zip(np.shape(x), config, strict=True)
    ]
    found = np.empty(shape, x.dtype)
    found[...] = fill[()]
    targets, sources = [], []
    for size, length, (low, _, gap) in zip(np.shape(x), shape, config, strict=True):
        place = low + (gap + 1) * np.arange(size)
        is_inside = (place >= 0) & (place < length)
        targets.append(place[is_inside])
        sources.append(np.flatnonzero(is_inside))
    found[np.ix_(*targets)] = x[np.ix_(*sources)]
    return found


_MOVES = {
    "broadcast_in_dim": _broadcast_in_dim,
    "concatenate": lambda params, *xs: np.concatenate(xs, int(params["dimension"])),
    "expand_dims": lambda params, x: np.expand_dims(x, params["dimensions"]),
    "pad": _pad,
    "reshape": _reshape,
    "rev": lambda params, x: np.flip(x, params["dimensions"]),
    "slice": _slice,
    "split": lambda params, x: np.split(
        x, np.cumsum(params["sizes"]).astype(int)[:-1], int(params["axis"])
    ),
    "squeeze": lambda params, x: np.reshape(
        x,
        [
            s
            for a, s in enumerate(np.shape(x))
            if a not in {d % x.ndim for d in params["dimensions"]}
        ],
    ),
    "stack": lambda params, *xs: np.stack(xs, int(params["axis"])),
    "transpose": lambda params, x: np.transpose(x, params["permutation"]),
    "unstack": lambda params, x: np.moveaxis(x, int(params["axis"]), 0),
}


def coordinates(eqn, indices, operand_shape):
    """Where a gather, a scatter or a slice with traced starts reads or writes its operand.

    Args:
        eqn: The operation.
        indices: Facts of its indices: one array, or a list of scalars.
        operand_shape: Shape of the operand.

    Returns:
        For every element of the window the place in the operand (a tuple of index arrays), whether
        it is inside, the axes of the operand along which an index is not known (place 0), and for
        every array of indices the function that picks its rows.
    """
    name, rank = eqn.primitive.name, len(operand_shape)
    if name == "dynamic_slice":
        sizes, offsets, batching = eqn.params["slice_sizes"], range(rank), {}
        shape, rows = sizes, ()
        columns = {axis: (fact.value, fact.known) for axis, fact in enumerate(indices)}
        picks = [lambda array: array[()] for _ in indices]
        offset_of = dict(enumerate(offsets))
    else:
        numbers = eqn.params["dimension_numbers"]
        is_gather = name == "gather"
        shape = eqn.outvars[0].aval.shape if is_gather else eqn.invars[2].aval.shape
        window_axes = numbers.offset_dims if is_gather else numbers.update_window_dims
        dropped = numbers.collapsed_slice_dims if is_gather else numbers.inserted_window_dims
        targets = numbers.start_index_map if is_gather else numbers.scatter_dims_to_operand_dims
        own = (
            numbers.start_indices_batching_dims
            if is_gather
            else numbers.scatter_indices_batching_dims
        )
        batching = dict(zip(numbers.operand_batching_dims, own, strict=True))
        kept = [axis for axis in range(rank) if axis not in dropped and axis not in batching]
        offset_of = dict(zip(kept, window_axes, strict=True))
        grid = np.indices(shape, sparse=True)
        rows = tuple(grid[axis] for axis in range(len(shape)) if axis not in window_axes)
        sizes = [shape[offset_of[axis]] if axis in offset_of else 1 for axis in range(rank)]
        (fact,) = indices
        columns = {
            axis: (None, None)
            if fact.value is None
            else (fact.value[..., column], fact.known[..., column])
            for column, axis in enumerate(targets)
        }
        picks = [lambda array: boxed(reduce_axes(array, (-1,)))[rows]]
    grid = np.indices(shape, sparse=True)
    place, inside, merged = [], True, []
    for axis in range(rank):
        offset = grid[offset_of[axis]] if axis in offset_of else 0
        if axis in batching:
            place.append(rows[batching[axis]])
            continue
        value, known = columns.get(axis, (0, True))
        if value is None or not np.all(known):
            merged.append(axis)
            place.append(0)
            continue
        start = np.asarray(value)[rows] if np.ndim(value) else np.asarray(value).astype(int)
        clipped = np.clip(start, 0, operand_shape[axis] - sizes[axis])
        inside = inside & (clipped == start)
        place.append(clipped + offset)
    return tuple(place), inside, tuple(merged), picks
