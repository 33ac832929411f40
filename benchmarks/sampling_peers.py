"""What the Gibbs samplers are measured beside: thrml, dwave-samplers, numba and plain JAX.

Every builder takes a graph, an Ising model, a number of chains and a number of sweeps, and returns
a `Sampler` that makes so many sweeps of heat-bath updates a run. thrml runs its blocks without
observers, numba a scalar loop with xoshiro128++ inlined, and plain JAX is what a user writes in
twenty lines: rolled and masked lattices, chains by `vmap`, padded gathers, `jax.random`. Packages
are imported where they are used; `PEERS` names those that are there.
"""

from collections.abc import Callable
from functools import lru_cache
from importlib.util import find_spec
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxmrf.graphs import Graph, color
from jaxmrf.models import Ising

__all__ = ["LATTICE_PEERS", "PEERS", "Sampler", "build_thrml_gradient"]


class Sampler(NamedTuple):
    """A sampler of one model, with a layout of its own for the states.

    Attributes:
        start: Uniform states, from a seed.
        run: The states after the sweeps, from a seed and the states before.
        states: The states as 0 and 1, "nodes chains".
        idle: What a call does beside its sweeps, where that is much; not to be counted.
        form: Form of the sweep, of those that have several.
    """

    start: Callable[[int], Any]
    run: Callable[[int, Any], Any]
    states: Callable[[Any], Any]
    idle: Callable[[int, Any], Any] | None = None
    form: str | None = None


def jax_sampler(start: Callable, sweep: Callable, num_sweeps: int, states: Callable) -> Sampler:
    """A sampler in plain JAX, from functions of keys: `start(key)` and `sweep(key, states)`."""

    @jax.jit
    def run(key, fields):
        def body(i, carry):
            fields, key = carry
            key, key_sweep = jax.random.split(key)
            return sweep(key_sweep, fields), key

        return jax.lax.fori_loop(0, num_sweeps, body, (fields, key))[0]

    return Sampler(
        start=lambda seed: jax.block_until_ready(jax.jit(start)(jax.random.key(seed))),
        run=lambda seed, fields: jax.block_until_ready(run(jax.random.key(seed), fields)),
        states=states,
    )


def build_plain_lattice(graph: Graph, model: Ising, num_chains: int, num_sweeps: int) -> Sampler:
    """One chain of a square torus with one coupling and no fields."""
    side = _side(graph)
    rows, columns = np.indices((side, side))
    coupling = model.couplings[0]

    def sweep(key, spins):
        for parity, key_color in enumerate(jax.random.split(key)):
            total = jnp.roll(spins, 1, 0) + jnp.roll(spins, -1, 0)
            total += jnp.roll(spins, 1, 1) + jnp.roll(spins, -1, 1)
            chance = jax.nn.sigmoid(2 * coupling * total.astype(jnp.float32))
            drawn = jnp.where(jax.random.uniform(key_color, spins.shape) < chance, 1, -1)
            is_updated = (rows + columns) % 2 == parity
            spins = jnp.where(is_updated, drawn.astype(spins.dtype), spins)
        return spins

    return jax_sampler(
        lambda key: jax.random.rademacher(key, (side, side), jnp.int8),
        sweep,
        num_sweeps,
        lambda spins: spins.reshape(-1, 1) > 0,
    )


def build_plain_torus(graph: Graph, model: Ising, num_chains: int, num_sweeps: int) -> Sampler:
    """A square torus with a coupling an edge, chains by `vmap`."""
    side = _side(graph)
    rows, columns = np.indices((side, side))
    right, down = (jnp.asarray(part) for part in _lattice_couplings(graph, model))
    fields = model.fields.reshape(side, side)

    def sweep(key, spins):
        for parity, key_color in enumerate(jax.random.split(key)):
            total = fields + right * jnp.roll(spins, -1, 1) + jnp.roll(right * spins, 1, 1)
            total += down * jnp.roll(spins, -1, 0) + jnp.roll(down * spins, 1, 0)
            uniform = jax.random.uniform(key_color, spins.shape)
            drawn = jnp.where(uniform < jax.nn.sigmoid(2 * total), 1.0, -1.0)
            spins = jnp.where((rows + columns) % 2 == parity, drawn, spins)
        return spins

    return jax_sampler(
        lambda key: jax.random.rademacher(key, (num_chains, side, side), jnp.float32),
        lambda key, spins: jax.vmap(sweep)(jax.random.split(key, num_chains), spins),
        num_sweeps,
        lambda spins: spins.reshape(num_chains, -1).T > 0,
    )


