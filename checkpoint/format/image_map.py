"""Where each byte of a state lies in the memory that holds all of its shards, and their records.

Theory: HDF5 alone knows how large the file of a shard becomes.  So each shard has room for
the largest file that its pieces can make, and a place follows from the layout.  Processes
that share the memory agree on it without a message.  Memory that nobody writes takes no
space, so the room costs nothing.

Behind the shards lie their records: size, digests, and the offset of each piece.  Whoever
fills a piece writes its record.  So no message has to carry them.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.checkpoint.errors import StateUnsupported
from holdfast.checkpoint.format.digest import DigestKind
from holdfast.checkpoint.format.layout import Piece, ShardLayout
from holdfast.checkpoint.format.record import PieceRecord, ShardRecord

_RECORD = struct.Struct("<Q32s")
"""A number, which is a size or an offset, and a digest of at most 32 bytes."""
_PAGE_BYTES = 4096
_MOST_FOR_FILE_BYTES = 2**20
_MOST_FOR_PIECE_BYTES = 16 * 1024
_MOST_FOR_NAME_BYTE = 128
"""HDF5 takes 2 KiB for a file, and up to 5 KiB for a piece with its alignment.  It takes 68
bytes for a byte of a name of which every other one is a slash, since each part makes a group."""


@dataclass(frozen=True, slots=True)
class ImageMap:
    """The places of shards and records in one memory; ``size`` is its bytes."""

    layout: ShardLayout
    kind: DigestKind
    pieces: tuple[tuple[Piece, ...], ...]
    """The pieces of each shard."""
    bases: tuple[int, ...]
    """Where each shard begins."""
    records: tuple[int, ...]
    """Where the records of each shard begin."""
    size: int

    @staticmethod
    def of(layout: ShardLayout, kind: DigestKind) -> ImageMap:
        """Return the map of a layout; equal layouts have equal maps."""
        pieces = tuple(layout.pieces(shard) for shard in range(layout.writers))
        bases, position = [], 0
        for found in pieces:
            bases.append(position)
            position += _room(found)
        records = []
        for found in pieces:
            records.append(position)
            position += _RECORD.size * (1 + len(found))
        return ImageMap(layout, kind, pieces, tuple(bases), tuple(records), position)

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

    def put_shard(self, memory: memoryview, shard: int, size: int, digest: str) -> None:
        """Write the size of a shard's file, and the digest of what is outside its pieces."""
        _RECORD.pack_into(memory, self.records[shard], size, bytes.fromhex(digest))

    def put_piece(
        self, memory: memoryview, place: tuple[int, int], offset: int, digest: str
    ) -> None:
        """Write the offset of a piece in its file, and its digest; ``place``: shard and index."""
        shard, index = place
        position = self.records[shard] + _RECORD.size * (1 + index)
        _RECORD.pack_into(memory, position, offset, bytes.fromhex(digest))

    def record(self, memory: memoryview, shard: int) -> ShardRecord:
        """Return the record of a shard, as the memory has it now."""
        start = self.records[shard]
        pieces = self.pieces[shard]
        stop = start + _RECORD.size * (1 + len(pieces))
        (size, digest), *found = _RECORD.iter_unpack(memory[start:stop])
        records = [
            self._piece_record(piece, offset, piece_digest)
            for piece, (offset, piece_digest) in zip(pieces, found, strict=True)
            if piece.nbytes
        ]
        records.sort(key=lambda record: record.offset)
        return ShardRecord(shard, size, self._hex(digest), tuple(records), self.kind)

    def _piece_record(self, piece: Piece, offset: int, digest: bytes) -> PieceRecord:
        name = piece.spec.name
        return PieceRecord(name, piece.start, piece.stop, offset, piece.nbytes, self._hex(digest))

    def _hex(self, digest: bytes) -> str:
        return digest.hex()[: self.kind.length]


def _room(pieces: Sequence[Piece]) -> int:
    """Return the most bytes that the file of these pieces can have, in whole pages."""
    most = _MOST_FOR_FILE_BYTES
    for piece in pieces:
        name = len(piece.spec.name.encode())
        most += piece.nbytes + _MOST_FOR_PIECE_BYTES + _MOST_FOR_NAME_BYTE * name
    return -(-most // _PAGE_BYTES) * _PAGE_BYTES
