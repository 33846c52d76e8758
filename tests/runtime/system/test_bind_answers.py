from __future__ import annotations

import ipaddress
import os
import select
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from open_files import open_files

from holdfast.runtime.system import become
from holdfast.runtime.system.bind_answers import (
    Pipes,
    Rule,
    bound_by,
    launcher_rule,
    moved,
    rank_rule,
    serve_in_background,
)

BOUND_S = 60.0
LAUNCHER = launcher_rule()
HAS_FILTER = pytest.mark.skipif(
    os.uname().machine not in ("x86_64", "aarch64"), reason="has no filter"
)

BINDS = """
import errno, json, os, socket, sys
found = []
for family, address in json.loads(sys.argv[1]):
    with socket.socket(getattr(socket, family), socket.SOCK_STREAM) as one:
        try:
            one.bind(tuple(address) if isinstance(address, list) else address)
        except OSError as error:
            found.append(errno.errorcode[error.errno])
        else:
            one.listen()
            name = one.getsockname()
            found.append(name if isinstance(name, str) else name[0])
print(json.dumps(found))
"""


def _inet(ip: str) -> bytes:
    return struct.pack("=H", socket.AF_INET) + b"\x1f\x90" + socket.inet_aton(ip) + bytes(8)


def _inet6(ip: str) -> bytes:
    packed = ipaddress.IPv6Address(ip).packed
    return struct.pack("=H", socket.AF_INET6) + b"\x1f\x90" + bytes(4) + packed + bytes(4)


@pytest.mark.parametrize("ip", ["0.0.0.0", "10.1.2.3", "255.255.255.255"])
def test_address_on_the_network_becomes_that_of_the_loopback_interface(ip: str) -> None:
    assert moved(_inet(ip), LAUNCHER) == _inet("127.0.0.1")


def test_address_on_the_network_between_the_hosts_stays() -> None:
    rule = launcher_rule(ipaddress.IPv4Network("192.168.0.0/16"))

    assert moved(_inet("192.168.1.2"), rule) is None
    for other in ("0.0.0.0", "10.1.2.3"):
        assert moved(_inet(other), rule) == _inet("127.0.0.1")
    assert moved(_inet6("::"), rule) == _inet6("::1")


@pytest.mark.parametrize("ip", ["::", "fe80::1", "2001:db8::1", "::ffff:10.1.2.3"])
def test_long_address_on_the_network_becomes_that_of_the_loopback_interface(ip: str) -> None:
    assert moved(_inet6(ip), LAUNCHER) == _inet6("::1")


@pytest.mark.parametrize(
    "address",
    [
        _inet("127.0.0.1"),
        _inet("127.1.2.3"),
        _inet6("::1"),
        struct.pack("=H", socket.AF_UNIX) + b"/run/socket\0",
        struct.pack("=H", socket.AF_NETLINK) + bytes(10),
        _inet("0.0.0.0")[:7],
        b"\x02",
        b"",
    ],
)
def test_other_addresses_stay(address: bytes) -> None:
    assert moved(address, LAUNCHER) is None


@given(
    st.integers(0, 2**16 - 1),
    st.ip_addresses().filter(lambda ip: not ip.is_loopback),
    st.binary(max_size=8),
)
def test_port_and_rest_of_an_address_stay(
    port: int, ip: ipaddress.IPv4Address | ipaddress.IPv6Address, rest: bytes
) -> None:
    family = socket.AF_INET if ip.version == 4 else socket.AF_INET6
    head = struct.pack("=H", family) + struct.pack("!H", port)
    head += b"" if ip.version == 4 else b"flow"

    kept = moved(head + ip.packed + rest, LAUNCHER)

    assert kept is not None
    address = kept[len(head) : len(head) + len(ip.packed)]
    assert kept == head + address + rest
    assert ipaddress.ip_address(address).is_loopback
    assert moved(kept, LAUNCHER) is None


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (_inet("0.0.0.0"), _inet("10.1.2.3")),
        (_inet6("::"), _inet6("::1")),
        (_inet("127.0.0.1"), None),
        (_inet("192.168.1.2"), None),
        (_inet6("fe80::1"), None),
    ],
)
def test_rank_that_wants_all_interfaces_comes_home(wanted: bytes, found: bytes | None) -> None:
    assert moved(wanted, rank_rule(ipaddress.IPv4Address("10.1.2.3"))) == found


