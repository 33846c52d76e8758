"""A job as its client sees it: begun, in a batch system, attached to, and with a head that dies."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from heads import exited, job_of, joined, report, setup_in

from holdfast.runtime.batch.schedulers import CHAIN, Allocation, Deadline, Scheduler
from holdfast.runtime.errors import ExitCode, RecoveryImpossible, RunDirectoryBusy, UsageError
from holdfast.runtime.head import client as module
from holdfast.runtime.head.batch_job import BatchJob, ChainLink
from holdfast.runtime.head.client import Client, SignalPipe
from holdfast.runtime.head.head_process import (
    FoundHead,
    HeadProcess,
    HeadTerms,
    StoppedHeadEnded,
)
from holdfast.runtime.head.job import Job, LaunchLog
from holdfast.runtime.head.orders import TimeLimits
from holdfast.runtime.options.job_options import JobOptions
from holdfast.runtime.run import lease as lease_module
from holdfast.runtime.run.journal import Journal, read_journal
from holdfast.runtime.run.run_directory import FORMAT, RunDirectory, RunRecord
from holdfast.runtime.system import witnessed_time
from holdfast.runtime.system.channel import FDS, Listener, Message, pair
from holdfast.runtime.system.codec import from_plain, to_plain
from holdfast.runtime.system.processes import HeldProcess
from holdfast.runtime.system.reactor import Reactor

FREE = "the setup of a job that may begin"
ORPHAN = cast(FoundHead, "a job without a client")
NOBODY = None
Answer = str | FoundHead | Exception | None

BOUND_S = 90.0
RUN = "00112233aabbccdd"
BY_HAND = Allocation(Scheduler.SLURM, "7", chain="", is_batch=False, ends_at=4e9)

IN_BATCH = replace(BY_HAND, chain="slurm 7", is_batch=True)


class Directory:
    """A run directory that answers as a test wants, on a clock of its own."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now, self.sleeps, self.said = 50.0, list[float](), list[str]()
        self.setups: list[Answer] = []
        self.found: list[Answer] = []
        patch.setattr(module, "prepare_job", lambda *_: _given(self.setups))
        patch.setattr(module, "find_head", lambda *_, **__: _given(self.found))
        patch.setattr(module, "say", self.said.append)
        clock = SimpleNamespace(monotonic=lambda: self.now, sleep=self._sleep)
        patch.setattr(module, "time", clock)
        patch.setattr(witnessed_time, "time", clock)

    def prepare(self, wait_lease_s: float = 0.0) -> object:
        options = JobOptions(Path("train.py"), Path("/run"), wait_lease_s=wait_lease_s)
        prepared = module._prepare(options)
        if not isinstance(prepared, tuple):
            return prepared
        found, signals = prepared
        signals.restore()
        return found

    def _sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.now += seconds


def _given(answers: list[Answer]) -> Answer:
    answer = answers.pop(0)
    if isinstance(answer, Exception):
        raise answer
    return answer


@pytest.fixture
def directory(monkeypatch: pytest.MonkeyPatch) -> Directory:
    return Directory(monkeypatch)


def test_free_directory_is_taken_at_once(directory: Directory) -> None:
    directory.setups = [FREE]

    assert directory.prepare(wait_lease_s=60.0) == FREE
    assert (directory.sleeps, directory.said) == ([], [])


def test_job_without_a_client_is_shown_in_place_of_a_new_one(directory: Directory) -> None:
    directory.setups = [RunDirectoryBusy("pid 3 has it")]
    directory.found = [ORPHAN]

    assert directory.prepare() == ORPHAN


@pytest.mark.parametrize(
    ("found", "words"),
    [(NOBODY, "pid 3 has it"), (RunDirectoryBusy("pid 4 shows it"), "pid 4 shows it")],
    ids=["nobody knows more", "its head knows more"],
)
def test_busy_directory_is_refused_in_the_words_of_who_knows_most(
    directory: Directory, found: Answer, words: str
) -> None:
    directory.setups = [RunDirectoryBusy("pid 3 has it")]
    directory.found = [found]

    with pytest.raises(RunDirectoryBusy, match=f"^{words}$"):
        directory.prepare()

    assert directory.sleeps == []


