"""A living job is found by its lease and asked over its head's socket, by each command."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from fake_head import Replies, head_of

from holdfast.recovery.event import Event, WorkerCompleted
from holdfast.runtime.errors import ExitCode, NotSaved, RunDirectoryBusy
from holdfast.runtime.head import living_job
from holdfast.runtime.head.living_job import (
    JobSocket,
    Life,
    OwnerEnded,
    another_job,
    find_head,
    find_life,
    find_owner,
    life_of,
)
from holdfast.runtime.head.orders import TimeLimits
from holdfast.runtime.head.visits import (
    AnotherJob,
    AskSave,
    AskStatus,
    AskStop,
    ClientRefused,
    ClientTaken,
    HeadStatus,
    JobDone,
    JobStarting,
    JobStopping,
    SaveAsked,
    SaveDone,
    SaveRefused,
    ShowJob,
)
from holdfast.runtime.options.job_options import JobOptions
from holdfast.runtime.run.events import JobEnded, JobStarted
from holdfast.runtime.run.journal import Journal
from holdfast.runtime.run.lease import Lease
from holdfast.runtime.run.progress import LaunchReport
from holdfast.runtime.run.run_directory import FORMAT, RunDirectory, RunRecord
from holdfast.runtime.system.channel import FDS, Channel, Message, pair, to_message
from holdfast.runtime.system.processes import HeldProcess

NOBODY = (1 << 22) + 1
"""Linux gives no process so high a number."""

Holdfast = Callable[..., tuple[int, str, str]]
SCRIPT = Path("/a/slow.py")
PLACE = Path("/my runs/1")
ANOTHER = JobOptions(SCRIPT, PLACE)
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

    assert find_head(directory) is None


@pytest.mark.parametrize("takes_orders", [True, False])
def test_job_that_has_said_its_end_is_neither_lost_nor_alive(
    directory: RunDirectory, *, takes_orders: bool
) -> None:
    """Its journal may have lost it, on a full disk; `holdfast repair` takes no orders."""
    lease = directory.acquire_lease(takes_orders=takes_orders)
    lease.end()
    lease.release()

    assert life(directory)[0] is Life.ENDED


def test_lease_of_another_host_is_told_with_both_names(
    directory: RunDirectory, holdfast: Holdfast
) -> None:
    write_lease(directory, os.getpid(), host="elsewhere")
    here = os.uname().nodename

    words = f"{directory.path} belongs to host elsewhere, this is {here}; ask there"
    assert life(directory) == (Life.UNKNOWN, words)
    for order in ("save", "stop", "attach"):
        assert holdfast(order, directory.path)[2] == f"holdfast: error: {words}\n"


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
        find_head(directory)
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
        (None, "is lost with its head; go on with `holdfast run`"),
        (WorkerCompleted(1, 9, ""), "completed step 9, after its head was lost; LOOK"),
        (JobEnded(0, "completed step 9"), "ended with exit code 0: completed step 9; LOOK"),
        (JobEnded(75, "stopped at step 5"), "ended with exit code 75: stopped at step 5; LOOK"),
    ],
    ids=["lost", "completed", "complete", "stopped"],
)
@pytest.mark.parametrize("order", ["save", "stop", "attach"])
def test_order_without_a_job_tells_how_the_last_one_ended(
    directory: RunDirectory,
    order: str,
    ended: Event | None,
    words: str,
    holdfast: Holdfast,
) -> None:
    journal = Journal(directory.journal_path, run_id=RUN.run_id, source="head")
    for event in (JobEnded(2, "an older job"), ended):
        journal.record(JobStarted(2, 0, 2, 0, 1, "a.py", ()))
        if event is not None:
            journal.record(event)
    journal.close()
    write_lease(directory, NOBODY)

    begin = f"holdfast: error: no job runs in {directory.path}: the last one "
    told = begin + words.replace("LOOK", f"look at it with `holdfast report '{directory.path}'`")
    code = ExitCode.USAGE if order == "attach" else ExitCode.STOPPED_EARLY
    assert holdfast(order, directory.path) == (code, "", told + "\n")


def status_of(directory: RunDirectory, client: int | None = 5, now: float = 0.0) -> HeadStatus:
    return HeadStatus(now, os.getpid(), client, str(directory.path), 0, LaunchReport())


def test_head_of_another_directory_does_not_own_a_copy(
    directory: RunDirectory, holdfast: Holdfast
) -> None:
    with head_of(directory, lambda _: [status_of(directory)]) as head:
        copy = copy_of(directory)
        told = f"no job runs in {copy.path}; start one with `holdfast run`"
        before = open_descriptors()

        assert life_of(copy) is Life.GONE
        for order in ("save", "stop", "attach"):
            assert holdfast(order, copy.path)[2] == f"holdfast: error: {told}\n"
        assert head.heard == [], "and it is ordered nothing"
        while open_descriptors() > before:  # the head sees the end of a connection later
            time.sleep(0.001)


def test_job_whose_container_has_the_directory_at_another_place_is_found(
    directory: RunDirectory,
) -> None:
    with head_of(directory, lambda _: [status_of(directory)]):
        place = Path("/only/in/the/container")
        there = replace(directory.lease_owner(), directory=place)
        directory.lease_path.write_bytes(there.encode())

        assert life_of(directory) is Life.RUNNING


def test_life_of_a_job_is_what_its_head_says(directory: RunDirectory) -> None:
    assert life_of(directory) is Life.GONE
    for client, found in ((5, Life.RUNNING), (None, Life.DETACHED)):
        with head_of(directory, lambda _, client=client: [status_of(directory, client)]):
            assert life_of(directory) is found
    assert life_of(directory) is Life.GONE
    _, words = find_life(directory, status_of(directory, None))
    assert words == f"take it over: `holdfast attach '{directory.path}'`"
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
    code, _, err = holdfast("attach", directory.path)
    assert code == ExitCode.RUN_DIRECTORY_BUSY
    assert err.endswith("is just starting, or ending; ask again\n")


def test_head_that_is_stopped_is_named(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch, holdfast: Holdfast
) -> None:
    monkeypatch.setattr(living_job, "is_stopped", lambda pid: pid == os.getpid())

    with head_of(directory, lambda _: []):
        _, _, err = holdfast("save", directory.path, "--timeout", 0.1)

    assert f"pid {os.getpid()}, is stopped; let it go on with `kill -CONT {os.getpid()}`" in err


def test_order_to_a_directory_that_is_missing_says_so(tmp_path: Path, holdfast: Holdfast) -> None:
    assert "/nosuch does not exist" in holdfast("save", tmp_path / "nosuch")[2]


@pytest.mark.parametrize(
    ("asked", "difference"),
    [
        (JobOptions(SCRIPT, PLACE, fresh=True), "and which --fresh would set aside; "),
        (JobOptions(Path("/b/train.py"), PLACE), "and which runs another script, /a/slow.py; "),
        (
            JobOptions(SCRIPT, PLACE, argv=("--foo", "a b")),
            "(its: --epochs 3; asked for: --foo 'a b'); ",
        ),
        (JobOptions(SCRIPT, PLACE), "(its: --epochs 3; asked for: none); "),
    ],
)
def test_difference_is_named_with_the_command_that_goes_on(
    asked: JobOptions, difference: str
) -> None:
    its = [False, str(SCRIPT), "--epochs", "3"]

    text = another_job(RunDirectory(PLACE), its, asked)

    assert difference in text
    assert "look at it with `holdfast attach '/my runs/1'`" in text


@dataclass
class Orphan:
    """A run directory whose lease names a head, and the head's end of the connection."""

    directory: RunDirectory
    lease: Lease
    asks: Channel
    answers: Channel

    def close(self) -> None:
        self.lease.release()
        self.asks.close()
        self.answers.close()


