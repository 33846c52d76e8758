"""One mpiexec: how it begins and ends, and what its agent does about it."""

from __future__ import annotations

import os
import re
import select
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.recovery.event import Event, LaunchEnded
from holdfast.runtime.host.host_messages import MpiOrder
from holdfast.runtime.host.launchers import LaunchLine
from holdfast.runtime.host.mpi_host import LINGERS_S, HostState, MpiHost, MpiLaunch
from holdfast.runtime.system.processes import wait_all_ended
from holdfast.runtime.system.reactor import Reactor

pytestmark = pytest.mark.process

BOUND_S = 90.0

RUNNING = HostState(is_empty=False, had_guards=True, ended_well=True)
ALL_LEFT = HostState(is_empty=True, had_guards=True, ended_well=True)
ALL_DIED = HostState(is_empty=True, had_guards=True, ended_well=False)
NONE_CAME = HostState(is_empty=True, had_guards=False, ended_well=True)


def start(folder: Path, script: str) -> MpiLaunch:
    """Start a launch whose mpiexec is a shell script."""
    mpiexec = folder / "mpiexec"
    mpiexec.write_text(f"#!/bin/sh\n{script}\n")
    mpiexec.chmod(0o755)
    directory = folder / "launch-1"
    directory.mkdir()
    line = LaunchLine(mpiexec, 2, directory, ("guard",))
    return MpiLaunch(line, line.environment(os.environ, HOLDFAST_GENERATION="7"))


def wait_for_end(launch: MpiLaunch) -> None:
    assert select.select([launch.end_fd], [], [], BOUND_S)[0]
    assert launch.has_ended


def test_the_last_of_what_mpiexec_says_is_kept_until_the_launch_is_cleared(tmp_path: Path) -> None:
    launch = start(
        tmp_path, r"seq 1 5000; printf 'no \377 slots\n'; echo 'to stderr  ' >&2; exit 3"
    )
    wait_for_end(launch)

    words = launch.words()
    assert words.endswith("4999\n5000\nno \ufffd slots\nto stderr")
    assert (launch.exit_code, len(words) <= 4096) == (3, True)

    launch.clear()
    assert launch.words() == ""


def test_kill_ends_mpiexec_and_all_that_it_started(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "told")
    launch = start(tmp_path, f"trap '' TERM; sleep 600 & echo $$ $! > {tmp_path}/told; wait; wait")
    pids = [int(pid) for pid in (tmp_path / "told").read_text().split()]
    assert not launch.has_ended

    launch.kill()

    wait_for_end(launch)
    assert wait_all_ended(pids, BOUND_S) == ()
    launch.clear()
    assert not launch.directory.exists()


class Host:
    """An `MpiHost` whose mpiexec is a script, and what it has told."""

    def __init__(self, folder: Path) -> None:
        self.told: list[Event] = []
        self.folder = folder
        self.real = MpiHost(Reactor(), self.told.append, folder)
        self.mpiexec = folder / "mpiexec"

    def begin(self, script: str, generation: int = 1) -> int:
        """Start a launch; return its process id."""
        self.mpiexec.write_text(f"#!/bin/sh\n{script}\n")
        self.mpiexec.chmod(0o755)
        self.real.begin(
            generation, MpiOrder(self.mpiexec, "Open MPI", ulfm=True), 2, self.folder / "sock"
        )
        assert self.real.pid is not None
        return self.real.pid


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    made = Host(tmp_path)
    yield made
    made.real.close()


def test_end_of_a_launch_is_told_once_when_workers_and_mpiexec_are_gone(host: Host) -> None:
    assert wait_all_ended([host.begin("exit 0")], BOUND_S) == ()

    host.real.poll(0.0, RUNNING)
    assert host.told == []
    host.real.poll(1.0, ALL_LEFT)
    host.real.poll(2.0, ALL_LEFT)

    assert host.told == [LaunchEnded()]
    assert not (host.folder / "launch-1").exists()


