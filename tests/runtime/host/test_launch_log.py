"""What is kept of a launch for another supervisor, and how its workers leave together."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from configs import worker_config

from holdfast.recovery.world import WorkerId
from holdfast.runtime.host.halting import look_at_ends
from holdfast.runtime.host.hosted_worker import HostedLaunch, HostedWorker
from holdfast.runtime.host.supervisor_link import LaunchLog
from holdfast.runtime.system.channel import Channel, Message
from holdfast.runtime.system.heartbeat import RequestFlag


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


class Launched:
    """Workers 4 and 7 of a launch, and what is told on their behalf."""

    def __init__(self) -> None:
        launch = HostedLaunch(worker_config(4, (4, 7)), {})
        self.workers = [HostedWorker(worker, launch) for worker in launch.workers]
        self.told: list[tuple[int, Message]] = []

    def come(self, *ends: tuple[int, bool]) -> None:
        """Let each worker have begun so many trainings, and perhaps end; then look."""
        for hosted, (trainings, is_at_end) in zip(self.workers, ends, strict=True):
            hosted.trainings, hosted.is_at_end = trainings, is_at_end
        all_workers = (WorkerId(2), WorkerId(4), WorkerId(7))  # 2 has died before
        look_at_ends(self.workers, all_workers, lambda *told: self.told.append(told))

    def heard(self) -> list[list[str]]:
        """Return what each worker was told."""
        return [self._heard(hosted) for hosted in self.workers]

    def _heard(self, hosted: HostedWorker) -> list[str]:
        worker = Channel.adopt(os.dup(hosted.their_fds[0]))
        kinds = [message["kind"] for message in worker.drain()]
        worker.close()
        return kinds

    def close(self) -> None:
        for hosted in self.workers:
            hosted.close()
            os.close(hosted.stdout_fd)
            os.close(hosted.stderr_fd)


@pytest.fixture
def launched() -> Iterator[Launched]:
    made = Launched()
    yield made
    made.close()


@pytest.mark.parametrize("trainings", [0, 1, 3])
def test_workers_leave_together(launched: Launched, trainings: int) -> None:
    launched.come((trainings, True), (trainings, False))
    assert launched.heard() == [[], []]

    launched.come((trainings, True), (trainings, True))

    assert launched.heard() == [["leave"], ["leave"]]
    assert launched.told == []


def test_worker_does_not_wait_for_one_that_is_condemned(launched: Launched) -> None:
    launched.workers[1].kill("guard lost")

    launched.come((1, True), (2, False))

    assert launched.heard()[0] == ["leave"]


def test_launch_whose_scripts_have_gone_apart_ends_with_an_error_of_each_worker(
    launched: Launched,
) -> None:
    launched.come((1, True), (2, False))

    assert [worker for worker, _ in launched.told] == [2, 4, 7]
    for _, error in launched.told:
        assert (error["kind"], error["type"], error["exit_code"]) == ("error", "ScriptsApart", 1)
        assert error["message"].startswith("worker 4 ended its script after 1 training, but")
    assert all(hosted.is_condemned for hosted in launched.workers)


@pytest.mark.parametrize(("trainings", "kinds"), [(1, ["stopped"]), (0, ["error"] * 3)])
def test_scripts_that_go_apart_after_an_order_to_stop_have_stopped_at_their_last_training(
    launched: Launched, trainings: int, kinds: list[str]
) -> None:
    launched.workers[0].page.commit(40)
    launched.workers[1].page.ask(RequestFlag.STOP)

    launched.come((trainings, True), (2, False))

    assert [report["kind"] for _, report in launched.told] == kinds
    assert launched.told[0][1].get("step") == (40 if trainings else None)
    assert all(hosted.is_condemned for hosted in launched.workers)
