r"""In which order to sum out the variables of a factor graph, and what it will cost.

.. math:: m_v(x_{S_v}) = \sum_{x_v} \prod_{f \in B_v} f(x_f), \qquad
          S_v = \Big(\bigcup_{f \in B_v} f\Big) \setminus v

Summing out v multiplies its bucket B, all factors and messages that contain v, and leaves a message
on the separator S. The largest :math:`S_v \cup v` over the best order is the treewidth plus one;
finding it is NP-hard, so several greedy orders are tried. Reference: Dechter, "Bucket elimination",
Artificial Intelligence 113 (1999).
"""

import heapq
import math
import random
from collections.abc import Iterable, Sequence
from functools import cached_property, lru_cache
from typing import NamedTuple

import jax
import numpy as np

from jaxmrf.graphs.hypergraph import Hypergraph

__all__ = [
    "Bucket",
    "EliminationPlan",
    "elimination_order",
    "elimination_plan",
    "order_from_contraction_path",
    "plan_for",
]

MAX_MEMORY = 2**32
"""Refuse plans whose largest table needs more bytes, in double precision."""

_METHODS = ("min_fill", "weighted_min_fill", "min_weight", "min_degree")


class Bucket(NamedTuple):
    """One step of an elimination.

    Attributes:
        node: Variable summed out.
        factors: Factors whose first variable to go this is.
        children: Earlier steps whose message ends here.
        separator: Variables of the message left behind, the last to go first.
        parent: Step that takes the message; -1 if the separator is empty.
    """

    node: int
    factors: tuple[int, ...]
    children: tuple[int, ...]
    separator: tuple[int, ...]
    parent: int


class EliminationPlan:
    """Buckets of an elimination order; immutable and hashable by content.

    Args:
        hypergraph: Variables and scopes.
        order: Every variable once, the first to be summed out first.

    Raises:
        ValueError: If the order does not name every variable once.
    """

    hypergraph: Hypergraph
    order: tuple[int, ...]

    def __init__(self, hypergraph: Hypergraph, order: Sequence[int]):
        order = tuple(int(node) for node in order)
        if sorted(order) != list(range(hypergraph.num_nodes)):
            raise ValueError(
                "elimination_plan: expected the order to name every variable in "
                f"0..{hypergraph.num_nodes - 1} once, got {list(order[:8])}; pass a permutation"
            )
        object.__setattr__(self, "hypergraph", hypergraph)
        object.__setattr__(self, "order", order)
        object.__setattr__(self, "_hash", hash((hypergraph, order)))

    @cached_property
    def buckets(self) -> tuple[Bucket, ...]:
        """The steps, in the order of elimination."""
        position = {node: step for step, node in enumerate(self.order)}
        factors: list[list[int]] = [[] for _ in self.order]
        children: list[list[int]] = [[] for _ in self.order]
        scopes = self.hypergraph.scopes
        for factor, scope in enumerate(scopes):
            if scope:
                factors[min(position[node] for node in scope)].append(factor)
        separators: list[tuple[int, ...]] = []
        buckets = []
        for step, node in enumerate(self.order):
            together = {other for factor in factors[step] for other in scopes[factor]}
            together.update(*(separators[child] for child in children[step]))
            separator = tuple(sorted(together - {node}, key=lambda one: -position[one]))
            separators.append(separator)
            parent = position[separator[-1]] if separator else -1
            if separator:
                children[parent].append(step)
            buckets.append(
                Bucket(node, tuple(factors[step]), tuple(children[step]), separator, parent)
            )
        return tuple(buckets)

    @cached_property
    def num_cells(self) -> np.ndarray:
        """Configurations visited by every step, as floats, ``[nodes]``."""
        logs = np.log2(np.array(self.hypergraph.num_states, float))
        sums = [logs[[*bucket.separator, bucket.node]].sum() for bucket in self.buckets]
        with np.errstate(over="ignore"):
            return np.exp2(np.array(sums)).round()

    @property
    def width(self) -> float:
        """Log2 of the largest number of configurations visited at once."""
        return float(np.log2(self.num_cells.max(initial=1)))

    @property
    def treewidth(self) -> int:
        """Largest number of variables of a separator."""
        return max((len(bucket.separator) for bucket in self.buckets), default=0)

    @property
    def total_cells(self) -> float:
        """Configurations visited by all steps together: the work of one pass."""
        return float(self.num_cells.sum())

    @property
    def memory(self) -> float:
        """Bytes of the largest table in double precision."""
        return 8 * float(self.num_cells.max(initial=1))

    def __str__(self) -> str:
        graph = self.hypergraph
        return (
            f"EliminationPlan: {graph.num_nodes} variables, {graph.num_factors} factors; treewidth "
            f"{self.treewidth}, largest table 2^{self.width:.1f} entries "
            f"({as_bytes(self.memory)}), {self.total_cells:.3g} multiplications a pass"
        )

    def __repr__(self) -> str:
        return f"EliminationPlan(width={self.width:.2f}, num_nodes={self.hypergraph.num_nodes})"

    def __setattr__(self, name, value):
        raise AttributeError(f"EliminationPlan: expected no assignment, got {name}; build another")

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other) -> bool:
        return self is other or (
            isinstance(other, EliminationPlan)
            and self._hash == other._hash
            and self.order == other.order
            and self.hypergraph == other.hypergraph
        )

    def __reduce__(self):
        return (EliminationPlan, (self.hypergraph, self.order))


