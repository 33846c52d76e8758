"""Kills workers that stand still, but finds out first what they are doing.

| limit | who is killed |
|---|---|
| ``heartbeat`` | a worker whose counter stands still |
| ``stall`` | a worker for which all others wait; it is told of at half of the limit |
| ``failed`` | a worker whose training has failed, but whose script goes on while all others wait |
| ``standstill`` | all workers, when they wait for each other: MPI has lost a death |
| ``reading`` | all workers, when they restore and none gets a byte: the disk hangs |
| ``leaving`` | all workers, when their scripts have ended, all may leave, and none does |

Who is found is decided in `recovery.detector` and `recovery.stall`.  A worker that was found
is killed within two seconds, with or without its stacks (`evidence.stacks`): a sign of life in
between changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from holdfast.recovery.detector import FailureDetector, SilenceLimits
from holdfast.recovery.stall import (
    LaggardDetector,
    Pace,
    StallDetector,
    Standing,
    Standstill,
    Turn,
)
from holdfast.recovery.world import WorkerId
from holdfast.runtime.evidence.stacks import Inquiry
from holdfast.runtime.host.hosted_worker import HostedWorker
from holdfast.runtime.system.channel import Message
from holdfast.runtime.system.processes import characters_read
from holdfast.runtime.system.worker_status import Phase

_STARTING_TIMEOUT_S = 60.0
"""A script may import or write for long; ``MPI_Init`` and HDF5 hold the interpreter's lock."""

_PHASES_OF_THE_SCRIPT = (
    Phase.STARTING,
    Phase.JOINING,
    Phase.CONCLUDING,
    Phase.FAILED,
    Phase.LEAVING,
)
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


@dataclass(slots=True)
class _Case:
    """Workers that are asked what they do, and what follows when that is known, or too late."""

    inquiries: dict[WorkerId, tuple[HostedWorker, Inquiry]]
    conclude: Callable[[Sequence[HostedWorker]], None]

    def poll(self, now: float) -> bool:
        """Go on; return whether all is known that will be."""
        for hosted, inquiry in self.inquiries.values():
            if hosted.is_buried:
                inquiry.close()
                inquiry.is_over = True
            inquiry.poll(now)
            hosted.stacks = inquiry.stacks
        return all(inquiry.is_over for _, inquiry in self.inquiries.values())

    def close(self) -> None:
        """End what still runs for it."""
        for _, inquiry in self.inquiries.values():
            inquiry.close()


