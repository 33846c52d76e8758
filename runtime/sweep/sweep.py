"""The process of ``holdfast sweep``: trials of a study, side by side, each a run of its own.

The study and the run directories of the trials are all that a sweep knows.  So one that was killed,
or stopped, is run again, and goes on: a trial that the study has as running is resumed.  No trial
counts twice, as only a job that has ended ends its trial.  The clients of a sweep that is killed
get SIGTERM, so no job goes on unseen.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.runtime.errors import ExitCode, RunDirectoryBusy, UsageError
from holdfast.runtime.launch.command import checked, command_of
from holdfast.runtime.run.progress import count
from holdfast.runtime.run.run_directory import RunDirectory
from holdfast.runtime.sweep.study import (
    OUTPUT,
    StudyTerms,
    SweepStudy,
    TrialRecord,
    TrialTerms,
    TrialView,
)
from holdfast.runtime.system.own_process import usable_cores
from holdfast.runtime.tools.reported_run import read_reported_run

_POLL_S = 0.1
_MOST_STARTS = 3
"""A client that is killed is started again so often, with a job that goes on or resumes."""

_LEASE_WAIT_S = 60
"""What a killed client has left may need a while to go."""

_MAY_GO_ON = (ExitCode.STOPPED_EARLY, ExitCode.RUN_DIRECTORY_BUSY)
_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class SweepTerms:
    """A sweep as its user asks for it.

    ``parallel`` is None for as many trials as the cores have room for; ``given`` are the options of
    each job, by field.
    """

    study: StudyTerms
    trials: int
    parallel: int | None
    directory: Path
    script: Path
    argv: tuple[str, ...]
    given: Mapping[str, Any]


@dataclass(slots=True)
class _Running:
    """A trial whose client runs.

    ``was_left`` tells that a sweep before has begun it: its job may be just stopping for that.
    """

    number: int
    run_dir: Path
    client: subprocess.Popen[bytes]
    was_left: bool
    starts: int = 1
    stops: int = 0


class Sweep:
    """A sweep at work.

    Args:
        terms: what it is to do.
        say: shows one line.

    Raises:
        UsageError: an option makes no sense, or the study cannot be opened.
    """

    def __init__(self, terms: SweepTerms, say: Callable[[str], None]) -> None:
        built = checked(terms.script, terms.argv, terms.given)
        options = built.options
        if options.fresh:
            raise UsageError("--fresh is not for a sweep; name another --run-dir and --name")
        if len(options.hosts) > 1:
            raise UsageError(
                f"a sweep trains on one host, and --hosts names {len(options.hosts)}; leave it out"
            )
        self._terms = terms
        self._say = say
        self._workers = options.workers + options.spares
        self._parallel = terms.parallel or max(1, usable_cores() // self._workers)
        if options.metrics is not None and self._parallel > 1:
            raise UsageError(
                f"--metrics-file and --metrics-port are of one job, and {self._parallel} trials "
                "run side by side; leave them out, or add --parallel 1"
            )
        self._has_threads = "threads" in built.origins
        self._name = str(terms.directory.resolve())
        self._stops, self._last_stop = 0, signal.SIGTERM
        self._running: list[_Running] = []
        say(  # at once: the library of the study and the first trial take seconds
            f"{count(terms.trials, 'trial')} of {terms.script.name}, {self._parallel} at a time on "
            f"{count(self._workers, 'worker')} each: `holdfast list {terms.directory}` shows them"
        )
        self._study = SweepStudy(terms.study)

    def run(self) -> ExitCode:
        """Run trials until there are enough, or a signal stops the sweep.

        Raises:
            RunDirectoryBusy: another sweep works in the directory.
        """
        for signum in _STOPS:
            signal.signal(signum, self._stop)
        with _owned(self._terms.directory):
            waiting = [t.number for t in self._trials() if t.state == "running"]
            begun = len(self._trials())
            if begun and (waiting or begun < self._terms.trials):
                self._say(f"{begun} of {self._terms.trials} trials are there; going on")
            while self._running or (not self._stops and (waiting or begun < self._terms.trials)):
                while not self._stops and len(self._running) < self._parallel:
                    if waiting:
                        self._start(waiting.pop(0), was_left=True)
                    elif begun < self._terms.trials:
                        self._start(self._study.begin(self._name), was_left=False)
                        begun += 1
                    else:
                        break
                self._pass_stops_on()
                self._reap()
                time.sleep(_POLL_S)
            return self._end()

    def _trials(self) -> list[TrialView]:
        return self._study.trials(self._name)

    def _start(self, number: int, *, was_left: bool) -> None:
        """Start or resume a trial, or show the job of one that lives."""
        run_dir = self._terms.directory / f"trial-{number}"
        TrialTerms(self._terms.study, number).write(run_dir)
        self._running.append(_Running(number, run_dir, self._client(run_dir), was_left))
        self._say(f"trial {number} is in {run_dir}")

    def _client(self, run_dir: Path, *, wait_s: int = 0) -> subprocess.Popen[bytes]:
        given = {**self._terms.given, "run_dir": run_dir}
        if wait_s:
            given.setdefault("wait_lease_s", wait_s)
        if not self._has_threads and not RunDirectory(run_dir).record_path.exists():
            given["threads"] = max(1, usable_cores() // (self._workers * self._parallel))
        line = command_of(self._terms.script, self._terms.argv, given, dies_of=signal.SIGTERM)
        with (run_dir / OUTPUT).open("ab") as output:
            return subprocess.Popen(
                line, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )

    def _reap(self) -> None:
        """End the trials whose jobs have ended."""
        for running in list(self._running):
            code = running.client.poll()
            if code is None:
                continue
            is_left = code < 0 or (code in _MAY_GO_ON and running.was_left)
            if is_left and not self._stops and running.starts < _MOST_STARTS:
                running.client = self._client(running.run_dir, wait_s=_LEASE_WAIT_S)
                running.starts += 1
                why = "has lost its client" if code < 0 else "was stopped with the sweep before"
                self._say(f"trial {running.number} {why}, and is taken over")
                continue
            self._running.remove(running)
            self._finish(running, code)

    def _finish(self, running: _Running, code: int) -> None:
        number, was_stopped = running.number, self._stops > 0 and code != ExitCode.DONE
        outcome = None if was_stopped else _outcome(running.run_dir, code)
        if outcome is None:
            self._say(f"trial {number} was stopped early; run the sweep again to go on with it")
            return
        self._study.end(number, *outcome)
        trial = next(found for found in self._trials() if found.number == number)
        self._say(f"trial {number} {describe(trial)}")

    def _stop(self, signum: int, _frame: object) -> None:
        self._stops, self._last_stop = self._stops + 1, signal.Signals(signum)

    def _pass_stops_on(self) -> None:
        """Pass stops on to all jobs: they save and end, at a second one at once."""
        for running in self._running:
            while running.stops < self._stops:
                running.stops += 1
                running.client.send_signal(self._last_stop)

    def _end(self) -> ExitCode:
        """Say what came of the sweep; return its exit code."""
        trials = self._trials()
        counts = dict.fromkeys(("complete", "pruned", "fail", "running"), 0)
        for trial in trials:
            counts[trial.state] = counts.get(trial.state, 0) + 1
        words = {"fail": "failed", "running": "to go on with"}
        told = [f"{many} {words.get(state, state)}" for state, many in counts.items() if many]
        self._say(f"{len(trials)} of {self._terms.trials} trials: {', '.join(told) or 'none'}")
        best = self._study.best(self._name)
        if best is not None:
            self._say(f"best: trial {best.number} {describe(best)}")
            self._say(f"its run is in {self._terms.directory / f'trial-{best.number}'}")
        if counts["running"] or len(trials) < self._terms.trials:
            return ExitCode.STOPPED_EARLY
        return ExitCode.DONE if best is not None else ExitCode.PROGRAM_FAILED


def describe(trial: TrialView) -> str:
    """Return how a trial ended, its value and its parameters, in words."""
    parameters = (
        f"{name}={value:.6g}" if isinstance(value, float) else f"{name}={value}"
        for name, value in trial.parameters.items()
    )
    of = f" ({', '.join(parameters)})" if trial.parameters else ""
    value = "" if trial.value is None else f" {trial.value:.6g}"
    if trial.state == "fail":
        return f"failed{of}: {trial.attributes.get('reason')}"
    return f"{'pruned at' if trial.state == 'pruned' else 'has'}{value}{of}"


def _outcome(run_dir: Path, code: int) -> tuple[str, float | None, dict[str, Any]] | None:
    """Return how a trial has ended, its value and attributes; None if its job may go on."""
    if code in _MAY_GO_ON:
        return None
    record, report = TrialRecord(run_dir), None
    with contextlib.suppress(UsageError):  # the job has not begun
        report = read_reported_run(run_dir).report
    attributes: dict[str, Any] = {"run_dir": str(run_dir.absolute()), "exit_code": code}
    if report is not None and report.final_sha256 is not None:
        attributes["sha256"] = report.final_sha256
    reason = (report.reason if report is not None else None) or _last_line(run_dir / OUTPUT)
    # A script may end itself by Optuna's own error, once the trial is pruned.
    if record.is_pruned and (code == ExitCode.DONE or reason.startswith("TrialPruned")):
        return "pruned", None, attributes
    if code != ExitCode.DONE:
        return "fail", None, attributes | {"reason": reason}
    value = record.value
    if value is not None and not math.isnan(value):
        return "complete", value, attributes
    why = "its script has told no value: call holdfast.trial().tell(value)"
    return "fail", None, attributes | {"reason": why if value is None else "it is NaN"}


def _last_line(path: Path) -> str:
    with contextlib.suppress(OSError):
        lines = path.read_text(errors="replace").split("\n")
        return next((line for line in reversed(lines) if line.strip()), "").strip()
    return ""


@contextlib.contextmanager
def _owned(directory: Path) -> Iterator[None]:
    """Hold the directory of a sweep; the lock ends with this process."""
    if RunDirectory(directory).record_path.exists():
        raise UsageError(f"{directory} holds a run; name another --run-dir for the sweep")
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "sweep.lock").open("a") as lock:  # it is not inheritable (PEP 446)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise RunDirectoryBusy(f"another sweep works in {directory}") from error
        yield
