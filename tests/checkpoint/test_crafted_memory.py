"""Manifests that ask for more memory than there is: refused with a reason, at little cost."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from holdfast.checkpoint.names import MANIFEST_NAME
from holdfast.checkpoint.record import Header
from holdfast.checkpoint.store import CheckpointStore, save

RESTORE_IN_LITTLE_MEMORY = """
import resource, sys
from pathlib import Path
from holdfast.checkpoint.errors import CheckpointInvalid
from holdfast.checkpoint.reader import restore
from holdfast.checkpoint.store import CheckpointStore

before = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
limit = before + int(sys.argv[2]) * 2**20
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
try:
    restore(CheckpointStore(Path(sys.argv[1])), 30)
except CheckpointInvalid as error:
    print(error.reason)
    assert "h5py" not in sys.modules
"""


@pytest.fixture
def folder(store: CheckpointStore) -> Path:
    """Return the directory of a committed step of two shards."""
    state = {"kernel": np.arange(3000, dtype=np.float32), "bias": np.ones(5)}
    return save(store, state, header=Header("run", 1, 30), writers=2)


def document(folder: Path) -> Any:
    return json.loads((folder / MANIFEST_NAME).read_bytes().splitlines()[0])


def sign_text(folder: Path, text: str) -> None:
    """Put a manifest there whose own digest is right."""
    body = text.encode() + b"\n"
    (folder / MANIFEST_NAME).write_bytes(body + hashlib.sha256(body).hexdigest().encode() + b"\n")


def change(folder: Path, edit: Callable[[Any], object]) -> None:
    found = document(folder)
    edit(found)
    sign_text(folder, json.dumps(found))


def restore_in_little_memory(folder: Path, mebibytes: int) -> str:
    """Restore in a process that may have so many MiB more than at its start; return the reason."""
    done = subprocess.run(
        [sys.executable, "-c", RESTORE_IN_LITTLE_MEMORY, str(folder.parents[1]), str(mebibytes)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip()


@pytest.mark.process
def test_four_tebibytes_in_a_small_file_cost_no_memory(folder: Path) -> None:
    def edit(found: Any) -> None:
        found["tensors"][0]["shape"] = [2**39]
        piece = found["tensors"][0]["pieces"][0]
        piece |= {"stop": 2**39, "bytes": 2**42, "offset": 2**20}

    change(folder, edit)

    assert "is smaller than its pieces" in restore_in_little_memory(folder, 64)


@pytest.mark.process
def test_four_tebibytes_of_holes_are_more_than_there_is_memory(folder: Path) -> None:
    """Sizes agree, so only the allocation can fail: with a reason, before anything is read."""

    def edit(found: Any) -> None:
        piece = found["tensors"][0]["pieces"][0]
        piece |= {"stop": 2**39, "bytes": 2**42, "offset": 2**20}
        found["tensors"][0]["shape"] = [2**39]
        found["shards"][piece["shard"]]["size"] = 2**43

    change(folder, edit)
    index = document(folder)["tensors"][0]["pieces"][0]["shard"]
    os.truncate(folder / f"shard-{index:05d}-of-00002.h5", 2**43)

    assert "there is no memory for tensor" in restore_in_little_memory(folder, 256)


@pytest.mark.process
@pytest.mark.parametrize(
    ("count", "mebibytes", "why"),
    [
        (10**6, 16, "the manifest has 8"),
        (10**5, 256, "0 of 1 elements"),
        (10**5, 16, "there is no memory for its manifest"),
    ],
)
def test_a_million_tensors_are_refused_in_bounded_memory(
    folder: Path, count: int, mebibytes: int, why: str
) -> None:
    tensor = '{"name":"a name of some length %09d","dtype":"float32","shape":[1],"pieces":[]}'
    tensors = ",".join(tensor % i for i in range(count))
    text = json.dumps(document(folder) | {"tensors": 0})
    sign_text(folder, text.replace('"tensors": 0', f'"tensors":[{tensors}]'))

    assert why in restore_in_little_memory(folder, mebibytes)
