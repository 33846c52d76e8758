"""Who is silent, who stalls, and when all stand still: one detector with three subjects.

A worker counts; an observer looks at the counters now and then.  What looks the same at two looks
in a row has stood still between them.  Three limits say how long that may last:

* *silent*: a counter that stands still, of a worker, a helper or a peer.  Its process is dead;
* *standstill*: all workers wait for each other, or for the disk, and none comes on (`fencing`);
* *stall*: one worker does not come on, and all others wait for it.

Two things make the verdicts safe.  Only the observer's clock is used.  And an observer that was
away (stopped, starved, on a suspended machine) must not accuse those that it failed to look at:
each look adds at most a quarter of the limit, even if the last one was long ago.

A pause of the whole job is nobody's fault: a batch system has suspended it, its machine was
suspended, its cgroup frozen.  An observer that was away sees only that time has passed.  So it
looks at the workers' counters: those that were awake meanwhile have counted on.

*Stalls.*  A survivor leaves an exchange only if MPI tells it of a death.  MPI may lose the
event, or hang in Shrink or Agree; nothing inside MPI bounds that.  But a step is a cycle: while one
worker computes, the others may wait for it as long as it takes.  Each worker counts its turns: the
pieces of work that it has begun.  If *every* worker waits, and none begins another turn, nobody is
left whom they could wait for: it is a standstill.  If some do not wait, they may stall.

Scripts may go apart as well.  Each training needs all workers of the world, but a script may
count its trainings by a clock, or train on one worker only.  Then one worker begins a training
to which another one, whose script has ended, will never come.  A worker that is merely slower
may still come.  So only a worker whose script has ended is ever named, and only if another one
has begun more trainings than it has.  A dead worker is not looked at: the others go on without it.

*Lost hosts.*  There are two clocks, and no comparison between them.  The head pings each host, and
names in each ping the last answer that it has *heard*.  A host's *lease* runs out 0.8 T after it
has sent that answer, by its own clock; then it ends its workers.  The head gives a host up T after
it has heard the last answer, by the head's clock; then the survivors go on without it.

Invariant: the lost side is dead first.  An answer is sent before it is heard.  So a host's lease
runs out before the head gives it up, in each direction that a link is cut, as long as both clocks
run equally fast to a fifth.  The clock of a lease must go on while its process stands still.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Generic, NamedTuple, TypeVar

from holdfast.recovery.world import WorkerId

LOOKS_PER_LIMIT = 4

Key = TypeVar("Key")

_LEAST_S = 5.0
"""A shorter pause is not worth a word: a busy host may starve a job for seconds."""
_AWAKE = 0.25
"""A worker that has counted for this part of the time was awake."""


def counted_s(looked_at: float | None, now: float, most_s: float) -> float:
    """Return the seconds that a look at ``now`` adds: those since the last look, or ``most_s``.

    So an observer that was away counts hardly anything of the time in which it saw nothing.
    """
    if looked_at is None:
        return 0.0
    if now < looked_at:
        raise ValueError(f"time ran backwards, from {looked_at} to {now}")
    return min(now - looked_at, most_s)


@dataclass(frozen=True, slots=True)
class ChangeDetector(Generic[Key]):
    """For how long each of several things has looked the same; each look makes a new one.

    ``limit_s`` is the shortest silence that counts.  Look at least four times within it, or
    verdicts come later.
    """

    limit_s: float
    looked_at: float | None = None
    seconds: Mapping[Key, float] = field(default_factory=dict)
    """How long each thing has stood still that was there at the last look."""
    _views: Mapping[Key, object] = field(default_factory=dict, repr=False)

    def observe(self, views: Mapping[Key, object], now: float) -> ChangeDetector[Key]:
        """Return the state after a look at all things at ``now``; what is new begins to count."""
        passed_s = counted_s(self.looked_at, now, self.limit_s / LOOKS_PER_LIMIT)
        seconds = {
            key: self.seconds[key] + passed_s
            if key in self._views and self._views[key] == view
            else 0.0
            for key, view in views.items()
        }
        return ChangeDetector(self.limit_s, now, seconds, dict(views))

    @property
    def beyond(self) -> dict[Key, float]:
        """The things that have stood still for longer than the limit, with the seconds of it."""
        return {key: still_s for key, still_s in self.seconds.items() if still_s > self.limit_s}


@dataclass(frozen=True, slots=True)
class PauseWatch:
    """The job at the last look; each look makes a new watch."""

    beat_s: float
    """The seconds between two beats of a worker that runs."""
    looked_at: float | None = None
    pause_s: float = 0.0
    """The seconds of the pause that has ended with this look, 0 if there was none."""
    _counters: Mapping[WorkerId, int] = field(default_factory=dict, repr=False)

    def is_look_due(self, now: float) -> bool:
        """Whether a worker has counted since the last look: sooner there is nothing to see."""
        return self.looked_at is None or now - self.looked_at >= self.beat_s

    def observe(self, counters: Mapping[WorkerId, int], now: float) -> PauseWatch:
        """Return the watch after a look at the workers' counters at ``now``."""
        began = now if self.looked_at is None else self.looked_at
        beats = _AWAKE * (now - began) / self.beat_s
        was_awake = any(
            count - self._counters[worker] > beats
            for worker, count in counters.items()
            if worker in self._counters
        )
        is_pause = now - began >= _LEAST_S and not was_awake
        pause_s = now - began if is_pause else 0.0
        return replace(self, looked_at=now, pause_s=pause_s, _counters=dict(counters))


