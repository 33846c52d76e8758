"""Every message between the head and a host comes out of the connection as it went in."""

from __future__ import annotations

import json
from typing import get_args

import pytest
from configs import worker_config

from holdfast.recovery.event import Event, WorkerExited, WorkInHand
from holdfast.recovery.world import WorkerId
from holdfast.runtime.host.host_messages import (
    Abandon,
    BeginLaunch,
    Describe,
    Described,
    Found,
    Inquire,
    Killed,
    KillWorker,
    Lead,
    LetLeave,
    Logged,
    MakeWorkers,
    Meet,
    Met,
    NameWorld,
    Read,
    Seen,
    Traced,
    Watch,
)
from holdfast.runtime.host.pool_process import Forked, LetBegin
from holdfast.runtime.hosts.wire import (
    FROM_HEAD,
    FROM_HOST,
    Changes,
    EndHost,
    FromHead,
    FromHost,
    Output,
    Ping,
    Pong,
    Taken,
    Words,
    taken_bytes,
)
from holdfast.runtime.run.events import PoolWarmed
from holdfast.runtime.run.journal import RecordedEvent, Records
from holdfast.runtime.saving.save_messages import SaveAnswered, SaveTicket, Settle, Settled
from holdfast.runtime.system.messages import to_message
from holdfast.runtime.system.network import Meeting
from holdfast.runtime.system.worker_reports import OwnReport, WorkerHalted

W = WorkerId(1)
WORDS = Words((Changes(1, W, {"step": 3, "spent": [1, 2]}),), 12.5)
DOWN: tuple[FromHead, ...] = (
    BeginLaunch(worker_config(4, (4, 5))),
    MakeWorkers(1, (W, WorkerId(3))),
    LetBegin(1, W, {"PMIX_RANK": "1"}, "/home/ä"),
    Watch(),
    KillWorker(1, W, "fenced", "stall"),
    LetLeave(1),
    NameWorld(1, W, 5),
    Inquire(3, 1, (W,), is_evidence=False),
    Settle(is_urgent=True),
    Abandon("it hangs"),
    Lead(1, W),
    Meet(3, "10.1.0.0/16", "0123abcd", (Meeting("10.1.0.0/16", "10.1.0.1", 4711),)),
    Describe(),
    Ping(3, 2),
    WORDS,
    Taken(7),
    EndHost("lost"),
)
UP: tuple[FromHost, ...] = (
    Forked(1, W, 77),
    WorkerHalted(W, 3, True, 4, False, 8, "saved"),
    Killed(1, W, "fenced"),
    Seen(is_inquiring=True, read=(Read(1, W, 2),)),
    Found(
        3, 1, W, "train.py:7", "stacks", is_reading=False, samples=WorkInHand(1, 0, 1, (4,), False)
    ),
    WorkerExited(W, "exit 0", is_clean=True, samples=WorkInHand(1, 0, 1, (4,), False)),
    SaveAnswered(SaveTicket(1, 1, 30, 4, 2, 0.0), is_durable=False, reason="the disk is full"),
    Settled(None),
    PoolWarmed(),
    Records((RecordedEvent("hung_up", "{}", 1.5),), "worker 1"),
    Logged(W, "b", "ab\n", 3),
    Met(3, (Meeting("10.1.0.0/16", "10.1.0.1", 4711),), ("", "timed out")),
    Described(1, W, None, 1.5),
    Traced(1, W, 7, "AAAA", 0, 12.5),
    Pong(3),
    WORDS,
    Output(1, "ä\n"),
)


@pytest.mark.parametrize("message", DOWN, ids=lambda message: type(message).__name__)
def test_message_to_a_host_is_the_same_there(message: FromHead) -> None:
    assert FROM_HEAD.decode(json.loads(json.dumps(to_message(message)))) == message


@pytest.mark.parametrize("message", UP, ids=lambda message: type(message).__name__)
def test_message_of_a_host_is_the_same_here(message: FromHost) -> None:
    assert FROM_HOST.decode(json.loads(json.dumps(to_message(message)))) == message


def test_every_kind_is_tried() -> None:
    assert {type(message) for message in DOWN} == {*get_args(FromHead)}
    others = {kind for kind in get_args(FromHost) if kind not in (Event, *get_args(OwnReport))}
    assert others <= {type(message) for message in UP}


def test_lines_of_workers_alone_are_counted() -> None:
    assert [size for size in map(taken_bytes, UP) if size] == [3, 2]
