"""The network of a job: the one that all hosts reach, whatever else they have."""

from __future__ import annotations

from typing import Any

import pytest
from probed import DOCKER, LAN, facts, on_lan

from holdfast.runtime.errors import UsageError
from holdfast.runtime.hosts.network import choose, places
from holdfast.runtime.system.network import Interface, Reached

NAMES = ("a", "b", "c")
BRIDGE = Interface("docker0", "172.17.0.1", 16)
TUNNEL = Interface("tun0", "10.8.0.1", 32)


def chosen(wanted: str | None, *hosts: dict[str, Any]) -> tuple[str, tuple[str, ...]]:
    found = [facts(name, **each) for name, each in zip(NAMES, hosts, strict=False)]
    names = NAMES[: len(found)]
    network, addresses = choose(wanted, names, found, places(wanted, found[0].interfaces, "a"))
    return str(network), addresses


def refused(wanted: str | None, *hosts: dict[str, Any]) -> str:
    with pytest.raises(UsageError) as caught:
        chosen(wanted, *hosts)
    return str(caught.value)


def fast(number: int) -> Interface:
    return Interface("ib0", f"10.2.0.{number}", 24, speed=100_000)


@pytest.mark.parametrize("wanted", [None, "eth0", LAN, "10.1.0.9/16"])
def test_network_that_all_hosts_reach_is_taken(wanted: str | None) -> None:
    hosts = [on_lan(number, BRIDGE, TUNNEL) for number in (1, 2, 3)]

    assert chosen(wanted, *hosts) == (LAN, ("10.1.0.1", "10.1.0.2", "10.1.0.3"))


def test_bridges_and_tunnels_are_tried_as_any_other_but_lead_nowhere() -> None:
    interfaces = (BRIDGE, TUNNEL, Interface("eth1", "10.3.0.1", 24, is_up=False))

    assert [str(place.network) for place in places(None, interfaces, "a")] == [
        DOCKER,
        "10.8.0.1/32",
    ]
    assert "b, c came to a on none of its networks (172.17.0.0/16, 10.8.0.1/32); let" in refused(
        None, *({"interfaces": interfaces} for _ in NAMES)
    )


def test_fastest_of_several_networks_is_taken() -> None:
    hosts = [on_lan(number, fast(number), speed=1000) for number in (1, 2)]
    hosts[1]["reached"] += (Reached("10.2.0.0/24", "10.2.0.2"),)

    assert chosen(None, *hosts) == ("10.2.0.0/24", ("10.2.0.1", "10.2.0.2"))
    assert chosen("eth0", *hosts)[0] == LAN


@pytest.mark.parametrize("wanted", ["eth9", "10.9.0.0/16", "nonsense/3"])
def test_network_that_the_head_does_not_have_is_refused(wanted: str) -> None:
    assert refused(wanted, on_lan(1, BRIDGE), on_lan(2)) == (
        f"--network {wanted}: a has no such interface or address; a has eth0 10.1.0.1/16, docker0 "
        "172.17.0.1/16"
    )


def test_host_without_an_address_in_the_named_network_is_refused() -> None:
    other = {"interfaces": (Interface("eth0", "192.168.0.2", 24),)}

    assert refused("eth0", on_lan(1), other) == (
        "--network eth0: b has no address in 10.1.0.0/16; b has eth0 192.168.0.2/24; name a "
        "network that has an address of each host"
    )


def test_host_that_does_not_come_on_the_named_network_is_refused() -> None:
    assert refused("eth0", on_lan(1), on_lan(2), {**on_lan(3), "reached": ()}) == (
        "--network eth0: c does not reach a at 10.1.0.1; let TCP connections pass there, or name "
        "another network that joins the hosts"
    )


def test_hosts_that_only_routers_join_are_told_which_network_has_them_all() -> None:
    head = {"interfaces": (Interface("eth0", "10.1.0.5", 24),)}
    other = {
        "interfaces": (Interface("eth0", "10.1.1.7", 24),),
        "reached": (Reached("10.1.0.0/24", "10.1.1.7"),),
    }

    assert refused(None, head, other).endswith("routers join them: add --network 10.1.0.0/23")
    named = {**other, "reached": (Reached("10.1.0.0/23", "10.1.1.7"),)}
    assert chosen("10.1.0.0/23", head, named) == ("10.1.0.0/23", ("10.1.0.5", "10.1.1.7"))


def alone(number: int, prefix: int, *more: Interface) -> dict[str, Any]:
    """Return a host with an address of a cloud or a tunnel, which comes to the head by a route."""
    own = Interface("ens4", f"10.128.0.{number}", prefix)
    heads = Interface("ens4", "10.128.0.2", prefix).network
    return {"interfaces": (own, *more), "reached": (Reached(str(heads), own.address),)}


@pytest.mark.parametrize(
    ("prefix", "numbers", "network"),
    [
        (32, (2, 3), "10.128.0.2/31"),
        (32, (2, 3, 9), "10.128.0.0/28"),
        (31, (2, 3), "10.128.0.2/31"),
        (31, (2, 5, 6), "10.128.0.0/29"),
    ],
)
def test_hosts_with_addresses_and_no_network_get_the_one_around_them(
    prefix: int, numbers: tuple[int, ...], network: str
) -> None:
    hosts = [alone(number, prefix, BRIDGE) for number in numbers]

    assert chosen(None, *hosts) == (network, tuple(f"10.128.0.{number}" for number in numbers))


def test_network_around_addresses_that_has_two_of_a_host_must_be_named() -> None:
    hosts = [alone(2, 32), alone(200, 32, Interface("eth1", "10.128.0.77", 24))]

    assert refused(None, *hosts).endswith("routers join them: add --network 10.128.0.0/24")


def test_network_that_only_small_packets_pass_is_passed_over_and_named_if_there_is_no_other() -> (
    None
):
    hosts = [on_lan(number, fast(number)) for number in (1, 2)]
    narrow = (Reached("10.2.0.0/24", "10.2.0.2", is_narrow=True),)
    hosts[1]["reached"] += narrow

    assert chosen(None, *hosts)[0] == LAN
    for wanted in (None, "ib0"):
        assert refused(wanted, hosts[0], {**hosts[1], "reached": narrow}) == (
            "from b to a on 10.2.0.0/24 small packets pass and large ones do not: give all "
            "interfaces on the way one MTU, as by `ip link set eth0 mtu 1400`; or name another "
            "network by --network"
        )


def test_host_that_never_answers_is_named_beside_the_networks_that_were_tried() -> None:
    hosts: list[dict[str, Any]] = [on_lan(1, BRIDGE), on_lan(2), {**on_lan(3), "reached": ()}]

    assert refused(None, *hosts) == (
        "c came to a on none of its networks (10.1.0.0/16, 172.17.0.0/16); let TCP connections "
        "pass between the hosts, or name a network that has an address of each by --network"
    )
