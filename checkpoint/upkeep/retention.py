"""Which checkpoints to keep, and the removal of the others.

The plan is made first, from names and manifests alone.  After part of it was done, a new
plan holds the rest.  A step is removed only once a *newer one that is kept has been read
back whole*.  Digests taken in memory say nothing about the bytes on the disk.  A damaged
step does not count as kept: the plan is made again without it, so that the newest k
*sound* steps stay.

A removal renames the step first, so that it stops being visible at once and as a whole.
The next prune completes a removal that was cut short.  Nothing here fails a save: the new
checkpoint is durable before the first old one is touched.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field

from holdfast.checkpoint.errors import CheckpointError, StorageFailed
from holdfast.checkpoint.format.epoch_metrics import EpochMetrics
from holdfast.checkpoint.format.names import removed_name, step_name
from holdfast.checkpoint.store.removal import hide, remove_hidden
from holdfast.checkpoint.store.store import CheckpointStore
from holdfast.checkpoint.upkeep.bad_steps import hide_bad_steps, spare_bad_steps
from holdfast.checkpoint.upkeep.own_steps import OwnSteps
from holdfast.checkpoint.upkeep.read_marks import ReadMarks

FEWEST_KEPT = 2  # with 1, an unread checkpoint would replace the only one


@dataclass(frozen=True, slots=True)
class Best:
    """The metric by which one checkpoint is better than another."""

    metric: str
    is_smaller_better: bool = True


@dataclass(frozen=True, slots=True)
class Wanted:
    """Steps that one training of a run keeps for ever: every n-th, and the best by a metric.

    They are the training's own: all after the step ``after``, and up to ``until`` if it is over.
    """

    every: int | None = None
    best: Best | None = None
    after: int = -1
    until: int | None = None

    def has(self, step: int) -> bool:
        """Return whether ``step`` is one of the training."""
        return step > self.after and (self.until is None or step <= self.until)


@dataclass(frozen=True, slots=True)
class Retention:
    """Which steps stay: the newest, those that each training wants, and some more for ever."""

    newest: int = 3
    wanted: tuple[Wanted, ...] = ()
    forever: frozenset[int] = frozenset()

    @property
    def needs_metrics(self) -> bool:
        """Whether a plan depends on the metrics of steps."""
        return any(wanted.best is not None for wanted in self.wanted)


@dataclass(frozen=True, slots=True)
class KnownStep:
    """The knowledge of a plan about a committed step.

    ``metrics`` are of the state of this very step.  None means that they could not be read:
    the step may be the best, so it stays.
    """

    step: int
    metrics: Mapping[str, float] | None = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PrunePlan:
    """The steps that stay, newest first, and those that go, oldest first."""

    kept: tuple[int, ...]
    removed: tuple[int, ...]

    def before(self, verified: int) -> tuple[int, ...]:
        """Return the steps that may go once the step ``verified`` has been read back."""
        return tuple(step for step in self.removed if step < verified)


def prune_plan(
    steps: Iterable[KnownStep], retention: Retention, unsound: Set[int] = frozenset()
) -> PrunePlan:
    """Return the steps that stay and the steps that go; at least the newest two stay.

    An ``unsound`` step does not count as kept, so it never makes another step go.
    """
    newest_first = sorted(steps, key=lambda known: known.step, reverse=True)
    sound = [known for known in newest_first if known.step not in unsound]
    fewest = _fewest_sound(retention)
    oldest = sound[fewest - 1].step if len(sound) >= fewest else 0
    kept = {known.step for known in newest_first if known.step >= oldest}
    kept |= {known.step for known in newest_first if known.step in retention.forever}
    for wanted in retention.wanted:
        kept |= _wanted_of(newest_first, wanted)
        # A damaged step may be mended, and then is the best again.
        kept |= _wanted_of(sound, wanted)
    return PrunePlan(
        kept=tuple(known.step for known in newest_first if known.step in kept),
        removed=tuple(known.step for known in reversed(newest_first) if known.step not in kept),
    )


def _fewest_sound(retention: Retention) -> int:
    return max(retention.newest, FEWEST_KEPT)


def _wanted_of(steps: Iterable[KnownStep], wanted: Wanted) -> set[int]:
    """Return the steps that a training wants to keep, of its own."""
    own = [known for known in steps if wanted.has(known.step)]
    kept = set() if wanted.best is None else _best_of(own, wanted.best)
    if wanted.every is not None:
        kept |= {known.step for known in own if known.step % wanted.every == 0}
    return kept


def _best_of(steps: Iterable[KnownStep], best: Best) -> set[int]:
    """Return the best step, and every step whose metrics could not be read.

    Of equal steps the oldest is the best, so that a plateau moves nothing.  Without any
    measured step there is no best one.
    """
    sign = 1 if best.is_smaller_better else -1
    measured, unknown = [], set()
    for known in steps:
        if known.metrics is None:
            unknown.add(known.step)
        elif best.metric in known.metrics:
            measured.append((sign * known.metrics[best.metric], known.step))
    return unknown | ({min(measured)[1]} if measured else set())


class Pruner:
    """Keeps the steps of a run to a retention, and remembers their metrics and marks."""

    def __init__(self, steps: OwnSteps, retention: Retention, marks: ReadMarks) -> None:
        self._steps = steps
        self._store = steps.store
        self._retention = retention
        self._marks = marks
        self._metrics: dict[int, Mapping[str, float]] = {}

    def prune(self, now: float) -> tuple[str, ...]:
        """Carry the plan out; returns a reason for each step that is left, raises nothing."""
        reasons: list[str] = []
        try:
            remove_hidden(self._store.disk, self._store.directory, reasons)
            _hide(self._store, self._plan(now, reasons).removed, reasons)
            self._hide_bad(now, reasons)
            remove_hidden(self._store.disk, self._store.directory, reasons)
        except StorageFailed as failure:
            reasons.append(str(failure))
        return tuple(dict.fromkeys((*self._steps.new_reasons(), *reasons)))

    def _hide_bad(self, now: float, reasons: list[str]) -> None:
        """Hide what was moved aside, but the newest, once a step that is as new was read back."""
        spare = spare_bad_steps(self._steps)
        if spare:
            verified = self._verified(spare[-1].step, now)
            hide_bad_steps(self._store, [bad for bad in spare if bad.step <= verified], reasons)

    def _verified(self, wanted: int, now: float) -> int:
        """Return the newest step that was read back; read one more if that is below ``wanted``."""
        steps = self._steps.newest_first()
        read = max((step for step in steps if step in self._marks), default=-1)
        if read < wanted <= max(steps, default=-1):
            reason = self._marks.verify(self._store, steps[0], now)
            return steps[0] if reason is None else read
        return read

    def _known_steps(self) -> list[KnownStep]:
        steps = self._steps.newest_first()
        if not self._retention.needs_metrics:
            return [KnownStep(step) for step in steps]
        return [KnownStep(step, self._metrics_of(step)) for step in steps]

    def _metrics_of(self, step: int) -> Mapping[str, float] | None:
        """Return the metrics of a step, None if they cannot be read just now."""
        # A step that was saved again may have other bytes, but not other metrics.
        if step not in self._metrics:
            try:
                found = EpochMetrics.of(self._store.scan(step).manifest().cursor)
            except CheckpointError:
                return None
            self._metrics[step] = found.values if found and found.step == step else {}
        return self._metrics[step]

    def _plan(self, now: float, reasons: list[str]) -> PrunePlan:
        """Return a plan that may be carried out, once the steps that it relies on were read back.

        A step that does not verify is left out, and the plan is made again.
        """
        steps = self._known_steps()
        unsound = {known.step for known in steps if self._marks.is_damaged(known.step)}
        while True:
            plan = prune_plan(steps, self._retention, unsound)
            step = self._next_to_read(plan, unsound)
            if step is None:
                return plan
            reason = self._marks.verify(self._store, step, now)
            if reason is not None:
                unsound.add(step)
                reasons.append(
                    f"step {step} does not verify, so it replaces no older step: {reason}"
                )

    def _next_to_read(self, plan: PrunePlan, unsound: Set[int]) -> int | None:
        """Return a step that must be read before the plan is carried out, None if there is none.

        A step that was read back since its commit is not read again, so a job that keeps
        k steps reads one save in k.
        """
        if not plan.removed:
            return None
        sound = [step for step in plan.kept if step not in unsound]
        if not unsound:
            read = max((step for step in sound if step in self._marks), default=-1)
            return None if plan.before(read) == plan.removed else sound[0]
        # A disk that has damaged one step may have damaged others.
        newest = sound[: _fewest_sound(self._retention)]
        return next((step for step in newest if step not in self._marks), None)


def prune(
    steps: OwnSteps, retention: Retention, unsound: Set[int] = frozenset()
) -> tuple[str, ...]:
    """Keep ``steps`` to ``retention`` once, as a process that knows only what is ``unsound``."""
    marks = ReadMarks()
    for step in unsound:
        marks.mark_damaged(step)
    return Pruner(steps, retention, marks).prune(0.0)


def _hide(store: CheckpointStore, steps: Sequence[int], reasons: list[str]) -> None:
    """Rename steps so that no reader sees them any more."""
    for step in steps:
        try:
            hide(store.disk, store.directory / step_name(step), removed_name(step))
        except StorageFailed as failure:
            reasons.append(str(failure))
