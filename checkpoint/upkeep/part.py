"""The parts of a shard: the smallest things that have a digest of their own.

A part is a piece of a tensor, or all bytes of a shard that lie in no piece.
Invariant: the spans of a shard's parts cover each byte of the shard once.  So a shard can
be put together from parts of different holders.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.checkpoint.disk.disk import ReadFile
from holdfast.checkpoint.format.digest import Digest, DigestKind
from holdfast.checkpoint.format.entries import PieceEntry, Placed, ShardEntry
from holdfast.checkpoint.format.manifest import Manifest, pieces_by_shard
from holdfast.checkpoint.store.scan import digest_span, read_span


@dataclass(frozen=True, slots=True)
class Part:
    """One part: its shard, a name for people, its bytes as ``(start, stop)``, its digest."""

    shard: int
    name: str
    spans: tuple[tuple[int, int], ...]
    digest: str
    kind: DigestKind

    def __str__(self) -> str:
        return f"{self.name} in shard {self.shard}"

    @property
    def nbytes(self) -> int:
        """Bytes of the part."""
        return sum(stop - start for start, stop in self.spans)

    @property
    def stop(self) -> int:
        """Bytes that a shard must have to hold the part."""
        return max((stop for _, stop in self.spans), default=0)


def parts_of(manifest: Manifest) -> tuple[tuple[Part, ...], ...]:
    """Return the parts of each shard; the bytes outside its pieces come first."""
    pairs = zip(manifest.shards, pieces_by_shard(manifest), strict=True)
    kind = manifest.version.digest
    return tuple(
        (_outside(shard, pieces, kind), *(_inside(placed, kind) for placed in pieces))
        for shard, pieces in pairs
    )


def read_part(file: ReadFile, part: Part, image: memoryview | None = None) -> bool:
    """Read a part, into its place in ``image`` if given; return whether it verifies."""
    digest = Digest(part.kind)
    for start, stop in part.spans:
        if image is None:
            digest_span(file, start, stop, digest)
        else:
            read_span(file, image[start:stop], start, digest)
    return digest.hexdigest() == part.digest


def _inside(placed: Placed, kind: DigestKind) -> Part:
    tensor, piece = placed
    name = f"elements {piece.start} to {piece.stop} of tensor {tensor.spec.name!r}"
    return Part(piece.shard, name, (_span(piece),), piece.digest, kind)


def _outside(shard: ShardEntry, pieces: Sequence[Placed], kind: DigestKind) -> Part:
    edges = [(0, 0), *(_span(piece) for _, piece in pieces), (shard.size, shard.size)]
    gaps = [(left[1], right[0]) for left, right in itertools.pairwise(edges)]
    spans = tuple((start, stop) for start, stop in gaps if start < stop)
    return Part(shard.index, "everything outside the tensors", spans, shard.digest, kind)


def _span(piece: PieceEntry) -> tuple[int, int]:
    return piece.offset, piece.offset + piece.bytes
