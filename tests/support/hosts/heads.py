"""A job without processes: how it is set up, what its agent says, and what its head is told."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from configs import worker_config

from holdfast.recovery.event import (
    AbandonLaunch,
    AskToSave,
    AskToStop,
    CheckpointCommitted,
    DropPrepared,
    Event,
    KillLaunch,
    LaunchEnded,
    Renew,
    WorkerCompleted,
    WorkerExited,
    WorkerJoined,
    WorkerStopped,
    WorldFormed,
)
from holdfast.recovery.world import WorkerId
from holdfast.runtime.head.console import JobConsole
from holdfast.runtime.head.decider import Decider
from holdfast.runtime.head.job import Job
from holdfast.runtime.head.job_setup import JobSetup
from holdfast.runtime.head.orders import TimeLimits
from holdfast.runtime.head.preconditions import ScriptSource
from holdfast.runtime.head.screen import ProgressLog, Screen
from holdfast.runtime.host.host_messages import LaunchOrder, Order
from holdfast.runtime.host.launchers import MpiLibrary
from holdfast.runtime.options.job_options import JobOptions
from holdfast.runtime.run.entries import Entry
from holdfast.runtime.run.events import PoolRestarted, PoolWarmed
from holdfast.runtime.run.failure_history import HistoryReader
from holdfast.runtime.run.journal import Journal
from holdfast.runtime.run.program import Program
from holdfast.runtime.run.run_directory import RunDirectory, RunRecord

WARM = PoolWarmed()
COLD = PoolRestarted("signal SIGKILL")
ENDED = LaunchEnded()
RECORD = RunRecord("r", 1, 0.0, microbatches=2, seed=0, threads=1)
ORDERS = {
    LaunchOrder: "launch",
    KillLaunch: "kill",
    AbandonLaunch: "abandon",
    AskToSave: "save",
    AskToStop: "stop",
    Renew: "renew",
    DropPrepared: "drop",
}


def kind_of(order: Order) -> str:
    if isinstance(order, LaunchOrder) and order.config.is_prepared:
        return "prepare"
    return ORDERS[type(order)]


def joined(*workers: int) -> list[Event]:
    return [WorkerJoined(WorkerId(worker)) for worker in workers]


def formed(*workers: int, generation: int = 2, step: int = 40) -> Event:
    return WorldFormed(generation, tuple(map(WorkerId, workers)), step)


def saved(worker: int, step: int) -> Event:
    return CheckpointCommitted(WorkerId(worker), step)


def stopped(*workers: int) -> list[Event]:
    return [WorkerStopped(WorkerId(worker), 7) for worker in workers]


def exited(worker: int, *, is_clean: bool = False, **known: Any) -> WorkerExited:
    usual = {"cause": "signal SIGKILL", "step": 3, "phase": "training"}
    return WorkerExited(WorkerId(worker), is_clean=is_clean, **(usual | known))


def completed(*workers: int) -> list[Event]:
    """Return the words of workers that train to the end and leave."""
    told = [
        WorkerCompleted(WorkerId(worker), 9, "cafe", is_first=worker == workers[0])
        for worker in workers
    ]
    return [*told, *(exited(worker, is_clean=True) for worker in workers), ENDED]


def setup_in(folder: Path, **options: Any) -> JobSetup:
    """Return the setup of a job of two workers that begins a run in this folder."""
    script, directory = folder / "train.py", RunDirectory(folder / "run")
    script.touch()
    directory.prepare()
    directory.create_record(RECORD)
    path = directory.journal_path
    return settled(
        JobOptions(script, directory.path, **({"workers": 2} | options)),
        record=RECORD,
        journal=Journal(path, run_id="r", source="client"),
        lease=directory.acquire_lease(),
        history=HistoryReader(path),
        source=ScriptSource(),
    )


def settled(options: JobOptions, **found: Any) -> JobSetup:
    """Return a setup whose checks have found this."""
    setup = JobSetup(options)
    found = {"library": MpiLibrary(Path("/opt/mpiexec"), "5.0.9")} | found
    for name, value in ({"program": Program.of(options.script)} | found).items():
        setattr(setup, name, value)
    return setup


def job_of(limits: TimeLimits | None = None, **fields: Any) -> Job:
    """Return a job of two workers, unless these options say otherwise."""
    settled = set(Job.__dataclass_fields__) - {"preload", "network"}  # those are options as well
    changed = {name: fields.pop(name) for name in set(fields) & settled}
    capacity = fields.pop("workers", 2)
    wishes = {"capacity": capacity, "script": Path("/a/train.py"), "microbatches": 2} | fields
    workers = range(capacity + fields.get("spares", 0))
    made = {
        "config": replace(worker_config(workers=workers, **wishes), record=RECORD),
        "mpiexec": Path("/opt/mpiexec"),
        "mpi_library": "Open MPI",
        "preload": ("numpy",),
        "missing_modules": (),
        "saved_step": None,
        "struck": (),
        "limits": limits or TimeLimits(),
    }
    return Job(**(made | changed))  # type: ignore[arg-type]


class Run:
    """A run directory that only remembers what it was told."""

    def __init__(self) -> None:
        self.records: list[Event] = []
        self.checks = 0

    def record(self, event: Event) -> None:
        self.records.append(event)

    def check(self) -> None:
        self.checks += 1

    @property
    def events(self) -> list[str]:
        return [event.NAME for event in self.records]


def without_screen() -> ProgressLog:
    return ProgressLog(cast(Screen, SimpleNamespace(columns=0, print=lambda line: None)))


class Decided:
    """A decider, what it has ordered, said and recorded."""

    def __init__(self, job: Job, progress: ProgressLog | None = None) -> None:
        self.run, self.said, self.orders = Run(), b"", list[Order]()
        progress = progress or without_screen()
        self.console = JobConsole(job, self.run, self._hear, progress)
        self.decider = Decider(job, self.run, self.console, self.obey)  # type: ignore[arg-type]

    def obey(self, order: Order) -> None:
        self.orders.append(order)

    def _hear(self, lines: bytes) -> None:
        self.said += lines

    @property
    def kinds(self) -> list[str]:
        return list(map(kind_of, self.orders))

    @property
    def lines(self) -> list[str]:
        return self.said.decode().splitlines()

    @property
    def launches(self) -> list[LaunchOrder]:
        return [order for order in self.orders if isinstance(order, LaunchOrder)]

    def begin(self, *events: Event) -> None:
        """Begin the job, and let it hear events."""
        self.decider.begin()
        self.hear(*events)

    def hear(self, *events: Event) -> None:
        for event in events:
            self.decider.log.note(event)
            self.decider.on_event(event)

    def record(self, *recorded: Event) -> None:
        """Let it hear of lines that other processes have recorded just now."""
        for event in recorded:
            self.decider.on_record(Entry(event, time.monotonic(), time.time()))

    def poll(self, seconds: int, start: float = 100.0, *, is_idle: bool = False) -> None:
        """Let time pass by, a look each second; ``is_idle`` is whether no worker is hosted."""
        for second in range(seconds + 1):
            self.decider.poll(start + second, is_idle=is_idle)
