"""A damaged step made whole from a second holder of it, such as a mirror or a backup.

A mend is a save like any other: staged, synced, renamed, while the damaged step
is moved to its ``.bad-`` name.  Nothing is removed.  Every byte of the new step verifies
against its manifest: ours, or the other holder's if ours is damaged and both are of one
run.

A step that was moved aside still counts: a mend takes the sound parts of its ``.bad-``
directories.  So no sound part is lost if a mend stops between its two renames, or if a
scrub has moved the step.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast.checkpoint.disk.disk import Disk
from holdfast.checkpoint.errors import CheckpointError, CheckpointInvalid, MendImpossible
from holdfast.checkpoint.format.manifest import Manifest, pieces_by_shard
from holdfast.checkpoint.format.names import StagingName, shard_name, step_name
from holdfast.checkpoint.format.record import Header, PieceRecord, ShardRecord
from holdfast.checkpoint.store.removal import hide
from holdfast.checkpoint.store.scan import Scan
from holdfast.checkpoint.store.store import CheckpointStore, Staging
from holdfast.checkpoint.upkeep.holding import Holding, directories_of, take_holding
from holdfast.checkpoint.upkeep.inventory import CountBytes, Inventory, silent
from holdfast.checkpoint.upkeep.part import Part, parts_of, read_part

_MOST_NAMED = 5


@dataclass(frozen=True, slots=True)
class MendPlan:
    """Which parts of a step stay, and which are taken from the other holder."""

    kept: frozenset[Part]
    taken: frozenset[Part]


def plan_mend(manifest: Manifest, here: Inventory, there: Inventory) -> MendPlan:
    """Decide for each part of a step from which holder to take it; sound parts here stay.

    Raises ``MendImpossible`` and names the parts that neither holder has.
    """
    parts = [part for shard in parts_of(manifest) for part in shard]
    missing = [str(part) for part in parts if part not in here.sound | there.sound]
    if missing:
        raise MendImpossible(
            manifest.step,
            f"neither holder has {_some(missing)} ({_faults(here, there)})",
        )
    kept = here.sound.intersection(parts)
    return MendPlan(kept, frozenset(parts) - kept)


def _faults(here: Inventory, there: Inventory) -> str:
    if here.faults == there.faults:
        return f"in both: {_some(here.faults)}"
    return f"here: {_some(here.faults)}; there: {_some(there.faults)}"


def _some(sentences: Sequence[str]) -> str:
    shown = "; ".join(sentences[:_MOST_NAMED]) or "no fault"
    more = len(sentences) - _MOST_NAMED
    return f"{shown}; and {more} more" if more > 0 else shown


@dataclass(frozen=True, slots=True)
class MendResult:
    """A step that is whole now: its faults before, if any, and the work of the mend.

    ``taken`` of its ``parts`` came from the other holder.  ``bad_name`` is the new name
    of the damaged step, None if no directory was moved.
    """

    step: int
    faults: tuple[str, ...] = ()
    taken: int = 0
    parts: int = 0
    bad_name: str | None = None


def _go_on() -> None:
    """Let a mend end: its caller waits."""


@dataclass(frozen=True, slots=True)
class Holders:
    """The store to mend, and the store that supplies the parts it lacks."""

    here: CheckpointStore
    there: CheckpointStore
    proceed: Callable[[], None] = _go_on
    """Called before anything is put in place; raises ``CheckpointError`` if nobody waits for it."""


def mend_step(
    holders: Holders, step: int, *, run_id: str | None = None, progress: CountBytes = silent
) -> MendResult:
    """Make a step of ``holders.here`` whole, and return once it verifies.

    Only for the process that owns the run directory.  Raises ``CheckpointError`` if the
    step cannot be mended; then the damaged step keeps its place.
    """
    target = holders.here.directory / step_name(step)
    found = holders.here.disk.identity(target)
    manifest, complaint = _manifest(holders, step, run_id)
    mine = take_holding(holders.here, manifest, progress)
    if not complaint and mine.inventory.is_whole:
        return MendResult(step)
    faults = (*([complaint] if complaint else []), *mine.inventory.faults)
    sources = _sources(holders, manifest, mine, progress=progress)
    name = _staging_name(holders.here, sources.manifest)
    staging = holders.here.staging(name.step, name.generation, name.attempt)
    try:
        _write(staging, sources, holders)
        holders.proceed()
        if holders.here.disk.identity(target) != found and _verifies(holders.here, step, run_id):
            staging.abandon()  # it was saved, or mended, meanwhile
            return MendResult(step)
        bad_name = _replace(holders.here, staging, sources.manifest, name)
    except BaseException:
        staging.abandon()
        raise
    plan = sources.plan
    return MendResult(step, faults, len(plan.taken), len(plan.kept | plan.taken), bad_name)


def _manifest(holders: Holders, step: int, run_id: str | None) -> tuple[Manifest, str]:
    """Return our manifest, or the other holder's; and the fault of ours, "" if it has none."""
    manifest, complaints = _our_manifest(holders.here, step, run_id)
    if manifest is None:
        if run_id is None:
            raise MendImpossible(
                step, f"{complaints[0]}, and no RUN.json tells to which run the step must belong"
            )
        manifest = _their_manifest(holders.there, step, complaints[0])
    manifest.refuse_other_run(run_id)
    return manifest, complaints[0] if complaints else ""


