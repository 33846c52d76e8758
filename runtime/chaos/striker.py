"""Strikes from outside: signals to processes of a job, and places that take nothing.

A strike whose victim is not there yet waits for it, because a job that starts has no workers.
What lasts for a time is undone by ``look``.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from holdfast.runtime.chaos.job_traces import JobTraces
from holdfast.runtime.chaos.strike import Kind, Strike, Target
from holdfast.runtime.chaos.victims import choose_victim

WAITS_FOR_VICTIM_S = 10.0
"""A job without the victim for so long has none."""

SIGNALS = {
    Kind.KILL: signal.SIGKILL,
    Kind.STOP: signal.SIGSTOP,
    Kind.STOP_CONT: signal.SIGSTOP,
    Kind.TERM: signal.SIGTERM,
}


class Place(Protocol):
    """Something that can take nothing for a while."""

    def fill(self) -> None:
        """Take nothing from now on."""

    def release(self) -> None:
        """Take everything again."""


@dataclass(frozen=True, slots=True)
class Struck:
    """A strike that was carried out, or missed; ``now`` is in monotonic seconds."""

    strike: Strike
    now: float
    step: int
    victim: str | None

    @property
    def has_hit(self) -> bool:
        """Whether there was a victim."""
        return self.victim is not None


@dataclass(frozen=True, slots=True)
class _Waiting:
    strike: Strike
    since: float


class Striker:
    """Carries out the strikes on one job."""

    def __init__(self, traces: JobTraces, places: Mapping[Target, Place]) -> None:
        self._traces = traces
        self._places = dict(places)
        self._waiting: list[_Waiting] = []
        self._undone: list[tuple[float, Callable[[], object]]] = []
        self.struck: list[Struck] = []

    @property
    def is_done(self) -> bool:
        """Whether no strike waits for its victim or its end."""
        return not self._waiting and not self._undone

    def use(self, target: Target, place: Place) -> None:
        """Fill another place from now on: each job of a run has a stderr of its own."""
        self._places[target] = place

    def order(self, strike: Strike, now: float) -> None:
        """Take an order; the next ``look`` carries it out."""
        self._waiting.append(_Waiting(strike, now))

    def look(self, now: float, step: int, supervisor: int | None) -> list[Struck]:
        """Undo what is over, and strike where there is a victim; return the strikes."""
        for due, undo in [over for over in self._undone if over[0] <= now]:
            self._undone.remove((due, undo))
            undo()
        done: list[Struck] = []
        for waiting in list(self._waiting):
            victim = self._carry_out(waiting.strike, now, supervisor)
            if victim is not None or now - waiting.since > WAITS_FOR_VICTIM_S:
                self._waiting.remove(waiting)
                done.append(Struck(waiting.strike, now, step, victim))
        self.struck += done
        return done

    def end(self, now: float, step: int, unstruck: Iterable[Strike] = ()) -> None:
        """Undo everything that lasts, and note the strikes that came too late, or never."""
        for _, undo in self._undone:
            undo()
        self._undone.clear()
        missed = [*(waiting.strike for waiting in self._waiting), *unstruck]
        self.struck += [Struck(strike, now, step, None) for strike in missed]
        self._waiting.clear()

    def _carry_out(self, strike: Strike, now: float, supervisor: int | None) -> str | None:
        """Strike; return a name for the victim, None if there is none."""
        place = self._places.get(strike.blow.target)
        if place is not None:
            place.fill()
            self._undo_later(now, strike, place.release)
            return strike.blow.target.value
        if strike.blow.kind is Kind.FULL:
            return None
        processes = self._traces.processes()
        pid = choose_victim(strike.blow.target, strike.index, processes, supervisor)
        if pid is None or not self._traces.signal(pid, SIGNALS[strike.blow.kind]):
            return None
        if strike.blow.kind is Kind.STOP_CONT:
            self._undo_later(now, strike, lambda: self._traces.signal(pid, signal.SIGCONT))
        return f"{pid} {processes.get(pid, '')}".strip()

    def _undo_later(self, now: float, strike: Strike, undo: Callable[[], object]) -> None:
        self._undone.append((now + (strike.for_s or 0.0), undo))
