"""Threads that take turns, so that a simulation is the same every time.

One thread runs at a time.  It hands over only here, in ``pause`` and ``wait_until``, and a
seeded generator draws the next thread.  So one seed is one order of events on every
machine.  If no thread can go on, that is a deadlock.  It is seen at once, and the error
tells the condition that each thread waits for.

A member can be killed: its next call here raises ``Killed``, which ends its
thread without a word to the others, as a SIGKILL would.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

_Result = TypeVar("_Result")

_SWITCH_PROBABILITY = 0.3
"""The chance that a pause hands over: enough to mix the members, and cheaper than always."""


class Killed(BaseException):
    """Ends the thread of a killed member; not an ``Exception``, so that nothing stops it."""


class Deadlock(AssertionError):
    """Every member waits for another one."""


@dataclass(slots=True)
class _Member(Generic[_Result]):
    """One thread, and the condition that it waits for."""

    dies_at: int | None
    turn: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    moments: int = 0
    can_go_on: Callable[[], bool] | None = None
    waits_for: str = ""
    is_killed: bool = False
    has_ended: bool = False
    result: _Result | None = None
    error: BaseException | None = None

    @property
    def is_ready(self) -> bool:
        """Whether it could run now."""
        return not self.has_ended and (self.is_killed or self.can_go_on is None or self.can_go_on())


class Turns(Generic[_Result]):
    """Runs programs in threads, one at a time.

    Args:
        members: number of programs.
        seed: of the order of turns.
        deaths: members that die, with the moment (calls of ``pause`` and
            ``wait_until``, from 1) at which they do.
    """

    def __init__(
        self, members: int, *, seed: int = 0, deaths: Mapping[int, int] | None = None
    ) -> None:
        self._dice = random.Random(seed)
        fatal = deaths or {}
        self._members = [_Member[_Result](fatal.get(index)) for index in range(members)]
        self._running = 0
        self._deadlock = ""
        self._all_ended = threading.Event()

    @property
    def me(self) -> int:
        """The member whose turn it is."""
        return self._running

    def coin(self) -> bool:
        """Return a seeded yes or no, for what a real library leaves open."""
        return self._dice.random() < 0.5

    def is_gone(self, member: int) -> bool:
        """Return whether a member was killed or has ended."""
        return self._members[member].is_killed or self._members[member].has_ended

    def kill(self, member: int) -> None:
        """Let a member's next call raise ``Killed``."""
        self._members[member].is_killed = True

    def run(self, programs: Sequence[Callable[[], _Result]]) -> list[_Result | None]:
        """Run all programs to their ends; return their results, None for the killed.

        Raises:
            Deadlock: at some point no member could go on.
            BaseException: the first error of a program; it counts as its death.
        """
        threads = [
            threading.Thread(target=self._live, args=(index, program), daemon=True)
            for index, program in enumerate(programs)
        ]
        for thread in threads:
            thread.start()
        self._hand_over()
        self._all_ended.wait()
        for thread in threads:
            thread.join()
        errors = [member.error for member in self._members if member.error is not None]
        for error in sorted(errors, key=lambda error: isinstance(error, Deadlock)):
            raise error
        return [member.result for member in self._members]

    def pause(self) -> None:
        """Let others run, perhaps; a moment at which this member may die."""
        self._live_through_a_moment()
        if self._dice.random() < _SWITCH_PROBABILITY:
            self._switch()

    def wait_until(self, can_go_on: Callable[[], bool], waits_for: str) -> None:
        """Let others run until ``can_go_on()``; a moment at which this member may die."""
        self._live_through_a_moment()
        if can_go_on():
            return
        member = self._members[self._running]
        member.can_go_on, member.waits_for = can_go_on, waits_for
        self._switch()
        member.can_go_on = None

    def _live_through_a_moment(self) -> None:
        member = self._members[self._running]
        member.moments += 1
        if member.moments == member.dies_at:
            member.is_killed = True
        self._check()

    def _check(self) -> None:
        if self._members[self._running].is_killed:
            raise Killed
        if self._deadlock:
            raise Deadlock(self._deadlock)

    def _switch(self) -> None:
        """Hand over, and return when it is this member's turn again."""
        member = self._members[self._running]
        self._hand_over()
        member.turn.acquire()
        self._check()

    def _hand_over(self) -> None:
        """Draw the member that goes on."""
        living = [index for index, member in enumerate(self._members) if not member.has_ended]
        if not living:
            self._all_ended.set()
            return
        ready = [index for index in living if self._members[index].is_ready]
        if not ready:
            waits = (f"{index} waits for {self._members[index].waits_for}" for index in living)
            self._deadlock = self._deadlock or "no member can go on: " + "; ".join(waits)
            ready = living
        self._running = self._dice.choice(ready)
        self._members[self._running].turn.release()

    def _live(self, index: int, program: Callable[[], _Result]) -> None:
        """Run one program in its thread."""
        member = self._members[index]
        member.turn.acquire()
        try:
            self._check()
            member.result = program()
        except Killed:
            pass
        except BaseException as error:  # handed to the caller of run
            member.error = error
        member.has_ended = True
        self._hand_over()
