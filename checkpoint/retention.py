"""Which checkpoints to keep, and the removal of the others.

The plan is made first, from names and manifests alone.  After part of it was done, a new
plan holds the rest.  A step is removed only once a *newer one that is kept has been read
back whole*.  Digests taken in memory say nothing about the bytes on the disk.  A damaged
step does not count as kept: the plan is made again without it, so that the newest k
*sound* steps stay.

With a limit of space, more steps go, oldest first, until the rest fits: but never the newest
two sound ones.  A full disk is answered the same way, once: the limit is then what the run
takes now, less what a save lacks.

A removal renames the step first, so that it stops being visible at once and as a whole.
The next prune completes a removal that was cut short.  Nothing here fails a save: the new
checkpoint is durable before the first old one is touched.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence, Set
from dataclasses import dataclass, replace

from holdfast.checkpoint.known_steps import (
    FEWEST_KEPT_ASIDE,
    KEPT_ASIDE,
    BadSteps,
    KnownStep,
    KnownSteps,
    Owner,
    OwnSteps,
    ReadMarks,
    free_hidden,
    hide_dead_staging,
)
from holdfast.checkpoint.names import StagingName
from holdfast.checkpoint.space import Space, steps_too_many
from holdfast.checkpoint.store import hide_steps, noting, remove_hidden

FEWEST_KEPT = 2  # with 1, an unread checkpoint would replace the only one
_NEWEST, _EVERY, _BEST = range(3)
"""Why a step stays; where space is short, a higher number goes later."""


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

    Where ``space`` is short, those that a training wants yield last.  ``forever`` never
    yields: a relaunch takes the results of earlier trainings from there.
    """

    newest: int = 3
    wanted: tuple[Wanted, ...] = ()
    forever: frozenset[int] = frozenset()
    space: Space | None = None

    @property
    def needs_manifests(self) -> bool:
        """Whether a plan depends on the metrics or the sizes of steps."""
        return self.space is not None or any(wanted.best is not None for wanted in self.wanted)


@dataclass(frozen=True, slots=True)
class PrunePlan:
    """The steps that stay, newest first, and those that go, oldest first.

    ``yielded`` of them were to be kept for ever, and yield to the limit of space.  ``excess``
    are the bytes by which those that stay are over it.
    """

    kept: tuple[int, ...]
    removed: tuple[int, ...]
    yielded: tuple[int, ...] = ()
    excess: int = 0

    def before(self, verified: int) -> tuple[int, ...]:
        """Return the steps that may go once the step ``verified`` has been read back."""
        return tuple(step for step in self.removed if step < verified)


def prune_plan(
    steps: Iterable[KnownStep],
    retention: Retention,
    unsound: Set[int] = frozenset(),
    limit: int | None = None,
) -> PrunePlan:
    """Return the steps that stay and the steps that go; at least the newest two stay.

    An ``unsound`` step does not count as kept, so it never makes another step go.  Those
    that stay take at most ``limit`` bytes, if that is possible.
    """
    newest_first = sorted(steps, key=lambda known: known.step, reverse=True)
    sound = [known for known in newest_first if known.step not in unsound]
    oldest = _oldest_of(sound, _fewest_sound(retention))
    newest = dict.fromkeys((known.step for known in newest_first if known.step >= oldest), _NEWEST)
    # A damaged step may be mended, and then is the best again.
    ranks = newest | _ranks(newest_first, retention) | _ranks(sound, retention)
    sizes = {known.step: known.nbytes for known in newest_first if known.step in ranks}
    floor = _oldest_of(sound, FEWEST_KEPT)
    older = {s: r for s, r in ranks.items() if s < floor and s not in retention.forever}
    gone = () if limit is None else steps_too_many(sizes, older, limit)
    kept = ranks.keys() - set(gone)
    return PrunePlan(
        kept=tuple(known.step for known in newest_first if known.step in kept),
        removed=tuple(known.step for known in reversed(newest_first) if known.step not in kept),
        yielded=tuple(sorted(step for step in gone if ranks[step] != _NEWEST)),
        excess=0 if limit is None else max(0, sum(sizes[step] for step in kept) - limit),
    )


def _oldest_of(sound: Sequence[KnownStep], count: int) -> int:
    """Return the oldest of the newest ``count`` sound steps, 0 if there are fewer."""
    return sound[count - 1].step if len(sound) >= count else 0


def _fewest_sound(retention: Retention) -> int:
    return max(retention.newest, FEWEST_KEPT)


