"""Strikes reach processes and places, wait for their victims, and are undone."""

from __future__ import annotations

import signal
from collections.abc import Mapping

import pytest

from holdfast.runtime.tools.strike import Target, parse_plan, parse_strike
from holdfast.runtime.tools.striker import WAITS_FOR_VICTIM_S, JobTraces, Striker


class FakeTraces(JobTraces):
    """Processes that only exist here, and the signals that they got."""

    def __init__(self, alive: Mapping[int, str]) -> None:
        self.alive = dict(alive)
        self.sent: list[tuple[int, signal.Signals]] = []

    def processes(self) -> dict[int, str]:
        return self.alive

    def signal(self, pid: int, *numbers: signal.Signals) -> bool:
        if pid in self.alive:
            self.sent += [(pid, number) for number in numbers]
        return pid in self.alive


class FakePlace:
    def __init__(self) -> None:
        self.is_full = False

    def fill(self) -> None:
        self.is_full = True

    def release(self) -> None:
        self.is_full = False


@pytest.fixture
def traces() -> FakeTraces:
    # Numbers that no process has: the kernel's largest is 2**22.
    return FakeTraces({2**22 + 1: "holdfast-w3", 2**22 + 2: "holdfast-w7"})


def test_index_chooses_among_the_living(traces: FakeTraces) -> None:
    striker = Striker(traces, {})
    striker.order(parse_strike("kill worker #5 at 1s"), 1.0)

    (struck,) = striker.look(1.0, 9, None)

    assert traces.sent == [(2**22 + 2, signal.SIGKILL)]  # 5 modulo 2: the second
    assert (struck.victim, struck.step) == (f"{2**22 + 2} holdfast-w7", 9)


def test_stopped_process_is_woken_after_its_time(traces: FakeTraces) -> None:
    striker = Striker(traces, {})
    striker.order(parse_strike("stop+cont worker at 1s for 2s"), 1.0)

    striker.look(1.0, 0, None)
    striker.look(2.9, 0, None)
    assert [number for _, number in traces.sent] == [signal.SIGSTOP]
    striker.look(3.0, 0, None)

    assert [number for _, number in traces.sent] == [signal.SIGSTOP, signal.SIGCONT]
    assert striker.is_done


def test_victim_is_waited_for(traces: FakeTraces) -> None:
    striker = Striker(traces, {})
    striker.order(parse_strike("term agent at 1s"), 1.0)

    assert striker.look(1.0, 0, None) == []
    traces.alive[2**22 + 3] = "holdfast-agent"

    assert len(striker.look(2.0, 0, None)) == 1
    assert traces.sent == [(2**22 + 3, signal.SIGTERM)]


def test_victim_that_never_comes_is_missed(traces: FakeTraces) -> None:
    striker = Striker(traces, {})
    striker.order(parse_strike("term agent at 1s"), 1.0)

    assert striker.look(1.0 + WAITS_FOR_VICTIM_S, 0, None) == []
    (struck,) = striker.look(1.1 + WAITS_FOR_VICTIM_S, 0, None)

    assert not struck.has_hit
    assert traces.sent == []


def test_supervisor_is_the_process_that_was_started(traces: FakeTraces) -> None:
    striker = Striker(traces, {})
    striker.order(parse_strike("kill supervisor at 1s"), 1.0)

    striker.look(1.0, 0, 2**22 + 1)

    assert traces.sent == [(2**22 + 1, signal.SIGKILL)]


def test_place_is_full_for_its_time(traces: FakeTraces) -> None:
    place = FakePlace()
    striker = Striker(traces, {Target.STDERR: place})
    striker.order(parse_strike("full stderr at 1s for 2s"), 1.0)

    striker.look(1.0, 0, None)
    assert place.is_full
    striker.look(3.0, 0, None)

    assert not place.is_full


def test_end_undoes_everything_and_notes_what_came_too_late(traces: FakeTraces) -> None:
    place = FakePlace()
    striker = Striker(traces, {Target.STDERR: place})
    striker.order(parse_strike("full stderr at 1s"), 1.0)
    striker.order(parse_strike("kill agent at 1s"), 1.0)
    striker.look(1.0, 0, None)

    striker.end(2.0, 4)

    assert not place.is_full
    assert [struck.has_hit for struck in striker.struck] == [True, False]
    assert striker.is_done


def test_process_that_is_stopped_for_good_is_not_woken(traces: FakeTraces) -> None:
    striker = Striker(traces, {})
    striker.order(parse_strike("stop worker at 1s"), 1.0)

    striker.look(1.0, 0, None)
    striker.end(99.0, 0)

    assert [number for _, number in traces.sent] == [signal.SIGSTOP]


def test_process_that_is_gone_when_its_signal_comes_is_no_victim(traces: FakeTraces) -> None:
    striker = Striker(traces, {})
    striker.order(parse_strike("kill supervisor at 1s"), 1.0)

    assert striker.look(1.0, 0, 2**22 + 9) == []
    (struck,) = striker.look(2.0, 0, 2**22 + 1)

    assert struck.now == 2.0


def test_place_that_was_not_mounted_is_never_full(traces: FakeTraces) -> None:
    striker = Striker(traces, {Target.STDERR: FakePlace()})
    striker.order(parse_strike("full disk at 1s"), 1.0)

    striker.look(1.0, 0, None)
    striker.end(2.0, 0)

    assert [struck.has_hit for struck in striker.struck] == [False]


def test_stderr_of_the_newest_job_is_filled_and_that_of_the_last_one_released(
    traces: FakeTraces,
) -> None:
    first, second = FakePlace(), FakePlace()
    striker = Striker(traces, {Target.STDERR: first})
    striker.order(parse_strike("full stderr at 1s for 2s"), 1.0)
    striker.look(1.0, 0, None)

    striker.use(Target.STDERR, second)
    striker.order(parse_strike("full stderr at 2s for 5s"), 2.0)
    striker.look(3.0, 0, None)

    assert (first.is_full, second.is_full) == (False, True)


def test_strikes_that_wait_and_strikes_that_never_came_are_told_as_missed(
    traces: FakeTraces,
) -> None:
    striker = Striker(traces, {})
    striker.order(parse_strike("kill agent at 1s"), 1.0)
    striker.look(1.0, 0, None)

    striker.end(5.0, 12, parse_plan("kill pool on failure"))

    told = [(str(s.strike), s.now, s.step, s.victim) for s in striker.struck]
    assert told == [("kill agent at 1s", 5.0, 12, None), ("kill pool on failure", 5.0, 12, None)]
