"""Hosts of a cluster on one machine, with a network between them that can be broken.

A host has namespaces of its own: network, name, ``/dev/shm`` and ``/tmp``, IPC, and processes.  The
rest of the file system is everybody's, and so is the folder that the cluster was made with::

    with Cluster(tmp_path) as cluster:
        cluster.run("b", ["true"])
        cluster.kill("b")

The first host is the head.  Its processes have the numbers of this machine, because the other
hosts' namespaces are entered from it.  ``cluster.rsh`` is the remote shell between hosts.  It goes
through their network; ``run`` and ``popen`` do not.

All is held by one process (`host_keeper.py`), and ends when this process lets go of it or
dies.  Clusters know nothing of each other, so they may all have the same addresses.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from host_keeper import (
    BRIDGE,
    INTERFACE,
    kill_all,
    port_of,
    processes_of,
)

NETWORK = "10.77.0.0/24"
"""The network between the hosts of each cluster."""
WITHIN_S = 240.0
_HERE = Path(__file__).resolve()
_PROGRAM_FOLDERS = (str(_HERE.parents[3]), sys.prefix, sys.base_prefix)
"""Where holdfast and its Python are: each host sees them, wherever they lie."""
_FOR_PYTHON = ("PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH")
_PROGRAMS = ("ip", "tc", "ss", "nsenter", "setpriv")
_PATH = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
_OF_THE_BED = (
    "bed-",
    "nsenter",
    "munged",
    "slurmctld",
    "slurmscriptd",
    "slurmd",
    "slurmstepd",
    "sshd",
)
"""How the names of processes begin that belong to the hosts, not to what runs there."""
_PROCESS = re.compile(r'"([^"]+)",pid=(\d+)')
_LOOK_S = 0.02
_NONE = ""
"""The network namespace of a dead host: the kernel may give its name to another one."""


def why_not() -> str | None:
    """Return the reason why no hosts can be made here, None if they can."""
    if os.geteuid() != 0:
        return "namespaces are made as root only"
    missing = [program for program in _PROGRAMS if shutil.which(program, path=_PATH) is None]
    if missing:
        return f"{', '.join(missing)} is not installed (Debian: iproute2 and util-linux)"
    apart = ["unshare", "--net", "--mount", "--uts", "--ipc", "--pid", "--fork", "--mount-proc"]
    link = ["ip", "link", "add", "name", "probe", "type", "veth", "peer", "name", "eborp"]
    tried = subprocess.run([*apart, *link], capture_output=True, text=True, check=False)
    return f"this machine makes no hosts: {tried.stderr.strip()}" if tried.returncode else None


@dataclass(frozen=True, slots=True)
class Listener:
    """A TCP socket that takes connections, and the names of the processes that hold it."""

    address: str
    port: int
    processes: tuple[str, ...]


@dataclass(slots=True)
class _Link:
    """What the cable of a host carries in one direction."""

    bits_per_s: int | None = None
    carries: bool = True


class Cluster:
    """Some hosts; as a context manager they live as long as the block."""

    def __init__(
        self, shared: Path, names: Sequence[str] = ("a", "b", "c"), also: Sequence[Path] = ()
    ) -> None:
        """Name the hosts; all see the folder ``shared``, and those of ``also``, wherever they lie.

        Files of the cluster itself are in a new folder of ``shared``.
        """
        self.names = tuple(names)
        self.shared = shared
        self._seen = sorted({str(shared), *map(str, also), *_PROGRAM_FOLDERS})
        self.directory = shared / "cluster"
        self.rsh = str(self.directory / "rsh")
        self._addresses = {name: f"10.77.0.{n}" for n, name in enumerate(names, start=1)}
        self._at_start: list[Callable[[str], None]] = []
        self._first: dict[str, int] = {}
        self._network: dict[str, str] = {}
        self._to = {name: _Link() for name in names}
        self._from = {name: _Link() for name in names}

    @property
    def head(self) -> str:
        """The first host."""
        return self.names[0]

    @property
    def keeper(self) -> int:
        """The number of the process that holds the cluster."""
        return self._keeper.pid

    def address(self, host: str) -> str:
        """Return the address of a host in the cluster's network."""
        return self._addresses[host]

    def start(self) -> None:
        """Make the hosts."""
        self.directory.mkdir()
        self._write_files()
        plan = {
            "addresses": self._addresses,
            "prefix": int(NETWORK.partition("/")[2]),
            "hosts_file": str(self.directory / "hosts"),
            "shared": self._seen,
        }
        # Nothing else of this environment: what begins with a host is not what runs there.
        python = {name: os.environ[name] for name in _FOR_PYTHON if name in os.environ}
        self._keeper = subprocess.Popen(
            [sys.executable, str(_HERE.with_name("host_keeper.py")), json.dumps(plan)],
            env={"PATH": _PATH, **python},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        for host in self.names:
            self.restart(host)

    def stop(self) -> None:
        """End all processes of all hosts, and the hosts."""
        self._keeper.communicate(timeout=WITHIN_S)

    def __enter__(self) -> Cluster:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()

    # Programs on hosts

    def run(
        self, host: str, argv: Sequence[str], *, timeout: float = WITHIN_S, **options: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run a program on a host to its end; further options are those of ``popen``."""
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        check = options.pop("check", True)
        with self.popen(host, argv, **{**pipes, **options}) as process:
            try:
                out, err = process.communicate(timeout=timeout)
            except BaseException:
                process.kill()
                raise
        if check and process.returncode:
            raise subprocess.SubprocessError(f"{host}: {argv}: {process.returncode} {err}")
        return subprocess.CompletedProcess(list(argv), process.returncode, out, err)

    def popen(
        self,
        host: str,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | str = "/",
        **options: Any,
    ) -> subprocess.Popen[Any]:
        """Start a program on a host, without its network.

        On the head this is the program itself.  Elsewhere a process stands before it here, and the
        program is killed with that.
        """
        environment = {**os.environ, "PATH": _PATH} if env is None else dict(env)
        # What the caller has for itself in /tmp is not there on a host.
        environment.pop("OMPI_MCA_btl_sm_backing_directory", None)
        environment["TMPDIR"] = "/tmp"
        line = [*self.entering(host), "env", "-C", str(cwd), *argv]
        stdin = options.pop("stdin", subprocess.DEVNULL)
        return subprocess.Popen(line, env=environment, stdin=stdin, **options)

    def entering(self, host: str) -> list[str]:
        """Return the words before a command line that run it on a host, in the folder ``/``."""
        words = ["nsenter", "--target", str(self._first[host])]
        words += ["--net", "--mount", "--uts", "--ipc"]
        if host != self.head:
            words += ["--pid", "setpriv", "--pdeathsig", "KILL"]
        return words

    # What breaks

    def kill(self, host: str, *, silently: bool = False) -> None:
        """Lose a host: all its processes die at once.

        Its kernel tells the peers of open connections, as after a kill or a crash of programs.  A
        host that loses its power is silent.
        """
        if self._network[host] == _NONE:
            return
        if silently:
            self.cut(host)
        if host != self.head:
            os.kill(self._first[host], signal.SIGKILL)
        kill_all(self._network[host])
        self._network[host] = _NONE

    def restart(self, host: str) -> None:
        """Start a host that was lost, with a healthy cable."""
        assert self._keeper.stdin is not None
        assert self._keeper.stdout is not None
        self._keeper.stdin.write(f"{host}\n")
        self._keeper.stdin.flush()
        answer = self._keeper.stdout.readline()
        if not answer:
            raise ChildProcessError(f"the hosts' keeper has ended at the start of {host}")
        self._first[host] = int(answer)
        self._network[host] = os.readlink(f"/proc/{int(answer)}/ns/net")
        self._to[host], self._from[host] = _Link(), _Link()
        for begin in self._at_start:
            begin(host)

    def at_start(self, begin: Callable[[str], None]) -> None:
        """Start daemons on each host now, and on each that starts again."""
        for host in self.names:
            begin(host)
        self._at_start.append(begin)

    def freeze(self, host: str) -> None:
        """Stop all processes of a host; its kernel goes on to acknowledge what arrives."""
        stopped: set[int] = set()
        while found := set(processes_of(self._network[host])) - stopped:
            for pid in found:
                _send(pid, signal.SIGSTOP)
            stopped |= found

    def thaw(self, host: str) -> None:
        """Let the processes of a host go on."""
        for pid in processes_of(self._network[host]):
            _send(pid, signal.SIGCONT)

    def cut(self, host: str) -> None:
        """Let nothing pass to or from a host; its interface sees no difference."""
        self._between(["ip", "link", "set", port_of(host), "nomaster"])

    def heal(self, host: str) -> None:
        """Let everything pass again, in both directions."""
        for links in (self._to, self._from):
            links[host].carries = True
        self._lay(host)
        self._between(["ip", "link", "set", port_of(host), "master", BRIDGE])

    def deafen(self, host: str) -> None:
        """Let nothing pass to a host; what it sends arrives."""
        self._to[host].carries = False
        self._lay(host)

    def mute(self, host: str) -> None:
        """Let nothing pass from a host; what others send arrives."""
        self._from[host].carries = False
        self._lay(host)

    def part(self, first: str, second: str) -> None:
        """Let two hosts lose each other; all others reach both."""
        for host, other in ((first, second), (second, first)):
            nowhere = ["lladdr", "02:00:00:00:00:99", "nud", "permanent"]
            words = ["ip", "neigh", "replace", self.address(other), "dev", INTERFACE, *nowhere]
            self.run(host, words)

    def shell_past_the_network(self) -> str:
        """Return a remote shell that reaches a host whatever becomes of its cable."""
        begin = "env -i PATH=$PATH sh -c"
        ways = "".join(
            f'{host}) shift; exec {shlex.join(self.entering(host))} {begin} "$*";;\n'
            for host in self.names
        )
        path = self.directory / "past"
        path.write_text(f"#!/bin/sh\ncase $1 in\n{ways}esac\n")
        path.chmod(0o755)
        return str(path)

    def narrow(self, host: str, most_bytes: int) -> None:
        """Let larger packets to a host be lost on the way, as a switch with another MTU does."""
        self._between(["ip", "link", "set", port_of(host), "mtu", str(most_bytes)])

    def shape(self, bits_per_s: int | None, hosts: Sequence[str] | None = None) -> None:
        """Give the cables of hosts a rate in each direction; None takes the limit away."""
        for host in self.names if hosts is None else hosts:
            self._to[host].bits_per_s = self._from[host].bits_per_s = bits_per_s
            self._lay(host)

    # What is there

    def processes(self, host: str) -> dict[int, str]:
        """Return the command of each process that runs on a host, by its number on this machine.

        The host's own daemons are left out, and so is what has ended.
        """
        found = {}
        for pid in processes_of(self._network[host]):
            name = _read(f"/proc/{pid}/comm").strip()
            command = _read(f"/proc/{pid}/cmdline").replace("\0", " ").strip()
            if command and not name.startswith(_OF_THE_BED):
                found[pid] = f"{name}: {command}"
        return found

    def has(self, pid: int) -> bool:
        """Return whether a process runs on a host of this cluster."""
        try:
            return os.readlink(f"/proc/{pid}/ns/net") in self._network.values()
        except OSError:
            return False

    def leftovers(self, host: str) -> list[str]:
        """Name each process, and each file of ``/dev/shm`` and ``/tmp``, of a living host."""
        found = [f"process {pid} {line}" for pid, line in self.processes(host).items()]
        for folder in ("/dev/shm", "/tmp"):
            found += [f"file {path}" for path in sorted(self._files(host, folder))]
        return found

    def wait_empty(self, host: str, within_s: float = WITHIN_S) -> list[str]:
        """Wait until a host has no leftovers; return those that it has for all that."""
        with contextlib.suppress(TimeoutError):
            wait_until(lambda: not self.leftovers(host), f"an empty {host}", within_s)
        return self.leftovers(host)

    def listening(self, host: str) -> list[Listener]:
        """Return the TCP sockets that take connections on a host, without its daemons' own."""
        return [
            listener
            for listener in self._listening(host)
            if not all(name.startswith(_OF_THE_BED) for name in listener.processes)
        ]

    def bytes_sent(self, host: str) -> int:
        """Return how many bytes have left a host since its start."""
        table = Path(f"/proc/{self._first[host]}/net/dev").read_text()
        row = next(line for line in table.splitlines() if line.strip().startswith(INTERFACE))
        return int(row.partition(":")[2].split()[8])

    def _listening(self, host: str) -> Iterator[Listener]:
        said = self._inside(host, ["ss", "-H", "-l", "-t", "-n", "-p"])
        for line in said.splitlines():
            local = line.split()[3]
            address, _, port = local.rpartition(":")
            names = tuple(sorted({name for name, _ in _PROCESS.findall(line)}))
            yield Listener(address.strip("[]").partition("%")[0], int(port), names)

    def _files(self, host: str, folder: str) -> Iterator[str]:
        """Return what lies in a folder of a host, but the shared folders and the way to them."""
        root = Path(f"/proc/{self._first[host]}/root")
        waiting = [folder]
        while waiting:
            below = waiting.pop()
            for name in os.listdir(root / below.lstrip("/")):
                path = f"{below}/{name}"
                if path in self._seen:
                    continue
                if any(Path(one).is_relative_to(path) for one in self._seen):
                    waiting.append(path)
                else:
                    yield path

    def _lay(self, host: str) -> None:
        """Make both directions of a cable what they should be now."""
        for ask, interface, link in (
            (self._between, port_of(host), self._to[host]),
            (lambda argv: self._inside(host, argv), INTERFACE, self._from[host]),
        ):
            if "qdisc noqueue" not in ask(["tc", "qdisc", "show", "dev", interface, "root"]):
                ask(["tc", "qdisc", "del", "dev", interface, "root"])
            if discipline := _discipline(link):
                ask(["tc", "qdisc", "add", "dev", interface, "root", *discipline])

    def _between(self, argv: list[str]) -> str:
        return _in_network(self.keeper, argv)

    def _inside(self, host: str, argv: list[str]) -> str:
        return _in_network(self._first[host], argv)

    def _write_files(self) -> None:
        lines = ["127.0.0.1 localhost", "::1 localhost"]
        lines += [f"{address} {name}" for name, address in self._addresses.items()]
        (self.directory / "hosts").write_text("\n".join(lines) + "\n")
        shell = [sys.executable, "-E", "-s", "-S", str(_HERE.parent / "remote_shell.py")]
        Path(self.rsh).write_text(f'#!/bin/sh\nexec {shlex.join(shell)} "$@"\n')
        Path(self.rsh).chmod(0o755)


def wait_until(is_so: Callable[[], bool], what: str, within_s: float = WITHIN_S) -> None:
    """Look again and again until something is so: a host tells nobody."""
    until = time.monotonic() + within_s
    while not is_so():
        if time.monotonic() > until:
            raise TimeoutError(f"no {what} within {within_s:.0f} s")
        time.sleep(_LOOK_S)


def _discipline(link: _Link) -> list[str]:
    """Return what ``tc`` makes of a direction: a hole, a bucket, or nothing."""
    if not link.carries:
        return ["blackhole"]
    if link.bits_per_s is None:
        return []
    # A bucket of 2 ms, and more than the largest block that the kernel hands over at once.
    burst = max(131072, link.bits_per_s // 8 // 500)
    return ["tbf", "rate", f"{link.bits_per_s}bit", "burst", str(burst), "latency", "100ms"]


def _in_network(pid: int, argv: list[str]) -> str:
    done = subprocess.run(
        ["nsenter", "--target", str(pid), "--net", *argv],
        env={"PATH": _PATH},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise subprocess.SubprocessError(f"{argv}: {done.stderr.strip()}")
    return done.stdout


def _send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _read(path: str) -> str:
    try:
        return Path(path).read_bytes().decode(errors="replace")
    except OSError:
        return ""
