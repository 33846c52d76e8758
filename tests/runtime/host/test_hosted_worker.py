"""What is known of a worker, wherever it lives: what it has told, its guard, and its end."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from configs import worker_config

from holdfast.recovery.world import WorkerId
from holdfast.runtime.host.host_messages import Down, KillWorker
from holdfast.runtime.host.hosted_worker import GuardHello, GuardLink, HostedLaunch, HostedWorker
from holdfast.runtime.system.channel import pair
from holdfast.runtime.system.codec import to_plain
from holdfast.runtime.system.worker_status import HaltOrder, WorkerStatus

CONFIG = worker_config(
    0,
    (0,),
    run_id="run",
    generation=0,
    microbatches=4,
    seed=1,
    argv=("--fast",),
)


def _launch_message(**changes: Any) -> dict[str, Any]:
    config = {**to_plain(CONFIG), "generation": 3, "workers": [4, 7]}
    message = {"kind": "launch", "config": json.loads(json.dumps(config))}
    return {**message, **changes}


class FakeHost:
    """The worker's host, which keeps what it is told."""

    name = ""
    unheard_s = leased_s = 0.0

    def __init__(self) -> None:
        self.told: list[Down] = []

    def post(self, message: Down, fds: Sequence[int] = ()) -> None:
        self.told.append(message)

    def status_of(self, generation: int, worker: WorkerId) -> WorkerStatus:
        return WorkerStatus.mirror()


@pytest.fixture
def host() -> FakeHost:
    return FakeHost()


@pytest.fixture
def hosted(host: FakeHost) -> Iterator[HostedWorker]:
    made = HostedWorker(WorkerId(7), 3, host)
    yield made
    made.close()


def test_launch_tells_each_worker_who_it_is() -> None:
    launch = HostedLaunch.of(_launch_message(env={"A": "1"}))

    config = launch.config_of(WorkerId(7))

    assert launch.environment == {"A": "1"}
    assert config == dataclasses.replace(
        CONFIG, worker=WorkerId(7), generation=3, workers=(WorkerId(4), WorkerId(7))
    )


@pytest.mark.parametrize(
    "changes",
    [{"config": []}, {"config": {}}, {"config": {"threads": 1}}, {"env": 3}],
)
def test_incomplete_launch_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        HostedLaunch.of(_launch_message(**changes))


def test_guard_must_say_everything() -> None:
    hello = {"rank": 1, "generation": 2, "cwd": "/", "env": {"PMIX_RANK": "1"}}
    assert GuardHello.of(hello) == GuardHello(1, 2, "/", {"PMIX_RANK": "1"})

    for name in hello:
        with pytest.raises(KeyError):
            GuardHello.of({key: value for key, value in hello.items() if key != name})


def test_reports_on_the_script_concern_the_agent_alone(hosted: HostedWorker) -> None:
    assert hosted.note({"kind": "training", "number": 2})
    assert hosted.note({"kind": "at_end"})
    assert not hosted.note({"kind": "checkpoint", "step": 5})
    assert not hosted.note({})

    assert (hosted.trainings, hosted.is_at_end) == (2, True)


def test_word_on_an_order_to_a_halted_worker_that_was_replaced_is_not_kept(
    hosted: HostedWorker,
) -> None:
    hosted.page.order_halted(HaltOrder(5, 0, 2))

    assert hosted.note({"kind": "halt_done", "attempt": 4, "failure": ""})
    assert hosted.halt_failure is None
    assert hosted.note({"kind": "halt_done", "attempt": 5, "failure": "the disk is full"})

    assert hosted.halt_failure == "the disk is full"


class FakeGuard(GuardLink):
    """A guard whose end is noted."""

    def __init__(self) -> None:
        ours, self.theirs = pair()
        super().__init__(ours, None)
        self.is_killed = False

    def kill(self) -> None:
        self.is_killed = True


def test_guard_dies_after_its_worker_has_been_killed_on_its_host(
    hosted: HostedWorker, host: FakeHost
) -> None:
    """MPI would else tell of the death of a worker that still sends."""
    guard = FakeGuard()
    hosted.guard = guard

    hosted.kill("fenced", "stall")
    hosted.kill("another reason")
    assert host.told == [
        KillWorker(3, WorkerId(7), "fenced", "stall"),
        KillWorker(3, WorkerId(7), "another reason"),
    ]
    assert hosted.is_condemned
    assert not guard.is_killed

    hosted.was_killed("fenced")

    assert guard.is_killed
    guard.theirs.close()


def test_worker_that_its_host_has_killed_is_condemned(hosted: HostedWorker) -> None:
    hosted.was_killed("fenced after 2.00 s of silence")

    assert hosted.is_condemned


def test_rank_is_taken_from_the_guard_on_unless_no_process_will_ever_run(
    hosted: HostedWorker,
) -> None:
    ours, theirs = pair()
    assert not hosted.occupies_a_rank

    hosted.guard = GuardLink(ours, None)
    assert hosted.occupies_a_rank
    assert not hosted.is_running
    hosted.kill("killed with its launch")

    assert not hosted.occupies_a_rank
    hosted.pid = 4711  # it was forked meanwhile, and takes its rank until it has ended
    assert hosted.occupies_a_rank
    theirs.close()


def test_guard_that_is_turned_away_keeps_no_connection_open() -> None:
    read, write = os.pipe()

    GuardHello(0, 1, "/", {}, (write,)).close()

    assert os.read(read, 1) == b""
    os.close(read)
