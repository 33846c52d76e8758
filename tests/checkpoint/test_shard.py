"""A shard is an ordinary HDF5 file whose data HDF5 never sees."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.checkpoint.errors import StateUnsupported
from holdfast.checkpoint.image import (
    dataset_paths,
    lay_out_shard,
    no_plugins,
)
from holdfast.checkpoint.manifest import Header, ShardRecord
from holdfast.checkpoint.names import shard_name
from holdfast.checkpoint.store import CheckpointStore
from holdfast.checkpoint.tensor import ShardLayout, Tensor, Tensors, TensorSpec, specs_of

HEADER = Header("run of ümläut", 7, 30)

STATE_HEADER = Header("run", 1, 30)
STATE: dict[str, Tensor] = {
    "a": np.arange(9000, dtype=np.float32).reshape(90, 100),
    "b": np.arange(7, dtype=np.int64),
    "empty": np.zeros((0, 2)),
}

NAMES = st.sets(st.text("a./%\0é 2E5", max_size=8), max_size=12)

VARIABLE = "HDF5_PLUGIN_PRELOAD"


def written(store: CheckpointStore, state: dict[str, Tensor], writers: int) -> list[Path]:
    layout = ShardLayout(specs_of(state), writers)
    staging = store.staging(30, 7, 1)
    for writer in range(writers):
        staging.write_shard(state, layout, writer, HEADER)
    return sorted(staging.path.iterdir())


def datasets(path: Path) -> dict[str, h5py.Dataset]:
    """Return name -> (values, attributes) of all datasets, read by plain h5py."""
    found = {}
    with h5py.File(path) as file:

        def visit(_: str, item: object) -> None:
            if isinstance(item, h5py.Dataset) and "name" in item.attrs:
                found[item.attrs["name"].decode()] = (item[()], dict(item.attrs), item.name)

        file.visititems(visit)
    return found


def test_single_shard_shows_every_tensor_to_plain_h5py(
    store: CheckpointStore, state_of: Callable[[int], dict[str, Tensor]]
) -> None:
    state = state_of(1)

    (path,) = written(store, state, 1)

    found = datasets(path)
    assert found.keys() == state.keys()
    for name, tensor in state.items():
        values, attributes, _ = found[name]
        assert np.asarray(values).tobytes() == tensor.tobytes(), name
        assert np.shape(values) == tensor.shape
        assert attributes["dtype"].decode() == tensor.dtype.name


def test_cut_tensors_are_rows_of_elements_with_their_place(store: CheckpointStore) -> None:
    state: dict[str, Tensor] = {"kernel": np.arange(9000, dtype=np.float32).reshape(90, 100)}

    paths = written(store, state, 3)

    parts = []
    for writer, path in enumerate(paths):
        values, attributes, _ = datasets(path)["kernel"]
        assert attributes["shape"].tolist() == [90, 100]
        assert attributes["stop"] - attributes["start"] == len(values)
        parts.append(values)
        with h5py.File(path) as file:
            assert file.attrs["writer"] == writer
    assert np.concatenate(parts).tobytes() == state["kernel"].tobytes()


def test_shard_says_which_save_it_belongs_to(store: CheckpointStore) -> None:
    (path,) = written(store, {"a": np.zeros(3)}, 1)

    with h5py.File(path) as file:
        found = dict(file.attrs)
        mark = file["%save"]
        assert mark.attrs["fields"] == b"generation step"
        assert mark[()].tolist() == [7, 30]

    assert found.pop("run_id").decode() == "run of ümläut"
    assert found == {"writer": 0, "writers": 1}


def test_datasets_are_contiguous_without_filters_and_links(
    store: CheckpointStore, state_of: Callable[[int], dict[str, Tensor]]
) -> None:
    (path,) = written(store, state_of(2), 1)

    with h5py.File(path) as file:

        def visit(name: str, item: object) -> None:
            assert isinstance(file.get(name, getlink=True), h5py.HardLink)
            if isinstance(item, h5py.Dataset):
                assert item.chunks is None
                assert item.external is None
                assert not item.is_virtual
                assert item.id.get_create_plist().get_nfilters() == 0

        file.visititems(visit)


def test_many_tensors_in_one_group_are_all_there(store: CheckpointStore) -> None:
    """More than 8 links or attributes make HDF5 use its other storage for them."""
    state: dict[str, Tensor] = {f"layer/{i}/kernel": np.full(5, i) for i in range(300)}

    (path,) = written(store, state, 1)

    found = datasets(path)
    assert all(found[name][0].tolist() == tensor.tolist() for name, tensor in state.items())
    assert all(found[name][2] == f"/{name}" for name in state)


def test_thousands_of_tensors_are_laid_out_alike_by_every_process() -> None:
    """HDF5 places metadata by what it did before; what is remembered of types must not count."""
    names = [f"layer/{i // 4:04d}/{i % 4}" for i in range(1500)]
    layout = ShardLayout(tuple(TensorSpec(name, "float32", (4, 3)) for name in names), 1)
    build = f"""
