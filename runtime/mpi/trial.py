"""A trial of an MPI: which ranks die, how and where, and what their reports allow to rely on.

All ranks of a trial take steps together: they exchange vectors, vote, and repair their world
after a death, as the workers of a job do.  The survivors must come to the end with the right
sums.

A wrong sum, or survivors that disagree about their world, weigh more than any number of lost
ranks.  Lost ranks cost a relaunch.  Wrong results would cost the bytes of the run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum


class Kind(Enum):
    """How a rank dies.  The guard makes each death a SIGKILL, as it does in a job."""

    KILL = "kill"
    SEGFAULT = "segfault"
    EXIT = "exit"
    ABORT = "abort"
    STOP = "stop"


class Where(Enum):
    """Where a rank dies."""

    EXCHANGE = "exchange"
    """Half of its messages are sent."""
    VOTE = "vote"
    """Its peers wait for its vote."""
    REVOKED = "revoked"
    """It has revoked the world, and its peers are on their way into Shrink."""
    REPAIR = "repair"
    """At a moment of the repair that a clock chooses, inside Shrink as a rule."""
    CLOCK = "clock"
    """At a moment of the step that a clock chooses."""


@dataclass(frozen=True, slots=True)
class Death:
    """The death of one rank; ``delay_ms`` is that of a clock."""

    rank: int
    where: Where
    kind: Kind = Kind.KILL
    delay_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Trial:
    """One launch of ``ranks`` ranks, and the deaths in it."""

    name: str
    ranks: int
    deaths: tuple[Death, ...] = ()
    elements: int = 10_000
    """Length of the vectors that are exchanged, in 8 bytes each."""
    ulfm: bool = True
    revokes: int = 0
    """So many worlds are revoked by one member while others are still inside Shrink."""

    @property
    def survivors(self) -> frozenset[int]:
        """The ranks that must come to the end."""
        return frozenset(range(self.ranks)) - {death.rank for death in self.deaths}


PLAIN_START = Trial("start without fault tolerance", 2, ulfm=False)
FIRST_DEATH = Trial("one of two dies", 2, (Death(1, Where.EXCHANGE),))


class Trust(IntEnum):
    """What a job may rely on; each includes those below it."""

    NOTHING = 0
    """Ranks do not even start."""
    RELAUNCH = 1
    """Ranks work together; a death ends the launch."""
    ONE = 2
    """Survivors outlive a death."""


@dataclass(slots=True)
class RankReport:
    """What one rank writes at its end."""

    world: tuple[int, ...] = ()
    """The ranks of the launch that it went on with."""
    steps: int = 0
    wrong: str = ""
    """A wrong result that it saw, as a sentence."""
    failure: str = ""
    """Why it could not go on, as a sentence."""
    files: tuple[str, ...] = ()
    """The files of the MPI library that it had loaded."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one trial ended; both texts are empty if it passed."""

    trial: Trial
    failure: str = ""
    wrong: str = ""
    seconds: float = 0.0
    files: tuple[str, ...] = ()
    """The files of the MPI library that the ranks had loaded."""
    has_hung: bool = False

    @property
    def has_passed(self) -> bool:
        """Whether all survivors came to the end with right results."""
        return not self.fault

    @property
    def fault(self) -> str:
        """The gravest fault that was seen, "" for none."""
        return self.wrong or self.failure


def judge(trial: Trial, reports: Mapping[int, RankReport], ending: str) -> Outcome:
    """Return the outcome that the reports of ranks tell; ``ending`` says how mpiexec ended."""
    wrong = next((report.wrong for report in reports.values() if report.wrong), "")
    failure = next((report.failure for report in reports.values() if report.failure), "")
    survivors = {rank: reports[rank] for rank in sorted(trial.survivors) if rank in reports}
    worlds = {report.world for report in survivors.values() if not report.failure}
    lost = sorted(trial.survivors - set(survivors))
    if len(worlds) > 1:
        wrong = wrong or f"survivors went on in different worlds: {sorted(worlds)}"
    if lost and not failure:
        ranks = ", ".join(map(str, lost))
        failure = f"rank {ranks} of {trial.ranks} was lost, although nobody killed it; {ending}"
        if set(lost) == trial.survivors:
            failure = ending
    files = next((report.files for report in reports.values() if report.files), ())
    return Outcome(trial, failure, wrong, files=files)
