"""What stops a job or asks it for a checkpoint, as transcripts: its time, and signals, each once.

A transcript names signals, ``TERM@3600.5`` with its second, and ``limit``, the end of the time.
After each, the limits travel to another head, which neither tells of a moment again nor forgets.
"""

from __future__ import annotations

import json
import signal
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.recovery.event import CheckpointCommitted
from holdfast.recovery.world import WorkerId
from holdfast.runtime.head.orders import (
    LEAVE_S,
    STOPS,
    UNMEASURED_S,
    HeardSignals,
    TimeDue,
    TimeLimit,
    TimeLimits,
)
from holdfast.runtime.system.codec import from_plain, to_plain

TERM, USR1, USR2 = signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2
HOUR = TimeLimit(0.0, 3600.0, "squeue")
NOTHING, HURRY, SAVE, END = TimeDue.NOTHING, TimeDue.HURRY, TimeDue.SAVE, TimeDue.END


def limits_of() -> TimeLimits:
    """Return the limits of a batch job of an hour."""
    return TimeLimits(HOUR, is_batch=True)


def after(limits: TimeLimits, transcript: str, *, is_stopping: bool = False) -> TimeLimits:
    """Return the limits after a transcript, as the next head has them."""
    for line in transcript.split():
        name, _, at = line.partition("@")
        if name == "limit":
            limits.poll(3595.0)
        else:
            number = signal.Signals[f"SIG{name}"]
            limits.repeats(number, is_stopping=is_stopping, now=float(at or 1000.0))
        limits = from_plain(TimeLimits, json.loads(json.dumps(to_plain(limits))))
    return limits


@pytest.mark.parametrize(
    ("before", "name", "is_stopping", "repeats", "hit_limit"),
    [
        ("", "TERM", False, False, False),
        ("limit", "TERM", True, True, True),
        ("USR2", "TERM", True, True, True),
        ("USR2 TERM@3599", "TERM", True, False, False),
        ("USR2", "INT", True, False, True),
        ("TERM", "TERM", True, False, False),
        ("limit", "USR2", True, True, True),
        ("TERM", "USR2", True, True, False),
        ("", "USR1", False, False, True),
        ("USR2 TERM", "USR2", True, True, False),  # cancelled while it saves
        ("TERM limit", "USR2", True, True, False),
        ("", "INT", False, False, False),
    ],
)
def test_warning_after_a_warning_does_not_cut_the_save_short(
    before: str, name: str, *, is_stopping: bool, repeats: bool, hit_limit: bool
) -> None:
    limits = after(limits_of(), before)

    number = signal.Signals[f"SIG{name}"]
    assert limits.repeats(number, is_stopping=is_stopping, now=3600.0) is repeats
    assert limits.hit_limit is hit_limit


@pytest.mark.parametrize(
    ("saved", "looks", "due"),
    [
        ((), [0.0, 3580.0, 3581.0, 3591.0, 3592.0], [NOTHING, SAVE, NOTHING, END, NOTHING]),
        ((), [3400.0], [HURRY]),
        ((100.0, 20.0), [3360.0], [SAVE]),
    ],
    ids=["each moment once", "it only has to hurry", "longer saves bring it forward"],
)
def test_moments_are_told_when_they_have_come(
    saved: tuple[float, ...], looks: list[float], due: list[TimeDue]
) -> None:
    limits = limits_of()
    limits.saved(CheckpointCommitted(WorkerId(0), 5, *saved))

    assert [limits.poll(now) for now in looks] == due
    assert limits.hit_limit is (due != [HURRY])


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
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(3600.0))
    assert limits_of().words == f"time until {at} (squeue)"


@pytest.mark.parametrize(
    ("names", "apart_s", "new"),
    [
        ("TERM TERM", 0.9, "TERM"),  # a scheduler tells the process and its group
        ("TERM TERM TERM", 1.1, "TERM TERM TERM"),
        ("INT INT", 0.3, "INT INT"),  # a key that is pressed twice
        ("TERM INT", 0.0, "TERM INT"),
        ("XCPU " * 10, 1.0, "XCPU"),
        ("USR2 USR2", 0.0, "USR2 USR2"),
        ("USR1 USR1", 0.0, "USR1"),  # where it stops the job, as under a batch system
        ("HUP HUP", 0.0, "HUP HUP"),
    ],
)
def test_signal_is_one_order_or_several(names: str, apart_s: float, new: str) -> None:
    """Client and head pass each on, both of which a batch system tells."""
    now, heard = 100.0, list[str]()
    signals = HeardSignals((*STOPS, USR1), lambda: now)
    for name in names.split():
        number = signal.Signals[f"SIG{name}"]
        heard += [one.name.removeprefix("SIG") for one in signals.new_in(bytes([number, number]))]
        now += apart_s

    assert " ".join(heard) == new


def slow_once(later: int) -> TimeLimit:
    """Return the limit after a slow save and so many short ones."""
    limit = HOUR.saved(120.0, 30.0)
    for _ in range(later):
        limit = limit.saved(5.0, 1.0)
    return limit


@pytest.mark.parametrize(
    ("deadline", "lead_s"),
    [
        (HOUR, LEAVE_S + UNMEASURED_S),
        (HOUR.saved(0.5, 0.25), LEAVE_S + 1.5),
        (HOUR.saved(120.0, 30.0), LEAVE_S + 300.0),
        (HOUR.saved(120.0, 30.0).saved(1.0, 1.0), LEAVE_S + 300.0),
        (slow_once(4), LEAVE_S + 300.0),
        (slow_once(5), LEAVE_S + 12.0),
        (HOUR.saved(5000.0, 0.0), 1800.0),
        (TimeLimit(0.0, 30.0, "--deadline"), 15.0),
        (TimeLimit(50.0, 20.0, "squeue"), 0.0),
    ],
    ids=[
        "nothing measured", "short saves", "long saves", "the longest counts", "of the newest five",
        "a slow one does not count for good", "never more than half",
        "a short job", "over before it began",
    ],
)  # fmt: skip
def test_lead(deadline: TimeLimit, lead_s: float) -> None:
    assert deadline.lead_s == lead_s


def test_time_that_jumps_back_takes_nothing_back() -> None:
    assert HOUR.poll(3599.0).poll(10.0).due is END


@given(*[st.floats(0.0, 1e6)] * 3)
def test_save_is_due_before_the_end_and_not_in_the_first_half(
    whole_s: float, save_s: float, step_s: float
) -> None:
    deadline = TimeLimit(0.0, whole_s, "").saved(save_s, step_s)

    assert deadline.poll(whole_s / 2 - 1.0).due <= HURRY
    assert deadline.poll(whole_s).due is END
    assert 0.0 <= deadline.lead_s <= whole_s / 2
