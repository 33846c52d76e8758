"""What a journal means: the steps, epochs, deaths and recoveries that count."""

from __future__ import annotations

from typing import Any

import pytest
from journal_entries import Story, entry

from holdfast.runtime.commands.summary import (
    Report,
    summarize,
)
from holdfast.runtime.run.entries import Entry


class Run(Story):
    """Writes records of steps and epochs."""

    def steps(self, first: int, last: int, *, generation: int = 1) -> Run:
        for step in range(first, last + 1):
            self.tell(
                "step", after=1.0, step=step, epoch=0, seconds=0.9, samples=8, generation=generation
            )
        return self

    def epoch(self, epoch: int, step: int, *, samples: int, exact: bool = True) -> Run:
        return self.tell(
            "epoch",
            epoch=epoch,
            step=step,
            metrics={"loss": 0.5 / (epoch + 1)},
            validation={"loss": 0.75},
            ledger={"samples": samples, "fingerprint": "1", "exact": exact},
        )


@pytest.fixture
def story() -> Run:
    run = Run()
    run.tell("job_started", workers=4)
    return run


def test_line_of_many_steps_is_taken_back_in_part(story: Run) -> None:
    story.tell("step", step=10, epoch=0, seconds=1.0, samples=40, steps=10)
    story.tell("step", step=20, epoch=0, seconds=3.0, samples=40, steps=10)
    story.tell("relaunch", reason="all workers died", spent=1, workers=[4, 5])
    story.tell("launch", generation=2, workers=[0, 1], relaunch=1)
    story.tell("restored", step=15, generation=2)
    back = summarize(story.entries)
    story.tell("step", step=17, epoch=0, seconds=0.2, samples=8, steps=2)
    on = summarize(story.entries)
    # The next rank 0 repeats what the dead one may not have written.
    story.tell("step", step=18, epoch=0, seconds=0.3, samples=12, steps=3)
    repeated = summarize(story.entries)

    assert (back.steps, back.samples, back.step_s) == (15, 60, pytest.approx(2.5))
    assert (on.steps, on.samples, on.step_s) == (17, 68, pytest.approx(2.7))
    assert (repeated.steps, repeated.samples, repeated.step_s) == (18, 72, pytest.approx(2.8))


def test_slow_workers_restore_does_not_take_back_steps_of_its_own_launch(story: Run) -> None:
    story.tell("launch", generation=2, workers=[0, 1], relaunch=1)
    story.tell("restored", step=3, generation=2)
    story.steps(4, 5, generation=2)
    story.tell("restored", step=3, generation=2)

    assert summarize(story.entries).steps == 5


def test_trainings_that_are_only_restored_again_keep_their_steps(story: Run) -> None:
    """A script with two trainings, of 4 and 3 steps, is run once more."""
    story.tell("launch").steps(1, 7).tell("job_started", workers=4).tell("launch")
    story.tell("restored", step=4).tell("restored", step=7)

    report = summarize(story.entries)

    assert (report.steps, report.samples) == (7, 56)


def test_relaunch_from_nothing_counts_from_the_first_step(story: Run) -> None:
    story.steps(1, 3)
    story.tell("relaunch", reason="all workers died", spent=1, workers=[4, 5])
    story.tell("launch", generation=2, workers=[0, 1], relaunch=1)
    story.steps(1, 2, generation=2)

    report = summarize(story.entries)

    assert report.steps == 2
    assert report.relaunches[0].restored_step is None
    assert report.relaunches[0].since_failure_ms is None


def test_renewal_is_timed_from_its_stop(story: Run) -> None:
    story.steps(1, 3)
    story.tell("failure", worker=1, cause="signal SIGKILL", step=3)
    story.tell("renewing", after=0.02, reason="1 of 4 workers are left")
    story.tell("stopped", step=3)
    story.tell("relaunch", after=0.01, reason="worn", spent=0, workers=[4], is_renewal=True)
    story.tell("launch", generation=2, workers=[0], relaunch=1)
    story.steps(4, 4, generation=2)

    (renewal,) = summarize(story.entries).relaunches

    assert renewal.is_renewal
    assert renewal.since_failure_ms == pytest.approx(1010.0)


def test_resumed_job_adds_its_time_but_not_the_time_between(story: Run) -> None:
    story.steps(1, 4).tell("stopped", step=4).tell("job_ended", exit_code=75, reason="asked to")
    story.now = 3.0  # another boot: the monotonic clock starts anew
    story.tell("job_started", workers=2).tell("launch", generation=1, workers=[0, 1], relaunch=0)
    story.tell("restored", step=4).steps(5, 6)
    story.tell("job_ended", exit_code=0, reason="done")

    report = summarize(story.entries)

    assert (report.jobs, report.steps, report.exit_code) == (2, 6, 0)
    assert report.wall_s == pytest.approx(6.0)
    story.tell("job_started", workers=2).steps(7, 7)  # without an end it lasts to the newest line
    report = summarize([*story.entries, entry("warning", 3.0, text="odd")])
    assert (report.exit_code, report.reason, report.wall_s) == (None, None, pytest.approx(7.0))


def test_ledger_counts_samples_that_no_step_record_tells_of(story: Run) -> None:
    """The rank that records a step may die right after it was applied."""
    story.steps(1, 3).steps(5, 5).epoch(0, 5, samples=40).steps(6, 6)

    report = summarize(story.entries)

    assert report.samples == 48
    assert report.steps == 6