def test_busy_directory_is_waited_for_and_that_is_said_once(directory: Directory) -> None:
    directory.setups = [*[RunDirectoryBusy("pid 3 has it")] * 3, FREE]
    directory.found = [NOBODY] * 3

    assert directory.prepare(wait_lease_s=60.0) == FREE

    assert directory.sleeps == [1.0] * 3
    assert directory.said == ["waiting for 60 s at most: pid 3 has it"]


def test_wait_for_a_busy_directory_ends(directory: Directory) -> None:
    directory.setups = [RunDirectoryBusy("pid 3 has it")] * 9
    directory.found = [NOBODY] * 9

    with pytest.raises(RunDirectoryBusy, match="pid 3 has it"):
        directory.prepare(wait_lease_s=5.0)

    assert directory.sleeps == [1.0] * 5


def test_directory_of_a_head_that_was_ended_is_taken_without_a_wait(directory: Directory) -> None:
    directory.setups = [RunDirectoryBusy("pid 3 has it"), FREE]
    directory.found = [StoppedHeadEnded("ended the job in /run")]

    assert directory.prepare() == FREE
    assert directory.said == ["ended the job in /run; going on from its newest checkpoint"]


def test_attach_refuses_what_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"is no run: it has no RUN.json"):
        module.attach(tmp_path)


def test_attach_to_a_run_that_has_completed_nothing_names_the_command_that_begins_it(
    tmp_path: Path,
) -> None:
    journal = Journal(RunDirectory(tmp_path).journal_path, run_id="r", source="test")
    journal.record("launch")
    journal.close()

    with pytest.raises(UsageError, match=r"no job lives in .*; start or resume it with `holdfast"):
        module.attach(tmp_path)


def test_attach_to_a_job_that_has_completed_says_so(tmp_path: Path) -> None:
    journal = Journal(RunDirectory(tmp_path).journal_path, run_id="r", source="test")
    journal.record("launch")
    journal.record("completed", step=325)
    journal.close()

    with pytest.raises(UsageError, match=r"no job lives in .*completed step 325: look at it with"):
        module.attach(tmp_path)


def test_attach_to_a_copy_finds_no_job(tmp_path: Path) -> None:
    run, copy = RunDirectory(tmp_path / "run"), tmp_path / "copy"
    run.prepare()
    run.create_record(RunRecord("r", FORMAT, 0.0, microbatches=4, seed=0, threads=1))
    lease = run.acquire_lease()
    listener = Listener(tmp_path / "agent.sock")  # that of the run's own job, which lives
    lease.name_head(os.getpid(), listener.path)
    lease.release()
    shutil.copytree(run.path, copy)

    with pytest.raises(UsageError) as caught:
        module.attach(copy)

    assert str(caught.value) == (
        f"no job lives in {copy} on this host without a client; start or resume it with "
        "`holdfast run`"
    )
    listener.close()


def test_attach_that_had_to_end_the_job_names_the_command_that_goes_on(
    directory: Directory, tmp_path: Path
) -> None:
    (tmp_path / "RUN.json").touch()
    directory.found = [StoppedHeadEnded("ended the job in /run")]

    with pytest.raises(UsageError, match=r"^ended the job in /run; go on from .* `holdfast run`$"):
        module.attach(tmp_path)


@pytest.mark.parametrize(
    ("free_bytes", "is_used"), [(3 << 24, True), ((3 << 24) - 1, False)], ids=["enough", "too few"]
)
def test_memory_is_used_only_if_it_has_room_for_all_workers_and_spares(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, free_bytes: int, *, is_used: bool
) -> None:
    """Workers that find no room there wait for each other for ever."""
    options = JobOptions(Path("train.py"), tmp_path, workers=2, spares=1)
    monkeypatch.setattr(module, "_MEMORY", str(tmp_path))
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=free_bytes))

    assert module._memory_directory(options) == (str(tmp_path) if is_used else None)


