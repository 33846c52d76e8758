"""Every process of a job, struck in every way at every moment: what must come of it.

A cell is a victim, a strike and a moment.  Whatever the cell, the run ends with the bytes of
the undisturbed one and leaves nothing behind.  Cells differ in the exit code alone, and in
whether ``holdfast run`` has to be typed again:

* SIGTERM to client or agent is an order to stop with a checkpoint, or at once while the
  workers start: 75, and the next job ends the run.
* Without its client a job trains on, and the next ``holdfast run`` takes it over.  Before
  the first launch there is nothing to take over, and it starts.
* Everything else is survived by the job itself: 0.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from itertools import product
from pathlib import Path

from striker import OF_ONE_HOST, Kind, Strike, Target, run_struck
from workload import Undisturbed, Workload, request_of

from holdfast.testing import JobRequest

LIMIT_S = 2
"""``--heartbeat-timeout`` of these jobs."""
TRAINED = Workload(
    microbatches=6, samples=160, global_batch=40, epochs=30, save_every=4, pause_ms=20
)
_WORKERS = 3
_VICTIM = 1
"""The worker that is struck, and whose guard is struck."""
_BOUND_S = 180.0


class Moment(Enum):
    """What the job is doing then."""

    STARTING = "starting"
    TRAINING = "training"
    REPAIR = "repair"
    SAVE = "save"
    ENDING = "ending"


_EVENTS = {
    Moment.STARTING: ("launch", 1),
    Moment.TRAINING: ("step", 6),
    Moment.REPAIR: ("step", 6),
    Moment.SAVE: ("checkpoint", 1),
    Moment.ENDING: ("completed", 1),
}


@dataclass(frozen=True)
class Cell:
    """One case of the matrix."""

    victim: Target
    strike: Kind
    moment: Moment

    @property
    def strikes(self) -> list[Strike]:
        """What is done; a worker dies before the others repair."""
        event, number = _EVENTS[self.moment]
        index = _VICTIM if self.victim in (Target.WORKER, Target.GUARD) else 0
        first = [Strike(Kind.KILL, Target.WORKER, 2, event, number)]
        last = Strike(self.strike, self.victim, index, event, number, for_s=0.0)
        return [*(first if self.moment is Moment.REPAIR else ()), last]

    @property
    def exit_codes(self) -> tuple[tuple[int, ...], ...]:
        """What the jobs of the run may end with."""
        if self.strike is Kind.TERM and self.victim in (Target.CLIENT, Target.AGENT):
            return ((0,),) if self.moment is Moment.ENDING else ((75, 0), (0,))
        is_client_killed = self.strike is Kind.KILL and self.victim is Target.CLIENT
        return ((-9, 0), (0,)) if is_client_killed else ((0,),)

    def __str__(self) -> str:
        """Name the cell in a line of output."""
        return f"{self.strike.value} {self.victim.value} {self.moment.value}"


CELLS = tuple(Cell(*cell) for cell in product(OF_ONE_HOST, Kind, Moment))


def run_cell(cell: Cell, folder: Path, undisturbed: Undisturbed) -> float:
    """Run a cell; return the seconds from the strike to the end of the run.

    Raises:
        AssertionError: something else came of it than must come.
    """
    run = run_struck(
        _request(folder),
        cell.strikes,
        within_s=_BOUND_S,
        when_done=(folder / "go").touch,
    )
    complaints = list(run.complaints(undisturbed(TRAINED)))
    assert not complaints, f"{cell}: {complaints}"
    codes = tuple(code for code in run.exit_codes if code != 76)
    assert codes in cell.exit_codes, f"{cell}: exit codes {run.exit_codes}"
    assert all(one.pid is not None for one in run.struck), f"{cell}: no victim"
    return run.began + run.seconds - run.struck[-1].at


def _request(folder: Path) -> JobRequest:
    options = ["--heartbeat-timeout", str(LIMIT_S), "--max-restarts", "4"]
    plain = request_of(TRAINED, folder / "run", workers=_WORKERS, options=options)
    argv = [*plain.argv, "--linger", str(folder / "go")]
    return replace(plain, argv=argv)
