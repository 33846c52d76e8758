"""Asking a running job for a checkpoint, and waiting until it is committed.

The answer is in the journal.  A checkpoint counts if it was *begun* after the request:
one in flight holds an older state.  A request dies with its workers, and a save may fail.
In both cases the request is sent again.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from holdfast.runtime.commands.lease_holder import LeaseHolder
from holdfast.runtime.errors import NotSaved
from holdfast.runtime.run.journal import TAIL_BYTES, JournalReader, Record
from holdfast.runtime.run.no_run import no_job
from holdfast.runtime.run.run_directory import RunDirectory
from holdfast.runtime.system.witnessed_time import Bound

_LOOK_S = 0.05
_MOST_FAILURES = 3
_FULL_FOR_S = 5.0
"""A save may fill a disk for a moment, until it makes room.  A living job writes each second."""


@dataclass(frozen=True, slots=True)
class Saved:
    """A requested checkpoint; ``seconds`` passed from the request to the commit."""

    step: int
    seconds: float


class SaveWatch:
    """The state of a request for a checkpoint, told from the journal; pure."""

    def __init__(self) -> None:
        self.saved: Saved | None = None
        self.is_over = False
        self._is_training = False
        self._is_asked = False
        self._asked_at: float | None = None
        self._steps_in_run: set[int] = set()
        """Those that the run directory has taken, of earlier jobs too."""
        self._last_step: int | None = None
        """That of the training which has ended last; None once another one has begun."""
        self._step_of_worker: int | None = None
        """The last step as a worker of this launch has recorded it."""
        self._failures: list[str] = []

    @property
    def needs_asking(self) -> bool:
        """Whether there are workers that have not been asked yet."""
        return self._is_training and not self._is_asked

    @property
    def failure(self) -> str | None:
        """The reason why no checkpoint will come although the job goes on, None if one may."""
        return self._failures[-1] if len(self._failures) >= _MOST_FAILURES else None

    def asked(self, now: float) -> None:
        """Take note that the workers were asked; the first time counts."""
        self._is_asked = True
        if self._asked_at is None:
            self._asked_at = now

    def saw(self, record: Record) -> None:
        """Take note of the journal's next record."""
        match record["event"]:
            case "job_started" | "launch":
                self._is_training = self._is_asked = self.is_over = False
                self._last_step = self._step_of_worker = None
            case "world":
                self._is_training, self._last_step = True, None
            case "step" | "epoch":
                self._is_training = True
            case "checkpoint":
                self._is_training = True
                self._compare(record)
            case "drained":
                self._steps_in_run.add(record["step"])
            case "checkpoint_failed":
                self._failed(str(record.get("reason")))
            case "completed" | "stopped":
                self._training_ended(record)
            case "job_ended":
                self._ended(record["now"])

    def _compare(self, record: Record) -> None:
        if "place" in record:  # only the local directory has it, which goes with its host
            return
        self._steps_in_run.add(record["step"])
        if self._asked_at is not None and record["now"] - record["seconds"] >= self._asked_at:
            self.saved = Saved(record["step"], record["now"] - self._asked_at)

    def _failed(self, reason: str) -> None:
        if self._asked_at is not None:
            self._failures.append(reason)
            self._is_asked = False

    def _training_ended(self, record: Record) -> None:
        """Take note of a training's last step.

        The supervisor repeats it, perhaps when the next training of the script has begun.
        """
        step = record.get("step")
        if record.get("source") != "supervisor":
            self._step_of_worker = step
        elif step == self._step_of_worker:
            return
        self._last_step = step

    def _ended(self, now: float) -> None:
        """Take note of the job's end; the checkpoint of its last step can serve the order."""
        self.is_over, self._is_training = True, False
        step = self._last_step
        if self._asked_at is not None and step is not None and step in self._steps_in_run:
            self.saved = Saved(step, now - self._asked_at)


def order_save(directory: RunDirectory, *, timeout_s: float, is_waiting: bool) -> Saved | None:
    """Ask the job in ``directory`` for a checkpoint; return it once it is committed.

    Returns ``None`` as soon as the workers are asked unless ``is_waiting``.

    Raises:
        NotSaved: no job runs there, or none has begun the run yet; it ended or failed to save, or
            time ran out.
    """
    reason = no_job(directory.path)
    if reason is not None:
        raise NotSaved(reason)
    with LeaseHolder.find(directory) as holder:
        return _Order(directory, holder, timeout_s).carry_out(is_waiting=is_waiting)


class _Order:
    """One order, from asking to the answer."""

    def __init__(self, directory: RunDirectory, holder: LeaseHolder, timeout_s: float) -> None:
        self._directory = directory
        self._holder = holder
        self._timeout_s = timeout_s
        self._bound = Bound(timeout_s)
        self._watch = SaveWatch()
        self._journal = JournalReader(directory.journal_path, tail_bytes=TAIL_BYTES)
        self._heard = time.monotonic()
        """When the journal grew last."""

    def carry_out(self, *, is_waiting: bool) -> Saved | None:
        """Look, ask, and look again until there is an answer."""
        self._look()
        self._watch.is_over = False  # if a job has ended, it was one before this holder's
        while True:
            if self._watch.needs_asking and self._holder.is_listening:
                self._watch.asked(time.monotonic())
                self._holder.ask_to_save()
                if not is_waiting:
                    return None
            has_ended = self._holder.has_ended(_LOOK_S)
            self._look()
            if self._watch.saved is not None:
                return self._watch.saved
            self._refuse_to_wait(has_ended=has_ended)

    def _look(self) -> None:
        """Read on in the journal, which may not be there yet."""
        try:
            for record in self._journal.read():
                self._watch.saw(record)
                self._heard = time.monotonic()
        except FileNotFoundError:
            return
        except OSError as error:
            path = self._directory.journal_path
            raise NotSaved(f"{path} cannot be read: {error.strerror}") from error

    def _refuse_to_wait(self, *, has_ended: bool) -> None:
        path, watch = self._directory.path, self._watch
        if has_ended or watch.is_over:
            raise NotSaved(f"the job in {path} ended without another checkpoint; run it again")
        if watch.failure is not None:
            raise NotSaved(f"the job in {path} goes on but cannot save: {watch.failure}")
        if time.monotonic() - self._heard > _FULL_FOR_S and _is_full(path):
            raise NotSaved(
                f"the file system of {path} is full, so neither a checkpoint nor the journal can "
                "be written; free space, then ask again"
            )
        if self._bound.has_passed:
            pid = self._holder.stopped_pid
            if pid is not None:
                raise NotSaved(
                    f"the supervisor of the job in {path}, pid {pid}, is stopped; "
                    f"let it go on with `kill -CONT {pid}`, then ask again"
                )
            raise NotSaved(
                f"the job in {path} has not committed a checkpoint within {self._timeout_s:g} s; "
                "give a longer --timeout, or look at `holdfast report`"
            )


def _is_full(path: Path) -> bool:
    try:
        found = os.statvfs(path)
    except OSError:
        return False
    free = found.f_bavail if os.geteuid() else found.f_bfree
    return free == 0 < found.f_blocks
