"""Commands over checkpoints that are signed, with the key, without it and with another."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from holdfast.checkpoint.record import Header
from holdfast.checkpoint.signature import read_key
from holdfast.checkpoint.store import CheckpointStore, save

Holdfast = Callable[..., tuple[int, str, str]]


def _key(path: Path, secret: bytes) -> Path:
    path.write_bytes(secret)
    path.chmod(0o600)
    return path


@pytest.fixture
def key(tmp_path: Path) -> Path:
    return _key(tmp_path / "key", bytes(range(32)))


@pytest.fixture
def other_key(tmp_path: Path) -> Path:
    return _key(tmp_path / "other-key", bytes(range(1, 33)))


@pytest.fixture
def signed(tmp_path: Path, key: Path) -> Path:
    """A run with one signed checkpoint, of step 6."""
    store = CheckpointStore(tmp_path / "signed", key=read_key(key))
    save(store, {"a": np.arange(5000)}, header=Header("run", 1, 6), writers=2)
    return tmp_path / "signed"


def test_verify_tells_whether_the_signature_was_checked(
    holdfast: Holdfast, signed: Path, key: Path
) -> None:
    assert holdfast("verify", signed)[:2] == (
        0,
        f"step 6: valid, {_size(signed)}, signature not checked\n",
    )
    assert holdfast("verify", signed, "--key-file", key)[:2] == (
        0,
        f"step 6: valid, {_size(signed)}, signature verified\n",
    )


def _size(run_dir: Path) -> str:
    from rich.filesize import decimal

    return decimal(CheckpointStore(run_dir).scan(6).manifest().nbytes)


def test_step_of_another_key_is_not_valid(
    holdfast: Holdfast, signed: Path, other_key: Path
) -> None:
    code, out, _ = holdfast("verify", signed, "--key-file", other_key)

    assert code == 1
    assert f"it is signed with key {CheckpointStore(signed).scan(6).manifest().signed_by}" in out


def test_unsigned_step_is_valid_only_for_who_gives_no_key(
    holdfast: Holdfast, run_dir: Path, key: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, _ = holdfast("verify", run_dir)
    assert (code, "sign" in out) == (0, False)

    monkeypatch.setenv("HOLDFAST_KEY_FILE", str(key))

    code, out, _ = holdfast("verify", run_dir)
    assert code == 1
    assert out.count("it is not signed") == 2


@pytest.mark.parametrize(("has_key", "known"), [(False, "not checked"), (True, "verified")])
def test_inspect_names_the_key(
    holdfast: Holdfast, signed: Path, key: Path, *, has_key: bool, known: str
) -> None:
    options = ["--key-file", key] if has_key else []

    out = holdfast("inspect", signed, *options)[1]
    found = json.loads(holdfast("inspect", signed, *options, "--json")[1])

    assert f"{known}, key {read_key(key).id}" in out
    assert found["step"]["signature"] == known
    assert found["step"]["signed_by"] == read_key(key).id


def test_inspect_lists_a_forged_step_as_damaged(
    holdfast: Holdfast, signed: Path, key: Path, other_key: Path
) -> None:
    code, out, _ = holdfast("inspect", signed, "--key-file", other_key)

    assert code == 1
    assert "damaged" in out
    assert "not with" in out


def test_export_tells_what_it_has_verified(
    holdfast: Holdfast, signed: Path, key: Path, other_key: Path, tmp_path: Path
) -> None:
    target = tmp_path / "state.npz"

    code, _, err = holdfast("export", signed, "--to", target, "--key-file", other_key)
    assert (code, target.exists()) == (1, False)
    assert "it is signed with key" in err
    out = holdfast("export", signed, "--to", target, "--key-file", key)[1]
    assert out == f"step 6, verified, signature verified, is now {target}\n"


def test_repair_signs_what_it_makes_whole(
    holdfast: Holdfast, signed: Path, key: Path, tmp_path: Path
) -> None:
    shutil.copytree(signed, tmp_path / "mirror")
    next(signed.glob("checkpoints/step-*/shard-00001*")).unlink()
    (signed / "RUN.json").unlink(missing_ok=True)

    code, out, _ = holdfast("repair", signed, "--from", tmp_path / "mirror")
    assert code == 1
    assert "give the key file of the run" in out
    code, _, _ = holdfast("repair", signed, "--from", tmp_path / "mirror", "--key-file", key)
    assert code == 0
    assert "signature verified" in holdfast("verify", signed, "--key-file", key)[1]


@pytest.mark.parametrize("command", ["inspect", "verify", "repair", "export"])
def test_bad_key_file_is_a_usage_error(
    holdfast: Holdfast, signed: Path, key: Path, tmp_path: Path, command: str
) -> None:
    needed = {"repair": ["--from", tmp_path], "export": ["--to", tmp_path / "x.npz"]}
    inside = shutil.copy(key, signed / "key")
    os.truncate(key, 31)
    for path, complaint in (
        (key, "has 31 bytes"),
        (tmp_path / "none", "No such file"),
        (inside, "lies in the run directory"),
    ):
        argv = [signed, *needed.get(command, []), "--key-file", path]
        code, out, err = holdfast(command, *argv)

        assert (code, out) == (2, "")
        assert complaint in err
