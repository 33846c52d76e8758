"""What is kept of a launch for another supervisor: as little as it needs."""

from __future__ import annotations

from holdfast.runtime.agent.launch_log import LaunchLog
from holdfast.runtime.system.channel import Message


def report(worker: int, kind: str, **fields: object) -> Message:
    return {"kind": "worker_report", "worker": worker, "report": {"kind": kind, **fields}}


def test_newest_event_of_each_kind_is_kept_in_the_order_of_time() -> None:
    log = LaunchLog()
    log.begin({"kind": "launch"})
    joined = report(0, "joined")
    newest = report(1, "world", generation=3)

    for event in (joined, report(1, "world", generation=2), newest):
        log.note(event)

    assert log.launch == {"kind": "launch"}
    assert log.events == (joined, newest)


def test_reports_of_different_workers_do_not_replace_each_other() -> None:
    log = LaunchLog()
    events = (report(0, "complete"), report(1, "complete"))
    for event in events:
        log.note(event)

    assert log.events == events


def test_checkpoints_of_months_are_one_event() -> None:
    log = LaunchLog()
    for step in range(10_000):
        log.note(report(step % 3, "checkpoint", step=step))

    assert log.events == (report(0, "checkpoint", step=9_999),)


def test_what_no_decision_needs_is_not_kept() -> None:
    log = LaunchLog()
    for event in ({"kind": "pong"}, {"kind": "warm", "pid": 3}, report(0, "notice", text="hi")):
        log.note(event)

    assert log.events == ()


def test_wish_to_make_room_is_kept_once() -> None:
    log = LaunchLog()
    log.note({"kind": "renewing", "worker": 0, "now": 1.0})
    log.note({"kind": "renewing", "worker": 0, "now": 2.0})

    assert log.events == ({"kind": "renewing", "worker": 0, "now": 2.0},)


def test_next_launch_begins_with_nothing() -> None:
    log = LaunchLog()
    log.note({"kind": "worker_exited", "worker": 2})
    log.note({"kind": "launch_ended"})

    log.begin({"kind": "launch", "spent": 1})

    assert log.events == ()
    assert log.launch == {"kind": "launch", "spent": 1}


def test_launch_is_known_as_people_know_it() -> None:
    log = LaunchLog()
    assert log.summary is None

    config = {"options": {"script": "/a/train.py"}, "generation": 4, "workers": [4, 5]}
    log.begin({"kind": "launch", "config": config, "relaunch": 1})

    assert log.summary == {
        "script": "/a/train.py", "generation": 4, "workers": [4, 5], "relaunch": 1,
    }  # fmt: skip
