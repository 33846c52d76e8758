"""What HDF5 would follow, uncompress or load code for: a shard is bytes, and nothing else."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
import xxhash
from recording import Recording

from holdfast.checkpoint.names import MANIFEST_NAME
from holdfast.checkpoint.reader import restore
from holdfast.checkpoint.record import Header
from holdfast.checkpoint.store import CheckpointStore, save

STEP = 30
KERNEL = np.arange(3000, dtype=np.float32)


@pytest.fixture
def folder(store: CheckpointStore) -> Path:
    """Return the directory of a committed step."""
    return save(store, {"kernel": KERNEL}, header=Header("run", 1, STEP))


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
    """Make a step of this one shard, signed, with right digests."""
    data = path.read_bytes()
    stop = offset + KERNEL.nbytes
    piece = {"shard": 0, "offset": offset, "bytes": KERNEL.nbytes, "start": 0, "stop": KERNEL.size}
    piece["digest"] = xxhash.xxh3_128_hexdigest(data[offset:stop])
    tensor = {"name": "kernel", "dtype": "float32", "shape": [KERNEL.size], "pieces": [piece]}
    outside = xxhash.xxh3_128_hexdigest(data[:offset] + data[stop:])
    shards = [{"index": 0, "size": len(data), "digest": outside}]
    document = json.loads((folder / MANIFEST_NAME).read_bytes().splitlines()[0])
    document |= {"writers": 1, "shards": shards, "tensors": [tensor]}
    body = json.dumps(document).encode() + b"\n"
    (folder / MANIFEST_NAME).write_bytes(body + hashlib.sha256(body).hexdigest().encode() + b"\n")


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


def test_hdf5_that_points_elsewhere_gives_the_bytes_of_the_file_itself(
    store: CheckpointStore, folder: Path
) -> None:
    """A manifest that calls HDF5's own metadata a tensor gets just that."""
    path = folder / "shard-00000-of-00001.h5"
    crafted_shard(path, folder.parent / "secret.h5")
    adopt(folder, path, offset=0)

    restored = restore(store, STEP)

    assert restored.state["kernel"].tobytes() == path.read_bytes()[: KERNEL.nbytes]


LOADING_STATE = """
import ctypes, os, sys
from holdfast.checkpoint import shard
import h5py

library, = {
    line.split(maxsplit=5)[5].strip()
    for line in open("/proc/self/maps") if "libhdf5-" in line or "libhdf5.so" in line
}
state = ctypes.c_uint(7)
assert ctypes.CDLL(library).H5PLget_loading_state(ctypes.byref(state)) >= 0
print(state.value, os.environ.get("HDF5_PLUGIN_PRELOAD"), os.environ.get("HDF5_PLUGIN_PATH"))
"""


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
