"""The agent's eye on the limits of its host.

It stands between the agent and its supervisor: each event passes through it, and a death that
was the OOM killer's gets its cause on the way.  Its looks cost well under a thousandth of a
core.  A file that cannot be read is a limit that is not watched, and never an error.

Uses that are close to their limit, each told once; pure.

Whether a host's limits suffice for a number of workers, before they start; pure.

What people are told of limits: one sentence each, with figures; pure.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from holdfast.runtime.host.host_limits import HostLimits, OomWitness
from holdfast.runtime.host.memory_forecast import Growth, Trends, Watched
from holdfast.runtime.system.channel import Message
from holdfast.runtime.system.processes import count_open_files, count_threads_of_user
from holdfast.runtime.system.usage import Resource, Usage
from holdfast.runtime.system.witnessed_time import witnessed_s

FULL = 0.9
ROOMY_AGAIN = 0.8


@dataclass(frozen=True, slots=True)
class Fullness:
    """The uses that were told to be above 90 %; each look makes a new one.

    A use is told again only after it has been below 80 %.
    """

    news: tuple[Usage, ...] = ()
    _told: frozenset[tuple[Resource, str]] = frozenset()

    def observe(self, usages: Iterable[Usage]) -> Fullness:
        """Return the fullness after a look at all ``usages``; ``news`` are those to be told."""
        looked_at = list(usages)
        roomy = {_key(usage) for usage in looked_at if usage.share < ROOMY_AGAIN}
        told = self._told - roomy
        news = tuple(u for u in looked_at if u.share > FULL and _key(u) not in told)
        return Fullness(news, told | {_key(usage) for usage in news})


def _key(usage: Usage) -> tuple[Resource, str]:
    return usage.resource, usage.place


_NEEDS: dict[Resource, tuple[int, int]] = {
    Resource.SHARED_MEMORY: (0, 1 << 24),  # Open MPI's btl_sm_segment_size
    Resource.PROCESSES: (12, 6),
    Resource.FILES: (40, 9),
}
"""What the host's processes need by themselves, and for each worker.

