"""How a clique multiplies its inputs and how its belief is read."""

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from jaxmrf.graphs import Clique, EliminationPlan, junction_tree

__all__ = ["CliqueStep", "clique_steps", "product", "read"]

_MANY = 2**12  # tables up to this size are summed once for every marginal


class CliqueStep(NamedTuple):
    """How one clique reads its inputs and is read itself; all axes in the order of its scope."""

    clique: Clique
    shape: tuple[int, ...]
    inputs: tuple[tuple, ...]  # (factor, axes to transpose, shape to broadcast)
    children: tuple[tuple, ...]  # (clique, shape to broadcast)
    nodes: tuple[tuple, ...]  # (variable, shape to broadcast)
    reads: tuple  # of ``_reads``: what is asked of the clique's belief


@lru_cache(maxsize=64)
def clique_steps(plan: EliminationPlan, merge_below: int) -> tuple[CliqueStep, ...]:
    """Shapes and axes of all cliques, found once a plan."""
    graph, steps = plan.hypergraph, []
    cliques = junction_tree(plan, merge_below)
    for clique in cliques:
        axis = {node: place for place, node in enumerate(clique.scope)}
        shape = tuple(graph.num_states[node] for node in clique.scope)

        def inside(nodes, axis=axis):
            full = [1] * len(axis)
            for node in nodes:
                full[axis[node]] = graph.num_states[node]
            return tuple(full)

        reads, inputs = [], []
        for node in clique.residual:
            reads.append(("node", node, None, (axis[node],)))
        for factor in clique.factors:
            places = [axis[node] for node in graph.scopes[factor]]
            order = tuple(np.argsort(places).tolist())
            inputs.append((factor, order, inside(graph.scopes[factor])))
            back = tuple(np.argsort(order).tolist())
            reads.append(("factor", factor, back, tuple(sorted(places))))
        for child in clique.children:
            places = tuple(axis[node] for node in cliques[child].separator)
            reads.append(("child", child, None, places))
        steps.append(
            CliqueStep(
                clique=clique,
                shape=shape,
                inputs=tuple(inputs),
                children=tuple(
                    (child, inside(cliques[child].separator)) for child in clique.children
                ),
                nodes=tuple((node, inside((node,))) for node in clique.residual),
                reads=_reads(tuple(range(len(shape))), shape, reads),
            )
        )
    return tuple(steps)


def _reads(axes: tuple[int, ...], shape: tuple[int, ...], targets: list) -> tuple:
    """A tree of sums that serves all targets: (axes summed out, own target, subtrees).

    A large table is not summed once for each target: it is reduced to what one half of them needs
    and to what the other half needs, and so on.
    """
    kept = sorted({axis for *_, places in targets for axis in places})
    summed = tuple(place for place, axis in enumerate(axes) if axis not in kept)
    if len(targets) == 1:
        return summed, targets[0][:3], ()
    if math.prod(shape[axis] for axis in axes) <= _MANY:
        return (), None, tuple(_reads(axes, shape, [target]) for target in targets)
    targets = sorted(targets, key=lambda target: target[3])
    middle = len(targets) // 2
    halves = (targets[:middle], targets[middle:])
    return summed, None, tuple(_reads(tuple(kept), shape, half) for half in halves)


def read(belief, reads: tuple):
    """Every target of the tree with its table."""
    summed, target, subtrees = reads
    table = belief.sum(axis=summed) if summed else belief
    if target is not None:
        yield (*target, table)
    for subtree in subtrees:
        yield from read(table, subtree)


def product(step: CliqueStep, tables, evidence, messages, multiply=np.multiply):
    """Everything known about a clique; the product has few axes as long as it can."""
    parts = [tables[factor].transpose(axes).reshape(shape) for factor, axes, shape in step.inputs]
    parts += [evidence[node].reshape(shape) for node, shape in step.nodes]
    parts += [messages[child].reshape(shape) for child, shape in step.children]
    # of a large clique the tables of its last axes first: few products have the full size
    parts.sort(key=_size if math.prod(step.shape) <= _MANY else _place)
    total = parts[0]
    for part in parts[1:]:
        total = multiply(total, part)
    return total if total.shape == step.shape else np.broadcast_to(total, step.shape)


def _size(array) -> int:
    return array.size


def _place(array) -> tuple[int, int]:
    first = next((axis for axis, number in enumerate(array.shape) if number > 1), array.ndim)
    return -first, array.size
