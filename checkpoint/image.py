"""A shard's file, made of a state: in memory, as it will lie on the disk, or as its parts.

Workers copy pieces into the image, to the offsets that they will have in the file.  The
process that writes needs neither the state nor HDF5 nor the workers: the image is the file.
A host without memory for it writes the same file from its parts: bytes of HDF5's metadata,
and the memory of a state that may not change meanwhile.

Digests are of the state's memory, not of the image.  So a bit that flips in the image is
found when the image is written, and never gets into a checkpoint.  Training waits for the
copy alone: another thread takes the digests as long as the state stands still.

The workers of a host fill one memory together.  Each copies its share, and writes the
records of what it has digested behind the images (`image_map`).  When all have done so, the
memory holds every shard and every record of the save, and no worker is needed any more.

*The frame.*  A shard is an ordinary HDF5 file whose data HDF5 never sees.  HDF5 lays the file
out and writes its metadata into memory.  It tells the place of each dataset's bytes, and the writer
of the file puts them there.  The library libhdf5 crashes on a full disk and holds the GIL for large
images.  Here it meets neither the disk nor the data, and a shard is written at the speed of raw
writes.

Invariant: gap, piece, gap, piece, …, gap, in the order of offsets, are the whole
file: every byte of a shard is either metadata (or padding) or a piece of a tensor.

All shards of one writer, layout and run differ in 16 bytes only: the mark of the save.
The mark is the data of a dataset of its own, because HDF5 puts checksums on metadata but
not on data.  So it is built once and marked anew for each save.

The name of a tensor becomes an HDF5 path, for people: a restore goes by the manifest alone.
The slashes of a name make groups.  Components that HDF5 would read differently are
percent-encoded, so that different names never share a path:

* ``%`` and NUL become ``%25`` and ``%00``;
* the components ``.`` and ``..``, and others of dots only, become ``%2E`` each dot;
* an empty component becomes a single ``%``;
* where one name continues another (``a`` and ``a/b``), the shorter one ends in
  an extra ``%``, because a dataset cannot also be a group.

This is the only file that knows h5py.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from holdfast.checkpoint.errors import StateUnsupported
from holdfast.checkpoint.image_map import ImageMap, Share
from holdfast.checkpoint.manifest import Header, ShardRecord, entry_of
from holdfast.checkpoint.tensor import (
    Digest,
    Piece,
    ShardLayout,
    Tensors,
    bytes_of,
    digest_of,
    storage_dtype,
)

_PRELOAD, _NO_PLUGINS = "HDF5_PLUGIN_PRELOAD", "::"  # H5PL_NO_PLUGIN of H5PLpublic.h

ALIGNMENT_BYTES = 4096
_METADATA_BLOCK_BYTES = 64 * 1024

_MARK_PATH = "%save"
"""No tensor's name makes this path (`dataset_paths`)."""
_MARK = struct.Struct("<qq")


@contextlib.contextmanager
def no_plugins() -> Iterator[None]:
    """Forbid plugins to an HDF5 that is loaded meanwhile; child processes inherit nothing.

    A shard has no filters, so it needs no plugin: a shared library that HDF5 finds by a path
    in the environment.  One that is never loaded cannot run foreign code.  HDF5 looks at the
    environment once, when it is loaded: if the script has imported h5py before, the script's
    setting stays.
    """
    before = os.environ.get(_PRELOAD)
    os.environ[_PRELOAD] = _NO_PLUGINS
    try:
        yield
    finally:
        if before is None:
            del os.environ[_PRELOAD]
        else:
            os.environ[_PRELOAD] = before


with no_plugins():
    import h5py
    from h5py import h5a, h5d, h5f, h5fd, h5g, h5p, h5s, h5t


