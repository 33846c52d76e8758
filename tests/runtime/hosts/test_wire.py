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
    Down,
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
    SaveAnswered,
    Seen,
    Settle,
    Settled,
    Told,
    Traced,
    Up,
    Watch,
)
from holdfast.runtime.host.pool_process import Forked, LetBegin
from holdfast.runtime.hosts.wire import line_of, read_down, read_up
from holdfast.runtime.system.network import Meeting

W = WorkerId(1)
DOWN: tuple[Down, ...] = (
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
)
UP: tuple[Up, ...] = (
    Forked(1, W, 77),
    Reported(1, W, {"kind": "joined", "list": [1, {"a": None}]}),
    Killed(1, W, "fenced"),
    Seen(is_inquiring=True, read=(Read(1, W, 2),)),
    Found(3, 1, W, "train.py:7", "stacks", is_reading=False, samples={"step": 1}),
    Exited(1, W, {"kind": "worker_exited", "clean": True}),
    SaveAnswered({"kind": "saved", "step": 3}),
    Settled(None),
    Told({"kind": "warm"}),
    Met(3, (Meeting("10.1.0.0/16", "10.1.0.1", 4711),), ("", "timed out")),
    Described(1, W, None, 1.5),
    Traced(1, W, 7, "AAAA", 0, 12.5),
)


@pytest.mark.parametrize("message", DOWN, ids=lambda message: type(message).__name__)
def test_message_to_a_host_is_the_same_there(message: Down) -> None:
    assert read_down(json.loads(json.dumps(line_of(message)))) == message


@pytest.mark.parametrize("message", UP, ids=lambda message: type(message).__name__)
def test_message_of_a_host_is_the_same_here(message: Up) -> None:
    assert read_up(json.loads(json.dumps(line_of(message)))) == message


def test_every_kind_is_tried() -> None:
    assert {type(message) for message in DOWN} == {*get_args(Down)}
    assert {type(message) for message in UP} == {*get_args(Up)}


def test_message_in_the_wrong_direction_is_refused() -> None:
    with pytest.raises(ValueError, match="there is no message 'Forked'"):
        read_down(line_of(UP[0]))


def test_message_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(ValueError, match=r"LetLeave\.generation is 'x', not a whole number"):
        read_down({"kind": "LetLeave", "value": {"generation": "x"}})
