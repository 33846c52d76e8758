"""The record that makes a checkpoint whole: its tensors, their places, and all digests.

A manifest is a line of JSON.  Below it stands its sha256.  It is written last; a checkpoint
without a manifest does not exist.

Invariant of a decoded manifest: the pieces of every tensor tile it exactly.  No two
pieces of a shard overlap, and every piece lies inside its shard.  So a reader that
trusts a manifest leaves no element unset, and never allocates more than the shards hold.

Training measures only at the end of each epoch, so most checkpoints were never measured.
Their manifests hold the metrics of the last epoch before them, and the step at which it
ended.  The metrics describe a checkpoint only if it is of that very step.

A writer reports its durable shard by a `ShardRecord`.  Those of all writers make the manifest.
"""

from __future__ import annotations

import hashlib
import json
import math
import string
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias, TypeVar, cast

from holdfast.checkpoint.errors import (
    CheckpointInvalid,
    CommitRefused,
    ManifestInvalid,
    SnapshotDamaged,
    StateUnsupported,
)
from holdfast.checkpoint.names import LARGEST_MANIFEST_BYTES
from holdfast.checkpoint.tensor import (
    DIGEST_DIGITS,
    DIGEST_NAME,
    Digest,
    Piece,
    ShardLayout,
    TensorSpec,
    digest_of,
    refuse_unsupported,
)


@dataclass(frozen=True, slots=True)
class Header:
    """The fields that all shards of one save share; they are written into each shard."""

    run_id: str
    generation: int
    step: int


class PieceEntry(NamedTuple):
    """Elements ``start`` to ``stop`` of a tensor: ``bytes`` bytes at ``offset`` of a shard.

    The digest is of the array in memory, so it exposes a writer that spoils the file.
    """

    shard: int
    offset: int
    bytes: int
    start: int
    stop: int
    digest: str


Placed: TypeAlias = "tuple[TensorSpec, PieceEntry]"
"""A piece and the tensor that it belongs to."""


def entry_of(piece: Piece, shard: int, offset: int, digest: str) -> Placed:
    """Return the entry of a piece that lies at ``offset`` of a shard, with its tensor."""
    entry = PieceEntry(shard, offset, piece.nbytes, piece.start, piece.stop, digest)
    return piece.spec, entry


@dataclass(frozen=True, slots=True)
class ShardRecord:
    """A shard: number of its writer, bytes, digest outside its pieces, and these by offset."""

    index: int
    size: int
    digest: str
    pieces: tuple[Placed, ...]

    def as_json(self) -> dict[str, object]:
        """Return the shard as a JSON object, without its pieces."""
        return {"index": self.index, "size": self.size, "digest": self.digest}

    def check_apart(self) -> None:
        """Raise ``ManifestInvalid`` if any pieces overlap in the shard."""
        position = 0
        for spec, piece in self.pieces:
            if piece.offset < position:
                raise ManifestInvalid(f"a piece of {spec.name!r} overlaps another")
            position = piece.offset + piece.bytes
        if position > self.size:
            raise ManifestInvalid(f"shard {self.index} is smaller than its pieces")

    def check(self, image: memoryview) -> None:
        """Raise ``SnapshotDamaged`` unless ``image``, a shard in memory, is what was recorded."""
        outside = Digest()
        position = 0
        for spec, piece in self.pieces:
            stop = piece.offset + piece.bytes
            outside.update(image[position : piece.offset])
            if digest_of(image[piece.offset : stop]) != piece.digest:
                raise SnapshotDamaged(
                    f"elements {piece.start} to {piece.stop} of tensor {spec.name!r} have "
                    "changed in the memory of the snapshot; look at the machine's memory"
                )
            position = stop
        outside.update(image[position : self.size])
        if len(image) != self.size or outside.hexdigest() != self.digest:
            raise SnapshotDamaged(
                f"shard {self.index} has changed outside its data in the memory of the snapshot; "
                "look at the machine's memory"
            )


FORMAT = "holdfast-checkpoint"
VERSION = 1
LARGEST_INTEGER = 2**63 - 1
_HEXADECIMAL = frozenset(string.digits + "abcdef")

_VALIDATION_PREFIX = "val_"
_EPOCH_FIELD = "epoch"

