"""Which worker keeps all others waiting, and scripts that have gone apart.

A survivor leaves an exchange only if MPI tells it of a death.  MPI may lose the event, or hang in
Shrink or Agree; nothing inside MPI bounds that.  But a step is a cycle: while one worker computes,
the others may wait for it as long as it takes.  Each worker counts its turns: the pieces of work
that it has begun.  If *every* worker waits, and none begins another turn, nobody is left whom they
could wait for: the launch has stalled.  If some do not wait, they may be overdue.

Scripts may go apart as well.  Each training needs all workers of the world, but a script may
count its trainings by a clock, or train on one worker only.  Then one worker begins a training
to which another one, whose script has ended, will never come.  A worker that is merely slower
may still come.  So only a worker whose script has ended is ever named, and only if another one
has begun more trainings than it has.  A dead worker is not looked at: the others go on without it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from holdfast.recovery.detector import LOOKS_PER_LIMIT, counted_s
from holdfast.recovery.world import WorkerId

LEAST_LIMIT_S = 600.0
"""Nobody is accused of a shorter standstill, unless the user has named another limit."""
_STEPS_OF_A_LIMIT = 50
"""A worker may need so many times as long as the longest piece of work of any worker so far."""
_FIRST_STEPS_OF_A_LIMIT = 10
"""The same for the longest of all pieces, of which the first ones compile the model."""
_MEASURED_COMMITS = 2


@dataclass(frozen=True, slots=True)
class Turn:
    """A piece of work at one look: its number, and whether it ends only with the peers' help."""

    number: int
    waits_for_peers: bool


@dataclass(frozen=True, slots=True)
class WorkerPace:
    """One worker at one look: its piece of work, and how far it has come."""

    turn: Turn
    step: int = 0
    """The updates that it has committed, or resumed from."""
    commits: int = 0
    """How many transactions it has committed in this launch."""
    is_training: bool = True
    """Whether it is in the loop, and neither in the script nor reading a checkpoint."""


@dataclass(frozen=True, slots=True)
class Standstill:
    """Some workers do not come on, and nobody else does."""

    workers: tuple[WorkerId, ...]
    seconds: float
    limit_s: float
    step: int
    is_awaited: bool = True
    """Whether a peer waits for them; otherwise nobody can say that it takes too long."""
    is_repeated: bool = False
    """Whether no peer waits, but others were fenced at the same step: it has their limit."""

    @property
    def is_over_half(self) -> bool:
        """Whether it is time to tell of it."""
        return self.seconds > self.limit_s / 2

    @property
    def is_over(self) -> bool:
        """Whether the workers are to be fenced."""
        return self.has_limit and self.seconds > self.limit_s

    @property
    def has_limit(self) -> bool:
        """Whether the standstill may end with a fence at all."""
        return self.is_awaited or self.is_repeated


@dataclass(frozen=True, slots=True)
class _Course:
    """A worker's present turn, and the seconds that it has lasted."""

    turn: Turn
    lasted_s: float = 0.0


