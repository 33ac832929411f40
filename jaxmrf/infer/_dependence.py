r"""Which elements of a traced function's values can depend on which of its inputs' elements.

.. math:: x_{V \setminus S_e} = x'_{V \setminus S_e}, \; x_{S_e} = x'_{S_e}
          \quad\Rightarrow\quad f_e(x) = f_e(x')

The scopes S are found by reading the jaxpr, element by element, and are never too small: where a
rule is missing, every element depends on all that the operation reads. Integers and booleans that
are known are followed too, so that an index that is known picks one element. Reference: Griewank &
Walther, "Evaluating Derivatives" (2008), section 7.1, on propagating sparsity patterns.
"""

from functools import partial, reduce
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend.core import Literal

from jaxmrf.infer._scopes import (
    EMPTY,
    boxed,
    coordinates,
    empty,
    full,
    reduce_axes,
    structural_function,
    union,
)

__all__ = ["Facts", "propagate"]

MAX_PAIRS = 10**6
"""A product of tables with known zeros is looked at entry by entry up to this size."""


class Facts(NamedTuple):
    """What is known of one variable of a jaxpr.

    Attributes:
        scopes: Array of frozensets of its shape; None if nothing depends on any input.
        value: Array of its shape, right where ``known``; None if nothing is known.
        known: Booleans of its shape.
    """

    scopes: np.ndarray | None = None
    value: np.ndarray | None = None
    known: np.ndarray | None = None


NOTHING = Facts()


def propagate(jaxpr, consts, inputs: list[Facts]) -> dict[Any, Facts]:
    """Facts of every variable of a jaxpr.

    Args:
        jaxpr: An open jaxpr.
        consts: Values of its constants; those being traced are unknown.
        inputs: Facts of its inputs.
    """
    env = dict(zip(jaxpr.constvars, map(_constant, consts), strict=True))
    env |= zip(jaxpr.invars, inputs, strict=True)
    for eqn in jaxpr.eqns:
        if _STATE_EFFECTS & {type(effect).__name__ for effect in eqn.effects}:
            raise NotImplementedError(f"an operation that keeps a state ({eqn.primitive.name})")
        facts = [_facts(env, atom) for atom in eqn.invars]
        env |= zip(eqn.outvars, _apply(eqn, facts), strict=True)
    return env


def _apply(eqn, facts: list[Facts]) -> list[Facts]:
    """Facts of the results of one operation."""
    name, shapes = eqn.primitive.name, [variable.aval.shape for variable in eqn.outvars]
    has_scopes = any(fact.scopes is not None for fact in facts)
    if structural := structural_function(eqn):
        found = _structural(eqn, structural, facts)
    elif name in _ELEMENTWISE:
        found = [_elementwise(eqn, facts, shapes[0])]
    elif name == "iota":
        axis, shape = eqn.params["dimension"], shapes[0]
        value = np.arange(shape[axis]).reshape([-1 if a == axis else 1 for a in range(len(shape))])
        found = [_known(np.broadcast_to(value, shape).astype(eqn.params["dtype"]))]
    elif name in ("gather", "dynamic_slice"):
        found = [_gather(eqn, facts, shapes[0])]
    elif not has_scopes:
        found = [NOTHING] * len(shapes)
    elif name in _RULES:
        found = _RULES[name](eqn, facts, shapes)
    else:
        found = _everything(facts, shapes)
    return [
        fact if fact.scopes is None else fact._replace(scopes=boxed(fact.scopes, shape))
        for fact, shape in zip(found, shapes, strict=True)
    ]


def _facts(env, atom) -> Facts:
    return _constant(atom.val) if isinstance(atom, Literal) else env[atom]


def _constant(value) -> Facts:
    if isinstance(value, jax.core.Tracer) or jax.dtypes.issubdtype(
        getattr(value, "dtype", np.float32), jax.dtypes.prng_key
    ):
        return NOTHING
    return _known(np.asarray(value))


def _known(value) -> Facts:
    return Facts(None, value, np.broadcast_to(True, np.shape(value)))


