"""The tree in which the microbatches of a step are summed, and the plan of its messages.

Floating-point addition is not associative, so a sum has the same bits only when the
same pairs are added. The tree below fixes the pairs once for the number of
microbatches M. The owner of a leaf decides only *where* a pair is added.

A node is a run of leaves. It splits at the largest power of two below its length,
so its left child is always a complete binary tree:

    M = 6               [0,6)
                   [0,4)     [4,6)
               [0,2) [2,4)   4   5
                0 1   2 3

The sum of a node is the sum of its left child plus that of its right child, in this
order. A worker folds the *maximal nodes* that it owns wholly; their sums are the
roots of the plan. The rest of the tree, above the roots, is the list of combines.

Invariant: the combines, folded in their order, are exactly the additions of the tree
above the roots. So the total does not depend on the assignment.
"""

from __future__ import annotations

import contextvars
import itertools
from bisect import bisect_left
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from holdfast.recovery.assignment import Assignment
from holdfast.recovery.world import WorkerId, World


@dataclass(frozen=True, slots=True, order=True)
class Node:
    """A subtree, named by its leaves ``start <= leaf < stop``."""

    start: int
    stop: int

    def __post_init__(self) -> None:
        """Refuse a node without leaves."""
        if not 0 <= self.start < self.stop:
            raise ValueError(f"a node must have leaves, got [{self.start}, {self.stop})")

    @property
    def leaves(self) -> range:
        """The microbatches that are summed in this node."""
        return range(self.start, self.stop)

    @property
    def is_leaf(self) -> bool:
        """Whether this is one microbatch."""
        return self.stop - self.start == 1

    def __str__(self) -> str:
        return f"[{self.start}, {self.stop})"


@dataclass(frozen=True, slots=True)
class Root:
    """A subtree that the worker of ``rank`` sums alone; no larger one is wholly its own."""

    node: Node
    rank: int


@dataclass(frozen=True, slots=True)
class ReductionPlan:
    """The rest of the tree once every worker has folded its own subtrees.

    ``roots`` are in leaf order. ``combines`` are pairs (left, right) of indices into
    ``roots``: fold right into left, in exactly this order. The total is then at index 0.
    """

    roots: tuple[Root, ...]
    combines: tuple[tuple[int, int], ...]


def root_of(microbatches: int) -> Node:
    """Return the node that sums all of ``microbatches``."""
    return Node(0, microbatches)


def children(node: Node) -> tuple[Node, Node]:
    """Return the left and the right child of ``node``, which must not be a leaf."""
    if node.is_leaf:
        raise ValueError(f"microbatch {node.start} is a leaf and has no children")
    middle = _middle(node.start, node.stop)
    return Node(node.start, middle), Node(middle, node.stop)


def path_to(leaf: int, microbatches: int) -> tuple[Node, ...]:
    """Return the nodes from the root of the tree down to ``leaf``, both included."""
    if not 0 <= leaf < microbatches:
        raise ValueError(f"microbatch {leaf} is not one of {microbatches}")
    path = [root_of(microbatches)]
    while not path[-1].is_leaf:
        left, right = children(path[-1])
        path.append(left if leaf < left.stop else right)
    return tuple(path)


def maximal_nodes(owned: Collection[int], microbatches: int) -> tuple[Node, ...]:
    """Return the largest subtrees all of whose leaves are in ``owned``, in leaf order."""
    leaves = sorted(set(owned))
    if leaves and not 0 <= leaves[0] <= leaves[-1] < microbatches:
        raise ValueError(f"owned microbatches {leaves} are not all among {microbatches}")
    found: list[Node] = []

    def visit(start: int, stop: int) -> None:
        count = bisect_left(leaves, stop) - bisect_left(leaves, start)
        if count == stop - start:
            found.append(Node(start, stop))
        elif count:
            middle = _middle(start, stop)
            visit(start, middle)
            visit(middle, stop)

    visit(0, microbatches)
    return tuple(found)


def plan_reduction(assignment: Assignment, world: World, microbatches: int) -> ReductionPlan:
    """Return the rank that sums each subtree, and the combines that make the total.

    Raises ``ValueError`` when an owner is not in ``world``: adopt its orphans first.
    """
    ranks = _ranks_of_owners(assignment, world)
    if len(ranks) != microbatches:
        raise ValueError(f"the assignment has {len(ranks)} microbatches, expected {microbatches}")
    ends = _ends_of_runs(ranks)
    roots: list[Root] = []
    combines: list[tuple[int, int]] = []

    def visit(start: int, stop: int) -> int:
        """Plan a subtree, and return the index of the root that will hold its sum."""
        if ends[start] >= stop:
            roots.append(Root(Node(start, stop), ranks[start]))
            return len(roots) - 1
        middle = _middle(start, stop)
        left, right = visit(start, middle), visit(middle, stop)
        combines.append((left, right))
        return left

    visit(0, microbatches)
    return ReductionPlan(tuple(roots), tuple(combines))


def slice_bounds(size: int, ranks: int, align: int = 16) -> tuple[tuple[int, int], ...]:
    """Cut a vector of ``size`` elements into one slice ``(start, stop)`` for each rank.

    Cuts lie at multiples of ``align`` elements; 16 float32 are one cache line of 64 bytes.
    Slices differ by at most one such block.  A short vector leaves some slices empty.
    """
    if size < 0 or ranks < 1 or align < 1:
        raise ValueError(f"cannot cut {size} elements for {ranks} ranks at multiples of {align}")
    blocks = -(-size // align)
    cuts = [min(size, align * (blocks * rank // ranks)) for rank in range(ranks + 1)]
    return tuple(itertools.pairwise(cuts))


def _middle(start: int, stop: int) -> int:
    """Return where a node splits: the largest power of two below its length."""
    return start + (1 << ((stop - start - 1).bit_length() - 1))


def _ranks_of_owners(assignment: Assignment, world: World) -> list[int]:
    ranks: dict[WorkerId, int] = {worker: rank for rank, worker in enumerate(world.workers)}
    strangers = set(assignment.owners) - ranks.keys()
    if strangers:
        raise ValueError(
            f"workers {sorted(strangers)} own microbatches but are not in generation"
            f" {world.generation}: adopt the orphans first"
        )
    return [ranks[owner] for owner in assignment.owners]


def _ends_of_runs(labels: Sequence[int]) -> list[int]:
    """Return for each index the end of the run of equal labels around it."""
    ends = [len(labels)] * len(labels)
    for index in range(len(labels) - 2, -1, -1):
        ends[index] = ends[index + 1] if labels[index] == labels[index + 1] else index + 1
    return ends


def quiet_context() -> contextvars.Context:
    """Return a new context in which floats may overflow; for one thread at a time.

    A sum of finite gradients may be infinite.  Then the vote refuses the step on all
    workers alike, and the error that ends the job says so.  A warning at the sum would say
    less.  ``np.errstate`` takes ten microseconds on cold caches, and a step adds a dozen
    times.  Since NumPy 2 the setting is a context variable, so it is set once.
    """
    context = contextvars.copy_context()
    context.run(np.seterr, over="ignore", invalid="ignore")
    return context
