"""The events of a job that no decision needs; those of checkpoints are in `checkpoint_events`.

A field with the default None has no place in a line while it is None.  One that may be None, and
has no default, may be missing in the lines of other versions.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from holdfast.recovery.event import Event, WorkInHand
from holdfast.recovery.world import WorkerId
from holdfast.runtime.run import progress

_FIGURES = re.compile(r" (?:after|for) [\d.]+ s\b.*|, .*")
"""What differs between two deaths of one cause."""


@dataclass(frozen=True)
class JobStarted(Event, name="job_started"):
    """A job begins."""

    workers: int
    spares: int | None
    microbatches: int | None
    seed: int | None
    threads: int | None
    script: str | None
    argv: tuple[str, ...] | None
    hosts: tuple[str, ...] | None = None
    """Those that were named, as they were; None if none was."""
    options: tuple[str, ...] | None = None
    """All other options that were not the default, as a flag and a value."""
    terms: str | None = None
    """A digest of what decides on what a script does when its run is complete."""

    def describe(self) -> str:
        script = (self.script or "a script").rpartition("/")[2]
        return f"started {script} on {progress.count(self.workers, 'worker')}"


@dataclass(frozen=True)
class Incarnation(Event, name="incarnation", is_told=False):
    """Which job of a batch system this is, and when its time ends."""

    text: str


@dataclass(frozen=True)
class TakenOver(Event, name="taken_over", sentence="another client shows the job"):
    """Another client shows the job; ``agent`` is the process id of the head."""

    agent: int | None
    generation: int | None
    workers: tuple[int, ...] | None


@dataclass(frozen=True)
class HeadFailed(Event, name="head_failed", sentence="the head failed: {reason}"):
    """The head has failed by an error of its own; the workers go on."""

    reason: str


@dataclass(frozen=True)
class AgentKilled(Event, name="agent_killed", sentence="the agent was killed: {reason}"):
    """The head was killed with its workers, or has given a launch up."""

    reason: str


@dataclass(frozen=True)
class HungUp(Event, name="hung_up", sentence="SIGHUP: the job goes on without its terminal"):
    """The terminal is gone."""


@dataclass(frozen=True)
class SignalRepeated(Event, name="signal_repeated", is_told=False):
    """A batch system has sent once more the signal that stops the job."""

    text: str


@dataclass(frozen=True)
class Deadline(Event, name="deadline"):
    """The time of the job is up soon, or is up."""

    text: str
    is_late: bool | None


@dataclass(frozen=True)
class Notice(Event):
    """A sentence for the user, once for all processes that tell the same; nothing is recorded.

    ``is_progress`` marks one for which nobody has to do anything.
    """

    text: str
    is_progress: bool = False


@dataclass(frozen=True)
class Warned(Event, name="warning"):
    """Something that the user should know of the run, which goes on."""

    text: str


@dataclass(frozen=True)
class Paused(Event, name="paused"):
    """The whole job stood still; ``until`` is in seconds of the monotonic clock."""

    seconds: float
    until: float

    def describe(self) -> str:
        return f"the job stood still for {self.seconds:.0f} s, and goes on"

    def overlaps(self, other: Paused) -> bool:
        """Return whether two processes have told of one pause."""
        return max(self.until - self.seconds, other.until - other.seconds) < min(
            self.until, other.until
        )


@dataclass(frozen=True)
class JobEnded(Event, name="job_ended", sentence="ended with exit code {exit_code}: {reason}"):
    """A job has ended."""

    exit_code: int
    reason: str


@dataclass(frozen=True)
class LaunchBegan(Event, name="launch", is_told=False):
    """Workers are started; ``relaunch`` counts the launches before."""

    generation: int | None
    workers: tuple[int, ...]
    relaunch: int | None


@dataclass(frozen=True)
class Relaunch(Event, name="relaunch", listed="relaunches", hidden=["spent"]):
    """A job that died whole, or is renewed, is started again.

    The report adds where it began, None for nothing, and the time since the death (for a renewal
    since the stop).  That is None when no step was applied any more, or neither is on record.
    """

    reason: str
    workers: tuple[int, ...]
    spent: int | None
    is_renewal: bool = False
    restored_step: int | None = None
    since_failure_ms: float | None = None

    def describe(self) -> str:
        return f"relaunched {progress.count(len(self.workers), 'worker')}: {self.reason}"


@dataclass(frozen=True)
class Renewing(
    Event,
    name="renewing",
    sentence="{reason}: stopping with a checkpoint to make room for others, which are prepared",
):
    """A launch stops to make room for one that is prepared."""

    reason: str


@dataclass(frozen=True)
class Balanced(Event, name="balanced", listed="notices"):
    """From the next step on, workers own as many microbatches as their speed is worth."""

    step: int
    counts: tuple[int, ...]
    """Those of each worker, in rank order."""
    slowest: int
    times: float
    """How many times as long a microbatch takes the slowest worker as the fastest."""
    is_taken_back: bool = False

    def describe(self) -> str:
        runs = [(count, len(list(run))) for count, run in groupby(self.counts)]
        counts = ", ".join(
            f"{many} times {count}" if many > 1 else f"{count}" for count, many in runs
        )
        if self.is_taken_back:
            why = "steps were no shorter with other parts"
        else:
            why = f"worker {self.slowest} takes {self.times:.1f} times as long as the fastest one"
        return f"{why}: from step {self.step + 1} on the workers compute {counts} microbatches"


@dataclass(frozen=True)
class Recovery(Event, name="recovery", listed="recoveries", hidden=["detected"]):
    """Survivors have gone on in place; milliseconds are since they ``detected`` the failure.

    The report adds the time from the fault, or from the failure where none was injected, to the
    next applied step.
    """

    generation: int
    step: int
    lost: tuple[int, ...]
    survivors: tuple[int, ...]
    attempts: int = 1
    detected: float | None = None
    revoked_ms: float | None = None
    shrunk_ms: float | None = None
    agreed_ms: float | None = None
    adopted_ms: float | None = None
    next_step_ms: float | None = None
    since_failure_ms: float | None = None

    def describe(self) -> str:
        lost, others = named_workers(self.lost), named_workers(self.survivors)
        go_on = "goes on" if len(self.survivors) == 1 else "go on"
        return f"recovered at step {self.step} without {lost}; {others} {go_on}"


@dataclass(frozen=True)
class NumericsDiffer(Event, name="numerics_differ", is_told=False):
    """The run goes on with other numerics."""

    differences: tuple[str, ...]


@dataclass(frozen=True)
class InitialWeights(Event, name="initial_weights", is_told=False):
    """A run begins with the weights of a file, or of another run."""

    source: str
    sha256: str


@dataclass(frozen=True)
class StepRestored(Event, name="restored", sentence="restored step {step}"):
    """A launch goes on from a checkpoint."""

    step: int
    generation: int | None


@dataclass(frozen=True)
class Step(Event, name="step", is_told=False):
    """An applied update, or the last of several ``steps`` in a row, with the sums of all."""

    step: int
    epoch: int
    seconds: float
    samples: int
    generation: int
    steps: int | None = None

    @property
    def number(self) -> int:
        """How many updates the event stands for."""
        return 1 if self.steps is None else max(1, self.steps)

    @property
    def first(self) -> int:
        """The first of them."""
        return int(self.step - self.number + 1)


@dataclass(frozen=True)
class EpochLedger:
    """The proof that an epoch used every sample once."""

    samples: int
    fingerprint: str = ""
    exact: bool = False


@dataclass(frozen=True)
class Epoch(Event, name="epoch", is_told=False, hidden=["ledger", "generation"]):
    """The end of an epoch; the ledger proves that it used every sample once.

    Without ``verbose`` it is shown as Keras would.
    """

    epoch: int
    step: int
    metrics: Mapping[str, float] | None
    validation: Mapping[str, float] | None
    seconds: float | None
    epochs: int | None = None
    verbose: int | None = None
    ledger: EpochLedger | None = None
    generation: int | None = None

    @property
    def line(self) -> str:
        """The line that a log gets: ``Epoch 3/10 - 2.1 s - loss: 0.3100 - val_loss: 0.4000``."""
        parts = [f"Epoch {self.epoch}" + ("" if self.epochs is None else f"/{self.epochs}")]
        parts += [] if self.seconds is None else [progress.brief(self.seconds)]
        parts += progress.metrics(self.metrics or {})
        parts += progress.metrics(self.validation or {}, prefix="val_")
        return " - ".join(parts)


@dataclass(frozen=True)
class FaultStruck(Event, name="fault", is_told=False, listed="faults"):
    """An injected fault strikes; the names are those of a fault's address."""

    kind: str
    worker: int
    step: int
    site: str
    attempt: int = 1
    host: str | None = None
    """The host by which the fault names its worker."""

    @property
    def address(self) -> tuple[object, ...]:
        """Which fault of ``--inject`` it was."""
        return (self.host or self.worker, self.step, self.site, self.attempt)


