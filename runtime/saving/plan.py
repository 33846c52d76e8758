"""What the processes of a save tell each other: plan, ticket, request, and the order of a mend.

All that the saves of a stage have in common is a `SavePlan`.  It travels once, not once a worker
and save.  A plan with the images of a save is enough to commit, so a save that is complete in
memory needs no worker any more.  A `SaveTicket` has the few numbers that name one save, in every
message about it.

Only one process of a host changes checkpoints.  A restore comes before the first plan of
saves, and may have to use a step of an earlier launch.  So a `MendOrder` says all that a mend
needs: whose directory it is, and where parts of the step may be.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.checkpoint.digest import digest_of
from holdfast.checkpoint.filesystem import FileSystem
from holdfast.checkpoint.image_map import ImageMap
from holdfast.checkpoint.manifest import Manifest, Version, plain_name
from holdfast.checkpoint.record import Header, ShardRecord
from holdfast.checkpoint.retention import FEWEST_KEPT, Best, Retention, Wanted
from holdfast.checkpoint.signature import KeyFile
from holdfast.checkpoint.space import Space
from holdfast.checkpoint.store import CheckpointStore
from holdfast.checkpoint.tensor import ShardLayout, TensorSpec
from holdfast.recovery.schedule import EverySeconds, EverySteps, parse_schedule
from holdfast.recovery.work_plan import WorkPlan
from holdfast.runtime.errors import ProgramError
from holdfast.runtime.options.worker_config import WorkerConfig
from holdfast.runtime.run.find_run import key_in, other_home
from holdfast.runtime.run.run_directory import Ownership
from holdfast.runtime.run.stored_run import owned_store
from holdfast.runtime.saving.local_level import LocalTerms
from holdfast.runtime.worker.context import WorkerContext

_MODES = ("min", "max")


@dataclass(frozen=True, slots=True)
class SavePlan:
    """The plan of a stage's saves; every worker of the stage has an equal one.

    ``fields`` are those of a manifest's cursor that are the same for the whole stage.
    """

    run_dir: Path
    run_id: str
    layout: ShardLayout
    maintenance: MaintenanceTerms
    fields: Mapping[str, object]
    numerics: Mapping[str, object]
    key_file: KeyFile | None = None
    local: LocalTerms | None = None
    lease_token: str = ""

    @property
    def layout_id(self) -> str:
        """The name of the memory that fits these saves, the same in every process."""
        layout = self.layout
        specs = _specs_json(layout.specs)
        key = self.key_file and self.key_file.key_id
        return digest_of(json.dumps([self.run_id, layout.writers, key, specs]).encode())

    @property
    def ownership(self) -> Ownership:
        """The claim of the job to the run directory."""
        return Ownership(self.run_dir, self.run_id, self.lease_token)

    def open_store(self, files: FileSystem | None = None) -> CheckpointStore:
        """Return the run's checkpoints, fenced, or on another file system if one is given.

        Raises ``KeyUnusable`` if the key is no longer at the path where the job found it.
        """
        key = None if self.key_file is None else self.key_file.read()
        return owned_store(self.ownership, key, files)

    def image_map(self) -> ImageMap:
        """Return where each byte of a save lies in memory."""
        version = Version.PLAIN if self.key_file is None else Version.SIGNED
        return ImageMap.of(self.layout, version.digest)

    def manifest(
        self, header: Header, records: Sequence[ShardRecord], cursor: Mapping[str, object]
    ) -> Manifest:
        """Return the manifest of a save.

        Raises ``CommitRefused`` if the records do not make the checkpoint whole.
        """
        whole = {**self.fields, "step": header.step, **cursor}
        return Manifest.assemble(
            self.layout, list(records), header=header, cursor=whole, numerics=self.numerics
        )

    def encode(self) -> bytes:
        """Return the plan as bytes."""
        return json.dumps(
            {
                "run_dir": str(self.run_dir),
                "run_id": self.run_id,
                "lease_token": self.lease_token,
                "writers": self.layout.writers,
                "specs": _specs_json(self.layout.specs),
                "maintenance": self.maintenance.as_json(),
                "fields": dict(self.fields),
                "numerics": dict(self.numerics),
                "key_file": self.key_file and dataclasses.asdict(self.key_file),
                "local": self.local and self.local.as_json(),
            },
            separators=(",", ":"),
        ).encode()

    @staticmethod
    def decode(data: bytes) -> SavePlan:
        """Return the plan that ``encode`` made."""
        value = json.loads(data)
        specs = tuple(TensorSpec(n, dtype, tuple(shape)) for n, dtype, shape in value["specs"])
        return SavePlan(
            Path(value["run_dir"]),
            value["run_id"],
            ShardLayout(specs, value["writers"]),
            MaintenanceTerms.of(value["maintenance"]),
            value["fields"],
            value["numerics"],
            value["key_file"] and KeyFile(**value["key_file"]),
            value["local"] and LocalTerms.of(value["local"]),
            value["lease_token"],
        )


def _specs_json(specs: Sequence[TensorSpec]) -> list[list[object]]:
    return [[spec.name, spec.dtype, list(spec.shape)] for spec in specs]


@dataclass(frozen=True, slots=True)
class MaintenanceTerms:
    """How the committed steps of a run are cared for.

    ``generation`` is that of the launch: staging of older ones is dead.  ``unsound`` are
    steps that this launch, or one before it, has rejected.
    """

    retention: Retention
    generation: int
    scrub_every_s: float = 0.0
    repair_from: Path | None = None
    unsound: frozenset[int] = frozenset()
    keep_space: str | None = None
    """The space that the checkpoints may take, as the user has written it."""

    @property
    def whole_retention(self) -> Retention:
        """The retention with the space that the checkpoints may take."""
        space = None if self.keep_space is None else Space.parse(self.keep_space)
        return dataclasses.replace(self.retention, space=space)

    def as_json(self) -> dict[str, object]:
        """Return the terms as a JSON object."""
        retention = dataclasses.asdict(self.retention)
        retention["forever"] = sorted(self.retention.forever)
        del retention["space"]  # it is a fraction, and travels as a text
        return {
            "retention": retention,
            "generation": self.generation,
            "scrub_every_s": self.scrub_every_s,
            "repair_from": self.repair_from and str(self.repair_from),
            "unsound": sorted(self.unsound),
            "keep_space": self.keep_space,
        }

    @staticmethod
    def of(value: Mapping[str, Any]) -> MaintenanceTerms:
        """Return the terms that ``as_json`` made."""
        kept = value["retention"]
        wanted = tuple(
            Wanted(**{**found, "best": found["best"] and Best(**found["best"])})
            for found in kept["wanted"]
        )
        return MaintenanceTerms(
            Retention(**{**kept, "wanted": wanted, "forever": frozenset(kept["forever"])}),
            value["generation"],
            value["scrub_every_s"],
            value["repair_from"] and Path(value["repair_from"]),
            frozenset(value["unsound"]),
            value["keep_space"],
        )


@dataclass(frozen=True, slots=True)
class SaveTicket:
    """One save: whose, of which step, in how many parts, and in which memory.

    ``launch`` is the launch's first generation, ``generation`` that of the world that
    saves; ``began`` is in seconds of the monotonic clock, which all processes of a host share.
    """

    launch: int
    generation: int
    step: int
    attempt: int
    parts: int
    buffer: int
    layout: str
    began: float
    needs_run_directory: bool = False
    """Whether the run directory has to have it: the job ends with it, or a user waits for it."""

    @property
    def age(self) -> tuple[int, int]:
        """Generation and attempt; the later of two saves of a run has the larger pair."""
        return self.generation, self.attempt

    @property
    def key(self) -> tuple[int, int, int]:
        """The name of the staged save: step, generation and attempt."""
        return self.step, self.generation, self.attempt

    def header(self, run_id: str) -> Header:
        """Return the header of the save's shards."""
        return Header(run_id, self.generation, self.step)

    def as_json(self) -> dict[str, object]:
        """Return the ticket as a JSON object."""
        return dataclasses.asdict(self)

    @staticmethod
    def of(message: Mapping[str, Any]) -> SaveTicket:
        """Return the ticket in a message; raises ``KeyError`` if a field is missing."""
        names = [field.name for field in dataclasses.fields(SaveTicket)]
        return SaveTicket(**{name: message[name] for name in names})


