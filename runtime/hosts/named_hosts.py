"""Which hosts a job has: those that its user has named, and the head's own before all others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from holdfast.recovery.placement import HostSlots
from holdfast.runtime.options.job_options import JobOptions
from holdfast.runtime.system import network

_LOCALHOST = "localhost"


def settle_hosts(options: JobOptions) -> tuple[HostSlots, ...]:
    """Return the hosts of a job, the head's first; none if this host is the only one.

    Hosts come from ``--hosts``, ``--hostfile`` or the batch system: the options hold them all.
    If none of them is this host, it has the head alone, and takes no worker.
    """
    if not options.hosts:
        return ()
    own = own_host(options.hosts)
    others = tuple(host for host in options.hosts if host is not own)
    if not others:
        return ()
    if own is None:
        return (HostSlots(network.own_name(), 0), *others)
    name = network.own_name() if _without_user(own.name) == _LOCALHOST else own.name
    return (replace(own, name=name), *others)


def own_host(
    hosts: Sequence[HostSlots],
    own_names: Callable[[], frozenset[str]] = network.own_names,
    is_own: Callable[[str], bool] = network.is_own_name,
) -> HostSlots | None:
    """Return the first of ``hosts`` that is this one, None if none is.

    Names are compared first: a resolver may take seconds for each name that it does not know.
    """
    known = own_names() | {_LOCALHOST}
    for host in hosts:
        if _without_user(host.name) in known:
            return host
    return next((host for host in hosts if is_own(_without_user(host.name))), None)


def _without_user(name: str) -> str:
    """Return a host as it is called by itself: ``ssh`` takes ``user@host``."""
    return name.rpartition("@")[2]
