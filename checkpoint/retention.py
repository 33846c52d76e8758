"""Which checkpoints to keep, and the removal of the others.

The plan is made first, from names and metrics alone.  After part of it was done, a new
plan holds the rest.  A step is removed only once a *newer one that is kept has been read
back whole*.  Digests taken in memory say nothing about the bytes on the disk.  A damaged
step does not count as kept: the plan is made again without it, so that the newest k
*sound* steps stay.  Nor does a step of another run, which a user has copied there.

A full disk is answered by room for one save: first leftovers go, then the oldest steps that are
there only because they are new, but never the newest two sound ones.

A removal renames the step first, so that it stops being visible at once and as a whole.
The next prune completes a removal that was cut short.  Nothing here fails a save: the new
checkpoint is durable before the first old one is touched.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

from holdfast.checkpoint.errors import CheckpointError, CheckpointInvalid, CheckpointUnreadable
from holdfast.checkpoint.manifest import EpochMetrics
from holdfast.checkpoint.names import StagingName, bad_names, is_removed, removed_name, step_name
from holdfast.checkpoint.store import CheckpointStore, hide, noting, remove_hidden

FEWEST_KEPT = 2  # with 1, an unread checkpoint would replace the only one

KEPT_ASIDE = 2
"""The damaged steps that stay after they were moved aside."""

FEWEST_KEPT_ASIDE = 1
"""The same where the disk is full: a save is worth more than a second damaged copy."""


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
    """Which steps stay: the newest, those that each training wants, and some more for ever.

    A relaunch takes the results of earlier trainings from those that stay for ever.
    """

    newest: int = 3
    wanted: tuple[Wanted, ...] = ()
    forever: frozenset[int] = frozenset()

    @property
    def has_best(self) -> bool:
        """Whether metrics decide on what stays."""
        return any(wanted.best is not None for wanted in self.wanted)

    @property
    def fewest_sound(self) -> int:
        """How many of the newest sound steps stay."""
        return max(self.newest, FEWEST_KEPT)


@dataclass(frozen=True, slots=True)
class KnownStep:
    """A committed step, and the metrics of the state of this very step.

    None means that they could not be read: the step may be the best, so it stays.
    """

    step: int
    metrics: Mapping[str, float] | None = field(default_factory=dict)


def known_step(store: CheckpointStore, step: int, run_id: str | None) -> KnownStep:
    """Return a step of a store with its metrics; those of another run do not count."""
    try:
        manifest = store.scan(step).manifest_alone()
    except CheckpointError:
        return KnownStep(step, None)
    found = EpochMetrics.of(manifest.cursor) if run_id in (None, manifest.run_id) else None
    return KnownStep(step, found.values if found and found.step == step else {})


@dataclass(frozen=True, slots=True)
class PrunePlan:
    """The steps that stay, newest first, and those that go, oldest first."""

    kept: tuple[int, ...]
    removed: tuple[int, ...]


def prune_plan(
    steps: Iterable[KnownStep], retention: Retention, unsound: Set[int] = frozenset()
) -> PrunePlan:
    """Return the steps that stay and the steps that go; at least the newest two stay.

    An ``unsound`` step does not count as kept, so it never makes another step go.
    """
    newest_first = sorted(steps, key=lambda known: known.step, reverse=True)
    sound = [known for known in newest_first if known.step not in unsound]
    newest = sound[: retention.fewest_sound]
    oldest = newest[-1].step if len(newest) == retention.fewest_sound else 0
    kept = {known.step for known in newest_first if known.step >= oldest}
    # A damaged step may be put back whole, and then is the best again.
    kept |= _kept_for_ever(newest_first, retention) | _kept_for_ever(sound, retention)
    return PrunePlan(
        kept=tuple(known.step for known in newest_first if known.step in kept),
        removed=tuple(known.step for known in reversed(newest_first) if known.step not in kept),
    )


def _kept_for_ever(steps: Sequence[KnownStep], retention: Retention) -> set[int]:
    found = set(retention.forever)
    for wanted in retention.wanted:
        own = [known for known in steps if wanted.has(known.step)]
        if wanted.best is not None:
            found |= _best_of(own, wanted.best)
        if wanted.every is not None:
            found |= {known.step for known in own if known.step % wanted.every == 0}
    return found


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


class ReadMarks:
    """Which steps of a run were read back with all digests right, and which were damaged.

    They are kept in memory only: a mark on the disk would outlive the disk's sound state.
    """

    def __init__(self, store: CheckpointStore, run_id: str | None, damaged: Iterable[int]) -> None:
        self._store = store
        self._run_id = run_id
        self.whole: set[int] = set()
        self.damaged = set(damaged)
        self.unread: set[int] = set()
        """Those whose last reading failed without telling if they are whole."""

    def forget(self, step: int) -> None:
        """Forget all marks of a step, for example because it was saved again."""
        for marked in (self.whole, self.damaged, self.unread):
            marked.discard(step)

    def verify(self, step: int) -> str | None:
        """Read every byte of ``step``, and remember it; returns why it does not verify, or None."""
        self.forget(step)
        try:
            self._store.scan(step).verify().refuse_other_run(self._run_id)
        except CheckpointUnreadable as error:  # it may verify the next time
            self.unread.add(step)
            return error.reason
        except CheckpointInvalid as error:
            self.damaged.add(step)
            return error.reason
        self.whole.add(step)
        return None


class Pruner:
    """Keeps the steps of a run to a retention, and remembers their metrics and marks."""

    def __init__(
        self,
        store: CheckpointStore,
        retention: Retention,
        run_id: str | None = None,
        unsound: Iterable[int] = (),
    ) -> None:
        self._store = store
        self._retention = retention
        self._run_id = run_id
        self.marks = ReadMarks(store, run_id, unsound)
        self._known: dict[int, KnownStep] = {}

    def prune(self) -> tuple[str, ...]:
        """Carry the plan out; returns reasons for what is left or unusual, raises nothing."""
        reasons: list[str] = []
        with noting(reasons):
            remove_hidden(self._store, reasons)
            self._hide_bad(KEPT_ASIDE, reasons)
            self._remove(self._plan(self._retention, reasons).removed, reasons)
        return tuple(dict.fromkeys(reasons))

    def make_room(self, needed: int, save: StagingName) -> tuple[str, ...]:
        """Free ``needed`` bytes after ENOSPC or EDQUOT, so that ``save`` can be tried once more.

        Leftovers go first: staging of other saves up to this generation, what is hidden, and
        damaged steps but the newest.  Then steps go, the oldest first, but none that a training
        wants.  Returns a reason for all that is out of the ordinary, raises nothing.
        """
        reasons: list[str] = []
        with noting(reasons):
            self._hide_dead_staging(save, reasons)
            self._hide_bad(FEWEST_KEPT_ASIDE, reasons)
            before = self._hidden_bytes()
            remove_hidden(self._store, reasons)
            missing = needed - before + self._hidden_bytes()
            if missing > 0:
                self._free_steps(missing, reasons)
        return tuple(dict.fromkeys(reasons))

    def _free_steps(self, missing: int, reasons: list[str]) -> None:
        """Remove steps until ``missing`` bytes are free, or as far as may be."""
        freed = 0
        for step in self._plan(replace(self._retention, newest=FEWEST_KEPT), reasons).removed:
            if freed >= missing:
                break
            freed += self._store.disk.size_of_tree(self._store.directory / step_name(step))
            reasons.append(
                f"step {step} is removed: the disk is full, and a save lacks {missing} bytes"
            )
            self._remove((step,), reasons)

    def _remove(self, steps: Sequence[int], reasons: list[str]) -> None:
        for step in steps:
            with noting(reasons):
                path = self._store.directory / step_name(step)
                hide(self._store.disk, path, removed_name(step))
        remove_hidden(self._store, reasons)

    def _hide_bad(self, kept: int, reasons: list[str]) -> None:
        """Hide all damaged steps that were moved aside, but the newest ``kept``.

        Without a bound a disk that rots fills up with what it has damaged, until saves fail.
        """
        for bad in bad_names(self._store.names())[kept:]:
            with noting(reasons):
                hide(self._store.disk, self._store.directory / bad.bad_name, bad.removed_name)
                reasons.append(
                    f"{bad.bad_name} is removed: it was moved aside because it is damaged, "
                    "and newer ones are kept"
                )

    def _hide_dead_staging(self, save: StagingName, reasons: list[str]) -> None:
        """Hide each save but ``save``; one of a later generation is not ours."""
        for name in self._store.names():
            found = StagingName.parse(name, "tmp")
            if found is None or found == save or found.generation > save.generation:
                continue
            with noting(reasons):
                hide(self._store.disk, self._store.directory / name, found.removed_name)

    def _hidden_bytes(self) -> int:
        hidden = filter(is_removed, self._store.names())
        return sum(self._store.disk.size_of_tree(self._store.directory / name) for name in hidden)

    def _plan(self, retention: Retention, reasons: list[str]) -> PrunePlan:
        """Return a plan that may be carried out, once the steps that it relies on were read back.

        A step that does not verify is left out, and the plan is made again.
        """
        steps = [self._know(s) if retention.has_best else KnownStep(s) for s in self._store.steps()]
        unsound = {known.step for known in steps} & self.marks.damaged
        while True:
            plan = prune_plan(steps, retention, unsound)
            step = self._next_to_read(plan, unsound, retention.fewest_sound)
            if step is None:
                return plan
            reason = self.marks.verify(step)
            if reason is not None:
                unsound.add(step)
                reasons.append(
                    f"step {step} does not verify, so it replaces no older step: {reason}"
                )

    def _know(self, step: int) -> KnownStep:
        """Return a step with its metrics; a manifest is read once."""
        if step not in self._known:
            known = known_step(self._store, step, self._run_id)
            if known.metrics is None:
                return known
            self._known[step] = known
        return self._known[step]

    def _next_to_read(self, plan: PrunePlan, unsound: Set[int], count: int) -> int | None:
        """Return a step that must be read before the plan is carried out, None if there is none.

        A step that was read back since its commit is not read again, so a job that keeps
        k steps reads one save in k.  One that could not be read before may be damaged.
        """
        if not plan.removed:
            return None
        sound = [step for step in plan.kept if step not in unsound]
        unread = next((step for step in sound if step in self.marks.unread), None)
        if unread is not None:
            return unread
        if not unsound:
            read = max((step for step in sound if step in self.marks.whole), default=-1)
            return None if plan.removed[-1] < read else sound[0]
        # A disk that has damaged one step may have damaged others.
        return next((step for step in sound[:count] if step not in self.marks.whole), None)
