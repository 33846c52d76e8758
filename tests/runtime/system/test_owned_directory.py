from __future__ import annotations

import errno
import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest

from holdfast.runtime.system.owned_directory import (
    hold,
    is_held,
    make_again,
    make_owned_directory,
    remove_dead_directories,
)

_OWNER = """
import pathlib, sys
from holdfast.runtime.system import owned_directory
if sys.argv[1] == "make":
    print(owned_directory.make_owned_directory(sys.argv[2]), flush=True)
else:
    print(owned_directory.hold(pathlib.Path(sys.argv[2])), flush=True)
sys.stdin.read()
"""


class Owner:
    """Another process that owns a directory until it is killed."""

    def __init__(self, verb: str, place: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _OWNER, verb, str(place)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.said = self._process.stdout.readline().strip()

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.mark.process
def test_directory_stays_while_one_of_its_owners_lives(tmp_path: Path) -> None:
    maker = Owner("make", tmp_path)
    directory = Path(maker.said)
    agent = Owner("hold", directory)
    (directory / "segment").write_bytes(b"some memory")

    assert remove_dead_directories(str(tmp_path)) == ()
    maker.kill()
    assert remove_dead_directories(str(tmp_path)) == ()
    assert is_held(directory)
    agent.kill()
    assert not is_held(directory)
    assert not is_held(tmp_path)
    assert remove_dead_directories(str(tmp_path)) == (directory,)
    assert list(tmp_path.iterdir()) == []


def test_own_directory_is_never_taken_for_a_dead_one(tmp_path: Path) -> None:
    directory = make_owned_directory(str(tmp_path))

    assert remove_dead_directories(str(tmp_path)) == ()
    assert directory.stat().st_mode & 0o777 == 0o700
    assert directory.name.startswith(f"holdfast-{os.getpid()}-")


def test_what_holdfast_has_not_made_is_left_alone(tmp_path: Path) -> None:
    kept = tmp_path / "holdfast-1-abcdefgh"  # without a marker: a job is just making it
    kept.mkdir()
    for name in ("holdfast-2024", "holdfast-1-abcdefghi", "other-1-abcdefgh"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "owned").write_text(os.uname().nodename)
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "owned").write_text(os.uname().nodename)
    (tmp_path / "holdfast-2-abcdefgh").symlink_to(tmp_path / "target")
    (tmp_path / "holdfast-3-abcdefgh").write_text("a file")
    before = sorted(tmp_path.rglob("*"))

    assert remove_dead_directories(str(tmp_path), str(tmp_path / "nowhere")) == ()
    assert sorted(tmp_path.rglob("*")) == before


def test_directory_of_another_user_is_left_alone(tmp_path: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can give a directory to another user")
    directory = tmp_path / "holdfast-1-abcdefgh"
    directory.mkdir()
    (directory / "owned").write_text(os.uname().nodename)
    os.chown(directory, 12345, 12345)

    assert remove_dead_directories(str(tmp_path)) == ()
    os.chown(directory, 0, 0)
    assert remove_dead_directories(str(tmp_path)) == (directory,)


def test_directory_without_locks_is_made_and_never_called_dead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lustre may be mounted without them, and TMPDIR lies there."""

    def flock(_fd: int, _how: int) -> NoReturn:
        raise OSError(errno.ENOSYS, "Function not implemented")

    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", flock)
        directory = make_owned_directory(str(tmp_path))
        hold(directory)

    assert directory.is_dir()
    assert remove_dead_directories(str(tmp_path)) == ()


@pytest.mark.parametrize("gone", ["all", "marker", "nothing"])
def test_directory_of_a_living_job_is_made_again(tmp_path: Path, gone: str) -> None:
    directory = make_owned_directory(str(tmp_path))
    if gone == "all":
        shutil.rmtree(directory)
    elif gone == "marker":
        (directory / "owned").unlink()

    make_again(directory)

    assert directory.stat().st_mode & 0o777 == 0o700
    assert [path.name for path in directory.iterdir()] == ["owned"]
    assert is_held(directory)
    assert remove_dead_directories(str(tmp_path)) == ()


def test_directory_that_somebody_else_has_made_is_not_taken(tmp_path: Path) -> None:
    directory = make_owned_directory(str(tmp_path))
    shutil.rmtree(directory)
    (tmp_path / "theirs").mkdir()
    directory.symlink_to(tmp_path / "theirs")

    with pytest.raises(PermissionError, match="another user has made it"):
        make_again(directory)
    assert [*(tmp_path / "theirs").iterdir()] == []


@pytest.mark.process
def test_directory_of_another_host_is_not_ours_to_remove(tmp_path: Path) -> None:
    """Its locks may not be seen from here."""
    owner = Owner("make", tmp_path)
    directory = Path(owner.said)
    owner.kill()
    (directory / "owned").write_text("another-host")

    assert remove_dead_directories(str(tmp_path)) == ()
    assert directory.exists()
