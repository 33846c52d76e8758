"""Space is reserved by the kernel, or not at all: no libc writes zeros in its place."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.checkpoint import filesystem
from holdfast.checkpoint.disk import Disk
from holdfast.checkpoint.errors import StorageFailed
from holdfast.checkpoint.filesystem import LocalFileSystem

DOWNGRADE = "space cannot be reserved ahead: a full disk shows late"

_SAVE = """
from pathlib import Path
from holdfast.checkpoint.disk import Disk
disk = Disk()
for name in ("first", "second"):
    disk.write_durably(Path(name), [memoryview(bytes(range(256)) * 1024)])
print(*disk.downgrades, sep="|")
"""


def let_fallocate_answer(monkeypatch: pytest.MonkeyPatch, *numbers: int) -> list[str]:
    """Let one call after the other fail with a number, 0 for success; returns the calls made."""
    answers, calls = list(numbers), []

    def answer(*_arguments: object) -> int:
        number = answers.pop(0)
        ctypes.set_errno(number)
        return -1 if number else 0

    def function(name: str) -> Callable[..., int] | None:
        calls.append(name)
        return answer

    monkeypatch.setattr(filesystem, "_function", function)
    return calls


def test_blocks_are_reserved_and_the_file_has_its_size(tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as file:
        LocalFileSystem().allocate(file.fileno(), 2**20)
        found = os.fstat(file.fileno())

    assert (found.st_size, found.st_blocks * 512 >= 2**20) == (2**20, True)


@pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.ENOSYS])
def test_file_system_without_reservation_is_told_of_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    calls = let_fallocate_answer(monkeypatch, number, number)
    written: list[int] = []
    plain = LocalFileSystem.write

    def write(files: LocalFileSystem, handle: int, buffers: list[memoryview], offset: int) -> int:
        written.append(sum(map(len, buffers)))
        return plain(files, handle, buffers, offset)

    monkeypatch.setattr(LocalFileSystem, "write", write)
    monkeypatch.setattr(os, "posix_fallocate", lambda *_: pytest.fail("glibc emulates"))
    disk, told = Disk(LocalFileSystem(tmp_path)), set[str]()

    for name in ("first", "second"):
        disk.write_durably(tmp_path / name, [memoryview(bytes(10_000))])

    assert calls == ["fallocate", "fallocate"]
    assert written == [10_000, 10_000]  # nothing was written twice
    assert disk.new_downgrades(told) == (DOWNGRADE,)
    assert disk.new_downgrades(told) == ()


def test_libc_without_the_call_is_a_downgrade(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filesystem, "_function", lambda _name: None)
    disk = Disk(LocalFileSystem(tmp_path))

    disk.write_durably(tmp_path / "file", [memoryview(b"data")])

    assert (tmp_path / "file").read_bytes() == b"data"
    assert disk.downgrades == (DOWNGRADE,)


def test_interrupted_reservation_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = let_fallocate_answer(monkeypatch, errno.EINTR, errno.EINTR, 0)

    LocalFileSystem().allocate(0, 100)

    assert len(calls) == 3


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_full_disk_is_an_error_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    let_fallocate_answer(monkeypatch, number)

    with pytest.raises(StorageFailed) as failure:
        Disk(LocalFileSystem(tmp_path)).write_durably(tmp_path / "file", [memoryview(b"data")])

    assert failure.value.errno == number
    assert list(tmp_path.iterdir()) == []


@pytest.mark.process
def test_kernel_that_reserves_nothing_sees_each_byte_once(tmp_path: Path) -> None:
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("strace shows the system calls")
    trace = tmp_path / "trace"
    command = [strace, "-f", "-o", str(trace), "-e", "trace=fallocate,pwrite64,pwritev,pwritev2"]
    command += ["-e", "inject=fallocate:error=EOPNOTSUPP", sys.executable, "-c", _SAVE]

    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    if "ptrace" in done.stderr.lower():
        pytest.skip("this machine lets no process be traced")
    calls = [line.split(maxsplit=1)[1] for line in trace.read_text().splitlines() if "(" in line]
    assert done.stdout.strip() == DOWNGRADE
    names = [call.split("(")[0].removesuffix("2") for call in calls]
    assert names == ["fallocate", "pwritev"] * 2
    assert (tmp_path / "second").read_bytes() == bytes(range(256)) * 1024
