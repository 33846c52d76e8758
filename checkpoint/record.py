"""The report of a writer about its shard, and the save that the shard belongs to."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.checkpoint.digest import Digest, digest_of
from holdfast.checkpoint.errors import SnapshotDamaged


@dataclass(frozen=True, slots=True)
class Header:
    """The fields that all shards of one save share; they are written into each shard."""

    run_id: str
    generation: int
    step: int


@dataclass(frozen=True, slots=True)
class PieceRecord:
    """Where elements ``start`` to ``stop`` of a tensor lie in a shard, and their digest.

    The digest is of the array in memory, so it exposes a writer that spoils the file.
    """

    tensor: str
    start: int
    stop: int
    offset: int
    bytes: int
    digest: str


@dataclass(frozen=True, slots=True)
class ShardRecord:
    """A durable shard: number of its writer, bytes, digest outside its pieces, its pieces."""

    index: int
    size: int
    digest: str
    pieces: tuple[PieceRecord, ...]

    def check(self, image: memoryview) -> None:
        """Raise ``SnapshotDamaged`` unless ``image``, a shard in memory, is what was recorded."""
        outside = Digest()
        position = 0
        for piece in sorted(self.pieces, key=lambda piece: piece.offset):
            stop = piece.offset + piece.bytes
            outside.update(image[position : piece.offset])
            if digest_of(image[piece.offset : stop]) != piece.digest:
                raise SnapshotDamaged(
                    f"elements {piece.start} to {piece.stop} of tensor {piece.tensor!r} have "
                    "changed in the memory of the snapshot; look at the machine's memory"
                )
            position = stop
        outside.update(image[position : self.size])
        if len(image) != self.size or outside.hexdigest() != self.digest:
            raise SnapshotDamaged(
                f"shard {self.index} has changed outside its data in the memory of the snapshot; "
                "look at the machine's memory"
            )
