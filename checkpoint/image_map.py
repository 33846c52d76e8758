"""Where each byte of a state lies in the memory of a host, which begins with a header (`shares`).

*Places.*  HDF5 alone knows how large the file of a shard becomes.  So each shard has room for
the largest file that its pieces can make, and a place follows from the layout.  Processes
that share the memory agree on it without a message.  Memory that nobody writes takes no
space, so the room costs nothing.

*Records.*  Behind the shards lie their records: size, digests, and the offset of each piece.  The
worker that fills a piece writes its record.  So no message has to carry them.  Each record says
of which save it is.  So a save that was written over, even by whole shards, is never taken for
whole.

*Shares.*  All workers hold the same state, so any of them may copy any byte.  The bytes of all
pieces that a host holds, in order, are cut evenly among its workers, at multiples of a page.  A
piece may be copied by two workers.  Its digest is taken by one: the worker that copies its first
byte.  The same holds for what is outside the pieces of a shard.  Invariant: the shares of all
workers of a host make every shard that it holds whole, and no byte is written twice.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from holdfast.checkpoint.errors import SnapshotDamaged, StateUnsupported
from holdfast.checkpoint.manifest import Header, ShardRecord, entry_of
from holdfast.checkpoint.shares import HEADER_BYTES
from holdfast.checkpoint.tensor import CUT_BYTES, Piece, ShardLayout

_RECORD = struct.Struct("<Q16sQQ")
"""A size or an offset, a digest, and the generation and step of the save."""
_PAGE_BYTES = 4096
_MOST_FOR_FILE_BYTES = 2**20
_MOST_FOR_PIECE_BYTES = 16 * 1024
_MOST_FOR_NAME_BYTE = 128
"""HDF5 takes 2 KiB for a file, and up to 5 KiB for a piece with its alignment.  It takes 68
bytes for a byte of a name of which every other one is a slash, since each part makes a group."""


@dataclass(frozen=True, slots=True)
class ImageMap:
    """The places of shards and records in one memory; ``size`` is its bytes.

    Each mapping is by number of a shard, and has those that the memory holds.
    """

    layout: ShardLayout
    pieces: Mapping[int, tuple[Piece, ...]]
    bases: Mapping[int, int]
    """Where each shard begins."""
    records: Mapping[int, int]
    """Where the records of each shard begin."""
    size: int

    @staticmethod
    def of(layout: ShardLayout, shards: Iterable[int]) -> ImageMap:
        """Return the map of some shards of a layout; equal layouts have equal maps."""
        pieces = {shard: layout.pieces(shard) for shard in shards}
        bases, records, position = {}, {}, HEADER_BYTES
        for shard, found in pieces.items():
            bases[shard] = position
            position += _room(found)
        for shard, found in pieces.items():
            records[shard] = position
            position += _RECORD.size * (1 + len(found))
        return ImageMap(layout, pieces, bases, records, position)

    @property
    def nbytes(self) -> int:
        """Bytes of the state that the memory holds."""
        return sum(piece.nbytes for pieces in self.pieces.values() for piece in pieces)

    def image(self, memory: memoryview, shard: int, size: int) -> memoryview:
        """Return the part of the memory that holds a shard's file of ``size`` bytes.

        Raises ``StateUnsupported`` if the file is larger than its room.
        """
        room = _room(self.pieces[shard])
        if size > room:
            raise StateUnsupported(
                f"the file of shard {shard} needs {size} bytes and has room for {room}; "
                "shorten the names of the tensors, or report this"
            )
        base = self.bases[shard]
        return memory[base : base + size]

    def put(
        self, memory: memoryview, place: tuple[int, int], found: tuple[int, str], header: Header
    ) -> None:
        """Write a record of a shard; ``place``: its number, and the row in its records.

        Row 0 is of its file: size, and digest outside its pieces.  Each other one is of a piece:
        offset and digest.
        """
        (shard, row), (number, digest) = place, found
        position = self.records[shard] + _RECORD.size * row
        save = header.generation, header.step
        _RECORD.pack_into(memory, position, number, bytes.fromhex(digest), *save)

    def packed(self, memory: memoryview, shard: int) -> bytes:
        """Return the records of a shard as they lie in the memory."""
        start = self.records[shard]
        return bytes(memory[start : start + _RECORD.size * (1 + len(self.pieces[shard]))])

    def rows_of(self, record: ShardRecord, header: Header) -> bytes:
        """Return what ``record`` is made of: the records of a shard that lies in no memory."""
        save = header.generation, header.step
        rows = [_RECORD.pack(record.size, bytes.fromhex(record.digest), *save)]
        found = {(spec.name, entry.start): entry for spec, entry in record.pieces}
        for piece in self.pieces[record.index]:
            if piece.nbytes:
                entry = found[piece.spec.name, piece.start]
                rows.append(_RECORD.pack(entry.offset, bytes.fromhex(entry.digest), *save))
            else:
                rows.append(bytes(_RECORD.size))
        return b"".join(rows)

    def record(self, packed: bytes, shard: int, header: Header) -> ShardRecord:
        """Return the record of a shard whose records are ``packed``.

        Raises ``SnapshotDamaged`` if any of it is not of the save of ``header``.
        """
        pieces = self.pieces[shard]
        (size, digest, *save), *found = _RECORD.iter_unpack(packed)
        _refuse_other_save(shard, save, header)
        records = []
        for piece, (offset, piece_digest, *piece_save) in zip(pieces, found, strict=True):
            if piece.nbytes:
                _refuse_other_save(shard, piece_save, header)
                records.append(entry_of(piece, shard, offset, piece_digest.hex()))
        records.sort(key=lambda record: record[1].offset)
        return ShardRecord(shard, size, digest.hex(), tuple(records))


def _refuse_other_save(shard: int, save: Sequence[int], header: Header) -> None:
    if tuple(save) != (header.generation, header.step):
        raise SnapshotDamaged(
            f"shard {shard} of step {header.step} was written over in memory; save the step again"
        )


def _room(pieces: Sequence[Piece]) -> int:
    """Return the most bytes that the file of these pieces can have, in whole pages."""
    most = _MOST_FOR_FILE_BYTES
    for piece in pieces:
        name = len(piece.spec.name.encode())
        most += piece.nbytes + _MOST_FOR_PIECE_BYTES + _MOST_FOR_NAME_BYTE * name
    return -(-most // _PAGE_BYTES) * _PAGE_BYTES


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


def share_of(image_map: ImageMap, part: int, parts: int) -> Share:
    """Return share number ``part``, from 0, of ``parts`` shares of what a memory holds."""
    total = image_map.nbytes
    cuts = [total * number // parts // CUT_BYTES * CUT_BYTES for number in range(parts)]
    low, high = cuts[part], cuts[part + 1] if part + 1 < parts else total
    stretches, digested, framed, position = [], [], [], 0
    for shard, pieces in image_map.pieces.items():
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
