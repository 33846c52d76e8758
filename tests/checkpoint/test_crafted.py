"""Files that were made to do harm, and states at the limits."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import xxhash
from whole_save import save

import holdfast.checkpoint
from holdfast.checkpoint.errors import CheckpointInvalid, CommitRefused
from holdfast.checkpoint.filesystem import FileSystem
from holdfast.checkpoint.manifest import Header
from holdfast.checkpoint.names import MANIFEST_NAME
from holdfast.checkpoint.reader import restore
from holdfast.checkpoint.store import CheckpointStore


class Recording(FileSystem):
    """Remembers the names of the files that were opened."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.opened: set[str] = set()

    def open_read(self, path: Path) -> int:
        self.opened.add(path.name)
        return super().open_read(path)


STEP = 30
KERNEL = np.arange(3000, dtype=np.float32)
PACKAGE = Path(holdfast.checkpoint.__path__[0])

SHAPES = [
    [2**40],
    [2**62, 2**62],
    [2**63 - 1] * 32,
    [0, 2**63 - 1, 2**63 - 1],
    [1] * 33,
    [10**4000],
    [-1],
    [2.5],
    [True],
]

LOADING_STATE = """
import ctypes, os, sys
from holdfast.checkpoint import image
import h5py

library, = {
    line.split(maxsplit=5)[5].strip()
    for line in open("/proc/self/maps") if "libhdf5-" in line or "libhdf5.so" in line
}
state = ctypes.c_uint(7)
assert ctypes.CDLL(library).H5PLget_loading_state(ctypes.byref(state)) >= 0
print(state.value, os.environ.get("HDF5_PLUGIN_PRELOAD"), os.environ.get("HDF5_PLUGIN_PATH"))
"""

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
    state = {"kernel": KERNEL, "bias": np.ones(5)}
    return save(store, state, header=Header("run", 1, STEP), writers=2)


def sign(folder: Path, document: object) -> None:
    """Put a manifest there whose own digest is right."""
    sign_text(folder, json.dumps(document))


def sign_text(folder: Path, text: str) -> None:
    body = text.encode() + b"\n"
    (folder / MANIFEST_NAME).write_bytes(body + hashlib.sha256(body).hexdigest().encode() + b"\n")


def document(folder: Path) -> Any:
    return json.loads((folder / MANIFEST_NAME).read_bytes().splitlines()[0])


def change(folder: Path, edit: Callable[[Any], object]) -> None:
    found = document(folder)
    edit(found)
    sign(folder, found)


def reason(store: CheckpointStore) -> str:
    with pytest.raises(CheckpointInvalid) as caught:
        restore(store, STEP)
    return caught.value.reason


def test_nothing_that_runs_code_is_imported() -> None:
    """The code neither unpickles nor evaluates, so no input can abuse that."""
    forbidden = {"pickle", "marshal", "shelve", "dill", "joblib", "yaml", "runpy", "code"}
    calls = {"eval", "exec", "__import__", "load", "fromfile", "memmap"}
    for path in PACKAGE.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                assert forbidden.isdisjoint(alias.name for alias in node.names), path
            if isinstance(node, ast.ImportFrom):
                assert node.module not in forbidden, path
            if isinstance(node, ast.Call):
                name = getattr(node.func, "id", getattr(node.func, "attr", ""))
                assert name not in calls, f"{path}:{node.lineno} {name}"


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", "a\0b", "..", "", "x" * 5000])
def test_file_names_in_a_manifest_are_not_read(
    store: CheckpointStore, folder: Path, name: str
) -> None:
    """A manifest has no names of files: those of shards follow from their numbers."""

    def edit(found: Any) -> None:
        for entry in (found, *found["shards"], *found["tensors"]):
            entry |= {"file": name, "path": name, "filename": name}

    change(folder, edit)
    files = Recording(folder.parents[1])

    restored = restore(CheckpointStore(folder.parents[1], files), STEP)

    assert restored.state["kernel"].tobytes() == KERNEL.tobytes()
    assert files.opened == {
        MANIFEST_NAME,
        "shard-00000-of-00002.h5",
        "shard-00001-of-00002.h5",
    }


def as_link(path: Path) -> None:
    path.rename(path.with_name("aside"))
    path.symlink_to("aside")


def as_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def as_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def as_device(path: Path) -> None:
    path.unlink()
    try:
        os.mknod(path, 0o600 | 0o020000, os.makedev(1, 5))  # the never-ending /dev/zero
    except PermissionError:
        pytest.skip("only root makes devices")


