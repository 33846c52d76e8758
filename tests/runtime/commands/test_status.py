"""``holdfast status``: from a journal and the answer of its head, at each look anew."""

from __future__ import annotations

import dataclasses
import math
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from commands import holdfast_code
from fake_head import head_of
from journal_entries import Story, WrittenJournal

from holdfast.runtime.commands.job_status import (
    JobStatus,
    StatusSource,
    job_status,
    pace_of,
    slowest_in_words,
)
from holdfast.runtime.errors import ExitCode
from holdfast.runtime.head.living_job import JobSocket, JobStanding, Life, ending_of
from holdfast.runtime.head.visits import HeadStatus
from holdfast.runtime.run.progress import LaunchReport, StepReport, WorkerReport
from holdfast.runtime.run.run_directory import FORMAT, RunDirectory, RunRecord

RUNNING = JobStanding("running", is_over=False)
RECORD = RunRecord("r1", FORMAT, 1.0, 2, 0, 1)

REPORT = StepReport(
    now=109.0, step=9, steps=60, epoch=1, epochs=6, step_of_epoch=9, steps_per_epoch=10,
    metrics={"loss": 0.5, "f1": math.nan}, next_save_step=20,
)  # fmt: skip

WORKER = WorkerReport(0, 7, "training", 9, 1, 1 << 20, 0.25, spent_s={"wait": 1.5})
SEEN = LaunchReport(REPORT, 1, "training", (WORKER,))
ANSWER = HeadStatus(110.0, 7, 5, "/run", 2, SEEN)


def seen(**changes: Any) -> HeadStatus:
    """Return the answer of a head that sees something else of its workers."""
    return dataclasses.replace(ANSWER, seen=dataclasses.replace(SEEN, **changes))


class Job(Story):
    """Writes records of a job whose steps take a second each."""

    def begin(self, *workers: int) -> Job:
        self.tell("job_started", workers=len(workers), script="/a/train.py")
        self.tell("launch", workers=list(workers))
        return self

    def steps(self, *numbers: int, generation: int = 1) -> Job:
        for number in numbers:
            fields = {"step": number, "epoch": 1, "samples": 8, "generation": generation}
            self.tell("step", after=1.0, seconds=1.0, **fields)
        return self


def status_of(
    story: Story, ending: JobStanding = RUNNING, answer: HeadStatus | None = None
) -> JobStatus:
    return job_status(story.entries, ending, answer, (story.now, 1e9 + story.now))


@pytest.mark.parametrize(("after", "told"), [(0.1, None), (-1.0, "at step 20")])
def test_next_save_that_has_come_since_the_head_was_told_is_none(
    after: float, told: str | None
) -> None:
    """An older checkpoint of that step is of a launch before, which has lost it."""
    story = Job().begin(0, 1)
    story.tell("checkpoint", step=20, seconds=0.1, bytes=10, after=REPORT.now - story.now + after)

    assert status_of(story, answer=ANSWER).next_save == told


def test_script_that_goes_on_after_its_training_is_not_shown_as_training() -> None:
    story = Job().begin(0, 1).steps(*range(1, 9))

    status = status_of(story, answer=seen(phase="concluding"))

    assert status.outcome == "running: script after training"
    assert (status.steps_per_s, status.is_over) == (0.0, False)


@pytest.mark.parametrize(
    ("story", "per_s"),
    [
        (Job(), 0.0),
        (Job().steps(1), 0.0),
        (Job().steps(1, 2, 3), 1.0),
        (Job().steps(1, 2, 3).steps(3, generation=2), 0.0),
        (Job().steps(*range(1, 40)), 1.0),
    ],
)
def test_pace_is_that_of_the_last_steps_of_a_world(story: Story, per_s: float) -> None:
    assert pace_of(story.entries).per_s == pytest.approx(per_s)


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
    story = Job().begin(0)
    fields = {"completed": {"step": 5}, "job_ended": {"exit_code": 0, "reason": "done"}}
    for event in events:
        story.tell(event, **fields[event])

    assert ending_of(story.entries, life, "why") == JobStanding(outcome, is_over)


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[WrittenJournal]:
    """The journal of a run that lies in the temporary directory, with a launch in it."""
    journal = WrittenJournal(tmp_path / "journal.jsonl", run_id="r1", source="head")
    journal.record("job_started", workers=2, script="/a/train.py")
    journal.record("launch", workers=[0, 1])
    yield journal
    journal.close()


@pytest.fixture
def source(tmp_path: Path) -> Iterator[StatusSource]:
    source = StatusSource(tmp_path)
    yield source
    source.close()


def step(journal: WrittenJournal, number: int, **changes: Any) -> None:
    fields = {"step": number, "epoch": 1, "seconds": 0.5, "samples": 8, "generation": 1}
    journal.record("step", **(fields | changes))


