"""The steps that are being put into the run directory, by a save or by a drain.

A drain may be of the step that the last save of a job puts there as well: they take turns.
Different steps wait for each other as little as possible, since either disk may hang.
Invariant: room is made while nobody begins a step, and spares what is staged of those in hand.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from holdfast.checkpoint.format.names import StagingName


class StepsInHand:
    """Lets one thread at a time put a step, and none begin while room is made."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._saves: dict[int, StagingName] = {}
        self._is_making_room = False

    @contextlib.contextmanager
    def putting(self, save: StagingName) -> Iterator[None]:
        """Put a step in the block, once no other thread does so."""
        with self._changed:
            self._changed.wait_for(
                lambda: save.step not in self._saves and not self._is_making_room
            )
            self._saves[save.step] = save
        try:
            yield
        finally:
            with self._changed:
                del self._saves[save.step]
                self._changed.notify_all()

    @contextlib.contextmanager
    def making_room(self) -> Iterator[tuple[StagingName, ...]]:
        """Make room in the block; yields the saves in hand, whose staging has to stay."""
        with self._changed:
            self._is_making_room = True
            saves = tuple(self._saves.values())
        try:
            yield saves
        finally:
            with self._changed:
                self._is_making_room = False
                self._changed.notify_all()
