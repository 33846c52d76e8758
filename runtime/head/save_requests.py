"""Requests for a checkpoint now, each from its coming to its answer.

A checkpoint counts if it was *begun* after the request: one in flight holds an older state.  A
request dies with its workers, and a save may fail.  In both cases the workers are asked again.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable

from holdfast.runtime.run.journal import Record
from holdfast.runtime.system.channel import Message

_MOST_FAILURES = 3


class SaveWatch:
    """The state of a request for a checkpoint, told from the records of the job; pure."""

    def __init__(self) -> None:
        self.saved: Message | None = None
        """The checkpoint: its step, and the seconds from the request to the commit."""
        self.is_over = False
        self._is_training = False
        self._is_asked = False
        self._asked_at: float | None = None
        self._saved_steps: set[int] = set()
        """Those of this job."""
        self._last_step: int | None = None
        """That of the training which has ended last; None once another one has begun."""
        self._step_of_worker: int | None = None
        """The last step as a worker of this launch has recorded it."""
        self._failures: list[str] = []

    def asks(self) -> SaveWatch:
        """Return the state of another request, which knows what this one has seen."""
        watch = copy.copy(self)
        watch._saved_steps, watch._failures = set(self._saved_steps), []
        watch.saved, watch._asked_at, watch._is_asked = None, None, False
        return watch

    @property
    def needs_asking(self) -> bool:
        """Whether there are workers that have not been asked yet."""
        return self._is_training and not self._is_asked

    @property
    def failure(self) -> str | None:
        """The reason why no checkpoint will come although the job goes on, None if one may."""
        return self._failures[-1] if len(self._failures) >= _MOST_FAILURES else None

    def asked(self, now: float) -> None:
        """Take note that the workers were asked; the first time counts."""
        self._is_asked = True
        if self._asked_at is None:
            self._asked_at = now

    def saw(self, record: Record) -> None:
        """Take note of the job's next record."""
        match record["event"]:
            case "job_started" | "launch":
                self._is_training = self._is_asked = self.is_over = False
                self._last_step = self._step_of_worker = None
            case "world":
                self._is_training, self._last_step = True, None
            case "step" | "epoch":
                self._is_training = True
            case "checkpoint":
                self._is_training = True
                self._compare(record)
            case "checkpoint_failed":
                self._failed(str(record.get("reason")))
            case "completed" | "stopped":
                self._training_ended(record)
            case "job_ended":
                self._ended(record["now"])

    def _compare(self, record: Record) -> None:
        self._saved_steps.add(record["step"])
        if self._asked_at is not None and record["now"] - record["seconds"] >= self._asked_at:
            self._save(record["step"], record["now"])

    def _failed(self, reason: str) -> None:
        if self._asked_at is not None:
            self._failures.append(reason)
            self._is_asked = False

    def _training_ended(self, record: Record) -> None:
        """Take note of a training's last step.

        The head repeats it, perhaps when the next training of the script has begun.
        """
        step = record.get("step")
        if str(record.get("source")).startswith("worker"):
            self._step_of_worker = step
        elif step == self._step_of_worker:
            return
        self._last_step = step

    def _ended(self, now: float) -> None:
        """Take note of the job's end; the checkpoint of its last step can serve the request."""
        self.is_over, self._is_training = True, False
        step = self._last_step
        if self._asked_at is not None and step is not None and step in self._saved_steps:
            self._save(step, now)

    def _save(self, step: int, now: float) -> None:
        assert self._asked_at is not None
        self.saved = {"kind": "saved", "step": step, "seconds": now - self._asked_at}


class SaveRequests:
    """The requests that wait for their answers.

    Args:
        ask: asks the workers for a checkpoint.
    """

    def __init__(self, ask: Callable[[], None]) -> None:
        self._ask = ask
        self._seen = SaveWatch()
        self._waiting: dict[int, tuple[SaveWatch, Callable[[Message], None]]] = {}
        self._next = 0

    def add(self, answer: Callable[[Message], None], *, is_waiting: bool) -> int:
        """Take a request, and return its number.

        ``answer`` gets an ``asked`` once the workers were asked, and if the request is waiting
        a ``saved`` or ``unsaved`` later.
        """
        self._next += 1
        watch = self._seen.asks()

        def tell(message: Message) -> None:
            answer(message)
            if message["kind"] != "asked" or not is_waiting:
                self.forget(number)

        number = self._next
        self._waiting[number] = watch, tell
        self._go_on()
        return number

    def forget(self, number: int) -> None:
        """Forget a request, whose sender has gone."""
        self._waiting.pop(number, None)

    def saw(self, record: Record) -> None:
        """Take note of the job's next record."""
        self._seen.saw(record)
        for watch, _ in self._waiting.values():
            watch.saw(record)
        self._go_on()

    def _go_on(self) -> None:
        for watch, tell in list(self._waiting.values()):
            if watch.needs_asking:
                watch.asked(time.monotonic())
                self._ask()
                tell({"kind": "asked"})
            if watch.saved is not None:
                tell(watch.saved)
            elif watch.is_over:
                tell({"kind": "unsaved", "reason": ""})
            elif watch.failure is not None:
                tell({"kind": "unsaved", "reason": watch.failure})
