"""Keeps the hosts of a cluster, as a program: ``host_keeper PLAN``; ends with its stdin.

A host is a set of namespaces.  They have no names and no files, so nothing of them outlives their
processes: the first one of a host, which serves its remote shell, and all that the host runs.
The bridge between the hosts lies in this process's own network namespace.

Each line on stdin is the name of a host to start; the answer is a line with the number of its
first process.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from remote_shell import PORT, SESSION, serve

FIRST = "bed-first"
"""The name of a host's first process; that of each process of the bed begins alike."""
BRIDGE = "bridge"
INTERFACE = "eth0"

_CLONE_NEWNS, _CLONE_NEWUTS, _CLONE_NEWIPC = 0x20000, 0x4000000, 0x8000000
_CLONE_NEWPID, _CLONE_NEWNET = 0x20000000, 0x40000000
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 2, 4, 8
_MS_BIND, _MS_REC, _MS_PRIVATE = 4096, 16384, 1 << 18
_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15
OWN_FOLDERS = ("/dev/shm", "/tmp", "/run")
"""What each host has for itself; the rest of the file system is everybody's."""

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Plan:
    """The hosts with their addresses, and the folders that all of them see wherever they lie."""

    addresses: Mapping[str, str]
    prefix: int
    hosts_file: str
    shared: Sequence[str]

    @property
    def head(self) -> str:
        """The host without a process namespace: others' namespaces are entered from it."""
        return next(iter(self.addresses))


class Keeper:
    """The parent of all hosts."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._namespaces: dict[int, str] = {}
        """That of each host by the process that waits for its first one."""
        self._ports = 0
        _unshare(_CLONE_NEWNET)
        _ip([f"link add {BRIDGE} type bridge", f"link set {BRIDGE} up", "link set lo up"])

    def start(self, name: str) -> int:
        """Start a host; return the number of its first process."""
        telling, told = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(telling)
            os._exit(self._stand_between(name, told))
        os.close(told)
        with os.fdopen(telling) as answer:
            words = answer.read().split()
        pid = int(next(word for word in words if word.isdigit()))
        if "ready" not in words:
            raise ChildProcessError(f"host {name} has not come up")
        self._namespaces[child] = os.readlink(f"/proc/{pid}/ns/net")
        self._connect(name, pid)
        return pid

    def end(self) -> None:
        """Kill all processes of all hosts.

        The kernel may have given the name of a dead host's namespace to another cluster's host.
        """
        for child, namespace in self._namespaces.items():
            with contextlib.suppress(ChildProcessError):  # it is gone, and its host with it
                if os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                    kill_all(namespace)

    def _stand_between(self, name: str, told: int) -> int:
        """Wait for the first process: only a child of this one can be the first in a namespace."""
        _control(_PR_SET_PDEATHSIG, signal.SIGKILL)
        is_head = name == self._plan.head
        if not is_head:
            _unshare(_CLONE_NEWPID)
        first = os.fork()
        if first == 0:
            _control(_PR_SET_PDEATHSIG, signal.SIGTERM if is_head else signal.SIGKILL)
            os._exit(_be_first(self._plan, name, told, is_head=is_head))
        os.write(told, f"{first}\n".encode())
        os.close(told)
        os.waitpid(first, 0)
        return 0

    def _connect(self, name: str, pid: int) -> None:
        """Give the host its interface; its hardware address stays the same after a restart."""
        address = self._plan.addresses[name]
        self._ports += 1
        port, temporary = port_of(name), f"new{self._ports}"
        hardware = "02:00:" + ":".join(f"{int(part):02x}" for part in address.split("."))
        # The kernel takes a moment to remove a dead host's, and may do so at this very one.
        old = ["ip", "link", "del", port]
        subprocess.run(old, stderr=subprocess.DEVNULL, check=False)
        peer = f"peer name {INTERFACE} address {hardware} netns {pid}"
        _ip(
            [
                f"link add {temporary} type veth {peer}",
                f"link set {temporary} name {port}",
                f"link set {port} master {BRIDGE} up",
            ]
        )
        inside = [
            "link set lo up",
            f"addr add {address}/{self._plan.prefix} dev {INTERFACE}",
            f"link set {INTERFACE} up",
        ]
        _ip(inside, pid)


def port_of(host: str) -> str:
    """Return the bridge's interface at the cable of a host."""
    return f"to-{host}"


