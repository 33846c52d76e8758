"""A job as its client sees it: begun, in a batch system, attached to, and with a head that dies."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import pytest
from heads import RECORD, job_of, setup_in

from holdfast.runtime.batch.schedulers import CHAIN, Allocation, Scheduler
from holdfast.runtime.errors import ExitCode, RecoveryImpossible, RunDirectoryBusy, UsageError
from holdfast.runtime.head.batch_job import BatchJob, ChainLink
from holdfast.runtime.head.client import (
    Client,
    FoundJob,
    SignalPipe,
    attach,
    attach_to,
    begin_job,
    memory_directory,
    run_batch_job,
    settle,
)
from holdfast.runtime.head.head_process import HeadProcess, HeadTerms
from holdfast.runtime.head.job import Job
from holdfast.runtime.head.job_setup import JobSetup
from holdfast.runtime.head.living_job import FoundHead, OwnerEnded
from holdfast.runtime.head.orders import STOPS, TimeLimit, TimeLimits
from holdfast.runtime.head.visits import (
    Asked,
    BeginJob,
    ClientPing,
    ClientTaken,
    JobDone,
    OfClient,
    PassSignals,
    Standing,
    StopOrdered,
    ToClient,
)
from holdfast.runtime.host.host_messages import LaunchOrder
from holdfast.runtime.options.job_options import JobOptions
from holdfast.runtime.run import lease as lease_module
from holdfast.runtime.run.journal import read_journal
from holdfast.runtime.run.run_directory import RunDirectory
from holdfast.runtime.system.channel import FDS, Message, MessageKinds, pair, to_message
from holdfast.runtime.system.codec import from_plain, to_plain
from holdfast.runtime.system.processes import HeldProcess
from holdfast.runtime.system.reactor import Reactor

BOUND_S = 90.0
BY_HAND = Allocation(Scheduler.SLURM, "7", chain="", is_batch=False, ends_at=4e9)
IN_BATCH = replace(BY_HAND, chain="slurm 7", is_batch=True)

T = TypeVar("T")


def answering(answers: Iterable[T | Exception]) -> Callable[..., T]:
    """Return what gives or raises one answer after the other."""
    left = iter(answers)

    def answer(*_: object) -> T:
        found = next(left)
        if isinstance(found, Exception):
            raise found
        return found

    return answer


BUSY, FREE = RunDirectoryBusy("pid 3 has it"), cast(JobSetup, "a job that may begin")
ENDED = OwnerEnded("ended the job in /run")
KEPT = RunDirectoryBusy("pid 4 shows it")
ORPHAN = cast(FoundHead, "a job without a client")


@pytest.mark.parametrize(
    ("setups", "owners", "wait_s", "end", "said"),
    [
        ([FREE], [], 60.0, FREE, []),
        ([BUSY], [ORPHAN], 0.0, ORPHAN, []),
        ([BUSY], [None], 0.0, "pid 3 has it", []),
        ([BUSY], [KEPT], 0.0, "pid 4 shows it", []),
        ([BUSY] * 3 + [FREE], [None] * 3, 60.0, FREE, ["waiting for 60 s at most: pid 3 has it"]),
        (itertools.repeat(BUSY), itertools.repeat(None), 0.01, "pid 3 has it", ["waiting for 0"]),
        (
            [BUSY, BUSY, FREE],
            [ENDED, None],
            0.0,
            FREE,
            ["ended the job in /run; going on from its newest checkpoint"],
        ),
    ],
    ids=["free", "orphan", "unknown", "its head says", "free later", "never free", "ended"],
)
def test_directory_is_taken_or_its_job_shown_or_asked_for_again_while_it_is_busy(
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    setups: list[JobSetup | Exception],
    owners: list[FoundHead | Exception | None],
    wait_s: float,
    end: object,
    said: list[str],
) -> None:
    options = JobOptions(tmp_path / "train.py", tmp_path / "run", wait_lease_s=wait_s)
    got: object
    try:
        got = settle(
            options,
            prepare=answering(setups),
            find=answering(owners),
            sleep=lambda _: time.sleep(0.001),
        )
    except RunDirectoryBusy as error:
        got = str(error)
    if isinstance(got, FoundJob):
        got.signals.restore()
        got = got.head

    assert got == end
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == len(said)
    for line, words in zip(lines, said, strict=True):
        assert line.startswith(f"holdfast: {words}")


@pytest.mark.parametrize(
    ("free_bytes", "is_used"), [(3 << 24, True), ((3 << 24) - 1, False)], ids=["enough", "too few"]
)
def test_memory_is_used_only_if_it_has_room_for_all_workers_and_spares(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, free_bytes: int, *, is_used: bool
) -> None:
    """Workers that find no room there wait for each other for ever."""
    options = JobOptions(Path("train.py"), tmp_path, workers=2, spares=1)
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=free_bytes))

    assert memory_directory(options, str(tmp_path)) == (str(tmp_path) if is_used else None)
    assert memory_directory(options, str(tmp_path / "gone")) is None


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


_MESSAGES: MessageKinds[OfClient | Asked] = MessageKinds(OfClient | Asked)


class FakeHead:
    """A head that has said all its words before anybody listens."""

    def __init__(self, *messages: ToClient, dies: bool = False) -> None:
        self.ours, self._theirs = pair()
        self.process = FakeProcess()
        self._told: list[Message] = []
        for message in messages:
            self._theirs.post(to_message(message))
        if dies:
            self._theirs.close()

    @property
    def told(self) -> list[Any]:
        """What it was told, without the questions whether it lives."""
        fresh = self._theirs.drain() if self._theirs.fileno() >= 0 else []
        for message in fresh:
            for fd in message.pop(FDS, ()):
                os.close(fd)
        self._told += fresh
        told = map(_MESSAGES.decode, self._told)
        return [message for message in told if not isinstance(message, ClientPing)]

    def hold(self) -> HeadProcess:
        return HeadProcess(self.ours, cast(HeldProcess, self.process), 6.0)

    def close(self) -> None:
        self.ours.close()
        self._theirs.close()


def order_of(*workers: int) -> Message:
    """Return the order of a launch, as it comes from a head."""
    job = job_of()
    config = replace(job.config, workers=workers, generation=workers[0] + 1)
    return cast(Message, json.loads(json.dumps(to_plain(LaunchOrder(config)))))


def ended(code: int = 0, limits: TimeLimits | None = None) -> JobDone:
    return JobDone(code, limits or TimeLimits())


def greeting(*workers: int) -> ClientTaken:
    return ClientTaken(to_plain(job_of()), len(workers), "", "/work", {"A": "1"})


@dataclass
class Started:
    """A job whose heads are stand-ins, one after the other."""

    folder: Path
    setup: JobSetup
    heads: list[FakeHead] = field(default_factory=list)
    used: list[FakeHead] = field(default_factory=list)
    terms: list[HeadTerms] = field(default_factory=list)
    begun: list[subprocess.Popen[bytes]] = field(default_factory=list)
    followed: list[object] = field(default_factory=list)
    now: float = 0.0

    def clock(self) -> float:
        self.now += 3.0
        return self.now

    def begin(self, terms: HeadTerms) -> subprocess.Popen[bytes]:
        self.terms.append(terms)
        self.begun.append(subprocess.Popen(["sleep", "600"]))
        return self.begun[-1]

    def connect(self, terms: HeadTerms, begun: object = None) -> HeadProcess:
        if not self.heads:
            raise RecoveryImpossible("no head starts")
        self.terms.append(terms)
        self.followed.append(begun)
        self.used.append(self.heads.pop(0))
        return self.used[-1].hold()

    def run(self, *heads: FakeHead, batch: BatchJob | None = None) -> ExitCode:
        """Run the job with these heads, one after the other."""
        self.heads = list(heads)
        return begin_job(
            self.setup,
            batch or BatchJob(),
            begin=self.begin,
            connect=self.connect,
            memory=str(self.folder),
        ).run()

    def client(self, *heads: FakeHead) -> Client:
        """Return a client of the first head, which the others follow."""
        self.setup.journal.close()
        first, *self.heads = heads
        self.used.append(first)
        terms = self.setup.head_terms(self.folder / "base")
        terms.directory.mkdir()
        client = Client(
            terms,
            to_plain(job_of()),
            BatchJob(),
            self.setup.lease,
            SignalPipe(),
            connect=self.connect,
            clock=self.clock,
        )
        client.start(first.hold())
        return client

    def close(self) -> None:
        for process in self.begun:
            process.kill()
            process.wait()
        for head in (*self.heads, *self.used):
            head.close()
        self.setup.lease.release()


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Started]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())  # a client ends with signals blocked
    made = Started(tmp_path, setup_in(tmp_path))
    yield made
    made.close()
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def test_job_begins_with_its_words_and_leaves_no_directory_in_memory(
    started: Started, capfd: pytest.CaptureFixture[str]
) -> None:
    head, minded = FakeHead(), TimeLimits(TimeLimit(0.0, 3600.0, "squeue"), is_batch=True)
    minded.repeats(signal.SIGUSR1, is_stopping=False, now=0.0)
    head._theirs.post(to_message(ended(75, minded)))
    batch, run_dir = BatchJob(), RunDirectory(started.setup.options.run_dir)

    assert started.run(head, batch=batch) == ExitCode.STOPPED_EARLY

    assert batch.limits == minded
    (message,) = head.told
    assert message.after is None
    job = from_plain(Job, message.job)
    assert job.config.options == started.setup.options
    assert job.config.history.failures == 0
    assert started.followed == started.begun
    place = started.terms[0].directory
    assert not place.exists()
    owner = run_dir.lease_owner()
    assert owner.agent == place / "agent.sock"
    assert (owner.pid, owner.client) == (FakeProcess.pid, os.getpid())
    assert capfd.readouterr().err.startswith("holdfast: starting train.py on 2 workers")
    journal = read_journal(run_dir.journal_path)
    assert [record["event"] for record in journal] == ["job_started"]


@pytest.mark.parametrize("fault", [KeyboardInterrupt(), OSError("no descriptor to spare")])
def test_job_that_comes_to_no_client_leaves_no_head_and_no_directory(
    started: Started, fault: BaseException
) -> None:
    def fail(*_: object) -> HeadProcess:
        raise fault

    with pytest.raises(type(fault)):
        begin_job(
            started.setup, BatchJob(), begin=started.begin, connect=fail, memory=str(started.folder)
        )

    assert [process.returncode for process in started.begun] == [-signal.SIGKILL]
    assert not started.terms[0].directory.exists()


def test_system_that_refuses_the_first_head_is_asked_again(started: Started) -> None:
    def refuse(_: HeadTerms) -> subprocess.Popen[bytes]:
        raise BlockingIOError("no process to spare")

    started.heads = [FakeHead(ended())]
    client = begin_job(
        started.setup,
        BatchJob(),
        begin=refuse,
        connect=started.connect,
        memory=str(started.folder),
    )

    assert client.run() == ExitCode.DONE
    assert started.followed == [None]


NEW = Standing(order_of(0, 1))
FIRST = [greeting(0, 1), NEW]
SAVED = Standing(order_of(0, 1), is_up=True, saved_step=5)
NEXT = Standing(order_of(2, 3))


@pytest.mark.parametrize(
    ("heads", "told"),
    [
        ([[*FIRST, SAVED]], SAVED),
        ([[*FIRST, SAVED, NEXT]], NEXT),
        ([[]], None),
        ([[Standing(), Standing(is_up=True)]] * 9, None),
    ],
    ids=["what it had come to", "the newest launch alone", "before a launch", "again and again"],
)
def test_head_that_dies_is_followed_by_one_that_knows_what_it_had_come_to(
    started: Started, heads: list[list[ToClient]], told: Standing | None
) -> None:
    dying = [FakeHead(*messages, dies=True) for messages in heads]
    client = started.client(*dying, FakeHead(ended()))

    assert client.run() == ExitCode.DONE

    (message,) = started.used[-1].told
    assert from_plain(Job, message.job) == job_of()
    assert (message.after, message.reason) == (told, "")
    assert not started.used[0].process.is_killed
    assert started.terms[0].directory == started.folder / "base"
    assert not started.terms[0].directory.exists()


def test_head_that_stands_still_is_killed_and_the_next_one_is_told_why(started: Started) -> None:
    silent, second = FakeHead(*FIRST), FakeHead(ended())

    assert started.client(silent, second).run() == ExitCode.DONE

    assert silent.process.is_killed
    assert "the head has not answered for" in second.told[0].reason


@pytest.mark.parametrize(
    ("heads", "words", "starts"),
    [(9, "died 4 times before it did anything; its messages are above", 4), (1, "no head", 1)],
    ids=["all die at once", "no other one starts"],
)
def test_job_whose_head_cannot_be_replaced_is_given_up(
    started: Started, heads: int, words: str, starts: int
) -> None:
    client = started.client(*[FakeHead(dies=True) for _ in range(heads)])

    with pytest.raises(RecoveryImpossible, match=words):
        client.run()

    assert len(started.used) == starts
    assert not (started.folder / "base").exists()
    assert RunDirectory(started.setup.options.run_dir).lease_owner().ended


@pytest.mark.parametrize("by", ["this process", "another process"])
def test_order_to_stop_that_a_dead_head_had_is_given_to_the_next_one(
    started: Started, by: str
) -> None:
    is_own = by == "this process"
    first, second = FakeHead(*[] if is_own else [StopOrdered()]), FakeHead(ended(75))
    client = started.client(first, second)
    if is_own:
        os.kill(os.getpid(), signal.SIGTERM)
        client._reactor.run_once(BOUND_S)
        assert first.told[1:] == [PassSignals((signal.SIGTERM,))]
    first._theirs.close()

    assert client.run() == 75

    assert second.told[1:] == [PassSignals((signal.SIGTERM,))]


def test_client_that_fails_leaves_its_head_alone(started: Started) -> None:
    head = FakeHead()
    head._theirs.post({"kind": "ClientTaken"})  # a mistake
    client = started.client(head)

    with pytest.raises(ValueError, match="is missing"):
        client.run()

    assert not head.process.is_killed
    assert (started.folder / "base").exists()
    assert [type(message) for message in head.told] == [BeginJob]


def found(started: Started, head: FakeHead, **fields: Any) -> FoundJob:
    """Return a head as `find_owner` does, whose job this process may show."""
    job = job_of(**fields)
    base = started.folder / "base"
    base.mkdir()
    said = replace(greeting(7, 8), job=to_plain(job), directory=str(base))
    lease = os.dup(started.setup.lease.fileno())
    process = FakeProcess()
    process.pid = os.getpid()
    started.used.append(head)
    living = FoundHead(head.ours, cast(HeldProcess, process), said, lease)
    return FoundJob(living, SignalPipe())


@pytest.mark.parametrize(
    ("is_quiet", "asked", "said"),
    [
        (
            False,
            None,
            ["attached to the job in /run, which went on without a client: train.py on 2 workers"],
        ),
        (True, None, []),
        (
            True,
            {"workers": 8, "max_restarts": 9},
            [
                "warning: the job keeps the options that it was started with: "
                "--workers 2, not 8; --max-restarts 3, not 9"
            ],
        ),
    ],
    ids=["in a line", "quiet", "other options"],
)
def test_job_that_lives_without_a_client_is_shown_to_its_end(
    started: Started,
    capfd: pytest.CaptureFixture[str],
    asked: dict[str, Any] | None,
    said: list[str],
    *,
    is_quiet: bool,
) -> None:
    head = FakeHead(ended(75))
    living = found(started, head, quiet=is_quiet)
    options = None if asked is None else job_of(quiet=is_quiet).config.options
    wanted = None if options is None else replace(options, **(asked or {}))

    assert attach_to(living, wanted).run() == 75

    assert capfd.readouterr().err.splitlines() == [f"holdfast: {line}" for line in said]
    assert head.told == []  # it has greeted already
    assert not (started.folder / "base").exists()


@pytest.mark.parametrize(
    ("owner", "kind", "words"),
    [
        (ENDED, UsageError, "ended the job in /run; go on from its newest checkpoint by `holdfast"),
        (KEPT, RunDirectoryBusy, "pid 4 shows it"),
    ],
    ids=["its head was stopped", "it has its client"],
)
def test_attach_to_a_job_that_cannot_be_shown_says_why(
    started: Started, owner: Exception, kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind, match=f"^{words}"):
        attach(started.setup.options.run_dir, answering([owner]))


def test_attach_ends_with_the_exit_code_of_the_job(started: Started) -> None:
    living = found(started, FakeHead(ended(75)))
    living.signals.restore()

    assert attach(started.setup.options.run_dir, answering([living.head])) == 75


def test_lease_without_a_lock_is_renewed_by_a_client_that_attaches(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while there is no head, whose writer renews it otherwise."""
    monkeypatch.setattr(lease_module, "RENEWED_EVERY_S", 0.01)
    lease = started.setup.lease
    lease.begin("t", takes_orders=True, is_renewed=True)

    client = attach_to(found(started, FakeHead(ended())))

    seen = {os.pread(lease.fileno(), 64, 0)}
    deadline = time.monotonic() + 60.0
    while len(seen) < 3:
        assert time.monotonic() < deadline
        seen.add(os.pread(lease.fileno(), 64, 0))
    client.run()
    client._lease.release()


