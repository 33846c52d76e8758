"""Checkpoints that an attacker has crafted: refused with a reason, cheaply, and never obeyed."""

from __future__ import annotations

import ast
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recording import Recording

import holdfast.checkpoint
from holdfast.checkpoint import manifest
from holdfast.checkpoint.errors import CheckpointInvalid, CommitRefused
from holdfast.checkpoint.names import MANIFEST_NAME
from holdfast.checkpoint.reader import restore, restore_newest
from holdfast.checkpoint.record import Header
from holdfast.checkpoint.store import CheckpointStore, save

STEP = 30
KERNEL = np.arange(3000, dtype=np.float32)
PACKAGE = Path(holdfast.checkpoint.__path__[0])


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


def test_pickle_in_the_place_of_anything_is_refused_unread(
    store: CheckpointStore, folder: Path
) -> None:
    victim = folder.parent / "executed"
    payload = f"cposix\nsystem\n(S'touch {victim}'\ntR.".encode()
    for path in sorted(folder.iterdir()):
        whole = path.read_bytes()
        for data in (payload, payload.ljust(len(whole), b".")):
            path.write_bytes(data)
            assert reason(store)
        path.write_bytes(whole)

    restore(store, STEP)
    assert not victim.exists()


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


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", "a\0b", ".."])
def test_names_of_tensors_are_only_names(store: CheckpointStore, folder: Path, name: str) -> None:
    def edit(found: Any) -> None:
        found["tensors"][0]["name"] = name

    change(folder, edit)
    files = Recording(folder.parents[1])

    restored = restore(CheckpointStore(folder.parents[1], files), STEP)

    assert set(restored.state) == {name, "kernel"}
    assert len(files.opened) == 3


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


def test_numbers_that_python_does_not_convert_are_refused(
    store: CheckpointStore, folder: Path
) -> None:
    text = json.dumps(document(folder))
    sign_text(folder, text.replace('"step": 30', '"step": 3' + "0" * 10**5))

    assert reason(store).startswith("the manifest is not valid: ")


def test_manifest_that_could_not_be_read_back_is_not_committed(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a reader refuses for its size may not be called saved."""
    monkeypatch.setattr(manifest, "LARGEST_MANIFEST_BYTES", 2000)
    cursor = {"text": "x" * 2000}

    with pytest.raises(CommitRefused, match="bytes, at most"):
        save(store, {"a": KERNEL}, header=Header("run", 1, STEP), cursor=cursor)

    assert store.names() == ()


def test_older_step_is_used_in_the_place_of_a_crafted_one(store: CheckpointStore) -> None:
    save(store, {"kernel": KERNEL}, header=Header("run", 1, 20))
    crafted = save(store, {"kernel": KERNEL}, header=Header("run", 1, STEP))
    sign_text(crafted, "[" * 10**6)

    restored, rejections = restore_newest(store)

    assert restored is not None
    assert restored.manifest.step == 20
    assert [rejection.step for rejection in rejections] == [STEP]
