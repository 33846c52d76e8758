"""Files that another user has put in a run directory, and calls into a disk that hangs."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import pytest
from commands import holdfast_code

from holdfast.recovery.schedule import FailureHistory
from holdfast.runtime.errors import ExitCode, UsageError
from holdfast.runtime.head.job_setup import open_journal
from holdfast.runtime.run import files
from holdfast.runtime.run.checkpoint_events import Rejected
from holdfast.runtime.run.failure_history import HistoryReader
from holdfast.runtime.run.files import (
    BoundedCalls,
    ForeignFile,
    answering,
    open_to_write,
    read_at_most,
    write_whole,
)
from holdfast.runtime.run.journal import Journal, next_generation, read_journal
from holdfast.runtime.run.run_directory import RunDirectory, RunRecord
from holdfast.runtime.system.signals import SENT_BY_BATCH_SYSTEMS

RECORD = RunRecord(
    run_id="0123456789abcdef", format=1, created=1.5, microbatches=4, seed=0, threads=2
)
PRECIOUS = b"nobody may touch this\n"
STRANGER = 54321
Plant: TypeAlias = "Callable[[Path, Path], object]"
SOON_S = 0.01
BOUND_S = 60.0
PROGRAM = """
import sys, threading
from pathlib import Path
from holdfast.runtime.run import files as module
module.TELLS_AFTER_S, module.GIVES_UP_AFTER_S = 0.05, 0.1
with module.answering(Path("/net/run"), lambda text: print(text, flush=True)):
    threading.Event().wait()
"""

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")


def _own_by_stranger(path: Path, target: Path) -> None:
    path.write_bytes(PRECIOUS)
    os.chown(path, STRANGER, STRANGER)


PLANTS: dict[str, tuple[Plant, str]] = {
    "symlink": (lambda path, target: path.symlink_to(target), "is a symbolic link"),
    "dangling symlink": (
        lambda path, target: path.symlink_to(target.with_name("missing")),
        "is a symbolic link",
    ),
    "fifo": (lambda path, _: os.mkfifo(path), "is a named pipe"),
    "hard link": (lambda path, target: os.link(target, path), "has 2 names"),
    "stranger's": (_own_by_stranger, f"belongs to user {STRANGER}"),
}


def planted(*but: str) -> pytest.MarkDecorator:
    found = [
        pytest.param(*plant, id=name, marks=[as_root] if "stranger" in name else [])
        for name, plant in PLANTS.items()
        if name not in but
    ]
    return pytest.mark.parametrize(("plant", "complaint"), found)


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    directory = RunDirectory(tmp_path / "run")
    directory.prepare()
    return directory


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """Another file of the user's, which nothing may change."""
    target = tmp_path / "precious"
    target.write_bytes(PRECIOUS)
    return target


@as_root
@pytest.mark.parametrize(
    ("mode", "group", "is_theirs"),
    [
        (0o2770, STRANGER, True),
        (0o2770, 0, False),
        (0o2777, STRANGER, False),
        (0o750, STRANGER, False),
    ],
    ids=["a group's", "another group's", "everybody's", "its owner's"],
)
def test_file_of_a_member_counts_where_only_its_group_may_write(
    directory: RunDirectory, *, mode: int, group: int, is_theirs: bool
) -> None:
    path = directory.path / "file"
    path.write_bytes(b"text")
    os.chown(path, STRANGER, STRANGER)
    os.chown(directory.path, 0, group)
    directory.path.chmod(mode)

    if is_theirs:
        assert read_at_most(path, 4) == b"text"
        files.close(open_to_write(path))
    else:
        with pytest.raises(ForeignFile, match=f"belongs to user {STRANGER}"):
            read_at_most(path, 4)


def is_untouched(path: Path, target: Path) -> bool:
    contents = [path.read_bytes()] if path.is_file() else []
    is_alone = not target.with_name("missing").exists()
    return is_alone and {target.read_bytes(), *contents} == {PRECIOUS}


WRITERS: dict[str, tuple[str, Callable[[RunDirectory], object]]] = {
    "lease": ("lease", lambda run: run.acquire_lease()),
    "journal": ("journal.jsonl", lambda run: open_journal(run, RECORD.run_id)),
}


@planted()
@pytest.mark.parametrize("writer", WRITERS)
def test_planted_file_is_refused_in_one_line_and_not_written(
    directory: RunDirectory, target: Path, plant: Plant, complaint: str, writer: str
) -> None:
    name, write = WRITERS[writer]
    plant(directory.path / name, target)

    with pytest.raises(UsageError, match=rf"/run/{name} {complaint}.*; .*remove it") as caught:
        write(directory)

    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == ExitCode.USAGE
    assert is_untouched(directory.path / name, target)
    if complaint == "has 2 names":  # as a backup makes them
        advice = str(caught.value).rpartition("own: ")[2]
        subprocess.run(["sh", "-c", advice], check=True)
        write(directory)


