"""Requests for a checkpoint now: which checkpoint answers one, and who hears of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.runtime.head import save_requests
from holdfast.runtime.head.save_requests import SaveRequests, SaveWatch
from holdfast.runtime.run.journal import Record
from holdfast.runtime.system.channel import Message


def saved(step: int, seconds: float) -> Message:
    return {"kind": "saved", "step": step, "seconds": seconds}


def record(event: str, now: float = 1.0, **fields: object) -> Record:
    return {"event": event, "now": now, **fields}


def checkpoint(step: int, began: float, now: float) -> Record:
    return record("checkpoint", now, step=step, seconds=now - began)


def watch_after(*records: Record) -> SaveWatch:
    watch = SaveWatch()
    for one in records:
        watch.saw(one)
    return watch


def watch_of(*records: Record, asked: float | None = None) -> SaveWatch:
    watch = SaveWatch()
    watch.saw(record("world"))
    if asked is not None:
        watch.asked(asked)
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
    watch = watch_of(asked=2.0)

    watch.saw(checkpoint(5, began, 3.0))

    assert watch.saved == (saved(5, 1.0) if is_saved else None)


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

    assert watch.saved == saved(7, 3.0)


WORKER, HEAD = "worker 0", "head"


def ended_at(step: int, *, source: str = WORKER) -> Record:
    return record("completed", 2.0, step=step, source=source)


BEFORE = {
    "stopped job": [record("stopped", step=7), record("job_ended"), record("job_started")],
    "completed job": [ended_at(7), record("job_ended"), record("job_started")],
    "dead launch": [ended_at(7), record("launch")],
    "earlier training": [ended_at(7)],
    "earlier training of a slow head": [
        ended_at(7, source=HEAD),
        ended_at(7),
        record("world"),
        ended_at(7, source=HEAD),
    ],
}


@pytest.mark.parametrize("before", BEFORE)
def test_end_at_its_last_checkpoint_is_that_of_the_training_that_was_asked(before: str) -> None:
    watch = watch_after(record("world"), checkpoint(7, 0.5, 1.0), *BEFORE[before])
    if before != "earlier training of a slow head":
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

    assert watch.saved == saved(7, 2.0)


def test_end_without_any_checkpoint_is_no_answer() -> None:
    watch = watch_of(asked=2.0)

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
    assert watch.saved is None or watch.saved["seconds"] >= 0.0


def test_workers_are_asked_once_they_train() -> None:
    watch = SaveWatch()
    for event in ("job_started", "launch"):
        watch.saw(record(event))
        assert not watch.needs_asking
    watch.saw(record("world"))
    assert watch.needs_asking
    watch.asked(2.0)
    assert not watch.needs_asking


def test_new_launch_is_asked_again_and_the_first_order_counts() -> None:
    watch = watch_of(record("launch"), record("world"), asked=2.0)
    assert watch.needs_asking

    watch.asked(9.0)
    watch.saw(checkpoint(6, began=9.5, now=10.0))
    assert watch.saved == saved(6, 8.0)


def test_failed_save_is_asked_for_again_but_not_for_ever() -> None:
    watch = watch_of(asked=2.0)
    for number in range(3):
        assert watch.failure is None
        watch.saw(record("checkpoint_failed", 3.0, reason=f"full {number}"))
        assert watch.needs_asking
        watch.asked(3.0)

    assert watch.failure == "full 2"


def test_failures_before_the_order_are_not_its_own() -> None:
    failed = record("checkpoint_failed", 1.5, reason="full")
    watch = watch_of(failed, failed, failed, failed)

    assert watch.failure is None


@pytest.mark.parametrize(("last_step", "answer"), [(7, saved(7, 3.0)), (8, None)])
def test_end_of_the_job_serves_the_order_if_its_last_step_is_on_the_disk(
    last_step: int, answer: Message | None
) -> None:
    watch = watch_of(
        checkpoint(7, began=1.0, now=2.5),
        record("stopped", 4.0, step=last_step),
        record("job_ended", 5.0),
        asked=2.0,
    )

    assert watch.is_over
    assert watch.saved == answer


def test_next_request_knows_what_the_last_one_has_seen() -> None:
    watch = watch_of(checkpoint(7, began=1.0, now=1.5), asked=2.0)
    watch.saw(record("checkpoint_failed", 2.5, reason="full"))

    again = watch.asks()
    assert again.needs_asking
    again.asked(3.0)
    again.saw(record("stopped", 4.0, step=7))
    again.saw(record("job_ended", 5.0))

    assert again.saved == saved(7, 2.0)
    assert watch.saved is None
    assert again.failure is None


ASKED: Message = {"kind": "asked"}


class Asked:
    """Requests at a second that stands still, and what became of them."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.orders = 0
        self.requests = SaveRequests(self._ask)
        self.answers: list[list[Message]] = []
        self.now = 2.0
        patch.setattr(save_requests, "time", self)

    def monotonic(self) -> float:
        return self.now

    def _ask(self) -> None:
        self.orders += 1

    def add(self, *, is_waiting: bool = True) -> int:
        self.answers.append([])
        return self.requests.add(self.answers[-1].append, is_waiting=is_waiting)

    def saw(self, *records: Record) -> None:
        for one in records:
            self.requests.saw(one)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    return Asked(monkeypatch)


