"""What a head is told of its job, and what it tells its client, so that another head can go on.

A `Job` is settled before the head starts (`job_setup`).  A client keeps the newest launch and
what it has come to (`LaunchLog`): if the head dies, the next one decides from that as the last
one would have done.

Of the events of a launch a log keeps as few as that needs.  The job's machine looks at the newest
world and checkpoint only, and at one report of each kind from each worker.  So older ones are
forgotten, and the log of a launch that runs for months stays as small as that of its first minute.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.recovery.errors import ExitCode
from holdfast.recovery.event import (
    CheckpointCommitted,
    Event,
    Launch,
    LaunchEnded,
    LaunchRenewing,
    SlotsChanged,
    WorkerCompleted,
    WorkerExited,
    WorkerFailed,
    WorkerJoined,
    WorkerStopped,
    WorldFormed,
)
from holdfast.recovery.job import JobTerms
from holdfast.recovery.placement import HostSlots, total_slots, usable_hosts
from holdfast.recovery.world import WorkerId
from holdfast.runtime.head.orders import TimeLimits
from holdfast.runtime.options.mca_settings import pair_of
from holdfast.runtime.options.worker_config import WorkerConfig
from holdfast.runtime.system.channel import Message
from holdfast.runtime.system.codec import from_plain, to_plain

_DEATHS = frozenset({"InjectedFault", "WorldLost"})
"""Errors of a worker that are no mistake of its script: a relaunch may cure them."""

_OF_A_WORKER = frozenset({"worker_started", "worker_exited"})
OF_HOSTS = frozenset({"host_lost", "host_back"})
"""Events of the whole job: another head must know whom this one has lost."""
_KEPT_REPORTS = frozenset({"joined", "world", "checkpoint", "error", "complete", "stopped"})


@dataclass(frozen=True, slots=True)
class Job:
    """A job that may begin.

    Attributes:
        config: what the workers of its first launch are told; later ones have other ids.
        mpiexec, mpi_library: what starts the workers, and the name of the library it belongs to.
        preload: what its pools import.
        missing_modules: modules to preload that are not there; the user was told.
        saved_step: the newest step, None without any.
        struck: the faults of ``--inject`` that have struck in an earlier job of the run.
        limits: its time.
        lost_lines: the lines that the journal has not taken before the job had a head.
        hosts: the hosts of the job, that of the head first; none if there is no other one.
        losses: how often hosts were lost in earlier jobs of the run, of late.
        missing: hosts that were lost and not back when the head before this one died.
        network: the network between them, as CIDR; None if there is no other host.
        addresses: the address of each host on it, as ``hosts``.
        facts: what each host has said before the job began (`HostFacts`), as ``hosts``.
        said: the lines of its client before it had a head, which the log of the run lacks.
    """

    config: WorkerConfig
    mpiexec: Path
    mpi_library: str
    preload: tuple[str, ...]
    missing_modules: tuple[str, ...]
    saved_step: int | None
    struck: tuple[tuple[object, ...], ...]
    limits: TimeLimits
    lost_lines: int = 0
    hosts: tuple[HostSlots, ...] = ()
    losses: Mapping[str, int] = dataclasses.field(default_factory=dict)
    missing: tuple[str, ...] = ()
    network: str | None = None
    addresses: tuple[str, ...] = ()
    facts: tuple[Mapping[str, object], ...] = ()
    said: tuple[str, ...] = ()

    @property
    def terms(self) -> JobTerms:
        """The terms of the job's machine."""
        options = self.config.options
        workers = options.workers + options.spares
        usable = usable_hosts(self.hosts, self.losses)
        there = [host for host in usable if host.name not in self.missing]
        return JobTerms(
            workers=workers,
            slots=total_slots(there) if self.hosts else None,
            max_restarts=options.max_restarts,
            # The death of a single worker leaves no survivor that would wait for ever.
            can_shrink=options.shrink or workers == 1,
            first_generation=self.config.generation,
            has_checkpoint=self.saved_step is not None,
            spares=options.spares,
        )

    def order_of(self, launch: Launch, config: WorkerConfig) -> Message:
        """Return the agent's order for a launch whose workers are told ``config``."""
        options = self.config.options
        return {
            "kind": "launch",
            "config": to_plain(config),
            "mpi": {
                "mpiexec": str(self.mpiexec),
                "library": self.mpi_library,
                "ulfm": options.shrink,
                "network": (self.network or options.network) if self.hosts else None,
                "mca": [[*pair_of(setting)] for setting in options.mca],
            },
            "relaunch": launch.relaunch,
            "spent": launch.spent,
        }

    @property
    def asked(self) -> list[Any]:
        """What a request for this very job has: it is not fresh, its script, its arguments."""
        options = self.config.options
        return [False, str(options.script), *options.argv]


def fault_address(record: Mapping[str, Any]) -> tuple[object, ...]:
    """Return which fault of ``--inject`` a ``fault`` of the journal was."""
    victim = "host" if record.get("host") else "worker"
    return tuple(record.get(name) for name in (victim, "step", "site", "attempt"))


