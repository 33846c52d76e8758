"""A run that is started, struck, started again and followed to its end.

This is the job of a batch system, or of a patient user.  ``holdfast run``, a child in a session of
its own, is typed again when a job was asked to stop, when its client died, and when its
client stands still.  Every wait has a bound: when the journal stands still for too long, the
run *hangs*, and is ended with the evidence.

The stderr of a job is a pipe, which can be full for a while, as that of a terminal that is held or
of a pager that does not read.  It is filled with NUL bytes through a descriptor of its own that
does not block, so the next write of the job waits.  They are dropped when the pipe is read again.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import subprocess
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.runtime.batch.schedulers import CHAIN
from holdfast.runtime.errors import ExitCode
from holdfast.runtime.host.launchers import outside_of_batch
from holdfast.runtime.run.entries import Entry, entries_of
from holdfast.runtime.run.journal import JournalReader, Record
from holdfast.runtime.run.run_directory import CHAOS_DRAWS, RunDirectory, RunRecord
from holdfast.runtime.system.own_process import program_command
from holdfast.runtime.system.processes import state_of, wait_all_ended
from holdfast.runtime.system.witnessed_time import Bound, witnessed_s
from holdfast.runtime.tools.other_hosts import OtherHosts
from holdfast.runtime.tools.strike import Agenda, Kind, Progress, Target
from holdfast.runtime.tools.striker import ENDS_WITHIN_S, JobTraces, Striker, Struck

_VARIABLE = "HOLDFAST_CHAOS_JOB"
_LOOK_S = 0.02
_TAIL_RECORDS = 12
_OWNED_PAUSE_S = 3.0
"""A user who reads "run again in a minute" waits a little, too."""

OWNED_FOR_S = 120.0
"""So long another job may own the directory: twice what the agent needs to see a dead client
on a busy machine."""

SUSPENDED_FOR_S = OWNED_FOR_S / 2
"""After so long a job whose client and agent both stand is let go on, as its message says."""

MOST_IDLE_JOBS = 10
"""So many jobs in a row may end early without a new step."""

_AGAIN = (ExitCode.STOPPED_EARLY, ExitCode.INTERRUPTED, ExitCode.TERMINATED)
MAIN = "from holdfast.runtime.cli.main import main; main()"
"""The program of a ``holdfast`` command."""

_PIECES = (4096, 1)
_READ_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class RunTerms:
    """One run: the arguments of ``holdfast run``, its folder, and how long it may stand still.

    ``hosts`` are those of a job over several, the head's first.
    """

    arguments: tuple[str, ...]
    folder: Path
    hang_after_s: float
    hosts: tuple[str, ...] = ()

    @property
    def run_dir(self) -> Path:
        """The run directory."""
        return self.folder / "run"


@dataclass(frozen=True, slots=True)
class FollowedRun:
    """The outcome of a run; ``began`` and ``ended`` are in monotonic seconds.

    ``failure`` says why the run did not come to its end, and ``evidence`` what there was then.
    """

    exit_codes: tuple[int, ...]
    began: float
    ended: float
    entries: tuple[Entry[Any], ...]
    struck: tuple[Struck, ...]
    leftovers: tuple[str, ...]
    failure: str | None = None
    evidence: str = ""


def follow_run(terms: RunTerms, agenda: Agenda) -> FollowedRun:
    """Run a job to its end while it is struck; leaves no process and no file of it behind."""
    terms.folder.mkdir(parents=True, exist_ok=True)
    follower = _Follower(terms, agenda)
    try:
        return follower.follow()
    finally:
        follower.close()


class _Follower:
    def __init__(self, terms: RunTerms, agenda: Agenda) -> None:
        self._terms = terms
        self._agenda = agenda
        self._traces = JobTraces(_VARIABLE)
        directory = RunDirectory(terms.run_dir)
        self._hosts = OtherHosts(directory, terms.hosts) if terms.hosts else None
        self._striker = Striker(self._traces, self._hosts)
        self._rule = Resubmission()
        self._reader = JournalReader(directory.journal_path)
        self._entries: list[Entry[Any]] = []
        self._newest: deque[Record] = deque(maxlen=_TAIL_RECORDS)
        self._progress = Progress()
        self._incarnations: list[Incarnation] = []
        self._exit_codes: list[int] = []
        self._began, self._moved = time.monotonic(), witnessed_s()
        self._starts_at: float | None = None

    def follow(self) -> FollowedRun:
        """Return the outcome."""
        self._start()
        failure = None
        while failure is None and self._exit_codes[-1:] != [0]:
            time.sleep(_LOOK_S)
            failure = self._look(time.monotonic())
        ended = time.monotonic()
        evidence = self._evidence() if failure else ""
        self._striker.end(time.monotonic(), self._progress.step, self._agenda.unstruck())
        leftovers = () if failure else self._leave()
        return FollowedRun(
            exit_codes=tuple(self._exit_codes),
            began=self._began,
            ended=ended,
            entries=tuple(self._entries),
            struck=tuple(self._striker.struck),
            leftovers=leftovers,
            failure=failure,
            evidence=evidence,
        )

    def close(self) -> None:
        """End every process of the job, and remove its files."""
        if self._hosts is not None:
            self._hosts.close()
        self._traces.kill_all()
        for incarnation in self._incarnations:
            incarnation.reap()
            incarnation.stderr.close()
        self._traces.remove_files(self._clients())

    def _look(self, now: float) -> str | None:
        """Look once at everything; return why the run is given up, None if it goes on."""
        self._read()
        for strike in self._agenda.due(now - self._began, self._progress):
            self._striker.order(strike, now)
        current = self._incarnations[-1]
        for struck in self._striker.poll(now, self._progress.step, current.pid):
            blow = struck.strike.blow
            if struck.has_hit and (blow.kind, blow.target) == (Kind.STOP, Target.CLIENT):
                current.is_standing = True
        if self._starts_at is not None:
            if now >= self._starts_at:
                self._start()
        elif current.is_standing:
            self._start()
        elif current.exit_code is not None:
            return self._after(current.exit_code, now)
        still_s = witnessed_s() - self._moved
        if still_s > self._terms.hang_after_s:
            return f"nothing has moved in the journal for {still_s:.0f} s"
        return None

    def _after(self, exit_code: int, now: float) -> str | None:
        """Start the job again if it has ended early; return why not, if it is not."""
        self._read()
        self._exit_codes.append(exit_code)
        self._moved = witnessed_s()
        if exit_code == 0:
            return None
        refusal = self._rule.refusal(exit_code, self._progress.step, now)
        if self._rule.is_suspended(now) and self._wake():
            return None
        is_owned = exit_code == ExitCode.RUN_DIRECTORY_BUSY
        self._starts_at = now + (_OWNED_PAUSE_S if is_owned else 0.0)
        return refusal

    def _wake(self) -> bool:
        """Let a job go on that was stopped as a whole, and follow it; return whether there is one.

        Its client and its agent both stand, so no other job may take the directory.
        """
        for incarnation in self._incarnations:
            if incarnation.is_standing and incarnation.exit_code is None:
                incarnation.is_standing = False
                incarnation.go_on()
                self._incarnations.remove(incarnation)
                self._incarnations.append(incarnation)
                return True
        return False

    def _start(self) -> None:
        self._starts_at = None
        command = run_command(self._terms.run_dir, self._terms.arguments)
        incarnation = Incarnation(command, self._traces, self._terms.folder)
        self._incarnations.append(incarnation)
        self._striker.use(Target.STDERR, incarnation.stderr)

    def _read(self) -> None:
        for incarnation in self._incarnations:
            incarnation.stderr.drain()
        with contextlib.suppress(OSError):  # there is none yet, or it was removed
            for record in self._reader.read():
                self._newest.append(record)
                self._moved = witnessed_s()
                for entry in entries_of([record]):
                    self._entries.append(entry)
                    self._progress.saw(entry)

    def _leave(self) -> tuple[str, ...]:
        """Give the processes their time to end, and name what stays."""
        for incarnation in self._incarnations:
            if incarnation.is_standing and incarnation.exit_code is None:
                incarnation.go_on()
        bound = Bound(ENDS_WITHIN_S)
        while (alive := self._traces.processes()) and not bound.has_passed:
            wait_all_ended(alive, _LOOK_S * 10)
            self._read()
            for incarnation in self._incarnations:
                incarnation.exit_code  # noqa: B018  (reaps it)
        return self._traces.leftovers(self._clients())

    def _clients(self) -> Sequence[int]:
        return [incarnation.pid for incarnation in self._incarnations]

    def _evidence(self) -> str:
        """Return the processes with their states, and the end of the journal."""
        lines = ["processes:"]
        lines += [
            f"  {pid} {name} {state_of(pid)}" for pid, name in self._traces.processes().items()
        ]
        lines += ["the end of the journal:"]
        lines += [f"  {json.dumps(record)}" for record in self._newest]
        return "\n".join(lines)


class Resubmission:
    """Decides on one run; pure."""

    def __init__(self) -> None:
        self._owned_since: float | None = None
        self._idle_jobs = 0
        self._step = -1

    def is_suspended(self, now: float) -> bool:
        """Return whether the owner of the directory seems to stand as a whole."""
        return self._owned_since is not None and now - self._owned_since > SUSPENDED_FOR_S

    def refusal(self, exit_code: int, step: int, now: float) -> str | None:
        """Return why the job is not started again, None if it is.

        ``exit_code`` is not 0, and negative for a signal; ``step`` is the run's highest so far;
        ``now`` is in monotonic seconds.
        """
        if exit_code == ExitCode.RUN_DIRECTORY_BUSY:
            if self._owned_since is None:
                self._owned_since = now
            owned_s = now - self._owned_since
            busy = f"another job has owned the run directory for {owned_s:.0f} s"
            return busy if owned_s > OWNED_FOR_S else None
        self._owned_since = None
        if exit_code > 0 and exit_code not in _AGAIN:
            return f"the job ended with exit code {exit_code}"
        self._idle_jobs = 0 if step > self._step else self._idle_jobs + 1
        self._step = max(step, self._step)
        if self._idle_jobs >= MOST_IDLE_JOBS:
            return f"{self._idle_jobs} jobs in a row ended early without a new step"
        return None


def run_command(run_dir: Path, arguments: Sequence[str]) -> tuple[str, ...]:
    """Return the command line of ``holdfast run`` with these arguments in ``run_dir``."""
    return program_command(MAIN, "run", "--run-dir", str(run_dir), *arguments)


def _surroundings() -> dict[str, str]:
    """Return an environment in which a run goes on, and no batch job is requeued for it."""
    environment = outside_of_batch(os.environ)
    environment.pop(CHAIN, None)
    # It counts more than a holdfast.toml.
    return environment | {"HOLDFAST_FRESH": "no", CHAOS_DRAWS: _draw_seed()}


@functools.cache
def _draw_seed() -> str:
    """Return what a run and its twin draw from, where their script gives no seed."""
    return RunRecord.new_draw_seed()


class Incarnation:
    """The client of a run, from its start to its end."""

    def __init__(self, command: Sequence[str], traces: JobTraces, folder: Path) -> None:
        """Start it; its output is appended to ``stdout.txt`` and ``stderr.txt`` in ``folder``."""
        self.stderr = StderrPipe(folder / "stderr.txt")
        with (folder / "stdout.txt").open("ab") as out:
            self._process = subprocess.Popen(
                command,
                env=traces.environment(_surroundings()),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=self.stderr.write_fd,
                start_new_session=True,
            )
        self.stderr.started()
        self.is_standing = False

    @property
    def pid(self) -> int:
        """The process id of the client."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """The exit code, negative for a signal, None while it lives."""
        return self._process.poll()

    def go_on(self) -> None:
        """Wake it up, if it was stopped."""
        self._process.send_signal(signal.SIGCONT)

    def reap(self) -> None:
        """Wait for its end."""
        self._process.wait()


class StderrPipe:
    """The pipe, and the file that its text goes to."""

    def __init__(self, text_path: Path) -> None:
        """Make a pipe; text is appended to ``text_path``."""
        self._text_path = text_path
        self._read_fd, self.write_fd = os.pipe()
        os.set_blocking(self._read_fd, False)
        self._is_held = False

    def started(self) -> None:
        """Close this process's copy of the end that a child has inherited."""
        os.close(self.write_fd)

    def fill(self) -> None:
        """Take the last free byte, and read nothing until ``release``."""
        self._is_held = True
        # Another open file description: the job's own stays one that blocks.
        descriptor = os.open(f"/proc/self/fd/{self._read_fd}", os.O_WRONLY | os.O_NONBLOCK)
        try:
            for size in _PIECES:
                with contextlib.suppress(BlockingIOError):  # there is no room left
                    while True:
                        os.write(descriptor, bytes(size))
        finally:
            os.close(descriptor)

    def release(self) -> None:
        """Read again."""
        self._is_held = False

    def drain(self) -> None:
        """Read what has come, without waiting."""
        while not self._is_held:
            try:
                text = os.read(self._read_fd, _READ_BYTES)
            except BlockingIOError:
                return
            if not text:
                return
            with self._text_path.open("ab") as file:
                file.write(text.replace(b"\0", b""))

    def close(self) -> None:
        """Read the rest, and close the pipe."""
        self.release()
        self.drain()
        os.close(self._read_fd)
