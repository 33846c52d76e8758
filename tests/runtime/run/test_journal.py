"""The journal of a run, and the generation that comes next."""

from __future__ import annotations

import errno
import json
import os
import threading
import time
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest
from whole_save import save

from holdfast.checkpoint.manifest import Header
from holdfast.checkpoint.store import CheckpointStore
from holdfast.runtime.run.checkpoint_events import Checkpoint, Rejected, StorageDowngrade
from holdfast.runtime.run.events import FaultStruck, HungUp, LaunchBegan, Step
from holdfast.runtime.run.journal import (
    TAIL_BYTES,
    Journal,
    JournalReader,
    Record,
    RecordedEvent,
    Records,
    SentRecords,
    next_generation,
    read_journal,
)
from holdfast.runtime.run.run_directory import FORMAT, RunDirectory, RunRecord
from holdfast.runtime.system.channel import MessageKinds

SOON_S = 0.2


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.jsonl"


def applied(number: int) -> Step:
    return Step(number, 1, 0.5, 8, 1)


def _journal(path: Path, source: str = "head") -> Journal:
    return Journal(path, run_id="r1", source=source)


def test_events_that_are_recorded_together_come_one_after_the_other(path: Path) -> None:
    journal = _journal(path)

    now = time.monotonic()
    journal.record(HungUp())
    journal.record_all([(applied(1), now - 0.25), (StorageDowngrade("odd"), now)])
    journal.record_all([])
    journal.close()

    found = read_journal(path)
    assert [one["event"] for one in found] == ["hung_up", "step", "storage_downgrade"]
    assert (found[1]["step"], found[1]["now"]) == (1, pytest.approx(now - 0.25))


def test_records_of_another_process_are_sent_with_their_age(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its clock may be another host's, so the head stamps them by its own."""
    sent: list[Record] = []
    records = SentRecords(sent.append)
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)

    records.record(FaultStruck("kill", 2, 7, "vote"))
    records.record_all([(HungUp(), now - 3.0), (StorageDowngrade("odd"), now + 1.0)])

    first, both = (MessageKinds(Records).decode(json.loads(json.dumps(one))) for one in sent)
    assert [(one.name, one.age_s) for one in (*first.events, *both.events)] == [
        ("fault", 0.0),
        ("hung_up", pytest.approx(3.0)),
        ("storage_downgrade", 0.0),
    ]
    assert first.events[0].fields["worker"] == 2


def test_line_tells_when_it_was_by_both_clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 50.0)
    monkeypatch.setattr(time, "time", lambda: 1000.0)
    stamp = {"now": 47.0, "time": 997.0, "run_id": "r1", "source": "worker 2"}

    found = RecordedEvent.of(applied(7), 3.0).record("r1", "worker 2")

    assert found.items() >= {"event": "step", "step": 7, **stamp}.items()


def test_journal_that_was_moved_goes_on_where_another_run_has_its_place(path: Path) -> None:
    """None of its lines are lost, and the other run gets none."""
    folder, moved = path.parent / "run", path.parent / "moved"
    folder.mkdir()
    journal = _journal(folder / path.name)
    folder.rename(moved)
    folder.mkdir()
    record = RunRecord("0" * 16, FORMAT, 1.5, microbatches=4, seed=0, threads=1)
    RunDirectory(folder).create_record(record)

    journal.record(applied(1))
    journal.close()

    assert [record["event"] for record in read_journal(moved / path.name)] == ["step"]
    assert not (folder / path.name).exists()


def test_journal_that_is_opened_in_the_directory_of_another_run_gets_no_line(path: Path) -> None:
    """The host's writer opens one for each event."""
    other = RunRecord("other", FORMAT, 1.5, microbatches=1, seed=0, threads=1)
    RunDirectory(path.parent).create_record(other)

    with pytest.raises(OSError, match="belongs to run other now"):
        _journal(path)
    assert not path.exists()


def test_journal_whose_file_system_is_gone_loses_lines_and_raises_nothing(path: Path) -> None:
    folder = path.parent / "mount" / "run"
    folder.mkdir(parents=True)
    journal = _journal(folder / path.name)
    (folder / path.name).unlink()
    folder.rmdir()
    folder.parent.rmdir()

    journal.record(applied(1))
    folder.mkdir(parents=True)
    journal.record(applied(2))
    journal.close()

    records = read_journal(folder / path.name)
    assert [record["event"] for record in records] == ["journal_gap", "step"]


