"""What a plan of retention needs to know of the directories that a run has on the disk.

*Committed steps*: the manifest says whose a step is, how large, and which metrics it has.  A
user may copy the steps of one run into the directory of another, and two jobs may have met in
one directory.  A step of another run is no step to go back to, so it must not push out an own
one.  It may be the only copy of a person's work, so it is never removed.  A manifest is read
once by each process: a step changes its run only when it is saved again, and then it is
forgotten here.

*Marks*: which committed steps this process has read back, and which it found damaged.
They are kept in memory only: a mark on the disk would outlive the disk's sound state.

*Damaged steps that were moved aside*: the newest few are kept, since a mend may need them.
Without a bound a disk that rots fills up with what it has damaged, until saves fail.  Whose
such a directory is, its manifest says.  One that says nothing may be another run's, so it stays.

*Leftovers*: saves that were given up or cut short.  They go first when a save finds the disk full.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from holdfast.checkpoint.errors import (
    CheckpointError,
    CheckpointInvalid,
    CheckpointUnreadable,
)
from holdfast.checkpoint.manifest import EpochMetrics
from holdfast.checkpoint.names import StagingName, is_removed, step_name
from holdfast.checkpoint.scan import Scan
from holdfast.checkpoint.store import CheckpointStore, hide, noting, remove_hidden

KEPT_ASIDE = 2
"""The damaged steps that stay: two directories of one step may complement each other."""

FEWEST_KEPT_ASIDE = 1
"""The same where the disk is full: a save is worth more than a second damaged copy."""


class Owner(Enum):
    """Whose step it is."""

    RUN = "this run's"
    OTHER = "another run's"
    UNKNOWN = "of a manifest that cannot be read just now, or is damaged"


class OwnSteps:
    """The committed steps of one run in a store; without a run id, all steps in it."""

    def __init__(self, store: CheckpointStore, run_id: str | None = None) -> None:
        self.store = store
        self._run_id = run_id
        self._owners: dict[int, Owner] = {}
        self._bad: dict[StagingName, bool] = {}
        self._told: list[str] = []

    def newest_first(self) -> tuple[int, ...]:
        """Return the steps that are not known to be another run's.

        Raises ``StorageFailed`` if the store cannot be listed.
        """
        steps = self.store.steps()
        return tuple(step for step in steps if self.owner_of(step) is not Owner.OTHER)

    def owner_of(self, step: int) -> Owner:
        """Return whose a committed step is; raises nothing."""
        if self._run_id is None:
            return Owner.RUN
        if step not in self._owners:
            owner = self._read(step)
            if owner is Owner.UNKNOWN:  # the next read may succeed
                return owner
            self._owners[step] = owner
        return self._owners[step]

    def has_bad(self, bad: StagingName) -> bool:
        """Return whether a damaged step that was moved aside is known to be this run's."""
        if self._run_id is None:
            return True
        if bad not in self._bad:
            directory = self.store.directory / bad.bad_name
            scan = Scan(self.store.disk, directory, bad.step)
            try:
                self._bad[bad] = scan.manifest_alone().run_id == self._run_id
            except CheckpointUnreadable:  # the next read may succeed
                return False
            except CheckpointInvalid:
                self._bad[bad] = False
        return self._bad[bad]

    def mark_own(self, step: int) -> None:
        """Note that a step is this run's: its manifest was read elsewhere, and names the run."""
        self._owners[step] = Owner.RUN

    def forget(self, step: int) -> None:
        """Forget whose a step is, since it was saved again."""
        self._owners.pop(step, None)

    def new_reasons(self) -> tuple[str, ...]:
        """Return one sentence for each step of another run that was found since the last call."""
        reasons, self._told = tuple(self._told), []
        return reasons

    def _read(self, step: int) -> Owner:
        try:
            found = self.store.scan(step).manifest_alone().run_id
        except CheckpointUnreadable:
            return Owner.UNKNOWN
        except CheckpointInvalid:
            return Owner.UNKNOWN
        if found == self._run_id:
            return Owner.RUN
        return self._other(step, f"it belongs to run {found}, not to {self._run_id}")

    def _other(self, step: int, reason: str) -> Owner:
        self._told.append(f"step {step} is neither counted nor removed: {reason}")
        return Owner.OTHER


@dataclass(frozen=True, slots=True)
class KnownStep:
    """The knowledge of a plan about a committed step.

    ``metrics`` are of the state of this very step.  None means that they could not be read:
    the step may be the best, so it stays.  ``nbytes`` is its size.
    """

    step: int
    metrics: Mapping[str, float] | None = field(default_factory=dict)
    nbytes: int = 0


class KnownSteps:
    """The steps of one run; the manifest of each is read once, and its shards never."""

    def __init__(self, steps: OwnSteps) -> None:
        self._steps = steps
        self._known: dict[int, KnownStep] = {}

    def newest_first(self, *, are_read: bool) -> tuple[KnownStep, ...]:
        """Return the steps; without reading their manifests they have no metrics and no size.

        Raises ``StorageFailed`` if the store cannot be listed.
        """
        steps = self._steps.newest_first()
        return tuple(self._read(step) if are_read else KnownStep(step) for step in steps)

    def _read(self, step: int) -> KnownStep:
        # A step that was saved again may have other bytes, but neither other metrics nor
        # a size that differs by much.
        if step not in self._known:
            store = self._steps.store
            try:
                manifest = store.scan(step).manifest_alone()
            except CheckpointError:
                directory = store.directory / step_name(step)
                return KnownStep(step, None, store.disk.size_of_tree(directory))
            found = EpochMetrics.of(manifest.cursor)
            metrics = found.values if found and found.step == step else {}
            self._known[step] = KnownStep(step, metrics, manifest.nbytes)
        return self._known[step]


