"""The agent's handle on the host's writer, the process that commits its workers' saves.

Invariant: every save whose parts have all been copied is answered exactly once.  If the
writer has died or makes no progress, the answer comes from here.

A disk that hangs holds the process that writes to it, and may even keep it from dying.  So
nothing here waits for the writer's end.  Every wait for an answer has a bound.  It begins
anew with each read and each durable file of the writer.  It grows only with the files in
hand: a sync of a large file takes long, and tells nothing before its end.

The parts of a save are gathered here, and the writer hears of it when all are there.  A save that
stays incomplete is answered when a later one begins, or another world.

A lost writer is replaced when the next part comes.  The memory belongs to the agent, so saves in it
outlive the writer, and `WriterReplay` knows what to tell the new one: the memory and the plan.  It
learns complete saves only when all workers are dead: a save at which one writer has died may be the
death of the next one, too.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from holdfast.runtime.run.events import Notice
from holdfast.runtime.run.journal import Records
from holdfast.runtime.saving.save_messages import (
    DiskMoved,
    OfWriter,
    PartCopied,
    PlanSaves,
    SaveAnswered,
    SaveCopied,
    SaveTicket,
    Settle,
    Settled,
    UseMemory,
)
from holdfast.runtime.system.channel import Channel, Message, MessageKinds, pair, to_message
from holdfast.runtime.system.own_process import by_env, has_ended, module_command
from holdfast.runtime.system.reactor import Reactor
from holdfast.runtime.system.signals import blocked
from holdfast.runtime.system.witnessed_time import witnessed_s

_NUMBER = re.compile(r"[0-9]+")

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

_Fds: TypeAlias = tuple[int, ...]
"""The descriptors that go with a message."""


class WriterLink:
    """Hands parts of saves over and passes the answers on."""

    def __init__(
        self,
        reactor: Reactor,
        tell: Callable[[SaveAnswered | Settled | Notice | Records], None],
        clock: Callable[[], float] = witnessed_s,
        on_files: Callable[[Channel], None] | None = None,
        lease_fd: int | None = None,
    ) -> None:
        """Make the link; ``tell`` gets the answers, and events for the head.

        ``on_files`` gets each writer's channel for the run directory.  ``lease_fd`` is the status
        with the lease of this host, if that needs one.
        """
        self._reactor = reactor
        self._tell = tell
        self._on_files = on_files
        self._lease_fd = lease_fd
        self._clock = clock
        self._process: subprocess.Popen[bytes] | None = None
        self._lost: list[subprocess.Popen[bytes]] = []
        self._channel: Channel | None = None
        self._told = WriterReplay()
        self._pending: dict[tuple[int, int], SaveTicket] = {}
        self._answered = (0, 0)
        """The newest save that was answered; the saves of a host are answered in order."""
        self._unsettled = 0
        """How many times the writer was told to settle, and has not answered."""
        self._settles_within_s = ANSWERED_WITHIN_S
        self._progressed = 0.0
        self._being_written = 0
        """Bytes of the files that the writer's disk is busy with."""

    @property
    def pid(self) -> int | None:
        """The process id of the writer, None if there is none."""
        return None if self._process is None else self._process.pid

    @property
    def is_settling(self) -> bool:
        """Whether somebody waits for ``Settled``."""
        return self._unsettled > 0

    def start(self) -> None:
        """Start the writer before the first save."""
        with contextlib.suppress(OSError):  # the next message tries again
            self._connected()

    def use(self, memory: UseMemory, fds: Sequence[int]) -> None:
        """Tell the writer the memory of the saves that come; the descriptors stay the caller's."""
        self._end_save_in_hand()
        self._told.memory(memory, fds)
        self._post_if_connected(memory, fds)

    def plan(self, message: PlanSaves, fds: Sequence[int]) -> None:
        """Tell the writer the plan of the saves that come; owns its descriptor from now on.

        It comes with each world.  A new writer learns what the world before has told first.
        """
        coming = self._told.coming
        if coming is not None and coming.ticket.generation < message.generation:
            self._end_save_in_hand()
        self._channel_or_reason()
        self._told.plan(message, fds)
        self._post_if_connected(message, fds)

    def end_maintenance(self) -> None:
        """Let the writer leave old steps alone until the next plan comes: another one has begun."""
        plan = self._told.end_maintenance()
        if plan is not None:
            self._post_if_connected(*plan)

    def copied(self, message: PartCopied, fds: Sequence[int]) -> None:
        """Take note that a part of a save was copied, and tell the writer when it was the last one.

        Owns its descriptor from now on.
        """
        ticket = message.ticket
        if ticket.number <= self._answered:
            for fd in fds:  # late: a dead worker's, read when it was given up
                os.close(fd)
            return
        coming = self._told.coming
        if coming is not None and coming.ticket.age < ticket.age:
            self._end_save_in_hand()
        channel, reason = self._channel_or_reason()
        save = self._told.part(message, fds)
        if save is not None:
            if not self._pending:
                self._progressed = self._clock()
            self._pending[ticket.number] = ticket
            if channel is not None:
                save.tell(channel)
            else:
                save.is_lost = True
                self._answer(SaveAnswered(ticket, is_durable=False, reason=reason))
        self._told.close_unused(channel)

    def settle(self, message: Settle) -> None:
        """Let the writer commit what is complete in memory; ``Settled`` is told in any case."""
        is_urgent = message.is_urgent
        self._settles_within_s = KILLED_SETTLES_WITHIN_S if is_urgent else ANSWERED_WITHIN_S
        self._told.drop_coming()
        if lost := self._told.lost_saves:
            with contextlib.suppress(OSError):
                channel = self._connected()
                for save in lost:
                    save.tell(channel, was_durable=save.is_durable)
        if self._channel is None:
            self._tell(Settled(None))
            return
        self._unsettled += 1
        self._progressed = self._clock()
        self._channel.post(to_message(message))

    def poll(self, now: float) -> None:
        """Give up a writer that has made no progress for longer than the bound."""
        self._lost = [process for process in self._lost if process.poll() is None]
        if (self._pending or self.is_settling) and now - self._progressed > self._patience_s():
            self._give_up("makes no progress: the disk hangs")

    def replace(self, why: str) -> None:
        """Kill the writer: its snapshots fail, and the next one brings another writer."""
        if self._channel is not None:
            self._give_up(f"was {why}")

    def close(self) -> None:
        """Give the writer a moment to finish its snapshots, then end it."""
        if self._process is not None and self._channel is not None:
            self._reactor.forget(self._channel)
            self._channel.close()
            self._lost.append(self._process)
        self._process = self._channel = None
        for process in self._lost:
            if not has_ended(process, _ENDED_WITHIN_S):
                process.kill()
                has_ended(process, _KILLED_WITHIN_S)  # unless it hangs in the kernel
        self._told.close()

    def _patience_s(self) -> float:
        """Return the seconds that the writer may be silent."""
        if self.is_settling and self._settles_within_s < ANSWERED_WITHIN_S:
            return self._settles_within_s
        return ANSWERED_WITHIN_S + self._being_written / SLOWEST_BYTES_PER_S

    def _connected(self) -> Channel:
        """Return the channel to the writer; start the writer if there is none.

        Raises ``OSError`` if it cannot be started just now.
        """
        if self._channel is None:
            ours = self._started()
            self._reactor.watch_channel(ours, self._on_message, lambda: self._give_up("has died"))
            self._channel = ours
            self._told.repeat(ours)
        return self._channel

    def _started(self) -> Channel:
        """Start a writer, and return the channel to it."""
        (ours, theirs), (files, their_files) = pair(), pair()
        command = [*module_command("holdfast.runtime.saving.writer"), "--parent", str(os.getpid())]
        command += ["--control-fd", str(theirs.fileno())]
        if self._on_files is not None:
            command += ["--files-fd", str(their_files.fileno())]
        inherited = [theirs.fileno(), their_files.fileno()]
        if self._lease_fd is not None:
            command += ["--lease-fd", str(self._lease_fd)]
            inherited.append(self._lease_fd)
        try:
            with blocked():
                self._process = subprocess.Popen(
                    by_env(command),
                    pass_fds=inherited,
                    stdin=subprocess.DEVNULL,
                )
        except OSError:
            ours.close()
            files.close()
            raise
        finally:
            theirs.close()
            their_files.close()
        if self._on_files is None:
            files.close()
        else:
            self._on_files(files)
        return ours

    def _channel_or_reason(self) -> tuple[Channel | None, str]:
        """Return the channel to the writer, or why there is none."""
        try:
            return self._connected(), ""
        except OSError as error:
            return None, f"the process that writes snapshots cannot be started: {error}"

    def _post_if_connected(self, message: UseMemory | PlanSaves, fds: Sequence[int]) -> None:
        """Post a message; a writer that has to be started is told it at its start."""
        if self._channel is not None:
            self._channel.post(to_message(message), fds)
        self._told.close_unused(self._channel)

    def _on_message(self, line: Message) -> None:
        self._progressed = self._clock()
        match message := _MESSAGES.decode(line):
            case DiskMoved(nbytes):
                self._being_written = nbytes
            case Settled():
                self._unsettled -= 1
                self._tell(message)
            case SaveAnswered():
                self._answer(message)
            case Notice() | Records():
                self._tell(message)

    def _give_up(self, why: str) -> None:
        """Kill the writer without waiting for its end, and answer its snapshots and questions."""
        assert self._channel is not None
        assert self._process is not None
        self._reactor.forget(self._channel)
        self._channel.close()
        self._process.kill()
        self._lost.append(self._process)  # kept until it ends, which a hanging disk may delay
        self._process = self._channel = None
        self._being_written = 0
        self._told.lost()
        reason = f"the process that writes snapshots {why}"
        for ticket in list(self._pending.values()):
            self._answer(SaveAnswered(ticket, is_durable=False, reason=reason))
        unsettled, self._unsettled = self._unsettled, 0
        for _ in range(unsettled):
            self._tell(Settled(None))

    def _end_save_in_hand(self) -> None:
        """Answer the save that lacks parts, if there is one: they will never come."""
        coming = self._told.drop_coming()
        if coming is not None:
            self._answer(SaveAnswered(coming.ticket, is_durable=False, is_expected=True))

    def _answer(self, answer: SaveAnswered) -> None:
        """Pass an answer on, unless this save or a later one was answered before."""
        self._pending.pop(answer.ticket.number, None)
        if answer.is_durable:
            self._told.saved(answer.ticket)
        if answer.ticket.number > self._answered:
            self._answered = answer.ticket.number
            self._tell(answer)