def test_request_is_told_that_workers_were_asked_and_then_of_its_checkpoint(asked: Asked) -> None:
    asked.saw(record("world"))

    asked.add()
    asked.saw(checkpoint(6, began=1.5, now=2.5))
    assert asked.answers == [[ASKED]]
    asked.saw(checkpoint(7, began=2.5, now=3.0), checkpoint(8, began=3.0, now=4.0))

    assert asked.answers == [[ASKED, saved(7, 1.0)]]
    assert asked.orders == 1


def test_request_before_there_are_workers_waits_for_them(asked: Asked) -> None:
    asked.add()
    assert (asked.answers, asked.orders) == ([[]], 0)

    asked.saw(record("launch"), record("world"))

    assert (asked.answers, asked.orders) == ([[ASKED]], 1)


def test_request_that_does_not_wait_hears_only_that_workers_were_asked(asked: Asked) -> None:
    asked.saw(record("world"))

    asked.add(is_waiting=False)
    asked.saw(checkpoint(7, began=2.5, now=3.0))

    assert asked.answers == [[ASKED]]


def test_each_of_several_requests_has_an_answer_of_its_own(asked: Asked) -> None:
    asked.saw(record("world"))
    asked.add()
    asked.now = 2.75
    asked.add()

    asked.saw(checkpoint(7, began=2.5, now=3.0))
    assert asked.answers == [[ASKED, saved(7, 1.0)], [ASKED]]
    asked.saw(checkpoint(8, began=3.0, now=4.0))

    assert asked.answers == [[ASKED, saved(7, 1.0)], [ASKED, saved(8, 1.25)]]


def test_request_whose_workers_died_is_made_again(asked: Asked) -> None:
    asked.saw(record("world"))
    asked.add()

    asked.saw(record("launch"), record("world"), checkpoint(7, began=5.0, now=6.0))

    assert asked.orders == 2
    assert asked.answers == [[ASKED, ASKED, saved(7, 4.0)]]


@pytest.mark.parametrize(
    ("records", "reason"),
    [
        ([record("job_ended", 5.0)], ""),
        ([record("checkpoint_failed", 3.0, reason="full")] * 3, "full"),
    ],
    ids=["job ended", "saves fail"],
)
def test_request_without_a_checkpoint_hears_why(
    asked: Asked, records: list[Record], reason: str
) -> None:
    asked.saw(record("world"))
    asked.add()

    asked.saw(*records)

    assert asked.answers[0][-1] == {"kind": "unsaved", "reason": reason}


def test_request_whose_sender_has_gone_asks_nobody_any_more(asked: Asked) -> None:
    number = asked.add()

    asked.requests.forget(number)
    asked.requests.forget(number)
    asked.saw(record("world"))

    assert (asked.answers, asked.orders) == ([[]], 0)
