"""Kills workers that come on no more, but finds out first what they are doing.

| what | who is killed |
|---|---|
| silent | a worker whose counter stands still (`worker_process`, on its host) |
| standstill | all workers, which wait for each other, since MPI has lost a death, or for a disk |
| stall | a worker for which all others wait; it is told of at half of the limit |

The last two compare the workers of a launch, on all hosts: those of one host alone may wait for a
worker of another one, and are well.  A launch whose workers cannot join is not killed for it, but
the ways between the hosts are tried, as at each standstill.  A worker whose training has failed,
but whose script goes on, stalls at once when all others wait: it will never come.

Who is found is decided in `recovery.detector`.  A worker that was found
is killed within two seconds, with or without its stacks (`worker.stacks`): a sign of life in
between changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from holdfast.recovery.detector import ChangeDetector, Stall, StallDetector, WorkerPace
from holdfast.recovery.event import Event
from holdfast.recovery.world import WorkerId
from holdfast.runtime.host.host_messages import Found, HostLink, Inquire
from holdfast.runtime.host.hosted_worker import HostedWorker
from holdfast.runtime.host.worker_process import STARTING_TIMEOUT_S
from holdfast.runtime.run.events import Stalled, Suspected, WorkerFenced
from holdfast.runtime.system.worker_status import Phase

_PHASES_OF_THE_LOOP = (Phase.COMPILING, Phase.TRAINING, Phase.SAVING, Phase.REPAIRING)

_BEATS_PER_STALL, _SHORTEST_STALL_S = 3, 10.0
"""All may wait inside MPI for as many heartbeat timeouts; an exchange takes seconds at most."""

_TOLD_FROM_S, _USUAL_PIECES = 5.0, 3
"""A standstill is worth a word from so many seconds and so many usual pieces of work on."""

_LONGEST_READ_S = 300.0
"""Some worker gets bytes of a checkpoint in that time, or loads and compares what it has got."""

_WHY = {
    "standstill": "all workers waited for each other for {:.0f} s",
    "reading": "no worker got a byte of the checkpoints for {:.0f} s",
    "leaving": "no worker ended in {:.0f} s, though all scripts had come to their end",
}
"""Why all workers of a launch are killed at once."""

_HOW = {
    "stall": "at one piece of work",
    "failed": "in its script, which has caught the error of its training: {}",
}
"""What a worker was doing that is fenced."""


_Asked: TypeAlias = Sequence[tuple[HostedWorker, Found]]
"""Workers that live, and what they do as far as that could be found out."""


@dataclass(slots=True)
class _Case:
    """Workers that are asked what they do, and what follows when that is known of all."""

    open: dict[WorkerId, HostedWorker]
    conclude: Callable[[_Asked], None]
    found: list[tuple[HostedWorker, Found]] = field(default_factory=list)


class Fencing:
    """Looks at the statuses of a launch, and kills whom the detectors have found."""

    def __init__(
        self,
        tell: Callable[[Event], None],
        heartbeat_timeout_s: float,
        try_pairs: Callable[[Callable[[bool], None]], None],
    ) -> None:
        """Take the ways to tell an event, and to leave out hosts that others do not reach."""
        self._tell = tell
        self._try_pairs = try_pairs
        self._are_paired: bool | None = None
        """Whether the pairs of hosts were tried in this stall, and nothing was found."""
        standstill_s = max(_BEATS_PER_STALL * heartbeat_timeout_s, _SHORTEST_STALL_S)
        self._limits = {
            "joining": standstill_s,
            "standstill": standstill_s,
            "reading": _LONGEST_READ_S,
            "leaving": max(heartbeat_timeout_s, STARTING_TIMEOUT_S),
            "failed": heartbeat_timeout_s,
        }
        self._waiting: ChangeDetector[str] = ChangeDetector(heartbeat_timeout_s)
        """How long all have waited in one of these ways."""
        self._stalls = StallDetector()
        self._fences_stalls = False
        self._told: Collection[tuple[WorkerId, int]] = ()
        self._standing_workers: tuple[WorkerId, ...] = ()
        self._has_asked = False
        self._cases: dict[int, _Case] = {}
        self._last_case = 0

    @property
    def is_inquiring(self) -> bool:
        """Whether a case is open, which will not be for long."""
        return bool(self._cases)

    def standing_s(self) -> dict[WorkerId, float]:
        """Return the workers that do not come on, with the seconds of it; none if some do."""
        return dict.fromkeys(self._standing_workers, self._stalls.standing_s)

    def begin(self, stall_timeout_s: float | None) -> None:
        """Watch the workers of another launch; 0 seconds fence no worker for a stall."""
        self._cases = {}
        self._waiting = ChangeDetector(self._waiting.limit_s)
        self._stalls = self._stalls.next_launch(stall_timeout_s)
        self._fences_stalls = stall_timeout_s != 0

    def poll(
        self,
        watched: Sequence[HostedWorker],
        now: float,
        *,
        are_halted: bool,
        is_one_silent: bool,
    ) -> None:
        """Look at the workers that live, on all hosts.

        Workers that are halted come on no more.  While a silent one is about to be killed on its
        host, that explains why the others wait.
        """
        found = {hosted.worker: hosted for hosted in watched}
        self._waiting = self._waiting.observe(_waits_of(found), now)
        if are_halted or is_one_silent:
            return
        if not self._cases:
            self._look_for_stalls(found)
        if not self._cases:
            paces = {worker: _pace_of(hosted) for worker, hosted in found.items()}
            self._stalls = self._stalls.observe(paces, now)
            self._look_for_laggards(found)
        if not self._cases:
            self._look_where_they_stand(found)

    def found(self, message: Found) -> None:
        """Take note of what a worker does."""
        case = self._cases.get(message.case)
        hosted = None if case is None else case.open.pop(message.worker, None)
        if case is not None and hosted is not None:
            case.found.append((hosted, message))
            self._conclude(message.case, case)

    def drop(self, worker: WorkerId) -> None:
        """Wait no more for what a worker does that was killed."""
        for number, case in list(self._cases.items()):
            if case.open.pop(worker, None) is not None:
                self._conclude(number, case)

    def _look_for_stalls(self, found: dict[WorkerId, HostedWorker]) -> None:
        """Find a launch of which nobody comes on: all wait for each other, or for the disk."""
        ways = self._waiting.seconds.items()
        way, seconds = next((w for w in ways if w[1] > self._limits[w[0]]), ("", 0.0))
        if not way:
            self._are_paired = None
        elif way not in _OF_PAIRS or self._has_tried():
            self._waiting = ChangeDetector(self._waiting.limit_s)
            if way == "failed":  # none of them will ever come
                failed = [h for h in found.values() if h.page.phase is Phase.FAILED]
                self._open(failed, self._fence(way, seconds))
            elif way != "joining":
                self._open(list(found.values()), self._end_launch(way, seconds))

    def _has_tried(self) -> bool:
        """Whether the hosts were found to reach each other in this stall; begin to try them."""

        def note(are_some_left_out: bool) -> None:  # noqa: FBT001  (it is an answer)
            self._are_paired = not are_some_left_out
            if are_some_left_out:  # the others go on, or not
                self._waiting = ChangeDetector(self._waiting.limit_s)

        if self._are_paired is None:
            self._are_paired = False
            self._try_pairs(note)
        return self._are_paired

    def _look_for_laggards(self, found: dict[WorkerId, HostedWorker]) -> None:
        """Find the workers for which all others wait, tell of them, and fence them."""
        stall = self._stalls.stall if self._fences_stalls else None
        if stall is None or not stall.is_over_half:
            return
        them = [found[worker] for worker in stall.workers]
        if stall.is_over:
            self._stalls = self._stalls.fenced(stall)
            self._open(them, self._fence("stall", stall.seconds))
            return
        turns = {(hosted.worker, hosted.page.turn[0]) for hosted in them}
        if turns != self._told:
            self._told = turns
            self._open(them, lambda those: self._suspect(those, stall))

    def _look_where_they_stand(self, found: dict[WorkerId, HostedWorker]) -> None:
        """Find out, once, what those do that do not come on, for ``holdfast status``."""
        stalls = self._stalls
        is_long = stalls.standing_s >= max(_TOLD_FROM_S, _USUAL_PIECES * stalls.longest_s)
        # a usual piece of work may take as long
        them = [h for h in found.values() if is_long and not h.page.turn[1]]
        self._standing_workers = tuple(sorted(hosted.worker for hosted in them))
        if not them:
            self._has_asked = False
        elif not self._has_asked:
            self._has_asked = True

            def note(those: _Asked) -> None:
                for hosted, seen in those:
                    hosted.place = seen.where

            # what is known of a death is found out when it comes
            self._open(them, note, is_evidence=False)

    def _open(
        self,
        them: Sequence[HostedWorker],
        conclude: Callable[[_Asked], None],
        *,
        is_evidence: bool = True,
    ) -> None:
        self._last_case += 1
        case = _Case({hosted.worker: hosted for hosted in them if hosted.pid is not None}, conclude)
        self._cases[self._last_case] = case
        asked: dict[HostLink, list[HostedWorker]] = {}
        for hosted in case.open.values():
            asked.setdefault(hosted.host, []).append(hosted)
        for host, those in asked.items():
            workers = tuple(hosted.worker for hosted in those)
            question = Inquire(self._last_case, those[0].generation, workers, is_evidence)
            host.post(question)
        self._conclude(self._last_case, case)

    def _conclude(self, number: int, case: _Case) -> None:
        """Go on with a case of which all is known that will be."""
        if case.open or self._cases.pop(number, None) is None:
            return
        case.conclude([(h, seen) for h, seen in case.found if not (h.is_gone or h.is_condemned)])

    def _fence(self, limit: str, seconds: float) -> Callable[[_Asked], None]:
        """Return what kills workers that have stood still for so long."""

        def fence(them: _Asked) -> None:
            for hosted, found in them:
                how = _HOW[limit].format(hosted.failure)
                hosted.kill(f"fenced after {seconds:.2f} s {how}", limit)
                self._tell(
                    WorkerFenced(
                        hosted.worker,
                        limit,
                        round(seconds, 3),
                        hosted.page.step,
                        found.where,
                        found.samples,
                        found.is_reading,
                    )
                )

        return fence

    def _suspect(self, them: _Asked, stall: Stall) -> None:
        for hosted, found in them:
            self._tell(
                Suspected(
                    hosted.worker,
                    round(stall.seconds, 3),
                    hosted.page.step,
                    found.where,
                    found.stacks,
                    found.samples,
                    round(stall.limit_s, 3) if stall.has_limit else None,
                    stall.is_awaited,
                    found.is_reading,
                )
            )

    def _end_launch(self, limit: str, seconds: float) -> Callable[[_Asked], None]:
        """Return what kills all workers of a launch that goes on no more."""

        def end(them: _Asked) -> None:
            workers = sorted(hosted.worker for hosted, _ in them)
            self._tell(Stalled(limit, round(seconds, 1), tuple(workers)))
            for hosted, _ in them:
                hosted.kill(_WHY[limit].format(seconds), limit)

        return end


def _pace_of(hosted: HostedWorker) -> WorkerPace:
    """Return how far a worker has come."""
    page = hosted.page
    return WorkerPace(*page.turn, page.step, page.commits, page.phase in _PHASES_OF_THE_LOOP)


_OF_PAIRS = ("joining", "standstill")


def _waits_of(found: Mapping[WorkerId, HostedWorker]) -> dict[str, object]:
    """Return the ways in which all workers of a launch wait, each with what shows a progress.

    One that waits before it reads a checkpoint again gets no byte, and begins a turn for each wait.
    """
    all_of = found.values()
    phases = {hosted.page.phase for hosted in all_of}
    others = {w: h for w, h in found.items() if h.page.phase is not Phase.FAILED}
    ways = {
        "joining": phases == {Phase.JOINING},
        "standstill": all(hosted.page.turn[1] for hosted in all_of),
        "reading": phases == {Phase.RESTORING},
        "leaving": all(hosted.may_leave for hosted in all_of),
        "failed": 0 < len(others) < len(found)
        and all(hosted.page.turn[1] for hosted in others.values()),
    }
    turns = {worker: hosted.page.turn for worker, hosted in others.items()}
    read = [hosted.characters_read for hosted in all_of]
    return {
        way: (turns, read if way == "reading" else None)
        for way, is_it in ways.items()
        if is_it and found
    }