class WriterReplay:
    """What holds: memory, plan, the newest save in each buffer, and the one in hand."""

    def __init__(self) -> None:
        self.coming: _ToldSave | None = None
        """The save of which parts have still to be copied."""
        self._memory: tuple[UseMemory, _Fds] | None = None
        self._plan: tuple[PlanSaves, _Fds] | None = None
        self._saves: dict[int, _ToldSave] = {}
        self._unused: list[int] = []

    @property
    def lost_saves(self) -> list[_ToldSave]:
        """The saves that only lost writers were told, the oldest first; all were answered."""
        lost = (save for save in self._saves.values() if save.is_lost)
        return sorted(lost, key=lambda save: save.ticket.age)

    def memory(self, message: UseMemory, fds: Sequence[int]) -> None:
        """Keep the newest memory; its descriptors belong to its owner.  Older saves are gone."""
        self._memory = message, tuple(fds)
        self._forget_saves()

    def plan(self, message: PlanSaves, fds: Sequence[int]) -> None:
        """Keep the newest plan, and own its descriptor."""
        self._forget_plan()
        self._plan = message, tuple(fds)

    def end_maintenance(self) -> tuple[PlanSaves, _Fds] | None:
        """Keep that the plan is for saves alone, and return it; None if nothing has changed."""
        if self._plan is None or not self._plan[0].has_maintenance:
            return None
        self._plan = replace(self._plan[0], has_maintenance=False), self._plan[1]
        return self._plan

    def part(self, message: PartCopied, fds: Sequence[int]) -> _ToldSave | None:
        """Keep a part and own its descriptor; return its save if that was the last part of it.

        A part has no use once a later save has begun, or another memory was given out.
        """
        ticket, coming = message.ticket, self.coming
        is_late = any(ticket.age <= save.ticket.age for save in self._saves.values())
        if coming is not None:
            is_late |= ticket.age < coming.ticket.age or message.part in coming.digests
        if is_late or self._memory is None or self._memory[0] != ticket.memory:
            self._unused.extend(fds)
            return None
        if coming is None:
            self._forget_save(ticket.buffer)
            self.coming = coming = _ToldSave(ticket)
        coming.digests[message.part] = message.digest
        coming.fds += tuple(fds)
        if len(coming.digests) < ticket.parts:
            return None
        self.coming, self._saves[ticket.buffer] = None, coming
        return coming

    def drop_coming(self) -> _ToldSave | None:
        """Forget the save of which parts have still to be copied, and return it."""
        coming, self.coming = self.coming, None
        if coming is not None:
            self._unused.extend(coming.fds)
        return coming

    def saved(self, ticket: SaveTicket) -> None:
        """Take note that a save is durable; older ones have no use any more."""
        for buffer, save in list(self._saves.items()):
            if save.ticket.launch != ticket.launch or save.ticket.attempt > ticket.attempt:
                continue
            save.is_durable = save.ticket.attempt == ticket.attempt
            if not save.is_durable:
                self._forget_save(buffer)

    def lost(self) -> None:
        """Take note that the writer that was told all this is gone."""
        for save in self._saves.values():
            save.is_lost = True

    def repeat(self, channel: Channel) -> None:
        """Tell a new writer the memory and the plan."""
        for told in (self._memory, self._plan):
            if told is not None:
                channel.post(to_message(told[0]), told[1])

    def close_unused(self, channel: Channel | None) -> None:
        """Close descriptors that no message needs; they must stay open until one has left."""
        if channel is None or not channel.wants_write:
            while self._unused:
                os.close(self._unused.pop())

    def close(self) -> None:
        """Close the descriptors that it owns; nothing waits to leave any more."""
        self.drop_coming()
        self._forget_saves()
        self._forget_plan()
        self.close_unused(None)

    def _forget_plan(self) -> None:
        if self._plan is not None:
            self._unused.extend(self._plan[1])
        self._plan = None

    def _forget_saves(self) -> None:
        for buffer in list(self._saves):
            self._forget_save(buffer)

    def _forget_save(self, buffer: int) -> None:
        save = self._saves.pop(buffer, None)
        if save is not None:
            self._unused.extend(save.fds)


