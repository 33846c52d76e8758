"""The run directory: its record, its lease, what is set aside, and servers that fail."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.checkpoint.errors import TRANSIENT
from holdfast.runtime.errors import ExitCode, RunDirectoryBusy, RunUnreadable, UsageError
from holdfast.runtime.run import files
from holdfast.runtime.run.checkpoint_events import Rejected
from holdfast.runtime.run.failure_history import HistoryReader
from holdfast.runtime.run.files import refusal
from holdfast.runtime.run.find_run import no_run
from holdfast.runtime.run.journal import Journal, next_generation
from holdfast.runtime.run.run_directory import Ownership, RunDirectory, RunRecord

ALICE, BOB, GROUP = 48301, 48302, 48300

RECORD = RunRecord(
    run_id="0123456789abcdef", format=1, created=1.5, microbatches=4, seed=0, threads=2
)


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    directory = RunDirectory(tmp_path / "run")
    directory.prepare()
    return directory


def test_prepare_makes_the_name_of_each_new_level_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    monkeypatch.setattr("holdfast.runtime.run.run_directory.sync", synced.append)

    directory = RunDirectory(tmp_path / "a" / "b" / "run")
    directory.prepare()
    directory.prepare()

    assert synced == [tmp_path, tmp_path / "a", tmp_path / "a" / "b"]
    assert list(directory.path.iterdir()) == []


@pytest.mark.parametrize(
    ("use", "words"),
    [
        (lambda: RunDirectory(Path("/bin/sh")).prepare(), "/bin/sh is no directory; choose"),
        (lambda: RunDirectory(Path("/proc/self/run")).prepare(), "/proc/self/run cannot be used: "),
        (lambda: RunDirectory(Path("/proc/self")).create_record(RECORD), "cannot be used"),
    ],
    ids=["file", "unwritable", "record"],
)
def test_place_that_cannot_be_a_run_is_refused(use: Callable[[], None], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        use()


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"format": 99}, "its format is 99, this holdfast knows 1"),
        ({"seed": "zero"}, "its seed is 'zero'"),
        ({"threads": True}, "its threads is True"),
        ({"microbatches": 0}, "its microbatches is 0, less than 1"),
        ({"run_id": None}, "its run_id is None"),
        ({"key_id": "ab12"}, "only an older holdfast, which has --key-file, reads the signed"),
        *((content, "is not a valid run record") for content in (b"", b"{", b"[]", b"\xff\xfe")),
    ],
)
def test_damaged_record_is_refused_with_its_reason(
    directory: RunDirectory, change: dict[str, object] | bytes, complaint: str
) -> None:
    fields = json.loads(RECORD.encode()) | {"comment": "mine"}
    directory.record_path.write_text(json.dumps(fields))
    assert directory.load_record() == RECORD
    content = change if isinstance(change, bytes) else json.dumps(fields | change).encode()
    directory.record_path.write_bytes(content)

    with pytest.raises(UsageError, match=r"RUN\.json is not a valid run record") as caught:
        directory.load_record()

    assert complaint in str(caught.value)
    assert "--fresh" in str(caught.value)


def test_second_job_is_refused_while_the_owner_or_its_heir_lives(directory: RunDirectory) -> None:
    """The head gets the descriptor, and so owns the directory after the client."""
    lease = directory.acquire_lease()
    assert not os.get_inheritable(lease.fileno()), "`os.system` closes no descriptors"
    heir = subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=(lease.fileno(),)
    )
    for _ in ("owner", "heir"):
        with pytest.raises(RunDirectoryBusy) as caught:
            directory.acquire_lease()
        assert f"pid {os.getpid()} on host {os.uname().nodename}" in str(caught.value)
        assert caught.value.exit_code == ExitCode.RUN_DIRECTORY_BUSY
        lease.release()
    heir.communicate(b"\n")

    directory.acquire_lease().release()


def test_head_and_client_are_named_in_the_lease(directory: RunDirectory) -> None:
    lease = directory.acquire_lease()
    before = json.loads(directory.lease_path.read_bytes())
    host = os.uname().nodename
    first = {"host": host, "pid": os.getpid(), "token": lease.token}
    assert before == first | {"directory": str(directory.path)}

    socket = Path("/dev/shm/holdfast-1-x/agent.sock")
    lease.name_head(77, socket, 66)

    named = {"pid": 77, "agent": str(socket), "client": 66}
    assert json.loads(directory.lease_path.read_bytes()) == before | named
    lease.name_head(78, socket)  # the client stays who it was
    assert json.loads(directory.lease_path.read_bytes()) == before | named | {"pid": 78}
    lease.release()
    assert "agent" not in _owner_of_next_lease(directory)


def _owner_of_next_lease(directory: RunDirectory) -> dict[str, object]:
    directory.acquire_lease().release()
    owner: dict[str, object] = json.loads(directory.lease_path.read_bytes())
    return owner


def test_disk_that_takes_nothing_leaves_the_names_in_the_lease(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    lease = directory.acquire_lease()
    lease.name_head(77, Path("/somewhere/agent.sock"))
    before = directory.lease_path.read_bytes()
    monkeypatch.setattr(os, "pwrite", refuse)

    with pytest.raises(OSError, match="No space"):
        lease.name_head(78, Path("/elsewhere/agent.sock"))

    assert directory.lease_path.read_bytes() == before
    lease.release()


def test_run_is_set_aside_whole_and_strangers_stay(directory: RunDirectory) -> None:
    assert directory.set_aside() is None
    assert list(directory.path.iterdir()) == []
    _fill(directory, "first")
    directory.page_path.write_text("the report of the first")
    (directory.path / "notes.txt").write_text("mine")

    first = directory.set_aside()
    _fill(directory, "second")
    second = directory.set_aside()

    assert first == directory.path / "previous-1"
    assert second == directory.path / "previous-2"
    assert (first / "checkpoints" / "step").read_text() == "first"
    assert (second / "checkpoints" / "step").read_text() == "second"
    assert (first / "journal.jsonl").exists()
    assert (first / "RUN.json").exists()
    assert (first / "report.html").exists()
    assert not (second / "report.html").exists()
    assert sorted(os.listdir(directory.path)) == ["notes.txt", "previous-1", "previous-2"]
    assert directory.load_record() is None


def test_setting_aside_that_was_cut_short_is_finished_by_the_next(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record goes last, so the rest is still a run and never orphaned checkpoints."""
    _fill(directory, "first")
    rename = Path.rename

    def fail_at_journal(path: Path, target: Path) -> Path:
        if path.name == "journal.jsonl":
            raise OSError(5, "Input/output error")
        return rename(path, target)

    with monkeypatch.context() as broken:
        broken.setattr(Path, "rename", fail_at_journal)
        with pytest.raises(UsageError, match="Input/output error"):
            directory.set_aside()
    left = sorted(os.listdir(directory.path))
    directory.set_aside()

    assert left == ["RUN.json", "journal.jsonl", "previous-1"]
    assert sorted(os.listdir(directory.path)) == ["previous-1", "previous-2"]


