"""What is special about each class of Keras's callbacks: one table, by class.

Every other callback, also a user's, is run on all workers as it is, under the overlay of files.
"""

from __future__ import annotations

import contextlib
import inspect
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from numbers import Number
from typing import Any

from holdfast.runtime.script.overlay import Length, Overlay
from holdfast.runtime.script.saves import EventFiles

_OLD_NAMES = {
    "on_train_batch_begin": "on_batch_begin",
    "on_train_batch_end": "on_batch_end",
}
"""Hooks that call a hook with a shorter name, if they are not overridden."""


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


def _events_resumed(callback: Any, lengths: Mapping[str, Length]) -> None:
    """Record the batch under way only if ``update_freq`` says so: its begin is not told again."""
    callback._pop_writer()
    callback._push_writer(callback._train_writer, callback._global_train_batch)


RULES = {
    "BackupAndRestore": Rule(
        word="BackupAndRestore does nothing here: holdfast makes the checkpoints, and resumes"
    ),
    "CSVLogger": Rule(resumed=_csv_resumed),
    "RemoteMonitor": Rule(first_only=True),
    "OrbaxCheckpoint": Rule(first_only=True),
    "TensorBoard": Rule(has_events=True, resumed=_events_resumed),
    "LambdaCallback": Rule(is_alike=False),
    "LearningRateScheduler": Rule(is_alike=False),
}
"""By the name of the class; callbacks of Keras that are not named follow `Rule()`."""

_OF_USERS = Rule(is_alike=False)


_ACTING = frozenset({"EarlyStopping", "ReduceLROnPlateau", "SwapEMAWeights"})
"""Callbacks of Keras that act on the training, each by settings of its own."""
_NO_SETTINGS = frozenset({"verbose"})


def settings_in_words(callbacks: Iterable[Any]) -> dict[str, str]:
    """Return the settings of Keras's callbacks that act on the training, also of subclasses."""
    found: dict[str, str] = {}
    numbers: Counter[str] = Counter()
    for callback in callbacks:
        kinds = [kind for kind in type(callback).__mro__ if kind.__name__ in _ACTING]
        for kind in (kind for kind in kinds if kind.__module__.startswith("keras.")):
            numbers[kind.__name__] += 1
            number = numbers[kind.__name__]
            which = kind.__name__ if number == 1 else f"{kind.__name__} number {number}"
            for name in inspect.signature(kind).parameters:
                value = getattr(callback, name, None)
                if name not in _NO_SETTINGS and isinstance(value, (Number, str)):
                    found[f"{name} of {which}"] = repr(value)
    return found


def rule_of(callback: Any) -> Rule:
    """Return the rule of the nearest class of Keras; one of a user's own may look at a clock."""
    kinds = type(callback).__mro__
    is_keras = [kind.__module__.partition(".")[0] == "keras" for kind in kinds]
    for kind, of_keras in zip(kinds, is_keras, strict=True):
        if of_keras and kind.__name__ in RULES:
            found = RULES[kind.__name__]
            if is_keras[0]:
                return found
            return replace(found, is_alike=False)
    return Rule() if is_keras[0] else _OF_USERS


class FirstOnly:
    """Stands for a callback whose hooks have an effect once: other workers put them off."""

    def __init__(self, callback: Any, files: Overlay) -> None:
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
    callbacks: Iterable[Any], files: Overlay, events: EventFiles
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


def flat(callbacks: Any) -> list[Any]:
    """Return the callbacks that the user gave, as a list."""
    import keras

    if callbacks is None:
        return []
    if isinstance(callbacks, keras.callbacks.CallbackList):
        return list(callbacks.callbacks)
    found: list[Any] = keras.tree.flatten(callbacks)
    return found


def steps_per_execution(model: Any) -> int:
    """Return the steps between two hooks about batches, which ``compile`` was given."""
    return max(int(getattr(model, "steps_per_execution", None) or 1), 1)


def is_left_out(callback: Any) -> bool:
    """Return whether the callback is not run at all."""
    return rule_of(callback).word is not None


@contextlib.contextmanager
def without_graphs(callbacks: Iterable[Any]) -> Iterator[None]:
    """Let TensorBoard callbacks write no graph of the model: an earlier launch wrote it."""
    write = [callback for callback in callbacks if getattr(callback, "write_graph", False)]
    for callback in write:
        callback.write_graph = False
    try:
        yield
    finally:
        for callback in write:
            callback.write_graph = True


def resumed(callbacks: Iterable[Any], lengths: Mapping[str, Length]) -> None:
    """Mend what ``on_train_begin`` assumed, in a launch that goes on."""
    for callback in callbacks:
        mend = rule_of(callback).resumed
        if mend is not None:
            mend(callback, lengths)


def acts(callback: Any, *hooks: str) -> bool:
    """Return whether the callback does something in one of the hooks, by default in any.

    What Keras's own do in the middle of an epoch depends on their settings.
    """
    names = {name for hook in hooks for name in (hook, _OLD_NAMES.get(hook, hook))}
    if hooks and not names.isdisjoint(_OLD_NAMES) and _rests_in_batches(callback):
        return type(callback).__name__ == "TensorBoard"  # which counts them
    names = names or {name for name in dir(callback) if name.startswith("on_")}
    return any(not getattr(getattr(callback, n, None), "_is_default", False) for n in names)


def is_alike(callback: Any) -> bool:
    """Return whether the effects of the callback follow from the logs alone."""
    return rule_of(callback).is_alike


def needs_logs(callback: Any) -> bool:
    """Return whether the callback looks at the logs of each batch."""
    return acts(callback, "on_train_batch_end") and not _rests_in_batches(callback)


def sees_metrics(callback: Any) -> bool:
    """Return whether the callback may read the model's metrics in the middle of an epoch."""
    hooks = ("on_train_batch_begin", "on_train_batch_end")
    return acts(callback, *hooks) and not _rests_in_batches(callback)


def ends_at_nan(callback: Any) -> bool:
    """Return whether the callback ends the training when its loss is not finite."""
    return any(
        kind.__name__ == "TerminateOnNaN" and kind.__module__.startswith("keras.")
        for kind in type(callback).__mro__
    )


def _rests_in_batches(callback: Any) -> bool:
    """Return whether one of Keras's own has nothing to do at the end of most batches."""
    if not type(callback).__module__.startswith("keras."):
        return False
    if ends_at_nan(callback):
        return True  # it is called when there is something to see
    frequency = {"ModelCheckpoint": "save_freq", "TensorBoard": "update_freq"}
    name = frequency.get(type(callback).__name__)
    return name is not None and getattr(callback, name) == "epoch"
