"""The only way to read bytes back from a checkpoint: digested first, interpreted after.

A scan reads every byte of every shard once, in the order of offsets.  Pieces go to the
caller's buffers, all other bytes to a scratch buffer, and every byte into a digest.
Invariant: a scan that returns has compared the manifest with its own sha256.  It has
compared the digests of every piece, and of all bytes between the pieces, with the
manifest.  So a single wrong bit anywhere makes it raise.

HDF5 never interprets anything here.  Sizes are compared before the caller allocates.

A scan also tells whether the first save of a step, which stays, has the state of a later
one.  A run that goes on from a checkpoint meets the same state again, so as a rule it does
not matter which save stays.  Other numerics, or a bug, break this.  Then the state on the
disk is not the one that was to be saved, and people must be told.

A comparison of two steps goes tensor by tensor.  If both cut a tensor alike, equal digests show
that it is the same.  Its contents are read only if the cuts or the digests differ, to count
elements and measure distances.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np

from holdfast.checkpoint.disk import Disk, ReadFile
from holdfast.checkpoint.errors import (
    CheckpointInvalid,
    CheckpointUnreadable,
    ManifestInvalid,
    StateUnsupported,
    StorageFailed,
)
from holdfast.checkpoint.manifest import (
    Manifest,
    PieceEntry,
    ShardRecord,
    TensorEntry,
)
from holdfast.checkpoint.names import LARGEST_MANIFEST_BYTES, MANIFEST_NAME, shard_name
from holdfast.checkpoint.tensor import Digest, Tensor, TensorSpec, empty_tensor, whole_bytes_of

Target: TypeAlias = "Callable[[TensorSpec, PieceEntry], memoryview | None]"

_CHUNK_BYTES = 256 * 1024
"""Small enough that the digest finds the bytes in the cache; 12 % faster than 1 MiB."""
# Errors that mean damage to a checkpoint; any other error may be gone at the next read.
_DAMAGE = frozenset({errno.ENOENT, errno.ELOOP, errno.EINVAL, errno.ENOTDIR, errno.EISDIR})

_MOST_NAMED = 3
_NONE: Mapping[int, memoryview] = {}


@dataclass(frozen=True, slots=True)
class _ImageFile:
    """The bytes of a file that are still in memory."""

    contents: memoryview

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill the whole ``buffer`` from ``offset``."""
        buffer[:] = self.contents[offset : offset + len(buffer)]


