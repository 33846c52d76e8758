"""One writer's part of a save: its shard, digested from memory and made durable.

Theory: the shard's file is a list of buffers, in the order of offsets: bytes of
HDF5's metadata, and memory of the state itself.  The state is never copied.  Digests
are of that memory, taken right before it is written.  So any damage on the way to the
disk makes the checkpoint fail its verification.

The state may not change until ``write_shard`` returns.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from holdfast.checkpoint.disk.disk import Disk
from holdfast.checkpoint.format.digest import Digest, DigestKind, digest_of
from holdfast.checkpoint.format.layout import ShardLayout
from holdfast.checkpoint.format.record import Header, PieceRecord, ShardRecord
from holdfast.checkpoint.format.shard import Skeleton, build_skeleton
from holdfast.checkpoint.format.tensor import Tensors, bytes_of


class ShardWriter:
    """Writes the shards of one writer; it keeps nothing between two shards."""

    def __init__(
        self,
        disk: Disk,
        layout: ShardLayout,
        writer: int,
        kind: DigestKind = DigestKind.XXH3_128,
    ) -> None:
        self._disk = disk
        self._layout = layout
        self._writer = writer
        self._kind = kind

    def write(self, path: Path, state: Tensors, header: Header) -> ShardRecord:
        """Write a shard and sync it, or leave none behind and raise ``CheckpointError``."""
        self._layout.refuse_other(state)
        skeleton = build_skeleton(self._layout, self._writer, header.run_id)
        gaps = skeleton.marked(header)
        contents = [bytes_of(state[p.spec.name], p.start, p.stop) for p in skeleton.pieces]
        described: list[ShardRecord] = []

        def describe() -> None:
            described.append(
                describe_shard(self._writer, skeleton, gaps, contents, kind=self._kind)
            )

        self._disk.write_durably(path, _buffers(skeleton, gaps, contents), beside=describe)
        return described[0]


def describe_shard(
    writer: int,
    skeleton: Skeleton,
    gaps: Sequence[bytes],
    contents: Sequence[memoryview],
    *,
    kind: DigestKind,
) -> ShardRecord:
    """Digest the contents of a shard's pieces, and return its record in the skeleton's order."""
    digests = [digest_of(data, kind) for data in contents]
    outside = Digest(kind)
    for gap in gaps:
        outside.update(gap)
    records = [
        PieceRecord(piece.spec.name, piece.start, piece.stop, offset, piece.nbytes, digest)
        for piece, offset, digest in (
            (skeleton.pieces[i], skeleton.offsets[i], digests[i]) for i in skeleton.order
        )
    ]
    return ShardRecord(writer, skeleton.size, outside.hexdigest(), tuple(records), kind)


def _buffers(
    skeleton: Skeleton, gaps: Sequence[bytes], contents: Sequence[memoryview]
) -> list[memoryview]:
    """Return the file as a list of buffers: gap, piece, gap, …, gap."""
    buffers = [memoryview(gaps[0])]
    for index, gap in zip(skeleton.order, gaps[1:], strict=True):
        buffers += [contents[index], memoryview(gap)]
    return buffers
