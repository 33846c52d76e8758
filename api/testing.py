"""Whole jobs in tests: run one with faults, or stop it at a moment, and look at the outcome.

A training script that survives deaths is tested by killing its workers::

    from holdfast.testing import run_job

    def test_two_deaths_do_not_change_a_byte(tmp_path):
        same = {"microbatches": 4, "options": ["--threads", "1"]}
        undisturbed = run_job("train.py", run_dir=tmp_path / "one", **same)
        job = run_job(
            "train.py",
            run_dir=tmp_path / "four",
            workers=4,
            **same,
            faults=["kill worker=0 step=3", "exit worker=2 step=7 site=reduce"],
        )
        assert job.exit_code == 0, job.stderr
        assert [failure.worker for failure in job.report.failures] == [0, 2]
        assert job.sha256 == undisturbed.sha256
        assert job.leftovers == ()

Two runs have the same bytes only with the same microbatches and threads.  By default both
follow the number of workers, so a comparison sets them.

Everything is real: it is ``holdfast run`` in a process of its own, with mpiexec,
agent and workers.  A test that acts on a running job uses ``start_job``::

    with start_job(JobRequest("train.py", run_dir=tmp_path, workers=2)) as running:
        running.wait_for("step", step=5)
        running.signal(signal.SIGTERM)
        job = running.wait()
    assert job.exit_code == 75

All processes of a job inherit a mark in the environment.  By this mark every process that
is left behind is found, and no process of another job is touched.  Needs Linux's
``/proc``.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.runtime.commands.summary import Report, summarize
from holdfast.runtime.run.entries import entries_of
from holdfast.runtime.run.journal import JournalReader, Record, read_journal
from holdfast.runtime.run.run_directory import RunDirectory
from holdfast.runtime.system.own_process import program_command
from holdfast.runtime.system.owned_directory import is_held
from holdfast.runtime.system.processes import marked_processes, signal_marked, wait_all_ended

__all__ = [
    "DEFAULT_TIMEOUT_S",
    "JobRequest",
    "JobRun",
    "RunningJob",
    "run_job",
    "start_job",
]

DEFAULT_TIMEOUT_S = 180.0

_MARK = "HOLDFAST_TEST_JOB"
_MAIN = "from holdfast.runtime.commands.main import main; main()"
_LOOK_S = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """One ``holdfast run``; omitted fields have the defaults of the command line.

    ``faults`` are addresses as in ``--inject``, ``argv`` the script's own
    arguments, ``options`` further options of ``holdfast run``, and
    ``environment`` is added to this process's own.  The job works in ``directory``,
    by default where this process does; relative paths are relative to it.
    """

    script: Path | str
    run_dir: Path | str
    workers: int = 1
    microbatches: int | None = None
    faults: Sequence[str] = ()
    argv: Sequence[str] = ()
    options: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    directory: Path | str | None = None

    def command(self) -> list[str]:
        """Return the command line."""
        line = [*program_command(_MAIN, "run")]
        line += ["-n", str(self.workers), "--run-dir", str(self.run_dir)]
        if self.microbatches is not None:
            line += ["--microbatches", str(self.microbatches)]
        for fault in self.faults:
            line += ["--inject", str(fault)]
        return [*line, *self.options, "--", str(self.script), *self.argv]


@dataclass(frozen=True, slots=True)
class JobRun:
    """The outcome of a job; ``journal`` and ``report`` also hold earlier jobs of the run.

    ``exit_code`` is negative for a client that died of a signal.
    ``leftovers`` names every process, shared memory and temporary file that the
    job should have removed; they are gone now.
    """

    exit_code: int
    stdout: str
    stderr: str
    journal: tuple[Record, ...]
    report: Report
    leftovers: tuple[str, ...]

    @property
    def sha256(self) -> str | None:
        """Digest of the run's final state, None while the run is not complete."""
        return self.report.final_sha256

    def events(self, name: str) -> list[Record]:
        """Return the journal's records of one kind of event, in their order."""
        return [record for record in self.journal if record["event"] == name]


