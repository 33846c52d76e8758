"""What a report makes of a history that is cut, repeated, or of several jobs."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.runtime.run.journal import Record
from holdfast.runtime.tools.report import Report
from holdfast.runtime.tools.summary import summarize


def record(event: str, now: float, **fields: Any) -> Record:
    return {"event": event, "now": now, "run_id": "r1", **fields}


def step(number: int, now: float, **fields: Any) -> Record:
    common = {"step": number, "epoch": 1, "seconds": 0.5, "samples": 8, "generation": 1}
    return record("step", now, **(common | fields))


def epoch(number: int, last: int, now: float, **fields: Any) -> Record:
    ledger = {"samples": 10 * number, "exact": True}
    return record("epoch", now, epoch=number, step=last, ledger=ledger, **fields)


def report_of(*records: Record) -> Report:
    return summarize([record("job_started", 0.0, workers=2), *records])


def test_records_before_the_first_job_have_no_time_but_count() -> None:
    report = summarize([step(1, 5.0), record("job_started", 9.0, workers=2), step(2, 10.5)])

    assert (report.jobs, report.wall_s, report.steps, report.samples) == (1, 1.5, 2, 16)


def test_job_without_an_end_lasts_until_its_newest_record() -> None:
    """Several processes write the journal, so its last line need not be the newest."""
    report = report_of(step(1, 8.0), record("warning", 3.0, text="odd"))

    assert (report.wall_s, report.exit_code) == (8.0, None)


def test_end_of_an_earlier_job_is_not_that_of_the_last_one() -> None:
    report = report_of(
        record("job_ended", 4.0, exit_code=70, reason="budget"),
        record("job_started", 9.0, workers=2),
        step(1, 10.0),
    )

    assert (report.exit_code, report.reason, report.wall_s) == (None, None, 5.0)


def test_epoch_that_a_relaunch_takes_back_counts_no_samples() -> None:
    records = [step(1, 1.0), epoch(1, 1, 1.1), step(2, 2.0), epoch(2, 2, 2.1)]
    taken_back = [record("launch", 3.0, workers=[2]), record("restored", 3.1, step=1)]

    report = report_of(*records, *taken_back)

    assert [one.epoch for one in report.epochs] == [1]
    assert (report.steps, report.samples) == (1, 10)


def test_epoch_that_is_trained_again_counts_once() -> None:
    report = report_of(
        step(1, 1.0), epoch(1, 1, 1.1), step(2, 2.0), epoch(2, 2, 2.1), epoch(1, 1, 3.1)
    )

    assert [(one.epoch, one.step) for one in report.epochs] == [(1, 1)]


def test_epoch_without_a_ledger_proves_nothing() -> None:
    (found,) = report_of(record("epoch", 1.0, epoch=1, step=1, ledger=None)).epochs

    assert (found.samples, found.exact, found.metrics, found.validation) == (0, False, {}, {})


def test_metrics_of_an_end_that_tells_none_are_those_of_the_last_epoch() -> None:
    report = report_of(
        epoch(1, 1, 1.0, metrics={"loss": 0.5}), record("completed", 2.0, step=1, metrics={})
    )

    assert report.metrics == {"loss": 0.5}


def test_step_of_the_end_counts_if_no_record_tells_of_it() -> None:
    """The worker that writes step records may die before it has written the last one."""
    report = report_of(step(3, 1.0), record("completed", 2.0, step=4, sha256="ab"))

    assert (report.steps, report.completed_step, report.final_sha256) == (4, 4, "ab")


def test_field_of_a_later_version_is_left_out() -> None:
    report = report_of(record("checkpoint", 1.0, step=1, seconds=0.1, bytes=9, colour="blue"))

    assert [one.bytes for one in report.checkpoints] == [9]


def test_recovery_after_which_no_step_came_has_no_duration() -> None:
    (recovery,) = report_of(
        record("recovery", 2.0, generation=2, step=1, lost=[1], survivors=[0], detected=1.0)
    ).recoveries

    assert recovery.since_failure_ms is None


def test_death_counts_for_a_recovery_only_up_to_its_detection() -> None:
    """A worker with the number of a dead one may die later."""
    deaths = [record("failure", at, worker=1, cause="exit 1") for at in (1.0, 2.0, 9.0)]
    times = {"detected": 3.0, "next_step_ms": 500.0}
    recovery = record("recovery", 10.0, generation=2, step=1, lost=[1], survivors=[0], **times)

    (found,) = report_of(*deaths, recovery).recoveries

    assert found.since_failure_ms == pytest.approx(1500.0)


def test_fault_counts_before_the_moment_at_which_its_death_was_seen() -> None:
    fault = record("fault", 2.0, worker=1, step=1, site="vote", kind="kill")
    death = record("failure", 2.5, worker=1, cause="signal SIGKILL")
    other = record("failure", 1.0, worker=0, cause="exit 1")
    times = {"detected": 3.0, "next_step_ms": 500.0}
    recovery = record("recovery", 10.0, generation=2, step=1, lost=[1], survivors=[0], **times)

    (found,) = report_of(other, fault, death, recovery).recoveries

    assert found.since_failure_ms == pytest.approx(1500.0)


def test_step_and_restore_of_a_later_relaunch_are_not_those_of_an_earlier_one() -> None:
    first = record("relaunch", 2.0, reason="all died", workers=[2])
    second = record("relaunch", 4.0, reason="all died again", workers=[3])

    report = report_of(
        record("failure", 1.0, worker=0, cause="exit 1"),
        first,
        second,
        record("restored", 5.0, step=7),
        step(8, 6.0),
    )

    told = [(one.reason, one.restored_step, one.since_failure_ms) for one in report.relaunches]
    assert told == [("all died", None, None), ("all died again", 7, 5000.0)]


def test_relaunch_without_a_death_on_record_has_no_duration() -> None:
    (relaunch,) = report_of(
        record("relaunch", 2.0, reason="lost", workers=[2]), step(1, 3.0)
    ).relaunches

    assert relaunch.since_failure_ms is None


def test_step_that_kills_again_and_again_is_told_after_what_was_suspected() -> None:
    deaths = [
        record("failure", at, worker=worker, cause="signal SIGKILL", step=7)
        for at, worker in ((1.0, 0), (2.0, 3))
    ]
    suspicion = record("suspicion", 3.0, text="core 5 has lost 3 workers")

    blamed = report_of(step(7, 0.5), *deaths, suspicion).repeated
    forgiven = report_of(step(7, 0.5), *deaths, suspicion, step(8, 4.0)).repeated

    assert blamed == ("core 5 has lost 3 workers", "step 8 has killed workers 0, 3")
    assert forgiven == ("core 5 has lost 3 workers",)


def test_deaths_of_several_jobs_accuse_a_step_together() -> None:
    death = {"cause": "signal SIGKILL", "step": 7}

    report = report_of(
        record("failure", 1.0, worker=0, **death),
        record("job_started", 2.0, workers=2),
        record("failure", 3.0, worker=0, **death),
    )

    assert report.repeated == ("step 8 has killed workers 0, 0",)
