"""What stops a job or asks it for a checkpoint: its time, and signals, each of them once."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Collection, Iterable

import pytest

from holdfast.runtime.batch.schedulers import TimeDue, TimeLimit
from holdfast.runtime.head.orders import STOPS, HeardSignals, TimeLimits
from holdfast.runtime.system.codec import from_plain, to_plain

HUP, INT, TERM = signal.SIGHUP, signal.SIGINT, signal.SIGTERM
USR1, USR2 = signal.SIGUSR1, signal.SIGUSR2

Step = Callable[[TimeLimits], object]


def limits_of() -> TimeLimits:
    """Return the limits of a batch job of an hour."""
    return TimeLimits(TimeLimit(0.0, 3600.0, "squeue"), is_batch=True)


def deadline(limits: TimeLimits) -> object:
    return limits.poll(3595.0)


def saved(limits: TimeLimits) -> object:
    return limits.saved({"step": 5, "seconds": 100.0, "step_seconds": 20.0})


def heard(number: signal.Signals, now: float = 1000.0) -> Step:
    return lambda limits: limits.repeats(number, is_stopping=False, now=now)


@pytest.mark.parametrize(
    ("before", "number", "is_stopping", "repeats"),
    [
        ([deadline], TERM, True, True),
        ([heard(USR2)], TERM, True, True),
        ([heard(USR2), heard(TERM)], TERM, True, False),
        ([heard(USR2)], INT, True, False),
        ([heard(TERM)], TERM, True, False),
        ([deadline], USR2, True, True),
        ([heard(TERM)], USR2, True, True),
        ([], TERM, False, False),
    ],
    ids=[
        "TERM after the deadline", "TERM after USR2", "TERM twice", "Ctrl-C", "TERM after TERM",
        "USR2 after the deadline", "USR2 after TERM", "the first",
    ],
)  # fmt: skip
def test_warning_after_a_warning_does_not_cut_the_save_short(
    before: list[Step], number: signal.Signals, *, is_stopping: bool, repeats: bool
) -> None:
    limits = limits_of()
    for step in before:
        step(limits)

    assert limits.repeats(number, is_stopping=is_stopping, now=3599.0) is repeats


def test_each_moment_is_told_once() -> None:
    limits = limits_of()

    seen = [limits.poll(now) for now in (0.0, 3580.0, 3581.0, 3591.0, 3592.0)]

    assert seen == [TimeDue.NOTHING, TimeDue.SAVE, TimeDue.NOTHING, TimeDue.END, TimeDue.NOTHING]


def test_job_that_only_has_to_hurry_has_not_hit_its_limit() -> None:
    limits = limits_of()

    assert limits.poll(3400.0) is TimeDue.HURRY
    assert not limits.hit_limit


def test_longer_saves_bring_the_moment_forward() -> None:
    limits = limits_of()
    limits.saved({"step": 5, "seconds": 100.0, "step_seconds": 20.0})

    assert limits.poll(3360.0) is TimeDue.SAVE


def test_save_of_unknown_length_moves_no_moment() -> None:
    limits = limits_of()
    limits.saved({"step": 5})

    assert limits == limits_of()


def test_clock_that_is_set_moves_no_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time()
    limits = TimeLimits()
    monkeypatch.setattr(time, "time", lambda: now + 7200.0)

    assert abs(limits.now - now) < 60.0
    assert abs(from_plain(TimeLimits, to_plain(limits)).now - now) < 60.0  # in another head


def test_outside_batch_systems_signals_keep_their_meaning() -> None:
    limits = TimeLimits()

    assert limits.stops == STOPS
    assert not limits.repeats(TERM, is_stopping=True, now=0.0)
    assert limits.poll(1e12) is TimeDue.NOTHING
    assert limits.words == ""
    assert set(limits_of().stops) == {*STOPS, USR1, USR2}


def test_end_of_the_time_is_told_with_who_says_so() -> None:
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(3600.0))

    assert limits_of().words == f"time until {at} (squeue)"


@pytest.mark.parametrize(
    "steps",
    [[], [deadline], [heard(USR2), heard(TERM)], [saved, deadline], [heard(TERM)]],
    ids=["nothing yet", "deadline", "cancelled", "saved", "ordered"],
)
def test_next_head_minds_the_limits_as_they_were(steps: list[Step]) -> None:
    """It neither tells of a moment again, nor forgets an order."""
    limits = limits_of()
    for step in steps:
        step(limits)

    found = from_plain(TimeLimits, json.loads(json.dumps(to_plain(limits))))

    assert found == limits
    for now, number in ((3580.0, USR2), (3599.0, TERM), (3599.5, TERM)):
        assert found.poll(now) == limits.poll(now)
        asked = {"is_stopping": True, "now": now}
        assert found.repeats(number, **asked) == limits.repeats(number, **asked)
        assert found.hit_limit == limits.hit_limit


class Heard:
    """The signals that were new so far, and the time."""

    def __init__(self, stops: Collection[signal.Signals] = STOPS) -> None:
        self.now = 100.0
        self.new: list[int] = []
        self._signals = HeardSignals(stops, lambda: self.now)

    def take(self, numbers: Iterable[int]) -> None:
        self.new += self._signals.new_in(numbers)


@pytest.mark.parametrize(
    ("numbers", "apart_s", "new"),
    [
        ([TERM, TERM], 0.9, [TERM]),  # a scheduler tells the process and its group
        ([TERM] * 3, 1.1, [TERM] * 3),
        ([INT] * 2, 0.3, [INT] * 2),  # a key that is pressed twice
        ([TERM, INT], 0.0, [TERM, INT]),
        ([signal.SIGXCPU] * 10, 1.0, [signal.SIGXCPU]),
        ([USR2] * 2, 0.0, [USR2] * 2),
        ([HUP] * 2, 0.0, [HUP] * 2),
    ],
    ids=["at once", "later", "key", "another signal", "processor time", "save", "terminal"],
)
def test_signal_is_one_order_or_several(numbers: list[int], apart_s: float, new: list[int]) -> None:
    hearing = Heard()
    for number in numbers:
        hearing.take([number, number])
        hearing.now += apart_s

    assert hearing.new == new


def test_signal_of_client_and_head_is_one_order() -> None:
    """A batch system tells both, and each of them passes it on."""
    hearing = Heard()

    hearing.take(bytes([TERM]))
    hearing.now += 0.5
    hearing.take([TERM])

    assert hearing.new == [TERM]


def test_signal_that_stops_under_a_batch_system_alone_is_one_order_there() -> None:
    hearing = Heard((TERM, USR2))

    hearing.take([USR2])
    hearing.take([USR2])

    assert hearing.new == [USR2]