@pytest.fixture
def orphan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Orphan]:
    directory = RunDirectory(tmp_path)
    directory.prepare()
    made = Orphan(directory, directory.acquire_lease(), *pair())
    made.lease.name_head(os.getpid(), tmp_path / "agent.sock", client=os.getpid())
    monkeypatch.setattr(living_job, "connect", lambda path: made.asks)
    monkeypatch.setattr(living_job, "SHOWS_WITHIN_S", 0.0)  # what it says was said before
    yield made
    made.close()


def test_job_that_lives_is_found_as_it_stands(orphan: Orphan) -> None:
    greeting = ClientTaken({"a": 1}, 2, "/tmp/a", "/", {})
    orphan.answers.post(to_message(greeting), (orphan.lease.fileno(),))

    found = find_owner(orphan.directory)

    assert found is not None
    assert (found.channel, found.process.pid) == (orphan.asks, os.getpid())
    assert found.greeting == greeting
    assert os.path.samestat(os.fstat(found.lease), orphan.directory.lease_path.stat())
    found.process.close()
    os.close(found.lease)


@pytest.mark.parametrize(
    ("asked", "job"),
    [
        (None, None),
        (JobOptions(SCRIPT, PLACE, argv=("--lr", "1")), [False, "/a/slow.py", "--lr", "1"]),
        (JobOptions(SCRIPT, PLACE, fresh=True), [True, "/a/slow.py"]),
    ],
    ids=["attach", "run", "run --fresh"],
)
def test_head_is_told_what_job_is_asked_for_and_where_its_output_goes(
    orphan: Orphan, asked: JobOptions | None, job: list[object] | None
) -> None:
    orphan.answers.post(to_message(JobStarting()))

    with pytest.raises(RunDirectoryBusy):
        find_owner(orphan.directory, asked)

    (question,) = orphan.answers.drain()
    streams = question.pop(FDS)
    assert question == to_message(ShowJob(job and tuple(job)))
    for number, stream in enumerate(streams, start=1):
        assert os.path.samestat(os.fstat(stream), os.fstat(number))
        os.close(stream)
    assert len(streams) == 2
    assert orphan.asks.is_closed


