"""Open MPI's own settings, which ``--mca KEY VALUE`` passes on to mpiexec.

A setting is kept as one text, ``"btl self,uct"``.  One is refused that would take away what a job
relies on, or that says nothing to its workers: mpiexec starts guards, and not them.  Whether ranks
outlive a death with the others is found out by a trial (`host.mpi_trial`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from holdfast.runtime.errors import UsageError

_KEY = re.compile(r"[A-Za-z]\w*")

_OWN = frozenset(
    {
        *("btl_sm_backing_directory", "prte_default_hostfile", "shmem", "gds", "opal_signal"),
        *("state_base_recoverable", "state_base_notify_errors", "pmix_remote_connections"),
        *("mpi_add_procs_cutoff", "btl_tcp_links", "orte_allowed_exit_without_sync"),
    }
)
_INTERFACES = frozenset({"btl_tcp_if_include", "btl_tcp_if_exclude", "ptl_tcp_if_include"})
_PLACEMENT = ("rmaps", "ras", "plm", "ess", "hwloc", "prte_", "orte_")
_UNSAFE_COLLECTIVES = ("han", "adapt")
"""``han`` has returned success with wrong sums after a death."""


def read_mca(value: Any) -> tuple[str, ...]:
    """Return settings of pairs from the command line, of a list, or of one text with ``;``."""
    entries = value.split(";") if isinstance(value, str) else value
    if not isinstance(entries, Iterable):
        raise ValueError(f"{value!r} is not a list of settings")
    texts = [entry if isinstance(entry, str) else " ".join(entry) for entry in entries]
    return tuple(" ".join(text.split()) for text in texts if text.strip())


def pair_of(setting: str) -> tuple[str, str]:
    """Return key and value of a setting."""
    key, _, value = setting.partition(" ")
    return key, value


def check_mca(settings: tuple[str, ...]) -> None:
    """Refuse settings that would break a job; the message has the reason and the remedy."""
    keys = [pair_of(setting)[0] for setting in settings]
    for key, value in map(pair_of, settings):
        if _KEY.fullmatch(key) is None or not value:
            raise ValueError(f'must be a key and its value, as in "btl self,uct", got {key!r}')
        if keys.count(key) > 1:
            raise ValueError(f"{key} is given {keys.count(key)} times; mpiexec takes it once")
        reason = _reason_against(key)
        if reason:
            raise ValueError(f"{key}: {reason}")
        check = _VALUES.get(key)
        if check is not None:
            check(value)


def check_between_hosts(settings: tuple[str, ...]) -> None:
    """Refuse settings that would break a job over several hosts; raises ``UsageError``."""
    for key, value in map(pair_of, settings):
        names = value.lstrip("^").split(",")
        if key == "btl" and "sm" in names:
            raise UsageError(
                "--mca btl: sm is shared memory, and each rank takes those of other hosts for its "
                "neighbours there; leave sm out, or run on one host"
            )
        if key == "coll" and value.startswith("^") is not ("sm" in names):
            left_out = _names("sm")
            raise UsageError(f'--mca coll: sm must be left out between hosts, as in "^{left_out}"')


def _reason_against(key: str) -> str:
    if key in _OWN:
        return "holdfast sets this itself, and a job relies on it; leave it out"
    if key in _INTERFACES:
        return "PMIx and MPI take the same network; name it with --network"
    if key.startswith(("mpi_ft_detector", "mpi_ft_enable")):
        return (
            "holdfast finds out who is dead (--heartbeat-timeout), and MPI must not; leave it out"
        )
    if key.startswith(_PLACEMENT):
        return (
            "mpiexec places and binds guards, not workers; give workers to hosts with --hosts, and "
            "cores to a job with taskset or the batch system"
        )
    return ""


def _check_transports(value: str) -> None:
    names = value.split(",")
    if value.startswith("^") or "self" not in names:
        raise ValueError(
            f'btl: name the transports to use, self among them, as in "self,uct", not {value!r}'
        )


def _check_collectives(value: str) -> None:
    names = value.lstrip("^").split(",")
    is_used = [name for name in _UNSAFE_COLLECTIVES if (name in names) is not value.startswith("^")]
    if is_used:
        raise ValueError(
            f"coll: {' and '.join(is_used)} may return success with wrong sums after a death; "
            f'leave them out, as in "^{_names()}"'
        )


def _names(*more: str) -> str:
    return ",".join((*_UNSAFE_COLLECTIVES, *more))


_VALUES: dict[str, Callable[[str], None]] = {
    "btl": _check_transports,
    "coll": _check_collectives,
}
