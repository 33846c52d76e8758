"""The entries of a manifest: a shard, a tensor, and the pieces of a tensor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from holdfast.checkpoint.errors import ManifestInvalid
from holdfast.checkpoint.format.digest import DigestKind
from holdfast.checkpoint.format.fields import Fields
from holdfast.checkpoint.format.layout import TensorSpec, refuse_unsupported


@dataclass(frozen=True, slots=True)
class PieceEntry:
    """Elements ``start`` to ``stop`` of a tensor: ``bytes`` bytes at ``offset`` of a shard."""

    shard: int
    offset: int
    bytes: int
    start: int
    stop: int
    digest: str

    def as_json(self) -> dict[str, object]:
        """Return the entry as a JSON object."""
        return {
            "shard": self.shard,
            "offset": self.offset,
            "bytes": self.bytes,
            "start": self.start,
            "stop": self.stop,
            "digest": self.digest,
        }

    @staticmethod
    def of(value: object, kind: DigestKind) -> PieceEntry:
        """Return the entry that ``as_json`` made; raises ``ValueError`` for anything else."""
        fields = Fields(value, "a piece")
        return PieceEntry(
            shard=fields.integer("shard"),
            offset=fields.integer("offset"),
            bytes=fields.integer("bytes"),
            start=fields.integer("start"),
            stop=fields.integer("stop"),
            digest=fields.hexadecimal("digest", digits=kind.length),
        )


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
            "pieces": [piece.as_json() for piece in self.pieces],
        }

    @staticmethod
    def of(value: object, kind: DigestKind) -> TensorEntry:
        """Return the entry that ``as_json`` made.

        Raises ``ValueError`` for anything else, ``StateUnsupported`` for a dtype or a
        shape that no state has.
        """
        fields = Fields(value, "a tensor")
        shape = tuple(Fields({"size": n}, "a shape").integer("size") for n in fields.array("shape"))
        spec = TensorSpec(fields.text("name"), fields.text("dtype"), shape)
        refuse_unsupported(spec)
        return TensorEntry(
            spec, tuple(PieceEntry.of(piece, kind) for piece in fields.array("pieces"))
        )

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


Placed: TypeAlias = "tuple[TensorEntry, PieceEntry]"
"""A piece and the tensor that it belongs to."""


@dataclass(frozen=True, slots=True)
class ShardEntry:
    """A shard's file: its size, and the digest of all bytes outside its pieces, in order."""

    index: int
    size: int
    digest: str

    def as_json(self) -> dict[str, object]:
        """Return the entry as a JSON object."""
        return {"index": self.index, "size": self.size, "digest": self.digest}

    @staticmethod
    def of(value: object, kind: DigestKind) -> ShardEntry:
        """Return the entry that ``as_json`` made; raises ``ValueError`` for anything else."""
        fields = Fields(value, "a shard")
        digest = fields.hexadecimal("digest", digits=kind.length)
        return ShardEntry(fields.integer("index"), fields.integer("size"), digest)

    def check_apart(self, pieces: Sequence[Placed]) -> None:
        """Raise ``ManifestInvalid`` if any ``pieces``, sorted by offset, overlap in the shard."""
        position = 0
        for tensor, piece in pieces:
            if piece.offset < position:
                raise ManifestInvalid(f"a piece of {tensor.spec.name!r} overlaps another")
            position = piece.offset + piece.bytes
        if position > self.size:
            raise ManifestInvalid(f"shard {self.index} is smaller than its pieces")
