"""An iterator that is read one element ahead, in a thread.

A step's graphs run without Python's lock.  So the next batch of a pipeline is fetched meanwhile,
on a core that is idle otherwise.

An iterator of tf.data is given up in the thread too: it waits for the thread that tunes the
pipeline, for up to 640 ms.  The step that begins the next pass does not wait for that.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any


@dataclass(frozen=True, slots=True)
class _Answer:
    """An element, or the error in its place; StopIteration is the end."""

    element: Any
    error: Exception | None = None


class ReadAhead(Iterator[Any]):
    """The elements of an iterator that nobody else reads.

    An error of the iterator is raised by the ``next`` whose element it stands for.
    """

    def __init__(self, elements: Iterator[Any]) -> None:
        # Of all queues only this one may be used where objects are collected, in ``__del__``.
        self._wishes: SimpleQueue[bool] = SimpleQueue()
        self._answers: SimpleQueue[_Answer] = SimpleQueue()
        self._error: Exception | None = None
        arguments = (elements, self._wishes, self._answers)
        threading.Thread(target=_read, args=arguments, name="reader", daemon=True).start()
        self._wishes.put(True)

    def __next__(self) -> Any:
        """Return the next element, and begin to read the one after it."""
        if self._error is not None:
            raise self._error
        answer = self._answers.get()
        if answer.error is not None:
            self._error = answer.error
            raise answer.error
        self._wishes.put(True)
        return answer.element

    def __del__(self) -> None:
        """Let the reader end, and give the iterator up."""
        self._wishes.put(False)


def _read(
    elements: Iterator[Any], wishes: SimpleQueue[bool], answers: SimpleQueue[_Answer]
) -> None:
    """Answer each wish with one element; the iterator is given up at the end."""
    while wishes.get():
        try:
            answers.put(_Answer(next(elements)))
        except Exception as error:  # the user's code, or the end
            answers.put(_Answer(None, _without_this_frame(error)))


def _without_this_frame(error: Exception) -> Exception:
    """Return the error; its traceback would keep the iterator for the thread that gets it."""
    here = error.__traceback__
    return error.with_traceback(None if here is None else here.tb_next)
