"""The contract of file systems, kept by those that can be mounted here."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from extended import extended
from faults import Rule
from faulty_mount import faulty_mount, needs_a_server
from filesystem_contract import LocalFileSystemContract

from holdfast.checkpoint.disk import Disk

pytestmark = pytest.mark.process

IMAGE_BYTES = 512 << 20  # sparse; mkfs.xfs takes no less than 300 MiB
MAKE = {
    "ext4": ("mkfs.ext4", "-q"),
    "xfs": ("mkfs.xfs", "-q"),
    "btrfs": ("mkfs.btrfs", "-q"),
}
BYTES, PAGE = 1 << 20, 4096


def _try(command: Sequence[str | Path]) -> None:
    """Run a command, or skip the test that needs it."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip(f"there is no {command[0]}")
    if done.returncode:
        pytest.skip(f"{command[0]} failed, which takes root: {done.stderr.strip()}")


def _mount_image(kind: str, folder: Path) -> Path:
    image, mount = folder / "image", folder / "mount"
    image.touch()
    os.truncate(image, IMAGE_BYTES)
    mount.mkdir()
    _try([*MAKE[kind], image])
    _try(["mount", "-t", kind, "-o", "loop", image, mount])
    return mount


def _mount_overlay(folder: Path) -> Path:
    # An overlay on an overlay is refused: that of a container has its files in memory here.
    layers, mount = folder / "layers", folder / "mount"
    layers.mkdir()
    mount.mkdir()
    _try(["mount", "-t", "tmpfs", "holdfast-test", layers])
    for name in ("lower", "upper", "work"):
        (layers / name).mkdir()
    named = f"lowerdir={layers}/lower,upperdir={layers}/upper,workdir={layers}/work"
    try:
        _try(["mount", "-t", "overlay", "-o", named, "holdfast-test", mount])
    except BaseException:
        subprocess.run(["umount", layers], check=True)
        raise
    return mount


class TestMountedDisk(LocalFileSystemContract):
    """Disks of other kinds than the one of the temporary files."""

    @pytest.fixture(params=["overlay", *map(extended, MAKE)])
    def root(self, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
        kind = request.param
        mount = _mount_overlay(tmp_path) if kind == "overlay" else _mount_image(kind, tmp_path)
        (mount / "root").mkdir()  # beside lost+found
        try:
            yield mount / "root"
        finally:
            subprocess.run(["umount", mount], check=True)
            if kind == "overlay":
                subprocess.run(["umount", tmp_path / "layers"], check=True)


@needs_a_server
class TestServer(LocalFileSystemContract):
    """A file server that tells no kinds of names, without ``renameat2``."""

    @pytest.fixture
    def root(self, tmp_path: Path) -> Iterator[Path]:
        with faulty_mount(tmp_path, tells_kinds=False) as mounted:
            yield mounted.path


@needs_a_server
@pytest.mark.parametrize("error", ["EOPNOTSUPP", "ENOSYS"])
def test_no_byte_is_written_in_place_of_a_reservation(error: str, tmp_path: Path) -> None:
    """glibc would write one into each page, and then the contents again."""
    with faulty_mount(tmp_path) as mounted:
        mounted.set(Rule(("fallocate",), error=error), Rule(("write",)))
        disk = Disk()
        disk.write_durably(mounted.path / "file", [memoryview(os.urandom(BYTES))])

        assert mounted.struck(0) == 1
        # The kernel may cut some calls in two; an emulation would double them all.
        assert 0 < mounted.struck(1) < 1.5 * BYTES / PAGE
    told = ("space cannot be reserved ahead: a full disk shows late",)
    assert disk.new_downgrades(set()) == told
