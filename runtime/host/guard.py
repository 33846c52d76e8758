"""The process that MPI's launcher believes to be a worker.

``mpiexec`` starts one guard per rank.  The guard hands its rank's environment to the
agent of the host, which starts the worker with it.  Then the guard waits.  The
invariant: *guard and worker die together, and an unclean death is a SIGKILL*.

Why: Open MPI reports a death by signal to the survivors within milliseconds.  After
``exit(1)``, ``MPI_Abort`` or an uncaught exception the survivors wait for ever.  So the
guard kills itself with SIGKILL, the one death that always works.  It does so in two cases:
the agent is gone, or the worker ended in any other way than by leaving.  When ``mpiexec``
is gone the guard goes too.  Then the agent sees the connection close and kills the worker.

Run by path as ``python -I -S guard.py``: it imports only modules of the standard library
that are compiled in.  ``json`` and ``socket`` would more than double its start, and every
rank waits for it.
"""

from __future__ import annotations

import os
import select
import sys
from _signal import (  # type: ignore[import-not-found]  # typeshed leaves it out
    SIG_IGN,
    SIGCONT,
    SIGHUP,
    SIGINT,
    SIGKILL,
    SIGTERM,
    SIGUSR1,
    SIGUSR2,
    SIGXCPU,
    signal,
)
from _socket import AF_UNIX, SCM_RIGHTS, SOCK_STREAM, SOL_SOCKET, socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

_FORWARDED = (
    *("PMIX_", "OMPI_", "PRTE_", "OPAL_"),
    *("PMI_", "PMI2_", "MPI_LOCAL", "HYDI_", "HYDRA_", "I_MPI_", "MPIR_", "UCX_", "FI_"),
)
"""What Open MPI, and what MPICH and Intel MPI tell a rank by its environment.

Without ``OPAL_`` Open MPI looks for its help files and plugins under a wrong prefix.
"""

_RANKS = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")
_CONNECTION = "PMI_FD"
"""Names the descriptor of Hydra's connection to a rank; Open MPI's ranks connect themselves."""

_WORKER_HAS_LEFT = b'{"kind":"WorkerLeft"}\n'
"""The one message that ends a guard in peace, as channel.py writes it."""


def main() -> None:
    """Guard one rank until its worker has left; exit 0 then, else by SIGKILL."""
    for number in (SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2, SIGXCPU, SIGCONT):
        signal(number, SIG_IGN)  # a batch system sends them to all; the worker goes on
    launcher = os.getppid()
    launcher_end = os.pidfd_open(launcher)
    agent = _connect(os.environ["HOLDFAST_AGENT"])
    try:
        _greet(agent)
    except OSError:  # the agent has gone meanwhile
        _die()
    if os.getppid() != launcher:
        _die()  # the descriptor may stand for a process that took the number over
    _wait(agent, launcher_end)


def _connect(path: str) -> socket:
    agent = socket(AF_UNIX, SOCK_STREAM)
    try:
        # by way of the directory, since a socket's path may have only 107 bytes
        directory = os.open(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY)
        agent.connect(f"/proc/self/fd/{directory}/{os.path.basename(path)}")
    except OSError as error:
        sys.stderr.write(f"holdfast guard: no agent at {path}: {error}; is it still running?\n")
        _die()
    os.close(directory)
    return agent


def _greet(agent: socket) -> None:
    """Hand over the rank: its environment, and its connection to the launcher if it has one."""
    connection = os.environ.get(_CONNECTION)
    if connection is None:
        agent.sendall(_hello(0))
        return
    descriptor = int(connection)
    hello = _hello(1)
    rights = (SOL_SOCKET, SCM_RIGHTS, descriptor.to_bytes(4, sys.byteorder))
    sent = agent.sendmsg([hello], [rights])
    if sent < len(hello):  # even nothing is refused by an agent that has answered and gone
        agent.sendall(hello[sent:])
    os.close(descriptor)  # the worker's end is then the end that the launcher sees


def _hello(fds: int) -> bytes:
    environment = os.environ
    rank = int(next(environment[name] for name in _RANKS if name in environment))
    generation = int(environment["HOLDFAST_GENERATION"])
    forwarded = ",".join(
        f"{_quoted(name)}:{_quoted(value)}"
        for name, value in environment.items()
        if name.startswith(_FORWARDED)
    )
    hello = (
        f'{{"kind":"GuardHello","rank":{rank},"generation":{generation},'
        f'"directory":{_quoted(os.getcwd())},"environment":{{{forwarded}}},"@fds":{fds}}}\n'
    )
    return hello.encode("ascii")


def _quoted(text: str) -> str:
    """Return ``text`` of the system as a string of JSON (RFC 8259, section 7).

    Bytes beyond ASCII are surrogates (PEP 383), which mean the same in every locale: that of the
    worker may be another one, as this process does not heed PYTHONUTF8.
    """
    neutral = os.fsencode(text).decode("ascii", "surrogateescape")
    escaped = (f"\\u{ord(c):04x}" if not " " <= c < "\x7f" or c in '"\\' else c for c in neutral)
    return '"' + "".join(escaped) + '"'


def _wait(agent: socket, launcher_end: int) -> None:
    waiting = select.poll()
    waiting.register(agent, select.POLLIN)
    waiting.register(launcher_end, select.POLLIN)
    received = b""
    while received != _WORKER_HAS_LEFT:
        ready = [descriptor for descriptor, _ in waiting.poll()]
        if launcher_end in ready:
            _die()
        try:
            data = agent.recv(4096)
        except ConnectionResetError:
            data = b""
        received += data
        if not data or not _WORKER_HAS_LEFT.startswith(received):
            _die()


def _die() -> NoReturn:
    os.kill(os.getpid(), SIGKILL)
    raise AssertionError("a process outlived its own SIGKILL")


if __name__ == "__main__":
    main()