def test_each_look_reads_on_and_forgets_nothing(
    source: StatusSource, journal: WrittenJournal
) -> None:
    step(journal, 1)
    journal.record("checkpoint", step=1, seconds=0.1, bytes=10)
    first = source.poll(0.0)
    step(journal, 2)

    second = source.poll(0.0)

    assert (first.step, second.step) == (1, 2)
    assert second.last_save is not None
    assert (second.last_save.step, second.script, second.launched) == (1, "/a/train.py", 2)


def test_end_in_the_journal_is_the_outcome_once_nobody_owns_the_run(
    source: StatusSource, journal: WrittenJournal, tmp_path: Path
) -> None:
    lease = RunDirectory(tmp_path).acquire_lease()
    journal.record("job_ended", exit_code=75, reason="stopped at step 1")
    owned = source.poll(0.0)
    lease.release()

    left = source.poll(0.0)

    assert (owned.outcome, owned.is_over) == ("running", False)
    assert (left.outcome, left.is_over) == ("ended with exit code 75: stopped at step 1", True)


def test_silent_head_is_told_and_the_journal_has_to_do(
    source: StatusSource, journal: WrittenJournal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(JobSocket.ask, "__defaults__", (0.02,))
    step(journal, 3)

    with head_of(RunDirectory(tmp_path), lambda _: []):
        found = source.poll(0.0)

    assert found.outcome == "running; its head does not answer"
    assert (found.is_over, found.step, found.workers, found.phase) == (False, 3, (), None)


def test_status_names_the_process_that_a_user_has_started() -> None:
    program = "import sys; print(flush=True); sys.stdin.read()"
    words = ["-c", program, "/usr/bin/holdfast", "run", "-n", "2", "my train.py"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, *words], **pipes) as started:  # type: ignore[call-overload]
        assert started.stdout.readline() == b"\n"

        answer = dataclasses.replace(ANSWER, client=started.pid, pid=os.getpid())
        found = status_of(Job(), answer=answer)
        without = status_of(Job(), answer=dataclasses.replace(answer, client=None))

    assert (found.pid, found.command) == (started.pid, "holdfast run -n 2 'my train.py'")
    assert without.pid == os.getpid()


def worker(number: int, host: str = "", **spent_s: float) -> WorkerReport:
    return WorkerReport(number, 7, "training", 5, 1, None, None, host=host, spent_s=spent_s)


SLOW = worker(2, "node1", read=6.0, compute=3.8, wait=0.2)


@pytest.mark.parametrize(
    ("others", "words"),
    [
        ([worker(0, wait=4.0, compute=6.0), worker(1, exchange=2.0, compute=8.0)], "30%"),
        ([worker(0, wait=1.0, compute=9.0)], None),
        ([worker(0, wait=1.0, vote=8.0, compute=1.0)], None),
        ([worker(0, script=9.0)], None),
        ([], None),
    ],
    ids=["they wait", "they hardly wait", "they vote", "they have not begun", "alone"],
)
def test_slowest_is_named_if_the_others_wait_for_it(
    others: list[WorkerReport], words: str | None
) -> None:
    found = slowest_in_words([*others, SLOW])

    assert found == (
        f"worker 2 on node1, most of it in read: the others wait for {words} of their time, and "
        "it for 2%"
        if words
        else ""
    )


@pytest.mark.parametrize(
    ("command", "name", "content", "complaint"),
    [
        ("status", "RUN.json", '{"format": 99}', "RUN.json is not a valid run record: its format"),
        *(
            (command, *row)
            for command in ("status", "report")
            for row in (
                ("other", "", "is no run: it has no RUN.json"),
                ("RUN.json", RECORD.encode().decode(), "error: no job has started in /"),
                ("journal.jsonl", "", "holds no records; no job has started in"),
                ("journal.jsonl", "no record\n", "holds no records; no job has started in"),
                ("journal.jsonl", '{"event": "step"}\n', "holds no records; no job has started"),
                ("journal.jsonl", None, "journal.jsonl is a directory"),
            )
        ),
    ],
)
def test_directory_without_a_run_is_refused_in_one_line(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    command: str,
    name: str,
    content: str | None,
    complaint: str,
) -> None:
    if content is None:
        (tmp_path / name).mkdir()
    else:
        (tmp_path / name).write_text(content)

    assert holdfast_code(command, tmp_path) == ExitCode.USAGE

    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith("holdfast: error: ")
    assert complaint in said


def test_looking_changes_nothing(journal: WrittenJournal, tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    before = path.stat().st_mtime_ns

    holdfast_code("status", tmp_path)

    assert os.listdir(tmp_path) == ["journal.jsonl"]
    assert path.stat().st_mtime_ns == before