class Fencing:
    """Looks at the statuses of a launch, and kills whom the detectors have found."""

    def __init__(self, tell: Callable[[Message], None], heartbeat_timeout_s: float) -> None:
        starting_s = max(heartbeat_timeout_s, _STARTING_TIMEOUT_S)
        patient = (*_PHASES_OF_THE_SCRIPT, Phase.RESTORING)
        users: dict[int, float] = dict.fromkeys(patient, starting_s)
        self._tell = tell
        self._silences = FailureDetector(SilenceLimits(heartbeat_timeout_s, users))
        standstill_s = max(_BEATS_PER_STALL * heartbeat_timeout_s, _SHORTEST_STALL_S)
        self._stalls = {
            "standstill": StallDetector(standstill_s),
            "reading": StallDetector(_LONGEST_READ_S),
            "leaving": StallDetector(starting_s),
        }
        self._deserted = StallDetector(heartbeat_timeout_s)
        self._laggards: LaggardDetector | None = None
        self._known = LaggardDetector()
        self._told: Collection[tuple[WorkerId, Turn]] = ()
        self._standing = Standing()
        self._has_asked = False
        self._cases: list[_Case] = []

    @property
    def is_inquiring(self) -> bool:
        """Whether a case is open, which will not be for long."""
        return bool(self._cases)

    def silences_s(self) -> dict[WorkerId, float]:
        """Return for how long the counter of each watched worker has stood still, in seconds."""
        return {worker: found.silent_s for worker, found in self._silences.findings().items()}

    def standing_s(self) -> dict[WorkerId, float]:
        """Return the workers that do not come on, with the seconds of it; none if some do."""
        return dict.fromkeys(self._standing_workers, self._standing.seconds)

    @property
    def _standing_workers(self) -> tuple[WorkerId, ...]:
        return self._standing.workers((self._laggards or self._known).longest_s)

    def begin(self, stall_timeout_s: float | None) -> None:
        """Watch the workers of another launch; 0 seconds fence no worker for a stall."""
        self.close()
        self._stalls = {name: StallDetector(old.limit_s) for name, old in self._stalls.items()}
        self._deserted = StallDetector(self._deserted.limit_s)
        known = (self._laggards or self._known).next_launch(stall_timeout_s)
        self._known = known
        self._laggards = None if stall_timeout_s == 0 else known

    def poll(
        self, watched: Sequence[HostedWorker], now: float, *, are_halted: bool = False
    ) -> None:
        """Look at the workers that live, and at the cases that are open.

        Workers that are halted have to be alive, and come on no more.
        """
        found = {hosted.worker: hosted for hosted in watched}
        self._silences = self._silences.observe({w: h.view for w, h in found.items()}, now)
        accused = {worker for case in self._cases for worker in case.inquiries}
        for worker, finding in self._silences.findings().items():
            if finding.is_dead and worker not in accused:
                self._open([found[worker]], now, self._fence("heartbeat", finding.silent_s))
        if not are_halted:
            self._look_for_stalls(found, now)  # a worker that is about to die explains them
        if not (self._cases or are_halted):
            self._look_for_deserters(found, now)
        if not (self._cases or are_halted):
            self._look_for_laggards(found, now)
        if not (self._cases or are_halted):
            self._look_where_they_stand(found, now)
        over = [case for case in self._cases if case.poll(now)]
        self._cases = [case for case in self._cases if case not in over]
        for case in over:
            case.close()
            left = [hosted for hosted, _ in case.inquiries.values()]
            case.conclude([h for h in left if not (h.is_buried or h.is_condemned)])

    def _look_for_stalls(self, found: dict[WorkerId, HostedWorker], now: float) -> None:
        """Find a launch of which nobody comes on: all wait for each other, or for the disk."""
        for limit, turn_of in _TURNS.items():
            if self._cases:
                return
            turns = {worker: turn_of(hosted) for worker, hosted in found.items()}
            stall = self._stalls[limit] = self._stalls[limit].observe(turns, now)
            if stall.is_stalled:
                self._stalls[limit] = StallDetector(stall.limit_s)
                self._open(list(found.values()), now, self._end_launch(limit, stall.standing_s))

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
            self._open(failed, now, self._fence("failed", seconds))

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
            self._open(them, now, self._fence("stall", standstill.seconds))
            return
        turns = {(hosted.worker, paces[hosted.worker].turn) for hosted in them}
        if turns != self._told:
            self._told = turns
            self._open(them, now, lambda those: self._suspect(those, standstill))

    def _look_where_they_stand(self, found: dict[WorkerId, HostedWorker], now: float) -> None:
        """Find out, once, what those do that do not come on, for ``holdfast status``."""
        turns = {worker: Turn(*hosted.page.turn) for worker, hosted in found.items()}
        self._standing = self._standing.observe(turns, now)
        them = [found[worker] for worker in self._standing_workers]
        if not them:
            self._has_asked = False
        elif not self._has_asked:
            self._has_asked = True
            known = {hosted.worker: hosted.stacks for hosted in them}

            def note(those: Sequence[HostedWorker]) -> None:
                for hosted in those:  # what is known of a death is found out when it comes
                    hosted.place, hosted.stacks = hosted.stacks.where, known[hosted.worker]

            self._open(them, now, note)

    def _open(
        self,
        them: Sequence[HostedWorker],
        now: float,
        conclude: Callable[[Sequence[HostedWorker]], None],
    ) -> None:
        inquiries = {
            hosted.worker: (hosted, Inquiry(hosted.pid, hosted.page, now))
            for hosted in them
            if hosted.pid is not None
        }
        self._cases.append(_Case(inquiries, conclude))

    def _fence(self, limit: str, seconds: float) -> Callable[[Sequence[HostedWorker]], None]:
        """Return what kills workers that have stood still for so long."""

        def fence(them: Sequence[HostedWorker]) -> None:
            for hosted in them:
                hosted.fence(limit, seconds)
                self._tell(
                    {
                        "kind": "worker_fenced",
                        "worker": hosted.worker,
                        "limit": limit,
                        "silent_s": round(seconds, 3),
                        "step": hosted.page.step,
                        "phase": hosted.page.phase.label,
                        "where": hosted.stacks.where,
                        "samples": hosted.samples,
                        "is_reading": hosted.stacks.is_reading,
                    }
                )

        return fence

    def _suspect(self, them: Sequence[HostedWorker], standstill: Standstill) -> None:
        for hosted in them:
            self._tell(
                {
                    "kind": "worker_suspected",
                    "worker": hosted.worker,
                    "seconds": round(standstill.seconds, 3),
                    "limit_s": round(standstill.limit_s, 3) if standstill.has_limit else None,
                    "is_awaited": standstill.is_awaited,
                    "step": hosted.page.step,
                    "where": hosted.stacks.where,
                    "stacks": str(hosted.stacks),
                    "samples": hosted.samples,
                    "is_reading": hosted.stacks.is_reading,
                }
            )

    def _end_launch(self, limit: str, seconds: float) -> Callable[[Sequence[HostedWorker]], None]:
        """Return what kills all workers of a launch that goes on no more."""

        def end(them: Sequence[HostedWorker]) -> None:
            told = {"kind": "stalled", "limit": limit, "seconds": round(seconds, 1)}
            self._tell(told | {"workers": sorted(hosted.worker for hosted in them)})
            for hosted in them:
                hosted.limit = limit
                hosted.kill(_WHY[limit].format(seconds))

        return end

    def close(self) -> None:
        """End the inquiries that still run."""
        for case in self._cases:
            case.close()
        self._cases = []


def _pace_of(hosted: HostedWorker) -> Pace:
    """Return how far a worker has come."""
    page = hosted.page
    return Pace(Turn(*page.turn), page.step, page.commits, page.phase in _PHASES_OF_THE_LOOP)


def _reading_of(hosted: HostedWorker) -> Turn:
    """Return what a worker has read so far; only one that restores may wait for the disk.

    One that waits before it reads again gets no byte, and begins a turn for each wait.  While
    the host's writer mends for it, it is the writer who reads.
    """
    if hosted.pid is None or hosted.page.phase is not Phase.RESTORING:
        return Turn(0, waits_for_peers=False)
    turn, _ = hosted.page.turn
    read = characters_read(hosted.pid) + hosted.served
    return Turn(read + turn, waits_for_peers=True)


_TURNS: dict[str, Callable[[HostedWorker], Turn]] = {
    "standstill": lambda hosted: Turn(*hosted.page.turn),
    "reading": _reading_of,
    "leaving": lambda hosted: Turn(0, waits_for_peers=hosted.may_leave),
}
"""What a worker is doing, for each limit that ends a whole launch."""
