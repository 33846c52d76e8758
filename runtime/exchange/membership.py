"""The world and its messages: it is formed at the start, and again after every death.

The trainer needs a ``Communicator`` of a message-passing library.  There is one failure,
``WorldBroken``, for every error of the library: an exchange either succeeds or the world that it
ran in must be repaired.

Both ways end alike.  A new communicator is only a proposal.  Every member tells its id,
and then all agree that every id has arrived.  After the agreement every survivor holds the
same ``World``, or none does and all try again.  This is the rule of the ULFM tutorial:
agree on the result of a collective before using it.

After a break there may be a world of survivors on each side of a cut.  So the first worker asks the
head for a number, and without one the world is none (`recovery.world`).

The same holds for every exchange outside a step.  A death breaks it for some members and
not for others.  If those went different ways, one would call ``agree`` while another calls
``shrink``, and both would wait for ever.  So an exchange is made ``together``: it ends
with a vote, and members whose exchange broke take part in it as well.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from holdfast.recovery.step import REFUSAL
from holdfast.recovery.world import REFUSED, WorkerId, World

_CARD = struct.Struct("<qq")
_ALL_WELL = 1

_Result = TypeVar("_Result")


Buffer: TypeAlias = npt.NDArray[Any]
"""Memory that is sent, or received into."""


class WorldBroken(Exception):
    """A member of the world is dead, or the communicator was revoked because of one."""


class Flight(Protocol):
    """Messages in the air; leaving the ``with`` block waits for every one of them."""

    def send(self, array: Buffer, peer: int, tag: int) -> int:
        """Post ``array`` for ``peer`` and return its ticket.

        It is contiguous, and unchanged until the flight has ended or its ticket was waited for.
        """

    def receive(self, array: Buffer, peer: int, tag: int) -> int:
        """Post a receive into ``array`` and return its ticket.

        If the flight breaks, a peer may write there as long as this process lives.
        """

    def wait(self, ticket: int) -> None:
        """Wait until the receive with ``ticket`` has filled its array, or the send has left it."""

    def __enter__(self) -> Flight:
        """Begin."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Wait for every message to end, with success or an error."""


class Communicator(Protocol):
    """The ranks of one world, and their exchanges."""

    @property
    def rank(self) -> int:
        """Index of this worker in the current world."""

    @property
    def size(self) -> int:
        """Number of workers of the current world."""

    def flight(self) -> Flight:
        """Return a new set of messages between the ranks."""

    def allgather_unchecked(self, mine: Buffer, everyones: Buffer) -> None:
        """Fill ``everyones`` with the equally long ``mine`` of all ranks, in rank order.

        Faster than ``allgather_bytes``, and less sure: when a member dies meanwhile, some of
        it may be what it was before.  Nothing may be trusted before a vote has passed.
        """

    def allgather_bytes(self, payload: bytes) -> list[bytes]:
        """Return the payloads of all ranks, in rank order."""

    def broadcast(self, array: Buffer, source: int) -> None:
        """Copy the ``array`` of rank ``source`` into the ``array`` of every rank.

        If the world breaks, a peer may write there as long as this process lives.
        """

    def agree(self, flags: int) -> int:
        """Return the bitwise and of all ranks' flags; raise on all ranks alike."""

    def revoke(self) -> None:
        """Make every pending and future exchange of this world fail, on all ranks."""

    def shrink(self) -> Communicator:
        """Return a communicator of the survivors, in the order of their old ranks."""

    def leave(self) -> None:
        """Return when every survivor has called this; the process may then exit."""


class Membership:
    """One worker's view of the world and the communicator that spans it."""

    def __init__(
        self,
        me: WorkerId,
        world: World,
        communicator: Communicator,
        clock: Callable[[], float],
        host_of: Mapping[WorkerId, str] = MappingProxyType({}),
        ask_head: Callable[[World], int] = lambda world: world.generation,
    ) -> None:
        """Begin with the world of a launch; ``host_of`` names hosts, and is empty if there is one.

        A worker never moves, so survivors keep the names that the launch began with.  ``ask_head``
        returns the number of a world of survivors, or ``REFUSED``.
        """
        self.me = me
        self._clock = clock
        self._ask_head = ask_head
        self.host_of = host_of
        self.world = world
        self.communicator = communicator
        self.versions: tuple[int, ...] = ()

    @property
    def is_first(self) -> bool:
        """Whether this worker is rank 0, which writes on behalf of all."""
        return self.communicator.rank == 0

    @property
    def hosts(self) -> tuple[str, ...]:
        """The name of each member's host, in rank order."""
        return tuple(self.host_of.get(worker, "") for worker in self.world.workers)

    def join(self, version: int) -> None:
        """Agree on the world of the launch.

        Raises:
            WorldBroken: a member has died; repair.
        """
        present = self._roll_call(version)
        assert tuple(present) == self.world.workers, (present, self.world)

    def repair(self, version: int, on_revoked: Callable[[], None]) -> tuple[float, float, float]:
        """Revoke, shrink, agree and ask; return the end of each phase, in monotonic seconds.

        Args:
            version: number of transactions that this worker has committed.
            on_revoked: called between revoke and shrink (fault injection).

        Raises:
            WorldBroken: a member died meanwhile, or another world goes on; repair again.
        """
        self.communicator.revoke()
        revoked = self._clock()
        on_revoked()
        self.communicator = self.communicator.shrink()
        shrunk = self._clock()
        survivors = self._roll_call(version)
        # The old communicator is not freed: each death of a launch leaves one, and no more.
        self.world = self._named(self.world.shrunk_to(survivors))
        return revoked, shrunk, self._clock()

    def together(self, exchange: Callable[[], _Result]) -> _Result:
        """Return the result of ``exchange``, after an agreement that all members succeeded.

        All members call this at the same point.

        Raises:
            WorldBroken: the exchange broke for some member; raised on all alike.
        """
        try:
            result = exchange()
        except WorldBroken:
            self.communicator.agree(REFUSAL)  # peers may have finished and wait for this vote
            raise
        if self.communicator.agree(_ALL_WELL) != _ALL_WELL:
            raise WorldBroken("the exchange of a peer failed")
        return result

    def agree_all(self, can: bool) -> bool:  # noqa: FBT001  (a vote is a yes or a no)
        """Return whether all members say yes.  Called by all at the same point.

        Raises:
            WorldBroken: a member died; raised on all alike.
        """
        return bool(self.communicator.agree(_ALL_WELL if can else REFUSAL))

    def _named(self, world: World) -> World:
        """Return a world of survivors with the number that the head gives it."""
        number = np.full(1, REFUSED, np.int64)
        if self.is_first:
            number[0] = self._ask_head(world)
        self.together(lambda: self.communicator.broadcast(number, 0))
        if number[0] == REFUSED:
            raise WorldBroken("the head has named another world")
        return replace(world, generation=int(number[0]))

    def _roll_call(self, version: int) -> list[WorkerId]:
        """Return the ids of all members, in rank order, and note their versions."""
        card = _CARD.pack(self.me, version)
        cards = self.together(lambda: self.communicator.allgather_bytes(card))
        present = [_CARD.unpack(card) for card in cards]
        self.versions = tuple(found for _, found in present)
        return [WorkerId(worker) for worker, _ in present]
