"""``holdfast.launch``: a job from Python, as ``holdfast run`` starts it.

The job is ``holdfast run`` in a process of its own, with its own client: a notebook's process has
threads and signals that are not ours.  It goes on if this process dies, and the same call shows it
again and returns what came of it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from holdfast.runtime.errors import ExitCode, JobError, ProgramError, UsageError
from holdfast.runtime.launch import launched_function
from holdfast.runtime.launch.command import checked, command_of, fields_of
from holdfast.runtime.options.sources import check_script
from holdfast.runtime.tools.report import metric_columns
from holdfast.runtime.tools.reported_run import read_reported_run
from holdfast.runtime.worker import context as contexts

_WENT_WELL = (ExitCode.DONE, ExitCode.STOPPED_EARLY)


class LaunchFailed(JobError):
    """A job that ``launch`` has started has failed.

    Attributes:
        code: the exit code of the job, negative if a signal has killed its client.
        run_dir: where the job has left its checkpoints and its journal.
    """

    def __init__(self, message: str, code: int, run_dir: Path) -> None:
        super().__init__(message)
        self.code = code
        self.run_dir = run_dir


class WorkerTraceback(Exception):
    """The traceback of a worker, as the cause of the error that ``launch`` raises."""

    def __str__(self) -> str:
        """Return the traceback as Python prints it."""
        return f'\n"""\n{self.args[0]}"""'


@dataclass(frozen=True, slots=True)
class LaunchResult:
    """What came of a job.

    Attributes:
        value: what the function has returned on the first worker; None for a script, and for a job
            that was stopped early.
        exit_code: 0, or 75 for a job that was stopped with a checkpoint: launch it again.
        run_dir: where the run lives.
        sha256: the digest of the final state, None while the run is not complete.
        history: each metric by epochs, those of validation with ``val_`` before their names.
    """

    value: Any
    exit_code: int
    run_dir: Path
    sha256: str | None
    history: dict[str, list[float]] = field(default_factory=dict)


def launch(
    script_or_function: str | os.PathLike[str] | Callable[..., Any], *args: Any, **options: Any
) -> LaunchResult:
    """Run a script, or call a function, on all workers of a job; wait, and return what came of it.

    Every worker calls the function, which trains as a script does.  Each call of a function with
    other arguments has a run of its own, and the same call goes on with the same run.

    Args:
        script_or_function: a Python file, or a function that cloudpickle can write.
        *args: the script's own arguments, or those of the function.
        **options: options of ``holdfast run`` by the names of their flags: ``n=4``,
            ``save_every="10min"``, ``shrink=False``.

    Raises:
        UsageError: an option, the script or the function makes no sense; nothing was started.
        ProgramError: it was called in a worker of a job.
        LaunchFailed: the job has failed.  An error of the function is raised itself, with the
            traceback of its worker as its cause.
    """
    if contexts.is_worker():
        raise ProgramError(
            "holdfast.launch() was called in a worker of a job; call it in a program of its own, "
            'or guard it with `if __name__ == "__main__":` in a module that workers import'
        )
    given = fields_of(options)
    if callable(script_or_function):
        call = launched_function.Call.of(script_or_function, args)
        options_of_call = checked(Path(f"{call.name}-{call.digest[:8]}.py"), (), given).options
        run_dir = options_of_call.run_dir
        script = call.write(run_dir, is_fresh=options_of_call.fresh)
        code = run_to_end(command_of(script, (), {**given, "run_dir": run_dir}))
        return _outcome(code, run_dir, script)
    script, argv = Path(script_or_function), tuple(map(str, args))
    check_script(script)
    run_dir = checked(script, argv, given).options.run_dir
    return _outcome(run_to_end(command_of(script, argv, given)), run_dir, None)


def run_to_end(command: list[str]) -> int:
    """Run a job's client to its end; return its exit code.

    An interrupt stops the job as Ctrl-C does, and is raised when the job has ended.
    """
    is_plain = sys.stdout is sys.__stdout__ and sys.stderr is sys.__stderr__
    pipe = None if is_plain else subprocess.PIPE  # a notebook shows what Python prints
    process = subprocess.Popen(command, stdout=pipe, stderr=pipe, start_new_session=True)
    ends = ((process.stdout, sys.stdout), (process.stderr, sys.stderr))
    copies = [threading.Thread(target=_copy, args=pair) for pair in ends if pair[0] is not None]
    for copy in copies:
        copy.start()
    interrupt: KeyboardInterrupt | None = None
    code: int | None = None
    while code is None:
        try:
            code = process.wait()
        except KeyboardInterrupt as asked:
            interrupt = asked
            process.send_signal(signal.SIGINT)
    for copy in copies:
        copy.join()
    if interrupt is not None:
        raise interrupt
    return code


def _copy(source: IO[bytes], to: IO[str]) -> None:
    with source:
        for line in iter(source.readline, b""):
            to.write(line.decode(errors="replace"))
            to.flush()


def _outcome(code: int, run_dir: Path, function: Path | None) -> LaunchResult:
    """Return what came of a job, or raise what has ended it."""
    report = None
    try:
        report = read_reported_run(run_dir).report
    except UsageError:  # it has not begun
        if code in _WENT_WELL:
            raise
    if report is None or code not in _WENT_WELL:
        error, trace = launched_function.failure_of(function) if function else (None, "")
        cause = WorkerTraceback(trace) if trace else None
        if error is not None:
            raise error from cause
        reason = report.reason if report is not None and report.exit_code == code else None
        why = reason or "its last lines say why"
        text = f"the job in {run_dir} ended with exit code {code}: {why}"
        raise LaunchFailed(text, code, run_dir) from cause
    columns = metric_columns(report.epochs).items()
    history = {name: [one for one in column if one is not None] for name, column in columns}
    is_over = code == ExitCode.DONE and function is not None
    value = launched_function.result_of(function) if is_over and function else None
    return LaunchResult(value, code, run_dir, report.final_sha256, history)