@planted()
@pytest.mark.parametrize("place", ["draft", "file"])
def test_whole_file_is_written_beside_what_is_planted_in_its_place_or_that_of_its_draft(
    tmp_path: Path, target: Path, plant: Plant, complaint: str, place: str
) -> None:
    path, draft = tmp_path / "shown", tmp_path / ".shown.draft"
    planted = draft if place == "draft" else path
    plant(planted, target)

    write_whole(path, b"new", is_durable=True)

    assert (path.read_bytes(), path.is_symlink()) == (b"new", False)
    assert target.read_bytes() == PRECIOUS
    assert not target.with_name("missing").exists()


@pytest.mark.parametrize(
    "plant", [PLANTS["symlink"][0], PLANTS["fifo"][0], lambda path, _: path.mkdir()]
)
def test_record_is_not_created_in_the_place_of_what_is_planted(
    directory: RunDirectory, target: Path, plant: Plant
) -> None:
    plant(directory.record_path, target)

    with pytest.raises(UsageError):
        directory.create_record(RECORD)
    with pytest.raises(UsageError, match=r"RUN\.json (is|belongs)"):
        directory.load_record()


@planted()
def test_journal_that_is_exchanged_while_a_job_runs_loses_lines_and_raises_nothing(
    directory: RunDirectory,
    target: Path,
    plant: Plant,
    complaint: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    path = directory.journal_path
    journal = Journal(path, run_id="r1", source="worker 0")
    path.unlink()
    plant(path, target)

    journal.record(Rejected(1, "a byte"))
    journal.record(Rejected(2, "a byte"))

    assert is_untouched(path, target)
    assert [complaint in record.getMessage() for record in caplog.records] == [True]
    path.unlink()
    journal.record(Rejected(3, "a byte"))
    journal.close()
    events = [record["event"] for record in read_journal(path)]
    assert events == ["journal_gap", "rejected"]


def test_what_a_killed_writer_has_left_is_taken_by_the_next_one(tmp_path: Path) -> None:
    (tmp_path / ".shown.draft").write_bytes(b"half of a long pa")

    write_whole(tmp_path / "shown", b"new")

    assert (tmp_path / "shown").read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["shown"]


def test_two_processes_that_write_a_file_do_not_mix(tmp_path: Path) -> None:
    draft = tmp_path / ".shown.draft"
    with draft.open("wb", buffering=0) as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        other.write(b"half")

        write_whole(tmp_path / "shown", b"new")

        assert draft.read_bytes() == b"half"
    assert (tmp_path / "shown").read_bytes() == b"new"
    assert sorted(os.listdir(tmp_path)) == [".shown.draft", "shown"]


def test_record_with_a_second_name_is_read_also_through_a_link_to_the_directory(
    directory: RunDirectory, tmp_path: Path
) -> None:
    """Backups are made so: ``cp -al``, ``rsync --link-dest``."""
    link = RunDirectory(tmp_path / "link")
    link.path.symlink_to(directory.path)
    link.acquire_lease().release()
    link.create_record(RECORD)
    os.link(directory.record_path, tmp_path / "RUN.json")

    assert directory.load_record() == link.load_record() == RECORD


def test_record_that_is_too_large_is_refused_unread(directory: RunDirectory) -> None:
    with directory.record_path.open("wb") as file:
        file.truncate(1 << 40)

    with pytest.raises(UsageError, match=r"RUN\.json is .*: it has more than 1048576 bytes"):
        directory.load_record()


@planted("hard link")
@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("journal.jsonl", "report"),
        *(("RUN.json", command) for command in ("inspect", "verify", "repair --from /")),
        ("lease", "save"),
    ],
)
def test_commands_say_in_one_line_what_is_planted_and_do_not_read_it(
    directory: RunDirectory,
    target: Path,
    capsys: pytest.CaptureFixture[str],
    plant: Plant,
    complaint: str,
    name: str,
    command: str,
) -> None:
    plant(directory.path / name, target)
    verb, *options = command.split()

    code = holdfast_code(verb, directory.path, *options)

    out, err = capsys.readouterr()
    assert (code, out, err.count("\n")) == (ExitCode.USAGE, "", 1)
    assert f"/run/{name} {complaint}" in err
    assert is_untouched(directory.path / name, target)
    assert HistoryReader(directory.journal_path).read() == FailureHistory()
    if name == "journal.jsonl":
        with pytest.raises(UsageError, match=f"/run/{name} {complaint}"):
            next_generation(directory)


def test_planted_files_are_set_aside_with_the_run(directory: RunDirectory, target: Path) -> None:
    directory.create_record(RECORD)
    directory.journal_path.symlink_to(target.with_name("missing"))

    folder = directory.set_aside()

    assert folder is not None
    assert sorted(os.listdir(folder)) == ["RUN.json", "journal.jsonl"]
    assert os.listdir(directory.path) == ["previous-1"]


