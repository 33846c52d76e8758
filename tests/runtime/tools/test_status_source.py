"""Looks at a run from outside: each look reads on, and tells what agent and lease say."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.runtime.errors import UsageError
from holdfast.runtime.run.journal import Journal
from holdfast.runtime.run.run_directory import FORMAT, RunDirectory, RunRecord
from holdfast.runtime.system.channel import Channel, Listener
from holdfast.runtime.tools.status import AgentQuestion, StatusSource

WORKER = {
    "worker": 4, "pid": 7, "phase": "saving", "step": 3, "generation": 1,
    "resident_bytes": None, "silent_s": None,
}  # fmt: skip
ANSWER = {
    "kind": "status", "now": 1.0, "phase": "saving", "workers": [WORKER],
    "launch": {"workers": [4, 5]}, "progress": None,
}  # fmt: skip


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    """The journal of a run that lies in the temporary directory, with a launch in it."""
    journal = Journal(tmp_path / "journal.jsonl", run_id="r1", source="supervisor")
    journal.record("job_started", workers=2, script="/a/train.py")
    journal.record("launch", workers=[0, 1])
    yield journal
    journal.close()


@pytest.fixture
def source(tmp_path: Path) -> Iterator[StatusSource]:
    source = StatusSource(tmp_path)
    yield source
    source.close()


def step(journal: Journal, number: int, **changes: Any) -> None:
    fields = {"step": number, "epoch": 1, "seconds": 0.5, "samples": 8, "generation": 1}
    journal.record("step", **(fields | changes))


@contextmanager
def supervised(path: Path, serve: Callable[[Channel], object]) -> Iterator[None]:
    """This process owns the run, whose agent serves one visitor."""
    lease = RunDirectory(path).acquire_lease()
    listener = Listener(path / "agent.sock")
    lease.name_agent(listener.path)
    ended = threading.Event()

    def accept() -> None:
        channel = listener.accept()
        if channel is not None:
            serve(channel)
            ended.wait()
            channel.close()

    thread = threading.Thread(target=accept)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        listener.close()
        os.close(lease.fileno())


def test_each_look_reads_on_and_forgets_nothing(source: StatusSource, journal: Journal) -> None:
    step(journal, 1)
    journal.record("checkpoint", step=1, seconds=0.1, bytes=10)
    first = source.look(0.0)
    step(journal, 2)

    second = source.look(0.0)

    assert (first.step, second.step) == (1, 2)
    assert second.last_save is not None
    assert (second.last_save.step, second.script, second.launched) == (1, "/a/train.py", 2)


def test_age_of_the_last_save_is_counted_from_the_given_moment(
    source: StatusSource, journal: Journal
) -> None:
    journal.record("checkpoint", step=1, seconds=0.1, bytes=10, time=1000.0)

    ages = [look.last_save.age_s for look in map(source.look, (1012.5, 900.0)) if look.last_save]

    assert ages == [12.5, 0.0]


def test_line_that_makes_no_sense_is_left_out(source: StatusSource, journal: Journal) -> None:
    step(journal, 1)
    step(journal, 9, seconds="soon")
    journal.record("checkpoint_failed", step=1, reason="full", seconds=None)

    found = source.look(0.0)

    assert (found.step, found.events[-1].text) == (1, "started train.py on 2 workers")


def test_job_without_a_lease_may_run_elsewhere(source: StatusSource, journal: Journal) -> None:
    found = source.look(0.0)

    assert found.outcome.startswith("running, or lost: no supervisor runs in ")
    assert not found.is_over


def test_end_in_the_journal_is_the_outcome_once_nobody_owns_the_run(
    source: StatusSource, journal: Journal, tmp_path: Path
) -> None:
    lease = RunDirectory(tmp_path).acquire_lease()
    journal.record("job_ended", exit_code=75, reason="stopped at step 1")
    owned = source.look(0.0)
    lease.release()

    left = source.look(0.0)

    assert (owned.outcome, owned.is_over) == ("running", False)
    assert (left.outcome, left.is_over) == ("ended with exit code 75: stopped at step 1", True)


def test_agent_tells_what_the_journal_does_not(
    source: StatusSource, journal: Journal, tmp_path: Path
) -> None:
    with supervised(tmp_path, lambda channel: channel.send(ANSWER)):
        found = source.look(0.0)

    assert (found.outcome, found.phase, found.launched) == ("running", "saving", 2)
    assert [worker.worker for worker in found.workers] == [4]


def test_silent_agent_is_told_and_the_journal_has_to_do(
    source: StatusSource, journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(AgentQuestion.ask, "__defaults__", (0.02,))
    step(journal, 3)

    with supervised(tmp_path, lambda channel: None):
        found = source.look(0.0)

    assert found.outcome == "running; its agent does not answer"
    assert (found.is_over, found.step, found.workers, found.phase) == (False, 3, (), None)


def test_run_in_which_no_job_has_started_is_refused(source: StatusSource, tmp_path: Path) -> None:
    RunDirectory(tmp_path).create_record(RunRecord("r1", FORMAT, 1.0, 2, 0, 1))

    with pytest.raises(UsageError, match=rf"^no job has started in {tmp_path} yet$"):
        source.look(0.0)


def test_journal_that_goes_between_two_looks_is_refused_in_one_sentence(
    source: StatusSource, journal: Journal, tmp_path: Path
) -> None:
    RunDirectory(tmp_path).create_record(RunRecord("r1", FORMAT, 1.0, 2, 0, 1))
    source.look(0.0)
    (tmp_path / "journal.jsonl").unlink()

    with pytest.raises(UsageError, match="no job has started"):
        source.look(0.0)
