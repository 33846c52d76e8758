"""A checkpoint that cannot be read just now is waited for by all, and never called damaged."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from resumed_run import Run

from holdfast.checkpoint.errors import TRANSIENT
from holdfast.checkpoint.filesystem import FileSystem
from holdfast.runtime.errors import (
    CheckpointsUnread,
    ExitCode,
    RecoveryImpossible,
    UsageError,
)
from holdfast.runtime.run.failure_history import HistoryReader
from holdfast.runtime.system.worker_status import RequestFlag

NUMBERS = sorted(TRANSIENT)
ALWAYS = 10**6
Fault = Callable[..., None]
NEWEST, OLDER = "step-000000000020", "step-000000000010"


def _name(number: int) -> str:
    return errno.errorcode[number]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    found = Run(tmp_path)
    found.save(10, 1.0, writers=4)
    found.save(20, 2.0, writers=4)
    return found


@pytest.fixture
def fault(run: Run, monkeypatch: pytest.MonkeyPatch) -> Fault:
    """Let a call fail so often, for one rank alone or for all, where the path has a word in it."""
    rules: list[tuple[str, str, int, int | None, list[int]]] = []

    def strike(call: str, path: str, number: int, times: int, rank: int | None = None) -> None:
        rules.append((call, path, number, rank, [times]))

    def check(call: str, path: str) -> None:
        mine = run.rank_of(threading.get_ident())
        for of, word, number, rank, left in rules:
            if of == call and word in path and rank in (None, mine) and left[0] > 0:
                left[0] -= 1
                raise OSError(number, os.strerror(number))

    paths: dict[tuple[int, int], str] = {}
    open_read, read, names = FileSystem.open_read, FileSystem.read, FileSystem.list

    def opened(files: FileSystem, path: Path) -> int:
        check("open", str(path))
        handle = open_read(files, path)
        paths[threading.get_ident(), handle] = str(path)
        return handle

    def got(files: FileSystem, handle: int, buffer: memoryview, offset: int) -> int:
        check("read", paths[threading.get_ident(), handle])
        return read(files, handle, buffer, offset)

    def listed(files: FileSystem, path: Path) -> tuple[str, ...]:
        check("list", str(path))
        return tuple(names(files, path))

    monkeypatch.setattr(FileSystem, "open_read", opened)
    monkeypatch.setattr(FileSystem, "read", got)
    monkeypatch.setattr(FileSystem, "list", listed)
    return strike


@pytest.mark.parametrize("number", NUMBERS, ids=_name)
@pytest.mark.parametrize("call", ["open", "read"])
@pytest.mark.parametrize("ranks", [1, 4])
def test_newest_step_is_taken_once_it_can_be_read_again(
    run: Run, fault: Fault, ranks: int, call: str, number: int
) -> None:
    fault(call, NEWEST, number, 3, rank=ranks - 1)

    assert run.restore(ranks) == [(20, 2.0)] * ranks
    assert run.reasons() == []
    assert {tuple(clock.naps) for clock in run.clocks.values()} == {(0.5, 1.0, 2.0)}
    (notice,) = run.notices
    assert f"({_name(number)})" in notice
    assert "checkpoint step 20 cannot be read just now: cannot" in notice


@pytest.mark.parametrize("number", NUMBERS, ids=_name)
@pytest.mark.parametrize("ranks", [1, 4])
def test_older_step_is_taken_after_minutes_and_the_newer_one_is_not_rejected(
    run: Run, fault: Fault, ranks: int, number: int
) -> None:
    fault("open", f"{NEWEST}/shard", number, ALWAYS, rank=ranks - 1)

    assert run.restore(ranks) == [(10, 1.0)] * ranks
    assert run.reasons() == []
    (unread,) = run.journal("unreadable")
    assert (unread["step"], unread["error"], unread["seconds"]) == (20, _name(number), 180.0)
    assert NEWEST in unread["path"]
    notice = run.notices[-1]
    assert "goes on from checkpoint step 10, because the newer step 20 could not be read" in notice
    assert f"({_name(number)})" in notice
    assert "in 180.0 s" in notice
    assert NEWEST in notice
    assert all(20 not in context.unsound for context in run.contexts.values())
    assert HistoryReader(run.directory / "journal.jsonl").read().rejected == ()
    assert run.store.steps() == (20, 10)


def test_one_try_is_no_wait_however_long_it_takes(run: Run, fault: Fault) -> None:
    """Only failing reads are charged: a large state may take longer than the patience."""
    fault("read", NEWEST, errno.EIO, 1)
    run.restore(1)

    assert run.clocks[0].now_s == 0.5


@pytest.mark.parametrize("ranks", [1, 4])
def test_run_of_which_nothing_can_be_read_ends_with_the_code_to_run_again(
    run: Run, fault: Fault, ranks: int
) -> None:
    fault("open", "step-", errno.ESTALE, ALWAYS, rank=ranks - 1)

    with pytest.raises(CheckpointsUnread) as ended:
        run.restore(ranks)

    sentence = str(ended.value)
    assert ended.value.exit_code == ExitCode.STOPPED_EARLY == os.EX_TEMPFAIL
    assert sentence.startswith(f"none of the 2 checkpoints of {run.directory} could be read")
    assert "nothing is known to be damaged" in sentence
    assert f"{NEWEST}/MANIFEST.json: Stale file handle (ESTALE)" in sentence
    assert "in 180.0 s" in sentence
    assert "--fresh" not in sentence
    assert run.clocks[0].now_s < 200


@pytest.mark.parametrize("ranks", [1, 4])
def test_damaged_and_unread_steps_are_told_apart(run: Run, fault: Fault, ranks: int) -> None:
    (run.directory / "checkpoints" / OLDER / "MANIFEST.json").write_bytes(b"{}\n")
    fault("open", NEWEST, errno.EIO, ALWAYS)

    with pytest.raises(CheckpointsUnread) as ended:
        run.restore(ranks)

    sentence = str(ended.value)
    assert "step 10 is damaged; step 20 is not known to be damaged, but could not" in sentence
    assert "nothing is known" not in sentence
    assert "--fresh" not in sentence
    assert [record["step"] for record in run.journal("rejected")] == [10]
    assert run.contexts[0].rejected == {10}


def test_wrong_byte_that_one_sees_ends_the_wait_for_another(run: Run, fault: Fault) -> None:
    shard = sorted((run.directory / "checkpoints" / NEWEST).glob("*.h5"))[1]
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    fault("read", f"{NEWEST}/shard", errno.EIO, ALWAYS, rank=3)

    assert run.restore(4) == [(10, 1.0)] * 4
    assert [record["step"] for record in run.journal("rejected")] == [20]
    assert run.clocks[0].naps == []


@pytest.mark.parametrize(
    ("call", "path", "number", "error", "words"),
    [
        ("open", "step-", errno.EACCES, CheckpointsUnread, "EACCES.*nothing is known to be damag"),
        ("list", "checkpoints", errno.EACCES, UsageError, "cannot list .*EACCES.*give this user"),
        ("list", "checkpoints", errno.EIO, CheckpointsUnread, "cannot list .*EIO.*nothing is know"),
    ],
    ids=["missing permission", "a list that waiting does not mend", "a list that stays unreadable"],
)
def test_what_stays_unreadable_ends_the_job_and_is_no_damage(
    run: Run, fault: Fault, call: str, path: str, number: int, error: type[Exception], words: str
) -> None:
    fault(call, path, number, ALWAYS)

    with pytest.raises(error, match=words):
        run.restore(4)

    assert (run.clocks[0].naps == []) == (number == errno.EACCES)


@pytest.mark.parametrize("where", ["empty_tensor", "Digest"])
def test_memory_that_is_short_for_a_while_costs_no_step(
    run: Run, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    name = f"holdfast.checkpoint.scan.{where}"
    left = [2]
    monkeypatch.setattr(name, _short_of_memory(name, left))

    assert run.restore(1) == [(20, 2.0)]
    assert left == [0]
    assert "(ENOMEM)" in run.notices[0]


def _short_of_memory(name: str, left: list[int]) -> Callable[..., object]:
    module, _, member = name.rpartition(".")
    plain = getattr(__import__(module, fromlist=[member]), member)

    def make(*arguments: object) -> object:
        if left[0] > 0:
            left[0] -= 1
            raise MemoryError
        return plain(*arguments)

    return make


def test_death_in_a_wait_breaks_the_world(run: Run, fault: Fault) -> None:
    fault("open", NEWEST, errno.ESTALE, ALWAYS, rank=1)

    def die_once() -> None:
        if run.rank_of(threading.get_ident()) == 2:
            run.die()

    run.on_nap = die_once

    assert run.restore(4) == [None] * 4
    assert run.journal("restored") == []


def test_waits_need_no_peer_and_begin_turns(run: Run, fault: Fault) -> None:
    fault("open", NEWEST, errno.ESTALE, 2)
    turns: list[tuple[int, bool]] = []

    def poll() -> None:
        turns.append(run.contexts[0].page.turn)

    run.on_nap = poll
    run.restore(1)

    (first, waits), (second, still_waits) = turns
    assert second > first
    assert not waits
    assert not still_waits


def test_job_that_is_asked_to_stop_waits_no_longer(run: Run, fault: Fault) -> None:
    fault("open", "step-", errno.ESTALE, ALWAYS)

    def ask() -> None:
        for context in run.contexts.values():
            context.page.ask(RequestFlag.STOP)

    run.on_nap = ask

    with pytest.raises(CheckpointsUnread, match=r"told to stop: .*nothing is known to be damaged"):
        run.restore(4)
    assert len(run.clocks[0].naps) == 1


def test_damage_is_told_as_before(run: Run) -> None:
    for manifest in run.store.directory.rglob("MANIFEST.json"):
        manifest.write_bytes(b"{}\n")

    with pytest.raises(RecoveryImpossible, match=r"none of the 2 .* valid.*--fresh"):
        run.restore(2)