def build_plain_gather(graph: Graph, model: Ising, num_chains: int, num_sweeps: int) -> Sampler:
    """Any graph: colours in turn, neighbours gathered from lists padded to the largest degree."""
    starts, neighbors, edges = _neighbor_lists(graph)
    degrees = np.diff(starts)
    slots = starts[:-1, None] + np.arange(degrees.max())
    is_real = np.arange(degrees.max()) < degrees[:, None]
    padded = np.where(is_real, neighbors[np.where(is_real, slots, 0)], 0)
    couplings = np.asarray(model.couplings)[edges[np.where(is_real, slots, 0)]] * is_real
    colors = color(graph)

    def sweep(key, spins):
        for number, key_color in enumerate(jax.random.split(key, colors.max() + 1)):
            nodes = np.flatnonzero(colors == number)
            terms = couplings[nodes][:, :, None] * spins[padded[nodes]]
            total = model.fields[nodes][:, None] + terms.sum(axis=1)
            uniform = jax.random.uniform(key_color, total.shape)
            drawn = jnp.where(uniform < jax.nn.sigmoid(2 * total), 1.0, -1.0)
            spins = spins.at[nodes].set(drawn)
        return spins

    return jax_sampler(
        lambda key: jax.random.rademacher(key, (graph.num_nodes, num_chains), jnp.float32),
        sweep,
        num_sweeps,
        lambda spins: spins > 0,
    )


def build_plain(graph: Graph, model: Ising, num_chains: int, num_sweeps: int) -> Sampler:
    """The plain form for a square torus if the graph is one, else for any graph."""
    is_torus = _is_torus(graph)
    build = build_plain_torus if is_torus else build_plain_gather
    return build(graph, model, num_chains, num_sweeps)


def build_thrml(graph: Graph, model: Ising, num_chains: int, num_sweeps: int) -> Sampler:
    from thrml.block_sampling import _run_blocks
    from thrml.models.ising import IsingSamplingProgram

    energy, blocks, members = _thrml_model(graph, model)
    program = IsingSamplingProgram(energy, blocks, [])

    @jax.jit
    def run(key, fields):
        def one(key, fields):
            return _run_blocks(key, program, fields, [], num_sweeps, [None] * len(blocks))[0]

        return jax.vmap(one)(jax.random.split(key, num_chains), fields)

    def states(fields):
        return np.concatenate(fields, axis=1).T[np.argsort(np.concatenate(members))]

    return Sampler(
        start=lambda seed: _thrml_start(seed, members, num_chains),
        run=lambda seed, fields: jax.block_until_ready(run(jax.random.key(seed), fields)),
        states=states,
    )


def build_thrml_gradient(
    graph: Graph, model: Ising, data: Any, num_chains: int, num_sweeps: int
) -> tuple[Callable[[int, Any], Any], Any]:
    """A function of a seed and chains that returns thrml's gradient, and the chains.

    The gradient of the negative log-likelihood with respect to couplings and fields: moments of
    the data less those of the chains after the sweeps.

    Args:
        graph: The graph.
        model: The model at which the gradient is taken.
        data: Observations "items nodes", 0 and 1.
        num_chains: Number of chains.
        num_sweeps: Sweeps before the moments are taken.
    """
    from thrml.block_management import Block
    from thrml.block_sampling import SamplingSchedule
    from thrml.models.ising import IsingTrainingSpec, estimate_kl_grad

    energy, blocks, members = _thrml_model(graph, model)
    schedule = SamplingSchedule(num_sweeps, 1, 1)
    spec = IsingTrainingSpec(energy, [Block(energy.nodes)], [], [], blocks, schedule, schedule)

    @jax.jit
    def gradient(key, data, chains):
        return estimate_kl_grad(key, spec, energy.nodes, energy.edges, [data], [], [], chains)[:2]

    data = jnp.asarray(data, bool)

    def run(seed, chains):
        return jax.block_until_ready(gradient(jax.random.key(seed), data, chains))

    return run, _thrml_start(0, members, num_chains)


def _thrml_model(graph: Graph, model: Ising):
    """The energy in thrml, its blocks and the nodes of each: one block a colour."""
    from thrml.block_management import Block
    from thrml.models.ising import IsingEBM
    from thrml.pgm import SpinNode

    nodes = [SpinNode() for _ in range(graph.num_nodes)]
    edges = [(nodes[u], nodes[v]) for u, v in graph.edges.tolist()]
    energy = IsingEBM(nodes, edges, model.fields, model.couplings, jnp.array(1.0))
    colors = color(graph)
    members = [np.flatnonzero(colors == number) for number in range(colors.max() + 1)]
    return energy, [Block([nodes[node] for node in part]) for part in members], members


