"""The plan of saves, and a worker's request of one.

All that the saves of a stage have in common is a `SavePlan`.  It travels once, not once a worker
and save.  A plan with the images of a save is enough to commit, so a save that is complete in
memory needs no worker any more.  It has the launch's configuration as it is: options and lease
of the job count for the writer as they do for a worker.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.checkpoint.filesystem import FileSystem, LocalFileSystem
from holdfast.checkpoint.image_map import ImageMap
from holdfast.checkpoint.manifest import Header, Manifest, ShardRecord, plain_name
from holdfast.checkpoint.retention import FEWEST_KEPT, Best, Retention, Wanted
from holdfast.checkpoint.store import CheckpointStore
from holdfast.checkpoint.tensor import ShardLayout, digest_of
from holdfast.runtime.errors import ProgramError
from holdfast.runtime.options.worker_config import WorkerConfig
from holdfast.runtime.saving.save_messages import SaveTicket
from holdfast.runtime.system.codec import encode

_MODES = ("min", "max")


@dataclass(frozen=True, slots=True)
class SaveTerms:
    """What a script asks of its saves: their retention, and the fields of their manifests.

    ``fields`` are those of a manifest's cursor that are the same for the whole stage, the
    job's identity among them; ``numerics`` are the job's, as JSON.
    """

    retention: Retention
    fields: Mapping[str, object] = field(default_factory=dict)
    numerics: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SavePlan:
    """The plan of a stage's saves; every worker of the stage has an equal one.

    ``config`` is that of the launch's first worker.  ``unsound`` are steps that this launch, or one
    before it, has rejected.
    """

    config: WorkerConfig
    layout: ShardLayout
    terms: SaveTerms
    unsound: frozenset[int] = frozenset()

    @property
    def run_dir(self) -> Path:
        """Where the run lives."""
        return self.config.run_dir

    @property
    def run_id(self) -> str:
        """The run's id."""
        return self.config.run_id

    @property
    def layout_id(self) -> str:
        """The name of the memory that fits these saves, the same in every process."""
        return digest_of(encode([self.run_id, self.layout]))

    @property
    def retention(self) -> Retention:
        """The retention that the script asks for."""
        return self.terms.retention

    def open_store(self, files: FileSystem | None = None) -> CheckpointStore:
        """Return the run's checkpoints, fenced, or on another file system if one is given."""
        owner = self.config.ownership
        fenced = LocalFileSystem(owner.run_dir, owner.prove)
        return CheckpointStore(owner.run_dir, fenced if files is None else files)

    def image_map(self) -> ImageMap:
        """Return where each byte of a save lies in memory."""
        return ImageMap.of(self.layout)

    def header(self, ticket: SaveTicket) -> Header:
        """Return the header of a save's shards."""
        return Header(self.run_id, ticket.generation, ticket.step)

    def manifest(
        self, header: Header, records: Sequence[ShardRecord], cursor: Mapping[str, object]
    ) -> Manifest:
        """Return the manifest of a save.

        Raises ``CommitRefused`` if the records do not make the checkpoint whole.
        """
        terms = self.terms
        whole = {**terms.fields, "step": header.step, **cursor}
        return Manifest.assemble(
            self.layout, list(records), header=header, cursor=whole, numerics=terms.numerics
        )


@dataclass(frozen=True, slots=True)
class SaveRequest:
    """A save, and this worker's part in it.

    ``cursor`` has the fields of the manifest's cursor that differ from save to save.
    """

    ticket: SaveTicket
    part: int
    cursor: Mapping[str, object]


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
