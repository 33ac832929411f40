"""The cliques of an elimination, joined in a tree along their messages.

A bucket whose clique lies inside that of a child is the child's work; small cliques may be merged
as well, to do with fewer and larger tables. Reference: Lauritzen & Spiegelhalter, "Local
computations with probabilities on graphical structures", JRSS B 50 (1988).
"""

import math
from functools import lru_cache
from typing import NamedTuple

from jaxmrf.graphs.elimination import EliminationPlan

__all__ = ["Clique", "junction_tree"]


class Clique(NamedTuple):
    """A clique, its variables in the order of elimination.

    Attributes:
        residual: Variables summed out here.
        separator: The others, shared with the parent.
        parent: Number of the parent clique; -1 at a root.
        children: Numbers of the cliques whose parent this is.
        factors: Factors multiplied here.
    """

    residual: tuple[int, ...]
    separator: tuple[int, ...]
    parent: int
    children: tuple[int, ...]
    factors: tuple[int, ...]

    @property
    def scope(self) -> tuple[int, ...]:
        """All variables, those summed out first."""
        return self.residual + self.separator


@lru_cache(maxsize=256)
def junction_tree(plan: EliminationPlan, merge_below: int = 0) -> tuple[Clique, ...]:
    """The cliques of a plan, children before parents.

    Args:
        plan: Elimination plan.
        merge_below: Merge neighbouring cliques while their common table has at most this many
            entries.

    >>> from jaxmrf.graphs import Hypergraph, elimination_plan
    >>> chain = Hypergraph([2] * 4, [(0, 1), (1, 2), (2, 3)])
    >>> [one.scope for one in junction_tree(elimination_plan(chain, order=[0, 1, 2, 3]))]
    [(0, 1), (1, 2), (2, 3)]
    """
    sizes, buckets = plan.hypergraph.num_states, plan.buckets
    cells = lambda nodes: math.prod(sizes[node] for node in nodes)  # noqa: E731
    group = [-1] * len(buckets)  # the last bucket of the clique that does a bucket's work
    residuals: dict[int, list[int]] = {}
    total: dict[int, int] = {}
    for step in reversed(range(len(buckets))):
        bucket = buckets[step]
        if bucket.parent >= 0:
            top = group[bucket.parent]
            num_scope = len(residuals[top]) + len(buckets[top].separator)
            is_free = len(bucket.separator) == num_scope
            if is_free or total[top] * sizes[bucket.node] <= merge_below:
                group[step] = top
                residuals[top].append(step)
                total[top] *= sizes[bucket.node]
                continue
        group[step] = step
        residuals[step] = [step]
        total[step] = cells((*bucket.separator, bucket.node))
    tops = sorted(residuals)
    number = {top: place for place, top in enumerate(tops)}
    children: list[list[int]] = [[] for _ in tops]
    parents = []
    for top in tops:
        parent = buckets[top].parent
        parents.append(-1 if parent < 0 else number[group[parent]])
        if parent >= 0:
            children[parents[-1]].append(number[top])
    return tuple(
        Clique(
            residual=tuple(buckets[step].node for step in sorted(residuals[top])),
            separator=buckets[top].separator[::-1],
            parent=parents[place],
            children=tuple(children[place]),
            factors=tuple(one for step in sorted(residuals[top]) for one in buckets[step].factors),
        )
        for place, top in enumerate(tops)
    )
