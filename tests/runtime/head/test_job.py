"""What a head is told of its job, and what its client keeps for the next head."""

from __future__ import annotations

import json
import signal
from dataclasses import replace
from typing import Any

import pytest
from heads import job_of, report

from holdfast.recovery.errors import ExitCode
from holdfast.recovery.event import (
    CheckpointCommitted,
    Event,
    Launch,
    LaunchEnded,
    LaunchRenewing,
    WorkerCompleted,
    WorkerExited,
    WorkerFailed,
    WorkerJoined,
    WorkerStopped,
    WorldFormed,
)
from holdfast.recovery.placement import HostSlots
from holdfast.recovery.world import WorkerId
from holdfast.runtime.batch.schedulers import TimeLimit
from holdfast.runtime.head.job import (
    Job,
    LaunchLog,
    config_of,
    event_of,
    launch_of,
    may_go_on_elsewhere,
)
from holdfast.runtime.head.orders import TimeLimits
from holdfast.runtime.system.codec import from_plain, to_plain

WORKER = WorkerId(3)
ERROR = {"kind": "error", "message": "m", "traceback": "t", "exit_code": 1}
FIFTH = Launch(5, (WorkerId(6), WorkerId(7)), relaunch=2, reason="again", spent=3)


def test_job_reaches_its_head_as_it_was_settled() -> None:
    limits = TimeLimits(TimeLimit(0.0, 3600.0, "squeue"), is_batch=True)
    limits.saved({"step": 5, "seconds": 100.0, "step_seconds": 20.0})
    limits.repeats(signal.SIGTERM, is_stopping=False, now=5.0)
    faults = ("kill worker=1 step=3",)
    job = job_of(limits, faults=faults, struck=((1, 3, "compute", 1),), saved_step=40)

    assert from_plain(Job, json.loads(json.dumps(to_plain(job)))) == job


@pytest.mark.parametrize(
    ("options", "workers", "can_shrink", "has_checkpoint"),
    [
        ({}, 2, True, False),
        ({"shrink": False}, 2, False, False),
        ({"workers": 1, "shrink": False}, 1, True, False),
        ({"spares": 2}, 4, True, False),
        ({"saved_step": 7}, 2, True, True),
    ],
    ids=["plain", "MPI cannot shrink", "nobody waits", "spares", "resumed"],
)
def test_machine_gets_the_terms_of_the_user(
    options: dict[str, Any], workers: int, *, can_shrink: bool, has_checkpoint: bool
) -> None:
    terms = job_of(**options).terms

    assert (terms.workers, terms.can_shrink) == (workers, can_shrink)
    assert terms.has_checkpoint is has_checkpoint


def test_order_of_a_launch_is_read_back_by_the_next_head() -> None:
    job = job_of(shrink=False)

    order = job.order_of(FIFTH, config_of(job.config, FIFTH))

    assert order["config"]["workers"] == [6, 7]
    mpi = {"mpiexec": "/opt/mpiexec", "library": "Open MPI", "ulfm": False}
    mpi |= {"network": None, "mca": []}
    assert order["mpi"] == mpi
    found = launch_of(order)
    assert (found.generation, found.workers, found.relaunch, found.spent) == (5, (6, 7), 2, 3)


def test_order_has_the_users_settings_of_mpi_as_pairs() -> None:
    job = job_of(mca=("btl self,uct", "btl_uct_transports rc"))

    order = job.order_of(FIFTH, config_of(job.config, FIFTH))

    assert order["mpi"]["mca"] == [["btl", "self,uct"], ["btl_uct_transports", "rc"]]


@pytest.mark.parametrize(
    ("hosts", "settled", "network"),
    [
        ((), "10.1.0.0/16", None),
        (("a", "b"), None, "10.2.0.0/16"),
        (("a", "b"), "10.1.0.0/16", "10.1.0.0/16"),
    ],
    ids=["one host", "as the user says", "as it was settled"],
)
def test_order_names_the_network_between_the_hosts(
    hosts: tuple[str, ...], settled: str | None, network: str | None
) -> None:
    slots = tuple(HostSlots(host, 1) for host in hosts)
    job = replace(job_of(network="10.2.0.0/16"), hosts=slots, network=settled)

    order = job.order_of(FIFTH, config_of(job.config, FIFTH))

    assert order["mpi"]["network"] == network


@pytest.mark.parametrize(
    ("asked", "differs"),
    [
        ([False, "/a/train.py", "--lr", "1"], False),
        ([True, "/a/train.py", "--lr", "1"], True),
        ([False, "/b/train.py", "--lr", "1"], True),
        ([False, "/a/train.py"], True),
    ],
    ids=["the same", "fresh", "another script", "other arguments"],
)
def test_request_for_another_job_is_told_apart(asked: list[Any], *, differs: bool) -> None:
    assert (job_of(argv=("--lr", "1")).asked != asked) is differs


def reported(**fields: Any) -> dict[str, Any]:
    return {"kind": "worker_report", "worker": 3, "report": fields}


