"""Requests for a checkpoint now: which checkpoint answers one, and who hears of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.runtime.head.save_requests import SaveRequests
from holdfast.runtime.run.journal import Record
from holdfast.runtime.system.channel import Message

ASKED: Message = {"kind": "asked"}


def saved(step: int, seconds: float) -> Message:
    return {"kind": "saved", "step": step, "seconds": seconds}


def unsaved(reason: str = "") -> Message:
    return {"kind": "unsaved", "reason": reason}


def record(event: str, now: float = 1.0, **fields: object) -> Record:
    return {"event": event, "now": now, **fields}


def checkpoint(step: int, began: float, now: float) -> Record:
    return record("checkpoint", now, step=step, seconds=now - began)


class Asked:
    """Requests at a second that stands still, and what became of them."""

    def __init__(self, *records: Record) -> None:
        self.orders = 0
        self.requests = SaveRequests(self._ask, lambda: self.now)
        self.answers: list[list[Message]] = []
        self.now = 2.0
        self.saw(*records)

    def _ask(self) -> None:
        self.orders += 1

    def add(self, now: float | None = None, *, is_waiting: bool = True) -> int:
        self.now = self.now if now is None else now
        self.answers.append([])
        return self.requests.add(self.answers[-1].append, is_waiting=is_waiting)

    def saw(self, *records: Record) -> None:
        for one in records:
            self.requests.saw(one)


@pytest.mark.parametrize(
    ("event", "fields"),
    [("world", {}), ("step", {}), ("epoch", {}), ("checkpoint", {"step": 1, "seconds": 0.5})],
)
def test_any_sign_of_training_shows_workers_to_ask(event: str, fields: dict[str, float]) -> None:
    """The journal is read near its end, so the record of the world may lie further up."""
    asked = Asked(record("launch"), record(event, **fields))

    asked.add()

    assert (asked.answers, asked.orders) == ([[ASKED]], 1)


@pytest.mark.parametrize("event", ["restored", "warning", "failure", "checkpoint_skipped"])
def test_other_events_show_no_workers(event: str) -> None:
    asked = Asked(record("launch"), record(event, step=1))

    asked.add()

    assert (asked.answers, asked.orders) == ([[]], 0)


@pytest.mark.parametrize("event", ["job_started", "launch", "job_ended"])
def test_workers_of_an_earlier_launch_are_not_asked(event: str) -> None:
    asked = Asked(record("world"), record(event))

    asked.add()

    assert asked.orders == 0


@pytest.mark.parametrize("event", ["job_started", "launch"])
def test_job_that_begins_is_not_over(event: str) -> None:
    asked = Asked(record("world"), record("job_ended"))
    asked.add()

    asked.saw(record(event))
    asked.add()

    assert asked.answers == [[unsaved()], []]


@pytest.mark.parametrize(("began", "is_saved"), [(1.75, False), (2.0, True), (2.25, True)])
def test_checkpoint_holds_the_step_only_if_it_began_at_the_order_or_later(
    began: float, *, is_saved: bool
) -> None:
    asked = Asked(record("world"))
    asked.add()

    asked.saw(checkpoint(5, began, 3.0))

    assert asked.answers == [[ASKED, *[saved(5, 1.0)] * is_saved]]


def test_last_checkpoint_of_a_job_serves_nobody_who_asks_later() -> None:
    asked = Asked(
        record("world"), checkpoint(7, 1.0, 2.0), record("completed", step=7), record("job_ended")
    )

    asked.add()

    assert asked.answers == [[unsaved()]]


@pytest.mark.parametrize("event", ["completed", "stopped"])
def test_end_at_the_step_of_an_older_checkpoint_is_an_answer(event: str) -> None:
    asked = Asked(record("world"), checkpoint(6, 0.5, 1.0), checkpoint(7, 1.0, 1.5))
    asked.add()

    asked.saw(record(event, 4.0, step=7), record("job_ended", 5.0))

    assert asked.answers == [[ASKED, saved(7, 3.0)]]


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
    asked = Asked(record("world"), checkpoint(7, 0.5, 1.0), *BEFORE[before])
    if before != "earlier training of a slow head":
        asked.saw(record("world"))
    asked.add(3.0)

    asked.saw(record("step", 4.0, step=8), record("job_ended", 5.0))

    assert asked.answers == [[ASKED, unsaved()]]


def test_job_that_stops_where_the_last_one_did_has_its_checkpoint() -> None:
    asked = Asked(
        record("world"), checkpoint(7, 0.5, 1.0), record("stopped", step=7), record("job_ended")
    )
    asked.saw(*map(record, ("job_started", "launch", "world")))
    asked.add(3.0)

    asked.saw(record("stopped", 4.0, step=7), record("job_ended", 5.0))

    assert asked.answers == [[ASKED, saved(7, 2.0)]]


_EVENTS = st.sampled_from(["world", "step", "launch", "job_started", "checkpoint"])


@given(st.lists(_EVENTS, max_size=12), st.integers(0, 12))
def test_answer_is_never_older_than_the_order(events: list[str], asked_before: int) -> None:
    """Each record is a second after the one before, and each save takes one and a half."""
    asked = Asked(record("world"))
    asked_at = asked_before - 0.25

    for now, event in enumerate(events):
        if now == asked_before:
            asked.saw(record("world"))
            asked.add(asked_at)
        asked.saw(record(event, float(now), step=now, seconds=1.5))

    begun = [now - 1.5 for now, event in enumerate(events) if event == "checkpoint"]
    told = [answer for each in asked.answers for answer in each if answer["kind"] == "saved"]
    assert bool(told) == (bool(asked.answers) and any(moment >= asked_at for moment in begun))
    assert all(answer["seconds"] >= 0.0 for answer in told)


def test_new_launch_is_asked_again_and_the_first_order_counts() -> None:
    asked = Asked(record("world"))
    asked.add()

    asked.now = 9.0
    asked.saw(record("launch"), record("world"), checkpoint(6, began=9.5, now=10.0))

    assert asked.orders == 2
    assert asked.answers == [[ASKED, ASKED, saved(6, 8.0)]]


def test_failed_save_is_asked_for_again_but_not_for_ever() -> None:
    asked = Asked(record("world"))
    asked.add()

    for number in range(3):
        assert asked.answers == [[ASKED] * (number + 1)]
        asked.saw(record("checkpoint_failed", 3.0, reason=f"full {number}"))

    assert asked.answers[0][-1] == unsaved("full 2")


def test_failures_before_the_order_are_not_its_own() -> None:
    asked = Asked(record("world"), *[record("checkpoint_failed", 1.5, reason="full")] * 4)

    asked.add()

    assert asked.answers == [[ASKED]]


@pytest.mark.parametrize(("last_step", "answer"), [(7, saved(7, 3.0)), (8, unsaved())])
def test_end_of_the_job_serves_the_order_if_its_last_step_is_on_the_disk(
    last_step: int, answer: Message
) -> None:
    asked = Asked(record("world"))
    asked.add()

    asked.saw(
        checkpoint(7, began=1.0, now=2.5),
        record("stopped", 4.0, step=last_step),
        record("job_ended", 5.0),
    )

    assert asked.answers == [[ASKED, answer]]


def test_request_is_told_that_workers_were_asked_and_then_of_its_checkpoint() -> None:
    asked = Asked(record("world"))

    asked.add()
    asked.saw(checkpoint(6, began=1.5, now=2.5))
    assert asked.answers == [[ASKED]]
    asked.saw(checkpoint(7, began=2.5, now=3.0), checkpoint(8, began=3.0, now=4.0))

    assert asked.answers == [[ASKED, saved(7, 1.0)]]
    assert asked.orders == 1


def test_request_before_there_are_workers_waits_for_them() -> None:
    asked = Asked()
    asked.add()
    assert (asked.answers, asked.orders) == ([[]], 0)

    asked.saw(record("launch"), record("world"))

    assert (asked.answers, asked.orders) == ([[ASKED]], 1)


def test_request_that_does_not_wait_hears_only_that_workers_were_asked() -> None:
    asked = Asked(record("world"))

    asked.add(is_waiting=False)
    asked.saw(checkpoint(7, began=2.5, now=3.0))

    assert asked.answers == [[ASKED]]


def test_each_of_several_requests_has_an_answer_of_its_own() -> None:
    asked = Asked(record("world"))
    asked.add()
    asked.add(2.75)

    asked.saw(checkpoint(7, began=2.5, now=3.0))
    assert asked.answers == [[ASKED, saved(7, 1.0)], [ASKED]]
    asked.saw(checkpoint(8, began=3.0, now=4.0))

    assert asked.answers == [[ASKED, saved(7, 1.0)], [ASKED, saved(8, 1.25)]]


def test_request_whose_sender_has_gone_asks_nobody_any_more() -> None:
    asked = Asked()
    number = asked.add()

    asked.requests.forget(number)
    asked.requests.forget(number)
    asked.saw(record("world"))

    assert (asked.answers, asked.orders) == ([[]], 0)