def _ranks(steps: Sequence[KnownStep], retention: Retention) -> dict[int, int]:
    """Return the steps that stay for ever, and how late each of them yields to space."""
    every, best = set(retention.forever), set[int]()
    for wanted in retention.wanted:
        own = [known for known in steps if wanted.has(known.step)]
        if wanted.best is not None:
            best |= _best_of(own, wanted.best)
        if wanted.every is not None:
            every |= {known.step for known in own if known.step % wanted.every == 0}
    return {
        known.step: _BEST if known.step in best else _EVERY
        for known in steps
        if known.step in every | best
    }


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
    """Keeps the steps of a run to a retention, and remembers their manifests and marks."""

    def __init__(self, steps: OwnSteps, retention: Retention, marks: ReadMarks) -> None:
        self._steps = steps
        self._store = steps.store
        self._retention = retention
        self._marks = marks
        self._known = KnownSteps(steps)
        self._bad = BadSteps(steps, marks)
        self._has_told_excess = False

    def prune(self) -> tuple[str, ...]:
        """Carry the plan out; returns reasons for what is left or unusual, raises nothing."""
        reasons: list[str] = []
        with noting(reasons):
            remove_hidden(self._store, reasons)
            self._bad.hide(KEPT_ASIDE, reasons)
            steps = self._known.newest_first(are_read=self._retention.needs_manifests)
            plan = self._plan(steps, self._limit(), reasons)
            self._tell_space(plan, reasons)
            self._remove(plan, reasons)
        return tuple(dict.fromkeys((*self._steps.new_reasons(), *reasons)))

    def make_room(
        self,
        needed: int,
        generation: int,
        in_flight: Collection[StagingName] = (),
    ) -> tuple[str, ...]:
        """Free ``needed`` bytes after ENOSPC or EDQUOT, so that a save can be tried once more.

        Leftovers go first: staging that is not ``in_flight``, up to our ``generation``, what
        is hidden, and damaged steps but the newest.  Then own steps go, the oldest first,
        but never the newest two sound ones.  Returns a reason for all that is out of the
        ordinary, raises nothing.
        """
        reasons: list[str] = []
        with noting(reasons):
            hide_dead_staging(self._store, generation, in_flight, reasons)
            self._bad.hide(FEWEST_KEPT_ASIDE, reasons)
            missing = needed - free_hidden(self._store, reasons)
            if missing > 0:
                self._free_steps(missing, reasons)
        return tuple(dict.fromkeys((*self._steps.new_reasons(), *reasons)))

    def _free_steps(self, missing: int, reasons: list[str]) -> None:
        """Remove own steps until ``missing`` bytes are free, or as far as may be."""
        steps = self._known.newest_first(are_read=True)
        limit = sum(known.nbytes for known in steps) - missing
        plan = self._plan(steps, limit, reasons)
        reasons += [
            f"step {step} is removed: the disk is full, and a save lacks {missing} bytes"
            for step in plan.removed
        ]
        self._remove(plan, reasons)

    def _remove(self, plan: PrunePlan, reasons: list[str]) -> None:
        hide_steps(self._store.disk, self._store.directory, plan.removed, reasons)
        remove_hidden(self._store, reasons)

    def _limit(self) -> int | None:
        """Return the bytes that the steps may take; what was moved aside counts as well."""
        space, store = self._retention.space, self._store
        if space is None or not store.steps():
            return None
        capacity = 0 if space.share is None else store.disk.capacity(store.directory)
        return space.limit(capacity) - self._bad.nbytes()

    def _tell_space(self, plan: PrunePlan, reasons: list[str]) -> None:
        reasons += [
            f"step {step} was to be kept for ever and is removed: the checkpoints take more "
            "space than --keep-space allows"
            for step in plan.yielded
        ]
        if plan.excess and not self._has_told_excess:
            reasons.append(
                f"the checkpoints that must stay take {plan.excess} bytes more than "
                "--keep-space allows; give them more space"
            )
        self._has_told_excess = plan.excess > 0

    def _plan(self, steps: Sequence[KnownStep], limit: int | None, reasons: list[str]) -> PrunePlan:
        """Return a plan that may be carried out, once the steps that it relies on were read back.

        A step that does not verify is left out, and the plan is made again.  So is one whose
        manifest cannot be read: it may be damaged, and it may be another run's, so it stays.
        """
        owner_of = self._steps.owner_of
        unclear = {known.step for known in steps if owner_of(known.step) is Owner.UNKNOWN}
        unsound = {known.step for known in steps if self._marks.is_damaged(known.step)} | unclear
        while True:
            plan = prune_plan(steps, self._retention, unsound, limit)
            step = self._next_to_read(plan, unsound)
            if step is None:
                removed = tuple(step for step in plan.removed if step not in unclear)
                yielded = tuple(step for step in plan.yielded if step not in unclear)
                return replace(plan, removed=removed, yielded=yielded)
            reason = self._marks.verify(self._store, step)
            if reason is not None:
                unsound.add(step)
                reasons.append(
                    f"step {step} does not verify, so it replaces no older step: {reason}"
                )

    def _next_to_read(self, plan: PrunePlan, unsound: Set[int]) -> int | None:
        """Return a step that must be read before the plan is carried out, None if there is none.

        A step that was read back since its commit is not read again, so a job that keeps
        k steps reads one save in k.  One that could not be read before may be damaged.
        """
        if not plan.removed:
            return None
        sound = [step for step in plan.kept if step not in unsound]
        unread = next((step for step in sound if self._marks.is_unread(step)), None)
        if unread is not None:
            return unread
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
    return Pruner(steps, retention, marks).prune()
