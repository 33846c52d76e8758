"""The trials of an MPI, and what their outcomes allow to rely on.

All ranks of a trial take steps together: they exchange vectors, vote, and repair their world
after a death, as the workers of a job do.  The survivors must come to the end with the right
sums.  The order of the table is the order of trust: a level is tried only if the levels
before it have passed.

In the level ``SEVERAL`` deaths fall into the repair of other deaths.  A member that notices
one there revokes the new world, while others are still inside Shrink.  Open MPI 5.0.10 and
5.0.11 then follow a null pointer.  Deaths 10 to 30 ms apart hit that moment in a quarter of
all runs or less.  So one trial makes it without any death, a hundred times over: it fails at
once on those two, and never on 5.0.8 and 5.0.9.

A wrong sum, or survivors that disagree about their world, weigh more than any number of lost
ranks.  Lost ranks cost a relaunch.  Wrong results would cost the bytes of the run.  So an
MPI that has given a wrong result once is not used in place at all.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import Enum, IntEnum

_REVOKES = 100
_LARGE = 500_000
"""4 MB: sent piece by piece, with other code of the library than small messages."""


class Level(Enum):
    """What a trial asks of an MPI, from the least to the most."""

    START = "start"
    """Ranks start, find each other and exchange; nobody dies."""
    ONE = "one"
    """Deaths one at a time: the survivors go on."""
    SEVERAL = "several"
    """Several deaths at once, or one inside the repair of another."""
    SPAWN = "spawn"
    """New ranks are started in place of dead ones.  No job needs it so far."""


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
    level: Level
    ranks: int
    deaths: tuple[Death, ...] = ()
    elements: int = 10_000
    """Length of the vectors that are exchanged, in 8 bytes each."""
    ulfm: bool = True
    spawns: int = 0
    """So many ranks are started in place of dead ones."""
    revokes: int = 0
    """So many worlds are revoked by one member while others are still inside Shrink."""

    @property
    def survivors(self) -> frozenset[int]:
        """The ranks that must come to the end."""
        return frozenset(range(self.ranks)) - {death.rank for death in self.deaths}

    def encode(self) -> str:
        """Return the trial as a word of a command line."""
        return json.dumps(asdict(self), default=lambda member: member.value)

    @staticmethod
    def decode(text: str) -> Trial:
        """Return the trial that ``encode`` wrote."""
        fields = json.loads(text)
        deaths = tuple(
            Death(**(death | {"where": Where(death["where"]), "kind": Kind(death["kind"])}))
            for death in fields["deaths"]
        )
        return Trial(**(fields | {"level": Level(fields["level"]), "deaths": deaths}))


def _deaths_one_by_one() -> tuple[Trial, ...]:
    kinds = tuple(
        Trial(f"{kind.value} in an exchange", Level.ONE, 3, (Death(1, Where.EXCHANGE, kind),))
        for kind in Kind
    )
    places = tuple(
        Trial(f"a death: {where.value}", Level.ONE, 4, (Death(rank, where, Kind.KILL, 2.0),))
        for rank, where in enumerate((Where.VOTE, Where.CLOCK, Where.EXCHANGE))
    )
    large = Trial(
        "a death among large messages", Level.ONE, 3, (Death(0, Where.EXCHANGE),), elements=_LARGE
    )
    return (*kinds, *places, large)


def _deaths_together() -> tuple[Trial, ...]:
    return (
        *(
            Trial(f"{_REVOKES} revokes inside Shrink", Level.SEVERAL, ranks, revokes=_REVOKES)
            for ranks in (3, 6)
        ),
        Trial("two at once", Level.SEVERAL, 4, (Death(0, Where.VOTE), Death(2, Where.VOTE))),
        Trial(
            "all but one at once",
            Level.SEVERAL,
            4,
            tuple(Death(rank, Where.EXCHANGE) for rank in (0, 2, 3)),
            elements=_LARGE,
        ),
        Trial(
            "one after the revoke",
            Level.SEVERAL,
            5,
            (Death(1, Where.EXCHANGE), Death(3, Where.REVOKED)),
        ),
    )


def _deaths_by_the_clock() -> tuple[Trial, ...]:
    apart = tuple(
        Trial(
            f"three, {gap} ms apart",
            Level.SEVERAL,
            6,
            tuple(
                Death(rank, Where.CLOCK, Kind.KILL, index * gap) for index, rank in enumerate(ranks)
            ),
        )
        for gap in (10, 20, 30)
        for ranks in ((1, 3, 5), (0, 4, 2), (5, 0, 3), (2, 1, 4))
    )
    inside = tuple(
        Trial(
            f"two inside Shrink, at {delay} ms",
            Level.SEVERAL,
            6,
            (
                Death(1, Where.EXCHANGE),
                Death(4, Where.REPAIR, Kind.KILL, delay),
                Death(2, Where.REPAIR, Kind.KILL, 2 * delay),
            ),
        )
        for delay in (0.1, 0.3, 0.5, 1.0, 2.0, 3.0, 5.0, 8.0, 12.0)
    )
    return (*apart, *inside)


PLAIN_START = Trial("start without fault tolerance", Level.START, 2, ulfm=False)
START = Trial("start", Level.START, 2)
FIRST_DEATH = Trial("one of two dies", Level.ONE, 2, (Death(1, Where.EXCHANGE),))

CAMPAIGN = (
    PLAIN_START,
    START,
    FIRST_DEATH,
    *_deaths_one_by_one(),
    *_deaths_together(),
    *_deaths_by_the_clock(),
    Trial("a rank in place of a dead one", Level.SPAWN, 3, (Death(2, Where.VOTE),), spawns=1),
)
"""What `holdfast doctor --mpi` runs: about 40 launches, in a minute on two idle cores.

