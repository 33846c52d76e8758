"""A journal's line counts only if its fields are what the readers of its event rely on."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.runtime.run.journal import Record
from holdfast.runtime.tools.events import sound_records
from holdfast.runtime.tools.summary import goodput_of

STAMP = {"now": 1.5, "time": 1e9}
SOUND: dict[str, dict[str, Any]] = {
    "checkpoint": {"step": 1, "seconds": 0.5, "bytes": 10},
    "checkpoint_failed": {"step": 1, "reason": "full"},
    "completed": {"step": 1},
    "epoch": {"epoch": 1, "step": 1},
    "failure": {"worker": 1, "cause": "exit 1"},
    "fault": {"kind": "kill", "worker": 1, "step": 1, "site": "vote"},
    "job_ended": {"exit_code": 0, "reason": "done"},
    "job_started": {"workers": 2},
    "launch": {"workers": [0, 1]},
    "memory_differs": {"step": 1, "workers": [1], "has_majority": True},
    "mend_failed": {"reason": "gone", "holder": "/mirror"},
    "mended": {"step": 1, "taken": 1, "parts": 9, "holder": "/mirror"},
    "output_dropped": {"lines": 3},
    "pressure": {"resource": "disk", "text": "full"},
    "recovery": {"generation": 2, "step": 1, "lost": [1], "survivors": [0]},
    "rejected": {"step": 1, "reason": "a bit"},
    "relaunch": {"reason": "all died", "workers": [2, 3]},
    "renewing": {"reason": "worn"},
    "restored": {"step": 1},
    "scrub_failed": {"step": 1, "reason": "a bit"},
    "stalled": {"limit": "stall", "seconds": 9.5, "workers": [1]},
    "step": {"step": 1, "epoch": 1, "seconds": 0.5, "samples": 8, "generation": 1},
    "stopped": {"step": 1},
    "suspected": {"worker": 1, "seconds": 9.5, "step": 1},
    "suspicion": {"text": "core 5"},
    "unreadable": {"step": 1, "reason": "stale", "seconds": 180.0},
    "warning": {"text": "odd"},
    "world": {"workers": [0], "step": 1},
}
FIELDS = [(event, name) for event, fields in SOUND.items() for name in fields]


def record(event: str, **changes: Any) -> Record:
    return {"event": event, **STAMP, **SOUND[event], **changes}


def is_sound(one: Record) -> bool:
    return sound_records([one]) == [one]


@pytest.mark.parametrize("event", SOUND)
def test_line_of_a_job_is_kept_as_it_is(event: str) -> None:
    assert is_sound(record(event, of="a field that nobody asks for"))


@pytest.mark.parametrize(("event", "name"), FIELDS, ids=[f"{e}-{name}" for e, name in FIELDS])
def test_line_without_a_needed_field_is_left_out(event: str, name: str) -> None:
    fields = record(event)
    del fields[name]

    assert not is_sound(fields)


@pytest.mark.parametrize("name", ["now", "time"])
@pytest.mark.parametrize("event", ["hung_up", "stopped"])
def test_line_without_its_moment_is_left_out(event: str, name: str) -> None:
    fields = {"event": event, **STAMP, "step": 1}
    del fields[name]

    assert not is_sound(fields)


def test_event_that_is_not_known_needs_only_its_moment() -> None:
    assert is_sound({"event": "of another version", **STAMP, "step": "odd"})


@pytest.mark.parametrize("event", [None, 7, ["step"]])
def test_event_that_is_no_text_is_left_out(event: object) -> None:
    assert not is_sound({"event": event, **STAMP})


@pytest.mark.parametrize("step", [-1, True, 1.0, "1", None, [1], 1 << 64])
def test_count_is_a_whole_number_from_0(step: object) -> None:
    assert is_sound(record("stopped", step=0))
    assert not is_sound(record("stopped", step=step))


@pytest.mark.parametrize(
    "seconds", [True, "1", None, math.nan, math.inf, -math.inf, 1 << 38, 1e300, 10**400]
)
def test_number_is_one_that_a_clock_may_show(seconds: object) -> None:
    assert is_sound(record("suspected", seconds=-0.5))
    assert is_sound(record("suspected", seconds=0))
    assert not is_sound(record("suspected", seconds=seconds))


@pytest.mark.parametrize("time", [-1.0, 1e12, "now"])
def test_moment_that_has_no_date_is_left_out(time: object) -> None:
    assert is_sound(record("warning", time=0))
    assert not is_sound(record("warning", time=time))


@pytest.mark.parametrize("text", [None, 7, ["odd"]])
def test_text_is_a_text(text: object) -> None:
    assert is_sound(record("warning", text=""))
    assert not is_sound(record("warning", text=text))


@pytest.mark.parametrize("workers", [None, 2, "01", {"0": 1}, [0, -1], [0, True], [[0]]])
def test_workers_are_a_list_of_ids(workers: object) -> None:
    assert is_sound(record("launch", workers=[]))
    assert not is_sound(record("launch", workers=workers))


@pytest.mark.parametrize(
    ("event", "name", "good"), [("step", "steps", 3), ("checkpoint_failed", "seconds", 0.5)]
)
@pytest.mark.parametrize("bad", [None, "3", [3]], ids=str)
def test_field_that_may_be_missing_makes_sense_if_it_is_there(
    event: str, name: str, good: float, bad: object
) -> None:
    assert is_sound(record(event, **{name: good}))
    assert not is_sound(record(event, **{name: bad}))


def test_lines_keep_their_order_around_one_that_is_left_out() -> None:
    first, last = record("stopped"), record("warning")

    assert sound_records([first, record("stopped", step="x"), last]) == [first, last]


_VALUES = st.sampled_from([None, -1, 0, 7, 1.5, math.nan, 1e300, 10**400, "x", [1], True])
_RECORDS = st.lists(
    st.builds(
        lambda event, change: record(event) | change,
        st.sampled_from(["step", "checkpoint_failed", "checkpoint", "launch", "job_started"]),
        st.dictionaries(st.sampled_from(["now", "steps", "seconds", "step"]), _VALUES, max_size=2),
    ),
    max_size=6,
)


@given(_RECORDS)
def test_goodput_can_be_told_of_whatever_is_left(records: list[Record]) -> None:
    sound = sound_records(records)

    found = goodput_of(sound, now_s=2.0)

    assert sound_records(sound) == sound
    assert (found is None) == (not sound)
