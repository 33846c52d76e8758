"""How long a snapshot stops the training, against copying the same tensors."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from checkpoint_memory import SharedMemory
from checkpoint_state import State

from holdfast.checkpoint.header import Header
from holdfast.checkpoint.image import ShardImage
from holdfast.checkpoint.layout import ShardLayout, specs_of

COPIES, FLAT, OURS = "np.copyto, a tensor", "np.copyto, all at once", "holdfast snapshot"


@dataclass(frozen=True, slots=True)
class Stalls:
    """Seconds of each way to copy the state, one entry a round."""

    seconds: dict[str, list[float]]

    @property
    def copies(self) -> list[float]:
        """Seconds of copying tensor by tensor."""
        return self.seconds[COPIES]

    @property
    def ours(self) -> list[float]:
        """Seconds of copying and digesting."""
        return self.seconds[OURS]


def measure_stalls(state: State, rounds: int) -> Stalls:
    """Time all ways in turn, each into shared memory that was touched before.

    All at once is the state as one array: glibc leaves the cache out for copies of more than
    three quarters of the cache's size, and a state of many tensors has none so large.
    """
    image = ShardImage(ShardLayout(specs_of(state), 1), 0, "bench")
    with SharedMemory(image.size) as memory:
        return Stalls(_time_in_turn(_copies(state, image, memory.buffer), rounds))


def _copies(state: State, image: ShardImage, buffer: memoryview) -> dict[str, Callable[[], object]]:
    target = np.frombuffer(buffer, np.uint8)
    flat = np.concatenate([tensor.reshape(-1).view(np.uint8) for tensor in state.values()])
    return {
        COPIES: lambda: _copy_each(state, target),
        FLAT: lambda: np.copyto(target[: flat.size], flat),
        OURS: lambda: image.fill(buffer, state, Header("bench", 1, 1)),
    }


def _copy_each(state: State, target: np.ndarray) -> None:
    position = 0
    for tensor in state.values():
        stop = position + tensor.nbytes
        np.copyto(target[position:stop].view(tensor.dtype), tensor.reshape(-1))
        position = stop


def _time_in_turn(calls: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(-1, rounds):
        for name in calls if turn % 2 else reversed(calls):
            begin = time.perf_counter()
            calls[name]()
            if turn >= 0:
                seconds[name].append(time.perf_counter() - begin)
    return seconds
