"""The events of a journal as sentences: what is told, what is not, and which ones are kept."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.runtime.run.journal import EVENTS, Record
from holdfast.runtime.tools.events import ToldEvent, sound_records, told_events

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


def record(event: str, at: float = 5.0, **fields: Any) -> Record:
    return {"event": event, "now": at, "time": at, **fields}


def texts(*records: Record, most: int = 8) -> list[str]:
    return [event.text for event in told_events(records, most)]


@pytest.mark.parametrize(
    ("event", "fields", "sentence"), TOLD, ids=[f"{event}-{s[:20]}" for event, _, s in TOLD]
)
def test_event_is_told_in_one_sentence(event: str, fields: dict[str, Any], sentence: str) -> None:
    records = sound_records([record(event, **fields)])

    assert told_events(records, 8) == (ToldEvent(5.0, sentence),)


@pytest.mark.parametrize("event", [*sorted(SHOWN_ELSEWHERE), "scrubbed", "an event of tomorrow"])
def test_event_that_the_status_shows_elsewhere_has_no_line(event: str) -> None:
    assert texts(record(event, step=1, seconds=0.5)) == []


def test_events_of_the_table_are_those_of_a_journal() -> None:
    assert {event for event, _, _ in TOLD} | SHOWN_ELSEWHERE <= EVENTS


def test_text_of_several_lines_is_one_line() -> None:
    assert texts(record("warning", text="  odd\n\tweather \x0b ahead\n")) == ["odd weather ahead"]


@pytest.mark.parametrize("text", ["", " \n\t"])
def test_text_without_a_word_has_no_line(text: str) -> None:
    assert texts(record("warning", text=text)) == []


def test_same_event_told_twice_in_a_row_is_one_line_with_the_newest_time() -> None:
    told = told_events([record("restored", at=at, step=2) for at in (1.0, 2.0, 3.0)], 8)

    assert told == (ToldEvent(3.0, "restored step 2"),)


def test_step_between_two_equal_events_does_not_make_them_two() -> None:
    records = [record("restored", step=2), record("step", step=3), record("restored", step=2)]

    assert texts(*records) == ["restored step 2"]


def test_event_that_comes_back_after_another_one_is_told_again() -> None:
    records = [record("restored", step=2), record("stopped", step=4), record("restored", step=2)]

    assert texts(*records) == [
        "restored step 2",
        "stopped at step 4 with a checkpoint",
        "restored step 2",
    ]


def test_newest_events_are_kept_and_the_newest_is_last() -> None:
    records = [record("restored", step=number) for number in range(5)]

    assert texts(*records, most=2) == ["restored step 3", "restored step 4"]
    assert len(texts(*records, most=5)) == 5
