"""MPI between hosts: what it does, and where it listens."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import scenarios
from cluster import NETWORK, Cluster, wait_until
from ranks_on_hosts import RanksOnHosts

pytestmark = [pytest.mark.mpi, pytest.mark.process]

BOUND_S = 120.0
HOSTS = ("a", "b", "b", "c")
RANK = (sys.executable, str(Path(scenarios.__file__).with_name("mpi_rank.py")))


def play(cluster: Cluster, *names: str) -> list[list[str]]:
    """Run scenarios on ranks of three hosts, and return what each rank wrote."""
    told = cluster.shared / "told"
    told.mkdir()
    with RanksOnHosts(cluster, HOSTS, [*RANK, str(told), *names]) as launch:
        launch.wait(BOUND_S)
        files = [told / f"rank-{rank}" for rank in range(len(HOSTS))]
        assert all(file.exists() for file in files), launch.words()
        return [file.read_text().splitlines() for file in files]


def names_of(listed: Sequence[object]) -> list[str]:
    return [scenario.__name__ for scenario in listed]  # type: ignore[attr-defined]


def test_communicator_of_three_hosts(cluster: Cluster) -> None:
    names = names_of([*scenarios.PLAIN, *scenarios.REVOKING, *scenarios.PLAIN])

    told = play(cluster, *names)

    assert told == [[*(f"{name} ok" for name in names), "left"]] * len(HOSTS)


def test_communicator_of_three_hosts_of_which_a_rank_dies(cluster: Cluster) -> None:
    names = names_of([scenarios.MORTAL[0], *scenarios.PLAIN])

    told = play(cluster, *names)

    assert told.pop(scenarios.VICTIM) == []
    assert told == [[*(f"{name} ok" for name in names), "left"]] * (len(HOSTS) - 1)


TRIAL = f"""
import os
from holdfast.runtime.host.launchers import LaunchTerms
from holdfast.runtime.host.launchers import find_mpiexec, identify
from holdfast.runtime.host.mpi_trial import FIRST_DEATH
from holdfast.runtime.host.mpi_trial import run_trial
terms = LaunchTerms("{NETWORK}")
print(run_trial(identify(find_mpiexec()), os.environ, FIRST_DEATH, terms).has_passed)
"""


def test_trial_on_the_head_uses_the_network_between_the_hosts(cluster: Cluster) -> None:
    sent = cluster.run(cluster.head, [sys.executable, "-c", TRIAL], timeout=BOUND_S).stdout

    assert sent.strip() == "True"


WAITS = """
import os, sys, time
from pathlib import Path
from holdfast.runtime.exchange.mpi_communicator import join_world
here = Path(sys.argv[1])
while os.environ["PMIX_RANK"] == "3" and not (here / "come").exists():
    time.sleep(0.02)  # meanwhile all others are in MPI_Init
told = []
world = join_world(shrinkable=True, tell=told.append)
world.allgather_bytes(b"every rank has a connection to its neighbours")
status = Path("/proc/self/status").read_text()
(here / f"told-{world.rank}").write_text("\\n".join(told))
Path(sys.argv[1], f"draft-{world.rank}").write_text(status)
Path(sys.argv[1], f"draft-{world.rank}").rename(Path(sys.argv[1], str(world.rank)))
while not Path(sys.argv[1], "go").exists():
    time.sleep(0.02)
world.leave()
os._exit(0)
"""


FAULTS = (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT)


def caught(status: Path) -> set[int]:
    """Return the signals that a process has handlers for, by its proc_pid_status(5)."""
    rows = (line.split() for line in status.read_text().splitlines())
    mask = next(int(row[1], 16) for row in rows if row[0] == "SigCgt:")
    return {number for number in range(1, 65) if mask >> (number - 1) & 1}


STRANGERS = """
import os, socket, sys
held = []
for place in sys.argv[1:]:
    address, _, port = place.rpartition(":")
    for word in (b"", b"OPAL-TCP-BTL", b"GET / HTTP/1.0\\r\\n\\r\\n", os.urandom(300)):
        held.append(socket.create_connection((address, int(port))))
        held[-1].sendall(word)