Processes and files were counted in jobs of 2, 4 and 8 NumPy workers of one thread.  TensorFlow
starts more threads.
"""


def needed(resource: Resource, workers: int) -> int:
    """Return how much of ``resource`` a launch of ``workers`` takes at least."""
    base, each = _NEEDS[resource]
    return base + each * workers


def find_too_small(usages: Iterable[Usage], workers: int) -> list[Usage]:
    """Return the limits that leave too little for ``workers``."""
    return [
        usage
        for usage in usages
        if usage.resource in _NEEDS and usage.free < needed(usage.resource, workers)
    ]


_REMEDIES = {
    Resource.MEMORY: "use fewer workers or smaller microbatches, or raise the limit",
    Resource.SHARED_MEMORY: "use fewer workers, or make room: a larger /dev/shm (docker: "
    "--shm-size), or another TMPDIR",
    Resource.PROCESSES: "use fewer workers, or raise the limit (pids.max, kernel.pid_max)",
    Resource.FILES: "use fewer workers, or raise the limit (ulimit -n)",
}


def describe_amount(resource: Resource, amount: float) -> str:
    """Return an amount with its unit: ``10.2 GiB``, or a plain number."""
    if not resource.is_bytes:
        return f"{amount:.0f}"
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20)):
        if amount >= size:
            return f"{amount / size:.{1 if amount < 100 * size else 0}f} {unit}"
    return f"{amount / 1024:.0f} KiB"


def describe_time(seconds: float) -> str:
    """Return about how long it takes: ``20 seconds``, ``15 minutes``."""
    if seconds < 100:
        return f"{max(1, round(seconds))} seconds"
    return f"{round(seconds / 60)} minutes"


def describe_growth(usage: Usage, growth: Growth, largest: tuple[int, int] | None) -> str:
    """Return that a limit is about to be met.

    Args:
        usage: the use and its limit.
        growth: how fast it grows.
        largest: the worker that has grown most, and its resident bytes.
    """
    who = ""
    if largest is not None:
        worker, resident = largest
        size = describe_amount(Resource.MEMORY, resident)
        who = f"; worker {worker} has grown most, to {size}"
    return (
        f"{_state(usage)}, {describe_amount(usage.resource, 60 * growth.per_s)} more each minute; "
        f"the limit is met in about {describe_time(growth.left_s)}{who}; asking for a checkpoint"
    )


def describe_fullness(usage: Usage) -> str:
    """Return that a limit is nearly met."""
    return f"{_state(usage)}; at the limit workers die; {_REMEDIES[usage.resource]}"


def describe_need(usage: Usage, workers: int) -> str:
    """Return that a limit is too small for the workers that are about to start."""
    resource = usage.resource
    who = "1 worker needs" if workers == 1 else f"{workers} workers need"
    amount = describe_amount(resource, needed(resource, workers))
    unit = " of" if resource.is_bytes else ""
    free, limit = (describe_amount(resource, size) for size in (usage.free, usage.limit))
    return (
        f"{who} about {amount}{unit} {resource.value}, and {free} of {limit} are free "
        f"({usage.place}): {_REMEDIES[resource]}"
    )


def describe_oom_kill(limit: Usage | None, resident: int | None, *, is_certain: bool) -> str:
    """Return the cause of a death by the OOM killer.

    Args:
        limit: the memory that was closest to its limit, if it is known.
        resident: the most bytes that the process had in memory, if they are known.
        is_certain: whether the process's own control group counted the kill.
    """
    verb = "killed" if is_certain else "probably killed"
    figures = []
    if resident is not None:
        figures.append(f"it had {describe_amount(Resource.MEMORY, resident)} resident")
    if limit is not None:
        size = describe_amount(Resource.MEMORY, limit.limit)
        figures.append(f"{limit.place} has {size}")
    return f"out of memory: {verb} by the kernel's OOM killer" + "".join(
        f", {figure}" for figure in figures
    )


def _state(usage: Usage) -> str:
    used, limit = (describe_amount(usage.resource, amount) for amount in (usage.used, usage.limit))
    return f"{usage.resource.value} of {usage.place}: {used} of {limit} in use"


LOOK_EVERY_S = 2.0
_COUNTED_EACH = 10
"""Files, processes and resident memory are looked at every so many looks."""

_NOT_OURS = "signal SIGKILL"
"""The cause of a death by a SIGKILL that no process of the job has sent."""


class HostWatch:
    """Watches the limits of a host while workers run.

    Args:
        limits: reads them.
        tell: takes events for the supervisor.
        ask_for_save: asks all workers for a checkpoint.
    """

    def __init__(
        self, limits: HostLimits, tell: Callable[[Message], None], ask_for_save: Callable[[], None]
    ) -> None:
        self._limits = limits
        self._tell = tell
        self._ask_for_save = ask_for_save
        self._looked_at = float("-inf")
        self._looks = 0
        self._fullness = Fullness()
        self._trends = Trends()
        self._memory: list[Usage] = []
        self._has_checked = False
        self._witness = OomWitness()

    def begin(self, workers: int) -> None:
        """Take note that a launch begins; the first one is told which limits are too small."""
        self._witness = OomWitness().observe(self._victims(), witnessed_s())
        if self._has_checked:
            return
        self._has_checked = True
        usages = [*self._limits.shared_memory(), *self._limits.processes(), *_files_of_agent()]
        usages += _processes_of_user()
        for usage in find_too_small(usages, workers):
            self._say(usage, describe_need(usage, workers))

    def look(self, now: float, workers: Sequence[Watched]) -> None:
        """Look once, if the last look was long enough ago, and tell what is new."""
        living = [watched for watched in workers if watched.pid is not None]
        if now - self._looked_at < LOOK_EVERY_S or not living:
            return
        self._looked_at = now
        self._looks += 1
        self._witness = self._witness.observe(self._victims(), now)
        self._memory = self._limits.memory()
        self._foresee(living, now)
        if self._looks % _COUNTED_EACH == 1:
            self._count(living)

    def pass_on(self, event: Message) -> None:
        """Tell the supervisor an event; a death by the OOM killer gets its cause and figures."""
        self._tell(self._explained(event) if event.get("cause") == _NOT_OURS else event)

    def _explained(self, event: Message) -> Message:
        kills = self._limits.oom_kills()
        self._witness = self._witness.observe(self._victims(), witnessed_s())
        claimed = self._witness.claim()
        if claimed is None:
            return event
        self._witness = claimed
        limit = min(
            self._memory or self._limits.memory(), key=lambda usage: usage.free, default=None
        )
        is_certain = kills is not None and kills.are_ours
        words = describe_oom_kill(limit, event.get("peak_bytes"), is_certain=is_certain)
        return {**event, "cause": words}

    def _victims(self) -> int | None:
        kills = self._limits.oom_kills()
        return None if kills is None else kills.count

    def _foresee(self, living: Sequence[Watched], now: float) -> None:
        """Tell a growth that comes to a limit, and have a checkpoint made before."""
        if not self._trends.is_settled(living):
            return
        told = self._trends.observe([*self._memory, *self._limits.shared_memory()], now)
        for usage, forecast in told:
            growth = forecast.growth
            assert growth is not None
            largest = self._trends.largest(living) if usage.resource is Resource.MEMORY else None
            self._ask_for_save()
            self._say(
                usage,
                describe_growth(usage, growth, largest),
                per_minute=round(60 * growth.per_s),
                left_s=round(growth.left_s, 1),
            )

    def _count(self, living: Sequence[Watched]) -> None:
        usages = [*self._limits.shared_memory(), *self._limits.processes(), *_files_of_agent()]
        usages += _files_of(living)
        self._fullness = self._fullness.observe(usages)
        for usage in self._fullness.news:
            self._say(usage, describe_fullness(usage))

    def _say(self, usage: Usage, text: str, **figures: float) -> None:
        self._tell(
            {
                "kind": "pressure",
                "resource": usage.resource.value,
                "place": usage.place,
                "used": usage.used,
                "limit": usage.limit,
                **figures,
                "text": text,
            }
        )


def _files_of_agent() -> list[Usage]:
    return _files("this host's agent", os.getpid())


def _processes_of_user() -> list[Usage]:
    threads = count_threads_of_user(os.getuid())
    return [] if threads is None else [Usage(Resource.PROCESSES, "your user", *threads)]


def _files_of(living: Sequence[Watched]) -> list[Usage]:
    found = [_files(f"worker {w.worker}", w.pid) for w in living if w.pid is not None]
    return [usage for usages in found for usage in usages]


def _files(place: str, pid: int) -> list[Usage]:
    files = count_open_files(pid)
    return [] if files is None else [Usage(Resource.FILES, place, *files)]
