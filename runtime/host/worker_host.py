"""The workers of a host: each tied to its guard, watched, and fenced when silent.

The invariant: *a worker lives exactly as long as its guard*.  If a guard is gone, its
worker gets a SIGKILL.  If a worker ends without leaving, its guard gets one, and MPI tells
the survivors.  A guard that loses its agent kills itself.  So every death becomes one that
ULFM handles.

Death by silence is not decided here: `fencing` looks at the statuses.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from holdfast.recovery.world import WorkerId
from holdfast.runtime.host.fencing import Fencing
from holdfast.runtime.host.halting import Halting, look_at_ends
from holdfast.runtime.host.hosted_worker import GuardHello, GuardLink, HostedLaunch, HostedWorker
from holdfast.runtime.host.limits import HostLimits
from holdfast.runtime.host.mpi_host import HostState
from holdfast.runtime.host.output import OutputForwarder
from holdfast.runtime.host.pool_process import ForkRequest, PoolStart, WarmPool
from holdfast.runtime.run.progress import describe, short_report
from holdfast.runtime.saving.save_memory import SaveMemory
from holdfast.runtime.saving.writer_link import QUESTIONS, FailedSaves, WriterLink
from holdfast.runtime.system.channel import Channel, ChannelError, Message
from holdfast.runtime.system.codec import encode
from holdfast.runtime.system.processes import UNKILLABLE_AFTER_S, reap_others, wait_all_ended
from holdfast.runtime.system.reactor import Reactor
from holdfast.runtime.system.worker_status import RequestFlag

_SHARED_MEMORY = Path("/dev/shm")


class WorkerHost:
    """One launch's workers on this host, and the pool that they come from."""

    def __init__(
        self,
        reactor: Reactor,
        output: OutputForwarder,
        tell: Callable[[Message], None],
        *,
        heartbeat_timeout_s: float,
        pool: PoolStart,
        on_files: Callable[[Channel], None] | None = None,
    ) -> None:
        """Start pool and writer; ``on_files`` gets each writer's channel for the run directory."""
        self._fencing = Fencing(tell, heartbeat_timeout_s)
        self._halting = Halting(self._tell_report)
        self._reactor = reactor
        self._output = output
        self._tell = tell
        self._launch: HostedLaunch | None = None
        self._has_guards = False
        self._has_lost = False
        self._workers: dict[tuple[int, WorkerId], HostedWorker] = {}
        self.pool = WarmPool(reactor, pool, self)
        self.writer = WriterLink(reactor, self, on_files=on_files)
        self.writer.start()
        self._condemned_since: dict[tuple[int, WorkerId], float] = {}
        self._failed_saves = FailedSaves()
        self._memory = SaveMemory(HostLimits(_SHARED_MEMORY).memory)
        self._of_saves: dict[object, Callable[[HostedWorker, Message], None]] = {
            "memory": self._give_memory,
            "plan": lambda _, message: self.writer.plan(message),
            "copied": lambda _, message: self.writer.copied(message),
        }
        self._is_urgent = False
        self._has_lost_pool = False

    @property
    def workers(self) -> tuple[HostedWorker, ...]:
        """The workers that are hosted, from the announcement of their launch to their end."""
        return tuple(self._workers.values())

    @property
    def is_idle(self) -> bool:
        """Whether no worker is hosted, and no save of dead workers is being committed."""
        return not self._workers and not self.writer.is_settling

    @property
    def state(self) -> HostState:
        """The workers of the newest launch, in short."""
        is_empty = not any(hosted.occupies_a_rank for hosted in self._workers.values())
        return HostState(
            is_empty=is_empty and not self.writer.is_settling,
            had_guards=self._has_guards,
            ended_well=not self._has_lost,
        )

    @property
    def progress(self) -> Message:
        """How far training has come, in short."""
        return short_report(self.workers)

    def describe(self) -> Message:
        """Return how far training has come, with a line for each worker."""
        silences, standing = self._fencing.silences_s(), self._fencing.standing_s()
        workers = [
            describe(hosted, silences.get(hosted.worker), standing.get(hosted.worker))
            for hosted in self.workers
        ]
        return {**self.progress, "workers": workers}

    @property
    def is_helpless(self) -> bool:
        """Whether no worker lives, and none can be made."""
        return self._has_lost_pool and all(hosted.pid is None for hosted in self.workers)

    @property
    def is_warm(self) -> bool:
        """Whether the pool has imported everything."""
        return self.pool.is_warm

    @property
    def is_inquiring(self) -> bool:
        """Whether workers are about to be killed, as soon as it is known what they do."""
        return self._fencing.is_inquiring

    def begin(self, launch: HostedLaunch) -> None:
        """Make the workers of ``launch``, which wait for their guards.

        The remaining workers of an earlier launch are killed.
        """
        self.kill_all(f"generation {launch.generation} begins")
        self._launch = launch
        self._fencing.begin(launch.config.options.stall_timeout_s)
        self._halting = Halting(self._tell_report)
        self._has_lost_pool = False
        self._has_guards = self._has_lost = self._is_urgent = False
        self._output.speaker = launch.workers[0]
        for worker in launch.workers:
            hosted = HostedWorker(worker, launch)
            self._workers[(launch.generation, worker)] = hosted
            config = encode(launch.config_of(worker)).decode()
            self.pool.request(ForkRequest(worker, launch.generation, config, hosted.their_fds))

    def take_guard(self, guard: GuardLink, hello: GuardHello) -> None:
        """Tie a guard that has connected to its worker, or turn it away.

        The guard must be of this launch and of a known rank, and its worker must be alive
        and without a guard.  Any other guard loses its connection, and so its life.
        """
        hosted = self._expecting(hello)
        if hosted is None or self._launch is None:
            guard.close()
            hello.close()
            return
        hosted.join_guard(guard, hello, self._launch.environment)
        self._reactor.watch_channel(
            guard.channel, lambda _: None, lambda: hosted.kill("guard lost")
        )
        self._has_guards = True
        self._tell_if_started(hosted)

    def ask_all(self, what: RequestFlag) -> None:
        """Set a request in every worker's status."""
        for hosted in self._workers.values():
            hosted.page.ask(what)

    def stop_all(self) -> None:
        """Ask every worker to stop; those that come to no step in time are halted."""
        self.ask_all(RequestFlag.STOP)
        self._halting.order(time.monotonic())

    def kill_all(self, why: str, *, is_urgent: bool = False) -> None:
        """SIGKILL all workers; their ends are reported as they come.

        If it is urgent, what they have left in memory is waited for only a moment.
        """
        self._is_urgent |= is_urgent
        for hosted in list(self._workers.values()):
            hosted.kill(why)

    def abandon(self, why: str) -> None:
        """Report the deaths of all workers, which may still hang in the kernel, and begin anew."""
        self.kill_all(why, is_urgent=True)
        for hosted in self.workers:
            if hosted.pid is None:
                self.on_fork_failed(hosted.generation, hosted.worker, why)
            else:
                self._bury(hosted, hosted.write_off())
        self._has_lost_pool = False
        self.pool.abandon(why)
        self.writer.replace(why)

    def poll(self, now: float, mpiexec: int | None = None) -> None:
        """Fence workers that stand still, and look at writer and memory.

        Watching begins with the first guard of a launch.  A worker whose own guard never
        comes is silent too, and the others would wait for it in ``MPI_Init`` for ever.
        """
        watched = [h for h in self.workers if h.pid is not None and not h.is_condemned]
        for hosted in watched:
            hosted.served = self.writer.progress
        are_halted = self._halting.is_halting
        self._fencing.poll(watched if self._has_guards else [], now, are_halted=are_halted)
        self._halting.poll([h for h in watched if not h.is_condemned], now)
        self.writer.poll(now)
        self.pool.poll(now)
        self._write_off_unkillable(now)
        self._reap_strangers(mpiexec)

    def close(self) -> None:
        """Kill all workers, wait for them if they end, and end pool and writer."""
        self.kill_all("the agent ends", is_urgent=True)
        self._fencing.close()
        self.pool.close()
        pids = [hosted.pid for hosted in self.workers if hosted.pid is not None]
        hanging = wait_all_ended(pids, UNKILLABLE_AFTER_S)
        for hosted in self.workers:
            if hosted.pid is None:
                self.on_fork_failed(hosted.generation, hosted.worker, "the agent ends")
            elif hosted.pid in hanging:
                self._bury(hosted, hosted.write_off())
            else:
                self._on_end(hosted)
        self.writer.close()
        self._memory.close()

    def on_forked(self, generation: int, worker: int, pid: int) -> None:
        """Take over a process that the pool has made."""
        hosted = self._workers[(generation, WorkerId(worker))]
        try:
            end = hosted.join_process(pid)
        except OSError as error:  # no descriptor is left
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            self.on_fork_failed(generation, worker, f"it cannot be watched: {error}")
            return
        self._output.forward(hosted.stdout_fd, f"[w{worker}] ", 1, worker)
        hosted.said = self._output.forward(hosted.stderr_fd, f"[w{worker}] ", 2, worker)
        # a worker's last messages are handled before its death
        self._reactor.watch(end, lambda: self._on_end(hosted), order=2)
        self._reactor.watch_channel(
            hosted.control,
            lambda message: self._on_report(hosted, message),
            lambda: self._on_control_end(hosted),
        )
        self._tell_if_started(hosted)

    def on_fork_failed(self, generation: int, worker: int, message: str) -> None:
        """Give up a worker for which there is no process."""
        hosted = self._workers[(generation, WorkerId(worker))]
        os.close(hosted.stdout_fd)
        os.close(hosted.stderr_fd)
        self._bury(hosted, hosted.exit_event(1, f"not started: {message}"))

    def on_pool_event(self, event: Message) -> None:
        """Tell the supervisor an event of the pool."""
        self._has_lost_pool |= event["kind"] == "pool_lost"
        self._tell(event)

    def on_pool_output(self, stdout_fd: int, stderr_fd: int) -> None:
        """Forward the output of the pool itself."""
        self._output.forward(stdout_fd, "[pool] ", 1)
        self._output.forward(stderr_fd, "[pool] ", 2)

    def on_written(self, answer: Message) -> None:
        """Tell all workers the outcome of their save, and the supervisor a failure."""
        is_durable = answer["kind"] == "saved"
        for hosted in self.workers:
            if hosted.generation == answer["launch"]:
                hosted.page.answer_save(answer["attempt"], is_durable=is_durable)
        step, text = answer["step"], None
        if is_durable:
            text = self._failed_saves.succeeded(step, is_in_run="place" not in answer)
        elif not answer.get("is_expected"):
            is_of_run = answer.get("is_of_run", False)
            text = self._failed_saves.sentence(step, answer["reason"], is_of_run=is_of_run)
        if text is not None:
            self._notify(text)

    def on_writer_notice(self, notice: Message) -> None:
        """Show a sentence of the writer to the user."""
        self._notify(notice["text"])

    def on_writer_records(self, message: Message) -> None:
        """Pass records of the writer on, for the journal."""
        self._tell({**message, "source": "snapshot writer"})

    def _notify(self, text: str) -> None:
        worker = self._launch.workers[0] if self._launch is not None else WorkerId(0)
        self._tell_report(worker, {"kind": "notice", "text": text})

    def _give_memory(self, hosted: HostedWorker, question: Message) -> None:
        """Answer a worker with the memory for its saves, and tell the writer of it once."""
        found, is_new = self._memory.buffers(hosted.generation, question)
        if is_new:
            message = {**question, "launch": hosted.generation}
            self.writer.use(message, found.fds)
            if found.lack:
                self._notify(found.lack)
        hosted.answer({"kind": "memory"}, found.fds)

    def _tell_report(self, worker: WorkerId, report: Message) -> None:
        """Pass a report of a worker, or one on its behalf, to the supervisor."""
        self._tell({"kind": "worker_report", "worker": worker, "report": report})

    def _expecting(self, hello: GuardHello) -> HostedWorker | None:
        launch = self._launch
        if launch is None or hello.generation != launch.generation:
            return None
        if not 0 <= hello.rank < len(launch.workers):
            return None
        hosted = self._workers.get((launch.generation, launch.workers[hello.rank]))
        if hosted is None or hosted.is_condemned or hosted.guard is not None:
            return None
        return hosted

    def _tell_if_started(self, hosted: HostedWorker) -> None:
        if hosted.is_running:
            self._tell({"kind": "worker_started", "worker": hosted.worker, "pid": hosted.pid})

    def _on_report(self, hosted: HostedWorker, report: Message) -> None:
        kind = report.get("kind")
        if kind in self._of_saves:
            self._of_saves[kind](hosted, report)
            return
        if kind == "records":
            self._tell({**report, "source": f"worker {hosted.worker}"})
            return
        if kind in QUESTIONS:
            self.writer.ask(report, hosted.answer)
            return
        if hosted.note(report):
            self._look_at_ends()
            self._halting.poll([h for h in self.workers if not h.is_condemned], time.monotonic())
            return
        if kind == "stopped":
            self._halting.order(time.monotonic())  # the script may close what it has open
        launch = self._launch
        if kind == "world" and launch is not None and hosted.generation == launch.generation:
            self._output.speaker = next(iter(report.get("workers", ())), self._output.speaker)
        hosted.has_left |= kind == "leaving"
        if kind != "hello":
            self._tell_report(hosted.worker, report)

    def _look_at_ends(self) -> None:
        if self._launch is not None:
            look_at_ends(self.workers, self._launch.workers, self._tell_report)

    def _on_control_end(self, hosted: HostedWorker) -> None:
        """Kill a worker whose messages make no sense; the end of a dying one says nothing."""
        if hosted.control.is_broken:
            hosted.kill("it sent its agent what is no message")

    def _on_end(self, hosted: HostedWorker) -> None:
        with contextlib.suppress(ChannelError):
            for message in hosted.control.drain():
                self._on_report(hosted, message)
        self._bury(hosted, hosted.reap())

    def _bury(self, hosted: HostedWorker, event: Message) -> None:
        """Let the guard follow its worker, then tell the supervisor."""
        has_left = event["clean"] and hosted.limit is None
        self._has_lost |= not has_left
        guard = hosted.guard
        if guard is not None:
            if has_left:
                guard.release()
            else:
                guard.kill()
            self._reactor.forget(guard.channel)
        self._reactor.forget(hosted.control)
        if hosted.end_fd is not None:
            self._reactor.forget(hosted.end_fd)
        hosted.close()
        key = (hosted.generation, hosted.worker)
        del self._workers[key]
        self._condemned_since.pop(key, None)
        self._look_at_ends()  # those who are left may have waited for this one alone
        if self._workers or event["clean"]:
            self._tell(event)
        else:
            self.writer.settle(
                lambda answer: self._tell_last_end(hosted.worker, event, answer["step"]),
                is_urgent=self._is_urgent,
            )

    def _tell_last_end(self, worker: WorkerId, event: Message, step: int | None) -> None:
        """Tell the end of a launch's last worker, once the snapshots in memory are settled.

        So a relaunch finds the step on the disk.
        """
        if step is not None:
            self._tell_report(worker, {"kind": "checkpoint", "step": step})
        self._tell(event)

    def _write_off_unkillable(self, now: float) -> None:
        """Report the death of killed workers whose processes hang in the kernel."""
        for key, hosted in list(self._workers.items()):
            if not hosted.is_condemned or hosted.pid is None:
                continue
            if now - self._condemned_since.setdefault(key, now) > UNKILLABLE_AFTER_S:
                self._bury(hosted, hosted.write_off())

    def _reap_strangers(self, mpiexec: int | None) -> None:
        """Reap orphans of workers and mpiexec; stop at a death that other code must see."""
        ours = {hosted.pid for hosted in self._workers.values()}
        ours |= {self.pool.pid, self.writer.pid, mpiexec}
        if any(hosted.pid is None for hosted in self._workers.values()):
            return
        reap_others(ours)
