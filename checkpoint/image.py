"""A shard's file, made of a state: in memory, as it will lie on the disk, or as its parts.

Workers copy pieces into the image, to the offsets that they will have in the file.  The
process that writes needs neither the state nor HDF5 nor the workers: the image is the file.
A host without memory for it writes the same file from its parts: bytes of HDF5's metadata,
and the memory of a state that may not change meanwhile.

HDF5 lays out the metadata once for a layout; a save changes the pieces and the mark.
Digests are of the state's memory, not of the image.  So a bit that flips in the image is
found when the image is written, and never gets into a checkpoint.  Training waits for the
copy alone: another thread takes the digests as long as the state stands still.

The workers of a host fill one memory together.  Each copies its share, and writes the
records of what it has digested behind the images (`image_map`).  When all have done so, the
memory holds every shard and every record of the save, and no worker is needed any more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from holdfast.checkpoint.digest import Digest, digest_of
from holdfast.checkpoint.image_map import ImageMap, Share
from holdfast.checkpoint.record import Header, ShardRecord, entry_of
from holdfast.checkpoint.shard import build_skeleton
from holdfast.checkpoint.tensor import ShardLayout, Tensors, bytes_of

_CHUNK_BYTES = 4 * 2**20
"""Copying this much holds the interpreter's lock for a millisecond, so heartbeats go on."""


class ShardImage:
    """The shard of one writer of one layout, in a buffer of at least ``size`` bytes."""

    def __init__(
        self,
        layout: ShardLayout,
        writer: int,
        run_id: str,
    ) -> None:
        self.layout = layout
        self._writer = writer
        self._skeleton = build_skeleton(layout, writer, run_id)
        self.size = self._skeleton.size

    def offset(self, piece: int) -> int:
        """Return where a piece, by its number, begins in the file."""
        return self._skeleton.offsets[piece]

    def copy_frame(self, buffer: memoryview, header: Header) -> None:
        """Copy all that is outside the pieces: HDF5's metadata, and the mark of the save."""
        skeleton, position = self._skeleton, 0
        gaps = skeleton.marked(header)
        for gap, piece in zip(gaps, (*skeleton.order, None), strict=True):
            _put(buffer, position, memoryview(gap))
            if piece is not None:
                position = skeleton.offsets[piece] + skeleton.pieces[piece].nbytes

    def copy_piece(
        self, buffer: memoryview, state: Tensors, piece: int, bounds: tuple[int, int]
    ) -> None:
        """Copy the bytes of a piece of ``state`` that ``bounds`` gives."""
        start, stop = bounds
        contents = self._contents(state, piece)[start:stop]
        _put(buffer, self._skeleton.offsets[piece] + start, contents)

    def piece_digest(self, state: Tensors, piece: int) -> str:
        """Return the digest of a piece of ``state``."""
        return digest_of(self._contents(state, piece))

    def frame_digest(self, header: Header) -> str:
        """Return the digest of all that is outside the pieces."""
        outside = Digest()
        for gap in self._skeleton.marked(header):
            outside.update(gap)
        return outside.hexdigest()

    def contents(self, state: Tensors) -> list[memoryview]:
        """Return the pieces of ``state``, by number; only awkward memory is copied.

        Raises ``StateUnsupported`` if the state does not fit the layout.
        """
        self.layout.refuse_other(state)
        return [self._contents(state, index) for index in range(len(self._skeleton.pieces))]

    def buffers(self, contents: Sequence[memoryview], header: Header) -> list[memoryview]:
        """Return the file as a list of buffers: gap, piece, gap, …, gap."""
        first, *others = self._skeleton.marked(header)
        buffers = [memoryview(first)]
        for index, gap in zip(self._skeleton.order, others, strict=True):
            buffers += [contents[index], memoryview(gap)]
        return buffers

    def describe(self, contents: Sequence[memoryview], header: Header) -> ShardRecord:
        """Return the record of the shard that is made of the same contents."""
        skeleton = self._skeleton
        digests = [digest_of(data) for data in contents]
        records = tuple(
            entry_of(skeleton.pieces[i], self._writer, skeleton.offsets[i], digests[i])
            for i in skeleton.order
        )
        outside = self.frame_digest(header)
        return ShardRecord(self._writer, skeleton.size, outside, records)

    def _contents(self, state: Tensors, index: int) -> memoryview:
        piece = self._skeleton.pieces[index]
        return bytes_of(state[piece.spec.name], piece.start, piece.stop)


class ShareImage:
    """The share of one worker; lays out the shards that it has to do with, once."""

    def __init__(self, image_map: ImageMap, share: Share, run_id: str) -> None:
        """Lay the shards out, which takes about 0.2 ms a tensor.

        Raises ``StateUnsupported`` if HDF5 cannot express the layout.
        """
        self._map = image_map
        self._share = share
        self._images = {
            shard: ShardImage(image_map.layout, shard, run_id) for shard in share.shards
        }

    @property
    def nbytes(self) -> int:
        """Bytes of the state that a copy takes."""
        return self._share.nbytes

    def spans(self) -> Iterator[tuple[int, int]]:
        """Yield where the bytes lie in the memory that a copy writes: start and length."""
        for shard in self._share.framed:
            if self._images[shard].size:
                yield self._map.bases[shard], 1  # HDF5 begins with its metadata
        for stretch in self._share.stretches:
            offset = self._images[stretch.shard].offset(stretch.piece)
            start = self._map.bases[stretch.shard] + offset + stretch.start
            yield start, stretch.stop - stretch.start

    def copy(self, memory: memoryview, state: Tensors, header: Header) -> None:
        """Copy the share of ``state`` into the memory.

        Raises ``StateUnsupported`` if the state does not fit the layout.
        """
        self._map.layout.refuse_other(state)
        rooms = {
            shard: self._map.image(memory, shard, image.size)
            for shard, image in self._images.items()
        }
        for shard in self._share.framed:
            self._images[shard].copy_frame(rooms[shard], header)
        for found in self._share.stretches:
            bounds = found.start, found.stop
            self._images[found.shard].copy_piece(rooms[found.shard], state, found.piece, bounds)

    def describe(self, memory: memoryview, state: Tensors, header: Header) -> None:
        """Write the records of the share; ``state`` is the one that was copied."""
        for shard in self._share.framed:
            image = self._images[shard]
            found = image.size, image.frame_digest(header)
            self._map.put_shard(memory, shard, found, header)
        for shard, piece in self._share.digested:
            image = self._images[shard]
            found = image.offset(piece), image.piece_digest(state, piece)
            self._map.put_piece(memory, (shard, piece), found, header)


def _put(buffer: memoryview, position: int, data: memoryview) -> None:
    """Write ``data`` at ``position``."""
    for start in range(0, len(data), _CHUNK_BYTES):
        chunk = data[start : start + _CHUNK_BYTES]
        begin = position + start
        buffer[begin : begin + len(chunk)] = chunk
