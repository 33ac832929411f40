"""Chains in the layout of a sampler plan: pack, sweep, count and unpack.

What draws many particles and needs only their moments keeps them packed: means and agreements are
counts of bits. The layout of the forms "tables" and "sums" is "rows words" and "words rows", a
chain in every bit and nodes in the order of the sweep plan; of the form "lattice" it is that of
`lattice_gibbs`; of the form "plain" the states are themselves. A sweep plan stands for the form
"plain" of any number of chains.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding

from jaxmrf.graphs import Graph, SweepPlan
from jaxmrf.models import Ising, PairwiseModel, log_potential
from jaxmrf.sampling import (
    _word_potentials,
    lattice_gibbs,
    plain_gibbs,
    sum_gibbs,
    table_gibbs,
)
from jaxmrf.sampling.plans import SamplerPlan, check_model
from jaxmrf.sharding import split
from jaxmrf.types import Array, Float, Int, Key, UInt

__all__ = [
    "AnyPlan",
    "Collected",
    "collect",
    "init",
    "log_potentials",
    "mean_statistics",
    "num_chains",
    "pack",
    "run",
    "sharding",
    "uniform_states",
    "unpack",
    "words_of_bits",
]

Fields = Array
"""All chains in the layout of a sampler plan."""

AnyPlan = SamplerPlan | SweepPlan
"""How chains are swept: as a sampler plan says, or plainly."""

_KERNELS = {"lattice": lattice_gibbs, "tables": table_gibbs, "sums": sum_gibbs}


def uniform_states(
    key: Key, model: PairwiseModel, num_nodes: int, num_chains: int
) -> Int[Array, "nodes chains"]:
    """Independent uniform states, in bytes where they fit."""
    dtype = jnp.int8 if model.num_states <= 128 else jnp.int32
    return jax.random.randint(key, (num_nodes, num_chains), 0, model.num_states).astype(dtype)


def init(key: Key, model: PairwiseModel, plan: AnyPlan, *, num_chains: int | None = None) -> Fields:
    """Independent uniform states, packed.

    Args:
        key: Random key.
        model: Pairwise model; only its number of states is read.
        plan: Sampler plan.
        num_chains: Number of chains, which a sampler plan knows and a sweep plan does not.

    Raises:
        ValueError: If the number is another than the plan's, or neither says it.
    """
    layout, known = plan, num_chains
    if isinstance(plan, SamplerPlan):
        layout, known = plan.layout, plan.num_chains
    if known is None or num_chains not in (None, known):
        raise ValueError(
            f"init: expected num_chains to be that of the plan, {known}, got {num_chains}; pass a "
            "number with a sweep plan, and with a sampler plan its num_chains or none"
        )
    return pack(uniform_states(key, model, layout.num_nodes, known), plan)


def run(
    key: Key, fields: Fields, model: PairwiseModel, plan: AnyPlan, *, num_sweeps: int
) -> Fields:
    """Fields after ``num_sweeps`` sweeps.

    For speed on a CPU the outermost ``jax.jit`` around this takes ``plan.compiler_options``.

    Args:
        key: Random key.
        fields: Current states, packed.
        model: Pairwise model.
        plan: Sampler plan.
        num_sweeps: Number of sweeps.

    Raises:
        ValueError: If the form cannot sample the model, as far as that is known.
    """
    if isinstance(plan, SweepPlan):
        return plain_gibbs.run(key, fields, model, plan, num_sweeps=num_sweeps)
    check_model(model, plan)
    if plan.form == "plain":
        return plain_gibbs.run(key, fields, model, plan.layout, num_sweeps=num_sweeps)
    return _KERNELS[plan.form].run(key, fields, model, plan, num_sweeps=num_sweeps)


def pack(states: Int[Array, "nodes chains"], plan: AnyPlan) -> Fields:
    """States in the layout of a plan.

    Args:
        states: States 0..K-1 of as many chains as the plan has.
        plan: Sampler plan.

    Raises:
        ValueError: If the shape is another.
    """
    if isinstance(plan, SweepPlan):
        return states
    wanted = plan.layout.num_nodes, plan.num_chains
    if states.shape != wanted:
        raise ValueError(
            f"pack: expected states of shape {wanted}, got {states.shape}; make a sampler_plan for "
            f"this graph with num_chains={states.shape[-1]}"
        )
    if plan.form == "plain":
        return states
    if plan.form == "lattice":
        return lattice_gibbs.pack(states, plan)
    rows = states[plan.layout.nodes]
    rows = jnp.pad(rows, ((0, 0), (0, 32 * plan.num_words - plan.num_chains)))
    words = words_of_bits(rows)
    return words.T if plan.form == "sums" else words


def words_of_bits(bits: Array) -> UInt[Array, "rows words"]:
    """Words of 32 bits each.

    Args:
        bits: Zeros and ones, or booleans, "rows bits"; the number of bits is a multiple of 32.
    """
    groups = bits.astype(jnp.uint32).reshape(len(bits), -1, 32)
    return (groups << jnp.arange(32, dtype=jnp.uint32)).sum(axis=2, dtype=jnp.uint32)


def sharding(plan: AnyPlan, mesh: Mesh) -> NamedSharding:
    """How fields are split over devices: each holds some of the chains, or words of them.

    Args:
        plan: Sampler plan.
        mesh: Mesh of devices (`jaxmrf.sharding`).

    Raises:
        ValueError: If the chains cannot be cut into equal parts.
    """
    if isinstance(plan, SamplerPlan):
        size = 1 if plan.form in ("lattice", "plain") else 32
        num_parts = _num_parts(plan)
        if num_parts % mesh.size:
            larger = (replace(plan, num_chains=number) for number in count(plan.num_chains))
            enough = next(parts for parts in map(_num_parts, larger) if parts % mesh.size == 0)
            raise ValueError(
                f"sharding: expected {'words of 32 ' if size > 1 else ''}chains that are a multiple"
                f" of {mesh.size}, the number of devices, got {num_parts}; make a sampler_plan of "
                f"{size * enough} chains"
            )
    return split(mesh, 0 if isinstance(plan, SamplerPlan) and plan.form == "sums" else 1)


def _num_parts(plan: SamplerPlan) -> int:
    """Number of chains, or of words where they hold 32 chains."""
    return plan.num_chains if plan.form in ("lattice", "plain") else plan.num_words


def unpack(fields: Fields, plan: AnyPlan) -> Int[Array, "nodes chains"]:
    """States from the layout of a plan, the inverse of ``pack``.

    Args:
        fields: States, packed.
        plan: Sampler plan.
    """
    if _is_plain(plan):
        return fields
    if plan.form == "lattice":
        return lattice_gibbs.unpack(fields, plan)
    words = _nodes_of_words(fields, plan)
    bits = (words[..., None] >> jnp.arange(32, dtype=jnp.uint32)) & 1
    return bits.reshape(len(words), -1)[:, : plan.num_chains].astype(jnp.int8)


def mean_statistics(
    fields: Fields, model: PairwiseModel, graph: Graph, plan: AnyPlan
) -> PairwiseModel:
    """Mean sufficient statistics over the chains, in the shape of the model.

    Args:
        fields: States, packed.
        model: Pairwise model; only its shape is read.
        graph: Its graph.
        plan: Sampler plan.
    """
    if not _is_plain(plan) and plan.form != "lattice" and isinstance(model, Ising):
        words = _nodes_of_words(fields, plan)
        first, second = graph.edges.T
        dtype = jnp.asarray(model.fields).dtype
        num_differing = _count_chains(words[first] ^ words[second], plan)
        return Ising(
            couplings=1 - 2 * num_differing.astype(dtype) / plan.num_chains,
            fields=2 * _count_chains(words, plan).astype(dtype) / plan.num_chains - 1,
        )
    values = jax.vmap(partial(model.statistics, graph), in_axes=1, out_axes=-1)(
        unpack(fields, plan)
    )
    return jax.tree.map(lambda value: value.mean(axis=-1), values)


def log_potentials(
    fields: Fields, model: PairwiseModel, graph: Graph, plan: AnyPlan
) -> Float[Array, " chains"]:
    """Log potential of every chain, minus its energy.

    Args:
        fields: States, packed.
        model: Pairwise model.
        graph: Its graph.
        plan: Sampler plan.
    """
    if not _is_plain(plan) and plan.form == "lattice":
        return lattice_gibbs.log_potentials(fields, model, plan)
    if plan.form in ("tables", "sums"):
        words = _nodes_of_words(fields, plan)
        return _word_potentials.log_potentials(words, model, graph)[: plan.num_chains]
    return jax.vmap(partial(log_potential, model, graph), in_axes=1)(unpack(fields, plan))


def num_chains(fields: Fields, plan: AnyPlan) -> int:
    """Number of chains in packed states.

    Args:
        fields: States, packed.
        plan: Sampler plan.
    """
    return plan.num_chains if isinstance(plan, SamplerPlan) else fields.shape[1]


def _is_plain(plan: AnyPlan) -> bool:
    return isinstance(plan, SweepPlan) or plan.form == "plain"


def _nodes_of_words(fields: Fields, plan: SamplerPlan) -> Array:
    """Words of every node, shape [nodes, words]."""
    rows = fields.T if plan.form == "sums" else fields
    return rows[plan.layout.rows]


def _count_chains(words: Array, plan: SamplerPlan) -> Array:
    """Number of chains whose bit is 1, along the last axis."""
    mask = words_of_bits(jnp.arange(plan.num_words * 32)[None] < plan.num_chains)
    return jax.lax.population_count(words & mask).astype(jnp.int32).sum(axis=-1)


class Collected(NamedTuple):
    """What was seen on the way.

    Attributes:
        fields: States after the last draw, packed.
        mean: Mean of ``mean_of`` over the draws; None without it.
        trace: ``trace_of`` of every draw, stacked; None without it.
    """

    fields: Fields
    mean: Any
    trace: Any


def collect(
    key: Key,
    fields: Fields,
    model: PairwiseModel,
    plan: AnyPlan,
    *,
    num_draws: int,
    num_sweeps: int = 1,
    mean_of: Callable[[Fields], Any] | None = None,
    trace_of: Callable[[Fields], Any] | None = None,
) -> Collected:
    """Observables of many draws, without keeping the states.

    Args:
        key: Random key.
        fields: States to start from, packed.
        model: Pairwise model.
        plan: Sampler plan.
        num_draws: Number of draws.
        num_sweeps: Sweeps from one draw to the next.
        mean_of: Function of the packed states whose running mean is kept, such as
            ``mean_statistics``; its results are arrays of real numbers.
        trace_of: Function of the packed states whose results are all kept, such as
            ``log_potentials``, or ``unpack`` for the states themselves.

    Raises:
        ValueError: If a number is below 1.
    """
    if num_draws < 1 or num_sweeps < 1:
        raise ValueError(
            "collect: expected num_draws and num_sweeps of at least 1, got "
            f"{num_draws} and {num_sweeps}; raise them"
        )
    nothing = lambda fields: None  # noqa: E731
    mean_of, trace_of = mean_of or nothing, trace_of or nothing

    def draw(carry, number):
        fields, mean = carry
        key_draw = jax.random.fold_in(key, number)
        fields = run(key_draw, fields, model, plan, num_sweeps=num_sweeps)
        mean = jax.tree.map(
            lambda old, new: old + (new - old) / (number + 1), mean, mean_of(fields)
        )
        return (fields, mean), trace_of(fields)

    shapes = jax.eval_shape(mean_of, fields)
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, jnp.result_type(leaf, float)), shapes)
    (fields, mean), trace = jax.lax.scan(draw, (fields, zeros), jnp.arange(num_draws))
    return Collected(fields, mean, trace)
