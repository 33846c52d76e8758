"""What a worker must know that its script does not say."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass

from holdfast.checkpoint.format.key_file import KeyFile
from holdfast.recovery.world import WorkerId

DEFAULT_SCRUB_EVERY_S = 3600.0
_SECOND_COPY = 2


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """One worker's part of a launch, handed over by the agent when the worker starts.

    Everything but ``worker`` is the same for all workers of a launch.
    ``generation`` is that of the launch's first world; ``workers`` are its
    worker ids in rank order, the last ``len(workers) - capacity`` of them spares.
    ``nodes`` says where they are, in the same order; it is empty if all are on one node.
    ``initial``, and the ``initial_step`` of another run, override the script's;
    a worker that ``trains`` is false of stops at the first state, with a checkpoint.
    """

    worker: WorkerId
    generation: int
    workers: tuple[WorkerId, ...]
    capacity: int
    run_id: str
    run_dir: str
    microbatches: int
    seed: int
    threads: int
    heartbeat_timeout_s: float
    script: str
    argv: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()
    strict: bool = False
    shrink: bool = True
    save_every: str | None = None
    verify_every: int | None = None
    nodes: tuple[str, ...] = ()
    snapshot_copies: int | None = None
    scrub_every_s: float = DEFAULT_SCRUB_EVERY_S
    repair_from: str | None = None
    initial: str | None = None
    initial_step: int | None = None
    trains: bool = True
    key_file: KeyFile | None = None

    def lost_with(self, worker: WorkerId) -> str:
        """Return the same text for workers whose snapshots are not to hold each other's slices.

        They are those of one node, with which all of its memory would be lost.  A second
        copy on the same node, which is made only if asked for, is lost with its worker.
        """
        if self.snapshot_copies == 1:
            return ""
        if len(set(self.nodes)) > 1:
            return self.nodes[self.workers.index(worker)]
        return str(worker) if self.snapshot_copies == _SECOND_COPY else ""

    def encode(self) -> str:
        """Return the configuration as one line of JSON."""
        return json.dumps(dataclasses.asdict(self))

    @staticmethod
    def decode(text: str) -> WorkerConfig:
        """Return the configuration that ``encode`` wrote."""
        fields = json.loads(text)
        for name in ("workers", "argv", "faults", "nodes"):
            if name in fields:
                fields[name] = tuple(fields[name])
        if fields.get("key_file") is not None:
            fields["key_file"] = KeyFile(**fields["key_file"])
        return WorkerConfig(**fields)