def test_head_of_a_job_that_was_attached_to_is_replaced_as_that_of_any_other(
    started: Started,
) -> None:
    head, second = FakeHead(SAVED, dies=True), FakeHead(ended())
    started.heads = [second]

    client = attach_to(found(started, head), connect=started.connect)

    assert client.run() == ExitCode.DONE
    (message,) = second.told
    assert from_plain(Job, message.job) == job_of()
    assert message.after == SAVED
    (terms,) = started.terms
    assert (terms.cwd, terms.environment) == (Path("/work"), {"A": "1"})


@pytest.mark.parametrize("is_inside", [False, True])
def test_job_is_attached_to_with_its_own_batch_job(started: Started, *, is_inside: bool) -> None:
    """This process may be outside of it, so its own environment tells nothing."""
    mine = BatchJob() if is_inside else None
    place = found(started, FakeHead(ended()))
    environment = {"SLURM_JOB_ID": "7", "SLURM_JOB_END_TIME": "4000000000"}
    said = replace(place.head.greeting, environment=environment)

    client = attach_to(place._replace(head=replace(place.head, greeting=said)), batch=mine)
    client.run()

    if is_inside:
        assert client.batch is mine
    else:
        assert client.batch.incarnation == "Slurm job 7"


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


@pytest.mark.parametrize("number", [*STOPS, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP])
def test_signal_is_passed_on_and_ends_nobody(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    piped = Piped()

    os.kill(os.getpid(), number)
    while not piped.heard:
        piped.reactor.run_once(BOUND_S)
    piped.close()

    assert piped.heard == [number]
    assert signal.getsignal(number) is before


def test_signal_that_comes_while_no_head_is_found_is_not_lost() -> None:
    """It ends the process, as it would have done without the search."""
    got: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: got.append(number))
    signals = SignalPipe()
    os.kill(os.getpid(), signal.SIGTERM)

    signals.restore(is_replayed=True)

    signal.signal(signal.SIGTERM, before)
    assert got == [signal.SIGTERM]