@as_root
def test_owner_of_the_directory_may_own_what_is_in_it(directory: RunDirectory) -> None:
    """As where root goes on with a user's run, or a file system gives all files one owner."""
    directory.create_record(RECORD)
    directory.acquire_lease().release()
    for path in (directory.path, directory.record_path, directory.lease_path):
        os.chown(path, STRANGER, STRANGER)

    assert directory.load_record() == RECORD
    directory.acquire_lease().release()


def test_refusal_leaves_no_descriptor_open(directory: RunDirectory, target: Path) -> None:
    os.link(target, directory.lease_path)
    before = {*os.listdir("/proc/self/fd")}

    with pytest.raises(ForeignFile):
        open_to_write(directory.lease_path)
    with pytest.raises(FileNotFoundError):
        read_at_most(directory.record_path, 10)

    assert {*os.listdir("/proc/self/fd")} <= before  # what others had left may be collected


@pytest.fixture
def hung() -> Iterator[threading.Event]:
    """An event that a call waits for; it always comes in the end."""
    event = threading.Event()
    yield event
    event.set()


def test_call_is_over_when_run_returns() -> None:
    calls = BoundedCalls("test", waits_s=BOUND_S)
    made: list[tuple[int, str]] = []

    for number in range(100):
        assert calls.run(lambda n=number: made.append((n, threading.current_thread().name)))  # type: ignore[misc]
        assert len(made) == number + 1

    assert made == [(number, "test") for number in range(100)]
    assert not calls.is_behind


def test_nobody_waits_for_calls_behind_one_that_hangs(hung: threading.Event) -> None:
    calls = BoundedCalls("test", waits_s=SOON_S)
    made: list[int] = []
    calls.run(lambda: made.append(hung.wait(BOUND_S)))
    assert calls.is_behind

    for number in range(2, 50):
        assert calls.run(lambda n=number: made.append(n))  # type: ignore[misc]
    assert made == []

    hung.set()
    calls._waits_s = BOUND_S
    with calls._changed:
        calls._changed.wait_for(lambda: not calls.is_behind, BOUND_S)
    assert calls.run(lambda: made.append(50))
    assert made == [True, *range(2, 51)]
    assert not calls.is_behind


def test_calls_that_are_all_slow_are_waited_for_once() -> None:
    """A disk may be slow for days: waiting for each of its calls would be most of the time."""
    calls = BoundedCalls("test", waits_s=SOON_S)
    gate = threading.Semaphore(0)
    for _ in range(5):
        calls.run(lambda: gate.acquire(timeout=BOUND_S))
        assert calls.is_behind
        gate.release()
        with calls._changed:
            calls._changed.wait_for(lambda: calls._ended == calls._taken, BOUND_S)

    assert calls.is_behind, "the thread has caught up, but the next call may be slow again"
    calls._waits_s = BOUND_S
    made: list[int] = []
    for number in range(100):
        calls.run(lambda n=number: made.append(n))  # type: ignore[misc]
    with calls._changed:
        calls._changed.wait_for(lambda: calls._ended == calls._taken, BOUND_S)
    assert made == list(range(100))
    assert not calls.is_behind


def test_calls_that_do_not_fit_any_more_never_run(hung: threading.Event) -> None:
    calls = BoundedCalls("test", waits_s=SOON_S, most_queued=3)
    made: list[int] = []
    calls.run(lambda: made.append(hung.wait(BOUND_S)))

    assert [calls.run(lambda n=number: made.append(n)) for number in range(5)] == [  # type: ignore[misc]
        *(True, True, True),
        *(False, False),
    ]

    hung.set()
    with calls._changed:
        calls._changed.wait_for(lambda: calls._ended == calls._taken, BOUND_S)
    assert made == [True, 0, 1, 2]


def test_signals_of_batch_systems_are_left_to_the_main_thread() -> None:
    """Else one that comes when the main thread blocks them changes the exit code."""
    masks: list[set[signal.Signals]] = []
    calls = BoundedCalls("test", waits_s=BOUND_S)
    calls.run(lambda: masks.append(set(signal.pthread_sigmask(signal.SIG_BLOCK, ()))))

    assert masks[0] >= SENT_BY_BATCH_SYSTEMS


@pytest.mark.process
def test_process_whose_directory_never_answers_says_so_and_can_be_started_again() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False
    )

    assert done.returncode == ExitCode.STOPPED_EARLY
    first, second = done.stdout.splitlines()
    assert first.startswith("the run directory /net/run has not answered for 0 s; waiting for")
    assert "nothing is known to be damaged; run again when it answers" in second


def test_directory_that_answers_is_not_spoken_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "TELLS_AFTER_S", 3600.0)
    told: list[str] = []

    with answering(Path("run"), told.append):
        pass
    with pytest.raises(KeyError), answering(Path("run"), told.append):
        raise KeyError("its own error")

    assert told == []
