"""What the supervisor says and writes of workers that stand still or die, with the evidence.

A line on stderr is short: the last lines of a worker have been there already.  The journal
has all of it: limit, last lines, stacks, samples in hand.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.runtime.evidence.repeats import repeated_places, repeated_samples, repeated_step
from holdfast.runtime.system.channel import Message
from holdfast.runtime.system.own_process import usable_cores

_KEPT = 1000
"""So many newest deaths are compared with each other."""

_COPIED = (
    "step",
    "phase",
    "fenced",
    "generation",
    "limit",
    "collateral",
    "core",
    "stderr",
    "stacks",
    "samples",
    "traceback",
)


def fenced_line(message: Message) -> str:
    """Return the line of a worker that is killed because it stands still."""
    worker, seconds, step = message["worker"], message["silent_s"], message["step"]
    if message.get("limit") == "stall":
        how = f"has kept the others waiting for {seconds:.1f} s"
    else:
        how = f"has been silent for {seconds:.1f} s"
    return f"worker {worker} {how} after step {step}{_at_work(message)}: killing it"


def suspected_line(message: Message) -> str:
    """Return the line of a worker that will be killed, unless it comes on."""
    worker, seconds, step = message["worker"], message["seconds"], message["step"]
    place = _at_work(message)
    begin = f"worker {worker} has not come on for {seconds:.0f} s after step {step}{place}"
    limit_s = message["limit_s"]
    if limit_s is None:
        return f"{begin}, and no other worker waits for it"
    why = "all others wait for it" if message["is_awaited"] else "others were killed there"
    return f"{begin}, and {why}: it is killed after {limit_s:.0f} s"


def stalled_line(message: Message) -> str:
    """Return the line of a launch that is ended because none of its workers comes on."""
    count, seconds = len(message["workers"]), message["seconds"]
    if message["limit"] == "reading":
        return (
            f"none of {count} workers got a byte of the checkpoints for {seconds:.0f} s, so their "
            "disk hangs: ending the launch (nothing is known to be damaged)"
        )
    if message["limit"] == "leaving":
        return (
            f"the scripts of all workers have come to their end, but {count} of them did not leave "
            f"for {seconds:.0f} s: killed (nothing was left to do)"
        )
    return (
        f"all {count} workers have waited for each other inside MPI for {seconds:.1f} s: "
        "ending the launch"
    )


def died_line(message: Message, cause: str) -> str:
    """Return the line of a worker that is dead, with the place in the script if it is known."""
    return f"worker {message['worker']} died after step {message['step']} ({cause}){_in(message)}"


def cause_of(error: Message) -> str:
    """Return the words of a worker's own report of its error."""
    return f"{error['type']}: {error['message']}"


def _at_work(message: Message) -> str:
    """Return the place in the script, and the batch or microbatch in hand, as far as known."""
    work = message.get("samples")
    if message.get("is_reading"):
        return f"{_in(message)}, while it reads the batch of step {message['step'] + 1}"
    if work is None:
        return _in(message)
    what = "the validation after step" if work["is_validation"] else "step"
    return f"{_in(message)}, with microbatch {work['microbatch']} of {what} {work['step']}"


def _in(message: Message) -> str:
    where = message.get("where")
    return f", in {where}" if where else ""


class DeathLog:
    """The deaths of a job, and what they have in common."""

    def __init__(self) -> None:
        self._places: dict[int, int] = {}
        self._ranks = 1
        self._failures: list[Message] = []
        self._named: set[tuple[str, int]] = set()

    def launching(self, workers: Sequence[int]) -> None:
        """Take note of the ranks of a launch's workers."""
        self._ranks = max(self._ranks, len(workers))
        self._places.update({worker: rank for rank, worker in enumerate(workers)})

    def died(self, message: Message, cause: str) -> Message:
        """Return the journal's fields of a death, and remember it."""
        worker = message["worker"]
        fields = {name: message[name] for name in _COPIED if name in message}
        fields |= {"worker": worker, "cause": cause, "launch_rank": self._places.get(worker)}
        self._failures = [*self._failures[1 - _KEPT :], fields]
        return fields

    def suspicions(self) -> list[str]:
        """Return a sentence for each place that has become suspicious; each only once."""
        places = repeated_places(self._failures, ranks=self._ranks, cores=usable_cores())
        fresh = [place for place in places if (place.kind, place.number) not in self._named]
        self._named |= {(place.kind, place.number) for place in fresh}
        return [f"{place}, far more than the others: is the machine sound?" for place in fresh]

    def in_common(self) -> list[str]:
        """Return sentences about the step and the samples that the newest deaths have in common."""
        found = (repeated_step(self._failures), repeated_samples(self._failures))
        return [str(sight) for sight in found if sight is not None]