@pytest.mark.parametrize(
    ("asked", "answer", "why"),
    [
        (
            ANOTHER,
            ClientRefused(12),
            "another job, which pid 12 shows; wait for it to end, stop it with `holdfast stop`, or",
        ),
        (ANOTHER, JobStarting(), "a job that is just starting; run again in a minute"),
        (ANOTHER, AnotherJob((False, "/b.py")), "another script, /b.py; look at it"),
        (ANOTHER, None, f"a job whose head, pid {os.getpid()}, does not answer; let it go on"),
        (None, ClientRefused(12), "a job that pid 12 shows already; it needs no `holdfast attach`"),
    ],
    ids=["attached already", "not launched", "another job", "silent", "attach"],
)
def test_job_that_cannot_be_shown_is_told_with_what_to_do(
    orphan: Orphan, asked: JobOptions | None, answer: object, why: str
) -> None:
    if answer is not None:
        orphan.answers.post(to_message(answer))

    with pytest.raises(RunDirectoryBusy, match=f"run directory .* belongs to .*{why}") as refusal:
        find_owner(orphan.directory, asked)

    assert not isinstance(refusal.value, OwnerEnded)


def test_run_whose_head_is_gone_has_nobody_to_be_found(orphan: Orphan) -> None:
    orphan.answers.close()

    assert find_owner(orphan.directory) is None
    assert orphan.asks.is_closed


@pytest.mark.process
@pytest.mark.parametrize("client", ["lives", "is gone", "is unknown"])
def test_stopped_head_is_ended_only_if_no_client_watches_it(
    orphan: Orphan, monkeypatch: pytest.MonkeyPatch, client: str
) -> None:
    """A batch system that suspends a job stops its client as well, which still lives."""
    head = subprocess.Popen(["sleep", "600"])
    head.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, head.pid, os.WSTOPPED | os.WNOWAIT)
    monkeypatch.setattr(HeldProcess, "of_peer", lambda channel: HeldProcess(head.pid))
    clients = {"lives": os.getpid(), "is gone": _pid_of_a_dead_process(), "is unknown": None}
    named = replace(orphan.directory.lease_owner(), client=clients[client])
    orphan.directory.lease_path.write_bytes(named.encode())
    is_ended = client == "is gone"

    with pytest.raises(RunDirectoryBusy, match=str(head.pid)) as owner:
        find_owner(orphan.directory)

    has_ended = head.poll() is not None
    head.kill()
    head.wait()
    assert has_ended is is_ended is isinstance(owner.value, OwnerEnded)


def _pid_of_a_dead_process() -> int:
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


@pytest.mark.process
@pytest.mark.parametrize("head", ["lives", "is gone"])
@pytest.mark.parametrize("is_run", [True, False], ids=["run", "attach"])
def test_client_that_is_stopped_is_named_with_what_lets_it_go_on(
    orphan: Orphan, head: str, *, is_run: bool
) -> None:
    client = subprocess.Popen(["sleep", "600"])
    client.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, client.pid, os.WSTOPPED | os.WNOWAIT)
    named = replace(orphan.directory.lease_owner(), client=client.pid)
    if head == "is gone":
        named = replace(named, agent=orphan.directory.path / "nowhere")
    orphan.directory.lease_path.write_bytes(named.encode())
    orphan.answers.post(to_message(ClientRefused(client.pid)))

    with pytest.raises(RunDirectoryBusy) as owner:
        find_owner(orphan.directory, ANOTHER if is_run else None)

    client.kill()
    client.wait()
    assert str(owner.value).endswith(
        f"belongs to a job whose client, pid {client.pid}, is stopped; let it go on (kill -CONT "
        f"{client.pid}), or end it (kill -KILL {client.pid}), then ask again"
    )
