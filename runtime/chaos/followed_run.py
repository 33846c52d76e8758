"""A run that is started, struck, started again and followed to its end.

This is the job of a batch system, or of a patient user.  ``holdfast run`` is typed again when
a job was asked to stop, when its supervisor died, and when its supervisor stands still.
Every wait has a bound: when the journal stands still for too long, the run *hangs*, and is
ended with the evidence.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast.runtime.chaos.agenda import Agenda, Progress
from holdfast.runtime.chaos.incarnation import Incarnation, run_command
from holdfast.runtime.chaos.job_traces import ENDS_WITHIN_S, JobTraces
from holdfast.runtime.chaos.resubmission import Resubmission
from holdfast.runtime.chaos.strike import Kind, Target
from holdfast.runtime.chaos.striker import Place, Striker, Struck
from holdfast.runtime.errors import ExitCode
from holdfast.runtime.run.journal import JournalReader, Record
from holdfast.runtime.run.run_directory import RunDirectory
from holdfast.runtime.system.process_status import state_of
from holdfast.runtime.system.processes import wait_all_ended
from holdfast.runtime.system.witnessed_time import Bound, witnessed_s

_VARIABLE = "HOLDFAST_CHAOS_JOB"
_LOOK_S = 0.02
_TAIL_RECORDS = 12
_OWNED_PAUSE_S = 3.0
"""A user who reads "run again in a minute" waits a little, too."""


@dataclass(frozen=True, slots=True)
class RunTerms:
    """One run: the arguments of ``holdfast run``, its folder, and how long it may stand still.

    The run directory is ``run`` in ``folder``, or in ``disk``.
    """

    arguments: tuple[str, ...]
    folder: Path
    hang_after_s: float
    disk: Path | None = None

    @property
    def run_dir(self) -> Path:
        """The run directory."""
        return (self.disk or self.folder) / "run"


@dataclass(frozen=True, slots=True)
class FollowedRun:
    """The outcome of a run; ``began`` and ``ended`` are in monotonic seconds.

    ``failure`` says why the run did not come to its end, and ``evidence`` what there was then.
    """

    exit_codes: tuple[int, ...]
    began: float
    ended: float
    records: tuple[Record, ...]
    struck: tuple[Struck, ...]
    leftovers: tuple[str, ...]
    failure: str | None = None
    evidence: str = ""


def follow_run(
    terms: RunTerms, agenda: Agenda, places: Mapping[Target, Place] | None = None
) -> FollowedRun:
    """Run a job to its end while it is struck; leaves no process and no file of it behind."""
    terms.folder.mkdir(parents=True, exist_ok=True)
    follower = _Follower(terms, agenda, places or {})
    try:
        return follower.follow()
    finally:
        follower.close()


class _Follower:
    def __init__(self, terms: RunTerms, agenda: Agenda, places: Mapping[Target, Place]) -> None:
        self._terms = terms
        self._agenda = agenda
        self._traces = JobTraces(_VARIABLE)
        self._striker = Striker(self._traces, places)
        self._rule = Resubmission()
        self._reader = JournalReader(RunDirectory(terms.run_dir).journal_path)
        self._records: list[Record] = []
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
            records=tuple(self._records),
            struck=tuple(self._striker.struck),
            leftovers=leftovers,
            failure=failure,
            evidence=evidence,
        )

    def close(self) -> None:
        """End every process of the job, and remove its files."""
        self._traces.kill_all()
        for incarnation in self._incarnations:
            incarnation.reap()
            incarnation.stderr.close()
        self._traces.remove_files(self._supervisors())

    def _look(self, now: float) -> str | None:
        """Look once at everything; return why the run is given up, None if it goes on."""
        self._read()
        for strike in self._agenda.due(now - self._began, self._progress):
            self._striker.order(strike, now)
        current = self._incarnations[-1]
        for struck in self._striker.look(now, self._progress.step, current.pid):
            self._note_standing(struck, current)
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

    def _note_standing(self, struck: Struck, current: Incarnation) -> None:
        blow = struck.strike.blow
        if struck.has_hit and blow.target is Target.SUPERVISOR and blow.kind is Kind.STOP:
            current.is_standing = True

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

        Its supervisor and its agent both stand, so no other job may take the directory.
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
                self._records.append(record)
                self._progress.saw(record)
                self._moved = witnessed_s()

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
        return self._traces.leftovers(self._supervisors())

    def _supervisors(self) -> Sequence[int]:
        return [incarnation.pid for incarnation in self._incarnations]

    def _evidence(self) -> str:
        """Return the processes with their states, and the end of the journal."""
        lines = ["processes:"]
        lines += [
            f"  {pid} {name} {state_of(pid)}" for pid, name in self._traces.processes().items()
        ]
        lines += ["the end of the journal:"]
        lines += [f"  {json.dumps(record)}" for record in self._records[-_TAIL_RECORDS:]]
        return "\n".join(lines)
