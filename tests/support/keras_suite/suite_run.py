"""Runs a script of the Keras suite in its three ways, and tells what is not as it must be."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from suite_files import files_in, other_bytes, other_numbers
from suite_table import SuiteScript

from holdfast.testing import JobRequest, JobRun, start_job

MICROBATCHES = 3
THREADS = 1
TIMEOUT_S = 300.0
OPTIONS = (
    *("--threads", str(THREADS), "--save-every", "2", "--heartbeat-timeout", "30"),
    *("--regrow", "never"),
)
"""The same for both jobs: a checkpoint of every second step is in the middle of an epoch.

The deaths name workers of the first launch.
"""

OF_THE_KILLED = "__autograph_generated_file"
"""TensorFlow's temporary files; a process that is killed cannot remove its own."""


@dataclass(slots=True)
class Outcome:
    """What became of one script: ``complaints`` is empty if all was as it must be."""

    script: SuiteScript
    complaints: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    sha256: str | None = None

    def __str__(self) -> str:
        times = ", ".join(f"{way} {seconds:.0f} s" for way, seconds in self.seconds.items())
        if self.complaints:
            return f"{self.script.name}: FAILED: {'; '.join(self.complaints)} ({times})"
        digest = f"same bytes {(self.sha256 or '')[:12]}, " if self.sha256 else ""
        return f"{self.script.name}: {digest}fit {self.script.nearness} ({times})"


def run_script(script: SuiteScript, folder: Path) -> Outcome:
    """Run a script in its three ways, each in a directory of its own below ``folder``.

    What plain Keras has written there already is taken as it is.
    """
    outcome = Outcome(script)
    complaints = outcome.complaints
    if not _plain(outcome, folder / "plain"):
        return outcome
    alone = _job(outcome, folder / "one")
    if alone is None:
        return outcome
    outcome.sha256 = alone.sha256
    plain, one = files_in(folder / "plain"), files_in(folder / "one")
    complaints += [f"fit: {c}" for c in other_numbers(one, plain, script.nearness)]
    struck = _job(outcome, folder / "three", workers=3, faults=script.faults)
    if struck is not None:
        complaints += [f"-n 3: {c}" for c in _unlike(struck, alone)]
        complaints += [f"-n 3: {c}" for c in other_bytes(files_in(folder / "three"), one)]
    return outcome


def run_plain(script: SuiteScript, folder: Path) -> Outcome:
    """Run a script under plain Keras alone."""
    outcome = Outcome(script)
    _plain(outcome, folder / "plain")
    return outcome


def _plain(outcome: Outcome, directory: Path) -> bool:
    """Run the script under plain Keras, with as many threads as a worker; say if it ended well."""
    if directory.exists():
        return True
    attempt = _empty(directory.with_name("plain.unfinished"))
    threads = {f"TF_NUM_{kind}_THREADS": str(THREADS) for kind in ("INTRAOP", "INTEROP")}
    begun = time.monotonic()
    done = subprocess.run(
        [sys.executable, str(outcome.script.path)],
        cwd=attempt,
        env={**os.environ, **threads},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    outcome.seconds["plain"] = time.monotonic() - begun
    if done.returncode != 0:
        outcome.complaints.append(f"plain: exit code {done.returncode}: {_last(done.stderr)}")
        return False
    attempt.rename(directory)
    return True


def _job(
    outcome: Outcome, directory: Path, *, workers: int = 1, faults: tuple[str, ...] = ()
) -> JobRun | None:
    """Run the script under holdfast; return the job if it ended well."""
    request = JobRequest(
        script=outcome.script.path,
        run_dir=_empty(directory.with_name(f"{directory.name}-run")),
        workers=workers,
        microbatches=MICROBATCHES,
        faults=faults,
        options=OPTIONS,
        directory=_empty(directory),
    )
    begun = time.monotonic()
    try:
        with start_job(request, timeout_s=TIMEOUT_S) as running:
            job = running.wait()
    except TimeoutError as error:
        outcome.complaints.append(f"-n {workers}: {error}")
        return None
    outcome.seconds[f"-n {workers}"] = time.monotonic() - begun
    # Beside the run, not in the directory of the script, whose files are compared.
    directory.with_name(f"{directory.name}.out").write_text(job.stdout, encoding="utf-8")
    directory.with_name(f"{directory.name}.err").write_text(job.stderr, encoding="utf-8")
    if job.exit_code != 0:
        problem = f"exit code {job.exit_code}: {_last(job.stderr)}"
        outcome.complaints.append(f"-n {workers}: {problem}")
        return None
    left_behind = [left for left in job.leftovers if OF_THE_KILLED not in left]
    outcome.complaints += [f"-n {workers}: {left} is left behind" for left in left_behind]
    return job


def _empty(directory: Path) -> Path:
    """Make a directory without a file in it, also where one was."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    return directory


def _unlike(struck: JobRun, alone: JobRun) -> Iterator[str]:
    """Yield what a struck job lacks, compared with an undisturbed one."""
    if struck.sha256 != alone.sha256 or struck.sha256 is None:
        yield f"the run ends with {struck.sha256}, not {alone.sha256}"
    if len(struck.report.relaunches) != 1:
        yield f"{len(struck.report.relaunches)} relaunches, not 1"
    if len(struck.events("fault")) != 3 or len(struck.report.failures) != 3:
        causes = ", ".join(failure.cause for failure in struck.report.failures)
        yield f"not the 3 deaths that were planned, but: {causes}"


def _last(stderr: str) -> str:
    """Return the last line that is not one of TensorFlow's own."""
    lines = [line for line in stderr.splitlines() if line.strip()]
    ours = [line for line in lines if not line.startswith(("I0000", "W0000", "E0000", "WARNING"))]
    return ours[-1][:400] if ours else "no word"
