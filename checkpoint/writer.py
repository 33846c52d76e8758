"""One writer's part of a save: its shard, digested from memory and made durable.

Theory: the shard's file is a list of buffers, in the order of offsets: bytes of
HDF5's metadata, and memory of the state itself.  Nothing of the size of the state
is ever copied.  Digests are of that memory, so whatever goes wrong on the way to
the disk makes the checkpoint fail its verification, and never goes unnoticed.

The state may not change until ``write_shard`` returns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from holdfast.checkpoint.digest import Digest
from holdfast.checkpoint.disk import Disk
from holdfast.checkpoint.errors import StateUnsupported
from holdfast.checkpoint.header import Header
from holdfast.checkpoint.layout import Piece, ShardLayout, specs_of
from holdfast.checkpoint.record import PieceRecord, ShardRecord
from holdfast.checkpoint.shard import Skeleton, build_skeleton
from holdfast.checkpoint.tensor import Tensor, bytes_of

# Small enough that the second digest finds the bytes in the cache.
_DIGEST_CHUNK_BYTES = 256 * 1024


class ShardWriter:
    """Writes the shards of one writer; it keeps nothing between two shards."""

    def __init__(self, disk: Disk, layout: ShardLayout, writer: int) -> None:
        self._disk = disk
        self._layout = layout
        self._writer = writer

    def write(self, path: Path, state: Mapping[str, Tensor], header: Header) -> ShardRecord:
        """Write a shard and sync it, or leave none behind and raise ``CheckpointError``."""
        if specs_of(state) != self._layout.specs:
            raise StateUnsupported("the state does not fit the layout; make a layout of its specs")
        pieces = self._layout.pieces(self._writer)
        skeleton = build_skeleton(self._layout, self._writer, header=header)
        contents = [bytes_of(state[p.spec.name], p.start, p.stop) for p in pieces]
        record = _digest(self._writer, pieces, contents, skeleton=skeleton)
        self._disk.write_durably(path, _buffers(skeleton, contents))
        return record


def _buffers(skeleton: Skeleton, contents: Sequence[memoryview]) -> list[memoryview]:
    """Return the file as a list of buffers: gap, piece, gap, …, gap."""
    buffers = [memoryview(skeleton.gaps[0])]
    for index, gap in zip(skeleton.order, skeleton.gaps[1:], strict=True):
        buffers += [contents[index], memoryview(gap)]
    return buffers


def _digest(
    writer: int,
    pieces: Sequence[Piece],
    contents: Sequence[memoryview],
    *,
    skeleton: Skeleton,
) -> ShardRecord:
    """Digest the file and its pieces in one pass over the memory."""
    whole = Digest()
    whole.update(skeleton.gaps[0])
    records = []
    for index, gap in zip(skeleton.order, skeleton.gaps[1:], strict=True):
        piece, data, offset = pieces[index], contents[index], skeleton.offsets[index]
        digest = _digest_both(data, whole)
        records.append(
            PieceRecord(piece.spec.name, piece.start, piece.stop, offset, len(data), digest)
        )
        whole.update(gap)
    return ShardRecord(writer, skeleton.size, whole.hexdigest(), tuple(records))


def _digest_both(data: memoryview, whole: Digest) -> str:
    """Return the digest of ``data``, which ``whole`` takes in too."""
    own = Digest()
    for start in range(0, len(data), _DIGEST_CHUNK_BYTES):
        chunk = data[start : start + _DIGEST_CHUNK_BYTES]
        own.update(chunk)
        whole.update(chunk)
    return own.hexdigest()
