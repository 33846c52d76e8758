"""The agent's handle on the host's writer, the process that writes its workers' saves.

Invariant: every piece of work is answered exactly once.  If the writer has died or makes no
progress, the answer comes from here.

A disk that hangs holds the process that writes to it, and may even keep it from dying.  So
nothing here waits for the writer's end.  Every wait for an answer has a bound.  It begins
anew with each read and each durable file of the writer.  It grows only with the files in
hand: a sync of a large file takes long, and tells nothing before its end.

A lost writer is replaced when the next work comes.  The memory belongs to the agent, so saves in it
outlive the writer.  They say themselves what they are (`checkpoint.image_map`), so a new writer
needs the memory alone.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from holdfast.recovery.saves import WorkFailed, WriteShare
from holdfast.runtime.run.events import Notice
from holdfast.runtime.run.journal import Records
from holdfast.runtime.saving.save_memory import Buffers, SaveMemory
from holdfast.runtime.saving.save_messages import (
    DiskMoved,
    OfWriter,
    PlanSaves,
    WriterAnswer,
    WriterWork,
)
from holdfast.runtime.system.channel import Channel, Message, MessageKinds, pair, to_message
from holdfast.runtime.system.own_process import by_env, has_ended, module_command
from holdfast.runtime.system.reactor import Reactor
from holdfast.runtime.system.signals import blocked
from holdfast.runtime.system.witnessed_time import witnessed_s

ANSWERED_WITHIN_S = 60.0

SLOWEST_BYTES_PER_S = 10e6
"""A disk that is slower than this counts as hanging."""

KILLED_SETTLES_WITHIN_S = 5.0
"""The bound after the workers were killed on request, whose sender does not want to wait.  It
begins anew with each answer, too."""

_ENDED_WITHIN_S = 5.0

_KILLED_WITHIN_S = 5.0
"""How long a killed writer is waited for: on a busy host its end takes a moment."""

_MESSAGES: MessageKinds[OfWriter] = MessageKinds(OfWriter)


class WriterLink:
    """Hands work over and passes the answers on."""

    def __init__(
        self,
        reactor: Reactor,
        tell: Callable[[WriterAnswer | Notice | Records], None],
        memory: SaveMemory,
        *,
        clock: Callable[[], float] = witnessed_s,
        on_files: Callable[[Channel], None] | None = None,
        lease_fd: int | None = None,
    ) -> None:
        """Make the link; ``tell`` gets the answers, and events for the head.

        ``on_files`` gets each writer's channel for the run directory, on the head's host alone.
        ``lease_fd`` is the status with the lease of this host, if that needs one.
        """
        self._reactor = reactor
        self._tell = tell
        self._memory = memory
        self._on_files = on_files
        self._lease_fd = lease_fd
        self._clock = clock
        self._process: subprocess.Popen[bytes] | None = None
        self._lost: list[subprocess.Popen[bytes]] = []
        self._channel: Channel | None = None
        self._plan: PlanSaves | None = None
        """The newest; that of a host without workers has no memory here."""
        self._pending: deque[WriterWork] = deque()
        """What the writer has not answered, in order."""
        self._within_s = ANSWERED_WITHIN_S
        self._progressed = 0.0
        self._being_written = 0
        """Bytes of the files that the writer's disk is busy with."""

    @property
    def pid(self) -> int | None:
        """The process id of the writer, None if there is none."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start the writer before the first save."""
        with contextlib.suppress(OSError):  # the next work tries again
            self._connected()

    def use(self, buffers: Buffers) -> None:
        """Tell the writer of new memory; one that has to be started is told at its start."""
        if self._channel is not None:
            self._channel.post(to_message(buffers.memory), buffers.fds)

    def plan(self, message: PlanSaves) -> None:
        """Tell the writer the plan of the saves that come."""
        self._within_s = ANSWERED_WITHIN_S
        before = self._plan
        if before is not None and before.plan == message.plan:  # as the first world has told it
            message = replace(message, generation=before.generation)
        self._plan = message
        if self._channel is not None:
            self._channel.post(to_message(message))
        else:
            self.start()

    def work(self, work: WriterWork) -> None:
        """Let the writer do something for a save."""
        try:
            channel = self._connected()
        except OSError as error:
            reason = f"the process that writes snapshots cannot be started: {error}"
            self._tell(_failed(work, reason))
            return
        if not self._pending:
            self._progressed = self._clock()
        self._pending.append(work)
        channel.post(to_message(work))

    def hurry(self) -> None:
        """Wait for what is in hand no longer than a moment, from now on."""
        self._within_s = KILLED_SETTLES_WITHIN_S

    def poll(self, now: float) -> None:
        """Give up a writer that has made no progress for longer than the bound."""
        self._lost = [process for process in self._lost if process.poll() is None]
        if self._pending and now - self._progressed > self._patience_s():
            self._give_up("makes no progress: the disk hangs")

    def replace(self, why: str) -> None:
        """Kill the writer: its work fails, and the next one brings another writer."""
        if self._channel is not None:
            self._give_up(f"was {why}")

    def close(self) -> None:
        """Give the writer a moment to finish what it does, then end it."""
        if self._process is not None and self._channel is not None:
            self._reactor.forget(self._channel)
            self._channel.close()
            self._lost.append(self._process)
        self._process = self._channel = None
        for process in self._lost:
            if not has_ended(process, _ENDED_WITHIN_S):
                process.kill()
                has_ended(process, _KILLED_WITHIN_S)  # unless it hangs in the kernel

    def _patience_s(self) -> float:
        """Return the seconds that the writer may be silent."""
        if self._within_s < ANSWERED_WITHIN_S:
            return self._within_s
        return ANSWERED_WITHIN_S + self._being_written / SLOWEST_BYTES_PER_S

    def _connected(self) -> Channel:
        """Return the channel to the writer; start the writer if there is none.

        Raises ``OSError`` if it cannot be started just now.
        """
        if self._channel is None:
            ours = self._started()
            self._reactor.watch_channel(ours, self._on_message, lambda: self._give_up("has died"))
            self._channel = ours
            for buffers in self._memory.kept:
                ours.post(to_message(buffers.memory), buffers.fds)
                if buffers.plan is not None:
                    ours.post(to_message(buffers.plan))
            if self._plan is not None:
                ours.post(to_message(self._plan))
        return self._channel

    def _started(self) -> Channel:
        """Start a writer, and return the channel to it."""
        with contextlib.ExitStack() as kept, contextlib.ExitStack() as given:
            ours, theirs = pair()
            kept.callback(ours.close)
            given.callback(theirs.close)
            fds = [theirs.fileno(), -1, -1 if self._lease_fd is None else self._lease_fd]
            if self._on_files is not None:
                files, its_files = pair()
                kept.callback(files.close)
                given.callback(its_files.close)
                fds[1] = its_files.fileno()
            words = map(str, (os.getpid(), *fds))
            command = by_env(module_command("holdfast.runtime.saving.writer", *words))
            with blocked():
                self._process = subprocess.Popen(
                    command, pass_fds=[fd for fd in fds if fd >= 0], stdin=subprocess.DEVNULL
                )
            kept.pop_all()
        if self._on_files is not None:
            self._on_files(files)
        return ours

    def _on_message(self, line: Message) -> None:
        self._progressed = self._clock()
        match message := _MESSAGES.decode(line):
            case DiskMoved(nbytes):
                self._being_written = nbytes
            case Notice() | Records():
                self._tell(message)
            case _ if self._pending:
                self._pending.popleft()
                self._tell(message)

    def _give_up(self, why: str) -> None:
        """Kill the writer without waiting for its end, and answer its work."""
        assert self._channel is not None
        assert self._process is not None
        self._reactor.forget(self._channel)
        self._channel.close()
        self._process.kill()
        self._lost.append(self._process)  # kept until it ends, which a hanging disk may delay
        self._process = self._channel = None
        self._being_written = 0
        reason = f"the process that writes snapshots {why}"
        pending, self._pending = self._pending, deque()
        for work in pending:
            self._tell(_failed(work, reason))


def _failed(work: WriterWork, reason: str) -> WorkFailed:
    """Return the answer to work that nobody does."""
    return WorkFailed(work.ticket, work.share if isinstance(work, WriteShare) else None, reason)