def test_system_without_such_a_memory_uses_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(module, "_MEMORY", str(tmp_path / "gone"))

    assert module._memory_directory(JobOptions(Path("train.py"), tmp_path)) is None


class FakeProcess:
    """The process of a head, which ends as soon as anybody looks."""

    pid = 4711

    def __init__(self) -> None:
        self.is_killed = False

    def kill(self) -> None:
        self.is_killed = True

    def has_ended(self, within_s: float) -> bool:
        return True

    def close(self) -> None: ...


class FakeHead:
    """A head that has said all its words before anybody listens."""

    def __init__(self, *messages: Message, dies: bool = False, lease: int | None = None) -> None:
        self.ours, self._theirs = pair()
        self.process = FakeProcess()
        self.begun: object = None
        self.terms: HeadTerms | None = None
        self._told: list[Message] = []
        for message in messages:
            fds = () if lease is None or message["kind"] != "lease" else (lease,)
            self._theirs.post(message, fds)
        if dies:
            self._theirs.close()

    @property
    def told(self) -> list[Message]:
        """What it was told, without the questions whether it lives."""
        fresh = self._theirs.drain() if self._theirs.fileno() >= 0 else []
        for message in fresh:
            for fd in message.pop(FDS, ()):
                os.close(fd)
        self._told += fresh
        return [message for message in self._told if message["kind"] != "ping"]

    def hold(self) -> HeadProcess:
        return HeadProcess(self.ours, cast(HeldProcess, self.process), 6.0)

    def close(self) -> None:
        self.ours.close()
        self._theirs.close()


def order_of(*workers: int) -> Message:
    """Return the order of a launch, as it comes from a head."""
    job = job_of()
    config = replace(job.config, workers=workers, generation=workers[0] + 1)
    order = {"kind": "launch", "config": to_plain(config), "relaunch": 0, "spent": 0}
    return cast(Message, json.loads(json.dumps(order)))


def ended(code: int = 0, limits: TimeLimits | None = None) -> Message:
    said = to_plain(limits or TimeLimits())
    return {"kind": "ended", "exit_code": code, "limits": json.loads(json.dumps(said))}


def greeting(**fields: Any) -> Message:
    return {"kind": "attached", "job": to_plain(job_of()), "order": None, "told": []} | fields


def events(*messages: Message) -> list[Message]:
    return [{"kind": "event", "event": message} for message in messages]


