"""What is special about each class of Keras's callbacks: one table, by class.

Every other callback, also a user's, is run on all workers as it is, under the guard of
`first_files`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.runtime.fit.event_files import EventFiles
from holdfast.runtime.fit.first_files import FirstFiles, Length

_BATCH_HOOKS = ("on_batch_begin", "on_batch_end", "on_train_batch_begin", "on_train_batch_end")


@dataclass(frozen=True, slots=True)
class Rule:
    """How a class of callbacks is run.

    ``word`` is said once if the callback is not run at all.  A callback that is
    ``first_only`` speaks to the world outside: the others put its hooks off.  ``resumed``
    mends what ``on_train_begin`` assumed about files that go on.
    """

    word: str | None = None
    first_only: bool = False
    has_events: bool = False
    is_alike: bool = True
    """Whether its effects follow from the logs alone, so that they need not be compared."""
    resumed: Callable[[Any, Mapping[str, Length]], None] | None = None


def _csv_resumed(callback: Any, lengths: Mapping[str, Length]) -> None:
    """Write no second header."""
    length = lengths.get(os.path.abspath(callback.filename))
    callback.append_header = length is None or length.size == 0


RULES = {
    "BackupAndRestore": Rule(
        word="BackupAndRestore does nothing here: holdfast makes the checkpoints, and resumes"
    ),
    "CSVLogger": Rule(resumed=_csv_resumed),
    "RemoteMonitor": Rule(first_only=True),
    "OrbaxCheckpoint": Rule(first_only=True),
    "TensorBoard": Rule(has_events=True),
    "LambdaCallback": Rule(is_alike=False),
    "LearningRateScheduler": Rule(is_alike=False),
}
"""By the name of the class; callbacks of Keras that are not named follow `Rule()`."""

_OF_USERS = Rule(is_alike=False)


def rule_of(callback: Any) -> Rule:
    """Return the rule of the nearest class of Keras; one of a user's own may look at a clock."""
    kinds = type(callback).__mro__
    is_keras = [kind.__module__.partition(".")[0] == "keras" for kind in kinds]
    for kind, of_keras in zip(kinds, is_keras, strict=True):
        if of_keras and kind.__name__ in RULES:
            found = RULES[kind.__name__]
            if is_keras[0]:
                return found
            return Rule(
                found.word, found.first_only, found.has_events, is_alike=False, resumed=found.resumed
            )
    return Rule() if is_keras[0] else _OF_USERS


class FirstOnly:
    """Stands for a callback whose hooks have an effect once: other workers put them off."""

    def __init__(self, callback: Any, files: FirstFiles) -> None:
        self._callback = callback
        self._files = files

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._callback, name)
        if not name.startswith("on_"):
            return found

        def hook(*arguments: Any, **by: Any) -> None:
            if not self._files.defers(lambda: found(*arguments, **by)):
                found(*arguments, **by)

        return hook


def arranged(
    callbacks: Iterable[Any], files: FirstFiles, events: EventFiles
) -> tuple[list[Any], list[str]]:
    """Return the callbacks as they are run, before ``set_model``, and what is to be said."""
    run: list[Any] = []
    words: list[str] = []
    for callback in callbacks:
        rule = rule_of(callback)
        if rule.word is not None:
            words.append(rule.word)
            continue
        if rule.has_events:
            events.attach(callback)
            callback._should_trace = callback._should_trace and files.is_first
        run.append(FirstOnly(callback, files) if rule.first_only else callback)
    return run, words


def resumed(callbacks: Iterable[Any], lengths: Mapping[str, Length]) -> None:
    """Mend what ``on_train_begin`` assumed, in a launch that goes on."""
    for callback in callbacks:
        mend = rule_of(callback).resumed
        if mend is not None:
            mend(callback, lengths)


def has_hook(callback: Any, *names: str) -> bool:
    """Return whether the callback does something in one of the hooks."""
    return any(
        not getattr(getattr(callback, name, None), "_is_default", False) for name in names
    )


def has_batch_hooks(callback: Any) -> bool:
    """Return whether the callback acts on batches of the training."""
    return has_hook(callback, *_BATCH_HOOKS)
