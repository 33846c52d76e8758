"""The hosts that other tests break: what a cluster on one machine does, and what is left of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cluster import WITHIN_S, Cluster, wait_until, why_not

from holdfast.runtime.system.processes import wait_all_ended

pytestmark = pytest.mark.process

_ECHO = """
    import socket, sys
    with socket.create_server(("", 7000)) as server:
        print("listens", flush=True)
        while True:
            connection, _ = server.accept()
            with connection:
                while data := connection.recv(65536):
                    connection.sendall(data)
"""
_ASK = """
    import socket, sys
    connection = socket.create_connection((sys.argv[1], 7000), timeout=float(sys.argv[2]))
    for line in sys.stdin:
        connection.sendall(line.encode())
        print(connection.recv(65536).decode(), end="", flush=True)
"""
_HEALED_WITHIN_S = "50"


@contextmanager
def _program(cluster: Cluster, host: str, code: str, *arguments: str) -> Iterator[Any]:
    """Run Python code on a host, with pipes, for as long as the block lasts."""
    process = cluster.popen(
        host,
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def _echo(cluster: Cluster, host: str) -> Iterator[None]:
    """A server that sends back what it gets, ready to take connections."""
    with _program(cluster, host, _ECHO) as echo:
        assert echo.stdout.readline() == "listens\n"
        yield


def _says(process: Any, line: str) -> str:
    process.stdin.write(f"{line}\n")
    process.stdin.flush()
    return str(process.stdout.readline()).strip()


def test_hosts_have_names_addresses_and_folders_of_their_own_and_one_in_common(
    cluster: Cluster, tmp_path: Path
) -> None:
    (tmp_path / "common").write_text("seen by all")
    for host in cluster.names:
        look = f"hostname; getent ahostsv4 {host} | head -n 1; cat {tmp_path}/common; ls /dev/shm"
        name, resolved, common = cluster.run(host, ["sh", "-c", look]).stdout.splitlines()
        assert (name, resolved.split()[0], common) == (host, cluster.address(host), "seen by all")

    cluster.run("b", ["touch", "/dev/shm/one", "/tmp/two"])
    assert cluster.leftovers("b") == ["file /dev/shm/one", "file /tmp/two"]
    assert cluster.leftovers("a") == cluster.leftovers("c") == []


@pytest.mark.parametrize(("way", "arrives"), [("deafen", False), ("mute", True)])
def test_a_cut_of_one_direction_leaves_the_other(
    cluster: Cluster, way: str, *, arrives: bool
) -> None:
    listen = """
        import socket
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listener:
            listener.bind(("", 7001))
            print("listens", flush=True)
            while True:
                print(listener.recv(100).decode(), flush=True)
    """
    send = """
        import socket, sys
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.connect((sys.argv[1], 7001))
            for line in sys.stdin:
                sender.send(line.strip().encode())
                print("sent", flush=True)
    """
    with (
        _program(cluster, "a", listen) as at_a,
        _program(cluster, "b", listen) as at_b,
        _program(cluster, "a", send, "b") as to_b,
        _program(cluster, "b", send, "a") as to_a,
    ):
        assert at_a.stdout.readline() == at_b.stdout.readline() == "listens\n"
        for sender, receiver in ((to_b, at_b), (to_a, at_a)):  # they know each other's hardware
            assert _says(sender, "before") == "sent"
            assert receiver.stdout.readline() == "before\n"
        getattr(cluster, way)("b")
        assert _says(to_b, "within") == _says(to_a, "within") == "sent"
        cluster.heal("b")
        assert _says(to_b, "after") == _says(to_a, "after") == "sent"
        assert at_b.stdout.readline() == ("within\n" if arrives else "after\n")
        assert at_a.stdout.readline() == ("after\n" if arrives else "within\n")


@pytest.mark.parametrize("host", ["b", "a"])
def test_a_lost_host_takes_all_its_processes_along_and_comes_back_empty(
    cluster: Cluster, host: str
) -> None:
    spawn = "sleep 1000 & setsid sleep 1000 & touch /tmp/old; echo; wait"
    process = cluster.popen(host, ["sh", "-c", spawn], stdout=subprocess.PIPE)
    with process:
        assert process.stdout is not None
        process.stdout.readline()
        # The shell may be further than its children, which are not seen while they begin.
        wait_until(lambda: len(cluster.processes(host)) >= 3, "processes in the background")
        pids = cluster.processes(host)
        cluster.kill(host)
        process.wait()
    assert wait_all_ended(pids, WITHIN_S) == ()
    assert cluster.processes(host) == {}
    cluster.restart(host)
    assert cluster.leftovers(host) == []
    assert cluster.run("c", [cluster.rsh, host, "hostname"]).stdout == f"{host}\n"


def test_a_peer_hears_of_a_killed_host_and_nothing_of_one_without_power(cluster: Cluster) -> None:
    for silently in (False, True):
        with (
            _echo(cluster, "b"),
            _program(cluster, "a", _ASK, "b", _HEALED_WITHIN_S) as ask,
        ):
            assert _says(ask, "before") == "before"
            cluster.kill("b", silently=silently)
            told = cluster.run("a", ["ss", "-Htn", "state", "close-wait"]).stdout
            assert (":7000" in told) is not silently
        cluster.restart("b")


def test_a_shaped_link_lets_no_more_pass_than_its_rate(cluster: Cluster) -> None:
    cluster.shape(8_000_000)
    before = cluster.bytes_sent("a")
    timed = """
        import socket, sys, time
        connection = socket.create_connection((sys.argv[1], 7000))
        begin = time.monotonic()
        left = 1_000_000
        connection.sendall(bytes(left))
        while left:
            left -= len(connection.recv(65536))
        print(time.monotonic() - begin)
    """
    with _echo(cluster, "b"):
        ask = [sys.executable, "-c", textwrap.dedent(timed), "b"]
        took_s = float(cluster.run("a", ask).stdout)
    assert took_s > 0.7  # 1 MB at 1 MB a second, but for what the buckets hold at the start
    assert 1_000_000 < cluster.bytes_sent("a") - before < 1_500_000


def test_nothing_outlives_a_test_that_is_killed(tmp_path: Path) -> None:
    if reason := why_not():
        pytest.skip(reason)
    code = """
        import sys
        from pathlib import Path
        from cluster import Cluster
        with Cluster(Path(sys.argv[1])) as hosts:
            hosts.popen("a", ["sleep", "1000"])
            hosts.popen("b", ["sleep", "1000"])
            hosts.freeze("b")
            print(*hosts._first.values(), hosts.keeper, *hosts.processes("b"),
                  *hosts.processes("a"), flush=True)
            sys.stdin.read()
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as test:
        assert test.stdout is not None
        pids = [int(word) for word in test.stdout.readline().split()]
        assert len(pids) >= 4  # the first process of each host, and the keeper
        test.send_signal(signal.SIGKILL)
    assert wait_all_ended(pids, WITHIN_S) == ()
