"""Whether the first save of a step, which stays, has the state that a later save has.

A run that goes on from a checkpoint meets the same state again at each later step.  So it does not
matter which save of a step stays.  Other numerics, or a bug, break this.  Then the state on the
disk is not the one that was to be saved, and people must be told.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.checkpoint.format.digest import Digest, DigestKind
from holdfast.checkpoint.format.entries import PieceEntry, TensorEntry
from holdfast.checkpoint.format.manifest import Manifest
from holdfast.checkpoint.store.scan import Scan

_MOST_NAMED = 3


def tell_difference(scan: Scan, first: Manifest, later: Manifest) -> str | None:
    """Return one sentence on the tensors in which two saves of a step differ, None if in none.

    ``scan`` reads the first save.  Raises ``CheckpointInvalid`` if that cannot be read.
    """
    names = _other_tensors(scan, first, later)
    if not names:
        return None
    shown = ", ".join(map(repr, names[:_MOST_NAMED]))
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return (
        f"step {first.step} was saved before, by generation {first.generation}, and "
        f"generation {later.generation} has another state: {shown}{more}; the first save stays, "
        "so a restore gives its state; remove that step if it is not wanted"
    )


def _other_tensors(scan: Scan, first: Manifest, later: Manifest) -> list[str]:
    here = {tensor.spec.name: tensor for tensor in first.tensors}
    new = {tensor.spec.name: tensor for tensor in later.tensors}
    in_both = here.keys() & new.keys()
    only_in_one = here.keys() ^ new.keys()
    compared = _Compared(scan, first, later)
    return sorted(only_in_one | {n for n in in_both if not compared.is_same(here[n], new[n])})


@dataclass(frozen=True, slots=True)
class _Compared:
    """Two saves of a step; the first one can be read."""

    scan: Scan
    first: Manifest
    later: Manifest

    def is_same(self, here: TensorEntry, new: TensorEntry) -> bool:
        """Return whether both saves have the same bytes of a tensor.

        The digests tell it if both are cut alike.  Another number of writers cuts otherwise:
        then the bytes are digested once more, as the later save is cut.
        """
        if here.spec != new.spec:
            return False
        kind = self.later.version.digest
        if kind is self.first.version.digest and _cuts(here) == _cuts(new):
            return [p.digest for p in here.pieces] == [p.digest for p in new.pieces]
        return all(self._digest(here, piece, kind) == piece.digest for piece in new.pieces)

    def _digest(self, here: TensorEntry, piece: PieceEntry, kind: DigestKind) -> str:
        digest = Digest(kind)
        self.scan.digest_elements(self.first, here, (piece.start, piece.stop), digest)
        return digest.hexdigest()


def _cuts(tensor: TensorEntry) -> list[tuple[int, int]]:
    return [(piece.start, piece.stop) for piece in tensor.pieces]
