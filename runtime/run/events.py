"""The events of a journal: their fields, their words for people, and what a report shows of them.

A new event is a class here, and a call of `entries.record` where it happens.  Those of checkpoints
are in `checkpoint_events`.

A field with the default None has no place in a line while it is None.  One that may be None, and
has no default, may be missing in the lines of other versions.  Classes are named tuples: a worker
begins with all of them, and dataclasses take four times as long.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from holdfast.runtime.run import progress
from holdfast.runtime.run.event_kinds import (
    Count,
    Counts,
    Ledger,
    Metrics,
    Seconds,
    Texts,
    Work,
    event,
)

_FIGURES = re.compile(r" (?:after|for) [\d.]+ s\b.*|, .*")
"""What differs between two deaths of one cause."""


@event("job_started")
class JobStarted(NamedTuple):
    """A job begins."""

    workers: Count
    spares: int | None
    microbatches: int | None
    seed: int | None
    threads: int | None
    script: str | None
    argv: Texts | None
    hosts: Texts | None = None
    """Those that were named, as they were; None if none was."""
    options: Texts | None = None
    """All other options that were not the default, as a flag and a value."""
    terms: str | None = None
    """A digest of what decides on what a script does when its run is complete."""

    def words(self) -> str:
        script = (self.script or "a script").rpartition("/")[2]
        return f"started {script} on {progress.count(self.workers, 'worker')}"


@event("incarnation", is_told=False)
class Incarnation(NamedTuple):
    """Which job of a batch system this is, and when its time ends."""

    text: str


@event("taken_over")
class TakenOver(NamedTuple):
    """Another client shows the job; ``agent`` is the process id of the head."""

    agent: int | None
    generation: int | None
    workers: Counts | None

    def words(self) -> str:
        return "another client shows the job"


@event("head_failed")
class HeadFailed(NamedTuple):
    """The head has failed by an error of its own; the workers go on."""

    reason: str

    def words(self) -> str:
        return f"the head failed: {self.reason}"


@event("agent_killed")
class AgentKilled(NamedTuple):
    """The head was killed with its workers, or has given a launch up."""

    reason: str

    def words(self) -> str:
        return f"the agent was killed: {self.reason}"


@event("hung_up")
class HungUp(NamedTuple):
    """The terminal is gone."""

    def words(self) -> str:
        return "SIGHUP: the job goes on without its terminal"


@event("signal_repeated", is_told=False)
class SignalRepeated(NamedTuple):
    """A batch system has sent once more the signal that stops the job."""

    text: str


@event("deadline")
class Deadline(NamedTuple):
    """The time of the job is up soon, or is up."""

    text: str
    is_late: bool | None


@event("warning")
class Warned(NamedTuple):
    """Something that the user should know of the run, which goes on."""

    text: str


@event("paused")
class Paused(NamedTuple):
    """The whole job stood still; ``until`` is in seconds of the monotonic clock."""

    seconds: Seconds
    until: Seconds

    def words(self) -> str:
        return f"the job stood still for {self.seconds:.0f} s, and goes on"


@event("job_ended")
class JobEnded(NamedTuple):
    """A job has ended."""

    exit_code: Count
    reason: str

    def words(self) -> str:
        return f"ended with exit code {self.exit_code}: {self.reason}"


@event("launch", is_told=False)
class Launch(NamedTuple):
    """Workers are started; ``relaunch`` counts the launches before."""

    generation: int | None
    workers: Counts
    relaunch: int | None


@event("relaunch", listed="relaunches", hidden=["spent"])
class Relaunch(NamedTuple):
    """A job that died whole, or is renewed, is started again.

    The report adds where it began, None for nothing, and the time since the death (for a renewal
    since the stop).  That is None when no step was applied any more, or neither is on record.
    """

    reason: str
    workers: Counts
    spent: int | None
    is_renewal: bool = False
    restored_step: int | None = None
    since_failure_ms: float | None = None

    def words(self) -> str:
        return f"relaunched {progress.count(len(self.workers), 'worker')}: {self.reason}"


@event("renewing")
class Renewing(NamedTuple):
    """A launch stops to make room for one of all workers."""

    reason: str

    def words(self) -> str:
        return f"{self.reason}: stopping with a checkpoint, to go on with all workers"


@event("world", is_told=False)
class WorldBegan(NamedTuple):
    """Workers train together, from ``step`` on."""

    workers: Counts
    capacity: int | None
    step: Count
    generation: int | None = None


@event("recovery", listed="recoveries", hidden=["detected"])
class Recovery(NamedTuple):
    """Survivors have gone on in place; milliseconds are since they ``detected`` the failure.

    The report adds the time from the fault, or from the failure where none was injected, to the
    next applied step.
    """

    generation: Count
    step: Count
    lost: Counts
    survivors: Counts
    attempts: int = 1
    detected: float | None = None
    revoked_ms: float | None = None
    shrunk_ms: float | None = None
    agreed_ms: float | None = None
    adopted_ms: float | None = None
    next_step_ms: float | None = None
    since_failure_ms: float | None = None

    def words(self) -> str:
        lost, others = named_workers(self.lost), named_workers(self.survivors)
        go_on = "goes on" if len(self.survivors) == 1 else "go on"
        return f"recovered at step {self.step} without {lost}; {others} {go_on}"


@event("numerics_differ", is_told=False)
class NumericsDiffer(NamedTuple):
    """The run goes on with other numerics."""

    differences: Texts


@event("initial_weights", is_told=False)
class InitialWeights(NamedTuple):
    """A run begins with the weights of a file, or of another run."""

    source: str
    sha256: str


@event("restored")
class Restored(NamedTuple):
    """A launch goes on from a checkpoint."""

    step: Count
    generation: int | None

    def words(self) -> str:
        return f"restored step {self.step}"


@event("step", is_told=False)
class Step(NamedTuple):
    """An applied update, or the last of several ``steps`` in a row, with the sums of all."""

    step: Count
    epoch: Count
    seconds: Seconds
    samples: Count
    generation: Count
    steps: Count | None = None

    @property
    def number(self) -> int:
        """How many updates the event stands for."""
        return 1 if self.steps is None else max(1, self.steps)

    @property
    def first(self) -> int:
        """The first of them."""
        return int(self.step - self.number + 1)


@event("epoch", is_told=False, hidden=["ledger", "generation"])
class Epoch(NamedTuple):
    """The end of an epoch; the ledger proves that it used every sample once.

    Without ``verbose`` it is shown as Keras would.
    """

    epoch: Count
    step: Count
    metrics: Metrics | None
    validation: Metrics | None
    seconds: Seconds | None
    epochs: int | None = None
    verbose: int | None = None
    ledger: Ledger | None = None
    generation: int | None = None

    @property
    def line(self) -> str:
        """The line that a log gets: ``Epoch 3/10 - 2.1 s - loss: 0.3100 - val_loss: 0.4000``."""
        parts = [f"Epoch {self.epoch}" + ("" if self.epochs is None else f"/{self.epochs}")]
        parts += [] if self.seconds is None else [progress.brief(self.seconds)]
        parts += progress.metrics(self.metrics or {})
        parts += progress.metrics(self.validation or {}, prefix="val_")
        return " - ".join(parts)


@event("stopped")
class Stopped(NamedTuple):
    """A training has stopped with a checkpoint, to be gone on with."""

    step: Count
    generation: int | None = None

    def words(self) -> str:
        return f"stopped at step {self.step} with a checkpoint"


@event("completed")
class Completed(NamedTuple):
    """A training is complete, or was ended by its script's ``error``.

    Both the first worker and the head record it.
    """

    step: Count
    sha256: str | None
    epochs: int | None
    metrics: Metrics | None
    validation: Metrics | None
    error: str | None = None
    is_first: bool | None = None
    generation: int | None = None

    def words(self) -> str:
        return f"completed step {self.step}"


@event("fault", is_told=False, listed="faults")
class FaultStruck(NamedTuple):
    """An injected fault strikes; the names are those of a fault's address."""

    kind: str
    worker: Count
    step: Count
    site: str
    attempt: int = 1
    host: str | None = None
    """The host by which the fault names its worker."""


