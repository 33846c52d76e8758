"""The files of a run directory in the writer's process: journal, record and lease."""

from __future__ import annotations

import select
import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast.recovery.event import RunDirectoryLost
from holdfast.runtime.errors import ExitCode
from holdfast.runtime.run.events import Warned
from holdfast.runtime.run.journal import JournalFile, line_of, read_journal
from holdfast.runtime.run.lease import Lease
from holdfast.runtime.run.progress import LaunchReport
from holdfast.runtime.run.run_directory import FORMAT, RunDirectory, RunRecord
from holdfast.runtime.run.worker_logs import LogText
from holdfast.runtime.saving.run_files import (
    CheckDirectory,
    JobOver,
    JobSeen,
    JournalLines,
    OfRunFiles,
    OpenRun,
    RunFiles,
    ToRunFiles,
    Written,
)
from holdfast.runtime.system.channel import MessageKinds, pair, to_message

BOUND_S = 90.0
RECORD = RunRecord("r", FORMAT, 0.0, microbatches=2, seed=0, threads=1)


def line(event: str, **fields: Any) -> str:
    stamp = {"event": event, "now": 0.0, "time": 0.0, "run_id": "r", "source": "head"}
    return line_of({**stamp, **fields})


CHECKED = Written("CheckDirectory", 1)
_ANSWERS: MessageKinds[OfRunFiles] = MessageKinds(OfRunFiles)


class Files:
    """The files of a run, and the head's end of their channel."""

    def __init__(
        self,
        directory: RunDirectory,
        lease: Lease,
        away_s: float = 10.0,
        metrics_file: Path | None = None,
    ) -> None:
        self.channel, self._theirs = pair()
        opening = OpenRun(directory.path, RECORD, metrics_file)
        self.channel.post(to_message(opening), (lease.fileno(),))
        self.files = RunFiles(self._theirs, away_s)

    def send(self, *lines: str, lost: int = 0, is_again: bool = False) -> OfRunFiles:
        """Have lines written; return the answer."""
        self.post(*lines, lost=lost, is_again=is_again)
        return self.answer()

    def post(self, *lines: str, lost: int = 0, is_again: bool = False) -> None:
        self.tell(JournalLines(lines, lost, is_again))

    def tell(self, message: ToRunFiles) -> None:
        self.channel.post(to_message(message))

    def answer(self) -> OfRunFiles:
        """Return the next answer."""
        if not self.channel.has_news:
            assert select.select([self.channel], [], [], BOUND_S)[0], "no answer"
        answer = self.channel.receive()
        assert answer is not None
        return _ANSWERS.decode(answer)

    def check(self) -> list[Any]:
        """Have the directory looked at; return the answers up to the last one."""
        self.tell(CheckDirectory())
        answers = [self.answer()]
        while answers[-1] != CHECKED:
            answers.append(self.answer())
        return answers

    def close(self) -> None:
        self.channel.close()
        self.files.close(BOUND_S)
        self._theirs.close()


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    made = RunDirectory(tmp_path / "run")
    made.prepare()
    made.create_record(RECORD)
    return made


@pytest.fixture
def lease(directory: RunDirectory) -> Iterator[Lease]:
    """The lease as the head holds it."""
    lease = directory.acquire_lease()
    yield lease
    lease.release()


@pytest.fixture
def files(directory: RunDirectory, lease: Lease) -> Iterator[Files]:
    made = Files(directory, lease)
    yield made
    made.close()


def events(directory: RunDirectory) -> list[str]:
    return [record["event"] for record in read_journal(directory.journal_path)]


def test_lines_are_written_as_they_are_and_counted(files: Files, directory: RunDirectory) -> None:
    lines = [line("launch", generation=3), line("world")]

    counted = files.send(*lines)

    assert counted == Written("JournalLines", 2)
    assert directory.journal_path.read_text().splitlines() == lines


