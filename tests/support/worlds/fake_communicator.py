"""A message-passing library in one process, for tests: ranks are threads, deaths are exact.

It keeps the communicator's contract as badly as MPI may.  A seeded generator draws every
choice of a library.  A message that has arrived may or may not be readable after its
sender's death or after a revoke.  A send may or may not wait for its receiver.
Collectives are made of single messages.  So a member that dies within one leaves some
peers served and others not, and there protocols go wrong.

Cases that MPI leaves undefined are errors here.  Examples are members that call different
agreements (an ``agree`` that meets a ``shrink``), a buffer that changes in flight, and a
message of another size or type than its receive.
"""

from __future__ import annotations

import functools
import operator
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

import numpy as np
from simulated_threads import Killed, Turns

from holdfast.runtime.exchange.membership import Buffer, WorldBroken

_Result = TypeVar("_Result")
_Wire: TypeAlias = tuple[int, int, object]
"""Sender, receiver and tag: messages on one wire arrive in the order of their posting."""


@dataclass(slots=True)
class _Message:
    """The sent contents, and the buffer that must not change meanwhile."""

    buffer: Buffer
    content: Buffer
    needs_receiver: bool
    was_taken: bool = False


@dataclass(slots=True)
class _Meeting:
    """One agreement: every member calls it, and all get the same outcome."""

    kind: str
    votes: dict[int, int] = field(default_factory=dict)
    dead: frozenset[int] | None = None
    """Members that were gone at the decision; None before the decision."""
    successor: _Group | None = None

    @property
    def flags(self) -> int:
        """The bitwise and of all votes."""
        return functools.reduce(operator.and_, self.votes.values())


@dataclass(slots=True)
class _Group:
    """The common state of the members of one communicator."""

    members: tuple[int, ...]
    is_revoked: bool = False
    informed: set[int] = field(default_factory=set)
    """Members that the revoke has reached: no exchange of theirs succeeds any more."""
    wires: dict[_Wire, list[_Message]] = field(default_factory=dict)
    received: Counter[_Wire] = field(default_factory=Counter)
    meetings: list[_Meeting] = field(default_factory=list)
    attended: Counter[int] = field(default_factory=Counter)


