"""Verification of a step: every digest is compared, and no byte is kept."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.checkpoint.errors import CheckpointError, CheckpointInvalid, CheckpointUnreadable
from holdfast.checkpoint.format.entries import PieceEntry, TensorEntry
from holdfast.checkpoint.format.signature import Signature
from holdfast.checkpoint.store.store import CheckpointStore
from holdfast.checkpoint.upkeep.inventory import CountBytes, silent


@dataclass(frozen=True, slots=True)
class StepCheck:
    """The outcome of verifying a step: its size in bytes, and the reason not to use it.

    ``nbytes`` is 0 if the manifest gives no size; ``reason`` is None if every byte verifies.
    """

    step: int
    nbytes: int
    reason: str | None = None
    signature: Signature = Signature.NONE
    is_unread: bool = False
    """Whether the reason is that it could not be read just now: it may be whole."""

    @property
    def is_valid(self) -> bool:
        """Whether every byte verified."""
        return self.reason is None


def verify_step(
    store: CheckpointStore, step: int, *, run_id: str | None = None, progress: CountBytes = silent
) -> StepCheck:
    """Compare every digest of a committed step, and its run with ``run_id`` if given."""
    nbytes = 0

    def pass_by(_tensor: TensorEntry, piece: PieceEntry) -> None:
        progress(piece.bytes)

    try:
        scan = store.scan(step)
        manifest = scan.manifest()
        nbytes = manifest.nbytes
        manifest.refuse_other_run(run_id)
        scan.read(manifest, pass_by)
    except CheckpointUnreadable as error:
        return StepCheck(step, nbytes, error.reason, is_unread=True)
    except CheckpointInvalid as error:
        return StepCheck(step, nbytes, error.reason)
    except CheckpointError as error:
        return StepCheck(step, nbytes, str(error))
    return StepCheck(step, nbytes, signature=manifest.signature)