def _structural(eqn, function, facts: list[Facts]) -> list[Facts]:
    """Elements move and keep what is known of them."""
    shapes = [atom.aval.shape for atom in eqn.invars]
    count = len(eqn.outvars)
    scopes = values = known = [None] * count
    if any(fact.scopes is not None for fact in facts):
        pairs = zip(facts, shapes, strict=True)
        scopes = function(*(empty(s) if f.scopes is None else f.scopes for f, s in pairs))
    if any(fact.value is not None for fact in facts):
        dtypes = [atom.aval.dtype for atom in eqn.invars]
        filled = [
            (np.zeros(s, d), np.zeros(s, bool)) if f.value is None else (f.value, f.known)
            for f, s, d in zip(facts, shapes, dtypes, strict=True)
        ]
        values, known = function(*(v for v, _ in filled)), function(*(k for _, k in filled))
    if eqn.primitive.name == "convert_element_type" and values[0] is not None:
        with np.errstate(all="ignore"):
            values = [np.asarray(values[0]).astype(eqn.params["new_dtype"])]
    return [Facts(*three) for three in zip(scopes, values, known, strict=True)]


def _elementwise(eqn, facts: list[Facts], shape) -> Facts:
    name = eqn.primitive.name
    scopes = [fact.scopes for fact in facts]
    if name == "mul":  # a known zero takes the other factor out
        for own, other in ((0, 1), (1, 0)):
            if facts[own].value is not None and scopes[other] is not None:
                is_zero = facts[own].known & (facts[own].value == 0)
                scopes[other] = np.where(is_zero, EMPTY, scopes[other])
    if name == "select_n" and facts[0].value is not None:
        chosen, is_known = facts[0].value.astype(int), facts[0].known
        for case, of_case in enumerate(scopes[1:]):
            if of_case is not None:
                scopes[case + 1] = np.where(is_known & (chosen != case), EMPTY, of_case)
    scopes = union(*scopes)
    scopes = None if scopes is None else np.broadcast_to(boxed(scopes), shape)
    if name not in _VALUES or any(fact.value is None for fact in facts):
        return Facts(scopes)
    is_exact = all(fact.value.dtype.kind in "iub" for fact in facts)
    if not is_exact and name not in _EXACT:
        return Facts(scopes)
    with np.errstate(all="ignore"):
        value = _VALUES[name](*(fact.value for fact in facts))
    value = np.broadcast_to(value, shape).astype(eqn.outvars[0].aval.dtype)
    known = reduce(np.logical_and, (fact.known for fact in facts))
    return Facts(scopes, value, np.broadcast_to(known, shape))


def _gather(eqn, facts: list[Facts], shape) -> Facts:
    """Elements picked by known indices; along an axis whose index is unknown, all of them."""
    operand, *indices = facts
    place, inside, merged, rows = coordinates(eqn, indices, eqn.invars[0].aval.shape)
    scopes = None
    if operand.scopes is not None:
        scopes = reduce_axes(operand.scopes, merged, keepdims=True)[place]
    for index, row in zip(indices, rows, strict=True):
        if index.scopes is not None:
            scopes = union(scopes, row(index.scopes))
    if scopes is not None:
        scopes = np.broadcast_to(boxed(scopes), shape)
    if operand.value is None or merged:
        return Facts(scopes)
    known = np.broadcast_to(operand.known[place] & inside, shape)
    return Facts(scopes, np.broadcast_to(operand.value[place], shape), known)


def _scatter(eqn, facts, shapes):
    operand, indices, updates = facts
    if indices.scopes is not None or indices.value is None or not indices.known.all():
        return _everything(facts, shapes)
    found = empty(shapes[0]) if operand.scopes is None else operand.scopes.copy()
    if updates.scopes is not None:
        place, *_ = coordinates(eqn, [indices], shapes[0])
        place = np.broadcast_arrays(*place, updates.scopes)[:-1] if place else ()
        for index, scope in np.ndenumerate(updates.scopes):
            target = tuple(int(axis[index]) for axis in place)
            found[target] = found[target] | scope
    return [Facts(found)]


def _dynamic_update_slice(eqn, facts, shapes):
    operand, update, *starts = facts
    if any(start.scopes is not None or start.value is None for start in starts):
        return _everything(facts, shapes)
    found = empty(shapes[0]) if operand.scopes is None else operand.scopes.copy()
    size = eqn.invars[1].aval.shape
    if not all(bool(start.known) for start in starts):
        return _everything(facts, shapes)
    low = [
        int(np.clip(start.value, 0, whole - part))
        for start, whole, part in zip(starts, shapes[0], size, strict=True)
    ]
    window = tuple(slice(a, a + part) for a, part in zip(low, size, strict=True))
    found[window] = empty(size) if update.scopes is None else update.scopes
    return [Facts(found)]


def _reduce(eqn, facts, shapes):
    return [Facts(reduce_axes(union(*(fact.scopes for fact in facts)), eqn.params["axes"]))]


