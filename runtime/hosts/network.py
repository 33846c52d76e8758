"""Which network the hosts of a job speak on: the one that is named, or one that all of them reach.

Hosts have networks that lead nowhere: bridges for containers, with the same address on each of
them, and tunnels that are dead.  No name tells them apart for sure.  So the head listens at each of
its addresses, and every host tries to come, from its own address on that network.  Of the networks
on which all have come, the one with the fastest slowest interface is taken, and the head's first of
several such.

MPI takes the network as addresses with a common prefix, so it has to have an address of each host.
Clouds and tunnels give a host an address and no network (a mask of /32 or /31).  Then the smallest
network around the addresses is taken, if each host has but one address there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from ipaddress import IPv4Address, IPv4Network
from typing import NamedTuple

from holdfast.runtime.errors import UsageError
from holdfast.runtime.hosts.wire import HostFacts
from holdfast.runtime.system.network import NARROW, Interface

_LONGEST_PREFIX = 30
"""A network of more bits has no room for many hosts."""

_SHORTEST_PREFIX = 8
"""No private network has fewer bits."""


class Place(NamedTuple):
    """A network that the hosts may speak on, and the head's address there."""

    network: IPv4Network
    address: str


def places(wanted: str | None, own: Sequence[Interface], head: str) -> tuple[Place, ...]:
    """Return where the head listens: on the network that ``--network`` names, or on all of its own.

    Raises:
        UsageError: there is no such network here.
    """
    usable = [found for found in own if found.is_up]
    if wanted is None:
        found = {
            interface.network: Place(interface.network, interface.address)
            for interface in reversed(usable)
        }
        return tuple(reversed(found.values()))
    network = _named(wanted, usable)
    address = next((one.address for one in usable if network and one.is_on(network)), None)
    if network is None or address is None:
        raise UsageError(
            f"--network {wanted}: {head} has no such interface or address; {_listed(head, usable)}"
        )
    return (Place(network, address),)


def choose(
    wanted: str | None, names: Sequence[str], facts: Sequence[HostFacts], tried: Sequence[Place]
) -> tuple[IPv4Network, tuple[str, ...]]:
    """Return the network that all hosts reach the head on, the first, and their addresses there.

    Raises:
        UsageError: there is none; it names what was tried, and what would do.
    """
    found = [(place, _sources(place, facts)) for place in tried]
    joined = [
        (network, (place.address, *sources))
        for place, sources in found
        if (network := _with_all(place, sources, facts)) is not None
    ]
    if joined:
        return max(joined, key=lambda one: _speed(one[0], facts))  # the first of equals
    narrow = [
        f"{name} to {names[0]} on {way.network}"
        for name, host in zip(names[1:], facts[1:], strict=True)
        for way in host.reached
        if way.is_narrow
    ]
    if narrow:
        raise UsageError(f"from {', '.join(narrow)} {NARROW}; or name another network by --network")
    raise UsageError(
        _without_any(names, found) if wanted is None else _not_on(wanted, names, facts, found)
    )


def _with_all(
    place: Place, sources: Sequence[str], facts: Sequence[HostFacts]
) -> IPv4Network | None:
    """Return the network of a place, with an address of each host; None if there is none."""
    if not all(sources):
        return None
    if all(IPv4Address(source) in place.network for source in sources):
        return place.network
    around = _around((place.address, *sources))
    if place.network.prefixlen <= _LONGEST_PREFIX or around is None:
        return None
    counts = (sum(one.is_on(around) for one in host.interfaces) for host in facts)
    return around if all(count == 1 for count in counts) else None


def _sources(place: Place, facts: Sequence[HostFacts]) -> tuple[str, ...]:
    """Return the address from which each other host has come to a place, "" if it has not."""
    return tuple(
        next(
            (w.source for w in host.reached if w.network == str(place.network) and not w.is_narrow),
            "",
        )
        for host in facts[1:]
    )


def _speed(network: IPv4Network, facts: Sequence[HostFacts]) -> int:
    """Return the speed of the slowest interface on a network, 0 if one is unknown."""
    return min(
        max((one.speed for one in host.interfaces if one.is_on(network)), default=0)
        for host in facts
    )


def _named(wanted: str, usable: Sequence[Interface]) -> IPv4Network | None:
    """Return the network that a user names by an interface of the head, or by addresses."""
    for found in usable:
        if found.name == wanted:
            return found.network
    try:
        return IPv4Network(wanted, strict=False)
    except ValueError:
        return None


def _not_on(
    wanted: str,
    names: Sequence[str],
    facts: Sequence[HostFacts],
    found: Sequence[tuple[Place, Sequence[str]]],
) -> str:
    """Return why the named network will not do, by the first host that does not come."""
    ((place, sources),) = found
    for name, host, source in zip(names[1:], facts[1:], sources, strict=True):
        if not any(one.is_on(place.network) for one in host.interfaces):
            return (
                f"--network {wanted}: {name} has no address in {place.network}; "
                f"{_listed(name, host.interfaces)}; name a network that has an address of each host"
            )
        if not source:
            return (
                f"--network {wanted}: {name} does not reach {names[0]} at {place.address}; let "
                "TCP connections pass there, or name another network that joins the hosts"
            )
    raise AssertionError("all hosts are on the network")


def _without_any(names: Sequence[str], found: Sequence[tuple[Place, Sequence[str]]]) -> str:
    """Return why no network will do, with one that would, if a router leads to all hosts."""
    for place, sources in found:
        around = _around((place.address, *sources)) if all(sources) else None
        if around is not None:
            return (
                f"no network has an address of each host, but routers join them: "
                f"add --network {around}"
            )
    missing = [
        name
        for number, name in enumerate(names[1:])
        if not any(sources[number] for _, sources in found)
    ]
    subject = f"{', '.join(missing)} came" if missing else "not all hosts came"
    tried = ", ".join(str(place.network) for place, _ in found) or "it has no address"
    return (
        f"{subject} to {names[0]} on none of its networks ({tried}); let TCP connections pass "
        "between the hosts, or name a network that has an address of each by --network"
    )


def _around(addresses: Iterable[str]) -> IPv4Network | None:
    """Return the smallest network with all of the addresses, None if it is much too large."""
    first, *others = addresses
    network = IPv4Network(first)
    while not all(IPv4Address(address) in network for address in others):
        network = network.supernet()
        if network.prefixlen < _SHORTEST_PREFIX:
            return None
    return network


def _listed(name: str, interfaces: Sequence[Interface]) -> str:
    """Return the addresses of a host in words."""
    shown = (
        ", ".join(f"{one}{'' if one.is_up else ' (down)'}" for one in interfaces)
        or "no address of IPv4"
    )
    return f"{name} has {shown}"
