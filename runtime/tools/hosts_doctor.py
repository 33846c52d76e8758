"""What a job over several hosts would find: each host, what differs, the network, and its links.

All of it is asked as a job asks it (`checked_hosts`), but nothing ends at the first fault.
"""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from holdfast.recovery.placement import HostSlots
from holdfast.runtime.errors import UsageError
from holdfast.runtime.hosts.checked_hosts import (
    Asked,
    Asking,
    ask_hosts,
    common_numerics,
    differences,
    settle_hosts,
    unlike_devices,
)
from holdfast.runtime.hosts.link_trial import LinkQuestion, measure_pairs
from holdfast.runtime.hosts.network import JobNetwork, choose
from holdfast.runtime.hosts.probe import Question
from holdfast.runtime.hosts.remote_shell import RemoteShell
from holdfast.runtime.mpi.mpi_library import MpiLibrary
from holdfast.runtime.options.job_options import JobOptions
from holdfast.runtime.run.numerics import instruction_set
from holdfast.runtime.run.progress import count, memory

_ALL_PAIRS_OF = 6
"""With more hosts each speaks to the head and to the next one only."""

_TOLD_CLOCK_S = 2.0


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One finding: a sentence, and whether a job could run with it."""

    subject: str
    sentence: str
    is_good: bool = True


def examine_hosts(options: JobOptions, library: MpiLibrary) -> Iterator[Diagnosis]:
    """Yield what is found of the hosts that the options name; nothing if this is the only one."""
    hosts = settle_hosts(options)
    if not hosts:
        return
    names = [host.name for host in hosts]
    try:
        asking = _asked(options, names, library)
    except (UsageError, OSError) as error:
        yield Diagnosis("hosts", str(error), is_good=False)
        return
    yield from (_host(host, one) for host, one in zip(hosts, asking.asked, strict=True))
    for sentence in (
        *differences(asking.asked, asking.question),
        *unlike_devices(hosts, asking.asked),
    ):
        yield Diagnosis("hosts", sentence, is_good=False)
    variables = common_numerics(os.environ, asking.found)
    if variables:
        words = " ".join(f"{name}={value}" for name, value in variables.items())
        yield Diagnosis("processors", f"they differ: all workers would have {words}")
    if len(asking.found) == len(names):
        yield from _network(options, names, asking)


def _asked(options: JobOptions, names: Sequence[str], library: MpiLibrary) -> Asking:
    """Ask all hosts, with a file in the run directory that proves that they share it."""
    token = secrets.token_hex(16)
    with tempfile.NamedTemporaryFile(dir=options.run_dir, prefix=".holdfast-doctor-") as proof:
        proof.write(token.encode())
        proof.flush()
        os.fsync(proof.fileno())
        question = Question(Path.cwd(), None, Path(proof.name), token, library.mpiexec)
        return ask_hosts(options, names, question, lambda _: None)  # it is no job that waits


def _host(host: HostSlots, one: Asked) -> Diagnosis:
    """Return a host in a line."""
    subject = f"host {host.name}"
    facts = one.facts
    if facts is None:
        return Diagnosis(subject, one.fault, is_good=False)
    parts = [
        f"takes {count(host.slots, 'worker')}",
        f"{count(facts.cores, 'core')} ({facts.processor or 'unknown'}, "
        f"{instruction_set(os.environ, facts.flags)})",
        f"{memory(facts.memory)} of memory",
        f"{memory(facts.shm_free)} free in /dev/shm",
    ]
    if facts.devices.names:
        parts.append(f"{count(len(facts.devices.names), 'device')} ({facts.devices})")
    if abs(one.clock_ahead_s) > _TOLD_CLOCK_S:
        word = "ahead" if one.clock_ahead_s > 0 else "behind"
        parts.append(f"its clock is {abs(one.clock_ahead_s):.0f} s {word}: set both by NTP")
    return Diagnosis(subject, ", ".join(parts))


def _network(options: JobOptions, names: Sequence[str], asking: Asking) -> Iterator[Diagnosis]:
    """Yield the network that a job would take, and its links."""
    try:
        network = choose(options.network, names, asking.found, asking.tried)
    except UsageError as error:
        yield Diagnosis("network", str(error), is_good=False)
        return
    shown = ", ".join(f"{n} {a}" for n, a in zip(names, network.addresses, strict=True))
    yield Diagnosis("network", f"{network.network}: {shown}")
    yield from _links(options, names, network)


def _links(options: JobOptions, names: Sequence[str], network: JobNetwork) -> Iterator[Diagnosis]:
    """Yield the speed of each pair of hosts; if they are many, of some."""
    word = secrets.token_hex(8)
    questions = [LinkQuestion(str(network.network), one, word) for one in network.addresses]
    shell = RemoteShell.of(options.rsh)
    for first, second, speed in measure_pairs(pairs_of(len(names)), names, questions, shell):
        subject = f"{names[first]} - {names[second]}"
        yield Diagnosis(subject, str(speed), is_good=not speed.fault)


def pairs_of(hosts: int) -> list[tuple[int, int]]:
    """Return the pairs of hosts that are measured: all of a few, else to the head and the next."""
    if hosts <= _ALL_PAIRS_OF:
        return list(combinations(range(hosts), 2))
    return sorted({(0, n) for n in range(1, hosts)} | {(n, n + 1) for n in range(hosts - 1)})
