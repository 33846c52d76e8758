"""A job meets a full disk and a full /dev/shm, in places that nobody else sees."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "ci"))
from full_places import NAMESPACE_VARIABLE, UNSHARE, is_private, refusal

CI = Path(__file__).parents[2] / "ci"
HERE = os.readlink("/proc/self/ns/mnt")
PROGRAM = """
import errno, pathlib, sys
from full_places import full_place

with full_place(pathlib.Path(sys.argv[1]), 2) as place:
    place.fill()
    try:
        (place.path / "file").write_bytes(bytes(1 << 20))
        print("taken")
    except OSError as error:
        print(errno.errorcode[error.errno])
    place.release()
    print((place.path / "file").write_bytes(bytes(1 << 20)))
"""
needs_mounts = pytest.mark.skipif(refusal() is not None, reason=str(refusal()))


@pytest.mark.parametrize(("namespace", "is_own"), [(None, False), (HERE, False), ("mnt:[1]", True)])
def test_namespace_is_private_if_the_process_has_come_from_another_one(
    monkeypatch: pytest.MonkeyPatch, namespace: str | None, *, is_own: bool
) -> None:
    """A /dev/shm that is everybody's must never be filled."""
    monkeypatch.delenv(NAMESPACE_VARIABLE, raising=False)
    if namespace is not None:
        monkeypatch.setenv(NAMESPACE_VARIABLE, namespace)

    assert is_private() is is_own


@pytest.mark.process
@needs_mounts
def test_full_place_takes_nothing_until_it_is_released(tmp_path: Path) -> None:
    command = [*UNSHARE, sys.executable, "-c", PROGRAM, str(tmp_path / "place")]
    environment = {**os.environ, "PYTHONPATH": str(CI)}

    ended = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)

    assert ended.stdout.split() == ["ENOSPC", str(1 << 20)], ended.stderr
    assert list((tmp_path / "place").iterdir()) == []
