from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast.recovery.schedule import Auto, EverySteps, FailureHistory
from holdfast.runtime.run.failure_history import failure_history, history_of
from holdfast.runtime.run.journal import Journal


def lines(*events: tuple[str, float]) -> list[bytes]:
    return [json.dumps({"event": name, "now": now}).encode() + b"\n" for name, now in events]


@pytest.mark.parametrize(
    ("events", "seconds", "failures"),
    [
        ([], 0.0, 0),
        ([("job_started", 10.0)], 0.0, 0),
        ([("job_started", 10.0), ("step", 25.0)], 15.0, 0),
        ([("job_started", 10.0), ("step", 25.0), ("job_ended", 30.0)], 20.0, 0),
        ([("job_started", 10.0), ("relaunch", 12.0), ("relaunch", 20.0), ("step", 40.0)], 30.0, 2),
        # The host went down in the first job, and its clock began anew.
        ([("job_started", 900.0), ("step", 950.0), ("job_started", 5.0), ("step", 8.0)], 53.0, 1),
        (
            [("job_started", 1.0), ("job_ended", 3.0), ("job_started", 100.0), ("step", 101.0)],
            3.0,
            0,
        ),
    ],
)
def test_history_is_told_by_jobs_and_relaunches(
    events: list[tuple[str, float]], seconds: float, failures: int
) -> None:
    assert failure_history(lines(*events)) == FailureHistory(seconds, failures)


def test_torn_lines_tell_nothing() -> None:
    journal = lines(("job_started", 10.0), ("step", 20.0))

    journal += [b'{"event": "relaunch", "no', b"\n", b'{"event": "job_ended"}\n', b"]["]

    assert failure_history(journal).failures == 0


def test_order_of_the_fields_makes_no_difference() -> None:
    journal = [b'{"now": 1.0, "event": "job_started"}\n', b'{"now": 2.0, "event": "relaunch"}\n']

    assert failure_history(journal) == FailureHistory(1.0, 1)


def test_event_that_mentions_another_is_not_taken_for_it() -> None:
    line = json.dumps({"event": "launch", "now": 1.0, "relaunch": 1, "why": "job_ended"})

    assert failure_history([line.encode()]) == FailureHistory()


def test_marks_are_those_that_a_journal_writes(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl", run_id="r", source="supervisor")
    for event in ("job_started", "relaunch", "relaunch"):
        journal.record(event)
    journal.close()

    assert history_of(Auto(), tmp_path).failures == 2
    assert history_of(EverySteps(1), tmp_path) == FailureHistory()
    assert history_of(Auto(), tmp_path / "missing") == FailureHistory()
