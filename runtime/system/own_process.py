"""What a process asks of Linux about itself, and sets for itself and its descendants.

Only this file calls ``prctl``.  It loads no library, because a job begins with it.

A descendant that is a Python process forgets the working directory before it imports anything.
``python -m`` and ``python -c`` look for modules there first.  The user may have a ``queue.py``
there.  If others can write to it, they may leave a ``psutil.py`` there.  ``PYTHONPATH`` counts:
the user's script may need it.  (Python 3.11 has ``-P``.)

Memory that other processes can map has no name, and its size is fixed.

Control groups are files (cgroups(7)).  Version 1 has one tree for each controller, version 2 one
for all.  A limit of any ancestor binds, so all levels count.  ``/proc/self/cgroup`` names a group
by its path below the mount.  Inside a container that may be the path of the host, and then the
mount itself is the container's group.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import pwd
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from holdfast.runtime.system.witnessed_time import Bound

_MOUNT = "sys/fs/cgroup"


class Resource(Enum):
    """A thing that a host runs out of; its value is its name for people."""

    MEMORY = "memory"
    SHARED_MEMORY = "shared memory"
    PROCESSES = "processes and threads"
    FILES = "open files"

    @property
    def is_bytes(self) -> bool:
        """Whether it is counted in bytes."""
        return self in (Resource.MEMORY, Resource.SHARED_MEMORY)


@dataclass(frozen=True, slots=True)
class Usage:
    """The use of a resource, and the limit that ``place`` sets to it; bytes or a count."""

    resource: Resource
    place: str
    used: int
    limit: int

    @property
    def share(self) -> float:
        """The used part of the limit."""
        return self.used / self.limit

    @property
    def free(self) -> int:
        """What is left, never below 0."""
        return max(0, self.limit - self.used)


def find_levels(root: Path, controller: str) -> tuple[Path, ...]:
    """Return the directories that bind this process by ``memory``, ``pids`` or ``cpu``.

    Its own group is the first.  ``root`` is that of the file system.
    """
    paths = dict(_parse(read_lines(root / "proc/self/cgroup")))
    # A tree may have several: cpu,cpuacct.
    trees = [t for t in sorted((root / _MOUNT).glob("*")) if controller in t.name.split(",")]
    if controller in paths and trees and trees[0].is_dir():
        return _walk_up(trees[0], paths[controller])
    for mount in (root / _MOUNT, root / _MOUNT / "unified"):
        if (mount / "cgroup.controllers").is_file():
            return _walk_up(mount, paths.get("", "/"))
    return ()


def granted_cores(root: Path = Path("/")) -> float | None:
    """Return the cores that the quotas of this process's control groups grant, None without any."""
    quotas = [_quota(level) for level in find_levels(root, "cpu")]
    return min((quota for quota in quotas if quota), default=None)


def _quota(level: Path) -> float | None:
    """Return the cores that a group has: by ``cpu.max``, or by the two files of version 1."""
    names = ("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")
    for files in names:
        words = [word for name in files for word in " ".join(read_lines(level / name)).split()]
        if len(words) == 2 and all(map(str.isdecimal, words)) and int(words[1]):
            return int(words[0]) / int(words[1])
    return None


def read_number(path: Path) -> int | None:
    """Return the number in a file; None if there is none, or it is ``max``."""
    lines = read_lines(path)
    return int(lines[0]) if lines and lines[0].isdecimal() else None


def read_lines(path: Path) -> list[str]:
    """Return the lines of a file, none if it cannot be read."""
    try:
        return path.read_text().splitlines()
    except OSError:  # not of this kernel or this mount, or its group is gone
        return []


def _parse(lines: Iterable[str]) -> Iterable[tuple[str, str]]:
    """Yield controller and path; the tree of version 2 has the controller ""."""
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        yield from ((controller, path) for controller in controllers.split(","))


def _walk_up(mount: Path, path: str) -> tuple[Path, ...]:
    """Return the group and its ancestors, up to the mount."""
    own = mount / path.lstrip("/")
    if ".." in own.parts:
        return (mount,)
    levels = [own, *own.parents]
    return tuple(levels[: levels.index(mount) + 1])


# linux/prctl.h
_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36

# linux/fcntl.h and linux/memfd.h; Python 3.10 does not name the seals
_F_ADD_SEALS = 1033
_SEAL_SEAL, _SEAL_SHRINK, _SEAL_GROW = 1, 2, 4

_ENV = "/usr/bin/env"

_FORGET_WORKING_DIRECTORY = "import sys; sys.path[:1] == [''] and sys.path.pop(0); "
_RUN_MODULE = "import runpy; runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"


