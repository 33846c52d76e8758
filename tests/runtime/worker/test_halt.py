"""A worker that is halted: its state stands still, it says what it holds, saves it, and leaves."""

from __future__ import annotations

import os
import threading
from queue import Queue

import pytest

from holdfast.recovery.placement import SavePart
from holdfast.recovery.world import WorkerId
from holdfast.runtime.system.worker_status import (
    HaltedSaveEnded,
    HaltOrder,
    OwnReport,
    WorkerHalted,
    WorkerLeaving,
    WorkerStatus,
)
from holdfast.runtime.worker.halt import Halt, HaltWatch

WORKER = WorkerId(3)
HELD = WorkerHalted(WORKER, 8, is_settled=True, saves=2, is_saved=False, step=8, words="more")


class Holding:
    """Holds a state, and saves it at the second try."""

    def __init__(self) -> None:
        self.orders: list[HaltOrder] = []

    def describe_held(self, worker: WorkerId) -> WorkerHalted:
        assert worker == WORKER
        return HELD

    def save(self, order: HaltOrder) -> str:
        self.orders.append(order)
        if len(self.orders) == 1:
            raise ValueError("a variable is gone")
        return ""


def test_halted_worker_saves_what_it_holds_while_its_main_thread_hangs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    page, halt, holding = WorkerStatus.create(), Halt(), Holding()
    told: Queue[OwnReport] = Queue()
    ended: Queue[int] = Queue()
    monkeypatch.setattr(os, "_exit", ended.put)
    watch = HaltWatch(WORKER, page, halt, told.put)
    halt.resting = holding
    watch.poll()
    with halt.moving:
        page.is_halt_asked = True
        watch.poll()
        watch.poll()
        assert told.empty()  # the state is being changed

    assert told.get(timeout=60) == HELD
    taken = threading.Thread(target=halt.moving.acquire, daemon=True)
    taken.start()
    page.order_halted(HaltOrder(3, SavePart(1, 2)))
    assert told.get(timeout=60) == HaltedSaveEnded(WORKER, 3, "ValueError: a variable is gone")
    page.order_halted(HaltOrder(4))
    assert told.get(timeout=60) == HaltedSaveEnded(WORKER, 4, "")
    assert taken.is_alive()
    page.order_halted(HaltOrder())

    assert told.get(timeout=60) == WorkerLeaving(WORKER)
    assert ended.get(timeout=60) == 0
    assert holding.orders == [HaltOrder(3, SavePart(1, 2)), HaltOrder(4)]
