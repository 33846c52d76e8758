"""The sums that a worker has computed for the current step.

Leaves are folded as they come: as soon as two siblings are there, their parent takes
their place. So a worker holds about one vector for each level of the tree, and never
one for each microbatch.

Invariants:

* The nodes held are disjoint, and no two of them are siblings. It follows that a node
  is held as soon as all of its leaves have been added.
* The vector of a node is ``left + right`` of its children's vectors, element by
  element, for any owners. So every held vector stays valid when a peer dies. Only adopted
  leaves must be computed to do the step again.
* A vector belongs to ``PartialSums`` from ``add_leaf`` on, and until ``buffer`` hands it
  out. ``take`` only lends its vectors.

Not thread-safe: one thread computes and folds.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from holdfast.recovery.errors import LeafMissing
from holdfast.recovery.reduction import Node, children, path_to, quiet_context

_FLOAT32 = np.dtype(np.float32)

FloatVector: TypeAlias = npt.NDArray[np.float32]
"""A flat float32 vector: gradients, metric sums and ledger lanes of some microbatches."""


@dataclass(frozen=True, slots=True)
class _Rung:
    """One level of the way up from a leaf; ``is_left`` tells the leaf's side of the parent."""

    parent: Node
    sibling: Node
    is_left: bool


class PartialSums:
    """Subtree sums of the current step, folded in tree order as leaves arrive."""

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
        for rung in climb:
            self._recycle(self._held.pop(rung.parent, None))
        node, value = leaf, vector
        for rung in climb:
            sibling = self._held.pop(rung.sibling, None)
            if sibling is None:
                break
            value = self._fold(value, sibling) if rung.is_left else self._fold(sibling, value)
            node = rung.parent
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
        """Return the sums of ``nodes``; raises ``LeafMissing`` unless all are held.

        The vectors are lent for reading, until the next ``add_leaf`` or ``clear``.  They
        stay held, so that the step can be done again.
        """
        return tuple(self._sum_of(node) for node in nodes)

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

    def _sum_of(self, node: Node) -> FloatVector:
        try:
            return self._held[node]
        except KeyError:
            held = ", ".join(map(str, self.nodes)) or "nothing"
            raise LeafMissing(
                f"node {node} is not summed yet (held: {held}): compute missing(owned) first"
            ) from None


# A worker climbs from the same few leaves in every step.
@functools.lru_cache(maxsize=4096)
def _climb_from(index: int, microbatches: int) -> tuple[Node, tuple[_Rung, ...]]:
    """Return microbatch ``index`` as a node, and the way from there up to the root."""
    path = path_to(index, microbatches)
    rungs = []
    for parent, node in itertools.pairwise(path):
        left, right = children(parent)
        is_left = node == left
        rungs.append(_Rung(parent, right if is_left else left, is_left))
    return path[-1], tuple(reversed(rungs))
