"""Every nanosecond of a run is in one bucket, and each cause is in its own."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from journal_entries import entry

from holdfast.runtime.commands.goodput import (
    SINCE_LAST_STEP,
    Bucket,
    buckets_of,
    goodput_of,
    spans_of,
)
from holdfast.runtime.run.entries import Entry

S = 1_000_000_000


def step(
    number: int, now: float, seconds: float = 1.0, generation: int = 1, **fields: Any
) -> Entry[Any]:
    return entry("step", now, step=number, seconds=seconds, generation=generation, **fields)


def _buckets(records: list[Entry[Any]], began: float, ended: float) -> dict[Bucket, float]:
    found = buckets_of(spans_of(records, began, ended))
    return {bucket: length / S for bucket, length in found.items() if length}


def test_time_in_which_the_whole_job_stood_still_is_a_bucket_of_its_own() -> None:
    """Within a step, across two of them, and before the first one."""
    records = [
        entry("paused", 2.5, seconds=2.0, until=2.0),
        *(step(1, 4), step(2, 75, 71.0)),
        entry("paused", 74, seconds=66.0, until=74.0),
        entry("paused", 81, seconds=5.0, until=81.0),
        step(3, 84, 8.0),
    ]

    assert _buckets(records, 0, 84) == {
        Bucket.STARTING: 1,
        Bucket.PAUSED: 73,
        Bucket.TRAINING: 10,
    }


def test_gap_with_a_launch_is_a_relaunch_and_rolled_back_steps_were_in_vain() -> None:
    records = [
        *(step(1, 1), step(2, 2), step(3, 3)),
        entry("failure", 3.5),
        entry("launch", 4),
        *(step(2, 7, 1.0, 2), step(3, 8, 1.0, 2)),
    ]

    assert _buckets(records, 0, 8) == {
        Bucket.TRAINING: 3,
        Bucket.REPEATED: 2,
        Bucket.RELAUNCH: 3,
    }


def test_records_that_the_next_first_worker_writes_again_count_once() -> None:
    """It has its own clock readings of the same commits."""
    records = [step(1, 1), step(2, 2), step(1, 1.001), step(2, 2.001), step(3, 4, 1.0, 2)]

    assert _buckets(records, 0, 4) == {Bucket.TRAINING: 3, Bucket.REPAIR: 1}


def test_steps_of_one_world_are_never_repeated_work_though_their_stamps_run_back() -> None:
    """The one who writes them down dates them, and a line waits for it longer than the next one."""
    records = [step(1, 1), step(2, 2.01), step(3, 2.0, 0.9), step(5, 4, 2.0, steps=2)]
    of_the_next_first_worker = step(4, 3, 0.9)

    assert _buckets(records, 0, 4) == {Bucket.TRAINING: 4}
    assert _buckets([*records, of_the_next_first_worker], 0, 4) == {Bucket.TRAINING: 4}


RECORDS = st.lists(
    st.one_of(
        st.builds(
            step,
            st.integers(1, 6),
            st.floats(0, 100),
            st.floats(0, 20),
            st.integers(1, 3),
        ),
        st.builds(
            lambda event, now, seconds: entry(event, now, seconds=seconds),
            st.sampled_from(["launch", "checkpoint", "job_started", "failure"]),
            st.floats(0, 100),
            st.floats(0, 5),
        ),
    ),
    max_size=25,
)


@given(RECORDS, st.floats(0, 60), st.floats(0, 60))
def test_buckets_add_up_to_the_wall_time_exactly(
    records: list[Entry[Any]], began: float, length: float
) -> None:
    spans = spans_of(records, began, began + length)

    whole = round((began + length) * S) - round(began * S)
    assert sum(buckets_of(spans).values()) == whole
    ends = [round(began * S), *(span.end for span in spans)]
    assert [span.begin for span in spans] == ends[:-1]


def test_steps_that_a_later_job_does_again_do_not_count() -> None:
    """The second job begins at a boot of its own: its clock is another one."""
    records = [
        entry("job_started", 100.0),
        step(40, 140, 40.0, steps=40),
        entry("job_started", 5.0),
        step(41, 16, 11.0, 2, steps=11),
    ]

    found = goodput_of(records)

    assert found is not None
    assert (found.jobs, found.wall_s) == (2, 51.0)
    assert found.parts_s["repeated work"] == 10.0
    assert found.share == 41 / 51


def parts(records: list[Entry[Any]], now_s: float | None = None) -> dict[str, float]:
    found = goodput_of(records, now_s)
    assert found is not None
    return {name: length for name, length in found.parts_s.items() if length}


@pytest.mark.parametrize(
    ("marks", "cause"),
    [
        ([], Bucket.TRAINING),
        ([entry("warning", 1.5)], Bucket.TRAINING),
        ([entry("checkpoint", 1.9, seconds=0.25)], Bucket.SAVING),
        ([entry("checkpoint_failed", 1.5)], Bucket.SAVING),
        ([entry("checkpoint", 1.9, seconds=1.5)], Bucket.TRAINING),
        ([entry("launch", 1.5)], Bucket.RELAUNCH),
        ([entry("relaunch", 1.5, is_renewal=True)], Bucket.RENEWAL),
        ([entry("relaunch", 1.5, is_renewal=1)], Bucket.RELAUNCH),
        ([entry("relaunch", 1.5, is_renewal=True), entry("job_started", 1.6)], Bucket.RELAUNCH),
        ([entry("launch", 1.5), entry("checkpoint", 1.9, seconds=0.0)], Bucket.RELAUNCH),
        ([entry("checkpoint", 1.9, seconds=0.25), None], Bucket.REPAIR),
        ([entry("checkpoint", 1.9, seconds=0.25), entry("launch", 1.5), None], Bucket.RELAUNCH),
    ],
    ids=[
        "nothing", "warning", "save", "failed save", "save that began before", "launch",
        "renewal", "no renewal", "renewal and another job", "launch and save", "save and repair",
        "save, launch and repair",
    ],
)  # fmt: skip
def test_gap_has_the_cause_that_its_marks_show(
    marks: list[Entry[Any] | None], cause: Bucket
) -> None:
    """None stands for another generation; the second between two steps is beside their training."""
    told = [mark for mark in marks if mark is not None]
    last = step(2, 3.0, 1.0, 2 if None in marks else 1)

    spans = spans_of([step(1, 1.0), *told, last], 0.0, 3.0)

    assert {span.bucket for span in spans if (span.begin, span.end) == (S, 2 * S)} == {cause}


def test_running_job_is_counted_until_now_and_the_ended_ones_until_their_end() -> None:
    ended = [entry("job_started", 100.0), step(1, 102.0), entry("job_ended", 103.0)]
    running = [entry("job_started", 5.0), step(2, 7.0)]

    assert parts([*ended, *running], now_s=9.5) == {
        "starting": 2.0,
        "training": 2.0,
        "ending": 1.0,
        SINCE_LAST_STEP: 2.5,
    }


def test_clock_that_is_behind_the_newest_record_takes_nothing_away() -> None:
    records = [entry("job_started", 5.0), step(1, 7.0)]

    assert parts(records, now_s=6.0) == {"starting": 1.0, "training": 1.0}


def test_steps_that_two_later_jobs_go_back_to_are_lost_once() -> None:
    first = [entry("job_started", 0.0), step(1, 1.0), step(2, 2.0), step(3, 3.0)]
    second = [entry("job_started", 0.0), step(3, 1.0)]
    third = [entry("job_started", 0.0), step(2, 1.0), step(3, 2.0)]

    assert parts([*first, *second, *third]) == {"training": 3.0, "repeated work": 3.0}