def test_metrics_of_a_finished_job_are_its_own_with_those_of_validation(story: Run) -> None:
    story.steps(1, 2).epoch(0, 1, samples=8)
    metrics, validation = {"accuracy": 0.9}, {"accuracy": 0.8}
    story.tell("completed", step=2, epochs=1, sha256="ab", metrics=metrics, validation=validation)

    assert summarize(story.entries).metrics == {"accuracy": 0.9, "val_accuracy": 0.8}
    story.tell("completed", step=2, epochs=1, sha256="ab", metrics={})  # those of the last epoch
    assert summarize(story.entries).metrics == {"loss": 0.5, "val_loss": 0.75}


@pytest.mark.parametrize(
    ("events", "step"),
    [
        (["launch", "completed"], 325),
        (["completed", "launch"], None),
        (["completed", "job_started"], None),
    ],
)
def test_completed_step_is_that_of_the_last_launch(
    story: Run, events: list[str], step: int | None
) -> None:
    for event in events:
        story.tell(event, step=325)

    assert summarize(story.entries).completed_step == step


def test_lost_lines_are_counted_over_jobs_and_agents(story: Run) -> None:
    for lines in (3, 7, 2):  # the third is of another agent
        story.tell("output_dropped", lines=lines)
    story.tell("job_started", workers=4).tell("output_dropped", lines=10)

    assert summarize(story.entries).lost_lines == 7 + 2 + 10


def step(number: int, now: float, **fields: Any) -> Entry[Any]:
    common = {"step": number, "epoch": 1, "seconds": 0.5, "samples": 8, "generation": 1}
    return entry("step", now, **(common | fields))


def epoch(number: int, last: int, now: float, **fields: Any) -> Entry[Any]:
    ledger = {"samples": 10 * number, "exact": True}
    return entry("epoch", now, epoch=number, step=last, ledger=ledger, **fields)


def report_of(*records: Entry[Any]) -> Report:
    return summarize([entry("job_started", 0.0, workers=2), *records])


def test_epoch_that_a_relaunch_takes_back_counts_no_samples() -> None:
    records = [step(1, 1.0), epoch(1, 1, 1.1), step(2, 2.0), epoch(2, 2, 2.1)]
    taken_back = [entry("launch", 3.0, workers=[2]), entry("restored", 3.1, step=1)]

    report = report_of(*records, *taken_back)

    assert [one.epoch for one in report.epochs] == [1]
    assert (report.steps, report.samples) == (1, 10)


def test_epoch_without_a_ledger_proves_nothing() -> None:
    (found,) = report_of(entry("epoch", 1.0, epoch=1, step=1, ledger=None)).epochs

    assert (found.samples, found.exact, found.metrics, found.validation) == (0, False, {}, {})


def test_step_of_the_end_counts_if_no_record_tells_of_it() -> None:
    """The worker that writes step records may die before it has written the last one."""
    report = report_of(step(3, 1.0), entry("completed", 2.0, step=4, sha256="ab"))

    assert (report.steps, report.completed_step, report.final_sha256) == (4, 4, "ab")


FAULT = entry("fault", 2.0, worker=1, step=1, site="vote", kind="kill")
DEATHS = [entry("failure", at, worker=1, cause="exit 1") for at in (1.0, 2.5, 9.0)]


@pytest.mark.parametrize(
    ("told", "next_step_ms", "since_ms"),
    [
        ([], 30.0, 30.0),
        (DEATHS[:1], None, None),
        (DEATHS, 500.0, 1000.0),
        ([entry("failure", 1.0, worker=0, cause="exit 1"), FAULT, DEATHS[1]], 500.0, 1500.0),
    ],
    ids=["no death on record", "no step any more", "the last before it", "the fault itself"],
)
def test_recovery_is_timed_from_the_fault_or_death_before_its_detection(
    told: list[Entry[Any]], next_step_ms: float | None, since_ms: float | None
) -> None:
    """A worker with the number of a dead one may die later."""
    recovery = entry(
        "recovery", 10.0, generation=2, step=1, lost=[1], survivors=[0], detected=3.0,
        next_step_ms=next_step_ms,
    )  # fmt: skip

    (found,) = report_of(*told, recovery).recoveries

    assert found.since_failure_ms == since_ms


def test_step_and_restore_of_a_later_relaunch_are_not_those_of_an_earlier_one() -> None:
    first = entry("relaunch", 2.0, reason="all died", workers=[2])
    second = entry("relaunch", 4.0, reason="all died again", workers=[3])

    report = report_of(
        entry("failure", 1.0, worker=0, cause="exit 1"),
        first,
        second,
        entry("restored", 5.0, step=7),
        step(8, 6.0),
    )

    told = [(one.reason, one.restored_step, one.since_failure_ms) for one in report.relaunches]
    assert told == [("all died", None, None), ("all died again", 7, 5000.0)]


def test_deaths_are_counted_by_host_and_cause_over_all_jobs() -> None:
    def death(at: float, cause: str, host: str, **more: object) -> Entry[Any]:
        return entry("failure", at, worker=0, cause=cause, host=host, **more)

    report = report_of(
        death(1.0, "fenced after 3.02 s of silence", "b"),
        death(1.5, "killed with its launch", "a", collateral=True),
        entry("job_started", 2.0, workers=2),
        death(3.0, "fenced after 4.5 s of silence", "b"),
        death(4.0, "exit 1", "a"),
    )

    assert report.death_counts == ("2 deaths on b: fenced", "1 death on a: exit 1")