print("here", flush=True)
sys.stdin.read()
"""


def places(cluster: Cluster, *, for_daemons: bool) -> list[str]:
    """Return where other hosts may call: mpiexec as its daemons would, or it and ranks as ranks."""
    return [
        f"{cluster.address(host)}:{found.port}"
        for host in cluster.names
        for found in cluster.listening(host)
        if found.address in ("0.0.0.0", cluster.address(host))
        if (found.processes == ("prterun",) and found.address == "0.0.0.0") is for_daemons
    ]


def test_strangers_stop_nobody_and_are_not_listened_to_when_all_are_connected(
    cluster: Cluster,
) -> None:
    """Nor do those who call the port of mpiexec for daemons, which stays."""
    here = cluster.shared / "ranks"
    here.mkdir()
    with contextlib.ExitStack() as stack:
        launch = stack.enter_context(
            RanksOnHosts(cluster, HOSTS, [sys.executable, "-c", WAITS, str(here)])
        )
        # mpiexec and three ranks, while the fourth one has not come
        wait_until(lambda: len(places(cluster, for_daemons=False)) == 4, "MPI_Init", BOUND_S)
        found = places(cluster, for_daemons=False) + places(cluster, for_daemons=True)
        assert len(found) == 5
        strangers = cluster.popen(
            "c",
            [sys.executable, "-c", STRANGERS, *found],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        stack.enter_context(strangers)
        assert strangers.stdout.readline() == b"here\n"
        (here / "come").touch()
        names = {str(rank) for rank in range(len(HOSTS))}
        wait_until(lambda: names <= {*os.listdir(here)}, "world of all ranks", BOUND_S)
        wait_until(lambda: not places(cluster, for_daemons=False), "end of listening", BOUND_S)
        (here / "go").touch()
        codes = launch.wait(BOUND_S)
        strangers.stdin.close()

    assert codes == [0] * len(HOSTS)
    for rank in range(3):  # two have half said a handshake
        callers = (here / f"told-{rank}").read_text().split()
        assert {caller.rpartition(":")[0] for caller in callers} == {cluster.address("c")}
        assert len(callers) >= 2
    for rank in range(len(HOSTS)):  # a crash ends its process at once, in MPI_Init and ever after
        assert caught(here / str(rank)).isdisjoint(FAULTS)


LATE = Path(scenarios.__file__).with_name("late_rank.py")
MOST_CUTS = 10
SLOW = 200_000_000
"""Bits a second: then much of a vector is on its way at any moment."""


def connections(cluster: Cluster, host: str) -> list[list[str]]:
    """Return state, bytes to be read and bytes to be sent of each connection of a host."""
    lines = cluster.run(host, ["ss", "-H", "-t", "-n", "-a"]).stdout.splitlines()
    found = [line.split()[:3] for line in lines]
    return [one for one in found if one[0] not in ("LISTEN", "TIME-WAIT")]


def cut_while_it_sends(cluster: Cluster, host: str, steps: Callable[[], int]) -> None:
    """Cut a host off when bytes are on their way; between two vectors there are none."""
    sending = "bytes that cannot leave"
    for _ in range(MOST_CUTS):
        cluster.cut(host)
        with contextlib.suppress(TimeoutError):
            wait_until(lambda: any(int(one[2]) for one in connections(cluster, host)), sending, 5.0)
            return
        cluster.heal(host)
        healed = steps()
        wait_until(lambda before=healed: steps() > before, "a step of all", BOUND_S)
    pytest.fail(f"{host} had nothing to send at any of {MOST_CUTS} cuts")


def late_bytes(cluster: Cluster, *, ends_connections: bool) -> list[int]:
    """Cut a host off, let its rank die, and heal the network; return what has arrived too late.

    This is asked of each survivor: bytes that were written to arrays of the broken exchange.
    """
    here = cluster.shared / "late"
    here.mkdir()
    cluster.shape(SLOW)
    program = [sys.executable, str(LATE), str(here), str(ends_connections)]

    def steps() -> int:
        return len([*here.glob("step-*")])

    with RanksOnHosts(cluster, ("a", "a", "b"), program) as launch:
        wait_until(lambda: steps() >= 10, "ten steps", BOUND_S)
        cut_while_it_sends(cluster, "b", steps)
        launch.ranks[2].kill()
        wait_until(lambda: len([*here.glob("repaired-*")]) == 2, "repair", BOUND_S)
        cluster.heal("b")
        healed = steps()
        wait_until(lambda: not connections(cluster, "b"), "end of all connections", BOUND_S)
        wait_until(lambda: steps() >= healed + 10, "steps of the survivors", BOUND_S)
        (here / "end").touch()
        assert launch.wait(BOUND_S) == [0, 0, -signal.SIGKILL]
    told = [(here / f"late-{rank}").read_text().split() for rank in (0, 1)]
    assert all(int(kept) for kept, _ in told)
    return [int(late) for _, late in told]


def test_what_a_lost_host_had_sent_arrives_nowhere_after_it_is_healed(cluster: Cluster) -> None:
    assert late_bytes(cluster, ends_connections=True) == [0, 0]


@pytest.mark.extended
def test_what_a_lost_host_had_sent_is_written_where_it_was_received(tmp_path: Path) -> None:
    """So what a broken exchange was to fill must stay: one of two runs shows it."""
    for number in range(12):
        shared = tmp_path / str(number)
        shared.mkdir()
        with Cluster(shared) as hosts:
            if sum(late_bytes(hosts, ends_connections=False)):
                return
    pytest.fail("nothing has arrived late in 12 runs")
