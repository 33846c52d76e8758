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


def lines(*events: tuple[str, float] | bytes) -> list[bytes]:
    return [
        event if isinstance(event, bytes) else json.dumps(line(*event)).encode() + b"\n"
        for event in events
    ]


def written(fields: dict[str, object]) -> bytes:
    return json.dumps(fields).encode() + b"\n"


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
        ([("job_started", 1.0), written(line("relaunch", 2.0, is_renewal=True))], 1.0, 0),
        (
            [("job_started", 10.0), b'{"event": "relaunch", "no\n', b'{"event": "job_ended"}\n'],
            0.0,
            0,
        ),
        (
            [
                written(dict(reversed(line(name, now).items())))
                for name, now in (("job_started", 1.0), ("relaunch", 2.0))
            ],
            1.0,
            1,
        ),
        ([written({"event": "launch", "now": 1.0, "relaunch": 1, "why": "job_ended"})], 0.0, 0),
    ],
    ids=[
        "none", "begin", "open", "ended", "relaunched", "host lost", "two jobs", "renewal", "torn",
        "other order", "mentioned",
    ],
)  # fmt: skip
def test_history_is_told_by_jobs_and_relaunches(
    path: Path, events: list[tuple[str, float] | bytes], seconds: float, failures: int
) -> None:
    path.write_bytes(b"".join(lines(*events)))
    assert HistoryReader(path).read() == FailureHistory(seconds, failures)

    gradually = HistoryReader(path)
    for count in range(len(events) + 1):
        path.write_bytes(b"".join(lines(*events[:count])))
        found = gradually.read()
    assert found == FailureHistory(seconds, failures)


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

    reader = HistoryReader(path)
    assert reader.history.saved_step is None
    assert reader.read().rejected == (10, 40, 50)
    assert reader.history.saved_step == 20


def test_losses_of_hosts_are_remembered_for_a_day(path: Path) -> None:
    now = 1_800_000_000.0
    assert host_losses(path, now) == {}
    ago = {"b": [REMEMBERED_S + 1.0, 60.0, 30.0], "c": [40.0]}
    found = [
        line("host_lost", 1.0, host=host, reason="cut", workers=[], time=now - age_s)
        for host, ages in ago.items()
        for age_s in ages
    ]
    partly = {"event": "host_lost", "host": "b", "now": 1.0, "time": now}
    found += [line("host_back", 1.0, host="b", time=now - 50.0), partly]
    path.write_bytes(b"".join(map(written, found)))

    assert host_losses(path, now) == {"b": 2, "c": 1}
    assert host_losses(path, now + REMEMBERED_S) == {}