@pytest.fixture
def helped() -> Iterator[tuple[int, int]]:
    """The pipes of a process that is helped, which is this one; the test closes the first."""
    (offers, ask), (hear, answers) = os.pipe(), os.pipe()
    pipes = {os.readlink(f"/proc/self/fd/{descriptor}") for descriptor in (ask, hear)}
    serve_in_background(os.getpid(), Pipes(offers, answers), LAUNCHER)
    yield ask, hear
    os.close(hear)
    for thread in threading.enumerate():
        if thread.name == "holdfast-binds":
            thread.join(BOUND_S)
    assert not pipes & open_files()


def test_agent_says_no_to_a_descriptor_that_it_cannot_take(helped: tuple[int, int]) -> None:
    ask, hear = helped
    os.write(ask, b"1000000\n")

    assert os.read(hear, 100) == b"n"
    assert os.read(hear, 100) == b""  # and it waits for no other one
    os.close(ask)


def test_agent_takes_a_descriptor_as_a_trial_and_waits_for_the_next(
    helped: tuple[int, int],
) -> None:
    ask, hear = helped
    os.write(ask, b"%d\n" % hear)

    assert os.read(hear, 100) == b"y"
    os.close(ask)
    assert os.read(hear, 100) == b""  # nobody offers anything any more


@pytest.mark.process
@HAS_FILTER
def test_binds_of_what_the_process_becomes_are_answered(tmp_path: Path) -> None:
    unix = str(tmp_path / "socket")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        binds = [
            ["AF_INET", ["0.0.0.0", 0]],
            ["AF_INET", ["127.0.0.1", 0]],
            ["AF_UNIX", unix],
            ["AF_INET", ["0.0.0.0", port]],
        ]

        output = _become(str(binds).replace("'", '"'))

    assert output == f'["127.0.0.1", "127.0.0.1", "{unix}", "EADDRINUSE"]'


@pytest.mark.process
@HAS_FILTER
def test_ranks_of_what_the_process_becomes_have_a_rule_of_their_own() -> None:
    rank = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {BINDS!r}, sys.argv[1]])"
    binds = '[["AF_INET", ["0.0.0.0", 0]]]'
    home = rank_rule(ipaddress.IPv4Address("127.0.0.2"))

    assert _become(binds, ranks=home, code=rank) == '["127.0.0.2"]'
    assert _become(binds, ranks=home) == '["127.0.0.1"]'


@pytest.mark.process
def test_process_goes_on_without_the_filter_if_its_agent_cannot_help() -> None:
    output = _become('[["AF_INET", ["0.0.0.0", 0]]]', helps=False)

    assert output == '["0.0.0.0"]'


def _become(binds: str, *, helps: bool = True, ranks: Rule | None = None, code: str = BINDS) -> str:
    """Run BINDS as if it was mpiexec; return its output."""
    (offers, ask), (hear, answers) = os.pipe(), os.pipe()
    process = subprocess.Popen(
        [
            *(sys.executable, "-I", "-S", str(become.__file__)),
            *(str(os.getpid()), str(ask), str(hear)),
            *(sys.executable, "-c", code, binds),
        ],
        pass_fds=(ask, hear),
        stdout=subprocess.PIPE,
        text=True,
    )
    os.close(ask)
    os.close(hear)
    if helps:
        serve_in_background(process.pid, Pipes(offers, answers), LAUNCHER, ranks)
    else:
        assert select.select([offers], [], [], BOUND_S)[0]
        os.write(answers, b"n")
    output, _ = process.communicate(timeout=BOUND_S)
    if not helps:
        Pipes(offers, answers).close()
    assert process.returncode == 0
    return output.strip()


def _name_of_listener() -> str:
    with socket.create_server(("", 0)) as listener:
        return str(listener.getsockname()[0])


@HAS_FILTER
def test_sockets_of_a_call_are_bound_by_a_rule_and_those_after_it_are_free() -> None:
    home = rank_rule(ipaddress.IPv4Address("127.0.0.2"))

    assert [bound_by(home, _name_of_listener) for _ in range(2)] == ["127.0.0.2", "127.0.0.2"]
    assert _name_of_listener() == "0.0.0.0"


@HAS_FILTER
def test_call_below_a_filter_is_made_without_another_one() -> None:
    """So the ranks of a trial start, which mpiexec has given its own filter."""
    outer = rank_rule(ipaddress.IPv4Address("127.0.0.2"))
    inner = rank_rule(ipaddress.IPv4Address("127.0.0.3"))

    assert bound_by(outer, lambda: bound_by(inner, _name_of_listener)) == "127.0.0.2"


def test_failure_of_a_bound_call_is_the_callers() -> None:
    before = open_files()

    with pytest.raises(KeyError, match="a mistake"):
        bound_by(LAUNCHER, lambda: {}["a mistake"])
    assert open_files() == before