GIVES_WAY = "gives way"
"""A field of the cursor: true in a checkpoint whose place another save of its step takes."""


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """A tensor and its pieces, in the order of elements; an empty tensor has none."""

    spec: TensorSpec
    pieces: tuple[PieceEntry, ...]

    def as_json(self) -> dict[str, object]:
        """Return the entry as a JSON object."""
        return {
            "name": self.spec.name,
            "dtype": self.spec.dtype,
            "shape": list(self.spec.shape),
            "pieces": [piece._asdict() for piece in self.pieces],
        }

    @staticmethod
    def of(value: object) -> TensorEntry:
        """Return the entry that ``as_json`` made.

        Raises ``ValueError`` for anything else, ``StateUnsupported`` for a dtype or a
        shape that no state has.
        """
        fields = Fields(value, "a tensor")
        shape = tuple(
            Fields({"size": n}, "a shape").integer("size") for n in fields.get(list, "shape")
        )
        spec = TensorSpec(fields.get(str, "name"), fields.get(str, "dtype"), shape)
        refuse_unsupported(spec)
        return TensorEntry(spec, tuple(map(_piece_of, fields.get(list, "pieces"))))

    def check_tiling(self, writers: int) -> None:
        """Raise ``ManifestInvalid`` unless the pieces tile the tensor and lie in shards."""
        spec = self.spec
        position = 0
        for piece in self.pieces:
            if piece.start != position or piece.stop <= piece.start:
                raise ManifestInvalid(f"pieces of tensor {spec.name!r} do not tile it")
            if piece.shard >= writers:
                raise ManifestInvalid(f"a piece of tensor {spec.name!r} is in no shard")
            if piece.bytes != (piece.stop - piece.start) * spec.itemsize:
                raise ManifestInvalid(f"a piece of tensor {spec.name!r} has a wrong size")
            position = piece.stop
        if position != spec.size:
            raise ManifestInvalid(f"tensor {spec.name!r} has {position} of {spec.size} elements")


def _piece_of(value: object) -> PieceEntry:
    fields = Fields(value, "a piece")
    numbers = {name: fields.integer(name) for name in PieceEntry._fields if name != "digest"}
    return PieceEntry(**numbers, digest=fields.digest())


def _shard_of(value: object, pieces: Iterable[Placed]) -> ShardRecord:
    """Return the shard that ``as_json`` made; raises ``ValueError`` for anything else."""
    fields = Fields(value, "a shard")
    digest = fields.digest()
    ordered = tuple(sorted(pieces, key=lambda placed: placed[1].offset))
    return ShardRecord(fields.integer("index"), fields.integer("size"), digest, ordered)


_Kind = TypeVar("_Kind")
_KINDS: dict[type, str] = {str: "a string", dict: "an object", list: "an array"}


class Fields:
    """Typed access to a JSON object; every mismatch is a ``ValueError`` that names the field."""

    def __init__(self, value: object, what: str) -> None:
        if not isinstance(value, dict):
            raise ValueError(f"{what} is not an object")
        self._fields = cast("Mapping[str, object]", value)
        self._what = what

    def integer(self, name: str) -> int:
        """Return an integer from 0 to 2**63 - 1."""
        value = self._value(name)
        if not isinstance(value, int) or isinstance(value, bool):
            raise ValueError(f"{name} of {self._what} is not an integer")
        if not 0 <= value <= LARGEST_INTEGER:
            raise ValueError(f"{name} of {self._what} is out of range: {value}")
        return value

    def digest(self) -> str:
        """Return the field ``digest``: exactly its lower-case hexadecimal digits."""
        value = self.get(str, "digest")
        if len(value) != DIGEST_DIGITS or not _HEXADECIMAL.issuperset(value):
            raise ValueError(f"digest of {self._what} is not {DIGEST_DIGITS} hexadecimal digits")
        return value

    def get(self, kind: type[_Kind], name: str) -> _Kind:
        """Return a string, an object or an array."""
        value = self._value(name)
        if not isinstance(value, kind):
            raise ValueError(f"{name} of {self._what} is not {_KINDS[kind]}")
        return value

    def _value(self, name: str) -> object:
        if name not in self._fields:
            raise ValueError(f"{self._what} has no {name}")
        return self._fields[name]