def test_metrics_file_on_a_disk_that_hangs_holds_up_no_line_of_the_journal(
    directory: RunDirectory, lease: Lease, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, answers, place = threading.Event(), threading.Event(), Path.rename

    def rename(draft: Path, path: Path) -> Path:
        if str(path).endswith(".prom"):
            begun.set()
            assert answers.wait(BOUND_S)
        return place(draft, path)

    monkeypatch.setattr(Path, "rename", rename)
    monkeypatch.setattr("holdfast.runtime.run.files.WAITS_S", 0.01)
    shown = tmp_path / "job.prom"
    files = Files(directory, lease, metrics_file=shown)
    look = JobSeen(2.0, LaunchReport())
    files.tell(look)
    assert begun.wait(BOUND_S)
    files.tell(look)
    files.tell(look)
    files.post(line("failure", worker=1, cause="signal SIGKILL"))

    first, second, warning, third, written = [files.answer() for _ in range(5)]

    assert {first, second, third} == {Written("JobSeen", 1)}
    assert isinstance(warning, Warned)
    assert warning.text.startswith(f"metrics are not written to {shown}: its disk has not ")
    assert written == Written("JournalLines", 1)
    assert events(directory) == ["failure"]
    answers.set()
    files.close()
    assert 'holdfast_deaths_total{cause="signal SIGKILL"} 1.0' in shown.read_text()


def test_line_that_a_lost_writer_has_written_but_not_counted_is_not_written_twice(
    directory: RunDirectory, lease: Lease
) -> None:
    lines = [line("launch"), line("world"), line("step", step=1)]
    lost = Files(directory, lease)
    lost.send(*lines[:2])
    lost.close()

    files = Files(directory, lease)
    counted = files.send(*lines, is_again=True)
    files.send(line("step", step=2))
    files.close()

    assert counted == Written("JournalLines", 3)
    assert events(directory) == ["launch", "world", "step", "step"]


def test_torn_line_of_a_lost_writer_is_written_again_as_a_whole(
    directory: RunDirectory, lease: Lease
) -> None:
    whole = line("launch", generation=3)
    directory.journal_path.write_text(whole[:20])

    files = Files(directory, lease)
    files.send(whole, is_again=True)
    files.close()

    assert directory.journal_path.read_text().splitlines() == [whole[:20], whole]


def test_lines_that_the_head_has_lost_are_a_gap_before_the_others(
    files: Files, directory: RunDirectory
) -> None:
    files.send(line("launch"), lost=3)

    gap, launch = read_journal(directory.journal_path)
    assert (gap["event"], gap["lines"], launch["event"]) == ("journal_gap", 3, "launch")


def test_lines_that_no_file_takes_are_told_and_counted_as_a_gap(
    directory: RunDirectory, lease: Lease
) -> None:
    directory.journal_path.mkdir()
    files = Files(directory, lease)
    for event in ("launch", "world"):
        files.post(line(event))
    told = [files.answer()]
    while len([answer for answer in told if isinstance(answer, Written)]) < 2:
        told.append(files.answer())

    directory.journal_path.rmdir()
    files.send(line("step"))
    files.close()

    (warning,) = {answer.text for answer in told if isinstance(answer, Warned)}
    assert f"journal {directory.journal_path} loses events" in warning
    gap, step = read_journal(directory.journal_path)
    assert (gap["event"], gap["lines"], step["event"]) == ("journal_gap", 2, "step")


def test_directory_that_is_mounted_anew_is_waited_for(
    files: Files, directory: RunDirectory
) -> None:
    """A save and the journal both look just then, and nobody is told anything."""
    files.send(line("launch"))
    aside = directory.path.with_name("aside")
    directory.path.rename(aside)
    threading.Timer(0.3, aside.rename, (directory.path,)).start()

    assert files.check() == [CHECKED]
    assert files.send(line("step")) == Written("JournalLines", 1)
    assert events(directory) == ["launch", "step"]


@pytest.mark.parametrize("gone", ["directory", "record"])
def test_directory_that_is_gone_is_lost_and_not_made_again(
    directory: RunDirectory, lease: Lease, gone: str
) -> None:
    files = Files(directory, lease, away_s=0.1)
    files.send(line("launch"))
    if gone == "directory":
        shutil.rmtree(directory.path)
    else:
        directory.record_path.unlink()

    lost, _ = files.check()

    assert (type(lost), lost.exit_code) == (RunDirectoryLost, ExitCode.RECOVERY_IMPOSSIBLE)
    assert f"{directory.path} was removed or moved, or its RUN.json was" in lost.reason
    files.send(line("job_ended"))
    files.close()
    assert directory.path.exists() == (gone == "record")
    assert not directory.record_path.exists()


def test_directory_of_another_run_is_lost_and_gets_no_line(
    files: Files, directory: RunDirectory
) -> None:
    files.send(line("launch"))
    directory.path.rename(directory.path.with_name("moved"))
    directory.prepare()
    directory.create_record(replace(RECORD, run_id="other"))

    lost, _ = files.check()

    assert (type(lost), lost.exit_code) == (RunDirectoryLost, ExitCode.RUN_DIRECTORY_BUSY)
    assert f"{directory.path} belongs to run other now, not to r" in lost.reason
    files.send(line("job_ended"))
    assert [path.name for path in directory.path.iterdir()] == ["RUN.json"]


def test_directory_whose_lease_was_removed_is_the_jobs_until_another_one_takes_it(
    files: Files, directory: RunDirectory
) -> None:
    directory.lease_path.unlink()
    assert files.check() == [CHECKED]

    other = directory.acquire_lease()

    lost, _ = files.check()
    assert lost.exit_code == ExitCode.RUN_DIRECTORY_BUSY
    assert "another job has taken the lease" in lost.reason
    other.release()


@pytest.mark.parametrize("is_over", [True, False])
def test_lease_says_the_end_of_a_job_only_if_the_head_did(
    directory: RunDirectory, lease: Lease, *, is_over: bool
) -> None:
    files = Files(directory, lease)
    files.send(line("job_ended"))
    if is_over:
        files.tell(JobOver())

    files.close()

    assert directory.lease_owner().ended is is_over


def test_disk_that_hangs_holds_up_no_end(
    directory: RunDirectory, lease: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    begins, goes_on = threading.Event(), threading.Event()
    write = JournalFile.write

    def hang(self: JournalFile, lines: Any) -> None:
        begins.set()
        goes_on.wait()
        write(self, lines)

    monkeypatch.setattr(JournalFile, "write", hang)
    files = Files(directory, lease)
    files.post(line("step", step=1))
    files.tell(JobOver())
    begins.wait()

    files.files.close(0.01)
    assert directory.journal_path.read_text() == ""
    assert not directory.lease_owner().ended

    goes_on.set()
    assert files.answer() == Written("JournalLines", 1)
    files.close()
    assert events(directory) == ["step"]


def test_lines_of_workers_go_to_their_logs_and_are_counted(files: Files, tmp_path: Path) -> None:
    lines = "caf\xc3\xa9\n"  # bytes, as Latin-1
    files.tell(LogText(2, "", lines))

    assert files.answer() == Written("LogText", 6)
    (path,) = tmp_path.rglob("worker-2.log")
    assert path.read_text() == "café\n"
