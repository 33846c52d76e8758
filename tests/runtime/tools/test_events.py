"""The events of a journal: which lines count, and as which sentences they are told."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.runtime.run.journal import EVENTS, Record
from holdfast.runtime.tools.events import EventLine, sound_records, told_events
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


TOLD: list[tuple[str, dict[str, Any], str]] = [
    ("agent_killed", {"reason": "it hangs"}, "the agent was killed: it hangs"),
    (
        "checkpoint_failed",
        {"step": 4, "reason": "disk full"},
        "the checkpoint of step 4 failed: disk full",
    ),
    ("completed", {"step": 9}, "completed step 9"),
    ("deadline", {"text": "2 minutes are left"}, "2 minutes are left"),
    (
        "failure",
        {"worker": 1, "cause": "signal SIGKILL", "step": 0},
        "worker 1 died after step 0 (signal SIGKILL)",
    ),
    ("failure", {"worker": 1, "cause": "exit 1"}, "worker 1 died (exit 1)"),
    ("hung_up", {}, "SIGHUP: the job goes on without its terminal"),
    (
        "job_ended",
        {"exit_code": 75, "reason": "stopped at step 4"},
        "ended with exit code 75: stopped at step 4",
    ),
    ("job_started", {"workers": 1, "script": "/a/train.py"}, "started train.py on 1 worker"),
    ("job_started", {"workers": 2}, "started a script on 2 workers"),
    (
        "memory_differs",
        {"step": 5, "workers": [0, 2], "has_majority": True},
        "the memory of workers 0, 2 differs at step 5",
    ),
    (
        "mended",
        {"step": 3, "taken": 1, "parts": 9, "holder": "/mirror"},
        "mended step 3 from /mirror",
    ),
    ("pressure", {"resource": "disk", "text": "the disk is full"}, "the disk is full"),
    (
        "recovery",
        {"generation": 2, "step": 3, "lost": [1, 4], "survivors": [0]},
        "recovered at step 3 without workers 1, 4; worker 0 left",
    ),
    ("rejected", {"step": 2, "reason": "a bit"}, "rejected the checkpoint of step 2: a bit"),
    ("relaunch", {"reason": "all died", "workers": [7]}, "relaunched 1 worker: all died"),
    ("renewing", {"reason": "1 of 4 is left"}, "renewing the launch: 1 of 4 is left"),
    ("restored", {"step": 2}, "restored step 2"),
    (
        "stalled",
        {"limit": "stall", "seconds": 185.0, "workers": [3]},
        "worker 3 stood still for 3:05",
    ),
    ("stopped", {"step": 4}, "stopped at step 4 with a checkpoint"),
    (
        "store_removed",
        {"directory": "/l/checkpoints", "step": 20},
        "/l/checkpoints was removed, or its disk unmounted",
    ),
    ("supervisor_failed", {"reason": "OSError: no"}, "the supervisor failed: OSError: no"),
    (
        "suspected",
        {"worker": 1, "seconds": 30.0, "step": 7},
        "worker 1 has not come on after step 7",
    ),
    ("suspicion", {"text": "core 5 has lost 3 workers"}, "core 5 has lost 3 workers"),
    ("taken_over", {}, "another supervisor has taken the job over"),
    (
        "unreadable",
        {"step": 2, "reason": "Stale file handle", "seconds": 180.0},
        "gave up the checkpoint of step 2 after 3:00: Stale file handle",
    ),
    ("warning", {"text": "the clock is wrong"}, "the clock is wrong"),
]

SHOWN_ELSEWHERE = {"checkpoint", "epoch", "launch", "step", "world"}


def line(event: str, at: float = 5.0, **fields: Any) -> Record:
    return {"event": event, "now": at, "time": at, **fields}


def texts(*records: Record, most: int = 8) -> list[str]:
    return [event.text for event in told_events(records, most)]


@pytest.mark.parametrize(
    ("event", "fields", "sentence"), TOLD, ids=[f"{event}-{s[:20]}" for event, _, s in TOLD]
)
def test_event_is_told_in_one_sentence(event: str, fields: dict[str, Any], sentence: str) -> None:
    records = sound_records([line(event, **fields)])

    assert told_events(records, 8) == (EventLine(5.0, sentence),)


@pytest.mark.parametrize("event", [*sorted(SHOWN_ELSEWHERE), "scrubbed", "an event of tomorrow"])
def test_event_that_the_status_shows_elsewhere_has_no_line(event: str) -> None:
    assert texts(line(event, step=1, seconds=0.5)) == []


def test_events_of_the_table_are_those_of_a_journal() -> None:
    assert {event for event, _, _ in TOLD} | SHOWN_ELSEWHERE <= EVENTS


def test_text_of_several_lines_is_one_line() -> None:
    assert texts(line("warning", text="  odd\n\tweather \x0b ahead\n")) == ["odd weather ahead"]


@pytest.mark.parametrize("text", ["", " \n\t"])
def test_text_without_a_word_has_no_line(text: str) -> None:
    assert texts(line("warning", text=text)) == []


def test_same_event_told_twice_in_a_row_is_one_line_with_the_newest_time() -> None:
    told = told_events([line("restored", at=at, step=2) for at in (1.0, 2.0, 3.0)], 8)

    assert told == (EventLine(3.0, "restored step 2"),)


def test_step_between_two_equal_events_does_not_make_them_two() -> None:
    records = [line("restored", step=2), line("step", step=3), line("restored", step=2)]

    assert texts(*records) == ["restored step 2"]


def test_event_that_comes_back_after_another_one_is_told_again() -> None:
    records = [line("restored", step=2), line("stopped", step=4), line("restored", step=2)]

    assert texts(*records) == [
        "restored step 2",
        "stopped at step 4 with a checkpoint",
        "restored step 2",
    ]


def test_newest_events_are_kept_and_the_newest_is_last() -> None:
    records = [line("restored", step=number) for number in range(5)]

    assert texts(*records, most=2) == ["restored step 3", "restored step 4"]
    assert len(texts(*records, most=5)) == 5
