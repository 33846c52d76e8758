"""The state that the checkpoint benchmark saves: the tensors of transformer blocks."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

State: TypeAlias = dict[str, npt.NDArray[Any]]

WIDTH = 1024
_SHAPES = {
    **{f"attention/{name}": (WIDTH, WIDTH) for name in ("query", "key", "value", "output")},
    **{f"attention/{name}_bias": (WIDTH,) for name in ("query", "key", "value", "output")},
    "up/kernel": (WIDTH, 4 * WIDTH),
    "up/bias": (4 * WIDTH,),
    "down/kernel": (4 * WIDTH, WIDTH),
    "down/bias": (WIDTH,),
    **{f"norm_{name}/{part}": (WIDTH,) for name in "ab" for part in ("gamma", "beta")},
}
"""One block: 50 MB, most of it in matrices of 4 and 17 MB, and ten small vectors."""


def make_state(size_bytes: int) -> State:
    """Return seeded random tensors of about ``size_bytes``, whole blocks and at least one."""
    block_bytes = sum(4 * int(np.prod(shape)) for shape in _SHAPES.values())
    random = np.random.default_rng(0)
    return {
        f"block_{block:03}/{name}": random.standard_normal(shape, np.float32)
        for block in range(max(1, round(size_bytes / block_bytes)))
        for name, shape in _SHAPES.items()
    }


def size_of(state: State) -> int:
    """Return the bytes of all tensors."""
    return sum(tensor.nbytes for tensor in state.values())
