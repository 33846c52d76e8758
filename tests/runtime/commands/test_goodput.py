"""Every nanosecond of a run is in one bucket, and each cause is in its own."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.runtime.commands.goodput import Bucket, buckets_of, goodput_of, spans_of
from holdfast.runtime.run.journal import Record

S = 1_000_000_000


def step(number: int, now: float, seconds: float = 1.0, generation: int = 1) -> Record:
    return {
        "event": "step",
        "step": number,
        "now": now,
        "seconds": seconds,
        "generation": generation,
    }


def _buckets(records: list[Record], began: float, ended: float) -> dict[Bucket, float]:
    found = buckets_of(spans_of(records, began, ended))
    return {bucket: length / S for bucket, length in found.items() if length}


def test_undisturbed_run_starts_trains_and_ends() -> None:
    records = [{"event": "launch", "now": 10.5}, step(1, 14), step(2, 15.5), step(3, 16.5)]

    assert _buckets(records, 10, 18) == {
        Bucket.STARTING: 3,
        Bucket.TRAINING: 3.5,  # the gap of half a second has no cause of its own
        Bucket.ENDING: 1.5,
    }


def test_gap_before_another_generation_is_a_repair() -> None:
    records = [step(1, 1), step(2, 4, 1.0, 2)]

    assert _buckets(records, 0, 4) == {Bucket.TRAINING: 2, Bucket.REPAIR: 2}


def test_gap_with_a_launch_is_a_relaunch_and_rolled_back_steps_were_in_vain() -> None:
    records = [
        *(step(1, 1), step(2, 2), step(3, 3)),
        {"event": "failure", "now": 3.5},
        {"event": "launch", "now": 4},
        *(step(2, 7, 1.0, 2), step(3, 8, 1.0, 2)),
    ]

    assert _buckets(records, 0, 8) == {
        Bucket.TRAINING: 3,
        Bucket.REPEATED: 2,
        Bucket.RELAUNCH: 3,
    }


def test_gap_in_which_a_launch_made_room_is_a_renewal_unless_the_next_one_was_lost() -> None:
    renewal: Record = {"event": "relaunch", "now": 2.5, "is_renewal": True}
    begun: Record = {"event": "launch", "now": 2.5}
    lost: Record = {"event": "relaunch", "now": 4, "is_renewal": False}
    steps = [step(1, 1), step(2, 2), step(3, 7, 1.0, 2)]

    renewed = _buckets([*steps[:2], renewal, begun, steps[2]], 0, 7)
    relaunched = _buckets([*steps[:2], renewal, begun, lost, steps[2]], 0, 7)

    assert renewed == {Bucket.TRAINING: 3, Bucket.RENEWAL: 4}
    assert relaunched == {Bucket.TRAINING: 3, Bucket.RELAUNCH: 4}


def test_waiting_for_the_next_job_is_a_relaunch() -> None:
    records = [
        step(1, 1),
        {"event": "job_ended", "now": 1.5},
        {"event": "job_started", "now": 5},
        {"event": "launch", "now": 5},
        step(2, 8, 1.0, 2),
    ]

    assert _buckets(records, 0, 8) == {Bucket.TRAINING: 2, Bucket.RELAUNCH: 6}


def test_gap_in_which_a_save_began_is_a_stall() -> None:
    saved = {"event": "checkpoint", "now": 3.5, "seconds": 2.25}  # it began at 1.25
    records = [step(1, 1), step(2, 2.5), saved, step(3, 3.5)]

    assert _buckets(records, 0, 3.5) == {Bucket.TRAINING: 3, Bucket.SAVING: 0.5}


def test_records_that_the_next_first_worker_writes_again_count_once() -> None:
    """It has its own clock readings of the same commits."""
    records = [step(1, 1), step(2, 2), step(1, 1.001), step(2, 2.001), step(3, 4, 1.0, 2)]

    assert _buckets(records, 0, 4) == {Bucket.TRAINING: 3, Bucket.REPAIR: 1}


def test_run_without_a_step_only_starts() -> None:
    assert _buckets([{"event": "launch", "now": 1}], 0, 2) == {Bucket.STARTING: 2}


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
            lambda event, now, seconds: {"event": event, "now": now, "seconds": seconds},
            st.sampled_from(["launch", "checkpoint", "job_started", "failure"]),
            st.floats(0, 100),
            st.floats(0, 5),
        ),
    ),
    max_size=25,
)


@given(RECORDS, st.floats(0, 60), st.floats(0, 60))
def test_buckets_add_up_to_the_wall_time_exactly(
    records: list[Record], began: float, length: float
) -> None:
    spans = spans_of(records, began, began + length)

    whole = round((began + length) * S) - round(began * S)
    assert sum(buckets_of(spans).values()) == whole
    ends = [round(began * S), *(span.end for span in spans)]
    assert [span.begin for span in spans] == ends[:-1]


def test_takeover_beside_which_training_goes_on_is_no_relaunch() -> None:
    records = [step(1, 1), {"event": "taken_over", "now": 1.5}, step(2, 3)]

    assert _buckets(records, 0, 3) == {Bucket.TRAINING: 3}


def test_steps_that_a_later_job_does_again_do_not_count() -> None:
    """The second job begins at a boot of its own: its clock is another one."""
    records = [
        {"event": "job_started", "now": 100.0},
        step(40, 140, 40.0) | {"steps": 40},
        {"event": "job_started", "now": 5.0},
        step(41, 16, 11.0, 2) | {"steps": 11},
    ]

    found = goodput_of(records)

    assert found is not None
    assert (found.jobs, found.wall_s) == (2, 51.0)
    assert found.parts_s["repeated work"] == 10.0
    assert found.share == 41 / 51
