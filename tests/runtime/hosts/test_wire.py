"""Every message between the head and a host comes out of the connection as it went in."""

from __future__ import annotations

import json
from typing import get_args

import pytest
from configs import worker_config

from holdfast.recovery.world import WorkerId
from holdfast.runtime.host.host_messages import (
    Abandon,
    BeginLaunch,
    Describe,
    Described,
    Exited,
    Found,
    Inquire,
    Killed,
    KillWorker,
    Lead,
    LetLeave,
    MakeWorkers,
    Meet,
    Met,
    NameWorld,
    Read,
    Reported,
    Seen,
    Told,
    Traced,
    Watch,
)
from holdfast.runtime.host.pool_process import Forked, LetBegin
from holdfast.runtime.hosts.wire import (
    FROM_HEAD,
    FROM_HOST,
    Changes,
    End,
    FromHead,
    FromHost,
    Output,
    Ping,
    Pong,
    Taken,
    Words,
    taken_bytes,
)
from holdfast.runtime.saving.save_messages import SaveAnswered, SaveTicket, Settle, Settled
from holdfast.runtime.system.messages import to_message
from holdfast.runtime.system.network import Meeting

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
    End("lost"),
)
UP: tuple[FromHost, ...] = (
    Forked(1, W, 77),
    Reported(1, W, {"kind": "joined", "list": [1, {"a": None}]}),
    Killed(1, W, "fenced"),
    Seen(is_inquiring=True, read=(Read(1, W, 2),)),
    Found(3, 1, W, "train.py:7", "stacks", is_reading=False, samples={"step": 1}),
    Exited(1, W, {"kind": "worker_exited", "clean": True}),
    SaveAnswered(SaveTicket(1, 1, 30, 4, 2, 0.0), is_durable=False, reason="the disk is full"),
    Settled(None),
    Told({"kind": "warm"}),
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
    assert {type(message) for message in UP} == {*get_args(FromHost)}


def test_lines_of_workers_alone_are_counted() -> None:
    logged = Told({"kind": "logged", "lines": "ab\n"})

    assert [taken_bytes(one) for one in (*UP, logged)] == [0] * (len(UP) - 1) + [2, 3]