@event("suspected", listed="suspected", hidden=["limit_s", "is_awaited", "is_reading"])
class Suspected(NamedTuple):
    """A worker made no progress for half of its limit; it may have done so afterwards."""

    worker: Count
    seconds: Seconds
    step: Count
    where: str = ""
    stacks: str = ""
    samples: Work | None = None
    limit_s: float | None = None
    is_awaited: bool | None = None
    is_reading: bool | None = None

    def words(self) -> str:
        place = at_work(self.where, self.samples, self.step, is_reading=bool(self.is_reading))
        lasts = f"has made no progress for {self.seconds:.0f} s after step {self.step}{place}"
        if self.limit_s is None:
            return f"worker {self.worker} {lasts}, and no other worker waits for it"
        why = "all others wait for it" if self.is_awaited else "others were killed there"
        killed = f"it is killed after {self.limit_s:.0f} s"
        return f"worker {self.worker} {lasts}, and {why}: {killed}"


@event("stalled")
class Stalled(NamedTuple):
    """Workers are killed because none of them made progress."""

    limit: str
    seconds: Seconds
    workers: Counts

    def words(self) -> str:
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


@event("host_lost")
class HostLost(NamedTuple):
    """A host is gone with its workers; the others go on, or are relaunched, without it."""

    host: str
    reason: str
    workers: Counts

    def words(self) -> str:
        workers = ", ".join(map(str, self.workers))
        them = f" with its workers ({workers})" if workers else ""
        return f"host {self.host} was lost{them}: {self.reason}"