def _cumulate(eqn, facts, shapes):
    scopes, axis = facts[0].scopes, eqn.params["axis"]
    flip = (lambda x: np.flip(x, axis)) if eqn.params["reverse"] else (lambda x: x)
    return [Facts(flip(np.bitwise_or.accumulate(flip(scopes), axis=axis)))]


def _sort(eqn, facts, shapes):
    merged = reduce_axes(
        union(*(fact.scopes for fact in facts)), (eqn.params["dimension"],), keepdims=True
    )
    return [Facts(np.broadcast_to(merged, shape)) for shape in shapes]


def _matrix(eqn, facts, shapes):
    """Linear algebra on the last two axes, one problem for each place of the leading ones."""
    lead = {atom.aval.shape[:-2] for atom in eqn.invars}
    if len(lead) > 1 or any(shape[: len(next(iter(lead)))] != next(iter(lead)) for shape in shapes):
        return _everything(facts, shapes)
    parts = []
    for position, fact in enumerate(facts):
        if fact.scopes is not None:
            axes = (-2, -1)
            if eqn.primitive.name == "triangular_solve" and position == 1:
                axes = (-2,) if eqn.params["left_side"] else (-1,)  # right sides do not mix
            parts.append(reduce_axes(fact.scopes, axes, keepdims=True))
    merged, rank = union(*parts), len(next(iter(lead)))
    found = []
    for shape in shapes:
        whole = merged if len(shape) == rank + 2 else reduce_axes(merged, (-2, -1), keepdims=True)
        whole = whole.reshape((*whole.shape[:rank], *whole.shape[rank:][: len(shape) - rank]))
        found.append(Facts(np.broadcast_to(whole, shape)))
    return found


def _dot_general(eqn, facts, shapes):
    (contract, batch), parts = eqn.params["dimension_numbers"], []
    for side in (0, 1):
        rank = len(eqn.invars[side].aval.shape)
        free = [a for a in range(rank) if a not in contract[side] and a not in batch[side]]
        parts.append(partial(_arrange, groups=(batch[side], free, contract[side])))
    found = []
    for own, other in ((0, 1), (1, 0)):
        if facts[own].scopes is None:
            continue
        scopes, matters = parts[own](facts[own].scopes), None
        if facts[other].value is not None:
            matters = ~parts[other](facts[other].known & (facts[other].value == 0))
        if matters is None or scopes.size * matters.shape[1] > MAX_PAIRS:
            product = reduce_axes(scopes, (-1,))[:, :, None]
        else:
            masked = np.where(matters[:, None], scopes[:, :, None], EMPTY)
            product = reduce_axes(masked, (-1,))
        found.append(product if own == 0 else np.swapaxes(product, 1, 2))
    sizes = [
        part(np.empty(atom.aval.shape, bool)).shape[1]
        for part, atom in zip(parts, eqn.invars, strict=True)
    ]
    merged = union(*found)
    return [Facts(np.broadcast_to(merged, (len(merged), *sizes)))]


def _arrange(array, groups):
    """The array with one axis for each group of axes."""
    sizes = [int(np.prod([array.shape[axis] for axis in group], dtype=int)) for group in groups]
    return np.transpose(array, [axis for group in groups for axis in group]).reshape(sizes)


def _cond(eqn, facts, shapes):
    index, *rest = facts
    branches = eqn.params["branches"]
    if index.value is not None and index.known.all():
        branches = [branches[int(np.clip(index.value, 0, len(branches) - 1))]]
    results = [_inner(branch, rest) for branch in branches]
    if len(results) == 1 and index.scopes is None:
        return results[0]
    everywhere = frozenset() if index.scopes is None else index.scopes[()]
    found = []
    for options, shape in zip(zip(*results, strict=True), shapes, strict=True):
        scopes = union(*(option.scopes for option in options), full(shape, everywhere))
        found.append(Facts(np.broadcast_to(boxed(scopes), shape)))
    return found


def _scan(eqn, facts, shapes):
    """The steps one after the other: known counters stay known, and so do indices from them."""
    params = eqn.params
    consts = facts[: params["num_consts"]]
    carry = facts[params["num_consts"] : params["num_consts"] + params["num_carry"]]
    xs = facts[params["num_consts"] + params["num_carry"] :]
    steps = range(params["length"])
    steps = steps[::-1] if params["reverse"] else steps
    collected: dict[int, list[Facts]] = {}
    for step in steps:
        here = [Facts(*(None if part is None else part[step] for part in x)) for x in xs]
        here = [f._replace(scopes=None if f.scopes is None else boxed(f.scopes)) for f in here]
        out = _inner(params["jaxpr"], [*consts, *carry, *here])
        carry, collected[step] = out[: params["num_carry"]], out[params["num_carry"] :]
    ys = []
    for place, shape in enumerate(shapes[params["num_carry"] :]):
        parts = [collected[step][place].scopes for step in range(params["length"])]
        scopes = None
        if any(part is not None for part in parts):
            scopes = np.stack(
                [empty(shape[1:]) if p is None else boxed(p, shape[1:]) for p in parts]
            )
        ys.append(Facts(scopes))
    return [*carry, *ys]


