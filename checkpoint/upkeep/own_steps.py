"""Which committed steps in a store belong to a run.

A user may copy the steps of one run into the directory of another, and two jobs may have
met in one directory.  A step of another run is no step to go back to, so it must not push
out an own one.  It may be the only copy of a person's work, so it is never removed.

The manifest says whose a step is.  It is read once by each process: a step changes its
run only when it is saved again, and then it is forgotten here.
"""

from __future__ import annotations

from enum import Enum

from holdfast.checkpoint.errors import CheckpointInvalid, CheckpointUnreadable
from holdfast.checkpoint.format.names import StagingName
from holdfast.checkpoint.store.scan import Scan
from holdfast.checkpoint.store.store import CheckpointStore


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
            scan = Scan(self.store.disk, directory, bad.step, self.store.key)
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
        except CheckpointInvalid as error:
            if self.store.key is None:
                return Owner.UNKNOWN
            return self._other(step, error.reason)
        if found == self._run_id:
            return Owner.RUN
        return self._other(step, f"it belongs to run {found}, not to {self._run_id}")

    def _other(self, step: int, reason: str) -> Owner:
        self._told.append(f"step {step} is neither counted nor removed: {reason}")
        return Owner.OTHER