def _our_manifest(
    here: CheckpointStore, step: int, run_id: str | None
) -> tuple[Manifest | None, list[str]]:
    """Return the first valid manifest in our directories of a step, and what is wrong there."""
    complaints: list[str] = []
    found = directories_of(here, step)
    for directory in found if run_id is not None else found[:1]:
        is_aside = directory.name != step_name(step)
        try:
            manifest = Scan(here.disk, directory, step, here.key).manifest_alone()
            if is_aside:  # a step of another run may have been moved aside as well
                manifest.refuse_other_run(run_id)
        except CheckpointInvalid as error:
            complaints.append(error.reason)
            continue
        if is_aside:
            complaints.append(f"it was moved to {directory.name}")
        return manifest, complaints
    return None, complaints


def _their_manifest(there: CheckpointStore, step: int, complaint: str) -> Manifest:
    try:
        return there.scan(step).manifest_alone()
    except CheckpointInvalid as theirs:
        reason = f"{complaint}; and in {there.directory}: {theirs.reason}"
        raise MendImpossible(step, reason) from theirs


@dataclass(frozen=True, slots=True)
class _Sources:
    """The manifest to make whole, which parts come from whom, and the directories of both."""

    manifest: Manifest
    plan: MendPlan
    here: Holding
    there: Holding


def _sources(
    holders: Holders, manifest: Manifest, mine: Holding, *, progress: CountBytes
) -> _Sources:
    """Return where each part comes from; with their manifest, if ours cannot be made whole."""
    theirs = take_holding(holders.there, manifest, progress)
    try:
        plan = plan_mend(manifest, mine.inventory, theirs.inventory)
        return _Sources(manifest, plan, mine, theirs)
    except MendImpossible:
        other = _other_save(holders.there, manifest)
        if other is None:
            raise
    here, there = (take_holding(store, other, progress) for store in (holders.here, holders.there))
    return _Sources(other, plan_mend(other, here.inventory, there.inventory), here, there)


def _other_save(there: CheckpointStore, manifest: Manifest) -> Manifest | None:
    """Return the other holder's manifest if it is of another save of the step, else None.

    A step that was damaged or lost is saved again when the job reaches it again.
    """
    try:
        theirs = there.scan(manifest.step).manifest_alone()
    except CheckpointInvalid:
        return None
    return theirs if theirs.run_id == manifest.run_id and theirs != manifest else None


def _staging_name(store: CheckpointStore, manifest: Manifest) -> StagingName:
    header = Header(manifest.run_id, manifest.generation, manifest.step)
    return StagingName(header.step, header.generation, store.next_attempt(header))


def _write(staging: Staging, sources: _Sources, holders: Holders) -> None:
    """Put each shard together in memory, one at a time, and make it durable if it verifies."""
    manifest = sources.manifest
    for record, parts in zip(_records(manifest), parts_of(manifest), strict=True):
        image = _image(manifest.step, record)
        for (disk, path), found in _by_file(sources, parts, holders).items():
            with disk.reading(path) as file:
                for part in found:
                    read_part(file, part, image)  # the check of the whole image finds changes
        staging.write_image(image, record, manifest.writers)


def _image(step: int, record: ShardRecord) -> memoryview:
    """Return room for a whole shard."""
    try:
        return memoryview(bytearray(record.size))
    except MemoryError as error:
        reason = f"there is no memory for shard {record.index}, {record.size} bytes"
        raise MendImpossible(step, reason) from error


def _by_file(
    sources: _Sources, parts: Sequence[Part], holders: Holders
) -> Mapping[tuple[Disk, Path], list[Part]]:
    """Return the parts of a shard by the file that each comes from, in the order of offsets."""
    found: dict[tuple[Disk, Path], list[Part]] = {}
    for part in parts:
        is_taken = part in sources.plan.taken
        store, holding = (
            (holders.there, sources.there) if is_taken else (holders.here, sources.here)
        )
        path = holding.places[part] / shard_name(part.shard, sources.manifest.writers)
        found.setdefault((store.disk, path), []).append(part)
    return found


def _verifies(store: CheckpointStore, step: int, run_id: str | None) -> bool:
    try:
        return run_id in (None, store.scan(step).verify().run_id)
    except CheckpointError:
        return False


def _replace(
    store: CheckpointStore, staging: Staging, manifest: Manifest, name: StagingName
) -> str | None:
    """Move the damaged step aside, commit and read back; a failure puts it back."""
    target, aside = store.directory / step_name(manifest.step), store.directory / name.bad_name
    if not store.disk.is_directory(target):
        _commit(store, staging, manifest, name)
        return None
    store.disk.rename(target, aside)
    try:
        # Without this sync, a power cut could keep the second rename and lose this one.
        store.disk.fsync_directory(store.directory)
        _commit(store, staging, manifest, name)
    except CheckpointError:
        with contextlib.suppress(CheckpointError):
            store.disk.rename(aside, target)
        raise
    return name.bad_name


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


def _records(manifest: Manifest) -> list[ShardRecord]:
    """Return the records that the writers once made of their shards."""
    records = []
    for shard, pieces in zip(manifest.shards, pieces_by_shard(manifest), strict=True):
        found = tuple(
            PieceRecord(tensor.spec.name, p.start, p.stop, p.offset, p.bytes, p.digest)
            for tensor, p in pieces
        )
        records.append(
            ShardRecord(shard.index, shard.size, shard.digest, found, manifest.version.digest)
        )
    return records