class Started:
    """A job whose heads, and all that is not of this process, are stand-ins."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.setup = setup_in(folder)
        self.heads = [FakeHead(ended())]
        self.used: list[FakeHead] = []
        self.bases: list[Path] = []
        self.begun: list[subprocess.Popen[bytes]] = []
        self.dead: tuple[Path, ...] = ()
        self.now = 0.0
        patch.setattr(module, "_prepare", lambda options: self.setup)
        patch.setattr(module, "begin_head", self._begin)
        patch.setattr(module, "connect_to_head", self._connect)
        patch.setattr(module, "block", lambda: None)
        patch.setattr(module, "reap_others", lambda ours: None)
        patch.setattr(module, "_POLL_S", 0.0)
        patch.setattr(module, "witnessed_s", self._clock)
        patch.setattr(module, "_memory_directory", lambda options: str(folder))
        patch.setattr(module, "remove_dead_directories", lambda *places: self.dead)

    def _clock(self) -> float:
        self.now += 1.0
        return self.now

    def _begin(self, terms: HeadTerms) -> subprocess.Popen[bytes]:
        self.bases.append(terms.directory)
        self.begun.append(subprocess.Popen(["sleep", "600"]))
        return self.begun[-1]

    def _connect(self, terms: HeadTerms, begun: object = None) -> HeadProcess:
        if not self.heads:
            raise RecoveryImpossible("no head starts")
        self.used.append(self.heads.pop(0))
        self.used[-1].terms, self.used[-1].begun = terms, begun
        return self.used[-1].hold()

    def run(self, *heads: FakeHead, batch: BatchJob | None = None) -> ExitCode:
        """Run the job with these heads, one after the other."""
        self.heads[0].close()
        self.heads = list(heads)
        return module.run_job(self.setup.options, batch)

    def client(self) -> Client:
        """Return a client that has no head yet."""
        terms = self.setup.head_terms(self.folder)
        return Client(terms, {"a": 1}, BatchJob(), self.setup.lease, SignalPipe())

    def close(self) -> None:
        for process in self.begun:
            process.kill()
            process.wait()
        for head in (*self.heads, *self.used):
            head.close()
        self.setup.lease.release()


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Started]:
    made = Started(tmp_path, monkeypatch)
    yield made
    made.close()


def test_job_begins_with_its_words_and_leaves_no_directory_in_memory(
    started: Started, capfd: pytest.CaptureFixture[str]
) -> None:
    started.dead = (Path("/dev/shm/holdfast-1-aaaaaaaa"),)

    assert module.run_job(started.setup.options) == ExitCode.DONE

    (base,) = started.bases
    assert base.parent == started.folder
    assert not base.exists()
    said = capfd.readouterr().err.splitlines()
    assert said[0].startswith("holdfast: removed /dev/shm/holdfast-1-aaaaaaaa, which a job that")
    assert said[1].startswith("holdfast: starting train.py on 2 workers")
    journal = read_journal(RunDirectory(started.setup.options.run_dir).journal_path)
    assert [record["event"] for record in journal] == ["warning", "job_started"]


def test_head_is_told_its_job_and_gets_our_streams(started: Started) -> None:
    head = started.heads[0]

    module.run_job(started.setup.options)

    (message,) = head.told
    assert message["kind"] == "client"
    assert "after" not in message
    job = from_plain(Job, message["job"])
    assert job.config.options == started.setup.options
    assert job.config.history.failures == 0


@pytest.mark.parametrize("code", [0, 1, 70, 75])
def test_exit_code_is_that_of_the_head(started: Started, code: int) -> None:
    assert started.run(FakeHead(ended(code))) == code


def test_limits_of_the_batch_job_are_those_of_the_head_at_the_end(started: Started) -> None:
    minded = TimeLimits(Deadline(0.0, 3600.0, "squeue"), is_batch=True)
    minded.repeats(signal.SIGUSR1, is_stopping=False, now=0.0)
    batch = BatchJob()

    started.run(FakeHead(ended(75, minded)), batch=batch)

    assert batch.limits == minded


def test_client_speaks_to_the_head_that_was_begun_before_it(started: Started) -> None:
    module.run_job(started.setup.options)

    assert [head.begun for head in started.used] == started.begun


def test_system_that_refuses_the_first_head_is_asked_again(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(terms: HeadTerms) -> None:
        started.bases.append(terms.directory)
        raise BlockingIOError("no process to spare")

    monkeypatch.setattr(module, "begin_head", refuse)

    assert module.run_job(started.setup.options) == ExitCode.DONE
    assert [head.begun for head in started.used] == [None]


@pytest.mark.parametrize("fault", [KeyboardInterrupt(), OSError("no descriptor to spare")])
@pytest.mark.parametrize("place", ["beginning.tell_beginning", "client.connect_to_head"])
def test_job_that_comes_to_no_client_leaves_no_head_and_no_directory(
    started: Started, monkeypatch: pytest.MonkeyPatch, fault: BaseException, place: str
) -> None:
    def fail(*_: object) -> None:
        raise fault

    monkeypatch.setattr(f"holdfast.runtime.head.{place}", fail)

    with pytest.raises(type(fault)):
        module.run_job(started.setup.options)

    assert [process.returncode for process in started.begun] == [-signal.SIGKILL]
    assert not started.bases[0].exists()
    assert RunDirectory(started.setup.options.run_dir).lease_owner()["ended"] is True


def test_lease_names_head_and_client_for_whoever_comes_next(started: Started) -> None:
    run_dir = RunDirectory(started.setup.options.run_dir)

    module.run_job(started.setup.options)

    owner = run_dir.lease_owner()
    assert run_dir.agent_socket() == started.bases[0] / "agent.sock"
    assert (owner["pid"], owner["client"]) == (FakeProcess.pid, os.getpid())


def test_link_of_a_chain_begins_before_anything_is_started(started: Started) -> None:
    class Link:
        def begin(self, run_id: str) -> str:
            assert started.bases == []
            return f"incarnation 3 of {run_id}"

    module.run_job(started.setup.options, link=cast(Any, Link()))

    records = read_journal(RunDirectory(started.setup.options.run_dir).journal_path)
    (told,) = [record for record in records if record["event"] == "incarnation"]
    assert told["text"] == "incarnation 3 of r"


def test_head_that_dies_is_followed_by_one_that_knows_what_it_had_come_to(
    started: Started,
) -> None:
    told = [*joined(0, 1), report(0, "checkpoint", step=5)]
    first = FakeHead(greeting(order=order_of(0, 1)), *events(*told), dies=True)
    second = FakeHead(ended())

    assert started.run(first, second) == ExitCode.DONE

    (message,) = second.told
    assert message["kind"] == "client"
    assert from_plain(Job, message["job"]).config.run_id == "r"
    assert message["after"] == {"order": order_of(0, 1), "told": told, "reason": ""}
    assert second.begun is None
    assert not first.process.is_killed


def test_head_follows_with_the_newest_launch_alone(started: Started) -> None:
    launch = {"kind": "launch", "order": order_of(2, 3)}
    lost = events(*joined(0, 1), exited(0), exited(1))
    first = FakeHead(greeting(order=order_of(0, 1)), *lost, launch, *events(*joined(2)), dies=True)
    second = FakeHead(ended())

    started.run(first, second)

    after = second.told[0]["after"]
    assert (after["order"], after["told"]) == (order_of(2, 3), joined(2))


def test_head_that_dies_before_its_first_launch_is_followed_by_one_that_begins(
    started: Started,
) -> None:
    second = FakeHead(ended())

    started.run(FakeHead(dies=True), second)

    (message,) = second.told
    assert "after" not in message


def test_head_that_stands_still_is_killed_and_the_next_one_is_told_why(started: Started) -> None:
    silent, second = FakeHead(greeting(order=order_of(0, 1))), FakeHead(ended())

    assert started.run(silent, second) == ExitCode.DONE

    assert silent.process.is_killed
    assert second.told[0]["after"]["reason"] == "the head has not answered for 7.0 s"


def test_heads_that_die_before_anything_happens_are_not_started_for_ever(
    started: Started,
) -> None:
    with pytest.raises(RecoveryImpossible, match=r"died 4 times before it did anything; its mess"):
        started.run(*[FakeHead(dies=True) for _ in range(9)])

    assert len(started.used) == 4
    assert not started.bases[0].exists()


def test_heads_that_get_on_may_die_as_often_as_they_like(started: Started) -> None:
    dying = [FakeHead(*events(*joined(0)), dies=True) for _ in range(9)]

    assert started.run(*dying, FakeHead(ended())) == ExitCode.DONE


def test_order_to_stop_that_a_dead_head_had_is_given_to_the_next_one(started: Started) -> None:
    first, second = FakeHead(), FakeHead(ended(75))
    started.heads[0].close()
    started.heads = [second]
    client = started.client()
    client.start(first.hold())
    client._pass_on([signal.SIGTERM, signal.SIGUSR1])
    first._theirs.close()

    assert client.run() == 75

    assert second.told[1:] == [{"kind": "signals", "numbers": [signal.SIGTERM]}]
    first.close()


def test_directory_that_a_head_has_taken_with_it_is_made_again(started: Started) -> None:
    class Removing(FakeHead):
        def hold(self) -> HeadProcess:
            shutil.rmtree(started.bases[0])
            return super().hold()

    second = FakeHead(ended())

    started.run(Removing(dies=True), second)

    assert second.terms is not None
    assert second.terms.directory == started.bases[0]


def test_job_whose_head_can_not_be_replaced_is_given_up(started: Started) -> None:
    first = FakeHead(greeting(order=order_of(0, 1)), dies=True)

    with pytest.raises(RecoveryImpossible, match="no head starts"):
        started.run(first)

    assert not started.bases[0].exists()
    assert RunDirectory(started.setup.options.run_dir).lease_owner()["ended"] is True


def test_client_that_fails_leaves_its_head_alone(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("a mistake")

    head = FakeHead(greeting(order=order_of(0, 1)))
    monkeypatch.setattr(LaunchLog, "begin", fail)

    with pytest.raises(ZeroDivisionError):
        started.run(head)

    assert not head.process.is_killed
    assert started.bases[0].exists()
    assert [message["kind"] for message in head.told] == ["client"]


def test_signals_of_the_client_are_the_heads_business(started: Started) -> None:
    head = FakeHead()
    client = started.client()
    client.start(head.hold())

    os.kill(os.getpid(), signal.SIGTERM)
    client._reactor.run_once(BOUND_S)
    assert head.told[1:] == [{"kind": "signals", "numbers": [signal.SIGTERM]}]
    head._theirs.post(ended(75))

    assert client.run() == 75
    head.close()


def found(started: Started, head: FakeHead, **fields: Any) -> FoundHead:
    """Return a head as `find_head` does, whose job this process may show."""
    job = job_of(**fields)
    base = started.folder / "base"
    base.mkdir()
    places = {"directory": str(base), "cwd": "/work", "environment": {"A": "1"}}
    said = greeting(job=to_plain(job), order=order_of(7, 8), told=joined(7, 8), **places)
    lease = os.dup(started.setup.lease.fileno())
    process = cast(HeldProcess, SimpleNamespace(**{"pid": os.getpid()}))
    process.has_ended = lambda within_s: True  # type: ignore[method-assign]
    process.close = lambda: None  # type: ignore[method-assign]
    return FoundHead(head.ours, process, said | {FDS: [lease]})


def test_job_that_lives_without_a_client_is_shown_to_its_end(
    started: Started, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    head = FakeHead(ended(75))
    prepared = found(started, head), SignalPipe()
    monkeypatch.setattr(module, "_prepare", lambda options: prepared)

    assert module.run_job(started.setup.options) == 75

    (line, *_) = capfd.readouterr().err.splitlines()[1:]
    assert line == (
        "holdfast: attached to the job in /run, which went on without a client: "
        "train.py on 2 workers"
    )
    assert head.told == []  # it has greeted already
    assert not (started.folder / "base").exists()
    head.close()


def test_lease_without_a_lock_is_renewed_by_a_client_that_attaches(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while there is no head, whose writer renews it otherwise."""
    monkeypatch.setattr(lease_module, "RENEWED_EVERY_S", 0.01)
    lease = started.setup.lease
    lease.begin("t", takes_orders=True, is_renewed=True)
    head = FakeHead(ended())

    client = module._attached(found(started, head), SignalPipe())

    seen = {os.pread(lease.fileno(), 64, 0)}
    deadline = time.monotonic() + 60.0
    while len(seen) < 3:
        assert time.monotonic() < deadline
        seen.add(os.pread(lease.fileno(), 64, 0))
    client.run()
    client._lease.release()
    head.close()


