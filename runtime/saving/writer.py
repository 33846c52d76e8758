"""The host's writer: a child of the agent that commits all saves of the host's workers.

It is niced and has neither MPI nor TensorFlow nor HDF5: an image is the file, byte for
byte.  Workers copy their parts of the state into memory of the agent.  When all parts are there,
the agent says so.  If they are of the same state, the writer commits the save, whether the workers
still live or not.  So no save that was complete in memory is lost, and no worker has to be asked.

Each save is answered once (`SaveAnswered`), a failure with its reason.  What else there is to tell
goes to the agent (`WriterReport`).  On the host of the head a thread of this process also writes
the journal and looks after the run directory (`run_files`).

The images of the newest complete save are kept, if the disk could not take it: the writer tries
once more when all workers are dead.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import mmap
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from holdfast.checkpoint.errors import CheckpointError, CommitRefused, StorageFailed
from holdfast.checkpoint.filesystem import FileSystem
from holdfast.recovery.event import Event
from holdfast.runtime.run.checkpoint_events import CheckpointFailed
from holdfast.runtime.run.events import Notice
from holdfast.runtime.run.journal import RecordedEvent, Records
from holdfast.runtime.run.run_directory import prove_also
from holdfast.runtime.saving.committer import Committer, HeldSave
from holdfast.runtime.saving.plan import SavePlan
from holdfast.runtime.saving.run_files import RunFiles
from holdfast.runtime.saving.save_messages import (
    DiskMoved,
    OfWriter,
    PlanSaves,
    SaveAnswered,
    SaveCopied,
    SaveTicket,
    Settle,
    Settled,
    ToWriter,
    UseMemory,
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

_CARE_ENDS_WITHIN_S = 3.0
"""Less than the agent waits for the end of its writer."""


def main(argv: Sequence[str] | None = None) -> None:
    """Run the writer of the agent at the other end of the descriptor."""
    parser = argparse.ArgumentParser(prog="python -m holdfast.runtime.saving.writer")
    parser.add_argument("--control-fd", type=int, required=True)
    parser.add_argument(
        "--parent", type=int, required=True, help="the agent, which holds the lease"
    )
    parser.add_argument("--files-fd", type=int, help="the head's channel for the run directory")
    parser.add_argument("--lease-fd", type=int, help="the status with the lease of this host")
    options = parser.parse_args(argv)
    name_process("holdfast-writer")
    os.nice(_NICE)
    allow_many_files()
    die_with_parent(options.parent)
    if options.lease_fd is not None:
        prove_also(partial(_prove_lease, WorkerStatus(options.lease_fd)))
    files = None if options.files_fd is None else RunFiles(Channel.adopt(options.files_fd))
    HostWriter(Channel.adopt(options.control_fd)).run()
    if files is not None:
        files.close(_FILES_END_WITHIN_S)


def _prove_lease(status: WorkerStatus) -> None:
    """Raise ``CommitRefused`` if others may have gone on without this host."""
    if not status.has_lease:
        raise CommitRefused(
            "the lease of this host has ended, and the other hosts may have gone on without it"
        )


class HostWriter:
    """Commits the saves of one host, one after the other, and remembers the newest."""

    def __init__(self, channel: Channel, files: FileSystem | None = None) -> None:
        """Serve ``channel``; checkpoints lie on other ``files`` than the disk's, if given."""
        self._channel = channel
        self._files = files
        self._report = WriterReport(channel)
        self._memories: dict[UseMemory, list[memoryview]] = {}
        self._plan: SavePlan | None = None
        self._has_maintenance = True
        """Whether this writer looks after old steps, as the host of rank 0 does alone."""
        self._committer: Committer | None = None
        """That of the plan; None until the run's directory can be used."""
        self._saves: list[HeldSave] = []
        """The newest complete saves, at most one for each buffer, oldest first."""

    def run(self) -> None:
        """Serve until the agent closes the connection; commit every save that is complete."""
        while (line := self._channel.receive()) is not None:
            fds = line.get(FDS, ())
            match message := _MESSAGES.decode(line):
                case UseMemory():
                    self._take_memory(message, fds)
                case PlanSaves():
                    self._take_plan(message, *fds)
                case SaveCopied():
                    self._take_save(message, fds)
                case Settle():
                    self._settle()
        if self._committer is not None:
            self._committer.close(_CARE_ENDS_WITHIN_S)

    def _take_memory(self, memory: UseMemory, fds: Sequence[int]) -> None:
        """Map the buffers of a launch and layout; those of which nothing is kept are let go."""
        kept = {save.ticket.memory for save in self._saves}
        self._memories = {key: found for key, found in self._memories.items() if key in kept}
        self._memories[memory] = []
        for fd in fds:
            self._memories[memory].append(memoryview(mmap.mmap(fd, 0, prot=mmap.PROT_READ)))
            os.close(fd)  # unmapped with its last view

    def _take_plan(self, message: PlanSaves, fd: int) -> None:
        """Take the plan that comes with each world, though it may be the same."""
        plan = decode(SavePlan, _contents(fd))
        if (plan, message.has_maintenance) == (self._plan, self._has_maintenance):
            return
        if self._committer is not None:
            self._committer.close(0.0)
        self._plan, self._committer = plan, None
        self._has_maintenance = message.has_maintenance
        with contextlib.suppress(CheckpointError, OSError):  # each save tries again
            self._ready()

    def _ready(self) -> Committer:
        """Return the committer of the newest plan.

        Raises ``CheckpointError`` or ``OSError`` if there is none just now.
        """
        if self._committer is None:
            if self._plan is None:
                raise CommitRefused("nothing can be saved before the plan of saves has come")
            self._committer = Committer(
                self._plan,
                self._report,
                has_maintenance=self._has_maintenance,
                files=self._files,
            )
        return self._committer

    def _take_save(self, message: SaveCopied, fds: Sequence[int]) -> None:
        """Commit a save, and answer; one that another writer has answered is for a settle."""
        ticket = message.ticket
        cursor = json.loads(_contents(*fds)) if fds else {}
        if message.was_durable is not None:
            with contextlib.suppress(CheckpointError, OSError):  # that was the answer
                self._hold(message, cursor).is_durable = message.was_durable
            return
        try:
            self._commit(self._hold(message, cursor))
        except (CheckpointError, OSError) as error:
            self._record_failure(ticket, str(error))
            self._report.send(SaveAnswered(ticket, is_durable=False, reason=str(error)))
        else:
            self._report.send(SaveAnswered(ticket, is_durable=True))

    def _hold(self, copied: SaveCopied, cursor: Mapping[str, object]) -> HeldSave:
        """Return the save, which replaces an older one in the same buffer."""
        ticket = copied.ticket
        place = ticket.memory, ticket.buffer
        self._saves = [
            save for save in self._saves if (save.ticket.memory, save.ticket.buffer) != place
        ]
        committer = self._ready()
        memory = self._memories[ticket.memory][ticket.buffer]
        save = HeldSave.of(committer.plan, committer.image_map, copied, cursor, memory)
        self._saves = sorted([*self._saves, save], key=lambda save: save.ticket.age)
        return save

    def _commit(self, save: HeldSave) -> None:
        """Commit a save in memory; one that has changed there is kept no longer."""
        try:
            self._ready().commit(save)
        except CheckpointError as error:
            if not isinstance(error, StorageFailed) and not save.is_whole:
                self._saves = [found for found in self._saves if found is not save]
            raise
        self._saves = [found for found in self._saves if found.ticket.age >= save.ticket.age]

    def _settle(self) -> None:
        """Commit the newest complete save that the disk has not taken; say which step it is.

        All workers are dead.
        """
        step = None
        for save in reversed(self._saves):
            step = self._settled(save)
            if step is not None:
                break
        self._report.send(Settled(step))

    def _settled(self, save: HeldSave) -> int | None:
        if not save.is_durable:
            try:
                self._commit(save)
            except (CheckpointError, OSError) as error:
                self._record_failure(save.ticket, str(error))  # it has its answer already
                return None
        return save.step

    def _record_failure(self, ticket: SaveTicket, reason: str) -> None:
        self._report.record(CheckpointFailed(ticket.step, reason, ticket.generation))


def _contents(fd: int) -> bytes:
    """Read all of a descriptor's memory, and close it."""
    try:
        return os.pread(fd, os.fstat(fd).st_size, 0)
    finally:
        os.close(fd)


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
    main()