def usable_cores() -> int:
    """Return the number of cores that this process may run on; at least 1.

    It is the size of the affinity mask, limited to the whole cores that the process's control
    groups grant.  Containers and batch systems set that limit, and the mask does not show it.
    """
    cores = len(os.sched_getaffinity(0))
    granted = granted_cores()
    return max(1, min(cores, int(granted))) if granted else cores


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent dies (prctl(2))."""
    _prctl(_PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(1))


def die_with_parent(parent: int) -> None:
    """Let the kernel send this process SIGKILL as soon as ``parent`` is dead.

    It comes at once when ``parent`` is not (or no longer) its parent.
    The setting follows the parent's *thread* that forked, and is lost when the
    process is handed to another parent: call it last.
    """
    _prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def name_process(name: str) -> None:
    """Set the name that ps and top show; Linux keeps the first 15 bytes."""
    _prctl(_PR_SET_NAME, ctypes.create_string_buffer(os.fsencode(name)[:15]))


def allow_many_files() -> int:
    """Raise this process's limit of open files to what its user may have; return the old one.

    So it does with the limit of their size.
    """
    before, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    for limit in (resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE):
        most = resource.getrlimit(limit)[1]
        resource.setrlimit(limit, (most, most))
    return before


def allow_files(count: int) -> None:
    """Set this process's limit of open files to ``count``, or to what its user may have."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = count if most == resource.RLIM_INFINITY else min(count, most)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, most))


def logical_directory() -> Path:
    """Return the working directory by its name in ``PWD``, where links stay, if it is that one."""
    name = os.environ.get("PWD", "")
    with contextlib.suppress(OSError):
        if os.path.isabs(name) and os.path.samefile(name, "."):
            return Path(name)
    return Path.cwd()


def own_umask() -> int:
    """Return the umask of this process; the system call would change it for all threads."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1], 8) for line in status if line.startswith("Umask:"))


def home_for_mpi(environment: Mapping[str, str], otherwise: str) -> dict[str, str]:
    """Return the variable that Open MPI insists on, and asks for settings; {} if it is there.

    A container may run as a user without a name, who has no home; then it is ``otherwise``.
    """
    if environment.get("HOME"):
        return {}
    with contextlib.suppress(KeyError):
        return {"HOME": pwd.getpwuid(os.getuid()).pw_dir}
    return {"HOME": otherwise}


def thread_count() -> int:
    """Return the number of threads of this process, those of C libraries included."""
    return len(os.listdir("/proc/self/task"))


def is_single_threaded(within_s: float) -> bool:
    """Return whether one thread is left; threads that are just ending get ``within_s``.

    Joining a thread returns a moment before the kernel has taken it off the list.
    """
    bound = Bound(within_s)
    while thread_count() > 1:
        if bound.has_passed:
            return False
        time.sleep(0.001)
    return True


def _prctl(option: int, argument: object) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    unused = ctypes.c_ulong(0)
    if libc.prctl(option, argument, unused, unused, unused) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}) failed: {os.strerror(number)}")


def sealed_memory(name: str, size: int) -> int:
    """Return a descriptor of ``size`` zero bytes that take no memory before they are written.

    Memory that could shrink would end its readers with SIGBUS.
    """
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, size)
    except OSError as error:
        os.close(fd)
        if error.errno != errno.EFBIG:
            raise
        most = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
        reason = f"{size} bytes of shared memory, and files may have {most}: `ulimit -f unlimited`"
        raise OSError(errno.EFBIG, reason) from None
    fcntl.fcntl(fd, _F_ADD_SEALS, _SEAL_SHRINK | _SEAL_GROW | _SEAL_SEAL)
    return fd


def trim_memory() -> None:
    """Return to the system what the C library holds of freed memory, in pieces of any place.

    It keeps all that a process has needed at once, which a start needs far more of than a step.
    """
    with contextlib.suppress(AttributeError):  # other C libraries keep little
        ctypes.CDLL(None).malloc_trim(0)


def module_command(module: str, *arguments: str) -> tuple[str, ...]:
    """Return the command line that runs a module as ``python -m`` does."""
    return program_command(_RUN_MODULE, module, *arguments)


def program_command(program: str, *arguments: str) -> tuple[str, ...]:
    """Return the command line that runs a program's text as ``python -c`` does."""
    return (sys.executable, "-c", _FORGET_WORKING_DIRECTORY + program, *arguments)


def by_env(command: Sequence[str]) -> list[str]:
    """Return a command that starts at once, even if its program lies on a disk that hangs.

    ``Popen`` returns when the program is loaded, and all threads stand still until then (vfork(2)).
    So ``env``, which is the host's own, is loaded.  It becomes the program, and waits in our place.
    """
    is_possible = "=" not in command[0] and os.access(_ENV, os.X_OK)
    return [_ENV, *command] if is_possible else [*command]


def has_ended(process: subprocess.Popen[bytes], within_s: float) -> bool:
    """Wait for the end of a child, but not for long: a disk that hangs may keep it for ever."""

    def wait(left_s: float) -> bool:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(left_s)
        return process.poll() is not None

    return Bound(within_s).wait(wait)


def answer_of(
    command: Sequence[str], within_s: float, environment: Mapping[str, str], text: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run a program that reads ``text`` to its end, and return what it has said.

    Raises:
        OSError: it cannot be started.
        subprocess.TimeoutExpired: it has not ended in time; it was killed.
    """
    unread: str | None = text
    with subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.PIPE if text else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    ) as process:

        def communicate(seconds: float) -> tuple[str, str] | None:
            nonlocal unread
            given, unread = unread, None
            try:
                return process.communicate(given or None, timeout=seconds)
            except subprocess.TimeoutExpired:
                return None

        try:
            said = Bound(within_s).wait(communicate)
            if said is None:
                raise subprocess.TimeoutExpired(command, within_s)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(command, process.returncode, *said)