@dataclass(frozen=True, slots=True)
class SaveRequest:
    """A save of one step, and this worker's part in it.

    ``cursor`` has the fields of the manifest's cursor that differ from save to save.
    """

    generation: int
    step: int
    attempt: int
    part: int
    parts: int
    cursor: Mapping[str, object]
    began: float
    needs_run_directory: bool = False

    def ticket(self, launch: int, layout: str, buffer: int) -> SaveTicket:
        """Return the ticket of the save, which lies in this buffer."""
        return SaveTicket(
            launch,
            self.generation,
            self.step,
            self.attempt,
            self.parts,
            buffer,
            layout,
            self.began,
            self.needs_run_directory,
        )


@dataclass(frozen=True, slots=True)
class MendOrder:
    """A step of a run, and the copies of its directory that may have parts of it."""

    step: int
    run_dir: Path
    run_id: str
    lease_token: str = ""
    key_file: KeyFile | None = None
    copies: tuple[Path, ...] = ()

    def open_store(self) -> CheckpointStore:
        """Return the checkpoints of the run.

        Raises ``KeyUnusable`` if the key is no longer at the path where the job found it.
        """
        key = None if self.key_file is None else self.key_file.read()
        return owned_store(Ownership(self.run_dir, self.run_id, self.lease_token), key)

    def as_json(self) -> dict[str, Any]:
        """Return the order as a message."""
        return {
            "kind": "mend",
            "step": self.step,
            "run_dir": str(self.run_dir),
            "run_id": self.run_id,
            "lease_token": self.lease_token,
            "key_file": self.key_file and dataclasses.asdict(self.key_file),
            "copies": [str(path) for path in self.copies],
        }

    @staticmethod
    def of(message: Mapping[str, Any]) -> MendOrder:
        """Return the order in a message; raises ``KeyError`` if a field is missing."""
        return MendOrder(
            message["step"],
            Path(message["run_dir"]),
            message["run_id"],
            message["lease_token"],
            message["key_file"] and KeyFile(**message["key_file"]),
            tuple(map(Path, message["copies"])),
        )