class ReadMarks:
    """Which steps were read back with all of their digests right, and which were damaged."""

    def __init__(self) -> None:
        self._read: set[int] = set()
        self._damaged: set[int] = set()
        self._unread: set[int] = set()

    def __contains__(self, step: int) -> bool:
        return step in self._read

    def mark(self, step: int) -> None:
        """Remember that ``step`` was read back."""
        self.forget(step)
        self._read.add(step)

    def is_damaged(self, step: int) -> bool:
        """Return whether ``step`` did not verify when it was last read back."""
        return step in self._damaged

    def is_unread(self, step: int) -> bool:
        """Return whether the last reading of ``step`` failed without telling if it is whole."""
        return step in self._unread

    def mark_damaged(self, step: int) -> None:
        """Remember that ``step`` does not verify."""
        self.forget(step)
        self._damaged.add(step)

    def forget(self, step: int) -> None:
        """Forget all marks of a step, for example because it was saved again."""
        self._damaged.discard(step)
        self._unread.discard(step)
        self._read.discard(step)

    def verify(self, store: CheckpointStore, step: int) -> str | None:
        """Read ``step`` and remember it; returns why it does not verify, None if it does."""
        try:
            read_back(store, step)
        except CheckpointUnreadable as error:  # it may verify the next time
            self.forget(step)
            self._unread.add(step)
            return error.reason
        except CheckpointInvalid as error:
            self.mark_damaged(step)
            return error.reason
        self.mark(step)
        return None


def read_back(store: CheckpointStore, step: int) -> None:
    """Read every byte of ``step`` and compare all digests.

    Raises ``CheckpointInvalid`` if it does not verify, ``CheckpointUnreadable`` if the
    read failed and the next one may succeed.
    """
    store.scan(step).verify()


class BadSteps:
    """The damaged steps of one run that were moved aside."""

    def __init__(self, steps: OwnSteps, marks: ReadMarks) -> None:
        self._steps = steps
        self._store = steps.store
        self._marks = marks

    def nbytes(self) -> int:
        """Return the bytes of all of them.

        Raises ``StorageFailed`` if the store cannot be listed.
        """
        own = filter(self._steps.has_bad, bad_steps(self._store.names()))
        paths = (self._store.directory / bad.bad_name for bad in own)
        return sum(map(self._store.disk.size_of_tree, paths))

    def hide(self, kept: int, reasons: list[str]) -> None:
        """Hide all but the newest ``kept``, once a step that is as new was read back.

        Raises ``StorageFailed`` if the store cannot be listed.
        """
        found = bad_steps(self._store.names())
        own = [bad for bad in found if self._steps.has_bad(bad)] if len(found) > kept else []
        spare = own[kept:]
        if not spare:
            return
        verified = self._verified(spare[0].step)
        for bad in spare:
            if bad.step <= verified:
                with noting(reasons):
                    hide(self._store.disk, self._store.directory / bad.bad_name, bad.removed_name)
                    reasons.append(
                        f"{bad.bad_name} is removed: it was moved aside because it is damaged, "
                        "and newer ones are kept"
                    )

    def _verified(self, wanted: int) -> int:
        """Return the newest step that was read back; read one more if that is below ``wanted``."""
        steps = self._steps.newest_first()
        read = max((step for step in steps if step in self._marks), default=-1)
        if read < wanted <= max(steps, default=-1):
            reason = self._marks.verify(self._store, steps[0])
            return steps[0] if reason is None else read
        return read


def bad_steps(names: Iterable[str]) -> tuple[StagingName, ...]:
    """Return the damaged steps among the names in a store: those of the newest step first."""
    parsed = ((StagingName.parse_bad(name), name) for name in names)
    found = [bad for bad, name in parsed if bad is not None and bad.bad_name == name]
    found.sort(key=lambda bad: (bad.step, bad.generation, bad.attempt), reverse=True)
    return tuple(found)


def hide_dead_staging(
    store: CheckpointStore,
    generation: int,
    in_flight: Collection[StagingName],
    reasons: list[str],
) -> None:
    """Hide each save that is not ``in_flight``; one of a later generation is not ours.

    Raises ``StorageFailed`` if the store cannot be listed.
    """
    for name in store.names():
        save = StagingName.parse(name)
        if save is None or save in in_flight or save.generation > generation:
            continue
        with noting(reasons):
            hide(store.disk, store.directory / name, save.removed_name)


def free_hidden(store: CheckpointStore, reasons: list[str]) -> int:
    """Remove all that is hidden, and return how many bytes that has freed."""
    before = _hidden_bytes(store)
    remove_hidden(store, reasons)
    return before - _hidden_bytes(store)


def _hidden_bytes(store: CheckpointStore) -> int:
    hidden = filter(is_removed, store.names())
    return sum(store.disk.size_of_tree(store.directory / name) for name in hidden)