jax.tree_util.register_static(EliminationPlan)


def elimination_plan(
    hypergraph: Hypergraph,
    *,
    order: Sequence[int] | None = None,
    methods: Sequence[str] = _METHODS[:3],
    num_tries: int = 2,
    max_memory: float | int = MAX_MEMORY,
) -> EliminationPlan:
    """The plan of a given order, or of the cheapest of several greedy ones.

    Args:
        hypergraph: Variables and scopes.
        order: Every variable once; None to search.
        methods: Greedy rules to try, of those of ``elimination_order``.
        num_tries: Orders per rule; they differ in how ties are broken.
        max_memory: Largest table allowed, in bytes of double precision.

    Raises:
        ValueError: If the order is not a permutation or a table would be larger than allowed.

    >>> print(elimination_plan(Hypergraph([2, 2, 3], [(0, 1), (1, 2)])))  # doctest: +ELLIPSIS
    EliminationPlan: 3 variables, 2 factors; treewidth 1, largest table 2^2.6 entries (48 B), ...
    """
    if order is None:
        plan = _search(hypergraph, tuple(methods), num_tries)
    else:
        plan = EliminationPlan(hypergraph, order)
    if plan.memory > max_memory:
        raise ValueError(
            f"elimination_plan: expected a table of at most {as_bytes(max_memory)}, got "
            f"{as_bytes(plan.memory)} (2^{plan.width:.1f} entries, treewidth {plan.treewidth}); "
            "observe more variables, pass a better order or a larger max_memory, or use a method "
            "of jaxmrf.variational or jaxmrf.sampling"
        )
    return plan


def plan_for(caller: str, hypergraph: Hypergraph, plan: EliminationPlan | None) -> EliminationPlan:
    """The plan, checked against the model; the cheapest of a few if there is none.

    Args:
        caller: Name of the calling function, for the message.
        hypergraph: Structure of the model.
        plan: Elimination plan or None.

    Raises:
        ValueError: If the plan is of another model, or none is within the default memory.
    """
    if plan is None:
        return elimination_plan(hypergraph)
    if plan.hypergraph != hypergraph:
        raise ValueError(
            f"{caller}: expected a plan of {hypergraph}, got one of {plan.hypergraph}; pass "
            "elimination_plan of the model's own hypergraph"
        )
    return plan