def _thrml_start(seed: int, members: list[np.ndarray], num_chains: int) -> list[Any]:
    keys = jax.random.split(jax.random.key(seed), len(members))
    return [
        jax.random.bernoulli(key, 0.5, (num_chains, part.size))
        for key, part in zip(keys, members, strict=True)
    ]


def build_dwave(graph: Graph, model: Ising, num_chains: int, num_sweeps: int) -> Sampler:
    """Sequential Gibbs updates at one temperature; a call sets the model up, so it has `idle`."""
    from dwave.samplers.sa.simulated_annealing import simulated_annealing

    fields = (-np.asarray(model.fields, float)).tolist()
    couplings = -np.asarray(model.couplings, float)
    first, second = (np.ascontiguousarray(ends, np.int32) for ends in graph.edges.T)

    def call(seed, states, sweeps):
        simulated_annealing(
            *(num_chains, fields, first, second, couplings, sweeps, np.array([1.0]), seed + 1),
            *(states, False, "Gibbs", None),
        )
        return states

    return Sampler(
        start=lambda seed: _random_spins(seed, (num_chains, graph.num_nodes)),
        run=lambda seed, states: call(2 * seed, states, num_sweeps + 1),
        states=lambda states: states.T > 0,
        idle=lambda seed, states: call(2 * seed + 1, states, 1),
    )


def build_numba(graph: Graph, model: Ising, num_chains: int, num_sweeps: int) -> Sampler:
    """Nodes in turn, chains in the inner loop."""
    starts, neighbors, edges = _neighbor_lists(graph)
    couplings = np.asarray(model.couplings)[edges]
    fields = np.asarray(model.fields)
    sweep_graph, _, _ = numba_kernels()

    def run(seed, spins):
        sweep_graph(spins, starts, neighbors, couplings, fields, _words(seed), num_sweeps)
        return spins

    return Sampler(
        start=lambda seed: _random_spins(seed, (graph.num_nodes, num_chains)),
        run=run,
        states=lambda spins: spins > 0,
    )


def build_numba_lattice(graph: Graph, model: Ising, num_chains: int, num_sweeps: int) -> Sampler:
    """One chain of a square torus with one coupling and no fields; the side is a power of two."""
    side = _side(graph)
    chances = 1 / (1 + np.exp(-2 * float(model.couplings[0]) * np.arange(-4, 5, 2)))
    thresholds = np.minimum(np.round(2.0**32 * chances), 2**32 - 1).astype(np.uint32)
    _, sweep_lattice, _ = numba_kernels()

    def run(seed, spins):
        sweep_lattice(spins, thresholds, _words(seed), num_sweeps)
        return spins

    return Sampler(
        start=lambda seed: _random_spins(seed, (side, side)),
        run=run,
        states=lambda spins: spins.reshape(-1, 1) > 0,
    )


@lru_cache(maxsize=1)
def numba_kernels():
    """Sweeps of any graph and of a uniform square torus, and the stream of numbers they use."""
    import numba

    u32 = np.uint32

    @numba.njit(inline="always")
    def rotate(word, by):
        return u32(u32(word << u32(by)) | u32(word >> u32(32 - by)))

    @numba.njit(inline="always")
    def advance(s0, s1, s2, s3):  # xoshiro128++ of Blackman & Vigna
        drawn = u32(rotate(u32(s0 + s3), 7) + s0)
        shifted = u32(s1 << u32(9))
        s2, s3 = u32(s2 ^ s0), u32(s3 ^ s1)
        s1, s0 = u32(s1 ^ s2), u32(s0 ^ s3)
        return drawn, s0, s1, u32(s2 ^ shifted), rotate(s3, 11)

    @numba.njit(fastmath=True)
    def sweep_graph(spins, starts, neighbors, couplings, fields, words, num_sweeps):
        s0, s1, s2, s3 = words[0], words[1], words[2], words[3]
        num_nodes, num_chains = spins.shape
        total = np.empty(num_chains, np.float32)
        one, scale = np.float32(1), np.float32(2.0**-32)
        for _ in range(num_sweeps):
            for node in range(num_nodes):
                for chain in range(num_chains):
                    total[chain] = fields[node]
                for slot in range(starts[node], starts[node + 1]):
                    neighbor, coupling = neighbors[slot], couplings[slot]
                    for chain in range(num_chains):
                        total[chain] += coupling * spins[neighbor, chain]
                for chain in range(num_chains):
                    drawn, s0, s1, s2, s3 = advance(s0, s1, s2, s3)
                    uniform = np.float32(drawn) * scale
                    odds = one + np.exp(np.float32(-2) * total[chain])
                    spins[node, chain] = 1 if uniform * odds < one else -1

    @numba.njit
    def sweep_lattice(spins, thresholds, words, num_sweeps):
        s0, s1, s2, s3 = words[0], words[1], words[2], words[3]
        last = spins.shape[0] - 1
        for _ in range(num_sweeps):
            for parity in range(2):
                for row in range(last + 1):
                    here, above = spins[row], spins[(row - 1) & last]
                    below = spins[(row + 1) & last]
                    for column in range((row + parity) & 1, last + 1, 2):
                        total = above[column] + below[column]
                        total += here[(column - 1) & last] + here[(column + 1) & last]
                        drawn, s0, s1, s2, s3 = advance(s0, s1, s2, s3)
                        here[column] = 1 if drawn < thresholds[(total + 4) >> 1] else -1

    @numba.njit
    def stream(words, drawn):
        s0, s1, s2, s3 = words[0], words[1], words[2], words[3]
        for i in range(drawn.size):
            drawn[i], s0, s1, s2, s3 = advance(s0, s1, s2, s3)

    return sweep_graph, sweep_lattice, stream


