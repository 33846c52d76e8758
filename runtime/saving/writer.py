"""The host's writer: a child of the agent that writes all saves of the host's workers.

It is niced and has neither MPI nor TensorFlow nor HDF5: an image is the file, byte for
byte.  Workers copy their parts of the state into memory of the agent.  When all parts are there,
the head lets each host write its share, whether the workers still live or not.  So no save that
was complete in memory is lost, and no worker has to be asked.

Each piece of work is answered once, a failure with its reason.  What else there is to tell goes to
the agent (`WriterReport`).  The writer on the host of the head also commits the saves of all hosts
and looks after old steps.  A thread of its process writes the journal and looks after the run
directory (`run_files`).
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

from holdfast.checkpoint.errors import (
    CheckpointError,
    CommitRefused,
    SnapshotDamaged,
    StorageFailed,
)
from holdfast.checkpoint.filesystem import FileSystem
from holdfast.checkpoint.shares import digests_of
from holdfast.recovery.event import Event
from holdfast.recovery.saves import (
    CommitSave,
    MakeSpace,
    RemoveSave,
    SaveCommitted,
    SaveRemoved,
    SaveTicket,
    ShareWritten,
    SpaceMade,
    WorkFailed,
    WriteShare,
)
from holdfast.runtime.run.events import Notice
from holdfast.runtime.run.journal import RecordedEvent, Records
from holdfast.runtime.run.run_directory import prove_also
from holdfast.runtime.saving.committer import Committer, PlannedMemory
from holdfast.runtime.saving.plan import SavePlan
from holdfast.runtime.saving.run_files import RunFiles
from holdfast.runtime.saving.save_messages import (
    DiskMoved,
    OfWriter,
    PlanSaves,
    ToWriter,
    UseMemory,
    WriterAnswer,
    WriterWork,
)
from holdfast.runtime.system.channel import FDS, Channel, MessageKinds, to_message
from holdfast.runtime.system.codec import decode
from holdfast.runtime.system.own_process import allow_many_files, die_with_parent, name_process
from holdfast.runtime.system.worker_status import WorkerStatus

_MESSAGES: MessageKinds[ToWriter] = MessageKinds(ToWriter)
_TOLD_EVERY_S = 1.0
"""A read says no more than that the disk answers, and there are thousands of them."""

_NICE = 10

_FILES_END_WITHIN_S = 3.0

_MEMORIES = 2
"""The agent keeps the memory of the world before, too."""

_CARE_ENDS_WITHIN_S = 3.0
"""Less than the agent waits for the end of its writer."""


def main(parent: int, control_fd: int, files_fd: int, lease_fd: int) -> None:
    """Run the writer of the agent ``parent``, which is at the other end of ``control_fd``.

    The head's channel for the run directory and the status with the lease of this host are on some
    hosts alone; one that is not there is -1.
    """
    name_process("holdfast-writer")
    os.nice(_NICE)
    allow_many_files()
    die_with_parent(parent)
    if lease_fd >= 0:
        prove_also(partial(_prove_lease, WorkerStatus(lease_fd)))
    files = None if files_fd < 0 else RunFiles(Channel.adopt(files_fd))
    HostWriter(Channel.adopt(control_fd), commits=files is not None).run()
    if files is not None:
        files.close(_FILES_END_WITHIN_S)


def _prove_lease(status: WorkerStatus) -> None:
    """Raise ``CommitRefused`` if others may have gone on without this host."""
    if not status.has_lease:
        raise CommitRefused(
            "the lease of this host has ended, and the other hosts may have gone on without it"
        )


class HostWriter:
    """Does the work of one host, one piece after the other."""

    def __init__(
        self, channel: Channel, *, commits: bool = True, files: FileSystem | None = None
    ) -> None:
        """Serve ``channel``, and look after old steps if it ``commits``.

        Checkpoints lie on other ``files`` than the disk's, if given.
        """
        self._channel = channel
        self._commits = commits
        self._files = files
        self._report = WriterReport(channel)
        self._memories: dict[UseMemory, list[memoryview]] = {}
        """Those of the last two layouts, the newest last."""
        self._plans: dict[str, tuple[int, PlannedMemory]] = {}
        """By layout, with the first world that it was for, the newest last."""
        self._committer: Committer | None = None
        """That of the newest plan; None until the run's directory can be used."""

    def run(self) -> None:
        """Serve until the agent closes the connection."""
        while (line := self._channel.receive()) is not None:
            match message := _MESSAGES.decode(line):
                case UseMemory():
                    self._take_memory(message, line.get(FDS, ()))
                case PlanSaves():
                    self._take_plan(message)
                case WriteShare() | CommitSave() | MakeSpace() | RemoveSave():
                    self._report.send(self._answer(message))
        if self._committer is not None:
            self._committer.close(_CARE_ENDS_WITHIN_S)

    def _take_memory(self, memory: UseMemory, fds: Sequence[int]) -> None:
        """Map the buffers of a launch and layout."""
        self._memories[memory] = []
        for fd in fds:
            self._memories[memory].append(memoryview(mmap.mmap(fd, 0, prot=mmap.PROT_READ)))
            os.close(fd)  # unmapped with its last view
        while len(self._memories) > _MEMORIES:
            del self._memories[next(iter(self._memories))]

    def _take_plan(self, message: PlanSaves) -> None:
        """Take the plan that comes with each world, though it may be the same."""
        plan = decode(SavePlan, message.plan.encode())
        found = PlannedMemory(plan, plan.image_map(message.share, message.hosts))
        before = [since for since, one in self._plans.values() if one.plan == plan]
        self._plans.pop(message.layout, None)
        self._plans[message.layout] = min(before, default=message.generation), found
        while len(self._plans) > _MEMORIES:
            del self._plans[next(iter(self._plans))]
        if self._committer is not None and self._committer.plan != plan:
            self._committer.close(0.0)
            self._committer = None
        with contextlib.suppress(CheckpointError, OSError):  # each save tries again
            self._ready()

    def _ready(self) -> Committer:
        """Return the committer of the newest plan.

        Raises ``CheckpointError`` or ``OSError`` if there is none just now.
        """
        if self._committer is None:
            if not self._plans:
                raise CommitRefused("nothing can be saved before the plan of saves has come")
            _, newest = next(reversed(self._plans.values()))
            self._committer = Committer(
                newest.plan, self._report, has_maintenance=self._commits, files=self._files
            )
        return self._committer

    def _plan_of(self, ticket: SaveTicket) -> SavePlan:
        """Return the newest plan of the world that has saved; raises ``CommitRefused``."""
        for since, found in reversed(self._plans.values()):
            if since <= ticket.generation:
                return found.plan
        raise CommitRefused(f"the plan of step {ticket.step} is not known any more")

    def _answer(self, work: WriterWork) -> WriterAnswer:
        """Do a piece of work."""
        share = work.share if isinstance(work, WriteShare) else None
        try:
            match work:
                case WriteShare():
                    return self._write(work)
                case CommitSave():
                    self._ready().commit(work, self._plan_of(work.ticket))
                    return SaveCommitted(work.ticket)
                case MakeSpace():
                    self._ready().make_space(work.ticket)
                    return SpaceMade(work.ticket)
                case RemoveSave():
                    self._ready().remove(work.ticket)
                    return SaveRemoved(work.ticket)
        except (CheckpointError, OSError) as error:
            is_full = isinstance(error, StorageFailed) and error.is_full
            return WorkFailed(work.ticket, share, str(error), is_full)

    def _write(self, work: WriteShare) -> ShareWritten:
        """Write a share of a save that lies in some memory here."""
        for memory, buffers in self._memories.items():
            if memory.layout not in self._plans or memory.launch != work.ticket.launch:
                continue
            _, found = self._plans[memory.layout]
            for buffer in buffers:
                if digests_of(buffer, work.ticket.key) is not None:
                    records = self._ready().write(work, found, buffer)
                    return ShareWritten(work.ticket, work.share, records)
        raise SnapshotDamaged(
            f"step {work.ticket.step} was written over in memory; save the step again"
        )


class WriterReport:
    """Sends the agent answers, records for the journal, and sentences for the user."""

    def __init__(self, channel: Channel, clock: Callable[[], float] = time.monotonic) -> None:
        self._channel = channel
        self._clock = clock
        self._moving = threading.Lock()
        self._being_written = 0
        self._told = -math.inf

    def record(self, event: Event) -> None:
        """Send an event for the journal."""
        self.send(Records((RecordedEvent.of(event),)))

    def notify(self, text: str) -> None:
        """Let the agent show one line to the user."""
        self.send(Notice(text))

    def disk_moved(self, change: int) -> None:
        """Let the agent wait on: the disk does not hang, and so many bytes are being written."""
        with self._moving:
            self._being_written += change
            now = self._clock()
            if not change and now - self._told < _TOLD_EVERY_S:
                return
            self._told = now
            self.send(DiskMoved(self._being_written))

    def send(self, message: OfWriter) -> None:
        """Send a message; nobody waits for it if the agent is gone."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._channel.send(to_message(message))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
