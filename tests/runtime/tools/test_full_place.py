"""A full place takes nothing for a while, and is nobody else's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.runtime.tools.striker import _UNSHARE, NAMESPACE_VARIABLE, is_private, refusal

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(refusal() is not None, reason=str(refusal())),
]

_PROGRAM = """
import errno, pathlib, sys
from holdfast.runtime.tools.striker import FullPlace

with FullPlace(pathlib.Path(sys.argv[1]), 2) as place:
    place.fill()
    try:
        (place.path / "file").write_bytes(bytes(1 << 20))
        print("taken")
    except OSError as error:
        print(errno.errorcode[error.errno])
    place.release()
    print((place.path / "file").write_bytes(bytes(1 << 20)))
"""


def test_variable_alone_makes_no_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    """A /dev/shm that is everybody's must never be filled."""
    monkeypatch.setenv(NAMESPACE_VARIABLE, os.readlink("/proc/self/ns/mnt"))

    assert not is_private()


def test_full_place_takes_nothing_until_it_is_released(tmp_path: Path) -> None:
    place = tmp_path / "place"

    ended = subprocess.run(
        [*_UNSHARE, sys.executable, "-c", _PROGRAM, str(place)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert ended.stdout.split() == ["ENOSPC", str(1 << 20)], ended.stderr
    assert not place.exists()
    assert not is_private()