def _call(eqn, facts, shapes):
    params = eqn.params
    names = [name for name in ("jaxpr", "call_jaxpr", "fun_jaxpr") if name in params]
    inner = params[names[0]] if names else None
    if inner is None or len(getattr(inner, "jaxpr", inner).invars) != len(facts):
        return _everything(facts, shapes)
    return _inner(inner, facts)


def _inner(jaxpr, facts: list[Facts]) -> list[Facts]:
    consts = getattr(jaxpr, "consts", ())
    jaxpr = getattr(jaxpr, "jaxpr", jaxpr)
    env = propagate(jaxpr, consts, facts)
    return [_facts(env, atom) for atom in jaxpr.outvars]


def _everything(facts, shapes):
    """Every element of every result depends on whatever any element of an input depends on."""
    arrays = [fact.scopes for fact in facts if fact.scopes is not None]
    together = frozenset().union(*(scope for array in arrays for scope in array.flat))
    return [Facts(full(shape, together)) for shape in shapes]


_STATE_EFFECTS = {"AccumEffect", "ReadEffect", "RefEffect", "WriteEffect"}  # hide what they read
_CALLS = ("jit", "pjit", "closed_call", "core_call", "checkpoint", "remat", "remat2")
_CALLS += ("custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr")
_REDUCTIONS = ("sum", "max", "min", "prod", "and", "or", "xor")
_RULES = {
    **dict.fromkeys(_CALLS, _call),
    **dict.fromkeys((f"reduce_{name}" for name in _REDUCTIONS), _reduce),
    **dict.fromkeys(("argmax", "argmin"), _reduce),
    **dict.fromkeys(("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"), _cumulate),
    **dict.fromkeys(("scatter", "scatter-add", "scatter-mul", "scatter-sub"), _scatter),
    **dict.fromkeys(("scatter-min", "scatter-max", "scatter_add", "scatter_mul"), _scatter),
    **dict.fromkeys(("cholesky", "triangular_solve", "eigh", "lu", "qr", "svd"), _matrix),
    "cond": _cond,
    "dot_general": _dot_general,
    "dynamic_update_slice": _dynamic_update_slice,
    "scan": _scan,
    "sort": _sort,
}
_VALUES = {  # of integers and booleans, which NumPy and XLA compute alike
    "abs": np.abs,
    "add": np.add,
    "and": np.bitwise_and,
    "clamp": lambda low, x, high: np.minimum(np.maximum(x, low), high),
    "eq": np.equal,
    "ge": np.greater_equal,
    "gt": np.greater,
    "is_finite": np.isfinite,
    "le": np.less_equal,
    "lt": np.less,
    "max": np.maximum,
    "min": np.minimum,
    "mul": np.multiply,
    "ne": np.not_equal,
    "neg": np.negative,
    "not": np.invert,
    "or": np.bitwise_or,
    "rem": np.fmod,
    "select_n": lambda which, *cases: reduce(
        lambda found, case: np.where(which == case[0], case[1], found), enumerate(cases), cases[0]
    ),
    "sub": np.subtract,
    "xor": np.bitwise_xor,
}
_EXACT = {"clamp", "eq", "ge", "gt", "is_finite", "le", "lt", "max", "min", "ne", "select_n"}
"""Those that do not round, so that floating-point numbers may be followed too."""
_ELEMENTWISE = set(_VALUES) | set(
    """acos acosh add_any asin asinh atan atan2 atanh bessel_i0e bessel_i1e cbrt ceil clz complex
    conj cos cosh digamma div eq_to erf erf_inv erfc exp exp2 expm1 floor igamma igamma_grad_a
    igammac imag integer_pow le_to lgamma log log1p logistic lt_to nextafter polygamma
    population_count pow random_gamma_grad real regularized_incomplete_beta round rsqrt
    shift_left shift_right_arithmetic shift_right_logical sign sin sinh sqrt square tan tanh
    zeta""".split()
)
