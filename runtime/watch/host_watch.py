"""The agent's eye on the limits of its host.

It stands between the agent and its supervisor: each event passes through it, and a death that
was the OOM killer's gets its cause on the way.  Its looks cost well under a thousandth of a
core.  A file that cannot be read is a limit that is not watched, and never an error.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from holdfast.runtime.system.channel import Message
from holdfast.runtime.system.processes import count_open_files, count_threads_of_user
from holdfast.runtime.system.witnessed_time import witnessed_s
from holdfast.runtime.watch import sentences
from holdfast.runtime.watch.fullness import Fullness
from holdfast.runtime.watch.host_limits import HostLimits
from holdfast.runtime.watch.oom_witness import OomWitness
from holdfast.runtime.watch.start_check import find_too_small
from holdfast.runtime.watch.trends import Trends, Watched
from holdfast.runtime.watch.usage import Resource, Usage

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
            self._say(usage, sentences.describe_need(usage, workers))

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
        words = sentences.describe_oom_kill(limit, event.get("peak_bytes"), is_certain=is_certain)
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
                sentences.describe_growth(usage, growth, largest),
                per_minute=round(60 * growth.per_s),
                left_s=round(growth.left_s, 1),
            )

    def _count(self, living: Sequence[Watched]) -> None:
        usages = [*self._limits.shared_memory(), *self._limits.processes(), *_files_of_agent()]
        usages += _files_of(living)
        self._fullness = self._fullness.observe(usages)
        for usage in self._fullness.news:
            self._say(usage, sentences.describe_fullness(usage))

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
