"""Loops of the script's own, outside of ``fit``: nobody can share or save what they train.

Each worker would train alone to its end, and then the job is refused.  So such a loop is refused at
its second step.  One step is harmless: some scripts make the variables of an optimizer with it.  A
helper net may be trained so beside a ``fit``, before or after it: then the user is told.  A library
may call ``fit``, too, and nobody can know.  With one that uses Keras, the user is told first, and
the loop is refused if no ``fit`` has begun after many steps.

A step is an update by a Keras optimizer.  Of a function of TensorFlow only the tracing is seen.  So
each of its calls is a step of the optimizers that it was traced with, and a loop within it is seen
in its graph.
"""

from __future__ import annotations

import functools
import math
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import keras

from holdfast.runtime.errors import ProgramError
from holdfast.runtime.script.calls import is_in_training
from holdfast.runtime.worker.context import is_forked
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


_MOST_STEPS = 100
"""More are no warm-up, if nobody sees a ``fit``."""


class _OwnSteps:
    """The steps of optimizers outside of ``fit``."""

    def __init__(self, has_trained: Callable[[], bool], tell: Callable[[str], None]) -> None:
        self._has_trained = has_trained
        self._tell = tell
        self._limit: float = 1
        """Steps of one optimizer that pass without a word, infinite once all is said."""
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
        if not tensorflow.executing_eagerly():
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
            if self._steps[optimizer] > self._limit:
                self._act()

    def _act(self) -> None:
        """Refuse a loop, or tell of it once."""
        place, is_of_keras = _place()
        how = "over train_on_batch()" if is_of_keras else "of its own with a GradientTape"
        loop = f"the script trains in a loop {how} ({place})"
        is_first, end = self._limit == 1, ""
        if self._has_trained() or (not is_of_keras and any(map(calls_fit, _sources()))):
            self._limit = math.inf
        elif is_first and not is_of_keras and _has_library_of_keras():
            self._limit = _MOST_STEPS
            end = f"; without a fit it is refused after {_MOST_STEPS} calls of its step"
        else:
            self._refusal = ProgramError(
                f"{loop}, which workers cannot share and no checkpoint can save: let model.fit(x, "
                "y, batch_size=...) run the loop, with a train_step of the model's own if it needs "
                "one, or run the script with plain python"
            )
            raise self._refusal
        if is_first:
            self._tell(
                f"{loop}: each worker does so alone, shares nothing and saves nothing; "
                f"model.fit(...), or holdfast.fit(model, ...), trains together{end}"
            )


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


_WITH_TERMS = re.compile(
    r"\b(?:fit|search)\((?:[^()]|\([^()]*\))*\b(?:epochs|callbacks|verbose|batch_size)="
)
_OF_A_TUNER = re.compile(r"tuner\.search\b")
_FIT = re.compile(r"\.fit\b")


def calls_fit(source: str) -> bool:
    """Return whether a source seems to train by Keras's ``fit``, a ``Trainer`` or a tuner.

    Functions of its own and scikit-learn have a ``fit``, too.
    """
    is_own = "def fit(" in source and "super().fit(" not in source
    has_terms = _WITH_TERMS.search(source) is not None
    is_other = "sklearn" in source and not has_terms
    has_trainer = "Trainer(" in source and "holdfast" in source
    has_tuner = _OF_A_TUNER.search(source) or (".search(" in source and has_terms)
    has_fit = _FIT.search(source) and not is_own and not is_other
    return bool(has_trainer or has_tuner or has_fit)


def _sources() -> Iterator[str]:
    """Yield the texts of the script, and of the modules that are neither a library's nor ours."""
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None) or ""
        is_there = file.endswith(".py") and os.path.isfile(file)  # else TensorFlow has made it
        if is_there and Frame(file, "", "").is_users:
            yield Path(file).read_text(encoding="utf-8", errors="replace")


_WITHOUT_FIT = frozenset({"keras", "tensorflow", "tensorboard", "holdfast"})
"""Packages of which none calls ``fit`` that the script does not call."""


def _has_library_of_keras() -> bool:
    """Return whether a library is there, beside ours, that uses Keras: it may call ``fit``."""
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None) or ""
        place = Frame(file, "", "")
        is_known = name.partition(".")[0] in _WITHOUT_FIT or place.is_holdfasts
        is_library = os.path.isfile(file) and not is_known and not place.is_users
        if is_library and any(map(_is_of_keras, list(vars(module).values()))):
            return True
    return False


def _is_of_keras(value: object) -> bool:
    """Return whether a global of a module is one of Keras's or TensorFlow's modules or classes."""
    if isinstance(value, ModuleType):
        name = str(vars(value).get("__name__"))
    elif isinstance(value, type):
        name = str(value.__module__)
    else:
        return False
    return name.partition(".")[0] in ("keras", "tensorflow")