LEASE_SHARE = 0.8
"""A lease's part of the time after which the head gives a host up."""

PINGS_PER_TIMEOUT = 10


@dataclass(frozen=True, slots=True)
class HostLease:
    """A host's right to train, as the host itself sees it; times are in seconds of its clock."""

    timeout_s: float
    until: float
    answers: tuple[tuple[int, float], ...] = ()
    """Number and time of each answer that the head is not known to have heard, in order."""

    @staticmethod
    def begin(timeout_s: float, now: float) -> HostLease:
        """Return the lease of a host that the head has just started."""
        return HostLease(timeout_s, now + LEASE_SHARE * timeout_s)

    def answered(self, number: int, now: float) -> HostLease:
        """Return the lease after the answer to ping ``number`` was sent."""
        return replace(self, answers=(*self.answers, (number, now)))

    def confirmed(self, number: int) -> HostLease:
        """Return the lease after the head has told that it has heard answer ``number``."""
        sent = [at for answer, at in self.answers if answer == number]
        until = max([self.until, *(at + LEASE_SHARE * self.timeout_s for at in sent)])
        rest = tuple(answer for answer in self.answers if answer[0] > number)
        return replace(self, until=until, answers=rest)

    def has_ended(self, now: float) -> bool:
        """Whether the host must have ended its workers by now."""
        return now >= self.until


@dataclass(frozen=True, slots=True)
class HostPings:
    """A host, as the head sees it: its pings, and how long it has been silent.

    Silence is counted in polls, each at most a quarter of the limit: a head that stood still
    accuses nobody.  That makes it later, never earlier.
    """

    timeout_s: float
    polled_at: float
    sent: int = 0
    heard: int = 0
    silent_s: float = 0.0
    """Seconds since the last answer, of those that this head has witnessed."""
    since_ping_s: float = float("inf")

    def polled(self, now: float) -> HostPings:
        """Return the state at ``now``."""
        passed = counted_s(self.polled_at, now, self.timeout_s / 4)
        seconds = self.silent_s + passed, self.since_ping_s + passed
        return HostPings(self.timeout_s, now, self.sent, self.heard, *seconds)

    @property
    def is_ping_due(self) -> bool:
        """Whether it is time for another ping."""
        return self.since_ping_s >= self.timeout_s / PINGS_PER_TIMEOUT

    def pinged(self) -> HostPings:
        """Return the state after ping number ``sent`` + 1, which names ``heard``."""
        return replace(self, sent=self.sent + 1, since_ping_s=0.0)

    def answered(self, number: int) -> HostPings:
        """Return the state after an answer; the next ping is due, so that the host knows soon."""
        if number <= self.heard:
            return self
        is_late = self.silent_s > 2 * self.timeout_s / PINGS_PER_TIMEOUT
        since_s = float("inf") if is_late else self.since_ping_s
        return replace(self, heard=number, silent_s=0.0, since_ping_s=since_s)

    @property
    def is_lost(self) -> bool:
        """Whether the host has been silent for too long."""
        return self.silent_s > self.timeout_s


LEAST_LIMIT_S = 600.0
"""Nobody is accused of a shorter stall, unless the user has named another limit."""
_STEPS_OF_A_LIMIT = 50
"""A worker may need so many times as long as the longest piece of work of any worker so far."""
_FIRST_STEPS_OF_A_LIMIT = 10
"""The same for the longest of all pieces, of which the first ones compile the model."""
_MEASURED_COMMITS = 2


class WorkerPace(NamedTuple):
    """One worker at one look: its piece of work, and how far it has come."""

    turn: int
    """The number of the piece of work; each begin of a wait makes another one."""
    waits_for_peers: bool
    """Whether that ends only with the peers' help."""
    step: int
    """The updates that it has committed, or resumed from."""
    commits: int
    """How many transactions it has committed in this launch."""
    is_training: bool
    """Whether it is in the loop, and neither in the script nor reading a checkpoint."""


@dataclass(frozen=True, slots=True)
class Stall:
    """Some workers do not come on, and nobody else does."""

    workers: tuple[WorkerId, ...]
    seconds: float
    limit_s: float
    step: int
    is_awaited: bool
    """Whether a peer waits for them; otherwise nobody can say that it takes too long."""
    has_limit: bool
    """Whether it may end with a fence: a peer waits, or others were fenced at the same step."""

    @property
    def is_over_half(self) -> bool:
        """Whether it is time to tell of it."""
        return self.seconds > self.limit_s / 2

    @property
    def is_over(self) -> bool:
        """Whether the workers are to be fenced."""
        return self.has_limit and self.seconds > self.limit_s