@dataclass(frozen=True)
class Suspected(
    Event, name="suspected", listed="suspected", hidden=["limit_s", "is_awaited", "is_reading"]
):
    """A worker made no progress for half of its limit; it may have done so afterwards."""

    worker: int
    seconds: float
    step: int
    where: str = ""
    stacks: str = ""
    samples: WorkInHand | None = None
    limit_s: float | None = None
    is_awaited: bool | None = None
    is_reading: bool | None = None

    def describe(self) -> str:
        place = at_work(self.where, self.samples, self.step, is_reading=bool(self.is_reading))
        lasts = f"has made no progress for {self.seconds:.0f} s after step {self.step}{place}"
        if self.limit_s is None:
            return f"worker {self.worker} {lasts}, and no other worker waits for it"
        why = "all others wait for it" if self.is_awaited else "others were killed there"
        killed = f"it is killed after {self.limit_s:.0f} s"
        return f"worker {self.worker} {lasts}, and {why}: {killed}"


@dataclass(frozen=True)
class WorkerFenced(Event):
    """A worker is killed, because it stands still or keeps others waiting."""

    worker: WorkerId
    limit: str
    silent_s: float
    step: int
    where: str = ""
    samples: WorkInHand | None = None
    is_reading: bool = False

    def describe(self) -> str:
        how = f"has been silent for {self.silent_s:.1f} s"
        if self.limit == "stall":
            how = f"has kept the others waiting for {self.silent_s:.1f} s"
        place = at_work(self.where, self.samples, self.step, is_reading=self.is_reading)
        return f"worker {self.worker} {how} after step {self.step}{place}: killing it"


