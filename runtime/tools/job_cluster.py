"""The hosts of a job in a test: made on this machine, struck at the job's faults, looked at.

No process of a host can lose that whole host: it would end before the rest.  So a fault such as
``cut host=b step=3`` becomes two: the first worker of the host stops itself at that moment
(``stop host=b step=3``), and says so in the journal.  No other worker gets past that step without
it.  The strike comes from outside then, and so meets each run of a test at the same moment.
"""

from __future__ import annotations

import contextlib
import os
import signal
import string
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from holdfast.recovery.fault import Fault, FaultKind, FaultPlan, parse_fault
from holdfast.recovery.placement import HostSlots
from holdfast.runtime.clusters.cluster import NETWORK, Cluster, wait_until, why_not
from holdfast.runtime.clusters.host_keeper import OWN_FOLDERS
from holdfast.runtime.run.journal import JournalReader, Record
from holdfast.runtime.system.processes import is_alive, is_stopped

MOST_HOSTS = len(string.ascii_lowercase)

_STOPS_WITHIN_S = 60.0
"""A worker stops itself right after it has said so; a machine with too much to do takes longer."""
_LOOK_S = 0.01


def host_names(count: int) -> tuple[str, ...]:
    """Return the names of the hosts: a, b, c."""
    return tuple(string.ascii_lowercase[:count])


def check_terms(hosts: int, workers: int, faults: Iterable[str]) -> None:
    """Refuse a job that these hosts cannot have.

    Raises:
        ValueError: there are too few hosts, too many, or too few workers for all of them; or a
            fault names a host that is none of them, or is lost with the test's own job.
        FaultSyntaxError: a fault cannot be read.
        FaultConflict: two faults strike at one address.
    """
    if not 1 <= hosts <= MOST_HOSTS:
        raise ValueError(f"hosts must be a whole number from 1 to {MOST_HOSTS}, got {hosts}")
    if hosts == 1:
        return  # this host, which has its own name
    if workers < hosts:
        raise ValueError(f"{hosts} hosts need a worker each, and there are {workers}: ask for more")
    head, *others = host_names(hosts)
    for fault in FaultPlan(tuple(map(parse_fault, faults))).faults:
        if fault.host and fault.host not in (head, *others):
            raise ValueError(f"'{fault}' names no host of the job: {head}, {', '.join(others)}")
        if fault.kind.is_of_host and fault.host == head:
            raise ValueError(
                f"'{fault}' would take holdfast run along, which is on {head}: "
                f"strike {' or '.join(others)}"
            )


