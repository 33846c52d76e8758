"""The report of a writer about its shard and the pieces in it, and the save that it belongs to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from holdfast.checkpoint.digest import Digest, digest_of
from holdfast.checkpoint.errors import SnapshotDamaged
from holdfast.checkpoint.tensor import Piece


@dataclass(frozen=True, slots=True)
class Header:
    """The fields that all shards of one save share; they are written into each shard."""

    run_id: str
    generation: int
    step: int


class PieceEntry(NamedTuple):
    """Elements ``start`` to ``stop`` of a tensor: ``bytes`` bytes at ``offset`` of a shard.

    The digest is of the array in memory, so it exposes a writer that spoils the file.
    """

    shard: int
    offset: int
    bytes: int
    start: int
    stop: int
    digest: str


def entry_of(piece: Piece, shard: int, offset: int, digest: str) -> tuple[str, PieceEntry]:
    """Return the entry of a piece that lies at ``offset`` of a shard, with its tensor's name."""
    entry = PieceEntry(shard, offset, piece.nbytes, piece.start, piece.stop, digest)
    return piece.spec.name, entry


@dataclass(frozen=True, slots=True)
class ShardRecord:
    """A durable shard: number of its writer, bytes, digest outside its pieces, its pieces.

    Each piece has the name of its tensor.
    """

    index: int
    size: int
    digest: str
    pieces: tuple[tuple[str, PieceEntry], ...]

    def check(self, image: memoryview) -> None:
        """Raise ``SnapshotDamaged`` unless ``image``, a shard in memory, is what was recorded."""
        outside = Digest()
        position = 0
        for tensor, piece in sorted(self.pieces, key=lambda placed: placed[1].offset):
            stop = piece.offset + piece.bytes
            outside.update(image[position : piece.offset])
            if digest_of(image[piece.offset : stop]) != piece.digest:
                raise SnapshotDamaged(
                    f"elements {piece.start} to {piece.stop} of tensor {tensor!r} have "
                    "changed in the memory of the snapshot; look at the machine's memory"
                )
            position = stop
        outside.update(image[position : self.size])
        if len(image) != self.size or outside.hexdigest() != self.digest:
            raise SnapshotDamaged(
                f"shard {self.index} has changed outside its data in the memory of the snapshot; "
                "look at the machine's memory"
            )
