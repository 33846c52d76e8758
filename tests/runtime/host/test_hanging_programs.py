"""What a head or an agent starts while the disk of its programs hangs: nothing waits for it."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cluster import wait_until
from held_program import held, own_python

from holdfast.recovery.saves import MakeSpace, SaveTicket
from holdfast.runtime.host import mpi_host
from holdfast.runtime.host.host_messages import MpiOrder
from holdfast.runtime.host.mpi_host import MpiHost
from holdfast.runtime.host.output import OutputForwarder, Streams
from holdfast.runtime.host.pool_process import PoolProcess, PoolSettings, PoolWarmed
from holdfast.runtime.hosts.remote_host import HostStart, RemoteHost
from holdfast.runtime.hosts.wire import Greeting
from holdfast.runtime.saving.save_memory import SaveMemory
from holdfast.runtime.saving.writer_link import WriterLink
from holdfast.runtime.system.channel import to_message
from holdfast.runtime.system.own_process import has_ended
from holdfast.runtime.system.processes import is_alive, name_of, wait_all_ended
from holdfast.runtime.system.reactor import Reactor

pytestmark = pytest.mark.process

WITHIN_S = 60.0


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    found = own_python(tmp_path / "venv")
    try:
        with held(found):
            pass
    except PermissionError as error:
        pytest.skip(f"programs are held as root only: {error}")
    monkeypatch.setattr(sys, "executable", str(found))
    monkeypatch.setattr(mpi_host, "_SHIM", (str(found), *mpi_host._SHIM[1:]))
    return found


@pytest.fixture
def reactor() -> Iterator[Reactor]:
    made = Reactor()
    yield made
    made.close()


def _while_held(program: Path, start: Callable[[], int]) -> int:
    """Return the process that ``start`` has made, which other threads do not wait for, either."""
    looked = threading.Event()
    threading.Thread(target=looked.set).start()
    with held(program):
        pid = start()
        wait_until(lambda: name_of(pid) == "env", "env")  # it has our name a moment longer
        threading.Thread(target=looked.set).start()
        assert looked.wait(WITHIN_S)
    return pid


def test_writer_begins_when_its_program_is_there(program: Path, reactor: Reactor) -> None:
    answers: list[object] = []
    link = WriterLink(reactor, answers.append, SaveMemory(lambda: ()))

    def start() -> int:
        link.start()
        link.work(MakeSpace(SaveTicket(1, 1, 30, 4)))
        assert link.pid is not None
        return link.pid

    pid = _while_held(program, start)
    while not answers:
        reactor.run_once(WITHIN_S)

    assert link.pid == pid
    link.close()
    assert not is_alive(pid)


def test_pool_begins_when_its_program_is_there(program: Path) -> None:
    made: list[PoolProcess] = []

    def start() -> int:
        made.append(PoolProcess.start(PoolSettings((), "none:none")))
        return made[0].process.pid

    _while_held(program, start)
    (pool,) = made
    assert pool.channel.receive() == to_message(PoolWarmed())
    pool.channel.close()
    assert has_ended(pool.process, WITHIN_S)
    os.close(pool.stdout)
    os.close(pool.stderr)


def test_launcher_begins_when_its_program_is_there(
    program: Path, reactor: Reactor, tmp_path: Path
) -> None:
    mpiexec = tmp_path / "mpiexec"
    mpiexec.write_text("#!/bin/sh\nexit 0\n")
    mpiexec.chmod(0o755)
    host = MpiHost(reactor, lambda _: None, tmp_path / "again")  # its directory was removed

    def start() -> int:
        host.begin(1, MpiOrder(mpiexec, "Open MPI", ulfm=True), 2, tmp_path / "sock")
        assert host.pid is not None
        return host.pid

    pid = _while_held(program, start)

    assert wait_all_ended([pid], WITHIN_S) == ()
    host.close()
    assert list((tmp_path / "again").iterdir()) == []


def test_remote_shell_begins_when_its_program_is_there(program: Path, reactor: Reactor) -> None:
    output = OutputForwarder(Streams().put, verbose=False)
    greeting = Greeting("b", {}, "/", 10.0, (), "none:none")
    made: list[RemoteHost] = []

    def start() -> int:
        start = HostStart(["sh", "-c", "read greeting; read end"], greeting)
        made.append(RemoteHost(reactor, output, start, lambda *_: None, lambda *_: None))
        return made[0].pid

    pid = _while_held(program, start)

    made[0].close(WITHIN_S)
    assert not is_alive(pid)
    output.close(1.0)
