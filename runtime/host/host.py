"""In each agent: one host's part of a launch, all that needs this kernel and no other host.

It has the pool and the processes of the workers, their statuses, the memory of their saves, the
link to the writer, and their output.  It decides alone who is silent, because that is measured with
its own clock.  Everything else is decided by the launch (`HostedLaunch`), for all hosts at once.

Above all it never settles by itself when its last worker is dead: only the launch knows
whether a worker lives on another host.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from holdfast.recovery.event import Event, WorkerExited
from holdfast.recovery.saves import PartHeld, ShareWritten, WorkFailed
from holdfast.recovery.world import WorkerId
from holdfast.runtime.host import host_messages as messages
from holdfast.runtime.host.host_messages import Down, Up
from holdfast.runtime.host.limits import HostLimits, HostWatch
from holdfast.runtime.host.output import OutputForwarder
from holdfast.runtime.host.pairs import Ways
from holdfast.runtime.host.pool_process import Forked, ForkFailed, LetBegin, PoolStart, WarmPool
from holdfast.runtime.host.worker_process import SilenceWatch, WorkerProcess
from holdfast.runtime.options.worker_config import WorkerConfig
from holdfast.runtime.run.events import Notice
from holdfast.runtime.run.journal import Records
from holdfast.runtime.saving.save_memory import SaveMemory
from holdfast.runtime.saving.save_messages import (
    AskHeld,
    AskMemory,
    Hurry,
    OfWorker,
    PartCopied,
    PlanSaves,
    WriterAnswer,
    WriterWork,
)
from holdfast.runtime.saving.writer_link import WriterLink
from holdfast.runtime.system.channel import Channel, ChannelError, Message, MessageKinds
from holdfast.runtime.system.codec import WrongValue
from holdfast.runtime.system.processes import (
    UNKILLABLE_AFTER_S,
    characters_read,
    reap_others,
    resident_bytes,
    wait_all_ended,
)
from holdfast.runtime.system.reactor import Reactor
from holdfast.runtime.system.worker_status import OwnReport, Phase, WorkerLeaving, WorkerStatus
from holdfast.runtime.worker.stacks import Inquiry

if TYPE_CHECKING:
    from holdfast.runtime.host.hosted_launch import HostedLaunch

_OF_SAVES: MessageKinds[OfWorker] = MessageKinds(OfWorker)
_LOGGED_EVERY_S = 0.5
_REPORTS: MessageKinds[Event | OwnReport | Records] = MessageKinds(Event | OwnReport | Records)
"""What a worker reports, beside its saves."""


class Host:
    """The workers of one host, and the pool and the writer that serve them."""

    def __init__(  # noqa: PLR0913  (each is a part of the process around it)
        self,
        reactor: Reactor,
        output: OutputForwarder,
        tell: Callable[[Up], None],
        *,
        heartbeat_timeout_s: float,
        pool: PoolStart,
        limits: HostLimits,
        on_files: Callable[[Channel], None] | None = None,
        lease_fd: int | None = None,
    ) -> None:
        """Start pool and writer.

        ``tell`` takes messages to the launch; ``on_files`` gets each writer's channel for the
        run directory, on the host of the head.  On others ``lease_fd`` is a status with the lease.
        """
        self._reactor = reactor
        self._output = output
        self._tell = tell
        self._silence = SilenceWatch(tell, self._kill, heartbeat_timeout_s)
        self._config: WorkerConfig | None = None
        """That of the newest launch."""
        self._prepared: WorkerConfig | None = None
        """That of a launch which may follow it."""
        self._is_watching = False
        self._processes: dict[tuple[int, WorkerId], WorkerProcess] = {}
        self._condemned_since: dict[tuple[int, WorkerId], float] = {}
        self._log_due = 0.0
        self._ways = Ways(tell)
        self.pool = WarmPool(reactor, pool, self._on_pool, self._forward_pool)
        self._memory = SaveMemory(limits.memory)
        self.writer = WriterLink(
            reactor, self._on_writer, self._memory, on_files=on_files, lease_fd=lease_fd
        )
        self.writer.start()
        self.watch = HostWatch(limits, tell)

    def take(self, message: Down, fds: Sequence[int] = ()) -> None:
        """Do what the launch part says; ``fds`` are owned from now on.

        Raises:
            OSError: a worker cannot be made, because the system has nothing to spare.
        """
        match message:
            case messages.PrepareLaunch(config):
                self._prepared = config
            case messages.BeginLaunch(config):
                self._begin(config)
            case messages.MakeWorkers(generation, workers):
                self._make(generation, workers)
            case LetBegin():
                self._let_begin(message, fds)
            case messages.Watch():
                self._is_watching = True
            case messages.KillWorker() | messages.NameWorld():
                self._obey_about_one(message)
            case messages.LetLeave():
                self._let_leave(message)
            case messages.Inquire() | messages.Meet():
                self._find_out(message)
            case _ if isinstance(message, WriterWork | PlanSaves | Hurry):
                self._let_write(message)
            case messages.Abandon(why):
                self._abandon(why)
            case messages.Lead(worker):
                self._output.speaker = worker
            case messages.Describe():
                self._describe()

    def _begin(self, config: WorkerConfig) -> None:
        """Let another launch begin; the workers that were prepared for it run their script."""
        self._config = config
        self._is_watching = False
        self._silence.forget()
        self._output.speaker = config.worker
        for process in self._living:
            if process.generation == config.generation:
                own = dataclasses.replace(config, worker=process.worker)
                process.answer(messages.BeginLaunch(own))

    def _let_write(self, message: WriterWork | PlanSaves | Hurry) -> None:
        match message:
            case PlanSaves():
                self.writer.plan(message)
            case Hurry():
                self.writer.hurry()
            case _:
                self.writer.work(message)

    @property
    def statuses(self) -> Mapping[tuple[int, WorkerId], WorkerStatus]:
        """The status of each worker, by the number of its launch and its own."""
        return {key: process.page for key, process in self._processes.items()}

    def kill_all(self, why: str) -> None:
        """SIGKILL all workers of this host, because it has lost its job."""
        for process in self._living:
            self._kill(process, why)

    def poll(self, now: float, others: Collection[int | None] = ()) -> None:
        """Fence silent workers, tell what was seen, and look at writer, pool and memory.

        ``others`` are children of this process that another part of it waits for.
        """
        newest = 0 if self._config is None else self._config.generation
        watched = [p for p in self._living if p.pid is not None and p.generation <= newest]
        is_inquiring = self._silence.poll(watched if self._is_watching else [], now)
        restoring = [process for process in watched if process.page.phase is Phase.RESTORING]
        read = tuple(
            messages.Read(p.generation, p.worker, characters_read(p.pid))
            for p in restoring
            if p.pid
        )
        self._tell(messages.Seen(is_inquiring, read))
        if now >= self._log_due:
            self._log_due = now + _LOGGED_EVERY_S
            self._tell_log()
        self.watch.poll(now, has_workers=any(p.pid for p in self._processes.values()))
        self._ways.poll()
        self.writer.poll(now)
        self.pool.poll(now)
        self._write_off_unkillable(now)
        self._reap_strangers(others)

    def _abandon(self, why: str) -> None:
        for process in list(self._processes.values()):
            if process.pid is None:
                self._bury_unmade(process, why)
            else:
                self._bury(process, process.write_off())
        self.pool.abandon(why)
        self.writer.replace(why)

    def close(self) -> None:
        """Wait for the workers, which were killed, if they end; then end pool and writer."""
        self.pool.close()
        processes = list(self._processes.values())
        hanging = wait_all_ended([p.pid for p in processes if p.pid], UNKILLABLE_AFTER_S)
        for process in processes:
            if process.pid is None:
                self._bury_unmade(process, "the agent ends")
            elif process.pid in hanging:
                self._bury(process, process.write_off())
            else:
                self._on_end(process)
        self._ways.close()
        self.writer.close()
        self._memory.close()

    @property
    def _living(self) -> list[WorkerProcess]:
        """The workers that were not killed."""
        return [process for process in self._processes.values() if not process.is_condemned]

    def _make(self, generation: int, workers: Sequence[WorkerId]) -> None:
        known = (self._config, self._prepared)
        launch = next((one for one in known if one and one.generation == generation), None)
        if launch is None:
            return
        for worker in workers:
            config = dataclasses.replace(launch, worker=worker)
            process = WorkerProcess(config)
            self._processes[(generation, worker)] = process
            self.pool.request(config, process.their_fds)

    def _let_begin(self, message: LetBegin, fds: Sequence[int]) -> None:
        process = self._processes.get((message.generation, message.worker))
        if process is not None:
            process.let_begin(message, fds)
            return
        for fd in fds:
            os.close(fd)

    def _let_leave(self, message: messages.LetLeave) -> None:
        for process in self._living:
            if process.generation == message.generation:
                process.answer(message)

    def _obey_about_one(self, order: messages.KillWorker | messages.NameWorld) -> None:
        process = self._processes.get((order.generation, order.worker))
        if process is None:
            return
        if isinstance(order, messages.NameWorld):
            process.answer(order)
        else:
            self._kill(process, order.why, order.limit)

    def _kill(self, process: WorkerProcess, why: str, limit: str | None = None) -> None:
        """Kill a worker first, and then let MPI hear of it."""
        process.kill(why, limit)
        self._tell(messages.Killed(process.generation, process.worker, why))

    def _find_out(self, question: messages.Inquire | messages.Meet) -> None:
        if isinstance(question, messages.Meet):
            self._ways.take(question)
            return
        for worker in question.workers:
            process = self._processes.get((question.generation, worker))
            if process is not None:
                answer = partial(self._found, question.case, process)
                self._silence.ask(process, answer, is_evidence=question.is_evidence)
        self._silence.answer_known()

    def _found(self, case: int, process: WorkerProcess, inquiry: Inquiry) -> None:
        self._tell(
            messages.Found(
                case,
                process.generation,
                process.worker,
                where=inquiry.stacks.where,
                stacks=str(inquiry.stacks),
                is_reading=inquiry.stacks.is_reading,
                samples=process.page.work,
            )
        )

    def _describe(self) -> None:
        silent_s = self._silence.silent_s
        for process in self._processes.values():
            resident = None if process.pid is None else resident_bytes(process.pid)
            silent = silent_s.get(process.worker)
            self._tell(messages.Described(process.generation, process.worker, resident, silent))

    def _on_pool(self, told: Forked | ForkFailed | Event) -> None:
        if isinstance(told, Forked):
            self._take_over(told)
        elif isinstance(told, ForkFailed):
            self._bury_unmade(self._processes[(told.generation, told.worker)], told.message)
        else:
            self._tell(told)

    def _take_over(self, forked: Forked) -> None:
        worker = forked.worker
        process = self._processes[(forked.generation, worker)]
        try:
            end = process.join_process(forked.pid)
        except OSError as error:  # no descriptor is left
            os.kill(forked.pid, signal.SIGKILL)  # it is reaped as a stranger
            self._bury_unmade(process, f"it cannot be watched: {error}")
            return
        process.printed = self._output.forward(process.stdout_fd, f"[w{worker}] ", 1, worker)
        process.said = self._output.forward(process.stderr_fd, f"[w{worker}] ", 2, worker)
        # a worker's last messages are handled before its death
        self._reactor.watch(end, lambda: self._on_end(process), order=2)
        self._reactor.watch_channel(
            process.control,
            lambda message: self._on_report(process, message),
            lambda: self._on_control_end(process),
        )
        self._tell(forked)

    def _bury_unmade(self, process: WorkerProcess, why: str) -> None:
        os.close(process.stdout_fd)
        os.close(process.stderr_fd)
        self._bury(process, process.exit_event(1, f"not started: {why}"))

    def _forward_pool(self, stdout_fd: int, stderr_fd: int) -> None:
        self._output.forward(stdout_fd, "[pool] ", 1)
        self._output.forward(stderr_fd, "[pool] ", 2)

    def _on_writer(self, told: WriterAnswer | Records | Notice) -> None:
        """Pass on what the writer tells."""
        if isinstance(told, Records):
            told = dataclasses.replace(told, source="snapshot writer")
        self._tell(told)

    def _serve_save(self, process: WorkerProcess, message: OfWorker) -> None:
        match message:
            case AskMemory():
                self._give_memory(process, message)
            case AskHeld(step):
                process.answer(*self._memory.held(step))
            case PlanSaves():
                self._memory.plan(process.generation, message)
                self.writer.plan(message)
                if message.share == 0:
                    self._tell(message)
            case PartCopied():
                held = self._memory.take_part(message)
                if held is not None:
                    self._tell(held)
            case PartHeld() | ShareWritten() | WorkFailed():
                self._tell(message)

    def _give_memory(self, process: WorkerProcess, question: AskMemory) -> None:
        """Answer a worker with the memory for its saves, and tell the writer of it once."""
        found, is_new = self._memory.buffers(process.generation, question)
        if is_new:
            self.writer.use(found)
            if found.lack:
                self._tell(Notice(found.lack))
        process.answer(found.memory, found.fds)

    def _on_report(self, process: WorkerProcess, report: Message) -> None:
        if report in _OF_SAVES:
            self._serve_save(process, _OF_SAVES.decode(report))
            return
        try:
            told = _REPORTS.decode(report)
        except WrongValue:
            self._kill(process, "it sent its agent what is no message")
            return
        if isinstance(told, Records):
            self._tell(dataclasses.replace(told, source=f"worker {process.worker}"))
            return
        process.has_left |= isinstance(told, WorkerLeaving)
        for stream in (process.printed, process.said):
            if stream is not None:
                self._output.read(stream)
        self._tell_log(process.worker)  # it was printed before the report
        self._tell(told)

    def _on_control_end(self, process: WorkerProcess) -> None:
        """Kill a worker whose messages make no sense; the end of a dying one says nothing."""
        if process.control.is_broken:
            self._kill(process, "it sent its agent what is no message")

    def _on_end(self, process: WorkerProcess) -> None:
        with contextlib.suppress(ChannelError):
            for message in process.control.drain():
                self._on_report(process, message)
        self._bury(process, process.reap())

    def _tell_log(self, worker: WorkerId | None = None) -> None:
        """Hand on what workers have printed for their log files."""
        names = {} if self._config is None else self._config.host_of
        for text in self._output.logged.take(worker):
            host = "" if text.worker is None else names.get(text.worker, "")
            self._tell(dataclasses.replace(text, host=host))

    def _bury(self, process: WorkerProcess, end: WorkerExited) -> None:
        """Forget a worker, and tell its end."""
        for stream in (process.printed, process.said):
            if stream is not None:
                self._output.read_end(stream)
        self._tell_log(process.worker)
        self._reactor.forget(process.control)
        if process.end_fd is not None:
            self._reactor.forget(process.end_fd)
        process.close()
        key = (process.generation, process.worker)
        del self._processes[key]
        self._condemned_since.pop(key, None)
        self._tell(self.watch.explained(end))

    def _write_off_unkillable(self, now: float) -> None:
        """Report the death of killed workers whose processes hang in the kernel."""
        for key, process in list(self._processes.items()):
            if not process.is_condemned or process.pid is None:
                continue
            if now - self._condemned_since.setdefault(key, now) > UNKILLABLE_AFTER_S:
                self._bury(process, process.write_off())

    def _reap_strangers(self, others: Collection[int | None]) -> None:
        """Reap orphans of workers and mpiexec; stop at a death that other code must see."""
        ours = {process.pid for process in self._processes.values()}
        if None not in ours:
            reap_others(ours | {self.pool.pid, self.writer.pid, *others})


class LocalHost:
    """The link between a launch and the host that it is on; both are set before it is used."""

    name = ""
    unheard_s = leased_s = 0.0
    host: Host
    launch: HostedLaunch

    def post(self, message: Down, fds: Sequence[int] = ()) -> None:
        """Tell the host something."""
        self.launch.calls.put(lambda: self.host.take(message, fds))

    def tell(self, message: Up) -> None:
        """Tell the launch something."""
        self.launch.calls.put(lambda: self.launch.hear(self, message))

    def status_of(self, generation: int, worker: WorkerId) -> WorkerStatus:
        """Return the status of a worker, which both have."""
        return self.host.statuses[(generation, worker)]
