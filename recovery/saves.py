"""How a save of several hosts becomes one checkpoint: who writes which share, and who commits.

Each host holds two *shares* of a save in memory: the one of its own number, and that of the host
before it.  When all its workers have copied, it says so (`PartHeld`), and is told to write its own
share.  When all shares are written, one process commits them: the writer on the host of the head.
A job of one host is the case of one share.

| what happens | what follows |
|---|---|
| a host has copied its part | it writes its share |
| all living hosts have copied, and all shares are written | the save is committed |
| states of parts differ, or a share cannot be written | the save has failed |
| a disk is full | old steps make room, once, and what has failed is tried again |
| a host is lost, a later save is held, a later world saves | a save that lacks parts has failed |
| no worker lives any more | the newest save that is held, and is not durable, is written |

A save that has failed is answered when nobody writes to it any more: its files are removed then.
It stays in memory.  So after the death of all workers it is tried once more, and each share of a
lost host is written by the host after it.  A host whose memory holds another save by then says so.

Invariant: every save is answered at most once, in their order; nothing is committed of which a
share is missing, or of which two parts are of different states.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class SaveTicket:
    """One save: whose, of which step, and how many hosts take part.

    ``launch`` is the launch's first generation.  ``generation`` is the number that the head has
    given to the world that saves, and to no other one.
    """

    launch: int
    generation: int
    step: int
    attempt: int
    hosts: int = 1

    @property
    def key(self) -> tuple[int, int, int]:
        """The name of the staged save: step, generation and attempt."""
        return self.step, self.generation, self.attempt

    @property
    def number(self) -> tuple[int, int]:
        """Launch and attempt, which rise with each save that is answered."""
        return self.launch, self.attempt


@dataclass(frozen=True, slots=True)
class PartHeld:
    """All workers of a host have copied their parts; ``digests`` are those of their states."""

    ticket: SaveTicket
    share: int
    """The number of the host among those that save, and of the share that it writes."""
    digests: frozenset[str]
    seconds: float
    """For how long the save has lasted."""
    cursor: str | None = None
    """JSON, from the host of the first worker."""
    is_in_memory: bool = True
    """Whether the host can write it; else its worker does so by itself."""
    host: str = ""
    """The name of the host, which its link knows."""
    began: float = 0.0
    """When the save began, in seconds of the monotonic clock of the head's host."""


@dataclass(frozen=True, slots=True)
class ShareWritten:
    """A share is durable; ``records`` are those of its shards, in base 64."""

    ticket: SaveTicket
    share: int
    records: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SaveCommitted:
    """The checkpoint is visible and durable."""

    ticket: SaveTicket


@dataclass(frozen=True, slots=True)
class SpaceMade:
    """Old steps that may go are gone."""

    ticket: SaveTicket


@dataclass(frozen=True, slots=True)
class SaveRemoved:
    """Nothing of a save that has failed is left in the run directory."""

    ticket: SaveTicket


@dataclass(frozen=True, slots=True)
class WorkFailed:
    """What a writer was told to do for a save has failed; ``share`` is None for the commit."""

    ticket: SaveTicket
    share: int | None
    reason: str
    is_full: bool = False
    """Whether the disk has no space."""


SaveNews: TypeAlias = PartHeld | ShareWritten | SaveCommitted | SpaceMade | SaveRemoved | WorkFailed


@dataclass(frozen=True, slots=True)
class WriteShare:
    """The writer of a host writes a share of a save that it holds."""

    ticket: SaveTicket
    share: int
    host: str


@dataclass(frozen=True, slots=True)
class CommitSave:
    """All shares are written: make the checkpoint visible.  ``records`` are in their order."""

    ticket: SaveTicket
    records: tuple[tuple[str, ...], ...]
    cursor: str
    began: float


@dataclass(frozen=True, slots=True)
class MakeSpace:
    """Remove old steps that may go: a disk has no space for the save."""

    ticket: SaveTicket


@dataclass(frozen=True, slots=True)
class RemoveSave:
    """Remove what was written of a save."""

    ticket: SaveTicket


@dataclass(frozen=True, slots=True)
class SaveAnswered:
    """A save is durable, or will not be; an expected failure is none that a user should know."""

    ticket: SaveTicket
    is_durable: bool
    reason: str = ""
    is_expected: bool = False


@dataclass(frozen=True, slots=True)
class Settled:
    """All that was complete in memory is written, or given up; ``step`` is durable."""

    step: int | None


SaveOrder: TypeAlias = WriteShare | CommitSave | MakeSpace | RemoveSave | SaveAnswered | Settled

_COMMIT = -1
"""The place of the commit, and of the removal, among the shares that a save waits for."""
_REMEMBERED = 4
"""A host has two buffers, and those of the world before may hold saves, too."""


class _Space(Enum):
    """What has become of a save that a disk could not take."""

    ENOUGH = "enough"
    WANTED = "wanted"
    ASKED = "asked"
    MADE = "made"