def _fill(directory: RunDirectory, content: str) -> None:
    directory.create_record(RECORD)
    directory.journal_path.write_text("")
    directory.checkpoints_path.mkdir()
    (directory.checkpoints_path / "step").write_text(content)


def test_lock_that_a_network_file_system_refuses_belongs_to_another_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """fcntl(2) lets a file system say EACCES in place of EAGAIN, and NFS does."""
    directory = RunDirectory(tmp_path)

    def refuse(fd: int, kind: int) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(fcntl, "flock", refuse)

    with pytest.raises(RunDirectoryBusy, match="belongs to another job"):
        directory.acquire_lease()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may be another user")
@pytest.mark.parametrize(
    ("mode", "closed"), [(0o775, ""), (0o755, "checkpoints"), (0o700, "checkpoints")]
)
def test_part_that_is_closed_to_a_member_of_the_group_is_named_with_its_owner(
    mode: int, closed: str
) -> None:
    """In a folder that all may enter; pytest's own is closed to others."""
    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        os.chmod(place, 0o755)
        directory = RunDirectory(Path(place, "run"))
        directory.checkpoints_path.mkdir(parents=True)
        for path, bits in ((directory.path, 0o2775), (directory.checkpoints_path, mode)):
            os.chown(path, BOB, GROUP)
            path.chmod(bits)

        said = said_to_another_user(directory)

    assert said == (
        f"{directory.path}/{closed} belongs to user {BOB}, and others may not write it: let its "
        f"owner open the run, as to a group by `chmod -R g+rwX {directory.path}`, or choose "
        "another --run-dir"
        if closed
        else "None"
    )