def test_journal_whose_file_system_hangs_stops_nobody(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The server of a network file system is gone, and comes back."""
    journal = _journal(path)
    journal.record(applied(1))
    monkeypatch.setattr(journal._calls, "_waits_s", SOON_S)
    is_back = threading.Event()
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, line: is_back.wait(60) and write(fd, line))

    for step in range(2, 50):
        journal.record(applied(step))
    assert [record["step"] for record in read_journal(path)] == [1]
    assert caplog.text.count("its file system hangs") == 1

    is_back.set()
    journal.record(applied(50))
    while (steps := [record["step"] for record in read_journal(path)])[-1] < 50:
        pass
    journal.close()
    assert steps == list(range(1, 51))


def _fail(number: int) -> NoReturn:
    raise OSError(number, os.strerror(number))


@pytest.mark.parametrize(
    ("number", "is_removed"),
    [
        (None, True),
        (errno.ESTALE, True),
        *((n, False) for n in (errno.ESTALE, errno.EIO, errno.ENOTCONN)),
    ],
)
def test_journal_that_is_removed_or_whose_descriptor_fails_is_opened_again(
    path: Path, monkeypatch: pytest.MonkeyPatch, number: int | None, *, is_removed: bool
) -> None:
    """A server has restarted; or another machine has removed it, and NFS tells no more."""
    journal = _journal(path)
    journal.record(applied(1))
    broken, fstat, close = journal._file._fd, os.fstat, os.close
    if number is not None:
        monkeypatch.setattr(os, "fstat", lambda fd: _fail(number) if fd == broken else fstat(fd))
        monkeypatch.setattr(os, "close", lambda fd: (close(fd), _fail(number)))
    if is_removed:
        path.unlink()

    journal.record(applied(2))
    journal.record(applied(3))
    journal.close()
    monkeypatch.undo()  # the number is another file's by now

    assert [record["step"] for record in read_journal(path)] == [1, 2, 3][is_removed:]


def test_lines_of_many_threads_and_journals_stay_whole(path: Path) -> None:
    journals = [_journal(path, f"worker {index}") for index in range(4)]

    def write(journal: Journal) -> None:
        for number in range(50):
            journal.record(Rejected(number, "x" * 3000))

    threads = [threading.Thread(target=write, args=(journal,)) for journal in journals * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for journal in journals:
        journal.close()

    records = read_journal(path)
    assert len(records) == 400
    # A line that is being written looks torn to another journal, which then begins a new one.
    assert all(json.loads(line) for line in path.read_text().splitlines() if line)


@pytest.mark.parametrize(
    "torn",
    [b'{"event": "st', b'{"event": "step", "now": 1, \xff', b"17", b"[]", b"[" * 200_000],
    ids=["cut", "no text", "number", "list", "deep"],
)
def test_reader_skips_what_is_no_record_and_the_next_line_is_not_lost(
    path: Path, torn: bytes
) -> None:
    for step in (1, 2):
        journal = _journal(path)
        journal.record(applied(step))
        journal.close()

        with path.open("ab") as file:
            file.write(torn)

    assert [record["step"] for record in read_journal(path)] == [1, 2]


def test_line_that_another_process_has_torn_takes_no_other_line_with_it(path: Path) -> None:
    """As on a full disk, while both have the file open."""
    journal, other = _journal(path), _journal(path, "worker 0")
    other.record(applied(1))
    with path.open("ab") as file:
        file.write(b'{"event": "st')

    journal.record(applied(2))
    journal.close()
    other.close()

    assert [record["step"] for record in read_journal(path)] == [1, 2]


def test_values_that_json_lacks_are_recorded_as_what_they_stand_for(path: Path) -> None:
    import numpy as np

    journal = _journal(path)
    journal.record(Checkpoint(np.int64(3), np.float32(0.5), 1, Path("/a")))  # type: ignore[arg-type]
    journal.close()

    (record,) = read_journal(path)
    assert (record["seconds"], record["step"], record["generation"]) == (0.5, 3, "/a")


def test_full_file_system_loses_lines_but_not_the_job(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Training goes on, one warning is given, and the gap is recorded once there is room."""
    journal = _journal(path)
    journal.record(applied(1))

    with monkeypatch.context() as full:
        full.setattr(os, "write", _no_space)
        journal.record(applied(2))
        journal.record(applied(3))
    journal.record(applied(4))
    journal.close()

    records = read_journal(path)
    assert [record["event"] for record in records] == ["step", "journal_gap", "step"]
    assert records[1]["lines"] == 2
    assert records[2]["step"] == 4
    (record,) = caplog.records
    assert record.getMessage().startswith(f"holdfast: journal {path} loses events (")
    assert "status and report will not know of them" in record.getMessage()


def test_short_write_of_several_lines_loses_those_that_were_not_taken(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = _journal(path)
    write = os.write
    taken: list[int] = []

    def take_most(fd: int, data: bytes) -> int:
        taken.append(write(fd, data[: -len(b"torn")]))
        return taken[-1]

    with monkeypatch.context() as nearly_full:
        nearly_full.setattr(os, "write", take_most)
        journal.record_all([(applied(number), 0.0) for number in (1, 2, 3)])
    journal.record(applied(4))
    journal.close()

    assert len(taken) == 1, "the lines of a message are one piece"
    records = read_journal(path)
    assert [record.get("step", record.get("lines")) for record in records] == [1, 2, 1, 4]


def _no_space(fd: int, data: bytes) -> int:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (b'{"event": "a"}\n{"eve', b'nt": "b"}\ntorn\n{"event": "c"}\n'),
        (b'{"event": "a"}', b'\n{"event": "b"}\n{"event": "c"}'),
    ],
    ids=["torn", "without a newline"],
)
def test_reader_yields_whole_records_as_they_come(path: Path, first: bytes, second: bytes) -> None:
    reader = JournalReader(path)

    path.write_bytes(first)
    assert [record["event"] for record in reader.read()] == ["a"]
    with path.open("ab") as file:
        file.write(second)
    assert [record["event"] for record in reader.read()] == ["b", "c"]
    assert list(reader.read()) == []


