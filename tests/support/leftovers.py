"""A plugin that fails each test that leaves something behind, and says what.

Others may test on the same machine at the same time, so only what is this run's counts:

* processes that bear the run's mark in their environment, and children of this process;
* all that lies in the directory that ``TMPDIR``, and Open MPI's shared segments, have here;
* directories in ``/dev/shm`` whose name holds the number of a process that the test started;
* mounts below pytest's temporary directories, and the mount namespace of this process.

A process that was told to end is waited for.  After that nobody is left who would remove
a file, so files are looked at once.  A process that stays is killed.

A run that is told to end by SIGTERM ends like one that is interrupted: it cleans up first.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.runtime.system.processes import marked_processes, wait_all_ended

MARK = "HOLDFAST_TEST_RUN"
ENDS_WITHIN_S = 30.0
SLOW_MARKS = ("mpi", "process", "tensorflow")
"""Tests with these marks start processes that do not stay their children."""
_SHARED_MEMORY = Path("/dev/shm")
_REMOVED_AT_EXIT = "__autograph_generated_file"
"""TensorFlow keeps the source of a traced function as long as the process lives.  Python may write
its bytecode beside it."""
_OWNER = re.compile(r"holdfast-(?:\w+-)?(\d+)-")


class Leftovers:
    """What was there before, and what of this run was added since."""

    def __init__(self, basetemp: Path, patch: pytest.MonkeyPatch) -> None:
        self.temporary = basetemp / "leftovers"
        self.temporary.mkdir()
        self._basetemp = basetemp
        self._token = secrets.token_hex(8)
        self._started: set[int] = set()
        self._kept: set[int] = set()
        self._shared = _names(_SHARED_MEMORY)
        self._mounts = self._mounted()
        self._namespace = os.readlink("/proc/self/ns/mnt")
        patch.setenv(MARK, self._token)
        patch.setenv("TMPDIR", str(self.temporary))
        patch.setattr("tempfile.tempdir", None)
        # A launch names a directory of its own on its command line, which goes first.
        patch.setenv("OMPI_MCA_btl_sm_backing_directory", str(self.temporary))
        patch.setattr(subprocess.Popen, "__init__", self._noting(subprocess.Popen.__init__))

    def take(self, *, thoroughly: bool) -> list[str]:
        """Name all that was left since the last call, and remove what can be."""
        self._wait(self._alive(thoroughly=thoroughly))
        found = [*self._processes(thoroughly=thoroughly), *self._files()]
        mounts = self._mounted() - self._mounts
        self._mounts |= mounts
        namespace = os.readlink("/proc/self/ns/mnt")
        if namespace != self._namespace:
            found.append(f"mount namespace {namespace}")
            self._namespace = namespace
        self._started.clear()
        return [*found, *(f"mount {place}" for place in sorted(mounts))]

    def keep(self, pid: int) -> None:
        """Let a child live that serves several tests; whoever started it ends it."""
        self._kept.add(pid)

    def _noting(self, plain: Any) -> Any:
        """Return ``Popen.__init__`` such that it takes note of the process's number."""

        def init(process: subprocess.Popen[Any], *arguments: Any, **options: Any) -> None:
            plain(process, *arguments, **options)
            self._started.add(process.pid)

        return init

    def _alive(self, *, thoroughly: bool) -> set[int]:
        marked = set(marked_processes(f"{MARK}={self._token}")) if thoroughly else set()
        return (marked | _children()) - self._kept

    def _wait(self, pids: set[int]) -> None:
        wait_all_ended(pids, ENDS_WITHIN_S)

    def _processes(self, *, thoroughly: bool) -> Iterator[str]:
        for pid in self._alive(thoroughly=thoroughly):
            yield f"process {_describe(pid)}"
            _kill(pid)

    def _files(self) -> Iterator[str]:
        for path in sorted(self.temporary.iterdir()):
            if _is_of_traced_functions(path):
                continue
            yield f"file {path}"
            _remove(path)
        appeared = _names(_SHARED_MEMORY) - self._shared
        for name in sorted(appeared):
            owner = _OWNER.match(name)
            if owner and int(owner[1]) in self._started:
                yield f"file {_SHARED_MEMORY / name}"
                _remove(_SHARED_MEMORY / name)

    def _mounted(self) -> set[str]:
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
        places = {line.split()[4] for line in lines}
        return {place for place in places if Path(place).is_relative_to(self._basetemp)}


def pytest_configure() -> None:
    """Have SIGTERM interrupt the run, so that it leaves nothing behind."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


@pytest.fixture(scope="session")
def leftovers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Leftovers]:
    """What is looked at after each test; the whole run is looked at in the end."""
    with pytest.MonkeyPatch.context() as patch:
        found = Leftovers(tmp_path_factory.getbasetemp(), patch)
        yield found
        left = found.take(thoroughly=True)
    shutil.rmtree(found.temporary)
    if left:
        pytest.fail(f"the run has left behind: {'; '.join(left)}", pytrace=False)


@pytest.fixture(autouse=True)
def _leaves_nothing(leftovers: Leftovers, request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail the test, or the wider fixtures that it was the first to use, if something is left."""
    yield
    thoroughly = any(request.node.get_closest_marker(mark) for mark in SLOW_MARKS)
    left = leftovers.take(thoroughly=thoroughly)
    if left:
        pytest.fail(f"{request.node.nodeid} has left behind: {'; '.join(left)}", pytrace=False)


def _is_of_traced_functions(path: Path) -> bool:
    """Whether it is the source of a traced function, or the folder of such bytecode alone."""
    files = [*path.iterdir()] if path.name == "__pycache__" else [path]
    return bool(files) and all(file.name.startswith(_REMOVED_AT_EXIT) for file in files)


def _names(directory: Path) -> set[str]:
    try:
        return set(os.listdir(directory))
    except FileNotFoundError:
        return set()


def _children() -> set[int]:
    """Return the children of this process, ended ones that nobody waited for included."""
    found: set[int] = set()
    for thread in Path("/proc/self/task").iterdir():
        try:
            found.update(map(int, (thread / "children").read_text().split()))
        except FileNotFoundError:  # the thread has ended
            continue
    return found


def _describe(pid: int) -> str:
    try:
        line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        name = Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return f"{pid}"
    return f"{pid} {line.strip()[:200]}" if line else f"{pid} {name}, which nobody waited for"


def _kill(pid: int) -> None:
    """End a process of this run for certain; a child is waited for."""
    try:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    except (ProcessLookupError, ChildProcessError):
        return


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