def test_launch_that_is_abandoned_makes_room_for_another_and_is_told_by_nobody(host: Host) -> None:
    pid = host.begin("exec sleep 600")

    host.real.abandon()

    assert host.real.pid is None
    assert wait_all_ended([pid], BOUND_S) == ()
    host.real.poll(0.0, ALL_LEFT)
    assert host.told == []
    assert wait_all_ended([host.begin("exit 0", generation=2)], BOUND_S) == ()
    host.real.poll(1.0, ALL_LEFT)
    assert host.told == [LaunchEnded()]


def test_mpiexec_that_outlives_workers_that_left_is_killed_after_a_while(host: Host) -> None:
    pid = host.begin("exec sleep 600")

    host.real.poll(0.0, ALL_LEFT)
    host.real.poll(0.9 * LINGERS_S, ALL_LEFT)
    assert wait_all_ended([pid], 0.0) == (pid,)
    host.real.poll(1.1 * LINGERS_S, ALL_LEFT)

    assert wait_all_ended([pid], BOUND_S) == ()
    host.real.poll(5.0, ALL_LEFT)
    assert list(map(type, host.told)) == [LaunchEnded]


def test_mpiexec_that_has_yet_to_start_its_ranks_is_left_alone_until_workers_have_died(
    host: Host,
) -> None:
    pid = host.begin("exec sleep 600")

    host.real.poll(0.0, NONE_CAME)
    host.real.poll(1000.0, NONE_CAME)
    assert wait_all_ended([pid], 0.0) == (pid,)
    assert host.told == []
    host.real.poll(1000.1, ALL_DIED)

    assert wait_all_ended([pid], BOUND_S) == ()
    host.real.poll(1000.2, ALL_DIED)
    assert host.told == [LaunchEnded()]
    assert host.real.pid is None


def test_next_launch_ends_the_last_one_and_signals_of_batch_systems_do_not(host: Host) -> None:
    first = host.begin("exec sleep 600")
    pid = host.begin("exec sleep 600", generation=2)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        os.kill(pid, number)

    host.real.poll(0.0, RUNNING)

    assert wait_all_ended([first], BOUND_S) == ()
    assert wait_all_ended([pid], 0.2) == (pid,)
    assert host.told == []


def test_mpiexec_that_is_missing_is_said(host: Host) -> None:
    order = MpiOrder(host.folder / "nothing", "Open MPI", ulfm=True)
    host.real.begin(1, order, 2, host.folder / "sock")
    assert host.real.pid is not None
    assert wait_all_ended([host.real.pid], BOUND_S) == ()

    host.real.poll(0.0, NONE_CAME)

    assert "No such file" in host.told[0].reason


def test_time_of_an_mpiexec_that_lingers_begins_anew_with_new_workers(host: Host) -> None:
    """Workers of a repaired world may leave one after the other."""
    pid = host.begin("exec sleep 600")
    host.real.poll(0.0, ALL_LEFT)
    host.real.poll(0.9 * LINGERS_S, RUNNING)

    host.real.poll(1.1 * LINGERS_S, ALL_LEFT)
    host.real.poll(2.0 * LINGERS_S, ALL_LEFT)

    assert wait_all_ended([pid], 0.0) == (pid,)
    host.real.poll(2.1 * LINGERS_S, ALL_LEFT)
    assert wait_all_ended([pid], BOUND_S) == ()


def test_launch_has_a_private_directory_and_tells_guards_where_to_go(host: Host) -> None:
    pid = host.begin('echo "$@"; echo "$HOLDFAST_AGENT $HOLDFAST_GENERATION"', generation=9)
    assert (host.folder / "launch-9").stat().st_mode & 0o777 == 0o700
    assert wait_all_ended([pid], BOUND_S) == ()

    host.real.poll(0.0, NONE_CAME)

    (ended,) = host.told
    assert isinstance(ended, LaunchEnded)
    assert ended.reason.startswith("mpiexec started no worker: ")
    command, environment = ended.reason.splitlines()
    assert re.search(r" -n 2 \S+ -I -S /\S+/guard\.py$", command)
    assert environment == f"{host.folder}/sock 9"
