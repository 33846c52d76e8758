"""One worker's share of a snapshot, in the memory of its host.

The workers of a host fill one memory together.  Each copies its share, and writes the
records of what it has digested behind the images.  When all have done so, the memory holds
every shard and every record of the save, and no worker is needed any more.
"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.checkpoint.format.image_map import ImageMap
from holdfast.checkpoint.format.record import Header
from holdfast.checkpoint.format.share import Share
from holdfast.checkpoint.format.tensor import Tensors
from holdfast.checkpoint.store.image import ShardImage


class ShareImage:
    """The share of one worker; lays out the shards that it has to do with, once."""

    def __init__(self, image_map: ImageMap, share: Share, run_id: str) -> None:
        """Lay the shards out, which takes about 0.2 ms a tensor.

        Raises ``StateUnsupported`` if HDF5 cannot express the layout.
        """
        self._map = image_map
        self._share = share
        self._images = {
            shard: ShardImage(image_map.layout, shard, run_id, image_map.kind)
            for shard in share.shards
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
        rooms = {shard: self._room(memory, shard) for shard in self._images}
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

    def _room(self, memory: memoryview, shard: int) -> memoryview:
        return self._map.image(memory, shard, self._images[shard].size)
