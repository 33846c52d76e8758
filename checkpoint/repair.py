"""Verification of steps, and damaged ones made whole from a second holder, as a mirror or a backup.

The smallest things with a digest of their own are *parts*: a piece of a tensor, or all bytes
of a shard that lie in no piece.  Invariant: the spans of a shard's parts cover each byte of the
shard once.  So a shard can be put together from parts of different holders.

An inventory finds the sound parts of a step in a directory; unlike a scan, it goes on after a
fault.  A step may lie in several directories of a store: under its own name, and under a
``.bad-`` name for each time that it was moved aside.  Each of them may have parts that the others
lack, for example after a mend that was cut short.  A part is known by its digest, so it does
not matter which save of the step it comes from.

A mend is a save like any other: staged, synced, renamed, while the damaged step is moved to its
``.bad-`` name.  Nothing is removed.  Every byte of the new step verifies against its manifest:
ours, or the other holder's if ours is damaged and both are of one run.  So no sound part is lost
if a mend stops between its two renames.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from holdfast.checkpoint.digest import Digest
from holdfast.checkpoint.disk import Disk, ReadFile
from holdfast.checkpoint.errors import (
    CheckpointError,
    CheckpointInvalid,
    CheckpointUnreadable,
    MendImpossible,
    StorageFailed,
)
from holdfast.checkpoint.manifest import (
    Manifest,
    PieceEntry,
    Placed,
    ShardEntry,
    TensorEntry,
    pieces_by_shard,
)
from holdfast.checkpoint.names import StagingName, shard_name, step_name
from holdfast.checkpoint.record import Header, PieceRecord, ShardRecord
from holdfast.checkpoint.scan import Scan, digest_span, read_span
from holdfast.checkpoint.store import CheckpointStore, Staging, hide

CountBytes: TypeAlias = Callable[[int], None]
"""Is told how many more bytes have been read."""

_MOST_NAMED = 5


def silent(_count: int) -> None:
    """Ignore progress."""


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
    return StepCheck(step, nbytes)


@dataclass(frozen=True, slots=True)
class Part:
    """One part: its shard, a name for people, its bytes as ``(start, stop)``, its digest."""

    shard: int
    name: str
    spans: tuple[tuple[int, int], ...]
    digest: str

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
    return tuple(
        (_outside(shard, pieces), *(_inside(placed) for placed in pieces))
        for shard, pieces in pairs
    )


def read_part(file: ReadFile, part: Part, image: memoryview | None = None) -> bool:
    """Read a part, into its place in ``image`` if given; return whether it verifies."""
    digest = Digest()
    for start, stop in part.spans:
        if image is None:
            digest_span(file, start, stop, digest)
        else:
            read_span(file, image[start:stop], start, digest)
    return digest.hexdigest() == part.digest


def _inside(placed: Placed) -> Part:
    tensor, piece = placed
    name = f"elements {piece.start} to {piece.stop} of tensor {tensor.spec.name!r}"
    return Part(piece.shard, name, (_span(piece),), piece.digest)


def _outside(shard: ShardEntry, pieces: Sequence[Placed]) -> Part:
    edges = [(0, 0), *(_span(piece) for _, piece in pieces), (shard.size, shard.size)]
    gaps = [(left[1], right[0]) for left, right in itertools.pairwise(edges)]
    spans = tuple((start, stop) for start, stop in gaps if start < stop)
    return Part(shard.index, "everything outside the tensors", spans, shard.digest)


def _span(piece: PieceEntry) -> tuple[int, int]:
    return piece.offset, piece.offset + piece.bytes


@dataclass(frozen=True, slots=True)
class Inventory:
    """The parts that verify, and one sentence on each fault."""

    sound: frozenset[Part]
    faults: tuple[str, ...]

    @property
    def is_whole(self) -> bool:
        """Whether the step is as it was saved."""
        return not self.faults


def take_inventory(
    disk: Disk, directory: Path, manifest: Manifest, progress: CountBytes = silent
) -> Inventory:
    """Compare every part of a step in ``directory`` with the digests of ``manifest``."""
    sound: list[Part] = []
    faults: list[str] = []
    for shard, parts in zip(manifest.shards, parts_of(manifest), strict=True):
        path = directory / shard_name(shard.index, manifest.writers)
        try:
            with disk.reading(path) as file:
                size = file.size()
                if size != shard.size:
                    faults.append(f"shard {shard.index} has {size} of {shard.size} bytes")
                for part in parts:
                    fault = _fault_of(file, part) if part.stop <= size else f"cut off: {part}"
                    progress(part.nbytes)
                    if fault is None:
                        sound.append(part)
                    else:
                        faults.append(fault)
        except StorageFailed as error:
            faults.append(str(error))
    return Inventory(frozenset(sound), tuple(faults))


def _fault_of(file: ReadFile, part: Part) -> str | None:
    """Return a part's fault, None if it verifies; a bad block of the disk spoils only its part."""
    try:
        return None if read_part(file, part) else f"wrong digest of {part}"
    except StorageFailed as error:
        return f"{part}: {error}"