@dataclass(frozen=True, slots=True)
class Manifest:
    """The contents of a checkpoint.

    ``cursor`` is the caller's JSON object of the position in the sample order.  ``numerics``
    is the caller's JSON object of the settings that decide the bits of a step.
    """

    run_id: str
    generation: int
    step: int
    cursor: Mapping[str, object]
    numerics: Mapping[str, object]
    shards: tuple[ShardRecord, ...]
    tensors: tuple[TensorEntry, ...]

    @property
    def writers(self) -> int:
        """Number of writers that stored a shard each."""
        return len(self.shards)

    @property
    def specs(self) -> tuple[TensorSpec, ...]:
        """The specs of the tensors, in the order of names."""
        return tuple(tensor.spec for tensor in self.tensors)

    @property
    def nbytes(self) -> int:
        """Bytes of all shards."""
        return sum(shard.size for shard in self.shards)

    @property
    def gives_way(self) -> bool:
        """Whether another save of its step takes its place."""
        return self.cursor.get(GIVES_WAY) is True

    def encode(self) -> bytes:
        """Return the manifest as the bytes of its file.

        Raises ``CommitRefused`` if ``cursor`` or ``numerics`` is not JSON, or if the bytes
        exceed ``LARGEST_MANIFEST_BYTES``.
        """
        document = {
            "format": FORMAT,
            "version": VERSION,
            "digest": DIGEST_NAME,
            "run_id": self.run_id,
            "generation": self.generation,
            "step": self.step,
            "writers": self.writers,
            "cursor": self.cursor,
            "numerics": self.numerics,
            "shards": [shard.as_json() for shard in self.shards],
            "tensors": [tensor.as_json() for tensor in self.tensors],
        }
        try:
            text = json.dumps(document, allow_nan=False, separators=(",", ":"))
        except (TypeError, ValueError, RecursionError) as error:
            raise CommitRefused(
                f"the manifest of step {self.step} is not JSON: {error}; "
                "put only JSON values into cursor and numerics"
            ) from error
        body = text.encode() + b"\n"
        data = body + _checksum(body)
        if len(data) > LARGEST_MANIFEST_BYTES:
            raise CommitRefused(
                f"the manifest of step {self.step} has {len(data)} bytes, at most "
                f"{LARGEST_MANIFEST_BYTES} can be read back; save fewer tensors or a smaller cursor"
            )
        return data

    def refuse_other_run(self, run_id: str | None) -> None:
        """Raise ``CheckpointInvalid`` if the step belongs to another run than ``run_id``."""
        if run_id is not None and self.run_id != run_id:
            reason = f"it belongs to run {self.run_id}, not to {run_id}"
            raise CheckpointInvalid(self.step, reason, is_other_runs=True)

    @staticmethod
    def decode(data: bytes) -> Manifest:
        """Return the manifest that ``encode`` wrote.

        Raises ``ManifestInvalid`` with a reason.
        """
        try:
            return _decode(data)
        except (ValueError, RecursionError, StateUnsupported) as error:
            raise ManifestInvalid(f"the manifest is not valid: {error}") from error

    @staticmethod
    def assemble(
        layout: ShardLayout,
        records: Sequence[ShardRecord],
        *,
        header: Header,
        cursor: Mapping[str, object],
        numerics: Mapping[str, object],
    ) -> Manifest:
        """Return the manifest of a save from the records of all its writers, in any order.

        Raises ``CommitRefused`` if the records do not make the layout whole.
        """
        ordered = sorted(records, key=lambda record: record.index)
        if [record.index for record in ordered] != list(range(layout.writers)):
            raise CommitRefused(
                f"step {header.step} needs shards 0 to {layout.writers - 1}, got "
                f"{[record.index for record in ordered]}; save the missing shards again"
            )
        manifest = Manifest(
            run_id=header.run_id,
            generation=header.generation,
            step=header.step,
            cursor=cursor,
            numerics=numerics,
            shards=tuple(ordered),
            tensors=_tensors_of(layout, ordered),
        )
        try:
            _check(manifest)
        except ManifestInvalid as error:
            raise CommitRefused(f"step {header.step} is not whole: {error}") from error
        return manifest


def _check(manifest: Manifest) -> None:
    """Raise ``ManifestInvalid`` if pieces do not tile their tensor, or overlap in their shard."""
    names = [spec.name for spec in manifest.specs]
    if names != sorted(set(names)):
        raise ManifestInvalid("tensor names do not ascend")
    if [shard.index for shard in manifest.shards] != list(range(manifest.writers)):
        raise ManifestInvalid("shards are not numbered from 0")
    for tensor in manifest.tensors:
        tensor.check_tiling(manifest.writers)
    for shard in manifest.shards:
        shard.check_apart()


