"""Kills workers that come on no more, but finds out first what they are doing.

| limit | who is killed |
|---|---|
| ``heartbeat`` | a worker whose counter stands still |
| ``stall`` | a worker for which all others wait; it is told of at half of the limit |
| ``failed`` | a worker whose training has failed, but whose script goes on while all others wait |
| ``standstill`` | all workers, when they wait for each other: MPI has lost a death |
| ``joining`` | nobody; but the ways between the hosts are tried, as at a standstill |
| ``reading`` | all workers, when they restore and none gets a byte: the disk hangs |
| ``leaving`` | all workers, when their scripts have ended, all may leave, and none does |

The first limit is watched on each host (`silence`).  All others compare the workers of a launch,
on all hosts: those of one host alone may wait for a worker of another one, and are well.

Who is found is decided in `recovery.stall`.  A worker that was found
is killed within two seconds, with or without its stacks (`worker.stacks`): a sign of life in
between changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from holdfast.recovery.stall import (
    LaggardDetector,
    Pace,
    StallDetector,
    Standing,
    Standstill,
    Turn,
)
from holdfast.recovery.world import WorkerId
from holdfast.runtime.host.host_messages import Found, HostLink, Inquire
from holdfast.runtime.host.hosted_worker import HostedWorker
from holdfast.runtime.host.silence import STARTING_TIMEOUT_S
from holdfast.runtime.system.channel import Message
from holdfast.runtime.system.worker_status import Phase

_PHASES_OF_THE_LOOP = (Phase.COMPILING, Phase.TRAINING, Phase.SAVING, Phase.REPAIRING)

_BEATS_PER_STALL, _SHORTEST_STALL_S = 3, 10.0
"""All may wait inside MPI for as many heartbeat timeouts; an exchange takes seconds at most."""

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
        tell: Callable[[Message], None],
        heartbeat_timeout_s: float,
        try_pairs: Callable[[Callable[[bool], None]], None] = lambda then: then(False),
    ) -> None:
        """Take the ways to tell an event, and to leave out hosts that others do not reach."""
        self._tell = tell
        self._try_pairs = try_pairs
        self._tried: dict[str, bool] = {}
        """The stalls in which the pairs of hosts are tried; true when nothing was found."""
        standstill_s = max(_BEATS_PER_STALL * heartbeat_timeout_s, _SHORTEST_STALL_S)
        self._stalls = {
            "joining": StallDetector(standstill_s),
            "standstill": StallDetector(standstill_s),
            "reading": StallDetector(_LONGEST_READ_S),
            "leaving": StallDetector(max(heartbeat_timeout_s, STARTING_TIMEOUT_S)),
        }
        self._deserted = StallDetector(heartbeat_timeout_s)
        self._laggards: LaggardDetector | None = None
        self._known = LaggardDetector()
        self._told: Collection[tuple[WorkerId, Turn]] = ()
        self._standing = Standing()
        self._has_asked = False
        self._cases: dict[int, _Case] = {}
        self._last_case = 0

    @property
    def is_inquiring(self) -> bool:
        """Whether a case is open, which will not be for long."""
        return bool(self._cases)

    def standing_s(self) -> dict[WorkerId, float]:
        """Return the workers that do not come on, with the seconds of it; none if some do."""
        return dict.fromkeys(self._standing_workers, self._standing.seconds)

    @property
    def _standing_workers(self) -> tuple[WorkerId, ...]:
        return self._standing.workers((self._laggards or self._known).longest_s)

    def begin(self, stall_timeout_s: float | None) -> None:
        """Watch the workers of another launch; 0 seconds fence no worker for a stall."""
        self._cases = {}
        self._stalls = {name: StallDetector(old.limit_s) for name, old in self._stalls.items()}
        self._deserted = StallDetector(self._deserted.limit_s)
        known = (self._laggards or self._known).next_launch(stall_timeout_s)
        self._known = known
        self._laggards = None if stall_timeout_s == 0 else known

    def poll(
        self,
        watched: Sequence[HostedWorker],
        now: float,
        *,
        are_halted: bool = False,
        is_one_silent: bool = False,
    ) -> None:
        """Look at the workers that live, on all hosts.

        Workers that are halted come on no more.  While a silent one is about to be killed on its
        host, that explains why the others wait.
        """
        if are_halted or is_one_silent:
            return
        found = {hosted.worker: hosted for hosted in watched}
        self._look_for_stalls(found, now)
        if not self._cases:
            self._look_for_deserters(found, now)
        if not self._cases:
            self._look_for_laggards(found, now)
        if not self._cases:
            self._look_where_they_stand(found, now)

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

    def _look_for_stalls(self, found: dict[WorkerId, HostedWorker], now: float) -> None:
        """Find a launch of which nobody comes on: all wait for each other, or for the disk."""
        for limit, turn_of in _TURNS.items():
            if self._cases:
                return
            turns = {worker: turn_of(hosted) for worker, hosted in found.items()}
            stall = self._stalls[limit] = self._stalls[limit].observe(turns, now)
            if not stall.is_stalled:
                self._tried.pop(limit, None)
            elif limit not in _OF_PAIRS or self._has_tried(limit):
                self._stalls[limit] = StallDetector(stall.limit_s)
                if limit != "joining":
                    self._open(list(found.values()), self._end_launch(limit, stall.standing_s))

    def _has_tried(self, limit: str) -> bool:
        """Whether the hosts were found to reach each other in this stall; begin to try them."""

        def note(are_some_left_out: bool) -> None:  # noqa: FBT001  (it is an answer)
            self._tried[limit] = not are_some_left_out
            if are_some_left_out:  # the others go on, or not
                self._stalls[limit] = StallDetector(self._stalls[limit].limit_s)

        if limit not in self._tried:
            self._tried[limit] = False
            self._try_pairs(note)
        return self._tried.get(limit, False)

    def _look_for_deserters(self, found: dict[WorkerId, HostedWorker], now: float) -> None:
        """Fence the workers whose training has failed, if all others wait for them.

        None of them will ever come.  If all have failed alike, nobody waits.
        """
        failed = [h for h in found.values() if h.page.phase is Phase.FAILED]
        others = {w: Turn(*h.page.turn) for w, h in found.items() if h not in failed}
        self._deserted = self._deserted.observe(others if failed else {}, now)
        if self._deserted.is_stalled:
            seconds = self._deserted.standing_s
            self._deserted = StallDetector(self._deserted.limit_s)
            self._open(failed, self._fence("failed", seconds))

    def _look_for_laggards(self, found: dict[WorkerId, HostedWorker], now: float) -> None:
        """Find the workers for which all others wait, tell of them, and fence them."""
        if self._laggards is None:
            return
        paces = {worker: _pace_of(hosted) for worker, hosted in found.items()}
        self._laggards = self._laggards.observe(paces, now)
        standstill = self._laggards.standstill
        if standstill is None or not standstill.is_over_half:
            return
        them = [found[worker] for worker in standstill.workers]
        if standstill.is_over:
            self._laggards = self._laggards.fenced(standstill)
            self._open(them, self._fence("stall", standstill.seconds))
            return
        turns = {(hosted.worker, paces[hosted.worker].turn) for hosted in them}
        if turns != self._told:
            self._told = turns
            self._open(them, lambda those: self._suspect(those, standstill))

    def _look_where_they_stand(self, found: dict[WorkerId, HostedWorker], now: float) -> None:
        """Find out, once, what those do that do not come on, for ``holdfast status``."""
        turns = {worker: Turn(*hosted.page.turn) for worker, hosted in found.items()}
        self._standing = self._standing.observe(turns, now)
        them = [found[worker] for worker in self._standing_workers]
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
                    {
                        "kind": "worker_fenced",
                        "worker": hosted.worker,
                        "limit": limit,
                        "silent_s": round(seconds, 3),
                        "step": hosted.page.step,
                        "phase": hosted.page.phase.label,
                        "where": found.where,
                        "samples": found.samples,
                        "is_reading": found.is_reading,
                    }
                )

        return fence

    def _suspect(self, them: _Asked, standstill: Standstill) -> None:
        for hosted, found in them:
            self._tell(
                {
                    "kind": "suspected",
                    "worker": hosted.worker,
                    "seconds": round(standstill.seconds, 3),
                    "limit_s": round(standstill.limit_s, 3) if standstill.has_limit else None,
                    "is_awaited": standstill.is_awaited,
                    "step": hosted.page.step,
                    "where": found.where,
                    "stacks": found.stacks,
                    "samples": found.samples,
                    "is_reading": found.is_reading,
                }
            )

    def _end_launch(self, limit: str, seconds: float) -> Callable[[_Asked], None]:
        """Return what kills all workers of a launch that goes on no more."""

        def end(them: _Asked) -> None:
            told = {"kind": "stalled", "limit": limit, "seconds": round(seconds, 1)}
            self._tell(told | {"workers": sorted(hosted.worker for hosted, _ in them)})
            for hosted, _ in them:
                hosted.kill(_WHY[limit].format(seconds), limit)

        return end


def _pace_of(hosted: HostedWorker) -> Pace:
    """Return how far a worker has come."""
    page = hosted.page
    return Pace(Turn(*page.turn), page.step, page.commits, page.phase in _PHASES_OF_THE_LOOP)


def _reading_of(hosted: HostedWorker) -> Turn:
    """Return what a worker has read so far; only one that restores may wait for the disk.

    One that waits before it reads again gets no byte, and begins a turn for each wait.
    """
    if hosted.pid is None or hosted.page.phase is not Phase.RESTORING:
        return Turn(0, waits_for_peers=False)
    turn, _ = hosted.page.turn
    return Turn(hosted.characters_read + turn, waits_for_peers=True)


_OF_PAIRS = ("joining", "standstill")
_TURNS: dict[str, Callable[[HostedWorker], Turn]] = {
    "joining": lambda hosted: Turn(0, waits_for_peers=hosted.page.phase is Phase.JOINING),
    "standstill": lambda hosted: Turn(*hosted.page.turn),
    "reading": _reading_of,
    "leaving": lambda hosted: Turn(0, waits_for_peers=hosted.may_leave),
}
"""What a worker is doing, for each limit that ends a whole launch."""
