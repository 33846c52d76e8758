"""Keys for tests of signed checkpoints, and manifests as an attacker would write them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.checkpoint.names import step_name
from holdfast.checkpoint.record import Header
from holdfast.checkpoint.signature import SigningKey
from holdfast.checkpoint.store import CheckpointStore, save
from holdfast.checkpoint.tensor import Tensor

KEY = SigningKey(bytes(range(32)))
OTHER_KEY = SigningKey(b"another secret, just as long as it")
STATE: dict[str, Tensor] = {
    "bias": np.arange(90, dtype=np.float16),
    "kernel": np.arange(5490, dtype=np.float32).reshape(61, 90),
    "none": np.zeros((0, 3)),
}
CURSOR = {"step": 40, "seed": 5, "epoch": {"number": 1, "step": 30, "metrics": {"loss": 0.5}}}


def signed_store(
    path: Path, run_id: str = "run", steps: tuple[int, ...] = (20, 40)
) -> CheckpointStore:
    """Return a store with the same state at all steps: only the marks tell the shards apart."""
    store = CheckpointStore(path, key=KEY)
    for step in steps:
        save(store, STATE, header=Header(run_id, 2, step), writers=2, cursor=CURSOR)
    return store


def manifest_path(store: CheckpointStore, step: int) -> Path:
    return store.directory / step_name(step) / "MANIFEST.json"


def resealed(document: Any, below: bytes = b"") -> bytes:
    """Return a document with a right sha256, and ``below`` for a signature."""
    body = json.dumps(document, separators=(",", ":")).encode() + b"\n"
    return body + hashlib.sha256(body).hexdigest().encode() + b"\n" + below


def leaves(document: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Yield the way to every value in a document that holds no others."""
    entries: Any = ()
    if isinstance(document, dict):
        entries = document.items()
    elif isinstance(document, list):
        entries = enumerate(document)
    for key, value in entries:
        if isinstance(value, (dict, list)) and value:
            yield from leaves(value, (*path, key))
        else:
            yield (*path, key)


def at(document: Any, path: tuple[str | int, ...]) -> Any:
    for key in path:
        document = document[key]
    return document
