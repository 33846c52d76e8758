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
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from holdfast.runtime.batch.schedulers import find_allocation, options_of
from holdfast.runtime.commands.reported_run import metric_columns, read_reported_run
from holdfast.runtime.errors import ExitCode, JobError, ProgramError, UsageError
from holdfast.runtime.options.job_options import OPTIONS
from holdfast.runtime.options.option import RUN
from holdfast.runtime.options.sources import (
    CONFIG_FILE,
    Sources,
    build_options,
    check_script,
    nearest,
    read_config_file,
    removal_of_key,
)
from holdfast.runtime.system.own_process import module_command
from holdfast.runtime.worker import context as contexts

_WENT_WELL = (ExitCode.DONE, ExitCode.STOPPED_EARLY)

_FLAGS = {
    flag.lstrip("-").replace("-", "_"): name
    for name, option in OPTIONS.items()
    if RUN in option.commands
    for flag in option.flags
}
"""The field behind each name that an option has on the command line."""


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


@dataclass(frozen=True, slots=True)
class LaunchResult:
    """What came of a job.

    Attributes:
        exit_code: 0, or 75 for a job that was stopped with a checkpoint: launch it again.
        run_dir: where the run lives.
        sha256: the digest of the final state, None while the run is not complete.
        history: each metric by epochs, those of validation with ``val_`` before their names.
    """

    exit_code: int
    run_dir: Path
    sha256: str | None
    history: dict[str, list[float]] = field(default_factory=dict)


def launch(script: str | os.PathLike[str], *args: Any, **options: Any) -> LaunchResult:
    """Run a script on all workers of a job; wait, and return what came of it.

    Args:
        script: a Python file.
        *args: the script's own arguments.
        **options: options of ``holdfast run`` by the names of their flags: ``n=4``,
            ``save_every="10min"``, ``shrink=False``.

    Raises:
        UsageError: an option or the script makes no sense; nothing was started.
        ProgramError: it was called in a worker of a job.
        LaunchFailed: the job has failed.
    """
    if contexts.is_worker():
        raise ProgramError(
            "holdfast.launch() was called in a worker of a job; call it in a program of its own, "
            'or guard it with `if __name__ == "__main__":` in a module that workers import'
        )
    if callable(script):
        name = getattr(script, "__name__", type(script).__name__)
        raise UsageError(
            f"launch() runs a script, and {name} is a function: write it into a file that calls "
            f'it, and launch("{name}.py"); what it would return, let the first worker write'
        )
    given = fields_of(options)
    path, argv = Path(script), tuple(map(str, args))
    check_script(path)
    allocation = options_of(find_allocation(os.environ))
    table = read_config_file(Path(CONFIG_FILE)).get(RUN, {})
    sources = Sources(given, os.environ, table, Path.cwd(), allocation=allocation)
    run_dir = build_options(path, argv, sources).options.run_dir  # its errors are raised here
    return _outcome(_run_to_end(command_of(path, argv, given)), run_dir)


def fields_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options by the names of their fields; None is an option that is not given.

    Raises:
        UsageError: there is no such option.
    """
    for name in options:
        if name not in _FLAGS:
            hint = nearest(name, _FLAGS, "`holdfast run --help` lists them")
            raise UsageError(removal_of_key(name) or f"launch() has no option {name!r}; {hint}")
    return {_FLAGS[name]: value for name, value in options.items() if value is not None}


def command_of(script: Path, argv: tuple[str, ...], given: Mapping[str, Any]) -> list[str]:
    """Return the command line of a job with these options, by field."""
    line = [*module_command("holdfast", RUN)]
    for name, value in given.items():
        option = OPTIONS[name]
        if option.is_switch:
            off = [option.off_flag] if option.off_flag else []
            line += [option.flags[-1]] if option.read(value) else off
            continue
        several = value if option.is_repeated and not isinstance(value, str) else [value]
        for one in several:
            words = one if isinstance(one, (list, tuple)) else [one]
            joined = words if option.words > 1 else [",".join(map(str, words))]
            line += [option.flags[-1], *map(str, joined)]
    return [*line, "--", str(script), *argv]


def _run_to_end(command: list[str]) -> int:
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


def _outcome(code: int, run_dir: Path) -> LaunchResult:
    """Return what came of a job, or raise what has ended it."""
    report = None
    try:
        report = read_reported_run(run_dir).report
    except UsageError:  # it has not begun
        if code in _WENT_WELL:
            raise
    if report is None or code not in _WENT_WELL:
        reason = report.reason if report is not None and report.exit_code == code else None
        why = reason or "its last lines say why"
        raise LaunchFailed(
            f"the job in {run_dir} ended with exit code {code}: {why}", code, run_dir
        )
    columns = metric_columns(report.epochs).items()
    history = {name: [one for one in column if one is not None] for name, column in columns}
    return LaunchResult(code, run_dir, report.final_sha256, history)