class JobCluster:
    """Hosts that live as long as a job: the first one, which has the head, and others."""

    def __init__(
        self, *, hosts: int, workers: int, faults: Sequence[str], folder: Path, seen: Iterable[Path]
    ) -> None:
        """Make the hosts; their own files are in ``folder``.

        Each host has folders such as ``/tmp`` for itself.  What of ``seen`` lies there, all see.

        Raises:
            ValueError: a path of ``seen`` lies in such a folder itself, so it cannot be shared.
            RuntimeError: no hosts can be made here.
        """
        shared = [*_shared(seen)]
        if reason := why_not():
            raise RuntimeError(f"no job over {hosts} hosts can be tested here: {reason}")
        given = [parse_fault(text) for text in faults]
        self._due = [fault for fault in given if fault.kind.is_of_host]
        self._failure: Exception | None = None
        self._lost: set[str] = set()
        self._frozen: set[str] = set()
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None
        self.faults = tuple(
            str(replace(fault, kind=FaultKind.STOP) if fault.kind.is_of_host else fault)
            for fault in given
        )
        self._closing = contextlib.ExitStack()
        self._cluster = self._closing.enter_context(Cluster(folder, host_names(hosts), shared))
        more = workers % hosts
        slots = [
            HostSlots(name, workers // hosts + (number < more))
            for number, name in enumerate(self._cluster.names)
        ]
        self.options = ["--hosts", ",".join(map(str, slots)), "--rsh", self._cluster.rsh]
        self.options += ["--network", NETWORK]

    def start(self, argv: Sequence[str], journal: Path, **options: Any) -> subprocess.Popen[bytes]:
        """Start the job on the first host, and strike as soon as its journal says when."""
        if self._due:
            reader = JournalReader(journal)
            _read(reader)  # what an earlier job of the run has written
            self._thread = threading.Thread(target=self._follow, args=(reader,), daemon=True)
            self._thread.start()
        return self._cluster.popen(self._cluster.head, argv, **options)

    def processes(self) -> dict[int, str]:
        """Return the name of each process that runs on a host, by its number on this machine."""
        return {
            pid: line.partition(":")[0]
            for host in self._cluster.names
            for pid, line in self._cluster.processes(host).items()
        }

    def wait_empty(self, within_s: float) -> None:
        """Wait until nothing of the job is left on any host; frozen hosts go on before the end.

        Raises:
            RuntimeError: a host could not be struck.
        """
        with contextlib.suppress(TimeoutError):
            wait_until(self._is_empty, "end of the job", within_s)
        self._end_strikes()
        for host in self._living & self._frozen:  # what is frozen cannot end
            self._cluster.thaw(host)
            self._cluster.wait_empty(host, within_s)
        if self._failure is not None:
            raise RuntimeError("a host could not be struck") from self._failure

    def leftovers(self) -> tuple[str, ...]:
        """Name each process and file that is left on a host that was not lost."""
        return tuple(
            f"{found} on host {host}"
            for host in sorted(self._living)
            for found in self._cluster.leftovers(host)
        )

    def close(self) -> None:
        """End all that runs on the hosts, and the hosts; a second call is harmless."""
        self._end_strikes()
        self._closing.close()

    def _is_empty(self) -> bool:
        return not any(map(self._cluster.leftovers, self._living - self._frozen))

    @property
    def _living(self) -> set[str]:
        return {*self._cluster.names} - self._lost

    def _end_strikes(self) -> None:
        self._is_over.set()
        if self._thread is not None:
            self._thread.join()

    def _follow(self, reader: JournalReader) -> None:
        """Strike each host that is due, until there is none."""
        while self._due and not self._is_over.wait(_LOOK_S):
            for record in _read(reader):
                for fault in [fault for fault in self._due if _is_struck_by(record, fault)]:
                    self._due.remove(fault)
                    try:
                        self._strike(fault, f"holdfast-w{record['worker']}")
                    except (OSError, subprocess.SubprocessError) as error:
                        self._failure = error
                        return

    def _strike(self, fault: Fault, name: str) -> None:
        """Lose a host, whose first worker has this name and is about to stop itself."""
        cluster, host = self._cluster, fault.host
        found = cluster.processes(host).items()
        stopping = [pid for pid, line in found if line.startswith(f"{name}:")]
        until = time.monotonic() + _STOPS_WITHIN_S
        while any(is_alive(pid) and not is_stopped(pid) for pid in stopping):
            if self._is_over.wait(_LOOK_S) or time.monotonic() > until:
                return
        match fault.kind:
            case FaultKind.LOSE:
                self._lost.add(host)
                cluster.kill(host)
            case FaultKind.CUT:
                cluster.cut(host)
                for pid in stopping:  # all of the host works, and nobody hears of it
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGCONT)
            case FaultKind.FREEZE:
                self._frozen.add(host)
                cluster.freeze(host)


def _read(reader: JournalReader) -> list[Record]:
    """Return the new records of a journal that may not be there yet."""
    try:
        return list(reader.read())
    except OSError:
        return []


def _is_struck_by(record: Record, fault: Fault) -> bool:
    """Whether a record tells that the worker stands still at whose moment a fault strikes."""
    told = tuple(record.get(name) for name in ("event", "host", "step", "site", "attempt"))
    return told == ("fault", fault.host, fault.step, fault.site.value, fault.attempt)


def _shared(paths: Iterable[Path]) -> Iterator[Path]:
    """Return the folders that all hosts must see: those in a host's own folder that hold a path."""
    for path in {Path(os.path.abspath(path)) for path in paths}:
        for own in map(Path, OWN_FOLDERS):
            if path.is_relative_to(own):
                inside = path.relative_to(own).parts
                if not inside or (len(inside) == 1 and not path.is_dir()):
                    raise ValueError(
                        f"each host has a {own} for itself, so {path} cannot be there: "
                        "make a folder for it"
                    )
                yield own / inside[0]
