"""The tree in which the microbatches of a step are summed, and the sums that a worker has of it.

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

A worker folds leaves as they come: as soon as two siblings are there, their parent takes
their place. So it holds about one vector for each level of the tree, and never
one for each microbatch. Invariants of its ``PartialSums``:

* The nodes held are disjoint, and no two of them are siblings. It follows that a node
  is held as soon as all of its leaves have been added.
* The vector of a node is ``left + right`` of its children's vectors, element by
  element, for any owners. So every held vector stays valid when a peer dies. Only adopted
  leaves must be computed to do the step again.
* A vector belongs to ``PartialSums`` from ``add_leaf`` on, and until ``buffer`` hands it
  out. ``take`` only lends its vectors.

*Several hosts.*  Between hosts the network is the narrow place, so a sum has two levels. A host
first makes the sums of the *maximal subtrees that it owns as a whole*, from the subtrees of its
workers. Only these *host roots* travel. The additions above them make the total. The tree stays the
same, and so do the bits: a plan for ranks is only split in two.

Nobody leads. The vector is cut into one slice for each host, and each slice into pieces. One
worker of the host *owns* a piece, and makes the total of it. On every other host one worker
*serves* the piece: it sends its host's roots to the owner and receives the total. All workers
read and write the memory of their own host. So all cores and all connections of a host work,
also if hosts have unequal numbers of workers. From a host with one root go (h-1)/h vectors of roots
and as many of totals, for h hosts.
"""

from __future__ import annotations

import contextvars
import functools
import itertools
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from holdfast.recovery.world import Assignment, WorkerId, World

_FLOAT32 = np.dtype(np.float32)
_LINE_FLOATS = 16
"""A cache line has 64 bytes."""

FloatVector: TypeAlias = npt.NDArray[np.float32]
"""A flat float32 vector: gradients, metric sums and ledger lanes of some microbatches."""


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

    @property
    def places(self) -> tuple[tuple[int, int], ...]:
        """For each root the rank that has it, and its number among the roots of this rank."""
        numbers: dict[int, itertools.count[int]] = defaultdict(itertools.count)
        return tuple((root.rank, next(numbers[root.rank])) for root in self.roots)


def children(node: Node) -> tuple[Node, Node]:
    """Return the left and the right child of ``node``, which must not be a leaf."""
    if node.is_leaf:
        raise ValueError(f"microbatch {node.start} is a leaf and has no children")
    middle = _middle(node.start, node.stop)
    return Node(node.start, middle), Node(middle, node.stop)


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


def _middle(start: int, stop: int) -> int:
    """Return where a node splits: the largest power of two below its length."""
    return start + (1 << ((stop - start - 1).bit_length() - 1))


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


class Fold:
    """Sums one bucket of all roots in the order of the tree."""

    def __init__(self, plan: ReductionPlan, floats: int) -> None:
        """Make buffers for buckets of up to ``floats``."""
        self._combines = plan.combines
        # Sums of nodes that begin at the first leaf build up in the result.  A sum that
        # waits for its left neighbour needs a buffer of its own.
        waiting = {left for left, _ in plan.combines if left}
        self._scratch = {left: np.empty(floats, np.float32) for left in waiting}

    def sum(self, rows: Sequence[FloatVector], result: FloatVector) -> None:
        """Write the sum of ``rows``, in the order of the plan, into ``result``."""
        if not self._combines:
            result[:] = rows[0]
            return
        values = list(rows)
        for left, right in self._combines:
            target = self._scratch[left][: len(result)] if left else result
            np.add(values[left], values[right], target)
            values[left] = target