@dataclass(frozen=True, slots=True)
class ShardImage:
    """The shard of one writer of one layout: the file but for its data, and how to fill it.

    ``offsets[i]`` is the offset in bytes of the i-th piece, 0 for an empty one.
    ``gaps`` are the bytes between the pieces.  ``order`` holds the indices of the
    pieces that are not empty, by offset.  The file is gaps[0], piece order[0], gaps[1], …
    The mark is in gap ``mark[0]``, at byte ``mark[1]`` of it.
    """

    layout: ShardLayout
    writer: int
    size: int
    pieces: tuple[Piece, ...]
    offsets: tuple[int, ...]
    order: tuple[int, ...]
    gaps: tuple[bytes, ...]
    mark: tuple[int, int]

    def marked(self, header: Header) -> tuple[bytes, ...]:
        """Return the gaps of a shard of this save."""
        gap, start = self.mark
        whole = bytearray(self.gaps[gap])
        _MARK.pack_into(whole, start, header.generation, header.step)
        return (*self.gaps[:gap], bytes(whole), *self.gaps[gap + 1 :])

    def copy_frame(self, buffer: memoryview, header: Header) -> None:
        """Copy all that is outside the pieces: HDF5's metadata, and the mark of the save."""
        position = 0
        for gap, piece in zip(self.marked(header), (*self.order, None), strict=True):
            _put(buffer, position, memoryview(gap))
            if piece is not None:
                position = self.offsets[piece] + self.pieces[piece].nbytes

    def frame_digest(self, header: Header) -> str:
        """Return the digest of all that is outside the pieces."""
        outside = Digest()
        for gap in self.marked(header):
            outside.update(gap)
        return outside.hexdigest()

    def piece_bytes(self, state: Tensors, index: int) -> memoryview:
        """Return the bytes of a piece of ``state``; only awkward memory is copied."""
        piece = self.pieces[index]
        return bytes_of(state[piece.spec.name], piece.start, piece.stop)

    def contents(self, state: Tensors) -> list[memoryview]:
        """Return the pieces of ``state``, by number.

        Raises ``StateUnsupported`` if the state does not fit the layout.
        """
        self.layout.refuse_other(state)
        return [self.piece_bytes(state, index) for index in range(len(self.pieces))]

    def buffers(self, contents: Sequence[memoryview], header: Header) -> list[memoryview]:
        """Return the file as a list of buffers: gap, piece, gap, …, gap."""
        first, *others = self.marked(header)
        buffers = [memoryview(first)]
        for index, gap in zip(self.order, others, strict=True):
            buffers += [contents[index], memoryview(gap)]
        return buffers

    def describe(self, contents: Sequence[memoryview], header: Header) -> ShardRecord:
        """Return the record of the shard that is made of the same contents."""
        records = tuple(
            entry_of(self.pieces[i], self.writer, self.offsets[i], digest_of(contents[i]))
            for i in self.order
        )
        return ShardRecord(self.writer, self.size, self.frame_digest(header), records)


# The world keeps its layout for hours, and an image costs a fifth of a millisecond a tensor.
@functools.lru_cache(maxsize=64)
def lay_out_shard(layout: ShardLayout, writer: int, run_id: str) -> ShardImage:
    """Return the file that ``writer`` fills; takes about 0.2 ms a tensor of any size.

    Raises ``StateUnsupported`` if HDF5 cannot express the layout.
    """
    pieces = layout.pieces(writer)
    paths = dataset_paths(spec.name for spec in layout.specs)
    try:
        # Only pages that HDF5 writes take memory.
        with os.fdopen(os.memfd_create("holdfast-shard"), "w+b", buffering=0) as memory:
            with _create(memory) as file:
                _annotate(file.id, "run_id", run_id)
                _annotate(file.id, "writer", writer)
                _annotate(file.id, "writers", layout.writers)
                mark = _reserve_mark(file)
                groups, creation = _Groups(file.id), _creation()
                offsets = tuple(
                    _reserve(groups.of(path[:-1]), path[-1], piece, creation)
                    for piece, path in ((piece, paths[piece.spec.name]) for piece in pieces)
                )
            filled = (i for i, piece in enumerate(pieces) if piece.nbytes)
            order = tuple(sorted(filled, key=offsets.__getitem__))
            spans = [(offsets[i], pieces[i].nbytes) for i in order]
            size, gaps = memory.seek(0, os.SEEK_END), _gaps(memory, spans)
    except (OSError, RuntimeError, TypeError, ValueError) as error:
        raise StateUnsupported(f"HDF5 cannot lay out shard {writer}: {error}") from error
    return ShardImage(layout, writer, size, pieces, offsets, order, gaps, _place_of(mark, spans))