def kill_all(namespace: str) -> None:
    """SIGKILL each process of a network namespace until there is none.

    The namespace is held, so that no other one gets its name meanwhile.
    """
    with contextlib.ExitStack() as held:
        for pid in processes_of(namespace):
            with contextlib.suppress(OSError):
                file = held.enter_context(Path(f"/proc/{pid}/ns/net").open("rb"))
                if f"net:[{os.fstat(file.fileno()).st_ino}]" == namespace:
                    break
        _kill_until_none(namespace)


def _kill_until_none(namespace: str) -> None:
    while pids := processes_of(namespace):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                continue
        select.select([], [], [], 0.01)


def processes_of(namespace: str) -> list[int]:
    """Return the processes of a network namespace, but this one; ended ones have none."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != os.getpid():
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/{entry}/ns/net") == namespace:
                    found.append(int(entry))
    return found


def _be_first(plan: Plan, name: str, told: int, *, is_head: bool) -> int:
    """Make the host around this process, and serve its remote shell until it is killed."""
    _control(_PR_SET_NAME, FIRST.encode())
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    _unshare(_CLONE_NEWNET | _CLONE_NEWNS | _CLONE_NEWUTS | _CLONE_NEWIPC)
    socket.sethostname(name)
    _mount_own(plan, has_processes=not is_head)
    listener = socket.create_server(("", PORT))
    woken, wakes = os.pipe()
    for end in (woken, wakes):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(wakes)
    ends = [False]
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGTERM, lambda *_: ends.__setitem__(0, True))
    os.write(told, b"ready\n")
    os.close(told)
    while not ends[0]:
        ready = select.select([listener.fileno(), woken], [], [])[0]
        if woken in ready:
            os.read(woken, 4096)
            _reap()
        if listener.fileno() in ready:
            _open_session(listener)
    kill_all(os.readlink("/proc/self/ns/net"))
    return 0


def _open_session(listener: socket.socket) -> None:
    connection, _ = listener.accept()
    if os.fork() == 0:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        listener.close()
        _control(_PR_SET_PDEATHSIG, 0)
        _control(_PR_SET_NAME, SESSION.encode())
        serve(connection)
    connection.close()


def _mount_own(plan: Plan, *, has_processes: bool) -> None:
    """Give the host its own memory and temporary files, and keep the shared folders in place."""
    _mount("none", "/", "", _MS_REC | _MS_PRIVATE)
    kept = {path: os.open(path, os.O_PATH) for path in plan.shared if _is_own(path)}
    hosts_file = os.open(plan.hosts_file, os.O_PATH)
    for place in OWN_FOLDERS:
        _mount("tmpfs", place, "tmpfs", _MS_NOSUID | _MS_NODEV, "mode=1777")
    for path, source in kept.items():
        Path(path).mkdir(parents=True, exist_ok=True)
        _mount(f"/proc/self/fd/{source}", path, "", _MS_BIND)
        os.close(source)
    _mount(f"/proc/self/fd/{hosts_file}", "/etc/hosts", "", _MS_BIND)
    os.close(hosts_file)
    if has_processes:
        _mount("proc", "/proc", "proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)


def _is_own(path: str) -> bool:
    return any(Path(path).is_relative_to(place) for place in OWN_FOLDERS)


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            continue


def _ip(lines: Sequence[str], pid: int | None = None) -> None:
    """Run lines of ``ip`` here, or in the network of a process."""
    inside = [] if pid is None else ["nsenter", "--target", str(pid), "--net"]
    subprocess.run(
        [*inside, "ip", "-batch", "-"], input="\n".join(lines) + "\n", text=True, check=True
    )


def _unshare(flags: int) -> None:
    _check(_libc.unshare(flags), "unshare")


def _mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    words = [word.encode() for word in (source, target, kind)]
    _check(_libc.mount(*words, ctypes.c_ulong(flags), data.encode()), f"mount {target}")


def _control(option: int, value: int | bytes) -> None:
    argument = value if isinstance(value, bytes) else ctypes.c_ulong(value)
    _check(_libc.prctl(option, argument, 0, 0, 0), "prctl")


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def main() -> None:
    """Start hosts as told, and end all of them with stdin."""
    keeper = Keeper(Plan(**json.loads(sys.argv[1])))
    try:
        for line in sys.stdin:
            print(keeper.start(line.strip()), flush=True)
    finally:
        keeper.end()


if __name__ == "__main__":
    main()
