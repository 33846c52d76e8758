"""The record that makes a checkpoint whole: its tensors, their places, and all digests.

A manifest is a line of JSON.  Below it stand its sha256 and, with a key, its signature
(`seal`).  It is written last; a checkpoint without a manifest does not exist.

Invariant of a decoded manifest: the pieces of every tensor tile it exactly.  No two
pieces of a shard overlap, and every piece lies inside its shard.  So a reader that
trusts a manifest leaves no element unset, and never allocates more than the shards hold.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from holdfast.checkpoint.errors import (
    CheckpointInvalid,
    CommitRefused,
    ManifestInvalid,
    StateUnsupported,
)
from holdfast.checkpoint.format.entries import PieceEntry, Placed, ShardEntry, TensorEntry
from holdfast.checkpoint.format.fields import Fields
from holdfast.checkpoint.format.layout import ShardLayout, TensorSpec
from holdfast.checkpoint.format.record import Header, ShardRecord
from holdfast.checkpoint.format.signature import Signature, SigningKey, Unsealed, seal, unseal
from holdfast.checkpoint.format.version import FORMAT, Version

GIVES_WAY = "gives way"
"""A field of the cursor: true in a checkpoint whose place another save of its step takes."""

LARGEST_MANIFEST_BYTES = 64 * 2**20
"""Room for 200,000 tensors; parsed JSON takes up to twenty times the memory of its text."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """The contents of a checkpoint.

    ``cursor`` is the caller's JSON object of the position in the sample order.  ``numerics``
    is the caller's JSON object of the settings that decide the bits of a step.
    ``signature`` and ``signed_by``, the key's id, are set in a manifest that was read.
    """

    run_id: str
    generation: int
    step: int
    cursor: Mapping[str, object]
    numerics: Mapping[str, object]
    shards: tuple[ShardEntry, ...]
    tensors: tuple[TensorEntry, ...]
    version: Version = Version.PLAIN
    signature: Signature = Signature.NONE
    signed_by: str | None = None

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

    def encode(self, key: SigningKey | None = None) -> bytes:
        """Return the manifest as the bytes of its file, signed if there is a key.

        Raises ``CommitRefused`` if ``cursor`` or ``numerics`` is not JSON, or if the bytes
        exceed ``LARGEST_MANIFEST_BYTES``.  Raises it as well if the digests do not suit the
        key, or if the signature was not checked: a key signs only verified manifests.
        """
        if self.signature is Signature.NOT_CHECKED or self.version is not Version.with_key(key):
            raise CommitRefused(
                f"step {self.step}, digests {self.version.digest.value}, signature "
                f"{self.signature.value}, is not written {'without' if key is None else 'with'} "
                "a key; give the key file of the run, if it has one"
            )
        document = {
            "format": FORMAT,
            "version": self.version,
            "digest": self.version.digest,
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
        data = seal(text.encode() + b"\n", key)
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
    def decode(data: bytes, key: SigningKey | None = None) -> Manifest:
        """Return the manifest that ``encode`` wrote, signed with ``key`` if there is one.

        Raises ``ManifestInvalid`` with a reason.
        """
        try:
            return _decode(unseal(data, key))
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
            shards=tuple(ShardEntry(r.index, r.size, r.digest) for r in ordered),
            tensors=_tensors_of(layout, ordered),
            version=Version.of_digests(record.kind for record in ordered),
        )
        try:
            check(manifest)
        except ManifestInvalid as error:
            raise CommitRefused(f"step {header.step} is not whole: {error}") from error
        return manifest


def check(manifest: Manifest) -> None:
    """Raise ``ManifestInvalid`` if pieces do not tile their tensor, or overlap in their shard."""
    names = [spec.name for spec in manifest.specs]
    if names != sorted(set(names)):
        raise ManifestInvalid("tensor names do not ascend")
    if [shard.index for shard in manifest.shards] != list(range(manifest.writers)):
        raise ManifestInvalid("shards are not numbered from 0")
    for tensor in manifest.tensors:
        tensor.check_tiling(manifest.writers)
    for shard, pieces in zip(manifest.shards, pieces_by_shard(manifest), strict=True):
        shard.check_apart(pieces)


def pieces_by_shard(manifest: Manifest) -> list[list[Placed]]:
    """Return the pieces of each shard, in the order of offsets."""
    found: list[list[Placed]] = [[] for _ in manifest.shards]
    for tensor in manifest.tensors:
        for piece in tensor.pieces:
            found[piece.shard].append((tensor, piece))
    return [sorted(pieces, key=lambda pair: pair[1].offset) for pieces in found]


def _tensors_of(layout: ShardLayout, records: Sequence[ShardRecord]) -> tuple[TensorEntry, ...]:
    found: dict[str, list[PieceEntry]] = {spec.name: [] for spec in layout.specs}
    for record in records:
        for p in record.pieces:
            entry = PieceEntry(record.index, p.offset, p.bytes, p.start, p.stop, p.digest)
            if p.tensor not in found:
                raise CommitRefused(f"shard {record.index} has a tensor too many: {p.tensor!r}")
            found[p.tensor].append(entry)
    return tuple(TensorEntry(spec, tuple(found[spec.name])) for spec in layout.specs)


def _decode(unsealed: Unsealed) -> Manifest:
    fields = Fields(json.loads(unsealed.body), "the manifest")
    version = Version.decode(fields, is_signed=unsealed.signed_by is not None)
    manifest = Manifest(
        run_id=fields.text("run_id"),
        generation=fields.integer("generation"),
        step=fields.integer("step"),
        cursor=fields.mapping("cursor"),
        numerics=fields.mapping("numerics"),
        shards=tuple(ShardEntry.of(shard, version.digest) for shard in fields.array("shards")),
        tensors=tuple(TensorEntry.of(value, version.digest) for value in fields.array("tensors")),
        version=version,
        signature=unsealed.signature,
        signed_by=unsealed.signed_by,
    )
    if fields.integer("writers") != manifest.writers:
        raise ValueError("writers is not the number of shards")
    check(manifest)
    return manifest
