"""The protocol of a message-passing library, as the trainer needs it.

There is one failure, ``WorldBroken``, for every error of the library: an exchange either
succeeds or the world that it ran in must be repaired.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any, Protocol, TypeAlias

import numpy.typing as npt

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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
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
