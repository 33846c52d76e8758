"""A shard's file in memory, as it will lie on the disk: a snapshot that anyone can write.

Whoever trains copies its pieces into the image, to the offsets that they will have
in the file, and digests what it copies on the way, while it is in the cache.  Whoever
writes needs neither the state nor HDF5 nor the trainer: the image is the file.

The metadata is put in once for a layout; a save changes the pieces and its mark.
Digests are of the state's memory, not of the image: a bit that flips in the image
is found when it is written, and never gets into a checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.checkpoint.digest import Digest, DigestKind
from holdfast.checkpoint.errors import StateUnsupported
from holdfast.checkpoint.header import Header
from holdfast.checkpoint.layout import ShardLayout, specs_of
from holdfast.checkpoint.record import ShardRecord
from holdfast.checkpoint.shard import build_skeleton
from holdfast.checkpoint.tensor import Tensor, bytes_of
from holdfast.checkpoint.writer import describe_shard

_CHUNK_BYTES = 256 * 1024
"""Small enough that the digest finds in the cache what was copied."""


class ShardImage:
    """The shard of one writer of one layout, in a buffer of at least ``size`` bytes."""

    def __init__(
        self,
        layout: ShardLayout,
        writer: int,
        run_id: str,
        kind: DigestKind = DigestKind.XXH3_128,
    ) -> None:
        self.layout = layout
        self._writer = writer
        self._kind = kind
        self._skeleton = build_skeleton(layout, writer, run_id)

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self._skeleton.size

    def fill(self, buffer: memoryview, state: Mapping[str, Tensor], header: Header) -> ShardRecord:
        """Make ``buffer`` the shard of ``state``; return its record.

        Raises ``StateUnsupported`` if the state is another than that of the layout.
        """
        if specs_of(state) != self.layout.specs:
            raise StateUnsupported("the state does not fit the layout; make a layout of its specs")
        skeleton = self._skeleton
        gaps = skeleton.marked(header)
        digests = [""] * len(skeleton.pieces)
        position = _put(buffer, 0, gaps[0])
        for index, gap in zip(skeleton.order, gaps[1:], strict=True):
            piece = skeleton.pieces[index]
            data = bytes_of(state[piece.spec.name], piece.start, piece.stop)
            digest = Digest(self._kind)
            _copy(data, buffer[position : position + len(data)], digest)
            digests[index] = digest.hexdigest()
            position = _put(buffer, position + len(data), gap)
        return describe_shard(self._writer, skeleton, gaps, digests, kind=self._kind)


def _put(buffer: memoryview, position: int, data: bytes) -> int:
    """Write ``data`` at ``position``; return where it ends."""
    end = position + len(data)
    buffer[position:end] = data
    return end


def _copy(data: memoryview, target: memoryview, digest: Digest) -> None:
    """Copy, and digest what is copied."""
    for start in range(0, len(data), _CHUNK_BYTES):
        chunk = data[start : start + _CHUNK_BYTES]
        target[start : start + _CHUNK_BYTES] = chunk
        digest.update(chunk)