@event("host_refused")
class HostRefused(NamedTuple):
    """A host answers, but differs from what it was when the job began."""

    host: str
    reason: str

    def words(self) -> str:
        return f"host {self.host} stays out: {self.reason}"


@event("host_back")
class HostBack(NamedTuple):
    """A host that was lost answers again, and takes workers of the next launch."""

    host: str

    def words(self) -> str:
        return f"host {self.host} is back, and takes workers of the next launch"


@event("failure", listed="failures")
class Failure(NamedTuple):
    """A worker's death, as the head saw it."""

    worker: Count
    cause: str
    step: int | None = None
    phase: str | None = None
    fenced: bool = False
    generation: int | None = None
    limit: str | None = None
    """The limit that it was killed for: heartbeat, stall, standstill, unkillable or host."""
    launch_rank: int | None = None
    host: str | None = None
    """The name of its host, if the job has several."""
    core: int | None = None
    stderr: Texts = ()
    traceback: str = ""
    """Of the exception of its script, from the script's own first call on."""
    stacks: str = ""
    samples: Work | None = None
    collateral: bool = False
    """Whether it was killed together with others, and not for anything of its own."""
    job: int | None = None
    """The number of the run's job that it belonged to, from 1; the report adds it."""
    after_s: float | None = None
    """Its time, from the begin of that job; the report adds it."""

    def words(self) -> str:
        place = "" if self.step is None else f" after step {self.step}"
        return f"worker {self.worker} died{place} ({self.cause})"


@event("memory_differs", listed="memory_differences", hidden=["generation"])
class MemoryDiffers(NamedTuple):
    """The state of some workers is not that of the others; without a majority all may be wrong."""

    step: Count
    workers: Counts
    has_majority: bool
    generation: int | None = None

    def words(self) -> str:
        fate = "fenced" if self.has_majority else "no majority shows whose state is right"
        return f"step {self.step} differs in the memory of {named_workers(self.workers)}: {fate}"


@event("pressure", listed="pressures", hidden=["place", "used", "limit"])
class Pressure(NamedTuple):
    """A limit of the host is about to be met."""

    resource: str
    text: str
    place: str | None = None
    used: int | None = None
    limit: int | None = None


@event("preload_failed", is_told=False)
class PreloadFailed(NamedTuple):
    """A module is not loaded before the workers are born."""

    module: str
    message: str


@event("pool_restarted", is_told=False)
class PoolRestarted(NamedTuple):
    """The process that workers are forked from has died, and was started again."""

    cause: str


@event("output_dropped", is_told=False)
class OutputDropped(NamedTuple):
    """Lines of the workers were lost, so many since its agent began."""

    lines: Count


@event("journal_gap", is_told=False)
class JournalGap(NamedTuple):
    """So many lines before this one could not be written."""

    lines: Count


def at_work(where: str, work: Work | None, step: int, *, is_reading: bool) -> str:
    """Return the place in the script, and the batch or microbatch in hand, as far as known."""
    place = f", in {where}" if where else ""
    if is_reading:
        return f"{place}, while it reads the batch of step {step + 1}"
    if work is None:
        return place
    what = "the validation after step" if work["is_validation"] else "step"
    return f"{place}, with microbatch {work['microbatch']} of {what} {work['step']}"


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