@dataclass(frozen=True, slots=True)
class StallDetector:
    """Which worker keeps all others waiting, and for how long; each look makes a new detector.

    Microbatches are equal parts: what one worker does for hours, its peers have done before.  So
    the limit is a multiple of the longest piece of work that any worker has ended.  It counts from
    the moment at which the last of the others began to wait.

    Nobody is fenced while nobody waits.  There is one exception: the workers that waited
    were fenced themselves at the same step, one after the other, as its owners.  Then the
    last ones have the limit of the first, in the next launch too.

    ``timeout_s`` is the user's limit, None for the adaptive one.  Before two steps of a
    launch it does not hold, because models are compiled then.
    """

    timeout_s: float | None = None
    standing_s: float = 0.0
    """How long no worker has come on, also outside of its training."""
    longest_s: float = 0.0
    """The longest piece of work after the first two steps, in any launch of the job."""
    longest_of_all_s: float = 0.0
    has_measured: bool = False
    """Whether two steps were measured, in any launch of the job."""
    _is_measured: bool = False
    _fenced_at: int | None = None
    _turns: ChangeDetector[WorkerId] = field(default=ChangeDetector(LEAST_LIMIT_S), repr=False)
    _last: Mapping[WorkerId, WorkerPace] = field(default_factory=dict, repr=False)

    def next_launch(self, timeout_s: float | None) -> StallDetector:
        """Return the detector of the next launch, which knows what the launches before took."""
        return StallDetector(
            timeout_s,
            longest_s=self.longest_s,
            longest_of_all_s=self.longest_of_all_s,
            has_measured=self.has_measured,
            _fenced_at=self._fenced_at,
        )

    def fenced(self, stall: Stall) -> StallDetector:
        """Return the detector that remembers at which step workers were fenced."""
        return replace(self, _fenced_at=stall.step)

    def observe(self, paces: Mapping[WorkerId, WorkerPace], now: float) -> StallDetector:
        """Return the detector after a look at all workers that live, at ``now``."""
        limit_s = self.limit_s or LEAST_LIMIT_S
        passed_s = counted_s(self.looked_at, now, limit_s / LOOKS_PER_LIMIT)
        turns = {worker: pace.turn for worker, pace in paces.items()}
        is_same = bool(paces) and dict(paces) == self._last
        return replace(
            self._measuring(paces, passed_s),
            standing_s=self.standing_s + passed_s if is_same else 0.0,
            _turns=replace(self._turns, limit_s=limit_s).observe(turns, now),
            _last=dict(paces),
        )

    @property
    def looked_at(self) -> float | None:
        """The moment of the last look."""
        return self._turns.looked_at

    @property
    def limit_s(self) -> float | None:
        """The seconds that a stall may last; None while no worker may be accused."""
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
    def stall(self) -> Stall | None:
        """The workers for which all others wait, None while nobody stands still."""
        limit_s = self.limit_s
        is_training = all(pace.is_training for pace in self._last.values())
        if limit_s is None or not (self.standing_s and is_training):
            return None
        working = [w for w, pace in self._last.items() if not pace.waits_for_peers]
        if not working:
            return None
        step = max(pace.step for pace in self._last.values())
        is_awaited = len(working) < len(self._last)
        is_repeated = not is_awaited and step == self._fenced_at
        if is_repeated:
            # Nobody waits, so nobody has shown how long it takes: only the work before has.
            limit_s = max(limit_s, _FIRST_STEPS_OF_A_LIMIT * self.longest_s)
        them = tuple(sorted(working))
        has_limit = is_awaited or is_repeated
        return Stall(them, self.standing_s, limit_s, step, is_awaited, has_limit)

    def _measuring(self, paces: Mapping[WorkerId, WorkerPace], passed_s: float) -> StallDetector:
        """Return the detector with the pieces of work that have ended since the last look."""
        ended_s = [
            self._turns.seconds[worker] + passed_s
            for worker, before in self._last.items()
            if worker in paces and paces[worker].turn != before.turn and not before.waits_for_peers
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


def find_diverged(scripts: Iterable[ScriptView]) -> tuple[ScriptView, str] | None:
    """Return a script that has ended while another one trains, and that in words with what to do.

    None while all may still come together.
    """
    views = sorted(scripts, key=lambda view: (view.begun, view.worker))
    ended = next((view for view in views if view.has_ended), None)
    if ended is None or views[-1].begun <= ended.begun:
        return None
    ahead = next(view for view in views if view.begun == views[-1].begun)
    trainings = {0: "no training", 1: "1 training"}.get(ended.begun, f"{ended.begun} trainings")
    return ended, (
        f"worker {ended.worker} ended its script after {trainings}, but worker {ahead.worker} "
        f"began training {ahead.begun}, which needs all workers: call fit equally often on each; "
        "where a clock decides, let a callback that sets model.stop_training end one long fit "
        "for all"
    )
