"""Only one worker at a time looks for a file, and downloads it."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("keras")

import keras
from keras.src.datasets import mnist
from keras.src.utils import file_utils

from holdfast.runtime.fit.keras_fit import take_turns

pytestmark = pytest.mark.tensorflow

_PLAIN = file_utils.get_file


@pytest.fixture
def lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A lock file; ``get_file`` is Keras's own again after the test."""
    for module in (keras.utils, file_utils, mnist):
        monkeypatch.setattr(module, "get_file", _PLAIN)
    monkeypatch.setattr(file_utils, "urlretrieve", file_utils.urlretrieve)
    lock = tmp_path / "lock"
    lock.touch()
    return lock


def _is_free(lock: Path) -> bool:
    with lock.open("r+") as other:
        try:
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A file to be downloaded."""
    source = tmp_path / "numbers.bin"
    source.write_bytes(bytes(range(256)))
    return source


def test_nobody_else_has_the_turn_during_a_download(
    lock: Path, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free: list[bool] = []
    told: list[str] = []
    plain = file_utils.urlretrieve

    def retrieve(*args: Any, **arguments: Any) -> Any:
        free.append(_is_free(lock))
        return plain(*args, **arguments)

    monkeypatch.setattr(file_utils, "urlretrieve", retrieve)
    take_turns(lock, told.append)

    path = keras.utils.get_file(origin=source.as_uri(), cache_dir=tmp_path)
    again = keras.utils.get_file(origin=source.as_uri(), cache_dir=tmp_path)

    assert free == [False]
    assert _is_free(lock)
    assert again == path
    assert Path(path).read_bytes() == source.read_bytes()
    assert told == [f"one worker downloads {source.as_uri()}, the others wait for it"]


def test_turn_ends_with_an_error(lock: Path, source: Path, tmp_path: Path) -> None:
    take_turns(lock, lambda text: None)
    wrong = hashlib.sha256(b"other bytes").hexdigest()

    with pytest.raises(ValueError, match="corrupted"):
        keras.utils.get_file(origin=source.as_uri(), cache_dir=tmp_path, file_hash=wrong)

    assert _is_free(lock)


def test_data_sets_of_keras_wait_as_well(lock: Path) -> None:
    take_turns(lock, lambda text: None)

    assert mnist.get_file is keras.utils.get_file is file_utils.get_file  # type: ignore[attr-defined]
    assert file_utils.get_file is not _PLAIN


def test_file_system_without_locks_downloads_as_plain_keras_does(
    lock: Path, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    take_turns(lock, lambda text: None)
    before = len(os.listdir("/proc/self/fd"))

    path = keras.utils.get_file(origin=source.as_uri(), cache_dir=tmp_path)

    assert Path(path).read_bytes() == source.read_bytes()
    assert len(os.listdir("/proc/self/fd")) == before
