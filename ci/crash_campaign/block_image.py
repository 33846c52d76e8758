"""A file system of its own in a file, which can be copied as it lies on the disk at any time.

The file lacks everything that the kernel has not written back.  So a copy is the state
after a power cut, on a disk that keeps all writes in the order in which it got them.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_CLONE_NEWNS = 0x00020000
_MOST_TRIES = 20


class ToolFailed(Exception):
    """mkfs, mount or the like failed, which is no error of the tested file system."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of file system: how large its smallest image is, and how it is mounted."""

    name: str
    size_mib: int
    options: str


# With commit=600 ext4 writes nothing back for its age, so that a case is always the same.  A
# copy of an XFS has the UUID of the original, which is mounted too.
EXT4 = Kind("ext4", 24, "commit=600")
XFS = Kind("xfs", 300, "nouuid")


def why_not(kind: Kind, folder: Path) -> str | None:
    """Return why this machine cannot make one in ``folder``, None if it can."""
    if os.geteuid() != 0:
        return "only root can mount an image; run as root"
    if shutil.which(f"mkfs.{kind.name}") is None:
        package = "xfsprogs" if kind.name == "xfs" else "e2fsprogs"
        return f"mkfs.{kind.name} is missing; install {package}"
    try:
        with new_image(kind, folder):
            return None
    except ToolFailed as error:
        # No such file system in the kernel, no loop devices, a container that may not mount.
        return str(error)


def hide_mounts() -> None:
    """Give this process mounts of its own, which end with it however it ends."""
    if os.geteuid() == 0 and ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNS) == 0:
        with contextlib.suppress(ToolFailed):
            _run("mount", "--make-rprivate", "/")


class BlockImage:
    """A mounted image."""

    def __init__(self, file: Path, mount_point: Path) -> None:
        device = mount_point.stat().st_dev
        self._file = file
        self._statistics = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/stat")
        self.mount_point = mount_point

    def copy_to(self, target: Path) -> None:
        """Copy the present contents of the disk; copy again if the kernel wrote meanwhile."""
        for _ in range(_MOST_TRIES):
            before = self._statistics.read_text(encoding="ascii")
            _run("cp", "--reflink=auto", "--sparse=auto", str(self._file), str(target))
            if self._statistics.read_text(encoding="ascii") == before:
                return
        raise ToolFailed(f"{self._file} is never at rest; run again on a calmer machine")


@contextlib.contextmanager
def new_image(kind: Kind, folder: Path) -> Iterator[BlockImage]:
    """Make and mount an empty file system; unmount and remove it at the end."""
    file = folder / f"{kind.name}.img"
    with file.open("wb") as empty:
        empty.truncate(kind.size_mib * 2**20)
    with removed(file):
        _run(f"mkfs.{kind.name}", "-q", str(file))
        with mounted(file, folder / "disk", kind.options) as image:
            yield image


@contextlib.contextmanager
def removed(file: Path) -> Iterator[None]:
    """Remove a file at the end."""
    try:
        yield
    finally:
        file.unlink()


@contextlib.contextmanager
def mounted(file: Path, mount_point: Path, options: str) -> Iterator[BlockImage]:
    """Mount an image, which recovers its journal; unmount it at the end."""
    mount_point.mkdir(exist_ok=True)
    try:
        # A loop device that mount(8) makes goes with its mount, even if this process dies.
        _run("mount", "-o", f"loop,{options}", str(file), str(mount_point))
        yield BlockImage(file, mount_point)
    finally:
        if mount_point.is_mount():
            _run("umount", str(mount_point))


def _run(*command: str) -> str:
    # Out of reach of signals to this process group: an unmount must come to its end.
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, start_new_session=True
    )
    if done.returncode:
        raise ToolFailed(f"{' '.join(command)} failed: {done.stderr.strip()}")
    return done.stdout
