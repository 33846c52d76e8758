"""MPI between hosts: what it does, and where it listens."""

from __future__ import annotations

import ipaddress
import sys
from collections.abc import Sequence
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


WAITS = """
import os, sys, time
from pathlib import Path
from holdfast.runtime.exchange.mpi_communicator import join_world
world = join_world(shrinkable=True)
world.allgather_bytes(b"every rank has a connection to its neighbours")
Path(sys.argv[1], str(world.rank)).touch()
while not Path(sys.argv[1], "go").exists():
    time.sleep(0.02)
world.leave()
os._exit(0)
"""


def test_nothing_of_mpi_listens_beyond_the_network_between_the_hosts(cluster: Cluster) -> None:
    network = ipaddress.IPv4Network(NETWORK)
    here = cluster.shared / "ranks"
    here.mkdir()
    with RanksOnHosts(cluster, HOSTS, [sys.executable, "-c", WAITS, str(here)]) as launch:
        wait_until(lambda: len(list(here.iterdir())) == len(HOSTS), "world of all ranks", BOUND_S)
        found = {host: cluster.listening(host) for host in cluster.names}
        (here / "go").touch()
        codes = launch.wait(BOUND_S)

    assert codes == [0] * len(HOSTS)
    for host, listeners in found.items():
        addresses = {ipaddress.ip_address(listener.address) for listener in listeners}
        beyond = {address for address in addresses if not address.is_loopback}
        assert beyond == {ipaddress.ip_address(cluster.address(host))}, (host, listeners)
        assert beyond <= set(network)
