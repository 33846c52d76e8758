"""What runs for a start, a save, a death or a gradient: functions, lines and files by process.

    python ci/walk.py start|save|death|gradient [--files]

A real job of two workers trains.  Its calls are noted for some seconds in which nothing else
happens: that is the walk of a gradient.  Then they are noted while ``holdfast save`` waits for
a checkpoint, or from the kill of a worker on.  What is called only then is the walk of a save,
pruning of an older step included, or of a death.  A start is noted from ``holdfast run`` on, up
to the first step; what runs later while the job only trains is no part of it.  ``--files``
prints the lines of each file.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeAlias

from holdfast.testing import JobRequest, RunningJob, start_job

HERE = Path(__file__).resolve().parent
SCRIPT = HERE.parent / "examples" / "02_custom_replica.py"
ENDLESS = ("--samples", "4000", "--global-batch", "40", "--epochs", "1000000")
SAVE_COMMAND = "from holdfast.runtime.commands.main import main; main()"
TRACE = str(HERE / "call_trace")
NOTHING, BEFORE, WALK = range(3)
QUIET_S = 8.0
"""Long enough for all that happens only now and then."""

Calls: TypeAlias = dict[str, dict[str, int]]
"""The lines of each function that was called, by kind of process and place of the function."""


def main() -> int:
    """Print the table; return 1 if the save failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("walk", choices=("start", "gradient", *_ACTS))
    parser.add_argument("--files", action="store_true", help="print the lines of each file")
    parser.add_argument("--quiet-s", type=float, default=QUIET_S, help="how long nothing happens")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="holdfast-walk-") as name:
        place = Path(name)
        (place / "window").write_bytes(bytes([WALK if options.walk == "start" else NOTHING]))
        with start_job(_request(place)) as job:
            if options.walk == "start":
                job.wait_for("step", step=1)
                _open_window(place, NOTHING)
            job.wait_for("epoch", epoch=2)
            code = _trace(place, job, options.walk, options.quiet_s)
        calls = _calls_of(place, WALK if options.walk != "gradient" else BEFORE)
    _print_table(calls)
    if options.files:
        _print_files(calls)
    return code


def _request(place: Path) -> JobRequest:
    return JobRequest(
        script=SCRIPT,
        run_dir=place / "run",
        workers=2,
        microbatches=2,
        argv=[*ENDLESS, "--save-every", "1000000000"],
        options=["--threads", "1"],
        environment={
            "HOLDFAST_CALL_TRACE": str(place),
            "PYTHONPATH": os.pathsep.join(filter(None, (TRACE, os.environ.get("PYTHONPATH")))),
        },
    )


def _trace(place: Path, job: RunningJob, walk: str, quiet_s: float) -> int:
    """Let the job train, and let the walk begin; return the exit code."""
    if walk == "save":
        _save(place, job)  # the first one loads code
    _open_window(place, BEFORE)
    time.sleep(quiet_s)
    code = 0
    if walk in _ACTS:
        _open_window(place, WALK)
        code = _ACTS[walk](place, job)
        time.sleep(1.0)  # an older step may be removed
    _open_window(place, NOTHING)
    job.signal(signal.SIGTERM)
    job.wait()
    return code


def _save(place: Path, _: RunningJob) -> int:
    command = [sys.executable, "-c", SAVE_COMMAND, "save", str(place / "run")]
    return subprocess.run(command, check=False).returncode


def _die(_: Path, job: RunningJob) -> int:
    job.signal(signal.SIGKILL, "holdfast-w1")
    job.wait_for("recovery")
    return 0


_ACTS: dict[str, Callable[[Path, RunningJob], int]] = {"save": _save, "death": _die}
"""What is done to the job; for the other walks it only trains."""


def _open_window(place: Path, window: int) -> None:
    with (place / "window").open("r+b") as file:
        file.write(bytes([window]))


def _calls_of(place: Path, window: int) -> Calls:
    """Return what was called in a window, and in none before it."""
    windows: tuple[Calls, ...] = (defaultdict(dict), defaultdict(dict), defaultdict(dict))
    for log in place.iterdir():
        if log.name.isdigit():
            for line in log.read_text().splitlines():
                found, process, function, lines = line.split()
                windows[int(found)][_kind(process)][function] = int(lines)
    before: Mapping[str, Mapping[str, int]] = windows[window - 1]
    return {
        kind: {name: n for name, n in calls.items() if name not in before.get(kind, {})}
        for kind, calls in sorted(windows[window].items())
    }


def _kind(process: str) -> str:
    """Return the kind of a process by its name: all workers are one kind."""
    name = process.removeprefix("holdfast-")
    if name[:1] == "w" and name[1:].isdigit():
        return "worker"
    return name if name != process else "client"


def _print_table(calls: Calls) -> None:
    print(f"{'process':12}{'functions':>10}{'lines':>8}{'files':>7}")
    whole: dict[str, int] = {}
    for kind, functions in calls.items():
        whole.update(functions)
        _print_row(kind, functions)
    _print_row("all", whole)


def _print_row(kind: str, functions: Mapping[str, int]) -> None:
    files = {_file_of(name) for name in functions}
    print(f"{kind:12}{len(functions):10}{sum(functions.values()):8}{len(files):7}")


def _print_files(calls: Calls) -> None:
    for kind, functions in calls.items():
        lines: Counter[str] = Counter()
        for name, count in functions.items():
            lines[_file_of(name)] += count
        for file, count in lines.most_common():
            print(f"{kind:12}{count:6}  {file}")


def _file_of(function: str) -> str:
    return function.rpartition(":")[0]


if __name__ == "__main__":
    sys.exit(main())