def launch_of(order: Message) -> Launch:
    """Return the launch of an agent's order, for a head that takes it over."""
    config = from_plain(WorkerConfig, order["config"])
    return Launch(
        config.generation, config.workers, order["relaunch"], "taken over", order["spent"]
    )


def may_go_on_elsewhere(order: Message, told: Iterable[Message], own: str) -> bool:
    """Return whether workers may live whose head has died: all that it had were on other hosts.

    Those on its ``own`` host died with it, and no world goes on without its members.  Those of the
    world that was named last count: it may lack a worker that hung on the own host.  A host that
    was lost with the whole world may have it still.
    """
    told = list(told)
    named = [event["workers"] for event in told if event["kind"] == "world_named"]
    ended = {event["worker"] for event in told if event["kind"] == "worker_exited"}
    host_of = from_plain(WorkerConfig, order["config"]).host_of
    members = set(named[-1] if named else host_of) - ended
    left = {host for worker, host in host_of.items() if worker in members}
    has_lost_all = any(event.get("leased_s") for event in told)
    return has_lost_all or (bool(left) and own not in left)


class LaunchLog:
    """The order of the newest launch, and what it has come to so far."""

    def __init__(self) -> None:
        self.order: Message | None = None
        self._events: dict[tuple[object, ...], Message] = {}

    def begin(self, order: Message) -> None:
        """Forget the last launch; ``order`` is the agent's order for this one."""
        self.order = order
        self._events = {key: found for key, found in self._events.items() if key[0] in OF_HOSTS}

    def note(self, event: Message) -> bool:
        """Keep ``event`` if a machine decides by it, in place of an older one of its kind."""
        key = _key_of(event)
        if key is not None:
            self._events.pop(key, None)
            self._events[key] = event
        return key is not None

    @property
    def summary(self) -> Message | None:
        """The launch as people know it, None before the first one."""
        if self.order is None:
            return None
        config = self.order["config"]
        return {
            "script": config["options"]["script"],
            "generation": config["generation"],
            "workers": list(config["workers"]),
            "relaunch": self.order["relaunch"],
        }

    @property
    def events(self) -> tuple[Message, ...]:
        """The kept events, the newest last."""
        return tuple(self._events.values())


def _key_of(event: Message) -> tuple[object, ...] | None:
    kind = event["kind"]
    if kind in OF_HOSTS:
        return (kind, event["host"], event.get("losses"))
    if kind in _OF_A_WORKER:
        return (kind, event["worker"])
    if kind in ("launch_ended", "renewing", "world_named"):
        return (kind,)
    if kind != "worker_report" or event["report"].get("kind") not in _KEPT_REPORTS:
        return None
    report = event["report"]["kind"]
    return (report,) if report == "checkpoint" else (report, event["worker"])


def event_of(message: Message) -> Event | None:
    """Return the job's event for an agent's message, None if the message changes nothing."""
    kind = message.get("kind")
    if kind == "worker_exited":
        worker = WorkerId(message["worker"])
        return WorkerExited(worker, bool(message["clean"]), str(message["cause"]))
    if kind == "renewing":
        return LaunchRenewing(WorkerId(message["worker"]))
    if kind in OF_HOSTS:
        return SlotsChanged(int(message["slots"]))
    if kind == "launch_ended":
        words = str(message["words"])
        return LaunchEnded(f"mpiexec started no worker: {words}" if words else "")
    if kind != "worker_report":
        return None
    report = message["report"]
    translate = _REPORTS.get(report.get("kind"))
    return None if translate is None else translate(WorkerId(message["worker"]), report)


def _failed(worker: WorkerId, report: Mapping[str, str]) -> WorkerFailed:
    return WorkerFailed(
        worker,
        kind=report["type"],
        message=report["message"],
        traceback=report["traceback"],
        exit_code=ExitCode(int(report["exit_code"])),
        is_death=report["type"] in _DEATHS,
        is_in_training=bool(report.get("is_in_training")),
    )


def _formed(worker: WorkerId, report: Message) -> WorldFormed:
    workers = tuple(WorkerId(member) for member in report["workers"])
    return WorldFormed(report["generation"], workers, report["step"])


_REPORTS: dict[object, Callable[[WorkerId, Message], Event]] = {
    "joined": lambda worker, report: WorkerJoined(worker),
    "world": _formed,
    "checkpoint": lambda worker, report: CheckpointCommitted(worker, report["step"]),
    "error": _failed,
    "complete": lambda worker, report: WorkerCompleted(
        worker, report["step"], report["sha256"], bool(report["is_first"])
    ),
    "stopped": lambda worker, report: WorkerStopped(
        worker, report["step"], str(report.get("words", ""))
    ),
}


def config_of(config: WorkerConfig, launch: Launch, **changed: Any) -> WorkerConfig:
    """Return what the workers of a launch are told; all but the worker is the same for all."""
    return dataclasses.replace(
        config,
        worker=launch.workers[0],
        generation=launch.generation,
        workers=launch.workers,
        **changed,
    )
