r"""The discrete sites of a NumPyro model as a factor graph whose tables are functions of the rest.

.. math:: p(z, x) = \exp\Big(\sum_f \theta_f(z_{S_f}; x)\Big)

The model is traced once with unknown values; every element of a discrete site is a variable, and
every element of every log-probability belongs to the scope of variables on which it can depend.
Reference: Obermeyer et al., "Tensor variable elimination for plated factor graphs", ICML 2019, does
the same for sites that were enumerated.
"""

import copy
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Literal
from numpyro import handlers

from jaxmrf.distributions import DiscreteFactorGraph, MarkovRandomField, map_base
from jaxmrf.graphs import EliminationPlan, elimination_plan
from jaxmrf.infer._dependence import Facts, propagate
from jaxmrf.infer._discrete_sites import (
    VALUE_ERRORS,
    DiscreteSite,
    discrete_sites,
    is_subsampled,
    owners,
)
from jaxmrf.infer._jaxprs import evaluate, flat_jaxpr
from jaxmrf.infer._scopes import EMPTY, empty
from jaxmrf.infer._terms import Layout, layout, split_terms
from jaxmrf.models import FactorGraph

__all__ = ["CompiledSites", "compile_sites"]


class CompiledSites(NamedTuple):
    """A model's discrete sites as a factor graph, given values of the other sites.

    Attributes:
        sites: The discrete sites.
        rest: Names of the other latent sites, parameters and subsampled plates.
        moved: Names of the sample sites whose log-probability is in the factor graph.
        deterministic: Names of the deterministic sites that depend on the discrete ones.
        layout: From terms to tables.
        plan: Elimination plan.
        program: The model as a jaxpr, and its constants.
        terms: Variables of the jaxpr whose elements are the terms.
        total: Variables of the jaxpr that they add up to; None if these are the terms themselves.
        offset: What the moved log-probabilities that are plain numbers add up to.
    """

    sites: tuple[DiscreteSite, ...]
    rest: tuple[str, ...]
    moved: frozenset[str]
    deterministic: frozenset[str]
    layout: Layout
    plan: EliminationPlan
    program: tuple
    terms: list
    total: list | None
    offset: float

    def factor_graph(self, rest: dict) -> tuple[FactorGraph, jax.Array]:
        """The factor graph and the log-probability of what depends on no discrete site.

        Args:
            rest: Value of every site in ``rest``.
        """
        jaxpr, consts = self.program
        rest_leaves = self._leaves(rest)
        weights = self._weights(rest_leaves)

        def run(states):
            z = jax.tree.leaves({site.name: site.values(states) for site in self.sites})
            found = evaluate(jaxpr, consts, [*z, *rest_leaves], outvars=self.terms)
            return jnp.concatenate([_weighed(*pair) for pair in zip(found, weights, strict=True)])

        own = self.layout
        values = jax.vmap(run)(jnp.asarray(own.states, jnp.int32))
        tables = jnp.zeros(own.hypergraph.num_entries, values.dtype)
        tables = tables.at[own.target].add(values.ravel()[own.source])
        evidence = jnp.zeros(own.hypergraph.num_node_entries, values.dtype)
        constant = values[0, own.constants].sum() + self.offset
        return FactorGraph(tables, evidence, own.hypergraph), constant

    def _leaves(self, rest: dict) -> list:
        """The values as inputs of the program, checked to be what it was traced for."""
        values = {name: rest[name] for name in self.rest}
        leaves = jax.tree_util.tree_leaves_with_path(values)
        avals = [variable.aval for variable in self.program[0].invars[len(self.sites) :]]
        for (path, leaf), aval in zip(leaves, avals, strict=True):
            if jnp.shape(leaf) != aval.shape:
                raise ValueError(
                    f"marginalize: expected a value of shape {aval.shape} of site "
                    f"{path[0].key!r}, got {jnp.shape(leaf)}; map over batches by jax.vmap"
                )
        return [jnp.asarray(x, a.dtype) for (_, x), a in zip(leaves, avals, strict=True)]

    def _weights(self, rest_leaves: list) -> list:
        """How often every element of the terms counts in the total."""
        if self.total is None:
            return [None] * len(self.terms)
        jaxpr, consts = self.program
        z = jax.tree.leaves({site.name: site.values(self.layout.states[0]) for site in self.sites})

        def total(values):
            given = dict(zip(self.terms, values, strict=True))
            found = evaluate(jaxpr, consts, [*z, *rest_leaves], given=given, outvars=self.total)
            return sum(jnp.sum(value) for value in found)

        # linear in the terms, so the derivative is the same at every value
        return jax.grad(total)([jnp.zeros(term.aval.shape, term.aval.dtype) for term in self.terms])


