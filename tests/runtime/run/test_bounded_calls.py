from __future__ import annotations

import signal
import threading
from collections.abc import Iterator

import pytest

from holdfast.runtime.run.files import BoundedCalls
from holdfast.runtime.system.signals import SENT_BY_BATCH_SYSTEMS

SOON_S = 0.01
BOUND_S = 60.0


@pytest.fixture
def hung() -> Iterator[threading.Event]:
    """An event that a call waits for; it always comes in the end."""
    event = threading.Event()
    yield event
    event.set()


def test_call_is_over_when_run_returns() -> None:
    calls = BoundedCalls("test", waits_s=BOUND_S)
    made: list[tuple[int, str]] = []

    for number in range(100):
        assert calls.run(lambda n=number: made.append((n, threading.current_thread().name)))  # type: ignore[misc]
        assert len(made) == number + 1

    assert made == [(number, "test") for number in range(100)]
    assert not calls.is_behind


def test_nobody_waits_for_calls_behind_one_that_hangs(hung: threading.Event) -> None:
    calls = BoundedCalls("test", waits_s=SOON_S)
    made: list[int] = []
    calls.run(lambda: made.append(hung.wait(BOUND_S)))
    assert calls.is_behind

    for number in range(2, 50):
        assert calls.run(lambda n=number: made.append(n))  # type: ignore[misc]
    assert made == []

    hung.set()
    calls._waits_s = BOUND_S
    with calls._changed:
        calls._changed.wait_for(lambda: not calls.is_behind, BOUND_S)
    assert calls.run(lambda: made.append(50))
    assert made == [True, *range(2, 51)]
    assert not calls.is_behind


def test_calls_that_are_all_slow_are_waited_for_once() -> None:
    """A disk may be slow for days: waiting for each of its calls would be most of the time."""
    calls = BoundedCalls("test", waits_s=SOON_S)
    gate = threading.Semaphore(0)
    for _ in range(5):
        calls.run(lambda: gate.acquire(timeout=BOUND_S))
        assert calls.is_behind
        gate.release()
        with calls._changed:
            calls._changed.wait_for(lambda: calls._ended == calls._taken, BOUND_S)

    assert calls.is_behind, "the thread has caught up, but the next call may be slow again"
    calls._waits_s = BOUND_S
    made: list[int] = []
    for number in range(100):
        calls.run(lambda n=number: made.append(n))  # type: ignore[misc]
    with calls._changed:
        calls._changed.wait_for(lambda: calls._ended == calls._taken, BOUND_S)
    assert made == list(range(100))
    assert not calls.is_behind


def test_calls_that_do_not_fit_any_more_never_run(hung: threading.Event) -> None:
    calls = BoundedCalls("test", waits_s=SOON_S, most_queued=3)
    made: list[int] = []
    calls.run(lambda: made.append(hung.wait(BOUND_S)))

    assert [calls.run(lambda n=number: made.append(n)) for number in range(5)] == [  # type: ignore[misc]
        *(True, True, True),
        *(False, False),
    ]

    hung.set()
    with calls._changed:
        calls._changed.wait_for(lambda: calls._ended == calls._taken, BOUND_S)
    assert made == [True, 0, 1, 2]


def test_signals_of_batch_systems_are_left_to_the_main_thread() -> None:
    """Else one that comes when the main thread blocks them changes the exit code."""
    masks: list[set[signal.Signals]] = []
    calls = BoundedCalls("test", waits_s=BOUND_S)
    calls.run(lambda: masks.append(set(signal.pthread_sigmask(signal.SIG_BLOCK, ()))))

    assert masks[0] >= SENT_BY_BATCH_SYSTEMS