@dataclass(frozen=True)
class Stalled(Event, name="stalled"):
    """Workers are killed because none of them made progress."""

    limit: str
    seconds: float
    workers: tuple[int, ...]

    def describe(self) -> str:
        number = len(self.workers)
        if self.limit == "reading":
            return (
                f"none of {number} workers got a byte of the checkpoints for {self.seconds:.0f} s, "
                "so their disk hangs: ending the launch (nothing is known to be damaged)"
            )
        if self.limit == "leaving":
            return (
                f"the scripts of all workers have come to their end, but {number} of them did not "
                f"leave for {self.seconds:.0f} s: killed (nothing was left to do)"
            )
        return (
            f"all {number} workers have waited for each other inside MPI for {self.seconds:.1f} s: "
            "ending the launch"
        )


@dataclass(frozen=True)
class HostRefused(Event, name="host_refused", sentence="host {host} stays out: {reason}"):
    """A host answers, but differs from what it was when the job began."""

    host: str
    reason: str


@dataclass(frozen=True)
class MemoryDiffers(
    Event, name="memory_differs", listed="memory_differences", hidden=["generation"]
):
    """The state of some workers is not that of the others; without a majority all may be wrong."""

    step: int
    workers: tuple[int, ...]
    has_majority: bool
    generation: int | None = None

    def describe(self) -> str:
        fate = "fenced" if self.has_majority else "no majority shows whose state is right"
        return f"step {self.step} differs in the memory of {named_workers(self.workers)}: {fate}"


@dataclass(frozen=True)
class Pressure(Event, name="pressure", listed="pressures", hidden=["place", "used", "limit"]):
    """A limit of the host is about to be met."""

    resource: str
    text: str
    place: str | None = None
    used: int | None = None
    limit: int | None = None


@dataclass(frozen=True)
class PreloadFailed(Event, name="preload_failed", is_told=False):
    """A module is not loaded before the workers are born.

    A ``keeper`` is a library that keeps a thread running, and so every module out that imports it.
    """

    module: str
    message: str
    keeper: str | None = None


@dataclass(frozen=True)
class PoolWarmed(Event):
    """The pools of all hosts have imported everything."""


@dataclass(frozen=True)
class PoolRestarted(Event, name="pool_restarted", is_told=False):
    """The process that workers are forked from has died, and was started again."""

    cause: str


@dataclass(frozen=True)
class PoolLost(Event):
    """A host can make no worker any more."""

    reason: str


@dataclass(frozen=True)
class OutputDropped(Event, name="output_dropped", is_told=False):
    """Lines of the workers were lost, so many since its agent began."""

    lines: int


@dataclass(frozen=True)
class JournalGap(Event, name="journal_gap", is_told=False):
    """So many lines before this one could not be written."""

    lines: int


def at_work(where: str, work: WorkInHand | None, step: int, *, is_reading: bool) -> str:
    """Return the place in the script, and the batch or microbatch in hand, as far as known."""
    place = f", in {where}" if where else ""
    if is_reading:
        return f"{place}, while it reads the batch of step {step + 1}"
    if work is None:
        return place
    what = "the validation after step" if work.is_validation else "step"
    return f"{place}, with microbatch {work.microbatch} of {what} {work.step}"


def named_workers(workers: Sequence[int]) -> str:
    """Return workers with their ids."""
    *first, last = map(str, workers or ("none",))
    ids = f"{', '.join(first)} and {last}" if first else last
    return f"{'worker' if len(workers) == 1 else 'workers'} {ids}"


def death_counts(deaths: Iterable[tuple[str | None, str]]) -> tuple[str, ...]:
    """Return how many of ``deaths``, each a host and a cause, are alike, the most first.

    There is nothing to count in a single one.
    """
    counts = Counter((host, _FIGURES.sub("", cause)) for host, cause in deaths)
    if counts.total() < 2:
        return ()
    return tuple(
        f"{progress.count(number, 'death')}{f' on {host}' if host else ''}: {cause}"
        for (host, cause), number in counts.most_common()
    )
