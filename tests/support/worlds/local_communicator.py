"""The communicator of a worker that is alone."""

from __future__ import annotations

from typing import NoReturn

from holdfast.runtime.exchange.membership import Buffer


class LocalCommunicator:
    """A world of one worker, which never breaks."""

    rank = 0
    size = 1

    def flight(self) -> _LocalFlight:
        """Return an empty set of messages."""
        return _LocalFlight()

    def allgather_unchecked(self, mine: Buffer, everyones: Buffer) -> None:
        """Copy ``mine``."""
        everyones.reshape(-1)[...] = mine.reshape(-1)

    def allgather_bytes(self, payload: bytes) -> list[bytes]:
        """Return the one payload."""
        return [payload]

    def broadcast(self, array: Buffer, source: int) -> None:
        """Do nothing: the only rank has it."""

    def agree(self, flags: int) -> int:
        """Return ``flags``."""
        return flags

    def revoke(self) -> None:
        """Do nothing: no exchange is pending."""

    def shrink(self) -> LocalCommunicator:
        """Return this world: it has no other member that could have died."""
        return self

    def leave(self) -> None:
        """Return at once."""


class _LocalFlight:
    """A flight without peers: posting a message is a programming error."""

    def __enter__(self) -> _LocalFlight:
        """Begin with nothing in the air."""
        return self

    def send(self, array: Buffer, peer: int, tag: int) -> NoReturn:
        """Refuse: there is no peer."""
        raise AssertionError(f"rank {peer} does not exist in a world of one worker")

    def receive(self, array: Buffer, peer: int, tag: int) -> NoReturn:
        """Refuse: there is no peer."""
        raise AssertionError(f"rank {peer} does not exist in a world of one worker")

    def wait(self, ticket: int) -> None:
        """Refuse: nothing was posted."""
        raise AssertionError(f"no receive has the ticket {ticket}")

    def __exit__(self, *_error: object) -> None:
        """End: nothing is in the air."""
