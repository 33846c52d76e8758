"""How often a run has lost all of its workers: told by its journal, or counted as it happens."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
from journal_entries import entry, line

from holdfast.recovery.placement import REMEMBERED_S
from holdfast.recovery.schedule import FailureHistory
from holdfast.runtime.run.checkpoint_events import Checkpoint, Rejected
from holdfast.runtime.run.events import JobStarted, Relaunch, StepRestored
from holdfast.runtime.run.failure_history import (
    HistoryReader,
    RunHistory,
    host_losses,
)
from holdfast.runtime.run.journal import Journal, JournalReader


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.jsonl"


def lines(*events: tuple[str, float]) -> list[bytes]:
    return [json.dumps(line(name, now)).encode() + b"\n" for name, now in events]


def history(path: Path, journal: list[bytes]) -> FailureHistory:
    path.write_bytes(b"".join(journal))
    return HistoryReader(path).read()


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
    path: Path, events: list[tuple[str, float]], seconds: float, failures: int
) -> None:
    assert history(path, lines(*events)) == FailureHistory(seconds, failures)

    gradually = HistoryReader(path)
    for count in range(len(events) + 1):
        path.write_bytes(b"".join(lines(*events[:count])))
        found = gradually.read()
    assert found == FailureHistory(seconds, failures)


def test_renewal_is_no_failure(path: Path) -> None:
    renewal = line("relaunch", 2.0, is_renewal=True)
    journal = [*lines(("job_started", 1.0)), json.dumps(renewal).encode() + b"\n"]

    assert history(path, journal) == FailureHistory(1.0, 0)


def test_torn_lines_tell_nothing(path: Path) -> None:
    journal = lines(("job_started", 10.0), ("step", 20.0))

    journal += [b'{"event": "relaunch", "no', b"\n", b'{"event": "job_ended"}\n', b"]["]

    assert history(path, journal).failures == 0


def test_order_of_the_fields_makes_no_difference(path: Path) -> None:
    found = line("job_started", 1.0), line("relaunch", 2.0)
    journal = [json.dumps(dict(reversed(one.items()))).encode() + b"\n" for one in found]

    assert history(path, journal) == FailureHistory(1.0, 1)


def test_event_that_mentions_another_is_not_taken_for_it(path: Path) -> None:
    line = json.dumps({"event": "launch", "now": 1.0, "relaunch": 1, "why": "job_ended"})

    assert history(path, [line.encode() + b"\n"]) == FailureHistory()


def test_marks_are_those_that_a_journal_writes(path: Path) -> None:
    reader = HistoryReader(path)
    assert reader.read() == FailureHistory()
    journal = Journal(path, run_id="r", source="head")
    for event in (JobStarted(2, 0, 2, 0, 1, "a.py", ()), *[Relaunch("lost", (2, 3), 1)] * 2):
        journal.record(event)
    journal.close()

    assert reader.read().failures == 2


def test_disk_that_hangs_costs_only_the_newest_history(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hung = threading.Event()
    path.write_bytes(b"".join(lines(("job_started", 10.0), ("relaunch", 12.0), ("step", 40.0))))
    reader = HistoryReader(path)
    known = reader.read()
    monkeypatch.setattr(reader._calls, "_waits_s", 0.01)  # the first read had its time
    monkeypatch.setattr(JournalReader, "lines", lambda self: iter([b""] * hung.wait()))

    found = reader.read()

    hung.set()
    assert found == known == FailureHistory(30.0, 1)


def test_newest_checkpoint_is_that_of_the_last_record(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    lines = [line("checkpoint", 1.0, step=step) for step in (300, 390, 120)]
    more = line("checkpoint_failed", 2.0, step=400)
    path.write_text("".join(f"{json.dumps(one)}\n" for one in (*lines, more)))
    reader = HistoryReader(path)
    assert reader.history.saved_step is None

    reader.read()

    assert reader.history.saved_step == 120


def test_history_of_a_running_job_goes_on_from_what_was_before(path: Path) -> None:
    """The head counts the records as they pass, up to the moment of each launch."""
    history = RunHistory(FailureHistory(30.0, 1, (40,)), began=100.0)
    for found in (
        entry("step", 110.0, step=3),
        entry("relaunch", 120.0),
        entry("rejected", 121.0, step=50),
        entry("restored", 122.0, step=40),
        entry("checkpoint", 123.0, step=60),
    ):
        history.count(found)

    assert history.at(130.0) == FailureHistory(60.0, 2, (50,))
    assert history.saved_step == 60


def test_rejected_step_is_remembered_until_it_is_saved_or_restored(path: Path) -> None:
    journal = Journal(path, run_id="r", source="worker 0")
    for step in (10, 20, 30, 40, 50):
        journal.record(Rejected(step, "a byte"))
    journal.record(Checkpoint(20, 1.0, 1, 1))
    journal.record(StepRestored(30, 1))
    journal.close()

    assert HistoryReader(path).read().rejected == (10, 40, 50)


def test_losses_of_hosts_are_remembered_for_a_day() -> None:
    now = 1_800_000_000.0
    records = [
        {"event": "host_lost", "host": "b", "time": now - REMEMBERED_S - 1.0},
        {"event": "host_lost", "host": "b", "time": now - 60.0},
        {"event": "host_back", "host": "b", "time": now - 50.0},
        {"event": "host_lost", "host": "c", "time": now - 40.0},
        {"event": "host_lost", "host": "b", "time": now - 30.0},
    ]

    assert host_losses(records, now) == {"b": 2, "c": 1}
    assert host_losses(records, now + REMEMBERED_S) == {}
