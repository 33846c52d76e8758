"""What a journal means: the steps, epochs, deaths and recoveries that count."""

from __future__ import annotations

import json
from typing import Any

import pytest
from journal_entries import entry

from holdfast.runtime.commands.run_report import (
    Report,
    describe_checkpoints,
    describe_ledger,
    describe_troubles,
    to_json,
)
from holdfast.runtime.commands.summary import summarize
from holdfast.runtime.run.checkpoint_events import CheckpointFailed, Rejected
from holdfast.runtime.run.entries import Entry
from holdfast.runtime.run.events import Failure, FaultStruck, MemoryDiffers


class Story:
    """Writes records as a job would, with a clock that only the story moves."""

    def __init__(self) -> None:
        self.now = 100.0
        self.entries: list[Entry[Any]] = []

    def tell(self, event: str, *, after: float = 0.0, **fields: Any) -> Story:
        self.now += after
        self.entries.append(entry(event, self.now, **fields))
        return self

    def steps(self, first: int, last: int, *, generation: int = 1) -> Story:
        for step in range(first, last + 1):
            self.tell(
                "step", after=1.0, step=step, epoch=0, seconds=0.9, samples=8, generation=generation
            )
        return self

    def epoch(self, epoch: int, step: int, *, samples: int, exact: bool = True) -> Story:
        return self.tell(
            "epoch",
            epoch=epoch,
            step=step,
            metrics={"loss": 0.5 / (epoch + 1)},
            validation={"loss": 0.75},
            ledger={"samples": samples, "fingerprint": 1, "exact": exact},
        )


@pytest.fixture
def story() -> Story:
    return Story().tell("job_started", workers=4)


def test_undisturbed_job(story: Story) -> None:
    story.tell("launch", generation=1, workers=[0, 1, 2, 3], relaunch=0)
    story.steps(1, 4).epoch(0, 4, samples=32)
    story.tell("checkpoint", step=4, generation=1, seconds=0.1, bytes=1000)
    story.tell("completed", step=4, epochs=1, sha256="ab" * 32, metrics={"accuracy": 0.9})
    story.tell("job_ended", after=0.5, exit_code=0, reason="done")

    report = summarize(story.entries)

    assert (report.steps, report.samples, report.jobs) == (4, 32, 1)
    assert report.metrics == {"accuracy": 0.9}
    assert report.final_sha256 == "ab" * 32
    assert (report.exit_code, report.reason) == (0, "done")
    assert report.wall_s == pytest.approx(4.5)
    assert report.goodput == pytest.approx(3.9 / 4.5)
    assert [epoch.exact for epoch in report.epochs] == [True]
    assert [checkpoint.bytes for checkpoint in report.checkpoints] == [1000]
    assert report.failures == report.recoveries == report.relaunches == ()


def test_journal_without_any_record() -> None:
    report = summarize([])

    assert (report.steps, report.samples, report.goodput, report.exit_code) == (0, 0, 0.0, None)


def test_job_that_goes_on_has_no_exit_code(story: Story) -> None:
    report = summarize(story.steps(1, 2).entries)

    assert report.exit_code is None
    assert report.steps == 2


def test_recovery_is_timed_from_the_fault_to_the_next_step(story: Story) -> None:
    story.steps(1, 2)
    story.tell("fault", worker=2, step=3, site="reduce", kind="kill", attempt=1)
    struck = story.now
    story.tell("failure", after=0.006, worker=2, cause="signal SIGKILL", step=2, phase="training")
    story.tell(
        "recovery",
        after=0.05,
        generation=2,
        step=3,
        lost=[2],
        survivors=[0, 1, 3],
        attempts=1,
        detected=struck + 0.010,
        revoked_ms=1.0,
        shrunk_ms=2.0,
        agreed_ms=3.0,
        adopted_ms=4.0,
        next_step_ms=40.0,
    )

    report = summarize(story.entries)

    (recovery,) = report.recoveries
    assert recovery.lost == (2,)
    assert recovery.survivors == (0, 1, 3)
    assert recovery.next_step_ms == 40.0
    assert recovery.since_failure_ms == pytest.approx(50.0)
    assert report.faults == (FaultStruck("kill", 2, 3, "reduce", 1),)
    (failure,) = report.failures
    assert failure._replace(job=None, after_s=None) == Failure(2, "signal SIGKILL", 2, "training")
    assert failure.job == 1


def test_recovery_of_two_is_timed_from_the_first_death(story: Story) -> None:
    struck = story.now
    story.tell("fault", worker=1, step=1, site="compute", kind="stop", attempt=1)
    story.tell("fault", after=0.2, worker=3, step=1, site="repair", kind="kill", attempt=1)
    story.tell(
        "recovery",
        after=0.3,
        generation=3,
        step=1,
        lost=[1, 3],
        survivors=[0, 2],
        attempts=2,
        detected=struck + 0.3,
        next_step_ms=100.0,
    )

    (recovery,) = summarize(story.entries).recoveries

    assert recovery.since_failure_ms == pytest.approx(400.0)