import hashlib
from holdfast.checkpoint.tensor import ShardLayout, TensorSpec
from holdfast.checkpoint.image import lay_out_shard
layout = ShardLayout(tuple(TensorSpec(name, "float32", (4, 3)) for name in {names!r}), 1)
print(hashlib.sha256(repr(lay_out_shard(layout, 0, "r")).encode()).hexdigest())
"""
    command = [sys.executable, "-c", build]
    found = subprocess.run(command, capture_output=True, text=True, check=True)

    lay_out_shard.cache_clear()
    mine = lay_out_shard(layout, 0, "r")

    assert hashlib.sha256(repr(mine).encode()).hexdigest() == found.stdout.strip()


def write_shard_of(
    directory: Path, state: Tensors, layout: ShardLayout, writer: int = 0
) -> tuple[ShardRecord, Path]:
    """Return the record of a shard, and its file."""
    staging = CheckpointStore(directory).staging(STATE_HEADER.step, STATE_HEADER.generation, 1)
    record = staging.write_shard(state, layout, writer, STATE_HEADER)
    return record, staging.path / shard_name(writer, layout.writers)


@pytest.mark.parametrize("header", [Header("run", 8, 30), Header("run", 1, 31)])
def test_equal_states_of_two_saves_make_files_that_differ_in_their_mark(
    tmp_path: Path, header: Header
) -> None:
    """Else shards of two steps could be exchanged unnoticed."""
    layout = ShardLayout(specs_of(STATE), 1)
    _, path = write_shard_of(tmp_path, STATE, layout)
    staging = CheckpointStore(tmp_path).staging(header.step, header.generation, 2)

    staging.write_shard(STATE, layout, 0, header)

    old, new = path.read_bytes(), (staging.path / path.name).read_bytes()
    assert sum(a != b for a, b in zip(old, new, strict=True)) == 1


def test_state_is_not_copied(tmp_path: Path) -> None:
    state: dict[str, Tensor] = {f"t{i}": np.ones(500_000, np.float32) for i in range(10)}
    layout = ShardLayout(specs_of(state), 1)
    tracemalloc.start()

    try:
        write_shard_of(tmp_path, state, layout)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < 1_000_000 < layout.nbytes


def test_awkward_memory_is_copied_for_the_rows_in_question_only(tmp_path: Path) -> None:
    state: dict[str, Tensor] = {"t": np.ones((1000, 2000), np.float64)[:, ::2]}
    layout = ShardLayout(specs_of(state), 8)
    tracemalloc.start()

    try:
        write_shard_of(tmp_path, state, layout, 3)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < layout.nbytes / 4


@pytest.mark.parametrize(
    "state",
    [
        {},
        STATE | {"more": np.zeros(1)},
        STATE | {"b": np.zeros(8, np.int64)},
        STATE | {"b": np.zeros(7)},
    ],
)
def test_state_of_another_layout_is_refused(tmp_path: Path, state: dict[str, Tensor]) -> None:
    layout = ShardLayout(specs_of(STATE), 1)

    with pytest.raises(StateUnsupported, match="make a layout of its specs"):
        write_shard_of(tmp_path, state, layout)

    assert list(tmp_path.iterdir()) == []


@given(NAMES)
def test_paths_are_distinct_and_no_dataset_is_a_group(found: set[str]) -> None:
    paths = dataset_paths(found)

    distinct = set(paths.values())
    groups = {path[:depth] for path in distinct for depth in range(1, len(path))}
    assert len(distinct) == len(found)
    assert not distinct & groups


def test_awkward_names_are_encoded_as_documented() -> None:
    paths = dataset_paths(["a", "a/b", "../x/./y", "//", "50%"])

    assert ["/".join(path) for path in paths.values()] == [
        "a%",
        "a/b",
        "%2E%2E/x/%2E/y",
        "%/%/%",
        "50%25",
    ]


def test_environment_is_as_before_when_loading_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "/opt/plugins")

    with pytest.raises(ImportError), no_plugins():
        raise ImportError("no HDF5")

    assert os.environ[VARIABLE] == "/opt/plugins"