@dataclass(frozen=True, slots=True)
class SaveTerms:
    """The steps at which a job is saved, the fields of its manifests, and its retention.

    ``fields`` are those of a manifest's cursor that are the same for the whole stage, the
    job's identity among them; ``numerics`` are the job's, as JSON.
    """

    work_plan: WorkPlan
    retention: Retention
    fields: Mapping[str, object]
    numerics: dict[str, object]


def wanted_of(keep_every: object, keep_best: object, *, after: int = -1) -> Wanted:
    """Return what a training that begins after the step ``after`` wants to keep.

    Raises:
        ProgramError: an option is not valid; the message names it and the valid values.
    """
    every = None if keep_every is None else _at_least(1, keep_every, "keep_every")
    return Wanted(every, None if keep_best is None else _best_of(keep_best), after)


def retention_of(
    keep: object, wanted: tuple[Wanted, ...], *, forever: frozenset[int] = frozenset()
) -> Retention:
    """Return the retention of a run whose trainings, so far, want to keep what is ``wanted``.

    Raises:
        ProgramError: ``keep`` is not valid; the message names the valid values.
    """
    return Retention(_at_least(FEWEST_KEPT, keep, "keep"), wanted, forever)


def _at_least(least: int, value: object, name: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ProgramError(f"{name} must be at least {least}, got {value!r}; change the script")
    return value


def _best_of(keep_best: object) -> Best:
    match keep_best:
        case (str(metric), str(mode)) if mode in _MODES:
            return Best(plain_name(metric), is_smaller_better=mode == "min")
    raise ProgramError(
        f'keep_best must be a metric and "min" or "max", such as ("val_loss", "min"), '
        f"got {keep_best!r}; change the script"
    )


def local_terms(config: WorkerConfig) -> LocalTerms | None:
    """Return where saves go first and how often they drain, None without a local directory."""
    options = config.options
    directory = options.local_run_dir(config.run_id)
    if directory is None:
        return None
    match parse_schedule(options.drain_every):
        case EverySteps(saves):
            return LocalTerms(directory, every_saves=saves)
        case EverySeconds(seconds):
            return LocalTerms(directory, every_s=seconds)
    raise AssertionError(f"--drain-every {options.drain_every} has passed its check")


def local_store(context: WorkerContext) -> CheckpointStore | None:
    """Return the checkpoints in the local directory, None if this host has none for the run."""
    terms, run_id = local_terms(context.config), context.config.run_id
    if terms is None or not terms.directory.is_dir():
        return None
    if other_home(terms.directory, context.run_dir, run_id) is not None:
        return None
    return CheckpointStore(terms.directory, key=key_in(context.config.key_file))
