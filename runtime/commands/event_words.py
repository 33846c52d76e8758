"""The events of a journal that people want to hear of, in words."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from holdfast.runtime.progress import words
from holdfast.runtime.run.journal import Record


@dataclass(frozen=True, slots=True)
class ToldEvent:
    """One event; ``time`` is in seconds since 1970."""

    time: float
    text: str


def told_events(records: Sequence[Record], most: int) -> tuple[ToldEvent, ...]:
    """Return the newest ``most`` events that are worth a line, the newest last."""
    found: list[ToldEvent] = []
    for record in reversed(records):
        say = _WORDS.get(record["event"])
        text = "" if say is None else " ".join(say(record).split())
        if text and text not in {event.text for event in found[-1:]}:  # workers tell some too
            found.append(ToldEvent(float(record["time"]), text))
        if len(found) == most:
            break
    return tuple(reversed(found))


def _started(record: Record) -> str:
    script = str(record.get("script", "a script")).rpartition("/")[2]
    return f"started {script} on {words.count(record['workers'], 'worker')}"


def _recovered(record: Record) -> str:
    lost, left = (_named(record[name]) for name in ("lost", "survivors"))
    return f"recovered at step {record['step']} without {lost}; {left} left"


def _died(record: Record) -> str:
    step = record.get("step")
    place = "" if step is None else f" after step {step}"
    return f"worker {record['worker']} died{place} ({record['cause']})"


def _named(workers: Iterable[int]) -> str:
    """Return workers with their ids."""
    ids = [str(worker) for worker in workers]
    return f"{'worker' if len(ids) == 1 else 'workers'} {', '.join(ids) or 'none'}"


def _text(record: Record) -> str:
    return str(record.get("text", record["event"]))


def _unread(record: Record) -> str:
    waited = words.duration(record["seconds"])
    return f"gave up the checkpoint of step {record['step']} after {waited}: {record['reason']}"


_WORDS: Mapping[str, Callable[[Record], str]] = {
    "agent_killed": lambda r: f"the agent was killed: {r.get('reason')}",
    "checkpoint_failed": lambda r: f"the checkpoint of step {r['step']} failed: {r['reason']}",
    "completed": lambda r: f"completed step {r['step']}",
    "deadline": _text,
    "failure": _died,
    "hung_up": lambda _: "SIGHUP: the job goes on without its terminal",
    "job_ended": lambda r: f"ended with exit code {r['exit_code']}: {r['reason']}",
    "job_started": _started,
    "memory_differs": lambda r: f"the memory of {_named(r['workers'])} differs at step {r['step']}",
    "mended": lambda r: f"mended step {r['step']} from {r['holder']}",
    "paused": lambda r: f"the job stood still for {words.duration(r['seconds'])}",
    "pressure": _text,
    "recovery": _recovered,
    "rejected": lambda r: f"rejected the checkpoint of step {r['step']}: {r['reason']}",
    "renewing": lambda r: f"renewing the launch: {r['reason']}",
    "relaunch": lambda r: f"relaunched {words.count(len(r['workers']), 'worker')}: {r['reason']}",
    "restored": lambda r: f"restored step {r['step']}",
    "stalled": lambda r: f"{_named(r['workers'])} stood still for {words.duration(r['seconds'])}",
    "stopped": lambda r: f"stopped at step {r['step']} with a checkpoint",
    "store_removed": lambda r: f"{r['directory']} was removed, or its disk unmounted",
    "supervisor_failed": lambda r: f"the supervisor failed: {r.get('reason')}",
    "suspected": lambda r: f"worker {r['worker']} has not come on after step {r['step']}",
    "suspicion": _text,
    "taken_over": lambda _: "another supervisor has taken the job over",
    "unreadable": _unread,
    "warning": _text,
}
"""Steps, epochs, worlds and single checkpoints are not among them: the status has them."""
