"""All workers get the newest state: one routine for starts, resumes and laggards.

The source is the lowest rank among those that have committed most.  If no worker has a
state yet, rank 0 is the source.  It loads the newest valid checkpoint, or keeps the state
that its model was built with.  So disk, network and a fresh start are one path.  A death
anywhere in it is repaired like any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from holdfast.checkpoint.format.tensor import Tensors
from holdfast.recovery.cursor import Cursor
from holdfast.runtime.exchange.communicator import Communicator
from holdfast.runtime.model.replica import Replica

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


def whole_state(replica: Replica, cursor: Cursor) -> dict[str, npt.NDArray[np.generic]]:
    """Return all tensors of a worker's state, the cursor's among them, in order of names.

    The arrays may alias the live state.
    """
    tensors = dict(replica.state()) | cursor.tensors()
    return {name: tensors[name] for name in sorted(tensors)}


def load_state(replica: Replica, tensors: Tensors) -> Cursor:
    """Load a whole state and return its cursor."""
    replica.load({name: value for name, value in tensors.items() if not _is_cursor(name)})
    return Cursor.from_tensors(tensors)


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


def _is_cursor(name: str) -> bool:
    return name.startswith("cursor/")