@dataclass(frozen=True, slots=True)
class Holding:
    """The sound parts of a step in a store, and the directory of each.

    The faults are those of the first directory alone, which is the step itself.
    """

    inventory: Inventory
    places: Mapping[Part, Path]


def directories_of(store: CheckpointStore, step: int) -> tuple[Path, ...]:
    """Return the directory of a step, if it is there, and its ``.bad-`` ones, newest first."""
    parsed = ((StagingName.parse_bad(name), name) for name in store.names())
    # As numbers: as text, generation 9 comes after 13.
    aside = [
        (bad.generation, bad.attempt, name) for bad, name in parsed if bad and bad.step == step
    ]
    found = [store.directory / name for *_, name in sorted(aside, reverse=True)]
    own = store.directory / step_name(step)
    return (own, *found) if not found or store.disk.is_directory(own) else tuple(found)


def take_holding(store: CheckpointStore, manifest: Manifest, progress: CountBytes) -> Holding:
    """Compare the parts in each directory of a step with the digests of ``manifest``.

    Directories that were moved aside are read only if the first one is not whole.
    """
    first, *aside = directories_of(store, manifest.step)
    found = take_inventory(store.disk, first, manifest, progress)
    places = dict.fromkeys(found.sound, first)
    for directory in () if found.is_whole else aside:
        more = take_inventory(store.disk, directory, manifest, progress)
        places = dict.fromkeys(more.sound, directory) | places
    return Holding(Inventory(frozenset(places), found.faults), places)


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
    chosen = sources.manifest
    header = Header(chosen.run_id, chosen.generation, chosen.step)
    name = StagingName(chosen.step, chosen.generation, holders.here.next_attempt(header))
    staging = holders.here.staging(name.step, name.generation, name.attempt)
    try:
        _write(staging, sources, holders)
        holders.proceed()
        if holders.here.disk.identity(target) != found and _verifies(holders.here, step, run_id):
            staging.abandon()  # it was saved, or mended, meanwhile
            return MendResult(step)
        bad_name = _replace(holders.here, staging, chosen, name)
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
            manifest = Scan(here.disk, directory, step).manifest_alone()
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


def _write(staging: Staging, sources: _Sources, holders: Holders) -> None:
    """Put each shard together in memory, one at a time, and make it durable if it verifies."""
    manifest = sources.manifest
    for record, parts in zip(_records(manifest), parts_of(manifest), strict=True):
        try:
            image = memoryview(bytearray(record.size))
        except MemoryError as error:
            reason = f"there is no memory for shard {record.index}, {record.size} bytes"
            raise MendImpossible(manifest.step, reason) from error
        for (disk, path), found in _by_file(sources, parts, holders).items():
            with disk.reading(path) as file:
                for part in found:
                    read_part(file, part, image)  # the check of the whole image finds changes
        staging.write_image(image, record, manifest.writers)


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
        records.append(ShardRecord(shard.index, shard.size, shard.digest, found))
    return records