class Scan:
    """Reads one committed step; raises ``CheckpointInvalid`` for anything that does not verify."""

    def __init__(self, disk: Disk, directory: Path, step: int) -> None:
        self._disk = disk
        self._directory = directory
        self._step = step

    def manifest(self, *, is_from_disk: bool = False) -> Manifest:
        """Return the manifest, once its sha256 and the sizes of all shards are verified."""
        manifest = self.manifest_alone(is_from_disk=is_from_disk)
        for shard in manifest.shards:
            with self._reading(manifest, shard.index) as file:
                size = file.size()
            if size != shard.size:
                raise self._invalid(f"shard {shard.index} has {size} of {shard.size} bytes")
        return manifest

    def manifest_alone(self, *, is_from_disk: bool = False) -> Manifest:
        """Return the manifest, once its sha256 is verified; the shards may be damaged or gone."""
        try:
            content = self._manifest_bytes(is_from_disk=is_from_disk)
            manifest = Manifest.decode(content)
        except ManifestInvalid as error:
            raise self._invalid(str(error)) from error
        except StorageFailed as error:
            raise self._failed(error) from error
        except MemoryError as error:
            raise CheckpointUnreadable.for_memory(self._step, "its manifest") from error
        if manifest.step != self._step:
            raise self._invalid(f"its manifest is that of step {manifest.step}")
        return manifest

    def verify(self) -> Manifest:
        """Compare all digests with the bytes on the disk, not with a copy in the page cache.

        Returns the manifest, which comes from the disk as well.
        """
        manifest = self.manifest(is_from_disk=True)
        self.read_shards(
            manifest, range(manifest.writers), lambda _spec, _piece: None, is_from_disk=True
        )
        return manifest

    def read_shards(
        self,
        manifest: Manifest,
        shards: Iterable[int],
        target: Target,
        *,
        is_from_disk: bool = False,
        images: Mapping[int, memoryview] = _NONE,
    ) -> None:
        """Read each piece of some shards into the buffer that ``target`` returns.

        None in its place only verifies the piece.  The contents mean nothing if this raises.
        A shard whose file is among ``images`` is read there; one that does not verify is stale.
        """
        for index in shards:
            if index in images:
                with contextlib.suppress(CheckpointInvalid):
                    image = _ImageFile(images[index])
                    self._read_shard(image, manifest.shards[index], target)
                    continue
            with self._reading(manifest, index) as file:
                if is_from_disk:
                    file.uncache()
                self._read_shard(file, manifest.shards[index], target)

    def read_tensor(self, manifest: Manifest, tensor: TensorEntry, buffer: memoryview) -> None:
        """Read one tensor's bytes into ``buffer``, whose contents mean nothing if this raises."""
        for piece in tensor.pieces:
            begin = piece.start * tensor.spec.itemsize
            own = Digest()
            with self._reading(manifest, piece.shard) as file:
                read_span(file, buffer[begin : begin + piece.bytes], piece.offset, own)
            self._compare(tensor.spec, piece, own)

    def digest_of_elements(
        self, manifest: Manifest, tensor: TensorEntry, span: tuple[int, int]
    ) -> str:
        """Return the digest of the elements of a tensor from the first of ``span`` to the last."""
        itemsize, digest = tensor.spec.itemsize, Digest()
        for piece in tensor.pieces:
            start, stop = max(span[0], piece.start), min(span[1], piece.stop)
            begin = piece.offset + (start - piece.start) * itemsize
            if start < stop:
                with self._reading(manifest, piece.shard) as file:
                    digest_span(file, begin, begin + (stop - start) * itemsize, digest)
        return digest.hexdigest()

    def _read_shard(self, file: ReadFile | _ImageFile, shard: ShardRecord, target: Target) -> None:
        outside = Digest()
        position = 0
        for spec, piece in shard.pieces:
            digest_span(file, position, piece.offset, outside)
            own, buffer = Digest(), target(spec, piece)
            position = piece.offset + piece.bytes
            if buffer is None:
                digest_span(file, piece.offset, position, own)
            else:
                read_span(file, buffer, piece.offset, own)
            self._compare(spec, piece, own)
        digest_span(file, position, shard.size, outside)
        if outside.hexdigest() != shard.digest:
            raise self._invalid(f"shard {shard.index} has a wrong digest outside its data")

    def _compare(self, spec: TensorSpec, piece: PieceEntry, found: Digest) -> None:
        if found.hexdigest() != piece.digest:
            raise self._invalid(
                f"elements {piece.start} to {piece.stop} of tensor {spec.name!r} "
                f"in shard {piece.shard} have a wrong digest"
            )

    def _manifest_bytes(self, *, is_from_disk: bool) -> bytes:
        with self._disk.reading(self._directory / MANIFEST_NAME) as file:
            if is_from_disk:
                file.uncache()
            size = file.size()
            if size > LARGEST_MANIFEST_BYTES:
                raise ManifestInvalid(f"the manifest has {size} bytes")
            data = bytearray(size)
            file.read_into(memoryview(data), 0)
        return bytes(data)

    @contextlib.contextmanager
    def _reading(self, manifest: Manifest, index: int) -> Iterator[ReadFile]:
        """Open a shard; what fails while it is read is said of the step."""
        path = self._directory / shard_name(index, manifest.writers)
        try:
            with self._disk.reading(path) as file:
                yield file
        except StorageFailed as error:
            raise self._failed(error) from error
        except MemoryError as error:
            raise CheckpointUnreadable.for_memory(self._step, f"shard {index}") from error

    def _invalid(self, reason: str) -> CheckpointInvalid:
        return CheckpointInvalid(self._step, reason)

    def _failed(self, error: StorageFailed) -> CheckpointInvalid:
        if error.errno == errno.ENOENT and self._disk.is_listed(error.path):
            # Such a name comes back by itself, so it is as good as a stale handle.
            reason = f"{error.path} is listed, and yet not found (ESTALE)"
            return CheckpointUnreadable(self._step, reason, errno.ESTALE, error.path)
        if error.errno in _DAMAGE:
            return CheckpointInvalid(self._step, str(error))
        return CheckpointUnreadable.of(self._step, error)


def digest_span(file: ReadFile | _ImageFile, start: int, stop: int, digest: Digest) -> None:
    """Digest the bytes from ``start`` to ``stop`` of a file without keeping them."""
    scratch = memoryview(bytearray(min(stop - start, _CHUNK_BYTES)))
    for position in range(start, stop, _CHUNK_BYTES):
        read_span(file, scratch[: stop - position], position, digest)


def read_span(file: ReadFile | _ImageFile, buffer: memoryview, offset: int, digest: Digest) -> None:
    """Fill a buffer and digest it, chunk by chunk, while the bytes are in the cache."""
    for start in range(0, len(buffer), _CHUNK_BYTES):
        chunk = buffer[start : start + _CHUNK_BYTES]
        file.read_into(chunk, offset + start)
        digest.update(chunk)


def make_tensor(step: int, spec: TensorSpec) -> Tensor:
    """Return room for a tensor of a step; raises ``CheckpointInvalid`` if there can be none."""
    shown = f"tensor {describe_spec(spec)}"
    try:
        return empty_tensor(spec.dtype, spec.shape)
    except MemoryError as error:
        raise CheckpointUnreadable.for_memory(step, shown) from error
    except (StateUnsupported, ValueError) as error:
        raise CheckpointInvalid(step, f"{shown} cannot be made: {error}") from error


def describe_spec(spec: TensorSpec) -> str:
    """Return a tensor's name, dtype and shape as people read them."""
    return f"{spec.name!r} {spec.dtype}{list(spec.shape)}"