def test_recovery_without_any_recorded_death_is_timed_from_its_detection(story: Story) -> None:
    story.tell(
        "recovery",
        generation=2,
        step=1,
        lost=[1],
        survivors=[0],
        detected=story.now,
        next_step_ms=30.0,
    )

    (recovery,) = summarize(story.entries).recoveries

    assert recovery.since_failure_ms == 30.0


def test_steps_that_a_relaunch_rolled_back_do_not_count(story: Story) -> None:
    story.steps(1, 5).epoch(0, 4, samples=32)
    story.tell("failure", worker=0, cause="signal SIGKILL", step=5)
    story.tell("relaunch", after=0.1, reason="all workers died", spent=1, workers=[4, 5])
    story.tell("launch", generation=2, workers=[0, 1], relaunch=1)
    story.tell("restored", after=0.2, step=3, seconds=0.01, generation=2)
    story.steps(4, 6, generation=2).epoch(0, 4, samples=32)

    report = summarize(story.entries)

    assert report.steps == 6
    assert report.step_s == pytest.approx(6 * 0.9)
    assert len(report.epochs) == 1
    assert report.relaunches[0].restored_step == 3
    assert report.relaunches[0].since_failure_ms == pytest.approx(1300.0)


def test_line_of_many_steps_is_taken_back_in_part(story: Story) -> None:
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


def test_restore_alone_takes_the_run_back(story: Story) -> None:
    """The job may die again before it applies a step: what was lost is lost already."""
    story.steps(1, 5)
    story.tell("relaunch", reason="all workers died", spent=1, workers=[4, 5])
    story.tell("launch", generation=2, workers=[0, 1], relaunch=1)
    story.tell("restored", step=3, seconds=0.01, generation=2)

    assert summarize(story.entries).steps == 3


def test_slow_workers_restore_does_not_take_back_steps_of_its_own_launch(story: Story) -> None:
    story.tell("launch", generation=2, workers=[0, 1], relaunch=1)
    story.tell("restored", step=3, generation=2)
    story.steps(4, 5, generation=2)
    story.tell("restored", step=3, generation=2)

    assert summarize(story.entries).steps == 5


def test_trainings_that_are_only_restored_again_keep_their_steps(story: Story) -> None:
    """A script with two trainings, of 4 and 3 steps, is run once more."""
    story.tell("launch").steps(1, 7).tell("job_started", workers=4).tell("launch")
    story.tell("restored", step=4).tell("restored", step=7)

    report = summarize(story.entries)

    assert (report.steps, report.samples) == (7, 56)


def test_relaunch_from_nothing_counts_from_the_first_step(story: Story) -> None:
    story.steps(1, 3)
    story.tell("relaunch", reason="all workers died", spent=1, workers=[4, 5])
    story.tell("launch", generation=2, workers=[0, 1], relaunch=1)
    story.steps(1, 2, generation=2)

    report = summarize(story.entries)

    assert report.steps == 2
    assert report.relaunches[0].restored_step is None
    assert report.relaunches[0].since_failure_ms is None


def test_relaunch_is_timed_from_the_fault_that_ended_the_job(story: Story) -> None:
    story.steps(1, 3)
    story.tell("fault", worker=1, step=4, site="vote", kind="kill", attempt=1)
    story.tell("failure", after=0.02, worker=1, cause="signal SIGKILL", step=3)
    story.tell("relaunch", reason="all workers died", spent=1, workers=[4])
    story.tell("launch", generation=2, workers=[0], relaunch=1)
    story.steps(1, 1, generation=2)

    assert summarize(story.entries).relaunches[0].since_failure_ms == pytest.approx(1020.0)


def test_renewal_is_timed_from_its_stop(story: Story) -> None:
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


def test_resumed_job_adds_its_time_but_not_the_time_between(story: Story) -> None:
    story.steps(1, 4).tell("stopped", step=4).tell("job_ended", exit_code=75, reason="asked to")
    story.now = 3.0  # another boot: the monotonic clock starts anew
    story.tell("job_started", workers=2).tell("launch", generation=1, workers=[0, 1], relaunch=0)
    story.tell("restored", step=4).steps(5, 6)
    story.tell("job_ended", exit_code=0, reason="done")

    report = summarize(story.entries)

    assert (report.jobs, report.steps, report.exit_code) == (2, 6, 0)
    assert report.wall_s == pytest.approx(6.0)


