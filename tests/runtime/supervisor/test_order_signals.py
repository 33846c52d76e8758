"""What signals mean to a supervisor, with a clock of our own."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from holdfast.runtime.supervisor.batch_job import Order, OrderSignals
from holdfast.runtime.system.reactor import Reactor
from holdfast.runtime.system.signals import SAVE_SIGNAL

INT, TERM, HUP, USR2 = signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2
BOUND_S = 90.0


class Heard:
    """The orders so far, and the time."""

    def __init__(self) -> None:
        self.orders: list[tuple[Order, int]] = []
        self.now = 100.0
        self.reactor = Reactor()
        self.signals = OrderSignals(
            self.reactor, lambda order, number: self.orders.append((order, number)), self._clock
        )

    def _clock(self) -> float:
        return self.now


@pytest.fixture
def heard() -> Iterator[Heard]:
    made = Heard()
    yield made
    made.signals.restore()
    made.reactor.close()


@pytest.mark.parametrize(
    ("number", "order"),
    [(INT, Order.STOP), (TERM, Order.STOP), (USR2, Order.SAVE), (HUP, Order.GO_ON)],
)
def test_signal_to_this_process_becomes_an_order(
    heard: Heard, number: signal.Signals, order: Order
) -> None:
    os.kill(os.getpid(), number)
    while not heard.orders:
        heard.reactor.run_once(BOUND_S)

    assert heard.orders == [(order, number)]


def test_order_that_a_scheduler_sends_twice_at_once_is_one(heard: Heard) -> None:
    """To the process and to its group, for example."""
    heard.signals.hear(bytes([TERM, TERM]))
    heard.now += 0.9
    heard.signals.hear(bytes([TERM]))

    assert heard.orders == [(Order.STOP, TERM)]


def test_same_signal_later_is_a_second_order(heard: Heard) -> None:
    for _ in range(3):
        heard.signals.hear(bytes([TERM]))
        heard.now += 1.1

    assert heard.orders == [(Order.STOP, TERM)] * 3


def test_key_that_is_pressed_twice_is_two_orders(heard: Heard) -> None:
    heard.signals.hear(bytes([INT]))
    heard.now += 0.3
    heard.signals.hear(bytes([INT]))

    assert heard.orders == [(Order.STOP, INT)] * 2


def test_another_signal_is_a_second_order(heard: Heard) -> None:
    heard.signals.hear(bytes([TERM]))
    heard.signals.hear(bytes([INT]))

    assert heard.orders == [(Order.STOP, TERM), (Order.STOP, INT)]


def test_every_save_is_asked_for(heard: Heard) -> None:
    heard.signals.hear(bytes([USR2]))
    heard.signals.hear(bytes([USR2]))

    assert heard.orders == [(Order.SAVE, USR2)] * 2


def test_what_nohup_ignores_stays_ignored() -> None:
    before = signal.signal(HUP, signal.SIG_IGN)
    made = Heard()

    os.kill(os.getpid(), HUP)
    made.reactor.run_once(0.0)

    assert made.orders == []
    made.signals.restore()
    made.reactor.close()
    assert signal.getsignal(HUP) is signal.SIG_IGN
    signal.signal(HUP, before)


def test_signal_that_asks_for_nothing_gives_no_order(heard: Heard) -> None:
    os.kill(os.getpid(), signal.SIGUSR1)
    heard.reactor.run_once(BOUND_S)

    assert heard.orders == []


def test_limit_of_processor_time_is_one_order_however_often_it_is_sent(heard: Heard) -> None:
    for _ in range(10):
        heard.signals.hear(bytes([signal.SIGXCPU]))
        heard.now += 1.0

    assert heard.orders == [(Order.STOP, signal.SIGXCPU)]


def test_under_a_batch_system_sigusr2_stops_and_holdfast_save_still_saves() -> None:
    orders: list[tuple[Order, int]] = []
    reactor = Reactor()
    signals = OrderSignals(
        reactor, lambda order, number: orders.append((order, number)), stops=(TERM, USR2)
    )
    try:
        signals.hear(bytes([USR2]))
        signals.hear(bytes([USR2, SAVE_SIGNAL]))
    finally:
        signals.restore()
        reactor.close()

    assert orders == [(Order.STOP, USR2), (Order.SAVE, SAVE_SIGNAL)]


def test_late_request_to_save_ends_nobody() -> None:
    """The supervisor has its signals' defaults back, and is about to end."""
    orders: list[tuple[Order, int]] = []
    reactor = Reactor()
    OrderSignals(reactor, lambda order, number: orders.append((order, number))).restore()
    reactor.close()

    os.kill(os.getpid(), SAVE_SIGNAL)

    assert orders == []
