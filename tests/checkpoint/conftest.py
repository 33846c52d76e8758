"""States and stores that the tests of the checkpoint layer share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from whole_save import is_same

from holdfast.checkpoint import disk as disk_module
from holdfast.checkpoint.store import CheckpointStore
from holdfast.checkpoint.tensor import Tensor

State = dict[str, Tensor]

DTYPES = ("float32", "float64", "float16", "int64", "int32", "uint64", "bool")


def make_state(seed: int) -> State:
    """Return a state of every dtype and of every awkward name and shape, about 100 KB."""
    random = np.random.default_rng(seed)
    state: State = {
        f"layer {i}/{dtype}": random.integers(0, 256, (7 + seed % 3, 11, i + 1)).astype(dtype)
        for i, dtype in enumerate(DTYPES)
    }
    state["weights"] = random.normal(size=(123, 67)).astype(np.float32)
    state["weights/of a name that goes on"] = random.normal(size=4097).astype(np.float32)
    state["half"] = random.normal(size=1500).astype(ml_dtypes.bfloat16)
    state["gewöhnlich/ümläut/東京"] = random.normal(size=(3, 5))
    state["../../etc/./passwd"] = np.arange(17, dtype=np.int32)
    state["."] = np.array(seed, np.int64)
    state["//"] = np.array(0.5, np.float16)
    state["%2E"] = np.array([True, False, True])
    state["empty"] = np.zeros((0, 3), np.float32)
    state["none of many"] = np.zeros((4, 0, 2), np.int64)
    return state


@pytest.fixture
def state_of() -> Callable[[int], State]:
    return make_state


@pytest.fixture
def same_bytes() -> Callable[[State, State], bool]:
    return is_same


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(tmp_path / "run")


@pytest.fixture
def early_writeback(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let shards be written back early though they are small."""
    monkeypatch.setattr(disk_module, "_BATCH_BYTES", 8192)