class FakeFlight:
    """Messages of one exchange, each waited for by itself."""

    def __init__(self, communicator: FakeCommunicator) -> None:
        self._communicator = communicator
        self._endings: list[Callable[[], None] | None] = []
        self._broken: WorldBroken | None = None

    def __enter__(self) -> FakeFlight:
        return self

    def send(self, array: Buffer, peer: int, tag: object) -> int:
        message = self._guarded(lambda: self._communicator.post(array, peer, tag))
        self._endings.append(lambda: self._communicator.end_send(message, peer))
        return len(self._endings) - 1

    def receive(self, array: Buffer, peer: int, tag: object) -> int:
        assert array.flags.c_contiguous, "MPI receives into contiguous memory"
        place = self._communicator.place_of_next(peer, tag)

        def end() -> None:
            content = self._communicator.take(peer, tag, place)
            assert (content.size, content.dtype) == (array.size, array.dtype), "another message"
            array[...] = content.reshape(array.shape)

        self._endings.append(end)
        return len(self._endings) - 1

    def wait(self, ticket: int) -> None:
        self._end(ticket)
        if self._broken is not None:
            raise self._broken

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Wait for every message to its own end, then raise if any of them failed."""
        if isinstance(error, Killed):
            return
        if error is not None and self._broken is None:
            self._communicator.revoke()
        for ticket in range(len(self._endings)):
            self._end(ticket)
        if error is None and self._broken is not None:
            raise self._broken

    def _end(self, ticket: int) -> None:
        end, self._endings[ticket] = self._endings[ticket], None
        if end is None:
            return
        try:
            self._guarded(end)
        except WorldBroken as error:
            self._broken = self._broken or error

    def _guarded(self, call: Callable[[], _Result]) -> _Result:
        """Call; the first failure revokes, as in the real communicator."""
        try:
            return call()
        except WorldBroken as error:
            if self._broken is None:
                self._broken = error
                self._communicator.revoke()
            raise


class FakeCommunicator:
    """One member's communicator; made by ``run_world`` and by ``shrink``."""

    def __init__(self, turns: Turns[object], group: _Group, member: int) -> None:
        self._turns = turns
        self._group = group
        self._member = member

    @property
    def rank(self) -> int:
        return self._group.members.index(self._member)

    @property
    def size(self) -> int:
        return len(self._group.members)

    @property
    def turns(self) -> Turns[object]:
        """The threads behind the ranks, to kill one."""
        return self._turns

    def die(self) -> None:
        """Kill this member; does not return."""
        self._turns.kill(self._member)
        self._turns.pause()

    def flight(self) -> FakeFlight:
        return FakeFlight(self)

    def allgather_unchecked(self, mine: Buffer, everyones: Buffer) -> None:
        pieces = self._collect(mine, "allgather_unchecked")
        everyones.reshape(-1)[...] = np.concatenate([piece.reshape(-1) for piece in pieces])

    def allgather_bytes(self, payload: bytes) -> list[bytes]:
        pieces = self._collect(np.frombuffer(payload, np.uint8), "allgather_bytes")
        return [piece.tobytes() for piece in pieces]

    def broadcast(self, array: Buffer, source: int) -> None:
        flat = array.reshape(-1).view(np.uint8)
        with self.flight() as flight:
            if self.rank == source:
                for peer in self._peers():
                    flight.send(flat, peer, "broadcast")
            else:
                flight.receive(flat, source, "broadcast")

    def agree(self, flags: int) -> int:
        meeting = self._meet("agree", flags)
        if meeting.dead:
            raise WorldBroken(f"members {sorted(meeting.dead)} are dead")
        return meeting.flags

    def revoke(self) -> None:
        self._turns.pause()
        self._group.is_revoked = True
        self._group.informed.add(self._member)

    def shrink(self) -> FakeCommunicator:
        meeting = self._meet("shrink", 1)
        if meeting.successor is None:
            assert meeting.dead is not None
            survivors = (m for m in self._group.members if m not in meeting.dead)
            meeting.successor = _Group(tuple(survivors))
        return FakeCommunicator(self._turns, meeting.successor, self._member)

    def leave(self) -> None:
        self._meet("leave", 1)

    # The calls of a flight.

    def post(self, array: Buffer, peer: int, tag: object) -> _Message:
        """Put a message on its wire."""
        assert array.flags.c_contiguous, "MPI sends contiguous memory"
        self._turns.pause()
        if self._group.is_revoked and self._hears_of_trouble():
            raise WorldBroken("the world was revoked")
        message = _Message(array, array.copy(), needs_receiver=self._turns.coin())
        wire = (self._member, self._group.members[peer], tag)
        self._group.wires.setdefault(wire, []).append(message)
        return message

    def end_send(self, message: _Message, peer: int) -> None:
        """Wait until the buffer of a sent message may change again."""
        if message.needs_receiver:
            self._turns.wait_until(
                lambda: message.was_taken or self._is_lost(peer), f"rank {peer} to receive"
            )
            if not message.was_taken:
                raise WorldBroken(f"rank {peer} is dead, or the world was revoked")
        assert message.buffer.tobytes() == message.content.tobytes(), "changed in flight"

    def place_of_next(self, peer: int, tag: object) -> int:
        """Return the index, on its wire, of the message for the next receive."""
        wire = (self._group.members[peer], self._member, tag)
        self._group.received[wire] += 1
        return self._group.received[wire] - 1

    def take(self, peer: int, tag: object, place: int) -> Buffer:
        """Wait for a message and return its content."""
        wire = (self._group.members[peer], self._member, tag)

        def has_arrived() -> bool:
            return len(self._group.wires.get(wire, ())) > place

        self._turns.wait_until(
            lambda: has_arrived() or self._is_lost(peer), f"{tag} from rank {peer}"
        )
        if not has_arrived() or (self._is_lost(peer) and self._hears_of_trouble()):
            raise WorldBroken(f"rank {peer} is dead, or the world was revoked")
        message = self._group.wires[wire][place]
        message.was_taken = True
        return message.content

    def _is_lost(self, peer: int) -> bool:
        return self._group.is_revoked or self._turns.is_gone(self._group.members[peer])

    def _hears_of_trouble(self) -> bool:
        """Return whether news of a revoke or a death arrive before the message."""
        if self._turns.coin() and self._group.is_revoked:
            self._group.informed.add(self._member)
        return self._member in self._group.informed or self._turns.coin()

    def _peers(self) -> list[int]:
        return [peer for peer in range(self.size) if peer != self.rank]

    def _collect(self, mine: Buffer, tag: str) -> list[Buffer]:
        """Return the ``mine`` of every rank, in rank order."""
        pieces = [mine] * self.size
        with self.flight() as flight:
            for peer in self._peers():
                flight.send(mine, peer, tag)
            for peer in self._peers():
                place = self.place_of_next(peer, tag)
                pieces[peer] = flight._guarded(functools.partial(self.take, peer, tag, place))
        return pieces

    def _meet(self, kind: str, flags: int) -> _Meeting:
        """Take part in the group's next agreement; return it decided."""
        turns = self._turns
        turns.pause()
        group, number = self._group, self._group.attended[self._member]
        group.attended[self._member] += 1
        if number == len(group.meetings):
            group.meetings.append(_Meeting(kind))
        meeting = group.meetings[number]
        assert meeting.kind == kind, f"rank {self.rank} calls {kind}, another {meeting.kind}"
        meeting.votes[self._member] = flags

        def is_complete() -> bool:
            return meeting.dead is not None or all(
                member in meeting.votes or turns.is_gone(member) for member in group.members
            )

        turns.wait_until(is_complete, f"everyone to {kind}")
        if meeting.dead is None:
            gone = [m for m in group.members if turns.is_gone(m)]
            # a member that has voted and died since may or may not count as dead
            meeting.dead = frozenset(m for m in gone if m not in meeting.votes or turns.coin())
        turns.pause()
        return meeting


def run_world(
    size: int,
    program: Callable[[FakeCommunicator], _Result],
    *,
    seed: int = 0,
    deaths: Mapping[int, int] | None = None,
) -> list[_Result | None]:
    """Run ``program`` on every rank of a world; return the results, None for the dead.

    ``deaths`` names ranks that die, with the moment at which they do: each call
    of the communicator is one or several moments, counted from 1.

    Raises:
        Deadlock: every rank waits for another one.
        BaseException: the first error that a program ended with.
    """
    turns: Turns[object] = Turns(size, seed=seed, deaths=deaths)
    group = _Group(tuple(range(size)))
    programs = [
        functools.partial(program, FakeCommunicator(turns, group, member)) for member in range(size)
    ]
    return turns.run(programs)  # type: ignore[return-value]