@pytest.mark.parametrize("name", [MANIFEST_NAME, "shard-00001-of-00002.h5"])
@pytest.mark.parametrize("replace", [as_link, as_fifo, as_directory, as_device])
def test_what_is_no_file_is_refused_without_waiting(
    store: CheckpointStore, folder: Path, name: str, replace: Callable[[Path], None]
) -> None:
    replace(folder / name)

    assert reason(store).startswith(f"cannot open {folder / name}: ")


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: str(shape)[:20])
def test_shapes_that_cannot_be_are_refused(
    store: CheckpointStore, folder: Path, shape: list[int]
) -> None:
    def edit(found: Any) -> None:
        tensor = found["tensors"][0]
        tensor["shape"] = shape
        if 0 in shape:
            tensor["pieces"] = []

    change(folder, edit)

    assert reason(store)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 10**6,
        "[" * 10**5 + "]" * 10**5,
        '{"a":' * 10**5 + "1" + "}" * 10**5,
        "1" * 10**6,
        "-" + "9" * 4000,
        "1e999999",
        "NaN",
        '"\\ud800"',
        "\0",
        "{}",
        '{"format":' + "1" * 5000 + "}",
    ],
    ids=lambda text: text[:8].replace("\0", "NUL"),
)
def test_strange_json_is_refused(store: CheckpointStore, folder: Path, text: str) -> None:
    sign_text(folder, text)

    assert reason(store).startswith("the manifest is not valid: ")


def test_manifest_that_could_not_be_read_back_is_not_committed(
    store: CheckpointStore,
) -> None:
    """What a reader refuses for its size may not be called saved."""
    cursor = {"text": "x" * (64 << 20)}

    with pytest.raises(CommitRefused, match="bytes, at most"):
        save(store, {"a": KERNEL}, header=Header("run", 1, STEP), cursor=cursor)

    assert store.names() == ()


def crafted_shard(path: Path, secret: Path) -> None:
    """Write what HDF5 would follow, uncompress or load code for, if it were asked."""
    source = h5py.VirtualSource(secret, "data", shape=(4,))
    layout = h5py.VirtualLayout(shape=(4,), dtype="f4")
    layout[:] = source
    with h5py.File(path, "w") as file:
        file["external link"] = h5py.ExternalLink(str(secret), "/data")
        file["soft link"] = h5py.SoftLink("/external link")
        file.create_virtual_dataset("virtual", layout)
        file.create_dataset("external", (8,), "f4", external=[(str(secret), 0, 32)])
        file.create_dataset("filtered", data=np.zeros(4096), compression="gzip", fletcher32=True)
        file.create_dataset("vlen", data=["a", "b"], dtype=h5py.string_dtype())
        file.create_dataset("kernel", data=KERNEL)


def adopt(folder: Path, path: Path, offset: int) -> None:
    """Make a step of this one shard, with right digests."""
    data = path.read_bytes()
    stop = offset + KERNEL.nbytes
    piece = {"shard": 0, "offset": offset, "bytes": KERNEL.nbytes, "start": 0, "stop": KERNEL.size}
    piece["digest"] = xxhash.xxh3_128_hexdigest(data[offset:stop])
    tensor = {"name": "kernel", "dtype": "float32", "shape": [KERNEL.size], "pieces": [piece]}
    outside = xxhash.xxh3_128_hexdigest(data[:offset] + data[stop:])
    shards = [{"index": 0, "size": len(data), "digest": outside}]
    document = json.loads((folder / MANIFEST_NAME).read_bytes().splitlines()[0])
    document |= {"writers": 1, "shards": shards, "tensors": [tensor]}
    sign(folder, document)


def test_hdf5_in_a_shard_is_never_interpreted(store: CheckpointStore, folder: Path) -> None:
    """With right digests its raw bytes are restored; HDF5 would read them differently."""
    secret = folder.parent / "secret.h5"
    secret.write_bytes(b"nobody may read this")
    path = folder / "shard-00000-of-00001.h5"
    crafted_shard(path, secret)
    with h5py.File(path) as file:
        offset = file["kernel"].id.get_offset()
    adopt(folder, path, offset)
    secret.unlink()
    os.mkfifo(secret)  # opening it waits for ever
    files = Recording(folder.parents[1])

    restored = restore(CheckpointStore(folder.parents[1], files), STEP)

    assert restored.state["kernel"].tobytes() == KERNEL.tobytes()
    assert files.opened == {MANIFEST_NAME, path.name}


@pytest.mark.process
def test_hdf5_loads_no_plugins_where_we_import_it() -> None:
    """A plugin is a shared library that HDF5 loads from a path in the environment."""
    done = subprocess.run(
        [sys.executable, "-c", LOADING_STATE],
        env=os.environ | {"HDF5_PLUGIN_PATH": "/tmp/anybodys"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.stdout == "0 None /tmp/anybodys\n", done.stderr


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