def _words(seed: int) -> np.ndarray:
    return np.random.default_rng([7, seed]).integers(0, 2**32, 4, dtype=np.uint32)


def _random_spins(seed: int, shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng([8, seed]).choice(np.array([-1, 1], np.int8), shape)


def _neighbor_lists(graph: Graph) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Where every node's neighbours start, the neighbours, and the edges to them."""
    first, second = graph.edges.T
    ends = np.concatenate([first, second])
    order = np.argsort(ends, kind="stable")
    starts = np.append(0, np.cumsum(np.bincount(ends, minlength=graph.num_nodes)))
    edges = np.tile(np.arange(graph.num_edges), 2)[order]
    return starts, np.concatenate([second, first])[order], edges


def _side(graph: Graph) -> int:
    return int(np.sqrt(graph.num_nodes))


def _is_torus(graph: Graph) -> bool:
    """Whether the graph is a square torus, its nodes in row-major order."""
    side = _side(graph)
    if side < 3 or side**2 != graph.num_nodes or graph.num_edges != 2 * graph.num_nodes:
        return False
    is_right, is_down = _directions(graph)
    return bool((is_right | is_down).all())


def _directions(graph: Graph) -> tuple[np.ndarray, np.ndarray]:
    """Of both orientations of every edge, which lead to the right and which lead down."""
    side = _side(graph)
    rows, columns = np.divmod(graph.edges, side)
    same_row, same_column = rows[:, 0] == rows[:, 1], columns[:, 0] == columns[:, 1]
    steps = (columns[:, 1] - columns[:, 0]) % side, (rows[:, 1] - rows[:, 0]) % side
    return (
        same_row & np.isin(steps[0], (1, side - 1)),
        same_column & np.isin(steps[1], (1, side - 1)),
    )


def _lattice_couplings(graph: Graph, model: Ising) -> tuple[np.ndarray, np.ndarray]:
    """Couplings of every node with the node to its right, and with the node below it."""
    side = _side(graph)
    parts = []
    for is_there, step in zip(_directions(graph), (1, side), strict=True):
        first, second = graph.edges[is_there].T
        # a wrapped edge starts at its second end: there the first one is less by all but one step
        start = np.where(second - first == step, first, second)
        part = np.zeros(graph.num_nodes, np.float32)
        part[start] = np.asarray(model.couplings)[is_there]
        parts.append(part.reshape(side, side))
    return parts[0], parts[1]


def _present(builders: dict[str, tuple[str, Callable]]) -> dict[str, Callable]:
    return {name: build for name, (package, build) in builders.items() if find_spec(package)}


PEERS = _present(
    {
        "thrml": ("thrml", build_thrml),
        "dwave-samplers": ("dwave", build_dwave),
        "numba": ("numba", build_numba),
        "plain JAX": ("jax", build_plain),
    }
)
"""Peers for a coupling an edge and a field a node, with any number of chains."""

LATTICE_PEERS = PEERS | _present(
    {"numba": ("numba", build_numba_lattice), "plain JAX": ("jax", build_plain_lattice)}
)
"""Peers for one chain of a square torus with one coupling and no fields."""
