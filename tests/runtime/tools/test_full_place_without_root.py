"""A place that cannot be full says why; programs of the system are scripts here."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.runtime.errors import UsageError
from holdfast.runtime.tools.striker import NAMESPACE_VARIABLE, FullPlace, enter, is_private, refusal

HERE = os.readlink("/proc/self/ns/mnt")


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder where programs are found."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


def _write(folder: Path, name: str, script: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


@pytest.mark.parametrize(("namespace", "is_own"), [(None, False), (HERE, False), ("mnt:[1]", True)])
def test_namespace_is_private_if_the_process_has_come_from_another_one(
    monkeypatch: pytest.MonkeyPatch, namespace: str | None, *, is_own: bool
) -> None:
    monkeypatch.delenv(NAMESPACE_VARIABLE, raising=False)
    if namespace is not None:
        monkeypatch.setenv(NAMESPACE_VARIABLE, namespace)

    assert is_private() is is_own


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (None, "there is no unshare (util-linux)"),
        ("echo ' not permitted ' >&2; exit 1", "is refused (not permitted); it takes root"),
        ('[ "$4" = true ]', None),
    ],
    ids=["no program", "no right", "right"],
)
def test_user_without_mounts_of_their_own_is_told_why(
    programs: Path, script: str | None, reason: str | None
) -> None:
    if script is not None:
        _write(programs, "unshare", script)

    found = refusal()

    assert found is None if reason is None else str(found).endswith(reason)


def test_process_that_enters_a_namespace_says_where_it_has_come_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[tuple[Any, ...]] = []
    monkeypatch.setattr(os, "execvpe", lambda *arguments: calls.append(arguments))

    enter([sys.executable, "-c", "main"])

    ((program, line, environment),) = calls
    assert (program, line[0]) == ("unshare", "unshare")
    assert line[-3:] == [sys.executable, "-c", "main"]
    assert "--mount" in line[1:-3]
    assert environment == {**os.environ, NAMESPACE_VARIABLE: HERE}


def test_mount_that_is_refused_is_said_with_the_place_and_the_reason(
    programs: Path, tmp_path: Path
) -> None:
    _write(programs, "mount", "echo 'mount: permission denied' >&2; exit 32")

    with pytest.raises(UsageError, match=r"mounted at \S+/place: mount: permission denied$"):
        FullPlace(tmp_path / "place", 2)


def test_place_is_mounted_with_its_size_and_gone_at_the_end(programs: Path, tmp_path: Path) -> None:
    _write(programs, "mount", f'echo "$@" >> {tmp_path}/calls')
    _write(programs, "umount", f'echo "$@" >> {tmp_path}/calls')

    with FullPlace(tmp_path / "place", 24) as place:
        assert place.path.is_dir()

    assert not (tmp_path / "place").exists()
    mounted, unmounted = (tmp_path / "calls").read_text().splitlines()
    assert mounted == f"-t tmpfs -o size=24m holdfast-chaos {tmp_path}/place"
    assert unmounted == f"--lazy {tmp_path}/place"


def test_full_place_has_64_kib_left_and_all_of_it_when_it_is_released(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job of which nothing at all could be written would end before it could say why."""
    _write(programs, "mount", "exit 0")
    place = FullPlace(tmp_path / "place", 1)
    size = SimpleNamespace(f_bavail=5 * 16, f_frsize=4096)
    monkeypatch.setattr(os, "statvfs", lambda _path: size)

    place.fill()

    assert [path.stat().st_size for path in place.path.iterdir()] == [4 << 16]
    place.release()
    assert list(place.path.iterdir()) == []
    place.release()