def run_job(  # noqa: PLR0913  (each is one plain wish of the test's)
    script: Path | str,
    *,
    run_dir: Path | str,
    workers: int = 1,
    microbatches: int | None = None,
    faults: Sequence[str] = (),
    argv: Sequence[str] = (),
    options: Sequence[str] = (),
    timeout_s: float = DEFAULT_TIMEOUT_S,
) -> JobRun:
    """Run a job to its end and return its outcome; see ``JobRequest`` for the arguments.

    Raises:
        TimeoutError: the job did not end within ``timeout_s``; it was killed.
    """
    request = JobRequest(
        script=script,
        run_dir=run_dir,
        workers=workers,
        microbatches=microbatches,
        faults=faults,
        argv=argv,
        options=options,
    )
    with start_job(request, timeout_s=timeout_s) as running:
        return running.wait()


def start_job(request: JobRequest, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> RunningJob:
    """Start a job and return it at once; every wait for it ends ``timeout_s`` after the start."""
    return RunningJob(request, timeout_s)


class RunningJob:
    """A job that was started; as a context manager it removes all traces at the end."""

    def __init__(self, request: JobRequest, timeout_s: float) -> None:
        self._directory = RunDirectory(Path(request.directory or "") / request.run_dir)
        self._timeout_s = timeout_s
        self._deadline = time.monotonic() + timeout_s
        self._traces = JobTraces(_MARK)
        try:
            self._process = self._start(request)
        except BaseException:
            self._traces.remove(())
            raise

    def _start(self, request: JobRequest) -> subprocess.Popen[bytes]:
        environment = {"HOLDFAST_AGAIN": "1", **os.environ, **request.environment}
        # Files, not pipes: a process that is left behind would keep a pipe open.
        with self._path("stdout").open("wb") as out, self._path("stderr").open("wb") as err:
            return subprocess.Popen(
                request.command(),
                cwd=request.directory,
                env=self._traces.environment(environment),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """The process id of the client."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """The client's exit code, None while it lives; a job may outlive its client."""
        return self._process.poll()

    @property
    def journal(self) -> list[Record]:
        """The records in the journal by now."""
        try:
            return read_journal(self._directory.journal_path)
        except OSError:
            return []

    @property
    def stderr(self) -> str:
        """The text that the job has written to its stderr by now."""
        return self._path("stderr").read_text(errors="replace")

    def processes(self) -> dict[int, str]:
        """Return the name of every living process of the job, as ``ps`` shows it, by process id.

        The names of holdfast's own are ``holdfast-agent``, ``holdfast-pool`` and
        ``holdfast-w3`` for worker 3.
        """
        found = self._traces.processes()
        if self._process.poll() is None:  # while it begins, nothing tells whose process it is
            found.setdefault(self.pid, "holdfast")
        return found

    def signal(self, number: int, name: str | None = None) -> None:
        """Send a signal to the client, or to every process of the job called ``name``.

        Raises:
            ProcessLookupError: no process of the job has that name.
        """
        if name is None:
            self._process.send_signal(number)
            return
        pids = [pid for pid, found in self.processes().items() if found == name]
        if not pids:
            raise ProcessLookupError(f"no process {name!r} among {self.processes()}")
        for pid in pids:
            os.kill(pid, number)

    def wait_for(self, event: str, **fields: object) -> Record:
        """Wait until the journal holds a record of ``event`` with these fields; return it.

        Raises:
            TimeoutError: no such record came in time, or the job ended without one.
        """
        new = JournalReader(self._directory.journal_path)
        while True:
            has_ended = self._process.poll() is not None and not self.processes()
            with contextlib.suppress(OSError):
                for record in new.read():
                    if record["event"] == event and fields.items() <= record.items():
                        return record
            if has_ended or time.monotonic() > self._deadline:
                raise TimeoutError(f"no {event} {fields} in the journal; {self._story()}")
            time.sleep(_LOOK_S)

    def wait(self) -> JobRun:
        """Wait until every process of the job has ended; return the job's outcome.

        Raises:
            TimeoutError: the client did not end in time; it was killed.
        """
        try:
            exit_code = self._process.wait(max(0.0, self._deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            story = self._story()
            self.close()
            raise TimeoutError(f"the job did not end in {self._timeout_s} s; {story}") from None
        # A job whose client was killed goes on to its end.
        grace_s = ENDS_WITHIN_S if exit_code >= 0 else self._deadline - time.monotonic()
        wait_all_ended(self.processes(), max(0.0, grace_s))
        journal = self.journal
        return JobRun(
            exit_code=exit_code,
            stdout=self._path("stdout").read_text(errors="replace"),
            stderr=self.stderr,
            journal=tuple(journal),
            report=summarize(entries_of(journal)),
            leftovers=self.leftovers(),
        )

    def leftovers(self) -> tuple[str, ...]:
        """Name each process and file of the job that exists now outside its run directory."""
        return self._traces.leftovers([self.pid])

    def close(self) -> None:
        """Kill the job's remaining processes and remove its files; a second call is harmless."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._traces.remove([self.pid])

    def __enter__(self) -> RunningJob:
        """Return the job."""
        return self

    def __exit__(self, *_error: object) -> None:
        """Leave nothing behind."""
        self.close()

    def _path(self, name: str) -> Path:
        return self._traces.scratch / name

    def _story(self) -> str:
        records = "\n".join(str(record) for record in self.journal[-5:])
        return (
            f"alive: {self.processes() or 'nothing'}; the end of its stderr:\n"
            f"{self.stderr[-2000:]}\nthe end of its journal:\n{records}"
        )


ENDS_WITHIN_S = 30.0
"""How long processes may outlive ``holdfast run``: the kernel takes a moment for killed ones."""

SHARED_MEMORY = Path("/dev/shm")


class JobTraces:
    """The mark of one job, and what bears it."""

    def __init__(self, variable: str) -> None:
        """Make a mark, the value of ``variable``, and a scratch directory."""
        self.mark = f"{variable}={secrets.token_hex(8)}"
        self.scratch = Path(tempfile.mkdtemp(prefix="holdfast-job-"))
        self.temporary = self.scratch / "tmp"
        self.temporary.mkdir()

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """Return ``base`` with the mark, for the first process of the job."""
        name, _, value = self.mark.partition("=")
        return {**base, name: value, "TMPDIR": str(self.temporary)}

    def processes(self) -> dict[int, str]:
        """Return the name of every living process of the job, as ``ps`` shows it, by process id."""
        return marked_processes(self.mark)

    def leftovers(self, clients: Iterable[int]) -> tuple[str, ...]:
        """Name each process and file that exists now outside the run directory."""
        processes = [f"process {pid} {name}" for pid, name in self.processes().items()]
        kept = self.temporary.iterdir() if self.temporary.is_dir() else ()
        files = (*_shared_memory(clients), *kept)
        return (*processes, *map(str, files))

    def remove(self, clients: Iterable[int]) -> None:
        """SIGKILL every process of the job; remove its files, and the memory of these clients."""
        while alive := self.processes():
            for pid in alive:
                signal_marked(pid, self.mark, signal.SIGKILL)
            wait_all_ended(alive, ENDS_WITHIN_S)
        for directory in (*_shared_memory(clients), self.scratch):
            shutil.rmtree(directory, ignore_errors=True)


def _shared_memory(clients: Iterable[int]) -> list[Path]:
    """Return what these clients have left; a living one may have got the number of a dead one.

    A directory that is held has a living process, which is named by itself if it is the job's.
    """
    found = (path for pid in set(clients) for path in SHARED_MEMORY.glob(f"holdfast-{pid}-*"))
    return sorted(path for path in found if not is_held(path))
