"""A scan looks before it leaps: sizes first, digests next, contents last."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from holdfast.checkpoint.errors import TRANSIENT, CheckpointInvalid, CheckpointUnreadable
from holdfast.checkpoint.filesystem import LocalFileSystem
from holdfast.checkpoint.reader import restore
from holdfast.checkpoint.record import Header
from holdfast.checkpoint.store import CheckpointStore, save
from holdfast.checkpoint.tensor import Tensor


@pytest.fixture
def step_path(store: CheckpointStore) -> Path:
    state: dict[str, Tensor] = {"a": np.arange(5000, dtype=np.float32), "b": np.arange(3)}
    return save(store, state, header=Header("run", 1, 1), writers=2)


def resign(path: Path, change: Callable[[Any], None]) -> None:
    """Change a manifest and make its sha256 right again."""
    document = json.loads(path.read_bytes().splitlines()[0])
    change(document)
    body = json.dumps(document).encode() + b"\n"
    path.write_bytes(body + hashlib.sha256(body).hexdigest().encode() + b"\n")


def reason(store: CheckpointStore) -> str:
    with pytest.raises(CheckpointInvalid) as refusal:
        restore(store, 1)
    return refusal.value.reason


def test_intact_step_verifies(store: CheckpointStore, step_path: Path) -> None:
    assert store.scan(1).verify() == store.scan(1).manifest()


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


def test_damage_outside_the_data_is_found(store: CheckpointStore, step_path: Path) -> None:
    path = sorted(step_path.glob("shard*"))[0]
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)

    assert reason(store) == "shard 0 has a wrong digest outside its data"


def test_wrong_size_is_found_before_anything_is_read(
    store: CheckpointStore, step_path: Path
) -> None:
    path = sorted(step_path.glob("shard*"))[1]
    size = path.stat().st_size
    os.truncate(path, size - 1)

    assert reason(store) == f"shard 1 has {size - 1} of {size} bytes"


def test_bomb_is_refused_before_anything_is_allocated(
    store: CheckpointStore, step_path: Path
) -> None:
    """4 TiB in a manifest that is signed and consistent in itself."""
    size = 2**42

    def inflate(document: Any) -> None:
        tensor = document["tensors"][0]
        piece = tensor["pieces"][0]
        tensor["shape"] = [size // 4]
        tensor["pieces"] = [piece | {"start": 0, "stop": size // 4, "bytes": size, "shard": 0}]
        document["shards"][0]["size"] = piece["offset"] + size

    resign(step_path / "MANIFEST.json", inflate)

    assert reason(store).startswith("shard 0 has ")


def test_tensors_may_not_share_bytes(store: CheckpointStore, step_path: Path) -> None:
    """Otherwise a small file could describe any number of large tensors."""

    def share(document: Any) -> None:
        document["tensors"].append(document["tensors"][0] | {"name": "c"})

    resign(step_path / "MANIFEST.json", share)

    assert "overlaps another" in reason(store)


def test_enormous_manifest_is_not_read(store: CheckpointStore, step_path: Path) -> None:
    os.truncate(step_path / "MANIFEST.json", 2**40)

    assert reason(store) == f"the manifest has {2**40} bytes"


def test_missing_manifest_is_a_reason(store: CheckpointStore, step_path: Path) -> None:
    (step_path / "MANIFEST.json").unlink()

    assert reason(store).startswith(f"cannot open {step_path}/MANIFEST.json: No such file")


def test_manifest_that_is_a_fifo_is_refused_without_waiting(
    store: CheckpointStore, step_path: Path
) -> None:
    (step_path / "MANIFEST.json").unlink()
    os.mkfifo(step_path / "MANIFEST.json")

    assert "not a regular file" in reason(store)


def test_step_that_is_a_link_is_not_listed(store: CheckpointStore, step_path: Path) -> None:
    elsewhere = step_path.parent / "elsewhere"
    step_path.rename(elsewhere)
    step_path.symlink_to(elsewhere)

    assert store.steps() == ()


class Remembering(LocalFileSystem):
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


def test_name_that_is_not_listed_is_missing(store: CheckpointStore, step_path: Path) -> None:
    (step_path / "shard-00001-of-00002.h5").unlink()

    with pytest.raises(CheckpointInvalid) as damage:
        restore(store, 1)

    assert not isinstance(damage.value, CheckpointUnreadable)