@dataclass(frozen=True, slots=True)
class OverdueDetector:
    """Which worker keeps all others waiting, and for how long; each look makes a new detector.

    Theory.  A step of an hour is legitimate, and so is waiting for it.  But microbatches are
    equal parts: what one worker does for hours, its peers have done before.  So the limit is
    a multiple of the longest piece of work that any worker has ended, and of nothing that
    must be guessed.  It counts from the moment at which the last of the others began to wait.

    Nobody is fenced while nobody waits.  There is one exception: the workers that waited
    were fenced themselves at the same step, one after the other, as its owners.  Then the
    last ones have the limit of the first, in the next launch too.

    ``timeout_s`` is the user's limit, None for the adaptive one.  Before two steps of a
    launch it does not hold, because models are compiled then.
    """

    timeout_s: float | None = None
    looked_at: float | None = None
    standing_s: float = 0.0
    longest_s: float = 0.0
    """The longest piece of work after the first two steps, in any launch of the job."""
    longest_of_all_s: float = 0.0
    has_measured: bool = False
    """Whether two steps were measured, in any launch of the job."""
    _is_measured: bool = False
    _fenced_at: int | None = None
    _courses: Mapping[WorkerId, _Course] = field(default_factory=dict, repr=False)
    _last: Mapping[WorkerId, WorkerPace] = field(default_factory=dict, repr=False)

    def next_launch(self, timeout_s: float | None) -> OverdueDetector:
        """Return the detector of the next launch, which knows what the launches before took."""
        return OverdueDetector(
            timeout_s,
            longest_s=self.longest_s,
            longest_of_all_s=self.longest_of_all_s,
            has_measured=self.has_measured,
            _fenced_at=self._fenced_at,
        )

    def fenced(self, standstill: Standstill) -> OverdueDetector:
        """Return the detector that remembers at which step workers were fenced."""
        return replace(self, _fenced_at=standstill.step)

    def observe(self, paces: Mapping[WorkerId, WorkerPace], now: float) -> OverdueDetector:
        """Return the detector after a look at all workers that live, at ``now``."""
        most_s = (self.limit_s or LEAST_LIMIT_S) / LOOKS_PER_LIMIT
        passed_s = counted_s(self.looked_at, now, most_s)
        courses = {w: _Course(pace.turn) for w, pace in paces.items()}
        for worker, before in self._courses.items():
            if worker in courses and courses[worker].turn == before.turn:
                courses[worker] = _Course(before.turn, before.lasted_s + passed_s)
        is_same = bool(paces) and dict(paces) == self._last
        is_training = all(pace.is_training for pace in paces.values())
        return replace(
            self._measuring(paces, passed_s),
            looked_at=now,
            standing_s=self.standing_s + passed_s if is_same and is_training else 0.0,
            _courses=courses,
            _last=dict(paces),
        )

    @property
    def limit_s(self) -> float | None:
        """The seconds that a standstill may last; None while no worker may be accused."""
        if self.timeout_s is not None and self._is_measured:
            return self.timeout_s
        if not self.has_measured and self.timeout_s is None:
            return None
        generous_s = max(
            LEAST_LIMIT_S,
            _STEPS_OF_A_LIMIT * self.longest_s,
            _FIRST_STEPS_OF_A_LIMIT * self.longest_of_all_s,
        )
        return generous_s if self.timeout_s is None else max(generous_s, self.timeout_s)

    @property
    def standstill(self) -> Standstill | None:
        """The workers for which all others wait, None while nobody stands still."""
        limit_s = self.limit_s
        if limit_s is None or not self.standing_s:
            return None
        working = [w for w, pace in self._last.items() if not pace.turn.waits_for_peers]
        if not working:
            return None
        step = max(pace.step for pace in self._last.values())
        is_awaited = len(working) < len(self._last)
        is_repeated = not is_awaited and step == self._fenced_at
        if is_repeated:
            # Nobody waits, so nobody has shown how long it takes: only the work before has.
            limit_s = max(limit_s, _FIRST_STEPS_OF_A_LIMIT * self.longest_s)
        them = tuple(sorted(working))
        return Standstill(them, self.standing_s, limit_s, step, is_awaited, is_repeated)

    def _measuring(self, paces: Mapping[WorkerId, WorkerPace], passed_s: float) -> OverdueDetector:
        """Return the detector with the pieces of work that have ended since the last look."""
        ended_s = [
            before.lasted_s + passed_s
            for worker, before in self._courses.items()
            if worker in paces
            and paces[worker].turn != before.turn
            and not before.turn.waits_for_peers
        ]
        fewest = min((pace.commits for pace in paces.values()), default=0)
        is_measured = self._is_measured or fewest >= _MEASURED_COMMITS
        longest_s = max([0.0, *ended_s])
        return replace(
            self,
            longest_s=max(self.longest_s, longest_s) if self._is_measured else self.longest_s,
            longest_of_all_s=max(self.longest_of_all_s, longest_s),
            has_measured=self.has_measured or is_measured,
            _is_measured=is_measured,
        )


@dataclass(frozen=True, slots=True)
class ScriptView:
    """How far the script of a living worker has come.

    ``begun`` counts its trainings, those that were complete before this launch as well.
    """

    worker: WorkerId
    begun: int
    has_ended: bool


@dataclass(frozen=True, slots=True)
class ScriptsDiverged:
    """A script that has ended, and one that waits for it in a training."""

    ended: ScriptView
    ahead: ScriptView

    @property
    def message(self) -> str:
        """What has happened, with both numbers, and what to do."""
        return (
            f"worker {self.ended.worker} ended its script after {_trainings(self.ended.begun)}, "
            f"but worker {self.ahead.worker} began training {self.ahead.begun}, which needs all "
            "workers: call fit equally often on each; where a clock decides, let a callback "
            "that sets model.stop_training end one long fit for all"
        )


def find_diverged(scripts: Iterable[ScriptView]) -> ScriptsDiverged | None:
    """Return the scripts that have gone apart, None while all may still come together."""
    views = sorted(scripts, key=lambda view: (view.begun, view.worker))
    ended = next((view for view in views if view.has_ended), None)
    if ended is None or views[-1].begun <= ended.begun:
        return None
    ahead = next(view for view in views if view.begun == views[-1].begun)
    return ScriptsDiverged(ended, ahead)


def _trainings(count: int) -> str:
    """Return a number of trainings in words."""
    return {0: "no training", 1: "1 training"}.get(count, f"{count} trainings")