def test_what_nohup_ignores_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    piped = Piped()

    os.kill(os.getpid(), signal.SIGHUP)
    piped.reactor.run_once(0.0)
    piped.close()

    assert piped.heard == []
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    signal.signal(signal.SIGHUP, before)


Run = Callable[[JobOptions, BatchJob, "ChainLink | None"], ExitCode]


@pytest.fixture
def options(tmp_path: Path) -> JobOptions:
    RunDirectory(tmp_path).create_record(RECORD)
    (tmp_path / "train.py").write_text("train()")
    return JobOptions(script=tmp_path / "train.py", run_dir=tmp_path, fresh=True)


def ends_with(end: ExitCode | Exception, asked: list[JobOptions]) -> Run:
    """Return what stands in for the job, and notes what it was asked for."""

    def run(options: JobOptions, batch: BatchJob, link: ChainLink | None = None) -> ExitCode:
        asked.append(options)
        if isinstance(end, Exception):
            raise end
        assert batch.incarnation == "Slurm job 7"
        if link is not None:
            link.begin(RECORD.run_id)
        return end

    return run


@pytest.mark.parametrize(
    ("allocation", "fresh", "said"),
    [
        (BY_HAND, [True, True], []),
        (
            IN_BATCH,
            [True, False],
            ["--fresh began this run with the first incarnation; this one goes on with it"],
        ),
    ],
    ids=["typed in a shell of salloc", "batch job"],
)
def test_only_the_first_job_of_a_chain_begins_anew(
    options: JobOptions,
    capfd: pytest.CaptureFixture[str],
    allocation: Allocation,
    fresh: list[bool],
    said: list[str],
) -> None:
    asked: list[JobOptions] = []
    run = ends_with(ExitCode.STOPPED_EARLY, asked)

    codes = [run_batch_job(options, allocation, run=run) for _ in range(2)]

    assert codes == [ExitCode.STOPPED_EARLY] * 2
    assert [each.fresh for each in asked] == fresh
    assert capfd.readouterr().err.splitlines() == [f"holdfast: {line}" for line in said]


@pytest.mark.parametrize("is_chain", [True, False])
def test_link_leaves_a_run_alone_that_another_link_still_has(
    monkeypatch: pytest.MonkeyPatch,
    options: JobOptions,
    capfd: pytest.CaptureFixture[str],
    *,
    is_chain: bool,
) -> None:
    """Of a single job it is an error that its user must see."""
    run = ends_with(RunDirectoryBusy("pid 3 has it"), [])
    if not is_chain:
        monkeypatch.delenv(CHAIN, raising=False)
        with pytest.raises(RunDirectoryBusy, match="pid 3 has it"):
            run_batch_job(options, IN_BATCH, run=run)
        return
    monkeypatch.setenv(CHAIN, "mine")

    assert run_batch_job(options, IN_BATCH, run=run) == ExitCode.RUN_DIRECTORY_BUSY
    assert "pid 3 has it; Slurm job 7 leaves it alone" in capfd.readouterr().err
