"""One job from its request to its exit code, as the process sees it that a user has started.

The client prepares the job, starts its head, and shows it: the head writes to the client's stdout
and stderr.  It passes signals on, and starts another head if that one died.  The job needs no
client: when this process is killed, the job goes on, with its relaunches, to its end.

``holdfast run`` on the directory of a job that lives without a client shows that job, in place
of starting another one.  ``holdfast attach`` does the same by name.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from holdfast.runtime.batch.schedulers import CHAIN, Allocation, find_allocation
from holdfast.runtime.errors import (
    ExitCode,
    JobError,
    NotSaved,
    RecoveryImpossible,
    RunDirectoryBusy,
    UsageError,
)
from holdfast.runtime.head.batch_job import BatchJob, ChainLink
from holdfast.runtime.head.head_process import (
    HeadProcess,
    HeadTerms,
    begin_head,
    connect_to_head,
)
from holdfast.runtime.head.job_setup import JobSetup, NothingToDo, prepare_job
from holdfast.runtime.head.living_job import FoundHead, NobodyRuns, OwnerEnded, find_owner, no_job
from holdfast.runtime.head.orders import STOPS
from holdfast.runtime.head.screen import live_columns, say
from holdfast.runtime.head.visits import (
    BeginJob,
    ClientTaken,
    JobDone,
    PassSignals,
    Standing,
    StopOrdered,
    ToClient,
)
from holdfast.runtime.options.job_options import JobOptions
from holdfast.runtime.options.run_terms import refuse_other_program
from holdfast.runtime.run.events import Warned
from holdfast.runtime.run.files import BoundedCalls, answering
from holdfast.runtime.run.find_run import refuse_no_run
from holdfast.runtime.run.lease import Lease
from holdfast.runtime.run.program import Program
from holdfast.runtime.run.progress import count
from holdfast.runtime.run.run_directory import RunDirectory
from holdfast.runtime.system.channel import FDS, Message, MessageKinds, to_message
from holdfast.runtime.system.codec import from_plain, to_plain
from holdfast.runtime.system.own_process import has_ended
from holdfast.runtime.system.owned_directory import (
    SOCKET_NAME,
    hold,
    make_owned_directory,
    remove_dead_directories,
)
from holdfast.runtime.system.processes import age_s, reap_others
from holdfast.runtime.system.reactor import Reactor
from holdfast.runtime.system.signals import block
from holdfast.runtime.system.witnessed_time import Bound, Stillness, witnessed_s

_MESSAGES: MessageKinds[ToClient] = MessageKinds(ToClient)
_MEMORY = "/dev/shm"
_SEGMENT_BYTES = 1 << 24
"""What Open MPI maps for each rank (``btl_sm_segment_size``)."""

_ENDS_WITHIN_S = 30.0
_KILLED_WITHIN_S = 5.0
_LEASE_POLL_S = 1.0
_POLL_S = 0.5
_MOST_DEATHS_IN_VAIN = 3
Find: TypeAlias = Callable[[RunDirectory, JobOptions | None], FoundHead | None]
Connect: TypeAlias = Callable[[HeadTerms, "subprocess.Popen[bytes] | None"], HeadProcess]

_PASSED_ON = (*STOPS, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP)
"""SIGUSR1 may ask for nothing; its default would end this process."""


def run_job(
    options: JobOptions, batch: BatchJob | None = None, link: ChainLink | None = None
) -> ExitCode:
    """Run the job of ``options`` to its end; return the exit code.

    A job that lives in the run directory without a client is shown instead.  For a run that is
    complete nothing is started.

    Args:
        options: the job.
        batch: the batch job around it, which minds its time.
        link: the incarnation that this is for the batch system.

    Raises:
        JobError: the job cannot begin; nothing was started.
    """
    around = batch or BatchJob.of(options, None)
    try:
        setup = settle(options)
    except NothingToDo as reason:
        say(str(reason))
        return ExitCode.DONE
    if isinstance(setup, FoundJob):
        return attach_to(setup, options, batch).run()
    try:
        if link is not None:
            around.incarnation = link.begin(setup.record.run_id)
        client = begin_job(setup, around)
    except BaseException:
        setup.lease.end()
        raise
    return client.run()


class FoundJob(NamedTuple):
    """The head of a job that this process shows from now on, and its signals since then."""

    head: FoundHead
    signals: SignalPipe


def settle(
    options: JobOptions,
    *,
    prepare: Callable[[JobOptions, Stillness], JobSetup] = prepare_job,
    find: Find = find_owner,
    sleep: Callable[[float], None] = time.sleep,
) -> JobSetup | FoundJob:
    """Return the job that may begin, or the one to show; ask again while another job is busy.

    Raises:
        RunDirectoryBusy: another job still has the directory.
        NothingToDo: the run is complete.
    """
    bound = Bound(options.wait_lease_s)
    watch = Stillness()
    has_said = False
    while True:
        try:
            return prepare(options, watch)
        except RunDirectoryBusy as error:
            busy = error
        refuse_other_program(options, Program.of(options.script), is_owned=True)
        try:
            found = _find_job(find, RunDirectory(options.run_dir), options)
        except OwnerEnded as ended:
            say(f"{ended}; going on from its newest checkpoint")
            # Its writer has the lease until it has written what it had in hand.
            bound, has_said = Bound(max(options.wait_lease_s, _ENDS_WITHIN_S)), True
            continue
        except RunDirectoryBusy as error:
            busy, found = error, None  # it knows more about itself
        except JobError:  # it is elsewhere, or just ending
            found = None
        if found is not None:
            return found
        if bound.has_passed:
            raise busy
        if not has_said:
            say(f"waiting for {options.wait_lease_s:.0f} s at most: {busy}")
            has_said = True
        sleep(_LEASE_POLL_S)


def _find_job(find: Find, directory: RunDirectory, asked: JobOptions | None) -> FoundJob | None:
    """Return the job that this process shows from now on, None if none lives there."""
    signals = SignalPipe()
    with contextlib.ExitStack() as undone:
        undone.callback(signals.restore, is_replayed=True)
        head = find(directory, asked)
        if head is not None:
            undone.pop_all()
        return None if head is None else FoundJob(head, signals)


def begin_job(
    setup: JobSetup,
    batch: BatchJob,
    *,
    begin: Callable[[HeadTerms], subprocess.Popen[bytes]] = begin_head,
    connect: Connect = connect_to_head,
    memory: str = _MEMORY,
) -> Client:
    """Return the client of a job whose head is starting: its pool imports meanwhile."""
    removed = remove_dead_directories(memory, tempfile.gettempdir())
    directory = make_owned_directory(memory_directory(setup.options, memory))
    terms = setup.head_terms(directory)
    begun, signals = None, SignalPipe()
    with contextlib.suppress(OSError):  # nothing to spare: it is tried again
        begun = begin(terms)
    try:
        from holdfast.runtime.head.beginning import tell_beginning  # while the head starts
        from holdfast.runtime.head.console import Teller

        said: list[str] = []

        def tell(text: str) -> None:
            said.append(text)
            say(text)

        teller = Teller(setup.journal, tell, is_quiet=setup.options.quiet)
        for path in removed:
            text = f"removed {path}, which a job that was killed has left in memory"
            teller.tell(Warned(text))
        tell_beginning(setup, teller, batch.introduction)
        job = replace(setup.job(batch.limits), said=tuple(said))
        setup.journal.close()
        head = connect(terms, begun)
    except BaseException:
        if begun is not None:
            begun.kill()
            has_ended(begun, _KILLED_WITHIN_S)
        shutil.rmtree(directory, ignore_errors=True)
        signals.restore()
        raise
    client = Client(terms, to_plain(job), batch, setup.lease, signals, connect=connect)
    client.start(head)
    return client


def memory_directory(options: JobOptions, place: str = _MEMORY) -> str | None:
    """Return where shared memory files belong, if the system has such a place with enough room.

    Workers talk through these files alone: without room for them they would wait for ever.
    """
    needed = _SEGMENT_BYTES * (options.workers + options.spares)
    is_there = os.access(place, os.W_OK | os.X_OK)
    return place if is_there and shutil.disk_usage(place).free >= needed else None


def run_batch_job(
    options: JobOptions, allocation: Allocation, *, run: Callable[..., ExitCode] = run_job
) -> int:
    """Run one incarnation of a run in a batch system; return the exit code.

    Raises:
        JobError: the job cannot begin, or its chain does not get on; nothing was started.
    """
    if not allocation.chain:
        return run(options, BatchJob.of(options, allocation))
    with answering(options.run_dir, say):
        link = ChainLink(options, allocation)
    asked = link.asked(options)
    if asked.fresh != options.fresh:
        say("--fresh began this run with the first incarnation; this one goes on with it")
    batch = BatchJob.of(asked, allocation)
    try:
        code = run(asked, batch, link)
    except RunDirectoryBusy as error:
        if CHAIN not in os.environ:
            raise
        say(f"{error}; {allocation.label} leaves it alone")
        return error.exit_code
    batch.end(code, say)
    return code


def attach(run_dir: Path, find: Find = find_owner) -> int:
    """Show the job that lives in ``run_dir`` without a client; return its exit code.

    Raises:
        UsageError: there is no such job, or not on this host.
        RunDirectoryBusy: there is one, and it cannot be shown now.
    """
    directory = RunDirectory(run_dir)
    with answering(run_dir, say):
        refuse_no_run(run_dir)
        try:
            found = _find_job(find, directory, None)
        except OwnerEnded as ended:
            words = f"{ended}; go on from its newest checkpoint by `holdfast run`"
            raise UsageError(words) from None
        except NobodyRuns as error:
            raise UsageError(no_job(error, directory)) from error
        except NotSaved as error:
            raise UsageError(str(error)) from error
    if found is None:
        raise RunDirectoryBusy(f"the job in {run_dir} is just starting, or ending; ask again")
    client = attach_to(found)
    code = client.run()
    client.batch.end(code, say)
    return code


def attach_to(
    found: FoundJob,
    asked: JobOptions | None = None,
    batch: BatchJob | None = None,
    *,
    connect: Connect = connect_to_head,
) -> Client:
    """Return the client of a head that was found; ``batch`` is None outside of its batch job."""
    from holdfast.runtime.head.job import Job

    head, signals = found
    greeting = head.greeting
    job = from_plain(Job, greeting.job)
    options, environment = job.config.options, greeting.environment
    around = batch or BatchJob.of(options, find_allocation(environment), age_s(head.process.pid))
    kept = () if asked is None else options.differences(asked)
    if kept:
        say(f"warning: the job keeps the options that it was started with: {'; '.join(kept)}")
    if not options.quiet:
        say(
            f"attached to the job in {options.run_dir}, which went on without a client: "
            f"{options.script.name} on {count(greeting.workers, 'worker')}"
        )
    lease = Lease(head.lease)
    with contextlib.suppress(OSError):  # nothing to spare: the job's writer renews it, too
        lease.keep()  # also while there is no head
    terms = HeadTerms(
        directory=Path(greeting.directory),
        cwd=Path(greeting.cwd),
        environment=environment,
        heartbeat_timeout_s=options.heartbeat_timeout_s,
        preload=job.preload,
        lease=lease.fileno(),
        verbose=options.verbose,
    )
    hold(terms.directory)
    client = Client(terms, greeting.job, around, lease, signals, connect=connect)
    client.show(HeadProcess(head.channel, head.process, options.heartbeat_timeout_s))
    return client


class Client:
    """Shows a job until its end, and starts another head if one dies.

    Args:
        terms: those of its head.
        job: the job, as each head is told it.
        batch: the batch job around it.
        lease: that of the run directory; the one who holds it owns the directory.
        signals: those of this process since the head was begun.
        connect: starts another head; raises ``RecoveryImpossible``.
        clock: the seconds that this process has witnessed.
    """

    def __init__(
        self,
        terms: HeadTerms,
        job: Mapping[str, Any],
        batch: BatchJob,
        lease: Lease,
        signals: SignalPipe,
        *,
        connect: Connect = connect_to_head,
        clock: Callable[[], float] = witnessed_s,
    ) -> None:
        self.batch = batch
        self._terms = terms
        self._job = job
        self._lease = lease
        self._connect, self._clock = connect, clock
        self._standing = Standing()
        """What the newest launch has come to."""
        self._has_stood = False
        """Whether the present head has told how its launch stands."""
        self._ended: JobDone | None = None
        self._deaths_in_vain = 0
        """How many heads in a row have died before anything happened."""
        self._head: HeadProcess | None = None
        self._stops: set[int] = set()
        """The signals to stop that the head was told; another head must know of them."""
        self._polled_at = 0.0
        self._reactor = Reactor()
        self._signals = signals
        signals.watch(self._reactor, self._pass_on)

    def start(self, head: HeadProcess, reason: str = "") -> None:
        """Let a head begin the job, or go on after what another one has come to."""
        after = None if self._standing.order is None else self._standing
        head.channel.post(to_message(BeginJob(self._job, after, reason)), (1, 2))
        self.show(head)

    def run(self) -> ExitCode:
        """Serve until the job is over; return its exit code.

        Raises:
            RecoveryImpossible: its head has died, and no other one can be started.
        """
        try:
            while self._ended is None:
                self._reactor.run_once(_POLL_S)
                self._poll(self._clock())
        except RecoveryImpossible:
            self._lease.end()
            raise
        finally:
            block()  # this process ends next, with the job's exit code and no other
            self._leave()
        self.batch.limits, self.batch.lost_hosts = self._ended.limits, self._ended.lost
        return ExitCode(self._ended.exit_code)

    def show(self, head: HeadProcess) -> None:
        """Show the job of a head that has it."""
        self._head, self._has_stood = head, False
        self._name_head(head)
        self._reactor.watch_channel(head.channel, self._on_message, self._on_end)
        head.silence_s(self._clock(), live_columns())

    def _name_head(self, head: HeadProcess) -> None:
        """Let the lease name head and client; a disk that hangs is waited for a moment only."""
        lease, socket = self._lease, self._terms.directory / SOCKET_NAME

        def write() -> None:
            with contextlib.suppress(OSError):  # a full disk: only nobody finds the head
                lease.name_head(head.process.pid, socket, client=os.getpid())

        calls = BoundedCalls("holdfast-lease-names")
        calls.run(write)
        calls.close(0.0)

    def _on_message(self, line: Message) -> None:
        assert self._head is not None
        self._head.heard()
        match message := _MESSAGES.decode(line):
            case ClientTaken():
                for fd in line.get(FDS, ()):
                    os.close(fd)  # this process has the lease
            case Standing():
                if self._has_stood:  # something has happened since this head began
                    self._deaths_in_vain = 0
                self._has_stood, self._standing = True, message
            case StopOrdered():
                self._stops.add(signal.SIGTERM)
            case JobDone():
                self._ended = message

    def _on_end(self) -> None:
        if self._ended is None:
            self._replace("")

    def _poll(self, now: float) -> None:
        if now - self._polled_at < _POLL_S or self._ended is not None or self._head is None:
            return
        self._polled_at = now
        child = self._head.child
        reap_others({None if child is None else child.pid})  # this process may be process 1
        silence_s = self._head.silence_s(now, live_columns())
        if silence_s is not None:
            self._reactor.forget(self._head.channel)
            self._head.process.kill()  # the kernel does the same to all that it has started
            self._replace(f"the head has not answered for {silence_s:.1f} s")

    def _replace(self, reason: str) -> None:
        """Start another head in place of one that is gone, and its workers with it."""
        assert self._head is not None
        self._head.end()
        self._head = None
        self._deaths_in_vain += 1
        if self._deaths_in_vain > _MOST_DEATHS_IN_VAIN:
            raise RecoveryImpossible(
                f"the agent of this host died {self._deaths_in_vain} times before it did anything; "
                "its messages are above; run `holdfast doctor`"
            )
        self.start(self._connect(self._terms, None), reason)
        self._pass_on(self._stops)

    def _pass_on(self, numbers: Collection[int]) -> None:
        self._stops |= set(numbers) & set(self.batch.limits.stops)
        if self._head is not None and numbers:
            self._head.channel.post(to_message(PassSignals(tuple(map(int, numbers)))))

    def _leave(self) -> None:
        """Wait for the end of a head whose job is over; let any other one go on."""
        if self._head is not None:
            self._reactor.forget(self._head.channel)
            if self._ended is None:
                self._head.channel.close()
            else:
                self._head.end()
        if self._head is None or self._ended is not None:
            shutil.rmtree(self._terms.directory, ignore_errors=True)
        self._reactor.close()
        self._signals.restore()


class SignalPipe:
    """The handlers of a client, which passes its signals on; from its making until ``restore``.

    It is made before there is a head: what comes meanwhile waits in the pipe.
    """

    def __init__(self) -> None:
        self._before = {number: signal.getsignal(number) for number in _PASSED_ON}
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        signal.set_wakeup_fd(self._write)
        for number in _PASSED_ON:
            # A job that was started with nohup keeps ignoring what nohup ignores.
            if self._before[number] is not signal.SIG_IGN:
                signal.signal(number, _wake)

    def watch(self, reactor: Reactor, take: Callable[[bytes], None]) -> None:
        """Let ``take`` have the numbers of the signals that have come, and that come."""
        reactor.watch(self._read, lambda: take(os.read(self._read, 64)))

    def restore(self, *, is_replayed: bool = False) -> None:
        """Give the process its former handlers back, and let them have what came, if asked to."""
        signal.set_wakeup_fd(-1)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        came = b""
        with contextlib.suppress(BlockingIOError):
            came = os.read(self._read, 64)
        os.close(self._read)
        os.close(self._write)
        for received in came if is_replayed else b"":
            signal.raise_signal(received)


def _wake(_number: int, _frame: object) -> None:
    """Do nothing: the number is in the pipe by now."""