def _weighed(values, weight) -> jax.Array:
    if weight is None:
        return jnp.ravel(values)
    # what a mask has taken out may be infinite; a weight that happens to be 0 keeps its derivative
    return (jnp.where((weight == 0) & ~jnp.isfinite(values), 0.0, values) * weight).ravel()


def compile_sites(
    model, names, model_args: tuple, model_kwargs: dict, *, max_memory: float
) -> CompiledSites:
    """The factor graph of a model's discrete sites.

    Args:
        model: The model.
        names: Names of the sites, or None for all discrete latent sites.
        model_args: Its arguments.
        model_kwargs: Its keyword arguments.
        max_memory: Largest table, in bytes of double precision.

    Raises:
        ValueError: If a site is not latent or has no finite support, the model's control flow
            needs a value, the support of another site depends on one of them, or a table is too
            large.
    """
    sites, rest = _prototype(model, names, model_args, model_kwargs)
    num_states = [number for site in sites for number in site.num_states]
    shapes = {site.name: jax.ShapeDtypeStruct(site.shape, site.dtype) for site in sites}

    def run(z, rest):
        return _quantities(_trace(model, {**z, **rest}, model_args, model_kwargs), set(rest))

    with _clear_errors():
        flat, out = flat_jaxpr(run, shapes, rest)
    inputs = [Facts(site.scopes) for site in sorted(sites)]
    inputs += [Facts() for _ in jax.tree.leaves(rest)]
    try:
        facts = propagate(flat.jaxpr, flat.consts, inputs)
    except NotImplementedError as error:
        raise ValueError(
            f"marginalize: expected a model without side effects, got {error}; write it as a "
            "function of its values"
        ) from None
    outputs = jax.tree.unflatten(jax.tree.structure(out), flat.jaxpr.outvars)
    _check_supports(outputs["supports"], facts, sites)
    moved = {name for name, atom in outputs["log_probs"].items() if _scopes(facts, atom)}
    moved |= {site.name for site in sites}
    moved_atoms = [outputs["log_probs"][name] for name in sorted(moved)]
    offset = sum(float(np.sum(atom.val)) for atom in moved_atoms if isinstance(atom, Literal))
    moved_atoms = [atom for atom in moved_atoms if not isinstance(atom, Literal)]
    terms = split_terms(flat.jaxpr, facts, moved_atoms, num_states)
    own = _checked_layout(terms, facts, outputs["log_probs"], sites, num_states, max_memory)
    try:
        plan = elimination_plan(own.hypergraph, max_memory=max_memory)
    except ValueError as error:
        names = ", ".join(site.name for site in sites[:8])
        raise ValueError(f"marginalize: the sum over {names} is too large: {error}") from None
    hidden = {
        name
        for name, atoms in outputs["deterministic"].items()
        if any(_scopes(facts, atom) for atom in jax.tree.leaves(atoms, is_leaf=_is_atom))
    }
    is_split = terms != moved_atoms
    return CompiledSites(
        sites=sites,
        rest=tuple(rest),
        moved=frozenset(moved),
        deterministic=frozenset(hidden),
        layout=own,
        plan=plan,
        program=(flat.jaxpr, flat.consts),
        terms=terms,
        total=moved_atoms if is_split else None,
        offset=offset,
    )


def _trace(model, data: dict, model_args, model_kwargs):
    """The sites of the model at given values, out of reach of all handlers around."""
    with handlers.block():
        seeded = handlers.seed(handlers.substitute(model, data=data), 0)
        return handlers.trace(seeded).get_trace(*model_args, **model_kwargs)


def _prototype(model, names, model_args, model_kwargs) -> tuple[tuple[DiscreteSite, ...], dict]:
    """The discrete sites, and the shapes of all other values that the model is a function of."""
    found: list = []

    def run():
        trace = _trace(model, {}, model_args, model_kwargs)
        found.append(discrete_sites(trace, names))
        inside = {site.name for site in found[0]}
        return {name: s["value"] for name, s in trace.items() if _is_rest(s) and name not in inside}

    with _clear_errors():
        shapes = jax.eval_shape(run)
    return tuple(found[0]), shapes