def said_to_another_user(directory: RunDirectory) -> str:
    """Return why the run is refused to a member of its group, "None" if it is not."""
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        os.setgroups([])
        os.setresgid(GROUP, GROUP, GROUP)
        os.setresuid(ALICE, ALICE, ALICE)
        said: object = None
        try:
            directory.prepare()
            directory.acquire_lease()
            assert directory.newest_step is None
        except BaseException as error:
            said = error
        os.write(writer, str(said).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answer:
        text = answer.read()
    os.waitpid(child, 0)
    return text


NO_SYNC = [errno.EINVAL, errno.ENOSYS, errno.ENOTSUP]
LOST = [errno.ENOENT, errno.EEXIST, errno.EIO, errno.ESTALE]
NUMBERS = sorted(TRANSIENT)


def _fail(number: int, after: Callable[..., object] | None = None) -> Callable[..., Any]:
    """Return a call that fails, and does ``after`` all the same."""

    def fail(*arguments: Any, **named: Any) -> None:
        if after is not None:
            after(*arguments, **named)
        raise OSError(number, os.strerror(number))

    return fail


@pytest.mark.parametrize("number", LOST)
def test_record_whose_creation_was_not_answered_is_there_and_so_is_a_run_that_was_set_aside(
    directory: RunDirectory, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client asks again, and is told that there is no such draft."""
    monkeypatch.setattr(Path, "rename", _fail(number, after=Path.rename))

    directory.create_record(RECORD)

    assert directory.load_record() == RECORD
    with pytest.raises(UsageError, match="already holds a run"):
        directory.create_record(RECORD)
    assert os.listdir(directory.path) == ["RUN.json"]
    directory.checkpoints_path.mkdir()
    folder = directory.set_aside()
    assert folder is not None
    assert sorted(os.listdir(folder)) == ["RUN.json", "checkpoints"]


@pytest.mark.parametrize("number", [*NO_SYNC, errno.EIO])
def test_run_begins_where_directories_cannot_be_synced_and_not_where_that_fails(
    directory: RunDirectory, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first save tells of it."""
    monkeypatch.setattr(files, "sync", _fail(number))

    if number in NO_SYNC:
        directory.create_record(RECORD)
        assert directory.load_record() == RECORD
    else:
        with pytest.raises(RunUnreadable, match="nothing is known to be damaged"):
            directory.create_record(RECORD)


def test_record_that_is_listed_and_not_found_ends_the_job_and_not_the_run(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another host has begun the run, and this one remembers that there was none."""
    directory.create_record(RECORD)
    monkeypatch.setattr(os, "open", _fail(errno.ENOENT))

    with pytest.raises(RunUnreadable, match="listed, and yet not found") as refusal:
        directory.load_record()

    assert refusal.value.exit_code == ExitCode.STOPPED_EARLY


def errno_name(number: int) -> str:
    return errno.errorcode[number]


@pytest.fixture
def begun(tmp_path: Path) -> RunDirectory:
    found = RunDirectory(tmp_path / "run")
    found.prepare()
    found.create_record(RECORD)
    Journal(found.journal_path, run_id=RECORD.run_id, source="test").close()
    return found


STARTS: dict[str, Callable[[RunDirectory], object]] = {
    "prepare": lambda run: run.prepare(),
    "lease": lambda run: run.acquire_lease(),
    "record": lambda run: run.load_record(),
    "new record": lambda run: RunDirectory(run.path.parent).create_record(RECORD),
    "fresh": lambda run: run.set_aside(),
    "checkpoints": lambda run: run.newest_step,
    "generation": next_generation,
    "no run": lambda run: no_run(run.path),
}


@pytest.mark.parametrize("number", NUMBERS, ids=errno_name)
@pytest.mark.parametrize("start", STARTS)
def test_start_that_the_file_system_fails_can_be_tried_again(
    begun: RunDirectory, monkeypatch: pytest.MonkeyPatch, start: str, number: int
) -> None:
    with monkeypatch.context() as broken:
        for name in ("open", "listdir", "rename"):
            broken.setattr(os, name, _fail(number))
        broken.setattr(Path, "lstat", _fail(number))
        with pytest.raises(RunUnreadable) as refused:
            STARTS[start](begun)

    assert refused.value.exit_code == ExitCode.STOPPED_EARLY == os.EX_TEMPFAIL
    assert f"({errno_name(number)})" in str(refused.value)
    assert "nothing is known to be damaged" in str(refused.value)
    assert "--run-dir" not in str(refused.value)
    assert begun.load_record() == RECORD


@pytest.mark.parametrize(
    ("number", "code", "text"),
    [
        (errno.EACCES, ExitCode.USAGE, "make it writable"),
        *(
            (
                number,
                ExitCode.STOPPED_EARLY,
                f"/run cannot be written: {os.strerror(number)} ({errno.errorcode[number]}); "
                "nothing was begun: free space there, then run again",
            )
            for number in (errno.ENOSPC, errno.EDQUOT)
        ),
    ],
)
def test_full_file_system_lets_the_job_run_again_and_a_closed_one_does_not(
    number: int, code: ExitCode, text: str
) -> None:
    found = refusal(Path("/run"), OSError(number, os.strerror(number)), "make it writable")

    assert (str(found), found.exit_code) == (text, code)


@pytest.mark.parametrize("number", NUMBERS, ids=errno_name)
def test_owner_of_a_busy_directory_may_be_unreadable(
    begun: RunDirectory, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    lease = begun.acquire_lease()
    monkeypatch.setattr(os, "pread", _fail(number))

    with pytest.raises(RunDirectoryBusy, match="its owner is just starting"):
        begun.acquire_lease()
    lease.release()


@pytest.mark.parametrize("number", NUMBERS, ids=errno_name)
@pytest.mark.parametrize("call", ["open", "fstat", "write", "pread", "mkdir"])
def test_journal_loses_lines_and_raises_nothing(
    begun: RunDirectory, monkeypatch: pytest.MonkeyPatch, call: str, number: int
) -> None:
    path = begun.journal_path
    journal = Journal(path, run_id=RECORD.run_id, source="client")
    with monkeypatch.context() as broken:
        broken.setattr(os, call, _fail(number))
        journal.record(Rejected(1, "a byte"))
    journal.record(Rejected(2, "a byte"))
    journal.close()

    assert b'"step": 2' in path.read_bytes()


@pytest.mark.parametrize("number", NUMBERS, ids=errno_name)
def test_history_is_unknown_while_the_files_fail(
    begun: RunDirectory, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(files, "_open_name", _fail(number))

    assert HistoryReader(begun.journal_path).read().failures == 0
    Ownership(begun.path, "ours").refuse_taken()
