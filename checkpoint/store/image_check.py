"""The check that a shard in memory still agrees with its record.

Apart from `image`, because the process that writes a snapshot does not lay it out, and so
need not load HDF5.
"""

from __future__ import annotations

from holdfast.checkpoint.errors import SnapshotDamaged
from holdfast.checkpoint.format.digest import Digest, digest_of
from holdfast.checkpoint.format.record import PieceRecord, ShardRecord


def check_image(image: memoryview, record: ShardRecord) -> None:
    """Raise ``SnapshotDamaged`` unless the image has the size and the digests of its record."""
    outside = Digest(record.kind)
    position = 0
    for piece in _by_offset(record):
        stop = piece.offset + piece.bytes
        outside.update(image[position : piece.offset])
        if digest_of(image[piece.offset : stop], record.kind) != piece.digest:
            raise SnapshotDamaged(
                f"elements {piece.start} to {piece.stop} of tensor {piece.tensor!r} have changed "
                "in the memory of the snapshot; look at the machine's memory"
            )
        position = stop
    outside.update(image[position : record.size])
    if len(image) != record.size or outside.hexdigest() != record.digest:
        raise SnapshotDamaged(
            f"shard {record.index} has changed outside its data in the memory of the snapshot; "
            "look at the machine's memory"
        )


def _by_offset(record: ShardRecord) -> list[PieceRecord]:
    return sorted(record.pieces, key=lambda piece: piece.offset)