@pytest.mark.parametrize(
    ("message", "event"),
    [
        (reported(kind="joined"), WorkerJoined(WORKER)),
        (
            reported(kind="world", generation=2, workers=[1, 3], step=5),
            WorldFormed(2, (WorkerId(1), WORKER), 5),
        ),
        (reported(kind="checkpoint", step=5), CheckpointCommitted(WORKER, 5)),
        (
            reported(kind="complete", step=9, sha256="cafe", is_first=True),
            WorkerCompleted(WORKER, 9, "cafe", is_first=True),
        ),
        (reported(kind="stopped", step=7), WorkerStopped(WORKER, 7)),
        (
            {"kind": "worker_exited", "worker": 3, "clean": True, "cause": "exit 0"},
            WorkerExited(WORKER, is_clean=True, cause="exit 0"),
        ),
        (
            {"kind": "worker_exited", "worker": 3, "clean": False, "cause": "guard lost"},
            WorkerExited(WORKER, is_clean=False, cause="guard lost"),
        ),
    ],
)
def test_message_becomes_an_event(message: dict[str, Any], event: Event) -> None:
    assert event_of(message) == event


@pytest.mark.parametrize(
    ("error", "is_death"),
    [("ValueError", False), ("KeyError", False), ("InjectedFault", True), ("WorldLost", True)],
)
def test_only_what_a_relaunch_may_mend_is_a_death(error: str, *, is_death: bool) -> None:
    event = event_of(reported(**ERROR, type=error))

    assert event == WorkerFailed(WORKER, error, "m", "t", 1, is_death)


@pytest.mark.parametrize(
    "message",
    [
        {},
        {"kind": "warm", "pid": 1},
        {"kind": "worker_started", "worker": 3},
        {"kind": "worker_fenced", "worker": 3},
        reported(kind="notice", text="disk full"),
        reported(),
    ],
)
def test_message_that_changes_nothing_is_no_event(message: dict[str, Any]) -> None:
    assert event_of(message) is None


@pytest.mark.parametrize(
    ("message", "event"),
    [
        ({"kind": "renewing", "worker": 3}, LaunchRenewing(WORKER)),
        ({"kind": "launch_ended", "words": ""}, LaunchEnded()),
        (
            {"kind": "launch_ended", "words": "no slots"},
            LaunchEnded("mpiexec started no worker: no slots"),
        ),
    ],
    ids=["renewing", "ended", "never begun"],
)
def test_word_on_the_whole_launch_becomes_an_event(message: dict[str, Any], event: Event) -> None:
    assert event_of(message) == event


@pytest.mark.parametrize(("fields", "is_in_training"), [({}, False), ({"is_in_training": 1}, True)])
def test_error_says_whether_it_has_ended_a_training(
    fields: dict[str, Any], *, is_in_training: bool
) -> None:
    event = event_of(reported(**ERROR, type="ValueError", **fields))

    assert isinstance(event, WorkerFailed)
    assert event.is_in_training is is_in_training
    assert event.exit_code is ExitCode.PROGRAM_FAILED


def test_newest_event_of_each_kind_is_kept_in_the_order_of_time() -> None:
    log = LaunchLog()
    log.begin({"kind": "launch"})
    joined = report(0, "joined")
    newest = report(1, "world", generation=3)

    for event in (joined, report(1, "world", generation=2), newest):
        log.note(event)

    assert log.order == {"kind": "launch"}
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
    for event in ({"kind": "paused"}, {"kind": "warm", "pid": 3}, report(0, "notice", text="hi")):
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
    assert log.order == {"kind": "launch", "spent": 1}


def test_launch_is_known_as_people_know_it() -> None:
    log = LaunchLog()
    assert log.summary is None

    config = {"options": {"script": "/a/train.py"}, "generation": 4, "workers": [4, 5]}
    log.begin({"kind": "launch", "config": config, "relaunch": 1})

    assert log.summary == {
        "script": "/a/train.py", "generation": 4, "workers": [4, 5], "relaunch": 1,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("hosts", "ended", "may"),
    [
        (("", ""), [], False),
        (("a", "b"), [], False),
        (("b", "c"), [], True),
        (("a", "b"), [0], True),
        (("b", "c"), [0, 1], False),
    ],
    ids=["one host", "one died with its head", "none died", "one died before", "all are dead"],
)
def test_workers_of_a_dead_head_may_go_on_if_none_was_on_its_host(
    hosts: tuple[str, ...], ended: list[int], *, may: bool
) -> None:
    job = job_of()
    launch = Launch(1, (WorkerId(0), WorkerId(1)), 0, "", 0)
    order = job.order_of(launch, config_of(job.config, launch, hosts=hosts))
    told = [{"kind": "worker_exited", "worker": worker} for worker in ended]
    own = "a" if any(hosts) else ""

    assert may_go_on_elsewhere(order, told, own) is may
    assert may_go_on_elsewhere(order, [*told, {"kind": "host_lost", "leased_s": 3.0}], own)


@pytest.mark.parametrize(
    ("named", "ended", "may"),
    [
        ([], [], False),
        ([[0, 1]], [], False),
        ([[1, 2]], [], True),
        ([[0, 1], [1]], [], True),
        ([[1, 2]], [1, 2], False),
    ],
    ids=["none", "with its host", "without it", "the newest counts", "all are dead"],
)
def test_world_that_was_named_without_the_head_s_host_may_go_on(
    named: list[list[int]], ended: list[int], *, may: bool
) -> None:
    """The worker of that host hung, and nobody had killed it yet."""
    job, log = job_of(), LaunchLog()
    launch = Launch(1, (WorkerId(0), WorkerId(1), WorkerId(2)), 0, "", 0)
    order = job.order_of(launch, config_of(job.config, launch, hosts=("a", "b", "c")))
    log.begin(order)
    for workers in named:
        assert log.note({"kind": "world_named", "workers": workers})
    for worker in ended:
        log.note({"kind": "worker_exited", "worker": worker})

    assert may_go_on_elsewhere(order, log.events, "a") is may
