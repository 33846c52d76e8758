"""How a job stands: from a journal and the answer of its head, at each look anew."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from fake_head import head_of
from hypothesis import given
from hypothesis import strategies as st
from journal_entries import entry

from holdfast.runtime.commands.job_status import (
    AgentAnswer,
    JobStatus,
    StatusSource,
    job_status,
    pace_of,
    to_json,
    told_events,
)
from holdfast.runtime.commands.living_job import Ending, JobSocket, Life, ending_of
from holdfast.runtime.commands.summary import SINCE_LAST_STEP, goodput_of, newest_job, summarize
from holdfast.runtime.errors import UsageError
from holdfast.runtime.run.entries import Entry, entries_of
from holdfast.runtime.run.journal import Journal, Record
from holdfast.runtime.run.progress import StepReport
from holdfast.runtime.run.run_directory import FORMAT, RunDirectory, RunRecord
from holdfast.runtime.system.codec import to_plain

RUNNING = Ending("running", is_over=False)

REPORT = StepReport(
    now=109.0, step=9, steps=60, epoch=1, epochs=6, step_of_epoch=9, steps_per_epoch=10,
    metrics={"loss": 0.5, "f1": math.nan}, next_save_step=20,
)  # fmt: skip

WORKER = {
    "worker": 0, "pid": 7, "phase": "training", "step": 9, "generation": 1,
    "resident_bytes": 1 << 20, "silent_s": 0.25, "standing_s": None, "where": "", "host": "",
    "spent_s": {"wait": 1.5},
}  # fmt: skip

ANSWER = {
    "kind": "status", "now": 110.0, "phase": "training", "workers": [WORKER, {"worker": 1}],
    "launch": {"workers": [0, 1]}, "progress": to_plain(REPORT),
}  # fmt: skip


class Story:
    """Writes records as a job would, with a clock that only the story moves."""

    def __init__(self) -> None:
        self.now = 100.0
        self.entries: list[Entry[Any]] = []

    def tell(self, event: str, *, after: float = 0.0, **fields: Any) -> Story:
        self.now += after
        self.entries.append(entry(event, self.now, **fields))
        return self

    def begin(self, *workers: int) -> Story:
        self.tell("job_started", workers=len(workers), script="/a/train.py")
        return self.tell("launch", workers=list(workers))

    def steps(self, *numbers: int, generation: int = 1) -> Story:
        for number in numbers:
            fields = {"step": number, "epoch": 1, "samples": 8, "generation": generation}
            self.tell("step", after=1.0, seconds=1.0, **fields)
        return self


def status_of(
    story: Story, ending: Ending = RUNNING, answer: dict[str, Any] | None = None
) -> JobStatus:
    found = None if answer is None else AgentAnswer.of(answer)
    return job_status(story.entries, ending, found, (story.now, 1e9 + story.now))


def test_next_save_has_not_come_by_a_save_of_the_job_before() -> None:
    """The clock began anew with this host."""
    story = Story().begin(0, 1)
    story.tell("checkpoint", step=20, seconds=0.1, bytes=10, after=1e6)
    story.now = REPORT.now - 10.0
    story.begin(0, 1)

    assert status_of(story, answer=ANSWER).next_save == "at step 20"


def test_running_job_shows_what_its_head_says() -> None:
    story = Story().begin(0, 1).steps(*range(1, 9))
    story.tell("checkpoint", step=5, seconds=0.1, bytes=10, after=2.0)

    status = status_of(story, answer=ANSWER)

    assert (status.run_id, status.script, status.phase) == ("r1", "/a/train.py", "training")
    assert (status.step, status.launched) == (9, 2)
    assert [worker.resident_bytes for worker in status.workers] == [1 << 20]
    assert (status.progress, status.next_save) == (AgentAnswer.of(ANSWER).progress, "at step 20")
    assert status.last_save is not None
    assert (status.last_save.step, status.last_save.age_s) == (5, 0.0)
    assert status.steps_per_s == pytest.approx(1.0)


def test_next_save_of_a_schedule_by_time_is_told_before_the_first_one() -> None:
    report = dataclasses.replace(REPORT, next_save_step=None, next_save_at=170.0)

    status = status_of(Story().begin(0, 1), answer=ANSWER | {"progress": to_plain(report)})

    assert status.next_save == "in 1:10"


@pytest.mark.parametrize(("after", "told"), [(0.1, None), (-1.0, "at step 20")])
def test_next_save_that_has_come_since_the_head_was_told_is_none(
    after: float, told: str | None
) -> None:
    """An older checkpoint of that step is of a launch before, which has lost it."""
    story = Story().begin(0, 1)
    story.tell("checkpoint", step=20, seconds=0.1, bytes=10, after=REPORT.now - story.now + after)

    assert status_of(story, answer=ANSWER).next_save == told


def test_script_that_goes_on_after_its_training_is_not_shown_as_training() -> None:
    story = Story().begin(0, 1).steps(*range(1, 9))

    status = status_of(story, answer=ANSWER | {"phase": "concluding"})

    assert status.outcome == "running: script after training"
    assert (status.steps_per_s, status.is_over) == (0.0, False)


def test_job_without_an_answer_shows_what_its_journal_says() -> None:
    story = Story().begin(0, 1).steps(1, 2, 3)
    story.tell("epoch", epoch=1, epochs=6, step=3, metrics={"loss": 0.25})
    story.tell("job_ended", exit_code=0, reason="completed step 3")

    status = status_of(story, Ending("ended with exit code 0", is_over=True))

    assert (status.step, status.launched, status.workers, status.exit_code) == (3, 2, (), 0)
    assert status.epoch is not None
    assert status.epoch.line == "Epoch 1/6 - loss: 0.2500"
    assert (status.progress, status.next_save, status.steps_per_s) == (None, None, 0.0)


def test_relaunch_takes_the_step_back() -> None:
    story = Story().begin(0, 1).steps(1, 2, 3, 4)
    story.tell("relaunch", reason="all died", workers=[2, 3]).tell("restored", step=2)

    assert status_of(story).step == 2


def test_all_jobs_count_for_goodput_and_the_newest_for_the_exit_code() -> None:
    story = Story().begin(0).steps(1)
    story.tell("job_ended", exit_code=70, reason="budget", after=1.0)
    story.now += 1000.0
    story.begin(0).steps(2, 3)

    status = status_of(story)

    assert status.exit_code is None
    assert status.goodput is not None
    assert (status.goodput.wall_s, status.goodput.jobs) == (pytest.approx(4.0), 2)
    assert status.goodput.share == pytest.approx(3 / 4)
    assert summarize(story.entries).goodput == pytest.approx(status.goodput.share)


def test_time_since_the_last_step_of_a_running_job_is_nobodys_yet() -> None:
    job = Story().begin(0).steps(1, 2).entries

    running, ended = goodput_of(job, 105.0), goodput_of(job, None)

    assert running is not None
    assert running.parts_s[SINCE_LAST_STEP] == pytest.approx(3.0)
    assert "ending" not in running.parts_s
    assert ended is not None
    assert (ended.wall_s, ended.parts_s["ending"]) == (pytest.approx(2.0), 0.0)
    assert goodput_of([], None) is None


@pytest.mark.parametrize(
    ("story", "per_s"),
    [
        (Story(), 0.0),
        (Story().steps(1), 0.0),
        (Story().steps(1, 2, 3), 1.0),
        (Story().steps(1, 2, 3).steps(3, generation=2), 0.0),
        (Story().steps(*range(1, 40)), 1.0),
    ],
)
def test_pace_is_that_of_the_last_steps_of_a_world(story: Story, per_s: float) -> None:
    assert pace_of(story.entries).per_s == pytest.approx(per_s)


def test_json_has_everything_and_no_number_that_json_lacks() -> None:
    story = Story().begin(0, 1).steps(1, 2)

    content = json.loads(json.dumps(to_json(status_of(story, answer=ANSWER)), allow_nan=False))

    assert content["progress"]["metrics"] == {"loss": 0.5, "f1": None}
    assert content["workers"] == [WORKER]
    assert content["goodput"]["share"] == 1.0
    assert content["is_over"] is False
    assert set(content) == {field.name for field in dataclasses.fields(JobStatus)}


@pytest.mark.parametrize(
    ("events", "life", "outcome", "is_over"),
    [
        ([], Life.RUNNING, "running", False),
        (["completed"], Life.RUNNING, "running", False),
        ([], Life.DETACHED, "running without its command; why", False),
        (["completed", "job_ended"], Life.GONE, "ended with exit code 0: done", True),
        (["job_ended"], Life.UNKNOWN, "ended with exit code 0: done", True),
        (["completed"], Life.GONE, "completed step 5, after its head was lost", True),
        (["completed"], Life.UNKNOWN, "completed step 5", True),
        ([], Life.GONE, "lost with its head; go on with `holdfast run`", True),
        ([], Life.UNKNOWN, "running, or lost: why", False),
        ([], Life.ENDED, "over, and its journal does not say how; go on with `holdfast run`", True),
        (["completed"], Life.ENDED, "completed step 5", True),
        (["job_ended"], Life.ENDED, "ended with exit code 0: done", True),
    ],
)
def test_outcome_of_a_job(
    events: Sequence[str], life: Life, outcome: str, *, is_over: bool
) -> None:
    story = Story().begin(0)
    fields = {"completed": {"step": 5}, "job_ended": {"exit_code": 0, "reason": "done"}}
    for event in events:
        story.tell(event, **fields[event])

    assert ending_of(story.entries, life, "why") == Ending(outcome, is_over)


def test_events_are_the_newest_that_people_want_to_hear_of() -> None:
    story = Story().begin(0, 1, 2).steps(1, 2)
    story.tell("failure", worker=1, cause="signal SIGKILL", step=2)
    story.tell("recovery", generation=2, step=3, lost=[1], survivors=[0, 2])
    story.tell("relaunch", reason="all\n died", workers=[3, 4]).tell("restored", step=2)
    story.tell("completed", step=9).tell("completed", step=9)

    told = [event.text for event in told_events(story.entries, 6)]

    assert told == [
        "started train.py on 3 workers",
        "worker 1 died after step 2 (signal SIGKILL)",
        "recovered at step 3 without worker 1; workers 0 and 2 go on",
        "relaunched 2 workers: all died",
        "restored step 2",
        "completed step 9",
    ]
    assert [event.text for event in told_events(story.entries, 1)] == ["completed step 9"]


def test_newest_job_of_a_journal_without_a_begin_is_all_of_it() -> None:
    records = Story().steps(1, 2).entries

    assert newest_job(records) == records


_VALUES = st.sampled_from([None, -1, 0, 7, 1.5, math.nan, "x", [], [1], ["x"], {"a": 1}, True])

_EVENTS = st.sampled_from([
    "step", "epoch", "failure", "recovery", "relaunch", "launch", "job_started", "job_ended",
    "checkpoint", "restored", "completed", "world", "warning", "stalled", 7, None,
])  # fmt: skip

_NAMES = st.sampled_from([
    "now", "time", "step", "epoch", "seconds", "samples", "generation", "worker", "cause", "lost",
    "survivors", "reason", "workers", "bytes", "exit_code", "metrics", "validation", "text",
])  # fmt: skip

_DAMAGED = st.lists(
    st.builds(
        lambda event, fields: {"now": 1.0, "time": 1.0, **fields, "event": event},
        _EVENTS,
        st.dictionaries(_NAMES, _VALUES, max_size=12),
    ),
    max_size=12,
)


@given(_DAMAGED)
def test_damaged_journal_has_a_status(records: list[Record]) -> None:
    """Lines that make no sense are left out; whatever is left is shown."""
    sound = entries_of(records)

    status = job_status(sound, RUNNING, None, (2.0, 2.0))

    json.dumps(to_json(status), allow_nan=False)
    assert len(sound) <= len(records)


SAVING_WORKER = {
    "worker": 4, "pid": 7, "phase": "saving", "step": 3, "generation": 1,
    "resident_bytes": None, "silent_s": None,
}  # fmt: skip

SAVING_ANSWER = {
    "kind": "status", "now": 1.0, "phase": "saving", "workers": [SAVING_WORKER],
    "launch": {"workers": [4, 5]}, "progress": None,
}  # fmt: skip


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    """The journal of a run that lies in the temporary directory, with a launch in it."""
    journal = Journal(tmp_path / "journal.jsonl", run_id="r1", source="head")
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


def test_each_look_reads_on_and_forgets_nothing(source: StatusSource, journal: Journal) -> None:
    step(journal, 1)
    journal.record("checkpoint", step=1, seconds=0.1, bytes=10)
    first = source.poll(0.0)
    step(journal, 2)

    second = source.poll(0.0)

    assert (first.step, second.step) == (1, 2)
    assert second.last_save is not None
    assert (second.last_save.step, second.script, second.launched) == (1, "/a/train.py", 2)


def test_age_of_the_last_save_is_counted_from_the_given_moment(
    source: StatusSource, journal: Journal
) -> None:
    journal.record("checkpoint", step=1, seconds=0.1, bytes=10, time=1000.0)

    ages = [poll.last_save.age_s for poll in map(source.poll, (1012.5, 900.0)) if poll.last_save]

    assert ages == [12.5, 0.0]


def test_line_that_makes_no_sense_is_left_out(source: StatusSource, journal: Journal) -> None:
    step(journal, 1)
    step(journal, 9, seconds="soon")
    journal.record("checkpoint_failed", step=1, reason="full", seconds=None)

    found = source.poll(0.0)

    assert (found.step, found.events[-1].text) == (1, "started train.py on 2 workers")


def test_job_without_a_lease_may_run_elsewhere(source: StatusSource, journal: Journal) -> None:
    found = source.poll(0.0)

    assert found.outcome.startswith("running, or lost: no job runs in ")
    assert not found.is_over


def test_end_in_the_journal_is_the_outcome_once_nobody_owns_the_run(
    source: StatusSource, journal: Journal, tmp_path: Path
) -> None:
    lease = RunDirectory(tmp_path).acquire_lease()
    journal.record("job_ended", exit_code=75, reason="stopped at step 1")
    owned = source.poll(0.0)
    lease.release()

    left = source.poll(0.0)

    assert (owned.outcome, owned.is_over) == ("running", False)
    assert (left.outcome, left.is_over) == ("ended with exit code 75: stopped at step 1", True)


def test_head_tells_what_the_journal_does_not(
    source: StatusSource, journal: Journal, tmp_path: Path
) -> None:
    with head_of(RunDirectory(tmp_path), lambda _: [SAVING_ANSWER]):
        found = source.poll(0.0)

    assert (found.outcome, found.phase, found.launched) == ("running", "saving", 2)
    assert [worker.worker for worker in found.workers] == [4]


def test_silent_head_is_told_and_the_journal_has_to_do(
    source: StatusSource, journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(JobSocket.ask, "__defaults__", (0.02,))
    step(journal, 3)

    with head_of(RunDirectory(tmp_path), lambda _: []):
        found = source.poll(0.0)

    assert found.outcome == "running; its head does not answer"
    assert (found.is_over, found.step, found.workers, found.phase) == (False, 3, (), None)


def test_run_in_which_no_job_has_started_is_refused(source: StatusSource, tmp_path: Path) -> None:
    RunDirectory(tmp_path).create_record(RunRecord("r1", FORMAT, 1.0, 2, 0, 1))

    with pytest.raises(UsageError, match=rf"^no job has started in {tmp_path} yet$"):
        source.poll(0.0)


def test_journal_that_goes_between_two_looks_is_refused_in_one_sentence(
    source: StatusSource, journal: Journal, tmp_path: Path
) -> None:
    RunDirectory(tmp_path).create_record(RunRecord("r1", FORMAT, 1.0, 2, 0, 1))
    source.poll(0.0)
    (tmp_path / "journal.jsonl").unlink()

    with pytest.raises(UsageError, match="no job has started"):
        source.poll(0.0)


def test_status_names_the_process_that_a_user_has_started() -> None:
    program = "import sys; print(flush=True); sys.stdin.read()"
    words = ["-c", program, "/usr/bin/holdfast", "run", "-n", "2", "my train.py"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, *words], **pipes) as started:  # type: ignore[call-overload]
        assert started.stdout.readline() == b"\n"

        found = AgentAnswer.of({"now": 1.0, "client": started.pid, "pid": os.getpid()})
        without = AgentAnswer.of({"now": 1.0, "client": None, "pid": os.getpid()})

    assert (found.pid, found.command) == (started.pid, "holdfast run -n 2 'my train.py'")
    assert without.pid == os.getpid()
