"""A stranger's reader, written from docs/checkpoint-format.md alone.

It knows nothing of holdfast, HDF5 or numpy: if a change of the format breaks it,
the page is wrong and every reader out there is, too.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash
from whole_save import save

from holdfast.checkpoint.manifest import Header
from holdfast.checkpoint.store import CheckpointStore
from holdfast.checkpoint.tensor import Tensor

PAGE = Path(__file__).parents[2] / "docs" / "checkpoint-format.md"
CODES = {
    "bool": "?",
    "int8": "b",
    "int32": "i",
    "int64": "q",
    "uint64": "Q",
    "float16": "e",
    "float32": "f",
    "float64": "d",
    "bfloat16": "H",
}


def read_manifest(data: bytes) -> dict[str, Any]:
    """Return what the first line says."""
    first, second = data.splitlines(keepends=True)
    assert hashlib.sha256(first).hexdigest().encode() + b"\n" == second
    manifest: dict[str, Any] = json.loads(first)
    assert manifest["format"] == "holdfast-checkpoint"
    assert (manifest["version"], manifest["digest"]) == (1, "xxh3_128")
    return manifest


def read_step(directory: Path) -> dict[str, list[Any]]:
    """Return name -> flat list of elements."""
    manifest = read_manifest((directory / "MANIFEST.json").read_bytes())
    digest_of = xxhash.xxh3_128_hexdigest
    assert int(directory.name.removeprefix("step-")) == manifest["step"]
    shards = []
    for shard in manifest["shards"]:
        name = f"shard-{shard['index']:05d}-of-{manifest['writers']:05d}.h5"
        shards.append(os.open(directory / name, os.O_RDONLY | os.O_NOFOLLOW))
        assert os.fstat(shards[-1]).st_size == shard["size"]
        outside = bytearray((directory / name).read_bytes())
        for offset, size in reversed(spans_of(manifest, shard["index"])):
            del outside[offset : offset + size]
        assert digest_of(bytes(outside)) == shard["digest"]
    found = {}
    for tensor in manifest["tensors"]:
        values: list[Any] = []
        for piece in tensor["pieces"]:
            raw = os.pread(shards[piece["shard"]], piece["bytes"], piece["offset"])
            assert digest_of(raw) == piece["digest"]
            assert piece["start"] == len(values)
            values += struct.unpack(
                f"<{piece['stop'] - piece['start']}{CODES[tensor['dtype']]}", raw
            )
        found[tensor["name"]] = values
    for handle in shards:
        os.close(handle)
    return found


def spans_of(manifest: dict[str, Any], shard: int) -> list[tuple[int, int]]:
    """Return offset and size of each piece of a shard, ascending."""
    pieces = [piece for tensor in manifest["tensors"] for piece in tensor["pieces"]]
    return sorted((p["offset"], p["bytes"]) for p in pieces if p["shard"] == shard)


@pytest.mark.parametrize("writers", [1, 3])
def test_stranger_reads_every_tensor(
    store: CheckpointStore, writers: int, state_of: Callable[[int], dict[str, Tensor]]
) -> None:
    state = state_of(1)
    directory = save(store, state, header=Header("run", 7, 12000), writers=writers)

    found = read_step(directory)

    assert found.keys() == state.keys()
    for name, tensor in state.items():
        plain = tensor.view(np.uint16) if tensor.dtype.name == "bfloat16" else tensor
        assert found[name] == plain.reshape(-1).tolist(), name


def test_page_lists_every_field_of_a_manifest(store: CheckpointStore) -> None:
    directory = save(store, {"a": np.zeros(3)}, header=Header("run", 7, 12000))
    manifest = json.loads((directory / "MANIFEST.json").read_bytes().splitlines()[0])
    example = json.loads(re.findall(r"```json\n(.*?)```", PAGE.read_text(), re.DOTALL)[0])

    assert list(example) == list(manifest)
    assert list(example["shards"][0]) == list(manifest["shards"][0])
    assert list(example["tensors"][0]) == list(manifest["tensors"][0])
    assert list(example["tensors"][0]["pieces"][0]) == list(manifest["tensors"][0]["pieces"][0])


def test_page_lists_every_dtype() -> None:
    from holdfast.checkpoint.tensor import DTYPES

    table = PAGE.read_text().split("## Elements")[1].split("## Reading")[0]

    assert sorted(re.findall(r"`(\w+)`", table)) == sorted(DTYPES)
