"""The plan of saves, the clock that tells when one is due, and a worker's request of one.

All that the saves of a stage have in common is a `SavePlan`.  It travels once a host and world, not
once a save.  A plan with the images of a save is enough to commit, so a save that is complete in
memory needs no worker any more.  It has the launch's configuration as it is: options and lease
of the job count for the writer as they do for a worker.

Only the clock of rank 0 counts: it makes rank 0 wish for a checkpoint in its next vote, and all
learn that from the outcome.  All workers keep a clock, because any of them may become rank 0.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from holdfast.checkpoint.filesystem import FileSystem
from holdfast.checkpoint.image_map import ImageMap
from holdfast.checkpoint.manifest import Header, Manifest, ShardRecord
from holdfast.checkpoint.retention import FEWEST_KEPT, Best, Retention, Wanted
from holdfast.checkpoint.shares import held_by
from holdfast.checkpoint.store import CheckpointStore
from holdfast.checkpoint.tensor import ShardLayout, digest_of
from holdfast.recovery.placement import SavePart
from holdfast.recovery.saves import SaveTicket
from holdfast.recovery.schedule import (
    NOT_MEASURED,
    Auto,
    FailureHistory,
    Schedule,
    Writing,
    interval_s,
)
from holdfast.runtime.errors import ProgramError
from holdfast.runtime.options.worker_config import WorkerConfig
from holdfast.runtime.run.checkpoint_events import SaveInterval
from holdfast.runtime.system.codec import encode

_MODES = ("min", "max")
_USUAL_STEPS = 64
_LATEST_SAVES = 5


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

    def layout_id(self, share: int, hosts: int) -> str:
        """Return the name of the memory of a host, the same in each of its processes."""
        return digest_of(encode([self.config.record.run_id, self.layout, share, hosts]))

    def open_store(self, files: FileSystem | None = None) -> CheckpointStore:
        """Return the run's checkpoints, fenced, or on another file system if one is given."""
        owner = self.config.ownership
        fenced = FileSystem(owner.run_dir, owner.prove)
        return CheckpointStore(owner.run_dir, fenced if files is None else files)

    def image_map(self, share: int, hosts: int) -> ImageMap:
        """Return where each byte lies in the memory of host number ``share`` of ``hosts``."""
        return ImageMap.of(self.layout, held_by(share, hosts, self.layout.writers))

    def header(self, ticket: SaveTicket) -> Header:
        """Return the header of a save's shards."""
        return Header(self.config.record.run_id, ticket.generation, ticket.step)

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
    part: SavePart
    cursor: Mapping[str, object]
    began: float
    """In seconds of the monotonic clock."""

    @property
    def cursor_text(self) -> str | None:
        """The cursor as JSON, if this worker is the one that tells it."""
        return encode(self.cursor).decode() if self.part.host == self.part.part == 0 else None


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
            return Best(metric, is_smaller_better=mode == "min")
    raise ProgramError(
        f'keep_best must be a metric and "min" or "max", such as ("val_loss", "min"), '
        f"got {keep_best!r}; change the script"
    )


class SaveClock:
    """Times the steps and saves of one worker's training loop; time is passed in.

    The cost of a save is the training time that it took: that of the steps from its beginning to
    its end, minus the usual time of as many steps.  So it holds the copy of the state, for which
    training waits, and the slowdown by the writing in the background.

    Args:
        schedule: the job's schedule of checkpoints.
        history: the run's failures before this launch.
        tell: takes the journal's event of each new interval.
    """

    def __init__(
        self, schedule: Schedule, history: FailureHistory, tell: Callable[[SaveInterval], None]
    ) -> None:
        self._schedule = schedule
        self._history = history
        self._tell = tell
        self._costs: deque[float] = deque(maxlen=_LATEST_SAVES)
        self._usual: deque[float] = deque(maxlen=_USUAL_STEPS)
        self._during: list[float] | None = None
        self._started: float | None = None
        self._since = 0.0
        self._nbytes = 0
        self._writing = NOT_MEASURED
        self._last: float | None = None
        self._interval = interval_s(schedule, (), history)
        self.is_idle = self._interval is None
        """Whether the cursor alone decides, so that nothing needs to be timed."""

    @property
    def next_at(self) -> float | None:
        """The moment of the next save, None if it is unknown: a save is under way, or no clock."""
        if self._interval is None or self._started is None or self._during is not None:
            return None
        return self._since + self._interval

    def is_due(self, now: float) -> bool:
        """Return whether an interval has passed since the last save was begun."""
        return self.next_at is not None and now >= self.next_at

    def committed(self, now: float, *, is_step: bool, is_saving: bool) -> None:
        """Take note of a committed transaction, and whether a save is still in flight."""
        if self.is_idle:
            return
        if self._started is None:
            self._started = self._since = now
        if self._last is not None and is_step:
            (self._usual if self._during is None else self._during).append(now - self._last)
        self._last = now
        if self._during is not None and not is_saving:
            self._saved(now)

    def began(self, now: float, nbytes: int = 0) -> None:
        """Take note that a save of ``nbytes`` has begun, at anyone's request."""
        self._since = now
        self._nbytes = nbytes
        self._during = []

    def world_changed(self) -> None:
        """Drop the current timing: a repair has interrupted the steps and abandoned the save."""
        self._last = None
        self._during = None

    def _saved(self, now: float) -> None:
        """Record the cost of the save, if the usual time of its steps is known."""
        during, self._during = self._during or [], None
        self._writing = Writing(now - self._since, self._nbytes)
        if self._usual and during:
            self._costs.append(max(0.0, sum(during) - len(during) * median(self._usual)))
        if isinstance(self._schedule, Auto):
            self._decide(now)

    def _decide(self, now: float) -> None:
        """Compute the interval anew from the costs of saves and the failures so far."""
        seconds = self._history.seconds + now - (self._started or now)
        history = FailureHistory(seconds, self._history.failures)
        self._interval = interval_s(self._schedule, self._costs, history, self._writing)
        self._tell(
            SaveInterval(
                seconds=self._interval,
                costs_s=tuple(round(cost, 6) for cost in self._costs),
                failures=history.failures,
                mean_time_between_failures_s=round(history.mean_time_between_failures_s, 3),
            )
        )
