"""An executor whose threads keep no process alive.

The library's executor is joined when the interpreter ends.  A call into a disk that hangs
would keep the process for ever, and no signal ends such a call.  So an owner that wants the
outcome of a call waits for it, as long as is right, and then lets the process go.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, ParamSpec, TypeAlias, TypeVar

from holdfast.runtime.system.signals import start_thread

_P = ParamSpec("_P")
_T = TypeVar("_T")
_Call: TypeAlias = "tuple[Future[Any], Callable[[], Any]]"


class DaemonExecutor:
    """Runs calls in their order, on so many daemon threads as there are calls, ``most`` at most."""

    def __init__(self, most: int, name: str) -> None:
        self._most = most
        self._name = name
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._changing = threading.Lock()
        self._is_shut_down = False

    def submit(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        """Run a call later, and return its outcome to come.

        Raises ``RuntimeError`` after the end, and ``OSError`` if there is no thread and none can
        start.
        """
        future: Future[_T] = Future()
        with self._changing:
            if self._is_shut_down:
                raise RuntimeError(f"{self._name} takes no more calls: it was shut down")
            self._start()
            self._calls.put((future, lambda: fn(*args, **kwargs)))
        return future

    def shutdown(self) -> None:
        """Take no more calls; the threads end after those that were submitted, without a wait."""
        with self._changing:
            self._is_shut_down = True
            for _ in self._threads:
                self._calls.put(None)

    def _start(self) -> None:
        if len(self._threads) == self._most:
            return
        number = len(self._threads)
        work = threading.Thread(
            target=_work, args=(self._calls,), name=f"{self._name}_{number}", daemon=True
        )
        try:
            start_thread(work)
        except OSError:
            if not self._threads:
                raise
            return
        self._threads.append(work)


def _work(calls: queue.SimpleQueue[_Call | None]) -> None:
    while (call := calls.get()) is not None:
        future, run = call
        if not future.set_running_or_notify_cancel():
            continue
        try:
            future.set_result(run())
        except BaseException as error:
            future.set_exception(error)
        # Else the last call, with the memory that it has used, would live until the next one.
        del call, future, run