Busy ones take three.
"""


class Trust(IntEnum):
    """What a job may rely on; each includes those below it."""

    NOTHING = 0
    """Ranks do not even start."""
    RELAUNCH = 1
    """Ranks work together; a death ends the launch."""
    ONE = 2
    """Survivors outlive deaths that come one at a time."""
    ALL = 3
    """Survivors outlive deaths at any moment."""


@dataclass(frozen=True, slots=True)
class RankReport:
    """What one rank wrote at its end."""

    world: tuple[int, ...]
    """The ranks of the launch that it went on with."""
    steps: int
    wrong: str = ""
    """A wrong result that it saw, as a sentence."""
    failure: str = ""
    """Why it could not go on, as a sentence."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one trial ended; both texts are empty if it passed."""

    trial: Trial
    failure: str = ""
    wrong: str = ""
    seconds: float = 0.0

    @property
    def has_passed(self) -> bool:
        """Whether all survivors came to the end with right results."""
        return not self.failure and not self.wrong


def judge(
    trial: Trial, reports: Mapping[int, RankReport], ending: str, seconds: float = 0.0
) -> Outcome:
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
    return Outcome(trial, failure, wrong, seconds)


def trust_of(outcomes: Sequence[Outcome]) -> Trust:
    """Return what a campaign's outcomes allow; an untried level has not passed."""
    if not _passed(outcomes, Level.START):
        return Trust.NOTHING
    if any(outcome.wrong for outcome in outcomes) or not _passed(outcomes, Level.ONE):
        return Trust.RELAUNCH
    return Trust.ALL if _passed(outcomes, Level.SEVERAL) else Trust.ONE


def first_fault(outcomes: Sequence[Outcome]) -> str:
    """Return the gravest fault as a sentence, empty if there is none."""
    needed = [outcome for outcome in outcomes if outcome.trial.level is not Level.SPAWN]
    for outcome in needed:
        if outcome.wrong:
            return f"{outcome.trial.name}: {outcome.wrong}"
    for outcome in needed:
        if outcome.failure:
            return f"{outcome.trial.name}: {outcome.failure}"
    return ""


def _passed(outcomes: Sequence[Outcome], level: Level) -> bool:
    found = [outcome for outcome in outcomes if outcome.trial.level is level]
    return bool(found) and all(outcome.has_passed for outcome in found)
