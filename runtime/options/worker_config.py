"""What a worker must know that its script does not say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.recovery.schedule import FailureHistory
from holdfast.recovery.world import WorkerId, World
from holdfast.runtime.options.job_options import JobOptions
from holdfast.runtime.run.numerics import Numerics
from holdfast.runtime.run.run_directory import Ownership, RunDirectory, RunRecord
from holdfast.runtime.run.script_record import ScriptRecord

_LARGEST_GENERATION = (1 << 63) - 1
_NO_HISTORY = FailureHistory()


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """One worker's part of a launch, handed over by the agent when the worker starts.

    Everything but ``worker`` is the same for all workers of a launch.
    ``generation`` is that of the launch's first world; ``workers`` are its
    worker ids in rank order; those after the first ``options.workers`` are spares.
    ``record`` has the terms of the run: what the options leave open is settled there.
    ``history`` is that of the run before this launch.
    """

    options: JobOptions
    worker: WorkerId
    generation: int
    workers: tuple[WorkerId, ...]
    record: RunRecord
    history: FailureHistory = _NO_HISTORY
    lease_token: str = ""
    """The token of the lease under which the launch may change the run directory."""
    hosts: tuple[str, ...] = ()
    """The name of each worker's host, as ``workers``; none if all live on one."""
    program: Mapping[str, str] = field(default_factory=dict)
    """The digest of each file of the program that the job began with, by its path."""
    script_begun: str = ""
    """Where the client's links led to the script when the job began."""
    is_prepared: bool = False
    """Whether a launch that trains has to make room before the script runs."""

    def __post_init__(self) -> None:
        """Refuse a launch that makes no sense: it comes from another process."""
        if not 0 <= self.generation <= _LARGEST_GENERATION:
            raise ValueError(f"generation is {self.generation}")
        if len(set(self.workers)) < len(self.workers):
            raise ValueError(f"workers are {self.workers}")
        if self.hosts and len(self.hosts) != len(self.workers):
            raise ValueError(f"{len(self.hosts)} hosts for {len(self.workers)} workers")

    @property
    def first_world(self) -> World:
        """The world that the launch begins with."""
        return World(self.generation, self.workers, self.options.workers)

    @property
    def numerics(self) -> Numerics:
        """The numerics of this worker; a run goes on with or without XLA, as it began."""
        return Numerics.of_run(self.record.numerics, threads=self.record.threads)

    @property
    def host_of(self) -> Mapping[WorkerId, str]:
        """The name of each worker's host; all the same, and empty, if there is one."""
        return dict(zip(self.workers, self.hosts or ("",) * len(self.workers), strict=True))

    @property
    def place_on_host(self) -> int:
        """How many workers come before this one on its host, in rank order."""
        hosts = self.host_of
        neighbours = [worker for worker in self.workers if hosts[worker] == hosts[self.worker]]
        return neighbours.index(self.worker)

    @property
    def script(self) -> Path:
        """The script as the job began with it: a link to it may lead elsewhere by now.

        Another host may have it in a folder of another name.
        """
        begun = Path(self.script_begun or self.options.script)
        is_elsewhere = bool(self.hosts) and not begun.parent.is_dir()
        return begun if self.script_begun and not is_elsewhere else self.options.script.resolve()

    @property
    def ownership(self) -> Ownership:
        """The claim of the job to the run directory."""
        return Ownership(self.options.run_dir, self.record.run_id, self.lease_token)

    @property
    def script_record(self) -> ScriptRecord:
        """What the script has done in all launches of the run, as one process sees it."""
        path = RunDirectory(self.options.run_dir).script_record_path
        return ScriptRecord(path, is_of_hosts=bool(self.hosts), owner=self.ownership)
