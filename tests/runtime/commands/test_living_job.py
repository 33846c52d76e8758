"""A living job is found by its lease and asked over its head's socket: status, save, stop."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_head import Replies, head_of

from holdfast.runtime.commands import living_job
from holdfast.runtime.commands.living_job import (
    JobSocket,
    Life,
    find_life,
    life_of,
    living_head,
)
from holdfast.runtime.errors import ExitCode, NotSaved
from holdfast.runtime.head.orders import TimeLimits
from holdfast.runtime.head.visits import (
    AskSave,
    AskStatus,
    AskStop,
    HeadStatus,
    JobDone,
    JobStarting,
    JobStopping,
    SaveAsked,
    SaveDone,
    SaveRefused,
)
from holdfast.runtime.run.events import JobEnded, JobStarted
from holdfast.runtime.run.journal import Journal
from holdfast.runtime.run.lease import Lease
from holdfast.runtime.run.progress import LaunchReport
from holdfast.runtime.run.run_directory import FORMAT, RunDirectory, RunRecord
from holdfast.runtime.system.channel import Message, to_message

NOBODY = (1 << 22) + 1
"""Linux gives no process so high a number."""

Holdfast = Callable[..., tuple[int, str, str]]
BOUND_S = 90.0
SILENT_S = 0.05
RUN = RunRecord("run", FORMAT, 0.0, microbatches=4, seed=0, threads=1)


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    directory = RunDirectory(tmp_path / "my run")
    directory.prepare()
    directory.create_record(RUN)
    directory.journal_path.touch()
    return directory


@pytest.fixture
def lease(directory: RunDirectory) -> Iterator[Lease]:
    """The lease, held by this process, which is no head yet."""
    lease = directory.acquire_lease()
    yield lease
    lease.release()


@pytest.fixture
def socket(directory: RunDirectory) -> Iterator[JobSocket]:
    socket = JobSocket(directory)
    yield socket
    socket.close()


def write_lease(run: RunDirectory, pid: int, **fields: Any) -> None:
    owner = {"host": os.uname().nodename, "pid": pid, **fields}
    run.lease_path.write_text(json.dumps(owner))


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def copy_of(directory: RunDirectory) -> RunDirectory:
    copy = RunDirectory(directory.path.with_name("copy"))
    ignored = shutil.ignore_patterns("*.sock")
    shutil.copytree(directory.path, copy.path, ignore=ignored)
    return copy


def life(directory: RunDirectory) -> tuple[Life, str]:
    """Return what is left of a job whose head answers nothing."""
    return find_life(directory, None)


def test_client_that_starts_a_head_counts_as_the_job(directory: RunDirectory, lease: Lease) -> None:
    """A head that has died is replaced by its client, which holds the lease as well."""
    lease.name_head(NOBODY, directory.path / "agent.sock", os.getpid())

    assert living_head(directory) is None


@pytest.mark.parametrize("takes_orders", [True, False])
def test_job_that_has_said_its_end_is_neither_lost_nor_alive(
    directory: RunDirectory, *, takes_orders: bool
) -> None:
    """Its journal may have lost it, on a full disk; `holdfast repair` takes no orders."""
    lease = directory.acquire_lease(takes_orders=takes_orders)
    lease.end()
    lease.release()

    assert life(directory)[0] is Life.ENDED


def test_lease_of_another_host_is_told_with_both_names(directory: RunDirectory) -> None:
    write_lease(directory, os.getpid(), host="elsewhere")

    assert life(directory) == (
        Life.UNKNOWN,
        f"{directory.path} belongs to host elsewhere, this is {os.uname().nodename}; ask there",
    )


@pytest.mark.parametrize("takes_orders", [True, False])
def test_search_leaves_no_descriptor_open(directory: RunDirectory, *, takes_orders: bool) -> None:
    lease = directory.acquire_lease(takes_orders=takes_orders)
    before = open_descriptors()

    life(directory)
    while_held = open_descriptors()
    lease.release()
    life(directory)  # the process lives, and holds the lease no more

    assert (while_held, open_descriptors()) == (before, before - 1)


@pytest.mark.parametrize(
    "content",
    [None, "", "{}", "[1]", '"x"', '{"host": "h"}', '{"pid": 1}', '{"host": "h", "pid": null}'],
    ids=str,
)
def test_lease_that_names_no_process_is_nobodys(
    directory: RunDirectory, content: str | None
) -> None:
    if content is not None:
        directory.lease_path.write_text(content)

    with pytest.raises(NotSaved, match=r"no job runs in .*; start one with `holdfast run`"):
        living_head(directory)
    assert life(directory)[0] is Life.GONE


def test_lease_that_cannot_be_read_tells_nothing_of_a_job(directory: RunDirectory) -> None:
    unreadable = RunDirectory(directory.record_path)  # root, too, is refused

    assert life(unreadable) == (
        Life.UNKNOWN,
        f"{unreadable.lease_path} cannot be read: Not a directory; ask as its owner, or again when "
        "the file system answers",
    )


@pytest.mark.parametrize(
    ("ended", "words"),
    [
        (None, "was lost; go on with `holdfast run`"),
        ((0, "completed step 9"), "completed step 9; look at it with `holdfast report {}`"),
        ((75, "stopped at step 5"), "ended with exit code 75: stopped at step 5"),
    ],
    ids=["lost", "complete", "stopped"],
)
@pytest.mark.parametrize("order", ["save", "stop"])
def test_order_without_a_job_tells_how_the_last_one_ended(
    directory: RunDirectory,
    order: str,
    ended: tuple[int, str] | None,
    words: str,
    holdfast: Holdfast,
) -> None:
    journal = Journal(directory.journal_path, run_id=RUN.run_id, source="head")
    for begun in ((2, "an older job"), ended):
        journal.record(JobStarted(2, 0, 2, 0, 1, "a.py", ()))
        if begun is not None:
            journal.record(JobEnded(*begun))
    journal.close()
    write_lease(directory, NOBODY)

    begin = f"holdfast: error: no job runs in {directory.path}: the last one "
    told = begin + words.format(directory.path) + "\n"
    assert holdfast(order, directory.path) == (ExitCode.STOPPED_EARLY, "", told)


def status_of(directory: RunDirectory, client: int | None = 5, now: float = 0.0) -> HeadStatus:
    return HeadStatus(now, os.getpid(), client, str(directory.path), 0, LaunchReport())


def test_command_that_shows_a_job_can_be_pasted(directory: RunDirectory) -> None:
    _, words = find_life(directory, status_of(directory, None))

    assert words.endswith(f"`holdfast attach '{directory.path}'`")


def test_head_of_another_directory_does_not_own_a_copy(
    directory: RunDirectory, holdfast: Holdfast
) -> None:
    with head_of(directory, lambda _: [status_of(directory)]) as head:
        copy = copy_of(directory)
        told = f"no job runs in {copy.path}; start one with `holdfast run`"
        before = open_descriptors()

        assert life_of(copy) is Life.GONE
        for order in ("save", "stop"):
            assert holdfast(order, copy.path)[2] == f"holdfast: error: {told}\n"
        assert head.heard == [], "and it is ordered nothing"
        while open_descriptors() > before:  # the head sees the end of a connection later
            time.sleep(0.001)


def test_job_whose_container_has_the_directory_at_another_place_is_found(
    directory: RunDirectory,
) -> None:
    with head_of(directory, lambda _: [status_of(directory)]):
        owner = directory.lease_owner() | {"directory": "/only/in/the/container"}
        directory.lease_path.write_text(json.dumps(owner))

        assert life_of(directory) is Life.RUNNING


def test_life_of_a_job_is_what_its_head_says(directory: RunDirectory) -> None:
    assert life_of(directory) is Life.GONE
    for client, found in ((5, Life.RUNNING), (None, Life.DETACHED)):
        with head_of(directory, lambda _, client=client: [status_of(directory, client)]):
            assert life_of(directory) is found
    assert life_of(directory) is Life.GONE
    write_lease(directory, os.getpid(), host="elsewhere")
    assert life_of(directory) is Life.UNKNOWN


def test_head_is_asked_again_and_again(directory: RunDirectory, socket: JobSocket) -> None:
    numbers = iter(range(3))

    with head_of(directory, lambda _: [status_of(directory, now=next(numbers))]) as head:
        answers = [socket.ask(BOUND_S) for _ in range(3)]

        assert [answer.now for answer in answers if answer] == [0, 1, 2]
        assert head.heard == [to_message(AskStatus())] * 3
    assert not socket.is_silent


def test_silent_head_is_asked_once_and_its_late_answer_counts(
    directory: RunDirectory, socket: JobSocket
) -> None:
    may_answer = threading.Event()

    def answer_late(_: Message) -> Replies:
        may_answer.wait()
        return [status_of(directory)]

    with head_of(directory, answer_late) as head:
        assert socket.ask(SILENT_S) is None
        assert socket.is_silent
        assert socket.ask(SILENT_S) is None
        may_answer.set()

        assert socket.ask(BOUND_S) == status_of(directory)
        assert not socket.is_silent
        assert head.heard == [to_message(AskStatus())]


def test_head_that_follows_another_is_asked_in_its_place(
    directory: RunDirectory, socket: JobSocket
) -> None:
    for number in range(2):
        told = status_of(directory, now=number)
        with head_of(directory, lambda _, told=told: [told]):
            assert socket.ask(BOUND_S) == told


def test_head_that_goes_away_has_no_answer(directory: RunDirectory, socket: JobSocket) -> None:
    def die(_: Message) -> Replies:
        directory.lease_path.write_text("{}")  # nobody is found at another try
        return [None]

    with head_of(directory, die):
        assert socket.ask(BOUND_S) is None
    assert not socket.is_silent


SAVED, ASKED, FULL = SaveDone(7, 0.5), SaveAsked(), SaveRefused("the disk is full")
STOPPING, ENDED = JobStopping(), JobDone(75, TimeLimits())


@pytest.mark.parametrize(
    ("command", "replies", "told"),
    [
        ("save", [[ASKED, ASKED, SAVED]], "saved step 7 in 0.50 s"),
        ("save --no-wait", [[ASKED]], "asked for a checkpoint"),
        (
            "save",
            [[ASKED, FULL]],
            "job in RUN goes on but cannot save: the disk is full",
        ),
        ("save", [[SaveRefused()]], "RUN ended without another checkpoint; run it again"),
        ("save", [[JobStarting(), None], [None], [ASKED, SAVED]], "saved step 7"),
        ("save", [[ASKED, None], [ASKED, SAVED]], "saved step 7"),
        ("save --timeout 0.1", [[ASKED]], "not committed a checkpoint within 0.1 s; give a longer"),
        ("stop", [[STOPPING, ENDED]], "stopped: its exit code is 75"),
        ("stop --now", [[STOPPING, ENDED]], "stopped: its exit code is 75"),
        ("stop --no-wait", [[STOPPING]], "asked to stop"),
        (
            "stop --timeout 0.1",
            [[STOPPING]],
            "has not stopped within 0.1 s; give a longer",
        ),
    ],
)
def test_order_is_given_to_each_head_and_waited_for(
    command: str, replies: list[Replies], told: str, directory: RunDirectory, holdfast: Holdfast
) -> None:
    """A head may have no job yet, may be lost, and may ask workers again that were lost."""
    left = iter(replies)
    verb, *options = command.split()
    with head_of(directory, lambda _: next(left)) as head:
        code, out, err = holdfast(verb, directory.path, *options)

    assert told in (out + err).replace(str(directory.path), "RUN")
    assert code == (ExitCode.STOPPED_EARLY if err else ExitCode.DONE)
    save, stop = AskSave("--no-wait" not in command), AskStop("--now" in command)
    assert head.heard == [to_message(save if verb == "save" else stop)] * len(replies)


def test_waiting_ends_with_the_job(directory: RunDirectory, holdfast: Holdfast) -> None:
    def die(_: Message) -> Replies:
        write_lease(directory, NOBODY)
        return [ASKED, None]

    with head_of(directory, die):
        assert "no job runs in" in holdfast("save", directory.path)[2]


def test_job_that_is_starting_is_waited_for(
    directory: RunDirectory, lease: Lease, holdfast: Holdfast
) -> None:
    _, _, err = holdfast("save", directory.path, "--timeout", 0.1)

    assert "has not committed a checkpoint within 0.1 s; give a longer --timeout" in err


def test_head_that_is_stopped_is_named(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch, holdfast: Holdfast
) -> None:
    monkeypatch.setattr(living_job, "is_stopped", lambda pid: pid == os.getpid())

    with head_of(directory, lambda _: []):
        _, _, err = holdfast("save", directory.path, "--timeout", 0.1)

    assert f"pid {os.getpid()}, is stopped; let it go on with `kill -CONT {os.getpid()}`" in err


def test_order_to_a_directory_that_is_missing_says_so(tmp_path: Path, holdfast: Holdfast) -> None:
    assert "/nosuch does not exist" in holdfast("save", tmp_path / "nosuch")[2]