def _place_of(offset: int, spans: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """Return the gap that a byte of the file is in, and its place there."""
    before = [start + length for start, length in spans if start < offset]
    return len(before), offset - (before[-1] if before else 0)


def _gaps(memory: io.FileIO, spans: Sequence[tuple[int, int]]) -> tuple[bytes, ...]:
    """Read what lies before, between and after the spans of a file."""
    gaps = []
    memory.seek(0)
    for offset, length in spans:
        gaps.append(memory.read(offset - memory.tell()))
        memory.seek(offset + length)
    return (*gaps, memory.read())


def dataset_paths(names: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Return the HDF5 path of each name, as the components from the root."""
    paths = {name: tuple(map(_encode, name.split("/"))) for name in names}
    groups = {path[:depth] for path in paths.values() for depth in range(1, len(path))}
    return {
        name: (*path[:-1], path[-1] + "%") if path in groups else path
        for name, path in paths.items()
    }


def _encode(component: str) -> str:
    if not component:
        return "%"
    if set(component) == {"."}:
        return "%2E" * len(component)
    return component.replace("%", "%25").replace("\0", "%00")


def _create(memory: io.FileIO) -> h5py.File:
    """Create a file without timestamps, so that the same layout always has the same bytes."""
    creation = h5p.create(h5p.FILE_CREATE)
    creation.set_obj_track_times(False)  # of the root group
    access = h5p.create(h5p.FILE_ACCESS)
    access.set_fclose_degree(h5f.CLOSE_STRONG)
    access.set_fileobj_driver(h5fd.fileobj_driver, memory)
    # Readable by every HDF5 since 1.10, and its metadata has checksums.
    access.set_libver_bounds(h5f.LIBVER_V110, h5f.LIBVER_V110)
    access.set_alignment(ALIGNMENT_BYTES, ALIGNMENT_BYTES)
    access.set_meta_block_size(_METADATA_BLOCK_BYTES)
    return h5py.File(h5f.create(b"shard", h5f.ACC_TRUNC, fcpl=creation, fapl=access))


def _reserve_mark(file: h5py.File) -> int:
    """Create the unwritten dataset of generation and step; return its offset in the file."""
    space = h5s.create_simple((_MARK.size // 8,))
    mark = h5d.create(file.id, _MARK_PATH.encode(), h5t.STD_I64LE, space, _creation())
    _annotate(mark, "fields", "generation step")
    return int(mark.get_offset())


def _reserve(group: h5g.GroupID, name: str, piece: Piece, creation: h5p.PropDCID) -> int:
    """Create the unwritten dataset of a piece; return the offset of its bytes in the file.

    A whole tensor keeps its shape; a part of a tensor is a row of elements.
    """
    spec = piece.spec
    shape = spec.shape if piece.is_whole else (piece.stop - piece.start,)
    kind, space = _element_kind(spec.dtype), _space(shape)
    dataset = h5d.create(group, name.encode(), kind, space, creation)
    _annotate(dataset, "name", spec.name)
    _annotate(dataset, "dtype", spec.dtype)
    _annotate(dataset, "shape", spec.shape)
    _annotate(dataset, "start", piece.start)
    _annotate(dataset, "stop", piece.stop)
    return int(dataset.get_offset() or 0)


def _creation() -> h5p.PropDCID:
    creation = h5p.create(h5p.DATASET_CREATE)
    creation.set_layout(h5d.CONTIGUOUS)
    creation.set_alloc_time(h5d.ALLOC_TIME_EARLY)
    creation.set_fill_time(h5d.FILL_TIME_NEVER)
    creation.set_obj_track_times(False)
    return creation


class _Groups:
    """The groups of a file; those of the last path stay open, for names come in their order."""

    def __init__(self, root: h5g.GroupID) -> None:
        self._open: list[tuple[str, h5g.GroupID]] = [("", root)]
        self._creation = h5p.create(h5p.GROUP_CREATE)
        self._creation.set_obj_track_times(False)

    def of(self, path: Sequence[str]) -> h5g.GroupID:
        """Return the group of a path; make missing groups, without timestamps."""
        common = 0
        for name, (opened, _) in zip(path, self._open[1:], strict=False):
            if name != opened:
                break
            common += 1
        del self._open[common + 1 :]
        for name in path[common:]:
            self._open.append((name, self._child(self._open[-1][1], name.encode())))
        return self._open[-1][1]

    def _child(self, group: h5g.GroupID, name: bytes) -> h5g.GroupID:
        if name in group:
            return h5g.open(group, name)
        return h5g.create(group, name, None, self._creation)


def _annotate(target: h5g.GroupID | h5d.DatasetID, name: str, value: object) -> None:
    """Attach an attribute: a string, an integer or a row of integers."""
    if isinstance(value, str):
        # HDF5 has no strings of length 0; NUL padding says where a string ends.
        encoded = value.encode() or b"\0"
        kind = _text_kind(len(encoded))
        data = np.array(encoded, dtype=f"S{len(encoded)}")
    else:
        data = np.array(value, "<i8")
        kind = h5t.STD_I64LE
    h5a.create(target, name.encode(), kind, _space(data.shape)).write(data, mtype=kind)


# A state has thousands of tensors, but few types, and many of the same shape.
@functools.lru_cache(maxsize=256)
def _text_kind(length: int) -> h5t.TypeStringID:
    kind = h5t.C_S1.copy()
    kind.set_size(length)
    kind.set_cset(h5t.CSET_UTF8)
    kind.set_strpad(h5t.STR_NULLPAD)
    return kind


@functools.lru_cache(maxsize=64)
def _element_kind(dtype: str) -> h5t.TypeID:
    return h5t.py_create(storage_dtype(dtype), logical=True)


@functools.lru_cache(maxsize=256)
def _space(shape: tuple[int, ...]) -> h5s.SpaceID:
    return h5s.create_simple(shape) if shape else h5s.create(h5s.SCALAR)


_CHUNK_BYTES = 4 * 2**20
"""Copying this much holds the interpreter's lock for a millisecond, so heartbeats go on."""


class ShareImage:
    """The share of one worker; lays out the shards that it has to do with, once."""

    def __init__(self, image_map: ImageMap, share: Share, run_id: str) -> None:
        """Lay the shards out, which takes about 0.2 ms a tensor.

        Raises ``StateUnsupported`` if HDF5 cannot express the layout.
        """
        self._map = image_map
        self._share = share
        self._images = {
            shard: lay_out_shard(image_map.layout, shard, run_id) for shard in share.shards
        }

    def spans(self) -> Iterator[tuple[int, int]]:
        """Yield where the bytes lie in the memory that a copy writes: start and length."""
        for shard in self._share.framed:
            if self._images[shard].size:
                yield self._map.bases[shard], 1  # HDF5 begins with its metadata
        for stretch in self._share.stretches:
            offset = self._images[stretch.shard].offsets[stretch.piece]
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
            image = self._images[found.shard]
            contents = image.piece_bytes(state, found.piece)[found.start : found.stop]
            _put(rooms[found.shard], image.offsets[found.piece] + found.start, contents)

    def describe(self, memory: memoryview, state: Tensors, header: Header) -> None:
        """Write the records of the share; ``state`` is the one that was copied."""
        for shard in self._share.framed:
            image = self._images[shard]
            found = image.size, image.frame_digest(header)
            self._map.put(memory, (shard, 0), found, header)
        for shard, piece in self._share.digested:
            image = self._images[shard]
            found = image.offsets[piece], digest_of(image.piece_bytes(state, piece))
            self._map.put(memory, (shard, 1 + piece), found, header)


def _put(buffer: memoryview, position: int, data: memoryview) -> None:
    """Write ``data`` at ``position``."""
    for start in range(0, len(data), _CHUNK_BYTES):
        chunk = data[start : start + _CHUNK_BYTES]
        begin = position + start
        buffer[begin : begin + len(chunk)] = chunk
