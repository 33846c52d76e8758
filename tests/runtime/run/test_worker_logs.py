"""The log files of workers: nothing but their lines, bounded, and never in the way."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.runtime.errors import UsageError
from holdfast.runtime.run import worker_logs
from holdfast.runtime.run.run_directory import FORMAT, Ownership, RunDirectory, RunRecord
from holdfast.runtime.run.worker_logs import FILE_BYTES, LogReader, LogText, WorkerLogs


class Logs:
    """The logs of a run, and what was warned of."""

    def __init__(self, folder: Path, file_bytes: int = FILE_BYTES) -> None:
        self.warnings: list[str] = []
        self.directory = RunDirectory(folder)
        self.files = WorkerLogs(
            self.directory.logs_path,
            Ownership(folder, "r"),
            self.warnings.append,
            file_bytes=file_bytes,
        )

    def write(self, worker: int | None, lines: bytes, lost: int = 0, host: str = "") -> None:
        self.files.write(LogText(worker, host, lines.decode("latin-1"), lost))

    def read(self, worker: int | None = None) -> bytes:
        return b"".join(LogReader(self.directory, worker).read())


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[Logs]:
    logs = Logs(tmp_path)
    yield logs
    logs.files.close()


def test_each_worker_has_its_lines_alone_and_all_have_them_in_order(logs: Logs) -> None:
    logs.write(0, b"one\n\ntwo\n")
    logs.write(None, b"holdfast: worker 0 died\n")
    logs.write(2, b"\xff\r50%\n", host="b")
    logs.write(0, b"", lost=3)

    missing = b"holdfast: 3 lines are missing here\n"
    assert logs.read(0) == b"one\n\ntwo\n" + missing
    assert logs.read(2) == b"\xff\r50%\n"
    assert logs.read() == (
        b"[w0] one\n[w0] \n[w0] two\nholdfast: worker 0 died\n[w2 b] \xff\r50%\n" + missing
    )


def test_next_job_goes_on_with_the_files(logs: Logs) -> None:
    logs.write(0, b"before\n")
    after = Logs(logs.directory.path)
    after.write(0, b"after\n")
    after.files.close()

    assert logs.read(0) == b"before\nafter\n"


def test_full_file_is_kept_until_the_next_one_is_full(tmp_path: Path) -> None:
    logs = Logs(tmp_path, file_bytes=8)
    for number in range(7):
        logs.write(1, b"%03d\n" % number)
    logs.files.close()

    assert logs.read(1) == b"004\n005\n006\n"[-12:]
    assert sorted(os.listdir(tmp_path / "logs")) == [
        *("all.log", "all.log.1", "worker-1.log", "worker-1.log.1"),
    ]


def test_reader_goes_on_through_a_rotation(tmp_path: Path) -> None:
    logs = Logs(tmp_path, file_bytes=12)
    logs.write(1, b"a\n")
    reader = LogReader(logs.directory, 1)
    seen = [b"".join(reader.read())]
    for lines in (b"b\n", b"long line\n", b"c\n"):
        logs.write(1, lines)
        seen.append(b"".join(reader.read()))
    logs.files.close()

    assert seen == [b"a\n", b"b\n", b"long line\n", b"c\n"]


def test_lines_that_a_full_disk_does_not_take_are_counted_and_warned_of_once(
    logs: Logs, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, room = os.write, [5]

    def full(fd: int, content: bytes) -> int:
        if not room[0]:
            raise OSError(28, "No space left on device")
        taken, room[0] = content[: room[0]], max(0, room[0] - len(content))
        return write(fd, taken)

    logs.write(None, b"begin\n")
    monkeypatch.setattr(worker_logs.os, "write", full)
    for lines in (b"123\n567\n", b"9\n"):  # a part of it, and nothing
        logs.write(None, lines)
    room[0] = 1000
    logs.write(None, b"again\n")

    assert logs.read() == b"begin\n123\n5\nholdfast: 2 lines are missing here\nagain\n"
    assert len(logs.warnings) == 1
    assert "have gaps" in logs.warnings[0]


def test_another_run_in_the_directory_gets_no_line(logs: Logs) -> None:
    other = RunRecord("another", FORMAT, 1.5, microbatches=1, seed=0, threads=1)
    logs.directory.create_record(other)

    logs.write(0, b"one\n")

    assert not logs.directory.logs_path.exists()
    assert "belongs to run another" in logs.warnings[0]


def test_oldest_workers_lose_their_files_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_logs, "_MOST_FILES", 3)
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "mine.txt").touch()  # a user's own
    logs = Logs(tmp_path)
    for worker in (9, 10, 11, 12, 13):
        logs.write(worker, b"x\n")
    logs.files.close()

    names = os.listdir(tmp_path / "logs")
    assert {"mine.txt", "all.log", "worker-13.log"} <= set(names)
    assert "worker-9.log" not in names


@pytest.mark.parametrize(
    ("workers", "words"),
    [((), "no worker has printed anything in"), ((10, 9), "worker 3 .*; these have: 9, 10")],
)
def test_log_that_is_not_there_is_refused_with_those_that_are(
    logs: Logs, workers: tuple[int, ...], words: str
) -> None:
    for worker in workers:
        logs.write(worker, b"x\n")

    with pytest.raises(UsageError, match=words):
        LogReader(logs.directory, 3)
