"""Calls on threads that keep no process alive."""

from __future__ import annotations

import subprocess
import sys
import threading
import weakref

import pytest

from holdfast.runtime.system.daemon_executor import DaemonExecutor

BOUND_S = 60.0


def test_calls_of_one_thread_run_in_their_order() -> None:
    executor, seen = DaemonExecutor(1, "test"), list[int]()

    outcomes = [executor.submit(seen.append, number) for number in range(50)]

    assert [found.result(BOUND_S) for found in outcomes] == [None] * 50
    assert seen == list(range(50))
    executor.shutdown()


def test_calls_run_at_once_on_as_many_threads_as_are_allowed() -> None:
    executor, meeting = DaemonExecutor(3, "test"), threading.Barrier(3)

    places = [executor.submit(meeting.wait, BOUND_S) for _ in range(3)]

    assert sorted(found.result(BOUND_S) for found in places) == [0, 1, 2]
    executor.shutdown()


def test_error_of_a_call_is_its_outcome_and_the_next_one_runs() -> None:
    executor = DaemonExecutor(1, "test")

    failed, well = executor.submit(divmod, 1, 0), executor.submit(divmod, 7, 2)

    assert isinstance(failed.exception(BOUND_S), ZeroDivisionError)
    assert well.result(BOUND_S) == (3, 1)
    executor.shutdown()


def test_what_was_submitted_still_runs_after_the_end_and_nothing_more_is_taken() -> None:
    executor, goes_on = DaemonExecutor(1, "test"), threading.Event()
    executor.submit(goes_on.wait, BOUND_S)
    waiting = executor.submit(divmod, 7, 2)

    executor.shutdown()

    with pytest.raises(RuntimeError, match="shut down"):
        executor.submit(divmod, 7, 2)
    goes_on.set()
    assert waiting.result(BOUND_S) == (3, 1)


def test_last_call_is_not_kept_alive() -> None:
    """It may hold the memory of a snapshot."""

    class Memory: ...

    executor, memory = DaemonExecutor(1, "test"), Memory()
    executor.submit(id, memory).result(BOUND_S)
    gone = weakref.ref(memory)
    del memory
    executor.submit(int).result(BOUND_S)  # the thread has let go of the call before

    assert gone() is None
    executor.shutdown()


def test_lack_of_threads_is_told_unless_another_one_takes_the_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    executor, empty = DaemonExecutor(2, "test"), DaemonExecutor(2, "test")
    assert executor.submit(int).result(BOUND_S) == 0

    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)

    assert executor.submit(int).result(BOUND_S) == 0
    with pytest.raises(OSError, match="new thread"):
        empty.submit(int)
    executor.shutdown()


@pytest.mark.process
def test_process_ends_while_a_call_hangs() -> None:
    program = (
        "import threading\n"
        "from holdfast.runtime.system.daemon_executor import DaemonExecutor\n"
        "began = threading.Event()\n"
        "DaemonExecutor(1, 'test').submit(lambda: (began.set(), threading.Event().wait()))\n"
        "began.wait()\n"
        "print('at its end')\n"
    )

    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=BOUND_S, check=True
    )

    assert ended.stdout == "at its end\n"
