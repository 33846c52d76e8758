"""What the journal and the trace of a struck job say: its outages, and what a lost side has done.

All hosts of a test cluster have one monotonic clock, so the moments of all processes compare.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from holdfast.runtime.run.journal import Record

_UPDATES_UNDER_WAY = 1
"""A worker that was frozen within an update finishes it when it thaws."""


@dataclass(frozen=True, slots=True)
class Strike:
    """A loss that happened ``at`` a moment, and was undone at another one if it was at all."""

    kind: str
    host: str
    at: float
    undone_at: float | None = None
    is_alone: bool = True
    may_pass: bool = False
    """Whether it may cost no worker."""


@dataclass(frozen=True, slots=True)
class Outage:
    """The time between the last applied step before a loss and the first one after it."""

    began: float
    ended: float

    @property
    def seconds(self) -> float:
        """Its length."""
        return self.ended - self.began


@dataclass(frozen=True, slots=True)
class Commit:
    """A checkpoint that came into sight ``at`` a moment, in seconds since 1970."""

    step: int
    generation: int
    at: float


class Update(NamedTuple):
    """A line of the trace: a worker has applied an update."""

    at: float
    host: str
    process: str


def updates_in(trace: str) -> list[Update]:
    """Return the updates of a trace; its last line may be under way."""
    lines = trace[: trace.rfind("\n") + 1].splitlines()
    rows = [line.split() for line in lines]
    return [Update(float(at), host, f"{host} {process}") for at, host, process in rows]


def outage_of(journal: Sequence[Record], strike: Strike) -> Outage | None:
    """Return the outage of a strike, None while it has not ended.

    It ends with the first step of a world without the victims.  A dead head takes along what the
    journal had of the last quarter of a second: then it begins with the strike, less than a step
    late.  When nobody died, it is the longest time without a step until the strike was undone.
    """
    steps = _steps(journal)
    generation = _generation_without(journal, strike)
    if generation is not None:
        before = [step["now"] for step in steps if step["generation"] < generation]
        after = [step["now"] for step in steps if step["generation"] >= generation]
        is_relaunch = any(
            record["event"] == "launch" and record["generation"] == generation for record in journal
        )
        if is_relaunch or not before:
            before.append(strike.at)
        return Outage(max(before), min(after)) if after else None
    if not strike.may_pass:
        return None
    until = strike.at if strike.undone_at is None else strike.undone_at
    moments = sorted(step["now"] for step in steps)
    if not moments or moments[-1] <= until:
        return None
    touching = [
        Outage(one, other) for one, other in pairwise(moments) if other > strike.at and one <= until
    ]
    return max(touching, key=lambda outage: outage.seconds, default=None)


def step_times(journal: Sequence[Record]) -> list[float]:
    """Return how long each step took."""
    return [step["seconds"] for step in _steps(journal)]


def losses_without_cause(journal: Sequence[Record], strikes: Sequence[Strike]) -> Iterator[str]:
    """Yield a sentence for each host and worker that was lost although nothing had struck it.

    The first launch alone is looked at: when a launch dies whole, each worker of it dies.
    """
    launches = 0
    for record in journal:
        launches += record["event"] == "launch"
        if launches > 1:
            return
        struck = {strike.host for strike in strikes if strike.at <= record["now"]}
        if record["event"] == "host_lost" and record["host"] not in struck:
            yield f"host {record['host']} was lost, and nothing had struck it: {record['reason']}"
        if record["event"] == "failure" and record["host"] not in struck:
            cause = record["cause"]
            yield f"worker {record['worker']} died on {record['host']}, which was healthy: {cause}"


def fenced_commits(
    journal: Sequence[Record], commits: Iterable[Commit], leased: Collection[str] = ()
) -> Iterator[str]:
    """Yield a sentence for each checkpoint that a lost host has committed after the others went on.

    One that is ``leased`` then may end a save that all had begun.

    The host of the first worker of a world saves, the loss of a host names its workers, and the
    next world has another one that saves.
    """
    fences: dict[int, tuple[str, float]] = {}
    first: dict[int, int] = {}
    lost: dict[int, str] = {}
    for record in journal:
        if record["event"] == "job_started":  # its workers count from 0 again
            first, lost = {}, {}
        elif record["event"] == "host_lost":
            lost |= dict.fromkeys(record["workers"], record["host"])
        elif record["event"] == "world":
            for generation, worker in first.items():
                if worker in lost:
                    fences.setdefault(generation, (lost[worker], record["time"]))
            first[record["generation"]] = record["workers"][0]
    for commit in commits:
        host, fenced_at = fences.get(commit.generation, ("", float("inf")))
        if commit.at > fenced_at and host not in leased:
            late_s = commit.at - fenced_at
            yield f"{host} committed step {commit.step} {late_s:.3f} s after the others went on"


def updates_without_word(journal: Sequence[Record], updates: Iterable[Update]) -> Counter[str]:
    """Return how many updates each worker has applied after the others went on without its host.

    If no world has followed in that launch, the lost one may be all that there is, and has the word
    of the head until its lease ends.
    """
    updates, worlds = list(updates), [r["now"] for r in journal if r["event"] == "world"]
    found = Counter[str]()
    launches = [record["now"] for record in journal if record["event"] == "launch"]
    for loss in (record for record in journal if record["event"] == "host_lost"):
        # What trains there after the next launch was started by the head.
        until = min((now for now in launches if now > loss["now"]), default=float("inf"))
        if not any(loss["now"] < now < until for now in worlds):
            continue
        late = Counter(
            update.process
            for update in updates
            if update.host == loss["host"] and loss["now"] < update.at < until
        )
        found.update({one: n for one, n in late.items() if n > _UPDATES_UNDER_WAY})
    return found


def _steps(journal: Iterable[Record]) -> list[Record]:
    """Return the applied steps; two first workers may each have told of one."""
    found: dict[tuple[int, int], Record] = {}
    for record in journal:
        if record["event"] == "step":
            found.setdefault((record["generation"], record["step"]), record)
    return list(found.values())


def _generation_without(journal: Sequence[Record], strike: Strike) -> int | None:
    """Return the first generation without those that the strike cost, None if it cost nobody."""
    after = [record for record in journal if record["now"] >= strike.at]
    launch = next((n for n, record in enumerate(after) if record["event"] == "launch"), len(after))
    victims: set[int] = set()
    for record in after[:launch]:
        if record["event"] == "host_lost" and record["host"] == strike.host:
            victims.update(record["workers"])
        if record["event"] == "failure" and record["host"] == strike.host:
            victims.add(record["worker"])
    for record in after[:launch]:
        if record["event"] == "recovery" and victims & set(record["lost"]):
            return int(record["generation"])
    if launch < len(after) and (victims or not strike.may_pass):
        return int(after[launch]["generation"])
    return None
