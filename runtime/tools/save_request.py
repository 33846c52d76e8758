"""The supervisor that owns a run directory, and an order to it: save now.

The lease names host and process, but processes end and their numbers are used again.  So a named
process counts only if it has that very lease file open.  Signals go through a descriptor of the
process (pidfd), opened *before* that check.  If the number has changed hands meanwhile, the signal
reaches no process.

The answer to an order is in the journal.  A checkpoint counts if it was *begun* after the request:
one in flight holds an older state.  A request dies with its workers, and a save may fail.  In both
cases the request is sent again.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import time
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from holdfast.runtime.errors import JobError, NotSaved, UsageError
from holdfast.runtime.run.files import ForeignFile
from holdfast.runtime.run.find_run import moved_to, no_job
from holdfast.runtime.run.journal import TAIL_BYTES, JournalReader, Record
from holdfast.runtime.run.lease import has_ended
from holdfast.runtime.run.run_directory import RunDirectory
from holdfast.runtime.system.channel import connect
from holdfast.runtime.system.processes import HeldProcess, is_stopped, signal_state
from holdfast.runtime.system.signals import SAVE_SIGNAL
from holdfast.runtime.system.witnessed_time import Bound

_LOOK_S = 0.05
_MOST_FAILURES = 3
_FULL_FOR_S = 5.0
"""A save may fill a disk for a moment, until it makes room.  A living job writes each second."""


class Life(Enum):
    """What is left of the job that owns a run directory, or owned it last."""

    SUPERVISED = "supervised"
    ORPHANED = "orphaned"
    """Its agent lives without its supervisor."""
    ELSEWHERE = "elsewhere"
    """Its run is in another directory: this one was moved or copied."""
    ENDED = "ended"
    """It has said its end in the lease."""
    GONE = "gone"
    ALONE = "alone"
    """A script that was started without a supervisor."""
    UNKNOWN = "unknown"
    """It belongs to another host or user, or to ranks that have lost the first one."""


def life_of(directory: RunDirectory) -> Life:
    """Return what is left of the job in ``directory``."""
    return find_life(directory)[0]


def find_life(directory: RunDirectory) -> tuple[Life, str]:
    """Return what is left of the job in ``directory``, and why no supervisor can be asked."""
    try:
        LeaseHolder.find(directory).close()
    except _OutOfReach as error:
        return error.life, str(error)
    except JobError as error:
        return Life.UNKNOWN, str(error)
    return Life.SUPERVISED, ""


class _OutOfReach(NotSaved):
    """No supervisor of ``directory`` can be asked; ``life`` is what is left of the job."""

    def __init__(self, life: Life, directory: RunDirectory, *details: object) -> None:
        super().__init__(_REASONS[life].format(directory.path, *details))
        self.life = life


_NOBODY = "no supervisor runs in {}; start the job with `holdfast run`"
_REASONS = {
    Life.ALONE: "{} belongs to pid {}, which takes no orders; only a job of `holdfast run` does",
    Life.ELSEWHERE: "{} was moved or copied{}; ask there",
    Life.ORPHANED: "the job in {} lives, but its supervisor is gone; take it over with "
    "`holdfast attach {}`, then ask again",
    Life.ENDED: _NOBODY,
    Life.GONE: _NOBODY,
    Life.UNKNOWN: _NOBODY,
}


class LeaseHolder:
    """A living supervisor; a context manager that lets go of it."""

    def __init__(self, process: HeldProcess) -> None:
        self._process = process

    @staticmethod
    def find(directory: RunDirectory) -> LeaseHolder:
        """Return the supervisor that owns ``directory``.

        Raises:
            NotSaved: no supervisor runs, or it is out of reach; the message says which.
            UsageError: the lease is not the run's own file.
        """
        host, pid, takes_orders = _owner_of(directory)
        here = os.uname().nodename
        if host != here:
            raise NotSaved(f"{directory.path} belongs to host {host}, this is {here}; ask there")
        with contextlib.suppress(ProcessLookupError):
            holder = LeaseHolder(HeldProcess(pid))
            if holder._holds(directory.lease_path):
                if takes_orders:
                    return holder
                holder.close()
                raise _OutOfReach(Life.ALONE, directory, pid)
            elsewhere = holder._elsewhere(directory)
            holder.close()
            if elsewhere is not None:
                raise _OutOfReach(
                    Life.ELSEWHERE, directory, f", and its job (pid {pid}) works in {elsewhere}"
                )
        place = moved_to(directory)
        if place is not None:
            raise _OutOfReach(
                Life.ELSEWHERE, directory, f" from {place}, which holds its run as well"
            )
        if _has_agent(directory):
            raise _OutOfReach(Life.ORPHANED, directory, shlex.quote(str(directory.path)))
        if _has_ended(directory):  # as by `holdfast repair`
            raise _OutOfReach(Life.ENDED, directory)
        raise _OutOfReach(Life.GONE if takes_orders else Life.UNKNOWN, directory)

    @property
    def is_listening(self) -> bool:
        """Whether the holder has set up its signals: before that, an order would end it."""
        return signal_state(self._process.pid, SAVE_SIGNAL).is_caught

    @property
    def stopped_pid(self) -> int | None:
        """The holder's process id, if it is stopped."""
        return self._process.pid if is_stopped(self._process.pid) else None

    def ask_to_save(self) -> None:
        """Send the signal that asks for a checkpoint; a dead holder gets no signal."""
        self._process.signal(SAVE_SIGNAL)

    def has_ended(self, within_s: float) -> bool:
        """Wait up to ``within_s`` for the holder's end; return whether it has ended."""
        return self._process.has_ended(within_s)

    def close(self) -> None:
        """Let go of the process."""
        self._process.close()

    def __enter__(self) -> LeaseHolder:
        """Return the holder."""
        return self

    def __exit__(self, *_error: object) -> None:
        """Let go of the process."""
        self.close()

    def _holds(self, lease_path: Path) -> bool:
        """Return whether the process has the lease file open."""
        try:
            lease = lease_path.stat()
            for link in self._open_files():
                with contextlib.suppress(OSError):
                    if os.path.samestat(link.stat(), lease):
                        return True
        except PermissionError as error:
            raise NotSaved(
                f"process {self._process.pid} belongs to another user; ask as that user"
            ) from error
        except OSError:  # it has ended meanwhile
            return False
        return False

    def _elsewhere(self, directory: RunDirectory) -> Path | None:
        """Return the directory that the process holds by the same lease, None if there is none."""
        token = directory.lease_token()
        with contextlib.suppress(OSError):
            for link in self._open_files():
                with contextlib.suppress(OSError, UsageError):
                    path = link.readlink()
                    is_lease = bool(token) and path.name == directory.lease_path.name
                    if is_lease and RunDirectory(path.parent).lease_token() == token:
                        return path.parent
        return None

    def _open_files(self) -> Iterator[Path]:
        return Path(f"/proc/{self._process.pid}/fd").iterdir()


def _has_agent(directory: RunDirectory) -> bool:
    """Return whether the agent that the lease names listens; asking it changes nothing."""
    socket = directory.agent_socket()
    with contextlib.suppress(OSError):
        if socket is not None:
            connect(socket).close()
            return True
    return False


def _has_ended(directory: RunDirectory) -> bool:
    with contextlib.suppress(OSError, ValueError):
        return has_ended(directory.lease_owner())
    return False


def _owner_of(directory: RunDirectory) -> tuple[str, int, bool]:
    try:
        owner = directory.lease_owner()
        return str(owner["host"]), int(owner["pid"]), owner.get("takes_orders") is not False
    except ForeignFile as error:
        raise UsageError(str(error)) from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise NotSaved(_NOBODY.format(directory.path)) from error


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
