"""Whether a shard in memory still is what its record says.

Apart from `image`, because whoever writes a snapshot does not lay it out, and so
does without HDF5.
"""

from __future__ import annotations

from holdfast.checkpoint.errors import SnapshotDamaged
from holdfast.checkpoint.format.digest import Digest, digest_of
from holdfast.checkpoint.format.record import PieceRecord, ShardRecord


def check_image(image: memoryview, record: ShardRecord) -> None:
    """Raise ``SnapshotDamaged`` unless the image is what its record says."""
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
