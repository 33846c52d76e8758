"""What the journal's records mean for somebody who waits for a checkpoint."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.runtime.run.journal import Record
from holdfast.runtime.tools.save_request import Saved, SaveWatch


def record(event: str, now: float = 1.0, **fields: object) -> Record:
    return {"event": event, "now": now, **fields}


def checkpoint(step: int, began: float, now: float) -> Record:
    return record("checkpoint", now, step=step, seconds=now - began)


def watch_after(*records: Record) -> SaveWatch:
    watch = SaveWatch()
    for one in records:
        watch.saw(one)
    return watch


@pytest.mark.parametrize(
    ("event", "fields"),
    [("world", {}), ("step", {}), ("epoch", {}), ("checkpoint", {"step": 1, "seconds": 0.5})],
)
def test_any_sign_of_training_shows_workers_to_ask(event: str, fields: dict[str, float]) -> None:
    """The journal is read near its end, so the record of the world may lie further up."""
    assert watch_after(record("launch"), record(event, **fields)).needs_asking


@pytest.mark.parametrize("event", ["restored", "warning", "failure", "checkpoint_skipped"])
def test_other_events_show_no_workers(event: str) -> None:
    assert not watch_after(record("launch"), record(event, step=1)).needs_asking


@pytest.mark.parametrize("event", ["job_started", "launch", "job_ended"])
def test_workers_of_an_earlier_launch_are_not_asked(event: str) -> None:
    assert not watch_after(record("world"), record(event)).needs_asking


@pytest.mark.parametrize("event", ["job_started", "launch"])
def test_job_that_begins_is_not_over(event: str) -> None:
    ended = watch_after(record("world"), record("job_ended"))

    assert ended.is_over
    ended.saw(record(event))
    assert not ended.is_over


@pytest.mark.parametrize(("began", "is_saved"), [(1.75, False), (2.0, True), (2.25, True)])
def test_checkpoint_holds_the_step_only_if_it_began_at_the_order_or_later(
    began: float, *, is_saved: bool
) -> None:
    watch = watch_after(record("world"))
    watch.asked(2.0)

    watch.saw(checkpoint(5, began, 3.0))

    assert watch.saved == (Saved(5, 1.0) if is_saved else None)


def test_checkpoint_that_nobody_has_asked_for_is_no_answer() -> None:
    assert watch_after(record("world"), checkpoint(5, 1.0, 3.0)).saved is None


def test_last_checkpoint_of_a_job_serves_nobody_who_has_not_asked() -> None:
    watch = watch_after(
        record("world"), checkpoint(7, 1.0, 2.0), record("completed", step=7), record("job_ended")
    )

    assert (watch.saved, watch.is_over) == (None, True)


@pytest.mark.parametrize("event", ["completed", "stopped"])
def test_end_at_the_step_of_an_older_checkpoint_is_an_answer(event: str) -> None:
    watch = watch_after(record("world"), checkpoint(6, 0.5, 1.0), checkpoint(7, 1.0, 1.5))
    watch.asked(2.0)

    watch.saw(record(event, 4.0, step=7))
    watch.saw(record("job_ended", 5.0))

    assert watch.saved == Saved(7, 3.0)


WORKER, SUPERVISOR = "worker 0", "supervisor"


def ended_at(step: int, *, source: str = WORKER) -> Record:
    return record("completed", 2.0, step=step, source=source)


BEFORE = {
    "stopped job": [record("stopped", step=7), record("job_ended"), record("job_started")],
    "completed job": [ended_at(7), record("job_ended"), record("job_started")],
    "dead launch": [ended_at(7), record("launch")],
    "earlier training": [ended_at(7)],
    "earlier training of a slow supervisor": [
        ended_at(7, source=SUPERVISOR),
        ended_at(7),
        record("world"),
        ended_at(7, source=SUPERVISOR),
    ],
}


@pytest.mark.parametrize("before", BEFORE)
def test_end_at_its_last_checkpoint_is_that_of_the_training_that_was_asked(before: str) -> None:
    watch = watch_after(record("world"), checkpoint(7, 0.5, 1.0), *BEFORE[before])
    if before != "earlier training of a slow supervisor":
        watch.saw(record("world"))
    watch.asked(3.0)

    watch.saw(record("step", 4.0, step=8))
    watch.saw(record("job_ended", 5.0))

    assert (watch.saved, watch.is_over) == (None, True)


def test_job_that_stops_where_the_last_one_did_has_its_checkpoint() -> None:
    watch = watch_after(
        record("world"), checkpoint(7, 0.5, 1.0), record("stopped", step=7), record("job_ended")
    )
    for event in ("job_started", "launch", "world"):
        watch.saw(record(event))
    watch.asked(3.0)

    watch.saw(record("stopped", 4.0, step=7))
    watch.saw(record("job_ended", 5.0))

    assert watch.saved == Saved(7, 2.0)


@pytest.mark.parametrize(("drained", "saved"), [(7, Saved(7, 3.0)), (6, None)])
def test_last_step_of_the_local_directory_is_an_answer_once_it_has_drained(
    drained: int, saved: Saved | None
) -> None:
    local = [{**checkpoint(step, 0.5, 1.0), "place": "local directory"} for step in (6, 7)]
    watch = watch_after(record("world"), *local)
    watch.asked(2.0)

    watch.saw(record("drained", 3.0, step=drained))
    watch.saw(record("stopped", 4.0, step=7))
    watch.saw(record("job_ended", 5.0))

    assert watch.saved == saved


def test_end_without_any_checkpoint_is_no_answer() -> None:
    watch = watch_after(record("world"))
    watch.asked(2.0)

    watch.saw(record("job_ended", 5.0))

    assert (watch.saved, watch.is_over) == (None, True)


_EVENTS = st.sampled_from(["world", "step", "launch", "job_started", "checkpoint", "job_ended"])


@given(st.lists(_EVENTS, max_size=12), st.integers(0, 12))
def test_answer_is_never_older_than_the_order(events: list[str], asked_before: int) -> None:
    """Each record is a second after the one before, and each save takes one and a half."""
    watch, asked_at = SaveWatch(), asked_before - 0.25

    for now, event in enumerate(events):
        if now == asked_before:
            watch.asked(asked_at)
        watch.saw(record(event, float(now), step=now, seconds=1.5))

    begun = [now - 1.5 for now, event in enumerate(events) if event == "checkpoint"]
    assert (watch.saved is not None) == any(moment >= asked_at for moment in begun)
    assert watch.saved is None or watch.saved.seconds >= 0.0
