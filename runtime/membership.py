"""Who is in the world: forming it at the start, and again after every death.

Both ways end alike.  A new communicator is only a proposal until everyone in it
has told who it is and all have agreed that everyone has: after an agreement
every survivor holds the same ``World``, or none does and all try again (the
rule of the ULFM tutorial: agree on what a collective has created before using
it).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass

from holdfast.recovery.world import WorkerId, World
from holdfast.runtime.communicator import Communicator, WorldBroken

_CARD = struct.Struct("<qq")
_ALL_WELL = 1


@dataclass(frozen=True, slots=True)
class RepairTimes:
    """When the phases of a repair ended, in monotonic seconds."""

    detected: float
    revoked: float
    shrunk: float
    agreed: float


class Membership:
    """One worker's view of the world and the communicator that spans it."""

    def __init__(
        self, me: WorkerId, world: World, communicator: Communicator, clock: Callable[[], float]
    ) -> None:
        self._me = me
        self._clock = clock
        self.world = world
        self.communicator = communicator
        self.versions: tuple[int, ...] = ()

    @property
    def is_first(self) -> bool:
        """Whether this worker is the one that writes what all know alike."""
        return self.communicator.rank == 0

    @property
    def me(self) -> WorkerId:
        """This worker's id."""
        return self._me

    def join(self, version: int) -> None:
        """Agree on the world of the launch.

        Raises:
            WorldBroken: someone has died; repair.
        """
        present = self._roll_call(self.communicator, version)
        assert tuple(present) == self.world.workers, (present, self.world)

    def repair(self, version: int, on_revoked: Callable[[], None]) -> tuple[float, float, float]:
        """Revoke, shrink and agree; return when each phase ended.

        Args:
            version: number of transactions that this worker has committed.
            on_revoked: called between revoke and shrink (fault injection).

        Raises:
            WorldBroken: someone died meanwhile; repair again.
        """
        self.communicator.revoke()
        revoked = self._clock()
        on_revoked()
        self.communicator = self.communicator.shrink()
        shrunk = self._clock()
        survivors = self._roll_call(self.communicator, version)
        self.world = self.world.shrunk_to(survivors)
        return revoked, shrunk, self._clock()

    def _roll_call(self, communicator: Communicator, version: int) -> list[WorkerId]:
        """Return the ids of all members, in rank order, and note their versions."""
        cards = communicator.allgather_bytes(_CARD.pack(self._me, version))
        if communicator.agree(_ALL_WELL) != _ALL_WELL:
            raise WorldBroken("the new world was not agreed on")
        present = [_CARD.unpack(card) for card in cards]
        self.versions = tuple(found for _, found in present)
        return [WorkerId(worker) for worker, _ in present]
