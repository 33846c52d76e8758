"""Verification of steps, and damaged ones made whole again by the files of a copy.

A step may lie in several directories: under its own name, under a ``.bad-`` name for each time
that it was moved aside, and in the copy.  Each file of it comes from the first one in which all
of it verifies.

A mend is a save like any other: staged, synced, renamed, while the damaged step is moved to its
``.bad-`` name.  Nothing is removed.  Every byte of the new step verifies against its manifest:
ours, or the copy's if ours is damaged and both are of one run.  So nothing sound is lost if a
mend stops between its two renames.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from holdfast.checkpoint.disk import Disk
from holdfast.checkpoint.errors import CheckpointError, CheckpointInvalid, CheckpointUnreadable
from holdfast.checkpoint.manifest import Header, Manifest, PieceEntry, ShardRecord
from holdfast.checkpoint.names import MANIFEST_NAME, StagingName, bad_names, shard_name, step_name
from holdfast.checkpoint.scan import Scan
from holdfast.checkpoint.store import CheckpointStore, Staging, hide
from holdfast.checkpoint.tensor import TensorSpec

CountBytes: TypeAlias = Callable[[int], None]
"""Is told how many more bytes have been read."""

_Place: TypeAlias = tuple[Disk, Path]
"""A directory that may have files of a step."""


@dataclass(frozen=True, slots=True)
class StepCheck:
    """The outcome of verifying a step: its size in bytes, and the reason not to use it.

    ``nbytes`` is 0 if the manifest gives no size; ``reason`` is None if every byte verifies.
    """

    step: int
    nbytes: int
    reason: str | None = None
    is_unread: bool = False
    """Whether the reason is that it could not be read just now: it may be whole."""

    @property
    def is_valid(self) -> bool:
        """Whether every byte verified."""
        return self.reason is None


def verify_step(
    store: CheckpointStore,
    step: int,
    *,
    run_id: str | None = None,
    progress: CountBytes = lambda _: None,
) -> StepCheck:
    """Compare every digest of a committed step, and its run with ``run_id`` if given."""
    nbytes = 0

    def pass_by(_spec: TensorSpec, piece: PieceEntry) -> None:
        progress(piece.bytes)

    try:
        scan = store.scan(step)
        manifest = scan.manifest()
        nbytes = manifest.nbytes
        manifest.refuse_other_run(run_id)
        scan.read_shards(manifest, range(manifest.writers), pass_by)
    except CheckpointError as error:
        return StepCheck(step, nbytes, error.reason, isinstance(error, CheckpointUnreadable))
    return StepCheck(step, nbytes)


@dataclass(frozen=True, slots=True)
class MendResult:
    """A step that is whole now, and what it lacked, None if it was whole before.

    ``files`` came from the copy.  ``bad_name`` is the new name of the damaged step.
    """

    step: int
    fault: str | None = None
    files: tuple[str, ...] = ()
    bad_name: str | None = None


def mend_step(
    here: CheckpointStore,
    copy: CheckpointStore,
    step: int,
    *,
    run_id: str | None = None,
    progress: CountBytes = lambda _: None,
) -> MendResult:
    """Put the files that a step of a store lacks back from a copy; return once it verifies.

    Only for the process that owns the run directory.  Raises ``CheckpointError`` if the step
    cannot be made whole; then it keeps its place.
    """
    check = verify_step(here, step, run_id=run_id, progress=progress)
    if check.is_valid:
        return MendResult(step)
    directories = directories_of(here, step)
    places = [
        *((here.disk, directory) for directory in directories),
        (copy.disk, copy.directory / step_name(step)),
    ]
    missing: list[str] = []
    for place, manifest in _manifests(places, step, run_id):
        header = Header(manifest.run_id, manifest.generation, step)
        name = StagingName(step, manifest.generation, here.next_attempt(header))
        staging = here.staging(name.step, name.generation, name.attempt)
        try:
            files, lacking = _write(staging, manifest, places, progress)
            if not lacking:
                own = here.directory / step_name(step)
                is_there = here.disk.is_directory(own)
                with staging.moving_aside(own) if is_there else contextlib.nullcontext():
                    _commit(here, staging, manifest, name)
                names = [MANIFEST_NAME, *files] if place is places[-1] else files
                bad_name = name.bad_name if is_there else None
                return MendResult(step, check.reason, tuple(names), bad_name)
        except BaseException:
            staging.abandon()
            raise
        staging.abandon()
        missing = missing or lacking
    raise _unmendable(
        step, f"neither {directories[0]} nor {places[-1][1]} has {', '.join(missing)} whole"
    )


def _unmendable(step: int, reason: str) -> CheckpointError:
    return CheckpointError(
        f"checkpoint step {step} cannot be mended: {reason}; "
        "use another copy of it, or an older step"
    )


def directories_of(store: CheckpointStore, step: int) -> tuple[Path, ...]:
    """Return the directory of a step, if it is there, and its ``.bad-`` ones, newest first."""
    found = [store.directory / bad.bad_name for bad in bad_names(store.names(), step)]
    own = store.directory / step_name(step)
    return (own, *found) if not found or store.disk.is_directory(own) else tuple(found)


def _manifests(
    places: Sequence[_Place], step: int, run_id: str | None
) -> list[tuple[_Place, Manifest]]:
    """Return the valid manifests of a step and where each is, ours first; at least one.

    Several differ if a step that was damaged or lost was saved again.
    """
    found: list[tuple[_Place, Manifest]] = []
    complaints = []
    for place in places:
        disk, directory = place
        try:
            manifest = Scan(disk, directory, step).manifest_alone()
        except CheckpointInvalid as error:
            complaints.append(f"{directory}: {error.reason}")
            if place is places[0] and run_id is None:
                reason = f"{error.reason}, and no RUN.json tells to which run the step must belong"
                raise _unmendable(step, reason) from error
            continue
        if run_id is None:
            run_id = manifest.run_id
        is_own = place is places[0] and directory.name == step_name(step)
        if is_own or place is places[-1]:
            manifest.refuse_other_run(run_id)
        elif manifest.run_id != run_id:  # a step of another run may have been moved aside as well
            continue
        if all(manifest != known for _, known in found):
            found.append((place, manifest))
    if not found:
        raise _unmendable(step, "; ".join(complaints))
    return found


def _write(
    staging: Staging, manifest: Manifest, places: Sequence[_Place], progress: CountBytes
) -> tuple[list[str], list[str]]:
    """Stage each shard from the first place that has it whole.

    Returns the names of those from the last place, and of those that are whole nowhere.
    """
    taken: list[str] = []
    lacking: list[str] = []
    for record in manifest.shards:
        name = shard_name(record.index, manifest.writers)
        try:
            image = memoryview(bytearray(record.size))
        except MemoryError as error:
            reason = f"there is no memory for shard {record.index}, {record.size} bytes"
            raise _unmendable(manifest.step, reason) from error
        place = next((found for found in places if _fills(found, name, image, record)), None)
        progress(record.size)
        if place is None:
            lacking.append(name)
        elif not lacking:
            staging.write_image(image, record, manifest.writers)
            if place is places[-1]:
                taken.append(name)
    return taken, lacking


def _fills(place: _Place, name: str, image: memoryview, record: ShardRecord) -> bool:
    """Read a file into ``image``; return whether it is there and verifies."""
    disk, directory = place
    try:
        with disk.reading(directory / name) as file:
            if file.size() != record.size:
                return False
            file.read_into(image, 0)
        record.check(image)
    except CheckpointError:
        return False
    return True


def _commit(
    store: CheckpointStore, staging: Staging, manifest: Manifest, name: StagingName
) -> None:
    """Commit a mended step; it goes again if the disk does not give its bytes back.

    Nothing is lost with it: both holders still have the parts.  A prune removes its files.
    """
    target = staging.commit(manifest)
    try:
        store.scan(manifest.step).verify()
    except CheckpointError:
        with contextlib.suppress(CheckpointError):
            hide(store.disk, target, name.removed_name)
        raise