@dataclass(slots=True)
class _Save:
    """A save from its first part to its end, and what of it is in memory."""

    ticket: SaveTicket
    lost: set[str]
    """The hosts that are gone, and what they held with them; the same for all saves."""
    held: dict[int, PartHeld] = field(default_factory=dict)
    """By share."""
    written: dict[int, tuple[str, ...]] = field(default_factory=dict)
    working: dict[int, tuple[str, bool]] = field(default_factory=dict)
    """Who works on each share, or on the commit, and whether old steps had made room before."""
    digests: frozenset[str] = frozenset()
    cursor: str | None = None
    began: float = 0.0
    space: _Space = _Space.ENOUGH
    failure: str | None = None
    is_expected: bool = False
    has_files: bool = False
    """Whether anybody may have begun to write it."""
    is_repeated: bool = False
    is_durable: bool = False
    is_over: bool = False

    def holders_of(self, share: int) -> tuple[str, ...]:
        """Return the hosts that can write a share, the one whose number it has first."""
        numbers = dict.fromkeys((share, (share + 1) % self.ticket.hosts))
        held = [self.held[number] for number in numbers if number in self.held]
        return tuple(p.host for p in held if p.is_in_memory and p.host not in self.lost)

    @property
    def is_in_memory(self) -> bool:
        """Whether what lives holds all of one state."""
        shares = range(self.ticket.hosts)
        is_whole = self.cursor is not None and all(self.holders_of(share) for share in shares)
        return is_whole and len(self.digests) == 1

    @property
    def is_written(self) -> bool:
        """Whether all shares are durable."""
        return len(self.written) == self.ticket.hosts

    def fail(self, reason: str, *, is_expected: bool = False) -> None:
        """Take note of why it will not be committed; the first reason counts."""
        if self.failure is None and not self.is_over:
            self.failure, self.is_expected = reason, is_expected

    def repeat(self) -> None:
        """Begin once more, from memory."""
        self.is_repeated, self.is_over, self.failure = True, False, None
        self.space = _Space.ENOUGH
        self.written.clear()