def _tensors_of(layout: ShardLayout, records: Sequence[ShardRecord]) -> tuple[TensorEntry, ...]:
    found: dict[str, list[PieceEntry]] = {spec.name: [] for spec in layout.specs}
    for record in records:
        for spec, piece in record.pieces:
            if spec.name not in found:
                raise CommitRefused(f"shard {record.index} has a tensor too many: {spec.name!r}")
            found[spec.name].append(piece)
    return tuple(TensorEntry(spec, tuple(found[spec.name])) for spec in layout.specs)


def _checksum(body: bytes) -> bytes:
    return hashlib.sha256(body).hexdigest().encode() + b"\n"


def _decode(data: bytes) -> Manifest:
    end = data.find(b"\n") + 1
    body, checksum = data[:end], _checksum(data[:end])
    if not data[end:].startswith(checksum):
        raise ValueError("its sha256 does not match: it is damaged or cut short")
    fields = Fields(json.loads(body), "the manifest")
    found = fields.get(str, "format"), fields.integer("version"), fields.get(str, "digest")
    if found != (FORMAT, VERSION, DIGEST_NAME):
        described = "format {!r}, version {} and digest {!r}".format
        raise ValueError(
            f"it has {described(*found)}; this version of holdfast reads "
            f"{described(FORMAT, VERSION, DIGEST_NAME)}"
        )
    if data[end:] != checksum:
        raise ValueError("it has bytes after its sha256: it is damaged")
    tensors = tuple(TensorEntry.of(value) for value in fields.get(list, "tensors"))
    shards = fields.get(list, "shards")
    placed: list[list[Placed]] = [[] for _ in shards]
    for tensor in tensors:
        for piece in tensor.pieces:
            if piece.shard < len(placed):
                placed[piece.shard].append((tensor.spec, piece))
    manifest = Manifest(
        run_id=fields.get(str, "run_id"),
        generation=fields.integer("generation"),
        step=fields.integer("step"),
        cursor=fields.get(dict, "cursor"),
        numerics=fields.get(dict, "numerics"),
        shards=tuple(map(_shard_of, shards, placed)),
        tensors=tensors,
    )
    if fields.integer("writers") != manifest.writers:
        raise ValueError("writers is not the number of shards")
    _check(manifest)
    return manifest


@dataclass(frozen=True, slots=True)
class EpochMetrics:
    """The metrics of the epoch that ended at ``step``; those of validation begin with ``val_``."""

    epoch: int
    step: int
    values: Mapping[str, float]

    @staticmethod
    def join(
        epoch: int, step: int, training: Mapping[str, float], validation: Mapping[str, float]
    ) -> EpochMetrics:
        """Return both kinds of metrics of one epoch, each under a name of its own."""
        found = {f"{_VALIDATION_PREFIX}{name}": value for name, value in validation.items()}
        return EpochMetrics(epoch, step, {**training, **found})

    def into(self, cursor: Mapping[str, object]) -> dict[str, object]:
        """Return a manifest's cursor with these metrics in it; JSON has no infinity and no NaN."""
        finite = {name: value for name, value in self.values.items() if math.isfinite(value)}
        found = {"number": self.epoch, "step": self.step, "metrics": finite}
        return {**cursor, _EPOCH_FIELD: found}

    @staticmethod
    def of(cursor: Mapping[str, object]) -> EpochMetrics | None:
        """Return the metrics that a manifest's cursor holds, None if it holds none."""
        found = cursor.get(_EPOCH_FIELD)
        if not isinstance(found, Mapping) or not isinstance(found.get("metrics"), Mapping):
            return None
        number, step = found.get("number"), found.get("step")
        if not isinstance(number, int) or not isinstance(step, int):
            return None
        measured = {name: _finite(value) for name, value in found["metrics"].items()}
        values = {name: value for name, value in measured.items() if value is not None}
        return EpochMetrics(number, step, values)


def _finite(value: object) -> float | None:
    """Return a number as a finite float, None for anything else."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return None
    try:
        number = float(value)
    except OverflowError:  # JSON has integers of any length
        return None
    return number if math.isfinite(number) else None