@dataclass(slots=True)
class _ToldSave:
    """A save, and the digest of the state of each worker that has copied its part."""

    ticket: SaveTicket
    digests: dict[int, str] = field(default_factory=dict)
    fds: _Fds = ()
    """The memory with its cursor."""
    is_lost: bool = False
    """Whether no writer that lives was told it."""
    is_durable: bool = False

    def tell(self, channel: Channel, *, was_durable: bool | None = None) -> None:
        """Tell a writer that all parts were copied."""
        self.is_lost = False
        copied = SaveCopied(self.ticket, frozenset(self.digests.values()), was_durable)
        channel.post(to_message(copied), self.fds)


class FailedSaves:
    """The failures since the last save that succeeded; a reason is told in full once."""

    def __init__(self) -> None:
        self._reason = ""

    def sentence(self, step: int, reason: str) -> str:
        """Return the line of a save that has failed."""
        # Paths in it name step and attempt.
        kind = _NUMBER.sub("0", reason)
        is_known, self._reason = kind == self._reason, kind
        if is_known:
            return f"the checkpoint of step {step} failed for the same reason"
        return f"the checkpoint of step {step} failed: {reason}"

    def succeeded(self, step: int) -> str | None:
        """Take note of a save that succeeded; return the line if it ends failures."""
        had_failed, self._reason = bool(self._reason), ""
        return f"checkpoints are saved again, from step {step} on" if had_failed else None
