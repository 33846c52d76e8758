"""Who reaches whom by TCP: meetings, the ways to them, and what only looks like one."""

from __future__ import annotations

import socket
from dataclasses import replace
from ipaddress import IPv4Network
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from holdfast.runtime.system import network
from holdfast.runtime.system.network import (
    NARROW,
    Interface,
    Meeting,
    MeetingPlace,
    Reached,
    fault_of,
    interfaces,
    is_own_address,
    reach,
)

LOOPBACK = IPv4Network("127.0.0.0/8")
WORD = "0123abcd"


@pytest.fixture
def _other_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let meetings of this host be those of another one."""
    monkeypatch.setattr(network, "is_own_address", lambda _: False)


@pytest.mark.usefixtures("_other_host")
def test_caller_hears_the_word_and_sends_packets_of_any_size() -> None:
    own = Interface("lo:2", "127.0.0.2", 8)
    with MeetingPlace([(LOOPBACK, "127.0.0.1")], WORD) as place:
        (meeting,) = place.meetings

        assert reach(meeting, (own,), WORD) == Reached(str(LOOPBACK), "127.0.0.2", is_narrow=False)
        assert fault_of(meeting, WORD) == ""


@pytest.mark.usefixtures("_other_host")
def test_stranger_who_listens_there_is_told_from_the_head() -> None:
    with MeetingPlace([(LOOPBACK, "127.0.0.1")], "another!") as place:
        (meeting,) = place.meetings

        assert fault_of(meeting, WORD) == "another program listens at 127.0.0.1"


def test_address_where_nobody_can_listen_is_left_out() -> None:
    with MeetingPlace([(IPv4Network("198.51.100.0/24"), "198.51.100.1")], WORD) as place:
        assert place.meetings == ()


def test_address_that_two_hosts_have_reaches_nobody() -> None:
    with MeetingPlace([(LOOPBACK, "127.0.0.1")], WORD) as place:
        (meeting,) = place.meetings

        assert is_own_address("127.0.0.1")
        assert reach(meeting, (), WORD) is None


@pytest.mark.parametrize(
    ("tries", "fault"), [((True, False), ""), ((True, True), NARROW), ((False,), "")]
)
def test_way_that_large_packets_do_not_pass_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, tries: tuple[bool, ...], fault: str
) -> None:
    came = [Reached(str(LOOPBACK), "127.0.0.2", is_narrow) for is_narrow in tries]
    monkeypatch.setattr(network, "_come", lambda *_: came.pop(0))

    assert fault_of(Meeting(str(LOOPBACK), "127.0.0.1", 1), WORD) == fault
    assert not came


def test_interface_is_on_its_network_while_it_is_up() -> None:
    found = Interface("eth0", "10.1.2.3", 16)

    assert str(found.network) == "10.1.0.0/16"
    assert found.is_on(IPv4Network("10.1.2.0/24"))
    assert not found.is_on(IPv4Network("10.2.0.0/16"))
    assert not replace(found, is_up=False).is_on(found.network)


def test_infiniband_counts_as_fast_although_its_driver_tells_no_speed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, kind in (("ib0", "32"), ("eth0", "1"), ("tun0", "65534")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "type").write_text(f"{kind}\n")
    address = SimpleNamespace(family=socket.AF_INET, address="10.1.0.1", netmask="255.255.0.0")
    speeds = {"ib0": 0, "eth0": 1000, "tun0": 0, "gone": 0}
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: {name: [address] for name in speeds})
    states = {name: SimpleNamespace(isup=True, speed=speed) for name, speed in speeds.items()}
    monkeypatch.setattr(psutil, "net_if_stats", lambda: states)

    found = {interface.name: interface.speed for interface in interfaces(tmp_path)}

    assert found == {"ib0": 32_000, "eth0": 1000, "tun0": 0, "gone": 0}


def test_loopback_interface_is_no_network_of_this_host() -> None:
    assert all(not found.address.startswith("127.") for found in interfaces())
