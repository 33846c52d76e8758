"""The report of a writer about the shard that it has made durable.

The fields of a JSON object, each checked for the type that its reader asks for.
"""

from __future__ import annotations

import json
import string
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from holdfast.checkpoint.digest import Digest, DigestKind, digest_of
from holdfast.checkpoint.errors import SnapshotDamaged

LARGEST_INTEGER = 2**63 - 1
_HEXADECIMAL = frozenset(string.digits + "abcdef")


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

    def text(self, name: str) -> str:
        """Return a string."""
        value = self._value(name)
        if not isinstance(value, str):
            raise ValueError(f"{name} of {self._what} is not a string")
        return value

    def hexadecimal(self, name: str, *, digits: int) -> str:
        """Return a string of exactly ``digits`` lower-case hexadecimal digits."""
        value = self.text(name)
        if len(value) != digits or not _HEXADECIMAL.issuperset(value):
            raise ValueError(f"{name} of {self._what} is not {digits} hexadecimal digits")
        return value

    def mapping(self, name: str) -> Mapping[str, object]:
        """Return an object."""
        value = self._value(name)
        if not isinstance(value, dict):
            raise ValueError(f"{name} of {self._what} is not an object")
        return cast("Mapping[str, object]", value)

    def array(self, name: str) -> list[object]:
        """Return an array."""
        value = self._value(name)
        if not isinstance(value, list):
            raise ValueError(f"{name} of {self._what} is not an array")
        return value

    def _value(self, name: str) -> object:
        if name not in self._fields:
            raise ValueError(f"{self._what} has no {name}")
        return self._fields[name]


@dataclass(frozen=True, slots=True)
class Header:
    """The fields that all shards of one save share; they are written into each shard."""

    run_id: str
    generation: int
    step: int


@dataclass(frozen=True, slots=True)
class PieceRecord:
    """Where elements ``start`` to ``stop`` of a tensor lie in a shard, and their digest.

    The digest is of the array in memory, so it exposes a writer that spoils the file.
    """

    tensor: str
    start: int
    stop: int
    offset: int
    bytes: int
    digest: str


@dataclass(frozen=True, slots=True)
class ShardRecord:
    """A durable shard: number of its writer, bytes, digest outside its pieces, its pieces."""

    index: int
    size: int
    digest: str
    pieces: tuple[PieceRecord, ...]
    kind: DigestKind = DigestKind.XXH3_128
    """The kind of all digests of the shard."""

    def check(self, image: memoryview) -> None:
        """Raise ``SnapshotDamaged`` unless ``image``, a shard in memory, is what was recorded."""
        outside = Digest(self.kind)
        position = 0
        for piece in sorted(self.pieces, key=lambda piece: piece.offset):
            stop = piece.offset + piece.bytes
            outside.update(image[position : piece.offset])
            if digest_of(image[piece.offset : stop], self.kind) != piece.digest:
                raise SnapshotDamaged(
                    f"elements {piece.start} to {piece.stop} of tensor {piece.tensor!r} have "
                    "changed in the memory of the snapshot; look at the machine's memory"
                )
            position = stop
        outside.update(image[position : self.size])
        if len(image) != self.size or outside.hexdigest() != self.digest:
            raise SnapshotDamaged(
                f"shard {self.index} has changed outside its data in the memory of the snapshot; "
                "look at the machine's memory"
            )

    def encode(self) -> bytes:
        """Return the record as bytes, to send it to the process that commits."""
        return json.dumps(self.as_json(), separators=(",", ":")).encode()

    @staticmethod
    def decode(data: bytes) -> ShardRecord:
        """Return the record that ``encode`` made; raises ``ValueError`` for anything else."""
        return ShardRecord.from_json(json.loads(data))

    def as_json(self) -> dict[str, object]:
        """Return the record as a JSON object."""
        return {
            "index": self.index,
            "size": self.size,
            "digest": self.digest,
            "pieces": [_piece_json(piece) for piece in self.pieces],
            "kind": self.kind,
        }

    @staticmethod
    def from_json(value: object) -> ShardRecord:
        """Return the record that ``as_json`` made; raises ``ValueError`` for anything else."""
        fields = Fields(value, "a shard record")
        kind = DigestKind(fields.text("kind"))
        return ShardRecord(
            index=fields.integer("index"),
            size=fields.integer("size"),
            digest=fields.hexadecimal("digest", digits=kind.length),
            pieces=tuple(_piece(piece, kind) for piece in fields.array("pieces")),
            kind=kind,
        )


def _piece_json(piece: PieceRecord) -> dict[str, object]:
    # By hand, because a step waits for it: ``dataclasses.asdict`` takes thirty times as long.
    return {
        "tensor": piece.tensor,
        "start": piece.start,
        "stop": piece.stop,
        "offset": piece.offset,
        "bytes": piece.bytes,
        "digest": piece.digest,
    }


def _piece(value: object, kind: DigestKind) -> PieceRecord:
    fields = Fields(value, "a piece record")
    return PieceRecord(
        tensor=fields.text("tensor"),
        start=fields.integer("start"),
        stop=fields.integer("stop"),
        offset=fields.integer("offset"),
        bytes=fields.integer("bytes"),
        digest=fields.hexadecimal("digest", digits=kind.length),
    )