@lru_cache(maxsize=64)
def _search(hypergraph: Hypergraph, methods: tuple[str, ...], num_tries: int) -> EliminationPlan:
    """The cheapest plan; kept, because front doors ask for it at every call."""
    plans = (
        EliminationPlan(hypergraph, elimination_order(hypergraph, method, seed=seed))
        for seed in range(num_tries)
        for method in methods
    )
    return min(plans, key=lambda plan: plan.total_cells)


def elimination_order(
    hypergraph: Hypergraph, method: str = "min_fill", *, seed: int = 0
) -> list[int]:
    """An order that always sums out the variable that looks cheapest.

    Args:
        hypergraph: Variables and scopes.
        method: "min_fill" (fewest new neighbour pairs), "weighted_min_fill" (pairs weighed by
            their numbers of states), "min_weight" (smallest table) or "min_degree".
        seed: Seed of the order among equals.

    Raises:
        ValueError: If the method does not exist.
    """
    if method not in _METHODS:
        raise ValueError(
            f"elimination_order: expected a method of {', '.join(_METHODS)}, got {method!r}; "
            "pass one of them"
        )
    ties = random.Random(seed)
    sizes = hypergraph.num_states
    logs = [math.log2(number) for number in sizes]
    around = {node: set(others) for node, others in enumerate(hypergraph.neighbors)}

    def cost(node):
        others = around[node]
        if method == "min_degree":
            return len(others)
        if method == "min_weight":
            return logs[node] + sum(logs[other] for other in others)
        if method == "min_fill":
            joined = sum(len(around[other] & others) for other in others)
            return (len(others) * (len(others) - 1) - joined) / 2
        missing = ((one, other) for one in others for other in others - around[one] if one < other)
        return sum(sizes[one] * sizes[other] for one, other in missing)

    current = {node: cost(node) for node in around}
    heap = [(value, ties.random(), node) for node, value in current.items()]
    heapq.heapify(heap)
    order = []
    while heap:
        value, _, node = heapq.heappop(heap)
        if node not in around or value != current[node]:
            continue
        order.append(node)
        others = around.pop(node)
        changed = set(others)
        is_filled = False
        for other in others:
            new = others - around[other] - {other}
            around[other].discard(node)
            if new:
                around[other] |= new
                changed |= around[other]
                is_filled = True
        for other in sorted(changed):
            if is_filled or "fill" not in method:
                value = cost(other)
            else:  # only pairs with the node are gone: a hub is not gone through for every leaf
                gone = around[other] - others
                weighed = method == "weighted_min_fill"
                number = sum(sizes[one] for one in gone) * sizes[node] if weighed else len(gone)
                value = current[other] - number
            if value != current[other]:
                current[other] = value
                heapq.heappush(heap, (value, ties.random(), other))
    return order


def order_from_contraction_path(hypergraph: Hypergraph, path: Iterable[Sequence[int]]) -> list[int]:
    """The order in which a contraction path of opt_einsum or cotengra sums out the variables.

    Args:
        hypergraph: Variables and scopes; the path contracts its factors, in their order, to a
            number.
        path: Places of the operands of every step, as ``opt_einsum.contract_path`` returns them.

    Raises:
        ValueError: If the path leaves more than one operand.
    """
    operands = [set(scope) for scope in hypergraph.scopes]
    order: list[int] = []
    for places in path:
        taken = [operands.pop(place) for place in sorted(places, reverse=True)]
        together = set().union(*taken)
        done = together - set().union(*operands)
        order.extend(sorted(done))
        operands.append(together - done)
    if len(operands) > 1:
        raise ValueError(
            f"order_from_contraction_path: expected a path to one operand, got {len(operands)} "
            "left; pass the whole path"
        )
    found = set(order)
    return order + [node for node in range(hypergraph.num_nodes) if node not in found]


def as_bytes(size: float | int) -> str:
    """A number of bytes for a person."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} PB"
