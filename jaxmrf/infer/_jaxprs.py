r"""Programs as JAX traces them: written out without inner calls, and run with some values given.

.. math:: v_i = \varphi_i(v_j)_{j \prec i}

Reference: Griewank & Walther, "Evaluating Derivatives" (2008), section 2.2, on such lists.
"""

import jax
import numpy as np
from jax.extend.core import Literal

__all__ = ["evaluate", "flat_jaxpr"]


def flat_jaxpr(function, *args):
    """The function as a jaxpr without inner calls, and the structure of its result.

    Args:
        function: A function of pytrees.
        args: Its arguments, or their shapes; arrays it closes over become constants.
    """
    closed, out = jax.make_jaxpr(function, return_shape=True)(*args)
    leaves = [jax.ShapeDtypeStruct(np.shape(a), a.dtype) for a in closed.in_avals]
    flat = jax.make_jaxpr(lambda *xs: evaluate(closed.jaxpr, closed.consts, xs))(*leaves)
    return flat, out


def evaluate(jaxpr, consts, args, *, given: dict | None = None, outvars=None) -> list:
    """Values of a jaxpr, calls inside it written out; operations that nothing needs are left out.

    Args:
        jaxpr: An open jaxpr.
        consts: Values of its constants.
        args: Values of its inputs.
        given: Values of inner variables, by variable, that replace the computed ones.
        outvars: Variables to return; by default the results.
    """
    given = {} if given is None else given
    outvars = jaxpr.outvars if outvars is None else outvars
    env = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *args), strict=True)) | given
    for eqn in _needed(jaxpr, outvars, given):
        inputs = [_read(env, atom) for atom in eqn.invars]
        if eqn.primitive.name in ("jit", "pjit", "closed_call"):
            inner = eqn.params.get("jaxpr", eqn.params.get("call_jaxpr"))
            outputs = evaluate(inner.jaxpr, inner.consts, inputs)
        else:
            params = eqn.primitive.get_bind_params(eqn.params)
            functions, params = params if isinstance(params, tuple) else ((), params)
            with eqn.ctx.manager:
                outputs = eqn.primitive.bind(*functions, *inputs, **params)
            outputs = outputs if eqn.primitive.multiple_results else [outputs]
        for variable, output in zip(eqn.outvars, outputs, strict=True):
            env.setdefault(variable, output)
    return [_read(env, atom) for atom in outvars]


def _read(env, atom):
    return atom.val if isinstance(atom, Literal) else env[atom]


def _needed(jaxpr, outvars, given) -> list:
    """The operations on which the variables depend, in order."""
    wanted = {atom for atom in outvars if not isinstance(atom, Literal)} - given.keys()
    kept = []
    for eqn in reversed(jaxpr.eqns):
        if not wanted.isdisjoint(eqn.outvars):
            kept.append(eqn)
            wanted.update(a for a in eqn.invars if not isinstance(a, Literal) and a not in given)
    return kept[::-1]
