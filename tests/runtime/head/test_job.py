"""What a head is told of its job, and what its client keeps for the next head."""

from __future__ import annotations

import json
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from heads import exited, job_of, joined, saved

from holdfast.recovery.event import CheckpointCommitted, HostBack, HostLost, Launch, WorldNamed
from holdfast.recovery.placement import HostSlots
from holdfast.recovery.world import WorkerId
from holdfast.runtime.head.job import Job, LaunchLog
from holdfast.runtime.head.orders import TimeLimit, TimeLimits
from holdfast.runtime.head.visits import Standing
from holdfast.runtime.host.host_messages import LaunchOrder, MpiOrder
from holdfast.runtime.host.launchers import LaunchTerms
from holdfast.runtime.run.events import Notice
from holdfast.runtime.system.channel import MessageKinds, to_message
from holdfast.runtime.system.codec import from_plain, to_plain

FIFTH = Launch(5, (WorkerId(6), WorkerId(7)), relaunch=2, reason="again", spent=3)


def test_job_reaches_its_head_as_it_was_settled() -> None:
    limits = TimeLimits(TimeLimit(0.0, 3600.0, "squeue"), is_batch=True)
    limits.saved(CheckpointCommitted(WorkerId(0), 5, 100.0, 20.0))
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

    assert (terms.workers, terms.may_go_on) == (workers, can_shrink)
    assert terms.has_checkpoint is has_checkpoint


def test_order_of_a_launch_is_read_back_by_the_next_head() -> None:
    mca = ("btl self,uct", "btl_uct_transports rc")
    job = job_of(shrink=False, mca=mca)

    order = job.order_of(FIFTH)

    assert order.mpi == MpiOrder(
        Path("/opt/mpiexec"), "Open MPI", ulfm=False, terms=LaunchTerms(mca=mca)
    )
    read = MessageKinds(LaunchOrder).decode(json.loads(json.dumps(to_message(order))))
    found = read.launch
    assert (found.generation, found.workers, found.relaunch, found.spent) == (5, (6, 7), 2, 3)


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

    order = job.order_of(FIFTH)

    assert order.mpi is not None
    assert order.mpi.terms.network == network


def begun(*hosts: str) -> LaunchLog:
    """Return the log of a launch with a worker on each host, of a head on host a."""
    job = job_of(hosts=tuple(HostSlots(name, 1) for name in "abc") if any(hosts) else ())
    workers = tuple(map(WorkerId, range(len(hosts))))
    launch, log = Launch(1, workers, 0, "", 0), LaunchLog(job)
    log.begin(job.order_of(launch, hosts=hosts))
    return log


def test_launch_is_up_once_all_have_joined_and_the_next_one_begins_anew() -> None:
    log = begun("", "")
    ups = []
    for event in (*joined(0), Notice("hi"), *joined(1), saved(0, 5), saved(1, 9)):
        log.note(event)
        ups.append(log.standing.is_up)
    assert ups == [False, False, True, True, True]
    assert log.order is not None
    order = to_plain(log.order)
    assert log.standing == Standing(order, is_up=True, saved_step=9)

    log.begin(log.order)

    assert log.standing == Standing(order)


def test_losses_of_hosts_are_counted_on_and_known_to_the_next_head() -> None:
    log = begun("a", "b", "c")
    lost = HostLost("b", "it is silent", (WorkerId(1),))
    for event in (lost, HostBack("b"), lost, HostLost("c", "it is silent", ())):
        log.note(event)

    assert (log.standing.losses, log.standing.missing) == ({"b": 2, "c": 1}, ("b", "c"))
    hosts = tuple(HostSlots(name, 1) for name in "abc")
    job = job_of(hosts=hosts, missing=("a",)).after(log.standing)
    assert (job.losses, job.missing) == ({"b": 2, "c": 1}, ("b", "c"))


@pytest.mark.parametrize(
    ("hosts", "named", "ended", "may"),
    [
        (("", ""), [], [], False),
        (("a", "b"), [], [], False),
        (("b", "c"), [], [], True),
        (("a", "b"), [], [0], True),
        (("b", "c"), [], [0, 1], False),
        (("a", "b", "c"), [[0, 1]], [], False),
        (("a", "b", "c"), [[1, 2]], [], True),
        (("a", "b", "c"), [[0, 1], [1]], [], True),
        (("a", "b", "c"), [[1, 2]], [1, 2], False),
    ],
    ids=[
        "one host", "one died with its head", "none died", "one died before", "all are dead",
        "named with its host", "without it", "the newest counts", "all of it are dead",
    ],
)  # fmt: skip
def test_workers_of_a_dead_head_may_go_on_if_none_of_their_world_was_on_its_host(
    hosts: tuple[str, ...], named: list[list[int]], ended: list[int], *, may: bool
) -> None:
    """The worker of that host may hang, and nobody had killed it yet."""
    log = begun(*hosts)
    for workers in named:
        log.note(WorldNamed(tuple(map(WorkerId, workers))))
    for worker in ended:
        log.note(exited(worker))

    assert log.standing.may_live_elsewhere is may
    log.note(HostLost("b", "it is silent", (), leased_s=3.0))
    assert log.standing.may_live_elsewhere