def test_limit_that_was_nearly_met_is_among_the_troubles(story: Story) -> None:
    text = "open files of worker 3: 980 of 1024 in use"
    story.tell("pressure", resource="open files", place="worker 3", used=980, limit=1024, text=text)

    assert describe_troubles(summarize(story.entries)) == [text]


def test_ledger_counts_samples_that_no_step_record_tells_of(story: Story) -> None:
    """The rank that records a step may die right after it was applied."""
    story.steps(1, 3).steps(5, 5).epoch(0, 5, samples=40).steps(6, 6)

    report = summarize(story.entries)

    assert report.samples == 48
    assert report.steps == 6


def test_inexact_epoch_is_named(story: Story) -> None:
    story.steps(1, 2).epoch(0, 1, samples=8).epoch(1, 2, samples=7, exact=False)

    report = summarize(story.entries)

    assert [epoch.exact for epoch in report.epochs] == [True, False]
    assert describe_ledger(report) == "not exact: 1"


def test_metrics_of_an_unfinished_job_are_those_of_its_last_epoch(story: Story) -> None:
    story.steps(1, 2).epoch(0, 1, samples=8).epoch(1, 2, samples=8)

    assert summarize(story.entries).metrics == {"loss": 0.25, "val_loss": 0.75}


def test_metrics_of_a_finished_job_are_its_own_with_those_of_validation(story: Story) -> None:
    story.steps(1, 2).epoch(0, 1, samples=8)
    metrics, validation = {"accuracy": 0.9}, {"accuracy": 0.8}
    story.tell("completed", step=2, epochs=1, sha256="ab", metrics=metrics, validation=validation)

    assert summarize(story.entries).metrics == {"accuracy": 0.9, "val_accuracy": 0.8}


def test_checkpoints_that_failed_or_were_rejected_are_kept_with_their_reasons(
    story: Story,
) -> None:
    story.tell("checkpoint_failed", step=3, reason="No space left on device")
    story.tell("rejected", step=2, reason="shard 1 is missing")

    report = summarize(story.entries)

    assert report.failed_checkpoints == (CheckpointFailed(3, "No space left on device"),)
    assert report.rejected_checkpoints == (Rejected(2, "shard 1 is missing"),)


def test_json_is_strict_even_with_numbers_that_json_lacks(story: Story) -> None:
    story.tell("completed", step=1, epochs=1, sha256="00", metrics={"loss": float("nan")})

    content = json.loads(to_json(summarize(story.entries)), parse_constant=pytest.fail)

    assert content["metrics"] == {"loss": None}
    assert content["final_sha256"] == "00"


def test_what_was_the_matter_with_checkpoints_and_memory_is_told(story: Story) -> None:
    story.tell("checkpoint_skipped", step=2).tell("checkpoint_skipped", step=3)
    story.tell("checkpoint", step=4, seconds=0.1, bytes=9, generation=1)
    for reason in ("disk full", "disk gone"):
        story.tell("checkpoint_failed", step=6, reason=reason)
    story.tell("rejected", step=4, reason="a bit")
    story.tell("unreadable", step=5, reason="stale", path="/r", error="ESTALE", seconds=180.0)
    story.tell("memory_differs", step=5, workers=[0, 2], has_majority=False)

    report = summarize(story.entries)

    assert report.skipped_checkpoints == 2
    assert report.memory_differences == (MemoryDiffers(5, (0, 2), has_majority=False),)
    assert describe_checkpoints(report) == (
        "1 committed, 2 failed, 1 rejected, 1 could not be read, 2 skipped"
    )
    assert describe_troubles(report) == [
        "the checkpoint of step 6 failed: disk gone (the last of 2 that failed)",
        "rejected the checkpoint of step 4: a bit",
        "gave up the checkpoint of step 5 after 3:00: stale",
        "step 5 differs in the memory of workers 0 and 2: no majority shows whose state is right",
    ]


@pytest.mark.parametrize(
    ("events", "step"),
    [
        (["launch", "completed"], 325),
        (["completed", "launch"], None),
        (["completed", "job_started"], None),
    ],
)
def test_completed_step_is_that_of_the_last_launch(
    story: Story, events: list[str], step: int | None
) -> None:
    for event in events:
        story.tell(event, step=325)

    assert summarize(story.entries).completed_step == step


def test_failure_has_the_number_of_its_job_and_the_time_in_it(story: Story) -> None:
    story.tell("failure", after=2.5, worker=1, cause="signal SIGKILL")
    story.tell("job_ended", exit_code=70).tell("job_started", after=9.0, workers=4)
    story.tell("failure", after=4.0, worker=2, cause="exit 1")

    failures = summarize(story.entries).failures

    assert [(failure.job, failure.after_s) for failure in failures] == [(1, 2.5), (2, 4.0)]


def test_lost_lines_are_counted_over_jobs_and_agents(story: Story) -> None:
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


