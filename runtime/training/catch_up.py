"""All workers get the newest state: one routine for starts, resumes and laggards.

The source is the lowest rank among those that have committed most.  If no worker has a
state yet, rank 0 is the source.  It loads the newest valid checkpoint, or keeps the state
that its model was built with.  So disk, network and a fresh start are one path.  A death
anywhere in it is repaired like any other.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from holdfast.checkpoint.format.tensor import Tensors
from holdfast.runtime.exchange.communicator import Communicator
from holdfast.runtime.training.companion import Notes

NO_STATE = -1
"""Version of a worker that holds no state yet."""


@dataclass(frozen=True, slots=True)
class Source:
    """The rank with the newest state, and whether any worker lacks that state."""

    rank: int
    version: int
    is_needed: bool


def find_source(versions: Sequence[int]) -> Source:
    """Return the lowest rank with the largest of ``versions``, which are in rank order."""
    newest = max(versions)
    rank = versions.index(newest)
    return Source(rank, newest, is_needed=newest == NO_STATE or min(versions) < newest)


def share_state(communicator: Communicator, source: int, state: Tensors) -> Tensors:
    """Return the state of rank ``source``, once all of it has arrived; changes nothing.

    Raises:
        WorldBroken: a member died; ``state`` is unchanged.
    """
    received: dict[str, npt.NDArray[np.generic]] = {}
    for name, value in state.items():
        buffer = np.array(value, order="C", copy=True)
        communicator.broadcast(buffer, source)
        received[name] = buffer
    return received


def share_notes(communicator: Communicator, source: int, notes: Notes | None) -> Notes | None:
    """Return the notes of rank ``source``, None if it has none.

    Raises:
        WorldBroken: a member died.
    """
    text = json.dumps(notes).encode()
    size = np.array([len(text)], np.int64)
    communicator.broadcast(size, source)
    buffer = np.empty(int(size[0]), np.uint8)
    if communicator.rank == source:
        buffer[:] = np.frombuffer(text, np.uint8)
    communicator.broadcast(buffer, source)
    shared: Notes | None = json.loads(buffer.tobytes())
    return shared
