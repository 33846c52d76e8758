"""Reading a step back: whole or not at all, from the newest one that verifies."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest
from fake_filesystem import FakeFileSystem
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from whole_save import save

from holdfast.checkpoint.errors import (
    TRANSIENT,
    CheckpointInvalid,
    CheckpointUnreadable,
    StorageFailed,
)
from holdfast.checkpoint.filesystem import FileSystem
from holdfast.checkpoint.manifest import Header
from holdfast.checkpoint.reader import StateReader, compare_specs, restore, restore_newest
from holdfast.checkpoint.store import CheckpointStore
from holdfast.checkpoint.tensor import Tensor, TensorSpec, state_sha256

State = dict[str, Tensor]

arrays = hnp.arrays(
    st.sampled_from(["f4", "f8", "f2", "i8", "i4", "u8", "?", ">f4", ">i8"]),
    hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=12),
    elements=st.just(1),
    fill=st.just(0),
)
states = st.dictionaries(
    st.text(max_size=12).filter(lambda name: name.isprintable()), arrays, max_size=6
)

A = TensorSpec("a", "float32", (3, 4))
B = TensorSpec("b", "int64", ())


@pytest.mark.parametrize("damage", ["none", "of the file", "of the image"])
def test_shard_is_read_from_memory_or_where_that_is_stale_from_its_file(
    store: CheckpointStore,
    state_of: Callable[[int], State],
    same_bytes: Callable[[State, State], bool],
    damage: str,
) -> None:
    state = state_of(2)
    save(store, state, header=Header("run", 4, 30), writers=2, cursor={"step": 30})
    reader = StateReader(store, 30)
    (path,) = store.directory.glob("step-*/*00001*.h5")
    image = bytearray(path.read_bytes())
    if damage == "of the file":
        path.write_bytes(bytes(len(image)))
    elif damage == "of the image":
        image[-1] ^= 1

    reader.allocate()
    reader.read(range(2), {1: memoryview(image)})

    assert same_bytes(reader.state, state)


@pytest.mark.parametrize("writers", [1, 2, 3, 5, 8])
def test_state_survives_any_number_of_writers(
    store: CheckpointStore,
    writers: int,
    state_of: Callable[[int], State],
    same_bytes: Callable[[State, State], bool],
) -> None:
    state = state_of(writers)
    cursor = {"step": 30, "epoch": 2}

    save(store, state, header=Header("run", 4, 30), writers=writers, cursor=cursor)
    restored = restore(store, 30)

    assert same_bytes(restored.state, state)
    assert state_sha256(restored.state) == state_sha256(state)
    assert restored.manifest.cursor == cursor
    assert restored.manifest.writers == writers


@given(states, st.integers(1, 6))
def test_random_states_survive(state: State, writers: int) -> None:
    store = CheckpointStore(Path("/run/job"), FakeFileSystem())

    save(store, state, header=Header("run", 1, 1), writers=writers)
    restored = restore(store, 1)

    assert state_sha256(restored.state) == state_sha256(state)


def test_restored_arrays_are_native_writable_and_their_own(store: CheckpointStore) -> None:
    state: State = {"a": np.arange(5, dtype=">f4"), "b": np.arange(5, dtype=np.float32)}
    save(store, state, header=Header("run", 1, 1))

    restored = restore(store, 1).state

    assert all(tensor.dtype == np.dtype(np.float32) for tensor in restored.values())
    assert all(tensor.flags.writeable and tensor.flags.c_contiguous for tensor in restored.values())
    assert not np.shares_memory(restored["a"], restored["b"])


def test_steps_of_another_run_are_rejected(store: CheckpointStore) -> None:
    for run_id, step in (("mine", 10), ("theirs", 20)):
        save(store, {"a": np.array(step)}, header=Header(run_id, 1, step))

    restored, rejections = restore_newest(store, run_id="mine")

    assert restored is not None
    assert restored.manifest.step == 10
    assert [(r.step, r.reason) for r in rejections] == [
        (20, "it belongs to run theirs, not to mine")
    ]


def test_unreadable_step_is_told_from_a_damaged_one(tmp_path: Path) -> None:
    filesystem = FakeFileSystem()
    store = CheckpointStore(Path("/run/job"), filesystem)
    save(store, {"a": np.zeros(3)}, header=Header("run", 1, 1))
    filesystem.fail_at(len(filesystem.calls), 5)

    with pytest.raises(CheckpointUnreadable, match=r"\(EIO\)"):
        restore(store, 1)


@pytest.mark.parametrize("where", ["scan.empty_tensor", "scan.Digest"])
def test_step_that_there_is_no_memory_for_is_not_invalid(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    save(store, {"a": np.zeros(3)}, header=Header("run", 1, 1))

    def fail(*_: object) -> NoReturn:
        raise MemoryError

    monkeypatch.setattr(f"holdfast.checkpoint.{where}", fail)

    with pytest.raises(CheckpointUnreadable, match=r"no memory for (tensor 'a'|shard 0)") as error:
        restore(store, 1)
    assert error.value.errno == errno.ENOMEM


def test_unlistable_store_is_an_error_not_an_empty_one() -> None:
    """Taking it for empty would start the job again from nothing."""
    filesystem = FakeFileSystem()
    filesystem.fail_at(0, 5)

    with pytest.raises(StorageFailed):
        restore_newest(CheckpointStore(Path("/run/job"), filesystem))


@pytest.mark.parametrize(
    ("expected", "found", "difference"),
    [
        ([A, B], [B, A], None),
        ([A, B], [A], "missing 'b' int64[]"),
        ([A], [A, B], "extra 'b' int64[]"),
        (
            [A],
            [TensorSpec("a", "float32", (4, 3))],
            "'a' float32[3, 4] is 'a' float32[4, 3] there",
        ),
        (
            [TensorSpec(f"t{i}", "bool", ()) for i in range(7)],
            [],
            "missing 't0' bool[]; missing 't1' bool[]; missing 't2' bool[]; "
            "missing 't3' bool[]; missing 't4' bool[]; and 2 more",
        ),
    ],
)
def test_differences_of_tensors_are_one_line(
    expected: list[TensorSpec], found: list[TensorSpec], difference: str | None
) -> None:
    assert compare_specs(expected, found) == difference


@pytest.fixture
def step_path(store: CheckpointStore) -> Path:
    state: dict[str, Tensor] = {"a": np.arange(5000, dtype=np.float32), "b": np.arange(3)}
    return save(store, state, header=Header("run", 1, 1), writers=2)


def reason(store: CheckpointStore) -> str:
    with pytest.raises(CheckpointInvalid) as refusal:
        restore(store, 1)
    return refusal.value.reason


def test_reason_names_tensor_elements_and_shard(store: CheckpointStore, step_path: Path) -> None:
    manifest = store.scan(1).manifest()
    piece = manifest.tensors[0].pieces[1]
    path = sorted(step_path.glob("shard*"))[piece.shard]
    data = bytearray(path.read_bytes())
    data[piece.offset] ^= 1
    path.write_bytes(data)

    assert reason(store) == (
        f"elements {piece.start} to {piece.stop} of tensor 'a' in shard 1 have a wrong digest"
    )


def test_wrong_size_is_found_before_anything_is_read(
    store: CheckpointStore, step_path: Path
) -> None:
    path = sorted(step_path.glob("shard*"))[1]
    size = path.stat().st_size
    os.truncate(path, size - 1)

    assert reason(store) == f"shard 1 has {size - 1} of {size} bytes"


def test_enormous_manifest_is_not_read(store: CheckpointStore, step_path: Path) -> None:
    os.truncate(step_path / "MANIFEST.json", 2**40)

    assert reason(store) == f"the manifest has {2**40} bytes"


class Remembering(FileSystem):
    """A client that remembers for a while that a name is missing; it remembers no listing."""

    def __init__(self, root: Path, missing: str) -> None:
        super().__init__(root)
        self.missing = missing

    def open_read(self, path: Path) -> int:
        if self.missing in path.parts:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        return super().open_read(path)

    def list(self, path: Path) -> tuple[str, ...]:
        if self.missing in path.parts:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        return super().list(path)


@pytest.mark.parametrize("name", ["MANIFEST.json", "shard-00001-of-00002.h5", "step-000000000001"])
def test_name_that_is_listed_and_not_found_may_be_found_later(
    store: CheckpointStore, step_path: Path, name: str
) -> None:
    """It is not missing, so the step is not damaged."""
    files = Remembering(store.directory.parent, name)
    late = CheckpointStore(store.directory.parent, files)

    with pytest.raises(CheckpointUnreadable, match=f"{name}.* is listed, and yet not found") as now:
        restore(late, 1)
    files.missing = ""

    assert now.value.errno in TRANSIENT
    assert restore(late, 1).manifest.step == 1


def test_renamed_step_is_refused_as_another_one(store: CheckpointStore, step_path: Path) -> None:
    step_path.rename(step_path.with_name("step-000000000300"))

    with pytest.raises(CheckpointInvalid, match="its manifest is that of step 1"):
        restore(store, 300)