def test_records_before_the_first_job_have_no_time_but_count() -> None:
    report = summarize([step(1, 5.0), entry("job_started", 9.0, workers=2), step(2, 10.5)])

    assert (report.jobs, report.wall_s, report.steps, report.samples) == (1, 1.5, 2, 16)


def test_job_without_an_end_lasts_until_its_newest_record() -> None:
    """Several processes write the journal, so its last line need not be the newest."""
    report = report_of(step(1, 8.0), entry("warning", 3.0, text="odd"))

    assert (report.wall_s, report.exit_code) == (8.0, None)


def test_end_of_an_earlier_job_is_not_that_of_the_last_one() -> None:
    report = report_of(
        entry("job_ended", 4.0, exit_code=70, reason="budget"),
        entry("job_started", 9.0, workers=2),
        step(1, 10.0),
    )

    assert (report.exit_code, report.reason, report.wall_s) == (None, None, 5.0)


def test_epoch_that_a_relaunch_takes_back_counts_no_samples() -> None:
    records = [step(1, 1.0), epoch(1, 1, 1.1), step(2, 2.0), epoch(2, 2, 2.1)]
    taken_back = [entry("launch", 3.0, workers=[2]), entry("restored", 3.1, step=1)]

    report = report_of(*records, *taken_back)

    assert [one.epoch for one in report.epochs] == [1]
    assert (report.steps, report.samples) == (1, 10)


def test_epoch_that_is_trained_again_counts_once() -> None:
    report = report_of(
        step(1, 1.0), epoch(1, 1, 1.1), step(2, 2.0), epoch(2, 2, 2.1), epoch(1, 1, 3.1)
    )

    assert [(one.epoch, one.step) for one in report.epochs] == [(1, 1)]


def test_epoch_without_a_ledger_proves_nothing() -> None:
    (found,) = report_of(entry("epoch", 1.0, epoch=1, step=1, ledger=None)).epochs

    assert (found.samples, found.exact, found.metrics, found.validation) == (0, False, {}, {})


def test_metrics_of_an_end_that_tells_none_are_those_of_the_last_epoch() -> None:
    report = report_of(
        epoch(1, 1, 1.0, metrics={"loss": 0.5}), entry("completed", 2.0, step=1, metrics={})
    )

    assert report.metrics == {"loss": 0.5}


def test_step_of_the_end_counts_if_no_record_tells_of_it() -> None:
    """The worker that writes step records may die before it has written the last one."""
    report = report_of(step(3, 1.0), entry("completed", 2.0, step=4, sha256="ab"))

    assert (report.steps, report.completed_step, report.final_sha256) == (4, 4, "ab")


def test_field_of_a_later_version_is_left_out() -> None:
    report = report_of(entry("checkpoint", 1.0, step=1, seconds=0.1, bytes=9, colour="blue"))

    assert [one.bytes for one in report.checkpoints] == [9]


def test_recovery_after_which_no_step_came_has_no_duration() -> None:
    (recovery,) = report_of(
        entry("recovery", 2.0, generation=2, step=1, lost=[1], survivors=[0], detected=1.0)
    ).recoveries

    assert recovery.since_failure_ms is None


def test_death_counts_for_a_recovery_only_up_to_its_detection() -> None:
    """A worker with the number of a dead one may die later."""
    deaths = [entry("failure", at, worker=1, cause="exit 1") for at in (1.0, 2.0, 9.0)]
    times = {"detected": 3.0, "next_step_ms": 500.0}
    recovery = entry("recovery", 10.0, generation=2, step=1, lost=[1], survivors=[0], **times)

    (found,) = report_of(*deaths, recovery).recoveries

    assert found.since_failure_ms == pytest.approx(1500.0)


def test_fault_counts_before_the_moment_at_which_its_death_was_seen() -> None:
    fault = entry("fault", 2.0, worker=1, step=1, site="vote", kind="kill")
    death = entry("failure", 2.5, worker=1, cause="signal SIGKILL")
    other = entry("failure", 1.0, worker=0, cause="exit 1")
    times = {"detected": 3.0, "next_step_ms": 500.0}
    recovery = entry("recovery", 10.0, generation=2, step=1, lost=[1], survivors=[0], **times)

    (found,) = report_of(other, fault, death, recovery).recoveries

    assert found.since_failure_ms == pytest.approx(1500.0)


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


def test_relaunch_without_a_death_on_record_has_no_duration() -> None:
    (relaunch,) = report_of(
        entry("relaunch", 2.0, reason="lost", workers=[2]), step(1, 3.0)
    ).relaunches

    assert relaunch.since_failure_ms is None


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


def test_single_death_is_not_counted() -> None:
    report = report_of(entry("failure", 1.0, worker=0, cause="exit 1"))

    assert report.death_counts == ()
