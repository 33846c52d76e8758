"""Loops of the script's own, outside of ``fit``: nobody can share or save what they train.

Each worker would train alone to its end, and then the job is refused.  So such a loop is refused at
its second step.  One step is harmless: some scripts make the variables of an optimizer with it.  A
helper net may be trained so beside a ``fit``, before or after it: then the user is told.

A step is an update by a Keras optimizer.  Of a function of TensorFlow only the tracing is seen.  So
each of its calls is a step of the optimizers that it was traced with, and a loop within it is seen
in its graph.
"""

from __future__ import annotations

import functools
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import keras

from holdfast.runtime.errors import ProgramError
from holdfast.runtime.worker.context import is_forked
from holdfast.runtime.worker.script_clock import is_in_training
from holdfast.runtime.worker.stacks import Frame


def watch_loops(has_trained: Callable[[], bool], tell: Callable[[str], None]) -> None:
    """Refuse loops of this process's script from now on.

    Args:
        has_trained: returns whether a ``fit`` of the script has begun.
        tell: shows one line to the user.
    """
    steps = _OwnSteps(has_trained, tell)
    kind = next(kind for kind in keras.optimizers.Optimizer.__mro__ if "apply" in vars(kind))
    _stand_in(kind, "apply", steps.apply)
    _stand_in(type(sys.modules["tensorflow"].function(tuple)), "__call__", steps.call)


def _stand_in(kind: Any, name: str, method: Callable[..., Any]) -> None:
    plain = getattr(kind, name)

    @functools.wraps(plain)
    def stand_in(self: Any, *args: Any, **arguments: Any) -> Any:
        if is_in_training() or is_forked():
            return plain(self, *args, **arguments)
        return method(functools.partial(plain, self, *args, **arguments), self)

    setattr(kind, name, stand_in)


class _OwnSteps:
    """The steps of optimizers outside of ``fit``."""

    def __init__(self, has_trained: Callable[[], bool], tell: Callable[[str], None]) -> None:
        self._has_trained = has_trained
        self._tell = tell
        self._has_told = False
        self._steps: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        self._traced: WeakKeyDictionary[Any, WeakSet[Any]] = WeakKeyDictionary()
        self._found: list[Any] = []
        self._refusal: ProgramError | None = None

    def apply(self, plain: Callable[[], Any], optimizer: Any) -> Any:
        """Stand for ``Optimizer.apply``."""
        tensorflow = sys.modules["tensorflow"]
        if tensorflow.executing_eagerly():
            self._count([optimizer])
        elif _is_in_loop(tensorflow.compat.v1.get_default_graph()):
            self._count([optimizer, optimizer])
        self._found.append(optimizer)
        return plain()

    def call(self, plain: Callable[[], Any], function: Any) -> Any:
        """Stand for a call of a function of TensorFlow."""
        if not sys.modules["tensorflow"].executing_eagerly():
            return plain()
        known = self._traced.setdefault(function, WeakSet())
        self._count(known)
        self._found.clear()
        try:
            return plain()
        except Exception:  # one that comes through a tracing gets other words
            if self._refusal is not None:
                raise self._refusal from None
            raise
        finally:
            new = {optimizer for optimizer in self._found if optimizer not in known}
            self._count(optimizer for optimizer in new if optimizer not in self._steps)
            known.update(new)

    def _count(self, optimizers: Iterable[Any]) -> None:
        for optimizer in optimizers:
            self._steps[optimizer] = self._steps.get(optimizer, 0) + 1
            if self._steps[optimizer] > 1 and not self._has_told:
                self._act()

    def _act(self) -> None:
        """Refuse a loop, or tell of it once."""
        place, is_of_keras = _place()
        how = "over train_on_batch()" if is_of_keras else "of its own with a GradientTape"
        loop = f"the script trains in a loop {how} ({place})"
        may_be_beside_fit = not is_of_keras and any(map(calls_fit, _sources()))
        if self._has_trained() or may_be_beside_fit:
            self._has_told = True
            self._tell(
                f"{loop}: each worker does so alone, shares nothing and saves nothing; "
                "model.fit(...), or holdfast.fit(model, ...), trains together"
            )
            return
        self._refusal = ProgramError(
            f"{loop}, which workers cannot share and no checkpoint can save: let model.fit(x, y, "
            "batch_size=...) run the loop, with a train_step of the model's own if it needs one, "
            "or run the script with plain python"
        )
        raise self._refusal


def _is_in_loop(graph: Any) -> bool:
    """Return whether a graph is the body of a loop, perhaps over a dataset."""
    while graph is not None:
        name = str(getattr(graph, "name", ""))
        if type(graph).__name__.startswith("While") or name.startswith("Dataset_"):
            return True
        graph = getattr(graph, "outer_graph", None)
    return False


def _place() -> tuple[str, bool]:
    """Return the script's innermost call, and whether ``train_on_batch`` is what it calls."""
    is_of_keras = False
    for frame, line in traceback.walk_stack(None):
        call = Frame(frame.f_code.co_filename, str(line), frame.f_code.co_name)
        is_of_keras |= call.name == keras.Model.train_on_batch.__name__
        if call.is_users and "__autograph" not in call.file:  # what TensorFlow has made of it
            return call.short, is_of_keras
    return "in a thread", is_of_keras


_WITH_TERMS = re.compile(r"\.fit\((?:[^()]|\([^()]*\))*\b(?:epochs|callbacks|verbose|batch_size)=")


def calls_fit(source: str) -> bool:
    """Return whether a source seems to train by Keras's ``fit`` or a ``Trainer``.

    Functions of its own and scikit-learn have a ``fit``, too.
    """
    is_own = "def fit(" in source and "super().fit(" not in source
    is_other = "sklearn" in source and not _WITH_TERMS.search(source)
    has_trainer = "Trainer(" in source and "holdfast" in source
    return has_trainer or (".fit(" in source and not is_own and not is_other)


def _sources() -> Iterator[str]:
    """Yield the texts of the script, and of the modules that are neither a library's nor ours."""
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None) or ""
        is_there = file.endswith(".py") and os.path.isfile(file)  # else TensorFlow has made it
        if is_there and Frame(file, "", "").is_users:
            yield Path(file).read_text(encoding="utf-8", errors="replace")