def test_options_that_a_living_job_cannot_heed_are_told(
    started: Started, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    head = FakeHead(ended())
    prepared = found(started, head), SignalPipe()
    monkeypatch.setattr(module, "_prepare", lambda options: prepared)
    asked = replace(job_of().config.options, workers=8, max_restarts=9)

    module.run_job(asked)

    assert capfd.readouterr().err.splitlines()[0] == (
        "holdfast: warning: the job keeps the options that it was started with: "
        "--workers 2, not 8; --max-restarts 3, not 9"
    )
    head.close()


def test_quiet_job_is_shown_without_a_word(
    started: Started, capfd: pytest.CaptureFixture[str]
) -> None:
    head = FakeHead(ended())

    module._attached(found(started, head, quiet=True), SignalPipe()).run()

    assert capfd.readouterr().err == ""
    head.close()


def test_head_of_a_job_that_was_attached_to_is_replaced_as_that_of_any_other(
    started: Started,
) -> None:
    head, second = FakeHead(*events(exited(7)), dies=True), FakeHead(ended())
    started.heads[0].close()
    started.heads = [second]

    assert module._attached(found(started, head), SignalPipe()).run() == ExitCode.DONE

    (message,) = second.told
    assert from_plain(Job, message["job"]) == job_of()
    assert message["after"]["told"] == [*joined(7, 8), exited(7)]
    assert second.terms is not None
    assert (second.terms.cwd, second.terms.environment) == (Path("/work"), {"A": "1"})
    head.close()


@pytest.mark.parametrize("is_inside", [False, True])
def test_job_is_attached_to_with_its_own_batch_job(started: Started, *, is_inside: bool) -> None:
    """This process may be outside of it, so its own environment tells nothing."""
    head = FakeHead(ended())
    mine = BatchJob() if is_inside else None
    place = found(started, head)
    place.greeting["environment"] = {"SLURM_JOB_ID": "7", "SLURM_JOB_END_TIME": "4000000000"}

    client = module._attached(place, SignalPipe(), batch=mine)
    client.run()

    if is_inside:
        assert client.batch is mine
    else:
        assert client.batch.incarnation == "Slurm job 7"
    head.close()


def test_attach_has_the_batch_job_come_back_and_ends_with_the_exit_code_of_the_job(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = started.setup.options.run_dir
    head = FakeHead(ended(75))
    monkeypatch.setattr(module, "find_head", lambda directory, asked: found(started, head))
    asked: list[int] = []

    monkeypatch.setattr(BatchJob, "end", lambda self, code, say: asked.append(code))

    assert module.attach(run_dir) == 75
    assert asked == [75]
    head.close()


class Piped:
    """A pipe of signals, and what came through."""

    def __init__(self) -> None:
        self.heard: list[int] = []
        self.reactor = Reactor()
        self.signals = SignalPipe()
        self.signals.watch(self.reactor, self.heard.extend)

    def close(self) -> None:
        self.signals.restore()
        self.reactor.close()


@pytest.mark.parametrize("number", [*module.STOPS, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP])
def test_signal_is_passed_on_and_ends_nobody(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    piped = Piped()

    os.kill(os.getpid(), number)
    while not piped.heard:
        piped.reactor.run_once(BOUND_S)
    piped.close()

    assert piped.heard == [number]
    assert signal.getsignal(number) is before


def test_signal_that_comes_before_there_is_a_head_is_passed_on_later() -> None:
    signals, reactor, heard = SignalPipe(), Reactor(), list[int]()
    os.kill(os.getpid(), signal.SIGTERM)

    signals.watch(reactor, heard.extend)
    reactor.run_once(BOUND_S)

    signals.restore()
    reactor.close()
    assert heard == [signal.SIGTERM]


def test_signal_that_comes_while_no_head_is_found_is_not_lost(tmp_path: Path) -> None:
    """It ends the process, as it would have done without the search."""
    got: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: got.append(number))
    signals = SignalPipe()
    os.kill(os.getpid(), signal.SIGTERM)

    signals.restore(is_replayed=True)

    signal.signal(signal.SIGTERM, before)
    assert got == [signal.SIGTERM]


def test_stop_by_another_process_is_told_to_the_next_head(started: Started) -> None:
    first, second = FakeHead({"kind": "stop_asked"}, dies=True), FakeHead(ended(75))
    started.heads[0].close()
    started.heads = [second]
    client = started.client()
    client.start(first.hold())

    assert client.run() == 75

    assert second.told[1:] == [{"kind": "signals", "numbers": [signal.SIGTERM]}]
    first.close()


def test_what_nohup_ignores_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    piped = Piped()

    os.kill(os.getpid(), signal.SIGHUP)
    piped.reactor.run_once(0.0)
    piped.close()

    assert piped.heard == []
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    signal.signal(signal.SIGHUP, before)


@pytest.fixture
def options(tmp_path: Path) -> JobOptions:
    run = RunRecord(RUN, 1, 0.0, microbatches=4, seed=0, threads=1)
    RunDirectory(tmp_path).create_record(run)
    (tmp_path / "train.py").write_text("train()")
    return JobOptions(script=tmp_path / "train.py", run_dir=tmp_path, fresh=True)


@pytest.mark.parametrize(
    ("allocation", "fresh"),
    [(BY_HAND, [True, True, True]), (replace(BY_HAND, chain="slurm 7"), [True])],
    ids=["typed in a shell of salloc", "batch job"],
)
def test_job_that_a_person_starts_is_what_was_asked_for(
    monkeypatch: pytest.MonkeyPatch,
    options: JobOptions,
    allocation: Allocation,
    fresh: list[bool],
) -> None:
    started: list[bool] = []

    def run_job(
        asked: JobOptions, batch: BatchJob, link: ChainLink | None = None, **_: object
    ) -> ExitCode:
        started.append(asked.fresh)
        assert batch.incarnation == "Slurm job 7"
        if link is not None:
            link.begin(RUN)
        return ExitCode.DONE

    monkeypatch.setattr(module, "run_job", run_job)

    codes = [module.run_batch_job(options, allocation) for _ in range(3)]

    assert (codes, started) == ([ExitCode.DONE] * 3, fresh)


class Runs:
    """Stands in for the job: ends with a code or an error, and notes what it was asked for."""

    def __init__(self, patch: pytest.MonkeyPatch, end: ExitCode | Exception) -> None:
        self.end, self.asked, self.said = end, list[JobOptions](), list[str]()
        self.hits_limit = False
        patch.setattr(module, "run_job", self._run)
        patch.setattr(module, "say", self.said.append)

    def _run(self, asked: JobOptions, batch: BatchJob, link: ChainLink) -> ExitCode:
        self.asked.append(asked)
        if isinstance(self.end, Exception):
            raise self.end
        if self.hits_limit:
            batch.limits.repeats(signal.SIGUSR1, is_stopping=False, now=0.0)
        batch.incarnation = link.begin(RUN)
        return self.end


def test_job_of_a_complete_run_has_nothing_to_do_and_says_so(
    monkeypatch: pytest.MonkeyPatch, options: JobOptions
) -> None:
    runs = Runs(monkeypatch, ExitCode.DONE)

    codes = [module.run_batch_job(options, IN_BATCH) for _ in range(2)]

    assert codes == [ExitCode.DONE] * 2
    assert len(runs.asked) == 1
    assert runs.said == [f"the run in {options.run_dir} is complete: Slurm job 7 has nothing to do"]


def test_job_after_one_that_stopped_early_goes_on_with_its_run(
    monkeypatch: pytest.MonkeyPatch, options: JobOptions
) -> None:
    runs = Runs(monkeypatch, ExitCode.STOPPED_EARLY)

    codes = [module.run_batch_job(options, IN_BATCH) for _ in range(2)]

    assert codes == [ExitCode.STOPPED_EARLY] * 2
    assert [asked.fresh for asked in runs.asked] == [True, False]
    assert runs.said == [
        "--fresh began this run with the first incarnation; this one goes on with it"
    ]


@pytest.mark.parametrize("is_chain", [True, False])
def test_link_leaves_a_run_alone_that_another_link_still_has(
    monkeypatch: pytest.MonkeyPatch, options: JobOptions, *, is_chain: bool
) -> None:
    """Of a single job it is an error that its user must see."""
    runs = Runs(monkeypatch, RunDirectoryBusy("pid 3 has it"))
    if is_chain:
        monkeypatch.setenv(CHAIN, "mine")
    else:
        monkeypatch.delenv(CHAIN, raising=False)

    if is_chain:
        assert module.run_batch_job(options, IN_BATCH) == ExitCode.RUN_DIRECTORY_BUSY
        assert runs.said == ["pid 3 has it; Slurm job 7 leaves it alone"]
    else:
        with pytest.raises(RunDirectoryBusy, match="pid 3 has it"):
            module.run_batch_job(options, IN_BATCH)