def slice_bounds(size: int, ranks: int) -> tuple[tuple[int, int], ...]:
    """Cut a vector of ``size`` elements into one slice ``(start, stop)`` for each rank.

    Cuts lie between cache lines.  Slices differ by at most one such line.  A short vector leaves
    some slices empty.
    """
    blocks = -(-size // _LINE_FLOATS)
    cuts = [min(size, _LINE_FLOATS * (blocks * rank // ranks)) for rank in range(ranks + 1)]
    return tuple(itertools.pairwise(cuts))


def buckets(start: int, stop: int, floats: int) -> list[slice]:
    """Return the range ``start`` to ``stop`` of a vector, cut into buckets of ``floats``."""
    begins = range(start, stop, floats)
    return [slice(begin, min(begin + floats, stop)) for begin in begins]


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


class PartialSums:
    """Subtree sums of the current step, folded in tree order as leaves arrive, by one thread."""

    __slots__ = ("_allocate", "_allocated", "_free", "_held", "_microbatches", "_quiet")

    def __init__(self, microbatches: int, allocate: Callable[[], FloatVector]) -> None:
        """Hold nothing yet; ``allocate`` returns a new writable vector of the common size."""
        if microbatches < 1:
            raise ValueError(f"microbatches must be at least 1, got {microbatches}")
        self._microbatches = microbatches
        self._allocate = allocate
        self._allocated = 0
        self._held: dict[Node, FloatVector] = {}
        self._free: list[FloatVector] = []
        self._quiet = quiet_context()

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes held, in leaf order."""
        return tuple(sorted(self._held))

    def buffer(self) -> FloatVector:
        """Return a vector to compute the next leaf into, recycled when one is free.

        Its contents are arbitrary. Hand it back with ``add_leaf``.
        """
        if self._free:
            return self._free.pop()
        vector = self._allocate()
        self._allocated += 1
        return vector

    def add_leaf(self, index: int, vector: FloatVector) -> None:
        """Take over ``vector`` as the value of microbatch ``index``, and fold complete siblings.

        The caller must not touch ``vector`` again. It may be read-only (such as a view
        of a tensor): then sums go to another buffer. A held node above the leaf is
        dropped: it was useful only while the worker owned its other leaves as well.
        """
        leaf, climb = _climb_from(index, self._microbatches)
        self._check(leaf, vector)
        for parent, _ in climb:
            self._recycle(self._held.pop(parent, None))
        node, value = leaf, vector
        for parent, sibling in climb:
            other = self._held.pop(sibling, None)
            if other is None:
                break
            is_left = node.start < sibling.start
            value = self._fold(value, other) if is_left else self._fold(other, value)
            node = parent
        self._held[node] = value

    def missing(self, owned: Collection[int]) -> tuple[int, ...]:
        """Return the leaves of ``owned`` that must still be computed, ascending.

        A held node that reaches beyond ``owned`` is of no use, so its leaves count as
        missing.
        """
        wanted = set(owned)
        covered: set[int] = set()
        for node in self._held:
            if wanted.issuperset(node.leaves):
                covered.update(node.leaves)
        return tuple(sorted(wanted - covered))

    def take(self, nodes: Iterable[Node]) -> tuple[FloatVector, ...]:
        """Return the sums of ``nodes``; raises ``ValueError`` unless all are held.

        The vectors are lent for reading, until the next ``add_leaf`` or ``clear``.  They
        stay held, so that the step can be done again.
        """
        try:
            return tuple(self._held[node] for node in nodes)
        except KeyError as lacking:
            held = ", ".join(map(str, self.nodes)) or "nothing"
            raise ValueError(
                f"node {lacking.args[0]} is not summed yet (held: {held}): "
                "compute missing(owned) first"
            ) from None

    def clear(self) -> None:
        """Forget all sums, and keep their vectors for the next step."""
        for vector in self._held.values():
            self._recycle(vector)
        self._held.clear()

    def _check(self, leaf: Node, vector: FloatVector) -> None:
        """Refuse a leaf that is there already, or a vector that cannot be added."""
        if leaf in self._held:
            raise ValueError(f"microbatch {leaf.start} was added already: clear() begins a step")
        if vector.ndim != 1 or vector.dtype != _FLOAT32:
            raise ValueError(
                f"a leaf must be a flat float32 vector, got {vector.dtype} {vector.shape}"
            )
        for node, held in self._held.items():
            if held.size != vector.size:
                raise ValueError(f"a leaf has {vector.size} elements, but node {node} {held.size}")
            if np.may_share_memory(held, vector):
                raise ValueError(f"a leaf shares memory with node {node}: use a buffer of its own")

    def _fold(self, left: FloatVector, right: FloatVector) -> FloatVector:
        """Return ``left + right`` in one of their two buffers, and recycle the other."""
        target, spent = (left, right) if left.flags.writeable else (right, left)
        if not target.flags.writeable:
            target = self.buffer()
        self._quiet.run(np.add, left, right, target)
        self._recycle(spent)
        return target

    def _recycle(self, vector: FloatVector | None) -> None:
        """Keep a writable vector for ``buffer``.

        The list never holds more vectors than were allocated here.  So it does not grow
        if a caller brings vectors of its own and takes none back.
        """
        if vector is not None and vector.flags.writeable and len(self._free) < self._allocated:
            self._free.append(vector)


# A worker climbs from the same few leaves in every step.
@functools.lru_cache(maxsize=4096)
def _climb_from(index: int, microbatches: int) -> tuple[Node, tuple[tuple[Node, Node], ...]]:
    """Return microbatch ``index`` as a node, and each parent up to the root with the sibling."""
    if not 0 <= index < microbatches:
        raise ValueError(f"microbatch {index} is not one of {microbatches}")
    node, climb = Node(0, microbatches), list[tuple[Node, Node]]()
    while not node.is_leaf:
        left, right = children(node)
        is_left = index < left.stop
        climb.append((node, right if is_left else left))
        node = left if is_left else right
    return node, tuple(reversed(climb))


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


_SEVERAL = -1


@dataclass(frozen=True, slots=True)
class HostRoot:
    """A subtree that one host sums alone; no larger one is wholly its own.

    ``inside`` are the subtrees of the host's ranks in it, and the additions that make its sum.
    """

    host: int
    inside: ReductionPlan


@dataclass(frozen=True, slots=True)
class HostPlan:
    """The host roots in leaf order, and the additions above them, as in ``ReductionPlan``."""

    roots: tuple[HostRoot, ...]
    combines: tuple[tuple[int, int], ...]


def host_roots(plan: ReductionPlan, hosts: Sequence[int]) -> HostPlan:
    """Split ``plan`` into what each host adds alone, and the rest; ``hosts`` has that of each rank.

    The additions are those of ``plan``, each of them once.
    """
    owner = [hosts[root.rank] for root in plan.roots]
    inner, outer = [], []
    begins = set()
    for left, right in plan.combines:
        if owner[left] == owner[right] != _SEVERAL:
            inner.append((left, right))
            continue
        outer.append((left, right))
        begins |= {index for index in (left, right) if owner[index] != _SEVERAL}
        owner[left] = _SEVERAL
    starts = sorted(begins) or [0]
    stops = [*starts[1:], len(plan.roots)]
    number: list[int] = []
    for index, (start, stop) in enumerate(zip(starts, stops, strict=True)):
        number += [index] * (stop - start)
    combines: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for left, right in inner:
        start = starts[number[left]]
        combines[number[left]].append((left - start, right - start))
    roots = [
        HostRoot(
            hosts[plan.roots[start].rank],
            ReductionPlan(plan.roots[start:stop], tuple(combines[index])),
        )
        for index, (start, stop) in enumerate(zip(starts, stops, strict=True))
    ]
    return HostPlan(tuple(roots), tuple((number[left], number[right]) for left, right in outer))


@dataclass(frozen=True, slots=True)
class OwnPiece:
    """A piece of the vector of which a rank makes the total."""

    start: int
    stop: int
    servers: tuple[int, ...]
    """The rank that serves the piece on each host; on the owner's own host it is the owner."""


@dataclass(frozen=True, slots=True)
class ServedPiece:
    """A piece of which a rank of another host makes the total."""

    start: int
    stop: int
    owner: int


@dataclass(frozen=True, slots=True)
class Pieces:
    """What one rank does of a sum over several hosts; no piece is empty."""

    own: tuple[OwnPiece, ...]
    served: tuple[ServedPiece, ...]
    """Those of the next host first, so that not all hosts send to the same one at once."""
    longest: int
    """Elements of the longest piece of all ranks."""


def pieces_of(rank: int, hosts: Sequence[int], size: int) -> Pieces:
    """Return the pieces of a vector of ``size`` that ``rank`` owns and serves.

    Hosts are numbered from 0, and ``hosts`` has that of each rank. Each slice has as many pieces as
    the host with most workers has workers.
    """
    members: list[list[int]] = [[] for _ in range(max(hosts) + 1)]
    for member, host in enumerate(hosts):
        members[host].append(member)
    mine = hosts[rank]
    width = max(map(len, members))
    bounds = slice_bounds(size, len(members) * width)
    turns = range(members[mine].index(rank), width, len(members[mine]))
    own, served = [], []
    for turn in turns:
        start, stop = bounds[mine * width + turn]
        if start < stop:
            own.append(OwnPiece(start, stop, tuple(ranks[turn % len(ranks)] for ranks in members)))
    for host in (*range(mine + 1, len(members)), *range(mine)):
        for turn in turns:
            start, stop = bounds[host * width + turn]
            if start < stop:
                owner = members[host][turn % len(members[host])]
                served.append(ServedPiece(start, stop, owner))
    longest = max(stop - start for start, stop in bounds)
    return Pieces(tuple(own), tuple(served), longest)