def _is_rest(site) -> bool:
    if site["type"] == "plate":
        return is_subsampled(site)
    return site["type"] in ("param", "mutable") or (
        site["type"] == "sample" and not site["is_observed"]
    )


def _unvalidated(fn):
    """A field that does not ask whether its value, all elements at once, is in its support."""
    if isinstance(fn, MarkovRandomField | DiscreteFactorGraph):
        fn = copy.copy(fn)
        fn._validate_args = False
    return fn


def _quantities(trace, rest: set[str]) -> dict:
    """What is asked about dependence: log-probabilities, supports and deterministic values."""
    log_probs, supports, deterministic = {}, {}, {}
    for name, site in trace.items():
        if site["type"] == "deterministic":
            deterministic[name] = site["value"]
        if site["type"] != "sample":
            continue
        fn = site["fn"] if site["is_observed"] else map_base(site["fn"], _unvalidated)
        log_prob = fn.log_prob(site["value"])
        log_prob = log_prob if site["scale"] is None else site["scale"] * log_prob
        log_probs[name] = jnp.asarray(log_prob, jnp.result_type(log_prob, float))
        if name in rest:
            leaves = jax.tree.leaves(site["fn"].support)
            supports[name] = [leaf for leaf in leaves if isinstance(leaf, jax.Array)]
    return {"log_probs": log_probs, "supports": supports, "deterministic": deterministic}


def _is_atom(atom) -> bool:
    return isinstance(atom, Literal) or hasattr(atom, "aval")


def _scopes(facts, atom) -> frozenset:
    """All variables on which an array depends."""
    scopes = None if isinstance(atom, Literal) else facts[atom].scopes
    return EMPTY if scopes is None else frozenset().union(*scopes.flat)


def _check_supports(supports, facts, sites) -> None:
    for name, atoms in supports.items():
        for atom in atoms:
            if nodes := _scopes(facts, atom):
                raise ValueError(
                    f"marginalize: expected supports that no discrete site changes, got that of "
                    f"{name!r}, which depends on {owners(sites, nodes)}; write the site as a "
                    "transformation of one with a fixed support"
                )


def _checked_layout(terms, facts, log_probs, sites, num_states, max_memory) -> Layout:
    scopes: list[frozenset] = []
    owner = {atom: name for name, atom in log_probs.items() if not isinstance(atom, Literal)}
    for atom in terms:
        known = facts[atom].scopes
        found = list((empty(atom.aval.shape) if known is None else known).flat)
        widest = max(found, key=len, default=EMPTY)
        bits = sum(np.log2(num_states[node]) for node in widest)
        if 8 * 2.0 ** min(bits, 1000.0) > max_memory:
            where = f"site {owner[atom]!r}" if atom in owner else "a sum of the model"
            raise ValueError(
                f"marginalize: expected every log-probability to depend on few discrete elements, "
                f"got one of {where} that depends on {len(widest)} ({owners(sites, widest)}; "
                f"2^{bits:.1f} configurations); write its terms apart, in a plate or as the array "
                "of a numpyro.factor, or raise max_memory"
            )
        scopes.extend(found)
    own = layout(scopes, num_states)
    size = 8.0 * len(own.states) * own.num_elements
    if size > max_memory:
        raise ValueError(
            f"marginalize: expected tables from at most {max_memory:.3g} bytes, got {size:.3g} "
            f"({len(own.states)} runs of {own.num_elements} terms); raise max_memory or thin out "
            "what depends on many discrete elements at once"
        )
    return own


class _clear_errors:
    """Says in the terms of the model that a value was asked for while only its shape is known."""

    def __enter__(self):
        return self

    def __exit__(self, kind, error, traceback):
        if kind is not None and issubclass(kind, VALUE_ERRORS):
            raise ValueError(
                "marginalize: expected control flow and shapes that do not depend on the value of "
                f"a latent site, got {str(error).splitlines()[0]} use jnp.where, "
                "lax.cond, or an index into a JAX (not a NumPy) array"
            ) from error
        return False
