"""The share that one of several workers copies of a state.

All workers hold the same state, so any of them may copy any byte.  The bytes of all pieces,
in order, are cut evenly, at multiples of a page.  A piece may be copied by two workers.  Its
digest is taken by one: the worker that copies its first byte.  The same holds for what is
outside the pieces of a shard.  Invariant: the shares of all workers make every shard whole,
and no byte is written twice.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from holdfast.checkpoint.format.image_map import ImageMap
from holdfast.checkpoint.format.layout import CUT_BYTES


@dataclass(frozen=True, slots=True, order=True)
class Stretch:
    """Bytes ``start`` to ``stop`` of a piece, which has the number ``piece`` in its shard."""

    shard: int
    piece: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Share:
    """The bytes that a worker copies, the pieces that it digests, the shards that it frames.

    To frame a shard is to write and digest what is outside of its pieces.
    """

    stretches: tuple[Stretch, ...]
    digested: tuple[tuple[int, int], ...]
    """Shard and number of each piece."""
    framed: tuple[int, ...]

    @property
    def shards(self) -> tuple[int, ...]:
        """The shards that the worker has to do with, ascending."""
        found = {stretch.shard for stretch in self.stretches} | set(self.framed)
        return tuple(sorted(found | {shard for shard, _ in self.digested}))

    @property
    def nbytes(self) -> int:
        """Bytes that the worker copies of the state."""
        return sum(stretch.stop - stretch.start for stretch in self.stretches)


def share_of(image_map: ImageMap, part: int, parts: int) -> Share:
    """Return share number ``part``, from 0, of ``parts`` shares."""
    total = image_map.layout.nbytes
    cuts = [total * number // parts // CUT_BYTES * CUT_BYTES for number in range(parts)]
    low, high = cuts[part], cuts[part + 1] if part + 1 < parts else total
    stretches, digested, framed, position = [], [], [], 0
    for shard, pieces in enumerate(image_map.pieces):
        if _owner(cuts, position) == part:
            framed.append(shard)
        for index, piece in enumerate(pieces):
            start, stop = max(low - position, 0), min(high - position, piece.nbytes)
            if start < stop:
                stretches.append(Stretch(shard, index, start, stop))
            if piece.nbytes and _owner(cuts, position) == part:
                digested.append((shard, index))
            position += piece.nbytes
    return Share(tuple(stretches), tuple(digested), tuple(framed))


def _owner(cuts: list[int], position: int) -> int:
    """Return the share that has the byte at ``position``: the last one that begins there."""
    return bisect_right(cuts, position) - 1