class SaveCoordinator:
    """Decides for the saves of one launch; each call returns what is to be done, in order."""

    def __init__(self, launch: int) -> None:
        """Begin with no save."""
        self._launch = self._world = launch
        self._saves: list[_Save] = []
        """From the oldest to the newest; all that may be in memory."""
        self._lost: set[str] = set()
        self._answered = (launch, 0)
        self.is_settling = False
        """Whether ``Settled`` will be told."""

    def take(self, news: SaveNews) -> list[SaveOrder]:
        """Take note of what a host or its writer has told."""
        is_gone = isinstance(news, PartHeld) and news.host in self._lost
        if is_gone or news.ticket.launch != self._launch:
            return []
        save = self._save_of(news.ticket)
        match news:
            case PartHeld():
                self._hold(save, news)
            case ShareWritten(_, share, records):
                save.working.pop(share, None)
                save.written[share] = records
            case SaveCommitted():
                save.working.clear()
                save.is_durable = save.is_over = True
                return [*self._answer(save), *self._go_on()]
            case SpaceMade():
                save.space = _Space.MADE
            case SaveRemoved():
                return [*self._end(save), *self._go_on()]
            case WorkFailed():
                return [*self._note_failure(save, news), *self._go_on()]
        return self._go_on()

    def begin_world(self, generation: int) -> list[SaveOrder]:
        """Take note that a world saves now: parts that older ones lack never come."""
        self._world = max(self._world, generation)
        self._end_state_writes()
        return self._go_on()

    def lose_host(self, host: str) -> list[SaveOrder]:
        """Take note that a host is gone, with what it held and what it was writing."""
        self._lost.add(host)
        for save in self._saves:
            for share in [s for s, (by, _) in save.working.items() if by == host]:
                del save.working[share]
            shares = range(save.ticket.hosts)
            missing = [save.held.get(share) for share in shares if share not in save.written]
            if not self.is_settling and any(not p or p.host in self._lost for p in missing):
                save.fail(f"host {host} was lost", is_expected=True)
        return self._go_on()

    def settle(self) -> list[SaveOrder]:
        """Take note that no worker lives any more; ``Settled`` follows."""
        self.is_settling = True
        self._end_state_writes()
        return self._go_on()

    def _end_state_writes(self) -> None:
        """Wait for no worker any more that writes from its own state, and may be dead."""
        for save in self._saves:
            if self.is_settling or save.ticket.generation < self._world:
                for part in save.held.values():
                    if not part.is_in_memory:
                        save.working.pop(part.share, None)

    def _save_of(self, ticket: SaveTicket) -> _Save:
        """Return a save, which may be new; one of a host without memory may fail before it is held.

        One that is forgotten comes back without what was held of it, and is answered already.
        """
        save = next((one for one in self._saves if one.ticket == ticket), None)
        if save is None:
            save = _Save(ticket, self._lost)
            self._saves = sorted([*self._saves, save], key=lambda one: one.ticket.attempt)
            old = [one for one in self._saves[:-_REMEMBERED] if not one.is_over]
            self._saves = old + self._saves[-_REMEMBERED:]
        return save

    def _hold(self, save: _Save, part: PartHeld) -> None:
        """Take a part; one that comes late still counts as memory."""
        save.held[part.share] = part
        save.digests |= part.digests
        if not part.is_in_memory:
            save.has_files = True
            save.working[part.share] = part.host, save.space is _Space.MADE
        if part.cursor is not None:
            save.cursor, save.began = part.cursor, part.began
        if len(save.digests) > 1:
            save.fail(
                f"the workers' states differ after step {save.ticket.step}, so it is not saved; "
                "look at the machine's memory"
            )

    def _note_failure(self, save: _Save, failed: WorkFailed) -> list[SaveOrder]:
        """Take note of work that has failed; one that only lacked space is made again."""
        share = _COMMIT if failed.share is None else failed.share
        if share == _COMMIT and save.space is _Space.ASKED:
            save.space = _Space.MADE
            return []
        if share == _COMMIT and save.failure is not None:
            return self._end(save)  # its removal: another writer removes what is left
        _, had_space = save.working.pop(share, ("", save.space is _Space.MADE))
        if failed.is_full and not had_space and save.failure is None:
            save.space = _Space.WANTED if save.space is _Space.ENOUGH else save.space
        else:
            save.fail(failed.reason)
        if share != _COMMIT and self._writer_of(save, share) is None:
            save.fail(failed.reason)  # the next save finds the space that is made now
        return []

    def _end(self, save: _Save) -> list[SaveOrder]:
        """Answer a save that has failed, and of which nothing is left."""
        save.working.clear()
        save.is_over = True
        return self._answer(save)

    def _answer(self, save: _Save) -> list[SaveOrder]:
        if save.ticket.number <= self._answered:
            return []
        self._answered = save.ticket.number
        if save.is_durable:
            return [SaveAnswered(save.ticket, is_durable=True)]
        reason = save.failure or ""
        return [SaveAnswered(save.ticket, False, reason, save.is_expected)]

    def _go_on(self) -> list[SaveOrder]:
        orders = [order for save in self._saves for order in self._orders_for(save)]
        if self.is_settling and all(save.is_over for save in self._saves):
            orders += self._settle_more()
        return orders

    def _may_end(self, save: _Save) -> bool:
        """Return whether each share is written, or will be."""
        shares = range(save.ticket.hosts)
        done = save.written.keys() | save.working.keys()
        return save.cursor is not None and all(
            s in done or self._writer_of(save, s) is not None for s in shares
        )

    def _writer_of(self, save: _Save, share: int) -> str | None:
        """Return who may write a share now: its own host, or another one once no worker lives."""
        if self.is_settling:
            return next(iter(save.holders_of(share)), None)
        own = save.held.get(share)
        return own.host if own is not None and own.host in save.holders_of(share) else None

    def _orders_for(self, save: _Save) -> list[SaveOrder]:
        """Return what is to be done next for a save; it is noted as begun."""
        if save.is_over:
            return []
        is_old = save is not self._saves[-1] or save.ticket.generation < self._world
        if is_old and not self._may_end(save):
            save.fail("a later save or another world has begun", is_expected=True)
        if self.is_settling and not (save.is_in_memory or save.is_written):
            save.fail("its parts are lost", is_expected=True)
        if save.space is _Space.WANTED:
            save.space = _Space.ASKED
            return [MakeSpace(save.ticket)]
        if save.space is _Space.ASKED:
            return []
        if save.failure is not None:
            return self._remove(save)
        orders = self._writes_of(save)
        if not save.working and save.is_written and save.cursor is not None:
            records = tuple(save.written[share] for share in sorted(save.written))
            save.working[_COMMIT] = "", save.space is _Space.MADE
            orders = [CommitSave(save.ticket, records, save.cursor, save.began)]
        return orders

    def _writes_of(self, save: _Save) -> list[SaveOrder]:
        """Let shares be written that are held, and that nobody writes."""
        orders: list[SaveOrder] = []
        for share in range(save.ticket.hosts):
            if share in save.written or share in save.working:
                continue
            writer = self._writer_of(save, share)
            if writer is not None:
                save.has_files = True
                save.working[share] = writer, save.space is _Space.MADE
                orders.append(WriteShare(save.ticket, share, writer))
        return orders

    def _remove(self, save: _Save) -> list[SaveOrder]:
        """Remove what has failed, as soon as nobody writes to it."""
        if save.working:
            return []
        if not save.has_files:
            return self._end(save)
        save.working[_COMMIT] = "", True
        return [RemoveSave(save.ticket)]

    def _settle_more(self) -> list[SaveOrder]:
        """Try the newest save once more that is in memory, and is newer than what is durable."""
        step = None
        for save in reversed(self._saves):
            if save.is_durable:
                step = save.ticket.step
                break
            if save.is_in_memory and not save.is_repeated:
                save.repeat()
                return self._orders_for(save)
        self.is_settling = False
        return [Settled(step)]