def test_reader_of_the_tail_begins_near_the_end(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_bytes(b'{"event": "old"}\n' * 200_000 + b'{"event": "new"}\n')

    found = [record["event"] for record in JournalReader(path, tail_bytes=TAIL_BYTES).read()]

    assert found[-1] == "new"
    assert 1000 < len(found) < 100_000


def test_reader_begins_again_with_a_journal_that_was_removed(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_text('{"event": "old"}\n' * 3)
    reader = JournalReader(path)
    assert len([*reader.read()]) == 3

    path.unlink()
    path.write_text('{"event": "new"}\n')

    assert [record["event"] for record in reader.read()] == ["new"]


def test_close_waits_for_a_slow_file_system_and_ends_the_thread(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that answers late, at the end of a process, which no thread outlives."""
    journal = _journal(path)
    monkeypatch.setattr(journal._calls, "_waits_s", SOON_S)
    is_back = threading.Event()
    write, wait = os.write, journal._calls.close
    monkeypatch.setattr(os, "write", lambda fd, line: is_back.wait(60) and write(fd, line))
    # The server answers once the process waits for it.
    monkeypatch.setattr(journal._calls, "close", lambda _: (is_back.set(), wait(60)))
    for event in (HungUp(), applied(1)):
        journal.record(event)

    journal.close()

    assert [record["event"] for record in read_journal(path)] == ["hung_up", "step"]
    assert journal._calls._thread is not None
    assert not journal._calls._thread.is_alive()


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    return RunDirectory(tmp_path)


def write_journal(directory: RunDirectory, generation: int) -> None:
    journal = Journal(directory.journal_path, run_id="r", source="head")
    journal.record(LaunchBegan(generation, (), 0))
    journal.close()


@pytest.mark.parametrize(
    ("name", "following"),
    [
        (".tmp-000000000040-g7-a1", 8),
        (".bad-000000000040-g9-a2", 10),
        (".tmp-000000000040-g2-a1", 4),
        (".tmp-000000000040", 4),
        ("something else", 4),
    ],
)
def test_saves_tell_generations_that_a_lost_journal_does_not(
    directory: RunDirectory, name: str, following: int
) -> None:
    assert next_generation(directory) == 1
    write_journal(directory, 3)
    (directory.checkpoints_path / name).mkdir(parents=True)

    assert next_generation(directory) == following


@pytest.mark.parametrize(
    ("manifest", "following"),
    [
        (json.dumps({"generation": 12}), 13),
        (json.dumps({"generation": "12"}), 1),
        (json.dumps([12]), 1),
        ("torn", 1),
        (None, 1),
    ],
)
def test_manifest_of_the_newest_step_tells_its_generation(
    directory: RunDirectory, manifest: str | None, following: int
) -> None:
    for step, content in ((20, json.dumps({"generation": 99})), (40, manifest)):
        folder = directory.checkpoints_path / f"step-{step:012d}"
        folder.mkdir(parents=True)
        if content is not None:
            (folder / "MANIFEST.json").write_text(content)

    assert next_generation(directory) == following


def test_step_that_was_really_saved_tells_its_generation(directory: RunDirectory) -> None:
    """Under its JSON a manifest has a line with a digest."""
    save(CheckpointStore(directory.path), {"a": np.zeros(3)}, header=Header("r", 9, 40))

    assert next_generation(directory) == 10