def tell_difference(scan: Scan, first: Manifest, later: Manifest) -> str | None:
    """Return one sentence on the tensors in which two saves of a step differ, None if in none.

    ``scan`` reads the first save.  Raises ``CheckpointInvalid`` if that cannot be read.
    """
    here = {tensor.spec.name: tensor for tensor in first.tensors}
    new = {tensor.spec.name: tensor for tensor in later.tensors}
    both, only_in_one = here.keys() & new.keys(), here.keys() ^ new.keys()
    changed = {n for n in both if not _is_same(scan, first, here[n], new[n])}
    names = sorted(changed | only_in_one)
    if not names:
        return None
    shown = ", ".join(map(repr, names[:_MOST_NAMED]))
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return (
        f"step {first.step} was saved before, by generation {first.generation}, and "
        f"generation {later.generation} has another state: {shown}{more}; the first save stays, "
        "so a restore gives its state; remove that step if it is not wanted"
    )


def _is_same(scan: Scan, first: Manifest, here: TensorEntry, new: TensorEntry) -> bool:
    """Return whether a later save has the same bytes of a tensor.

    The digests tell it if both are cut alike.  Another number of writers cuts otherwise:
    then the bytes are digested once more, as the later save is cut.
    """
    if here.spec != new.spec:
        return False
    if _cuts(here) == _cuts(new):
        return _digests(here) == _digests(new)
    return all(
        scan.digest_of_elements(first, here, (piece.start, piece.stop)) == piece.digest
        for piece in new.pieces
    )


def _cuts(tensor: TensorEntry) -> list[tuple[int, int]]:
    return [(piece.start, piece.stop) for piece in tensor.pieces]


def _digests(tensor: TensorEntry) -> list[str]:
    return [piece.digest for piece in tensor.pieces]


_CHUNK_ELEMENTS = 2**20


@dataclass(frozen=True, slots=True)
class Difference:
    """A tensor that is not the same in both steps; a side that lacks it is None.

    ``elements`` is the number of elements with other bytes.  ``largest`` is the largest
    distance of two floats, NaN if only one side has a NaN.  Both are None unless the specs
    agree; ``largest`` is None as well if the tensor has no floats.
    """

    left: TensorSpec | None
    right: TensorSpec | None
    elements: int | None = None
    largest: float | None = None

    @property
    def name(self) -> str:
        """The tensor's name."""
        spec = self.left or self.right
        assert spec is not None, "one side has it"
        return spec.name


@dataclass(frozen=True, slots=True)
class Comparison:
    """All differences of two steps, in the order of names, and how many tensors are the same."""

    differences: tuple[Difference, ...]
    same: int


def compare_steps(left: Scan, right: Scan) -> Comparison:
    """Return the tensors that are missing, extra or changed in ``right``.

    Raises ``CheckpointInvalid`` if a manifest, or contents that must be read, do not verify.
    """
    first, second = left.manifest(), right.manifest()
    lefts = {tensor.spec.name: tensor for tensor in first.tensors}
    rights = {tensor.spec.name: tensor for tensor in second.tensors}
    found = []
    for name in sorted(lefts.keys() | rights.keys()):
        one, other = lefts.get(name), rights.get(name)
        if one is None or other is None or one.spec != other.spec:
            old, new = (None if tensor is None else tensor.spec for tensor in (one, other))
            found.append(Difference(old, new))
        elif (_cuts(one), _digests(one)) != (_cuts(other), _digests(other)):
            difference = _difference(_read(left, first, one), _read(right, second, other), one.spec)
            found += [difference] if difference.elements else []
    return Comparison(tuple(found), len(lefts.keys() | rights.keys()) - len(found))


def _read(scan: Scan, manifest: Manifest, tensor: TensorEntry) -> Tensor:
    array = make_tensor(manifest.step, tensor.spec).reshape(-1)
    scan.read_tensor(manifest, tensor, whole_bytes_of(array))
    return array


def _difference(left: Tensor, right: Tensor, spec: TensorSpec) -> Difference:
    """Compare two flat arrays, a chunk at a time."""
    elements, largest = 0, 0.0
    is_float = "float" in spec.dtype
    for start in range(0, spec.size, _CHUNK_ELEMENTS):
        one, other = (a[start : start + _CHUNK_ELEMENTS] for a in (left, right))
        elements += int(np.count_nonzero(_rows(one) != _rows(other)))
        if is_float:
            largest = float(np.maximum(largest, _largest(one, other)))
    return Difference(spec, spec, elements, largest if is_float else None)


def _rows(flat: Tensor) -> Tensor:
    """Return an array's elements as unsigned integers, which compare by bytes."""
    return flat.view(f"u{flat.dtype.itemsize}")


def _largest(left: Tensor, right: Tensor) -> float:
    """Return the largest distance; equal infinities, and a NaN on both sides, count as 0."""
    one, other = left.astype(np.float64), right.astype(np.float64)
    same = (one == other) | (np.isnan(one) & np.isnan(other))
    with np.errstate(invalid="ignore", over="ignore"):
        return float(np.max(np.where(same, 0.0, np.abs(one - other)), initial=0.0))
