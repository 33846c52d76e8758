"""The callbacks of one call of ``fit``, run in rounds: what they do, and what came of it.

A round is all that runs between two agreements of the workers.  Every worker runs the same hooks in
it, with the same values, under the overlay of files.

While callbacks begin, settings that the graph of a step holds as constants are watched.  Keras
traces a step when the first one runs.  A replica traces it before, to learn what the step is made
of.  ``on_train_begin`` may freeze a layer, or change a setting such as ``clipnorm`` or ``rate``.
That would have effect in Keras and none here.  Numbers in variables, such as the learning rate,
always have.  An attribute with the name of an argument of ``__init__`` is a setting, and is
refused.  Any other number may be one that the step reads, or the script's own: there the user is
told.

``compile``, and ``make_train_function(force=True)``, let Keras make the graph of the next step
anew.  Here that is another training, with another layout of its state.  So no step follows a hook
that calls one of them.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from numbers import Number
from typing import Any, NamedTuple, TypeVar

import keras
import numpy as np

from holdfast.checkpoint.tensor import Digest, Tensors
from holdfast.recovery.step import Effects
from holdfast.runtime.errors import ProgramError
from holdfast.runtime.keras.callback_rules import (
    acts,
    arranged,
    ends_at_nan,
    flat,
    is_alike,
    is_left_out,
    needs_logs,
    resumed,
    settings_in_words,
    without_graphs,
)
from holdfast.runtime.keras.callback_state import MOST_KEPT, CallbackStates, reached_from
from holdfast.runtime.keras.held_variables import HeldVariables
from holdfast.runtime.keras.plain_values import Json
from holdfast.runtime.model.replica import Replica
from holdfast.runtime.model.step_facts import layers_of, settings_of
from holdfast.runtime.script.overlay import Length, Overlay, guarding
from holdfast.runtime.script.saves import EventFiles, FirstSaves
from holdfast.runtime.training.callback_host import CALLBACKS

_Found = TypeVar("_Found")

_OF_KERAS = frozenset({"stop_training"})
"""What Keras sets itself, and no graph reads."""


class _Attribute(NamedTuple):
    """An attribute of an object, and its value when the step was traced."""

    owner: Any
    name: str
    traced: Any

    @property
    def place(self) -> tuple[int, str]:
        return id(self.owner), self.name

    @property
    def value(self) -> Any:
        return getattr(self.owner, self.name, None)

    @property
    def has_changed(self) -> bool:
        value, known = self.value, self.traced
        is_comparable = isinstance(value, Number | str) and isinstance(known, Number | str)
        return value is not known and not (is_comparable and value == known)

    def __str__(self) -> str:
        return (
            f"{self.name.lstrip('_')} of {type(self.owner).__name__} {self.owner.name!r} "
            f"from {self.traced!r} to {self.value!r}"
        )


_FUNCTIONS = {
    "_compile_config": "compile()",
    "train_function": "make_train_function(force=True)",
    "test_function": "make_test_function(force=True)",
}
"""What Keras makes graphs of, with the call that lets it make them anew."""


class TracedSettings:
    """The settings of a model's optimizers and layers, as they were when it was traced."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._functions = [(name, getattr(model, name, None)) for name in _FUNCTIONS]
        self._settings = [
            _Attribute(owner, name, getattr(owner, name, None))
            for owner, name in settings_of(model)
        ]
        known = {each.place for each in self._settings}
        self._numbers = [each for each in _numbers(model) if each.place not in known]

    def check(self) -> list[str]:
        """Return the numbers that have changed and that the step may read, in words.

        Raises:
            ProgramError: a setting has changed, which the graph of a step holds.
        """
        for setting in self._settings:
            if setting.has_changed:
                raise ProgramError(
                    f"a callback has set {setting} before the first step; "
                    "holdfast has made the graph of a step by then, so it would have no effect; "
                    "set it before fit() is called"
                )
        return [str(number) for number in self._numbers if number.has_changed]

    def check_functions(self, *, has_begun: bool) -> None:
        """Raise ProgramError if Keras would make the graph of the next step anew.

        Args:
            has_begun: whether an epoch has ended, after which ``fit`` may end.
        """
        for name, function in self._functions:
            if function is not None and getattr(self._model, name) is not function:
                way_out = (
                    "let fit(epochs=N) end before it, change the model, compile it, and call "
                    "fit(initial_epoch=N, epochs=...) again"
                    if has_begun
                    else f"call {_FUNCTIONS[name]} before fit() is called"
                )
                raise ProgramError(
                    f"a callback has called {_FUNCTIONS[name]} of {self._model.name!r}, so that "
                    "Keras would go on with another step, and holdfast has made the graph of this "
                    f"one for the whole fit(): {way_out}"
                )


def _numbers(model: Any) -> Iterator[_Attribute]:
    """Yield the numbers that are public attributes of a model and its layers."""
    for owner in (model, *layers_of(model)):
        for name, value in list(vars(owner).items()):
            if isinstance(value, Number) and not name.startswith("_") and name not in _OF_KERAS:
                yield _Attribute(owner, name, value)


class UnknownLogs(dict[str, float]):
    """The logs of one batch of a validation: what they would be called is known, and no value.

    Its own ``__iter__`` lets ``dict(logs)`` and ``{**logs}`` ask for each value, which refuses.
    """

    def __init__(self, names: Iterable[str]) -> None:
        super().__init__(dict.fromkeys(names, math.nan))

    def __iter__(self) -> Iterator[str]:
        return super().__iter__()

    def _refuse(self, *_: object) -> Any:
        raise ProgramError(
            "a callback reads the logs of a single batch of the validation in on_test_batch_end(), "
            "and workers add a validation up as one: read them in on_test_end(logs)"
        )

    __getitem__ = get = items = values = pop = popitem = setdefault = copy = _refuse
    __or__ = __ror__ = __eq__ = __ne__ = __repr__ = __reduce_ex__ = _refuse


_NO_DIGEST = b""


class CallbackRounds:
    """Runs the hooks of a list of callbacks, and keeps what they remember.

    Args:
        callbacks: as the user gave them to ``fit``.
        model: the Keras model.
        replica: its replica, whose tensors hooks may change.
        files, events, saves: the ways of the hooks to the disk.
        params: ``epochs`` and ``steps``, as callbacks see them.
    """

    def __init__(
        self,
        callbacks: Any,
        model: Any,
        replica: Replica,
        files: Overlay,
        events: EventFiles,
        saves: FirstSaves,
        params: Mapping[str, Any],
    ) -> None:
        self._model = model
        self._replica = replica
        self._files = files
        self._events = events
        self._saves = saves
        self._params = dict(params)
        given = flat(callbacks)
        run, self.words = arranged(given, files, events)
        self._run = run if _history_in(run) else [*run, keras.callbacks.History()]
        self._list: Any = None
        self.kept = [callback for callback in given if not is_left_out(callback)]
        states = [*self.kept, *(found for found in self._run if found not in run)]
        self._states = CallbackStates(states, model.get_weights)
        self.datasets = CallbackStates(())
        self.held = HeldVariables(self.kept, model, getattr(replica, "graphs", ()))
        self.traced = TracedSettings(model)
        self._are_alike = all(is_alike(callback) for callback in given)
        self._before: Mapping[str, Any] = {}
        self._known: dict[Hashable, Any] = {}
        """What callbacks do in batches: asked at each step, and anew after each hook."""
        self.is_due = False
        """Whether hooks have run on whose effects the workers have to agree."""

    def keep(self, datasets: Iterable[Any]) -> None:
        """Keep what these objects of the script remember, which give batches."""
        owners = [owner for dataset in datasets for owner in reached_from(dataset)]
        self.datasets = CallbackStates(owners, most=MOST_KEPT)

    @property
    def history(self) -> Any:
        """Keras's ``History`` of the call."""
        return _history_in(self._run)

    def settings(self) -> dict[str, str]:
        """Return the list of callbacks, and the settings of Keras's that act on the training."""
        listed = ", ".join(type(callback).__name__ for callback in self.kept)
        return {CALLBACKS: f"[{listed}]", **settings_in_words(self.kept)}

    def begin(self) -> None:
        """Begin the training."""
        self.is_due = bool(self.kept)  # any callback may raise when it gets its model
        with self.guarded():
            self._list = keras.callbacks.CallbackList(  # some open files when they get their model
                self._run, add_history=False, model=self._model, verbose=0, **self._params
            )
        self.call("on_train_begin")
        self._states.begun()

    def resume(
        self, notes: Mapping[str, Json], tensors: Tensors, *, is_in_test: bool = False
    ) -> None:
        """Begin a training that goes on: callbacks remember what they knew.

        A validation that has begun for them ends once more.
        """
        self._files.restore(notes["files"])
        state = {name: np.array(value) for name, value in self._replica.state().items()}
        with without_graphs(self._run):
            self.begin()
        if is_in_test and hasattr(self._list, "_on_begin"):
            self._list._on_begin()  # Keras counts what has begun and not ended
        self._files.resumed()
        self._replica.load(state)  # what on_train_begin did to the model is in it already
        self.take(notes, tensors)
        resumed(self.kept, self._files.lengths)

    def take(self, notes: Mapping[str, Json], tensors: Tensors) -> None:
        """Let the callbacks remember what another worker's, or an earlier launch's, knew."""
        self._model.history = self.history
        self._known.clear()
        self._states.restore(notes["callbacks"], tensors)
        self.held.restore(notes.get("held", {}))
        self.datasets.restore(notes.get("datasets", {}), {})

    def introduce(self) -> None:
        """Let the callbacks know the model, without any hook: the training is over already."""
        for callback in (*self.kept, self.history):
            callback._model, callback.params = self._model, dict(self._params)

    def call(self, hook: str, *arguments: Any) -> None:
        """Run a hook of all callbacks that have it."""
        self._run_hooks(hook, lambda: getattr(self._list, hook)(*arguments))

    def call_each(self, hook: str, index: int, logs: Mapping[str, float]) -> None:
        """Run a hook about a batch; callbacks that have none cost nothing."""
        hooks = self._once(hook, lambda: [getattr(c, hook) for c in self._run if acts(c, hook)])
        if hooks:
            own = UnknownLogs if isinstance(logs, UnknownLogs) else dict
            self._run_hooks(hook, lambda: [run(index, logs=own(logs)) for run in hooks])

    def acts_on_batches(self) -> bool:
        """Return whether a callback of the script has a hook about a batch.

        What Keras's own do then is short, and what it costs to be ready for more is not.
        """
        hooks = "on_train_batch_begin", "on_train_batch_end"
        kept = self.kept
        return self._once(hooks, lambda: any(acts(c, *hooks) for c in kept if not is_alike(c)))

    def runs_any(self, rule: Callable[[Any], bool]) -> bool:
        """Return whether ``rule`` holds for a callback; asked once between two hooks."""
        return self._once(rule, lambda: any(map(rule, self._run)))

    def call_at_nan(self, index: int, logs: Mapping[str, float]) -> None:
        """Run the end of a batch for the callbacks that wait for a loss that is not finite."""
        hooks = [c.on_train_batch_end for c in self._run if ends_at_nan(c) and not needs_logs(c)]
        if hooks:
            self._run_hooks("on_train_batch_end", lambda: [run(index, dict(logs)) for run in hooks])

    def unkept(self) -> list[str]:
        """Return the attributes of callbacks that cannot be kept."""
        return [*self._states.unkept(), *self.held.unkept()]

    def notes(self) -> dict[str, Json]:
        """Return what the callbacks know, and the lengths of their files."""
        files = {path: list(length) for path, length in self._files.lengths.items()}
        return {"files": files, "datasets": self.datasets.notes(), **self._remembered()}

    def _remembered(self) -> dict[str, Json]:
        return {"callbacks": self._states.notes(), "held": self.held.notes()}

    def tensors(self) -> Tensors:
        """Return the weights that callbacks keep; the layout never changes."""
        return self._states.tensors()

    def lead(self) -> None:
        """Become the first worker, if this one is not yet."""
        with self._saving_hooks(None):
            self._files.take_over()

    def effects(self) -> Effects:
        """Return the effects of the round."""
        notes = state = _NO_DIGEST
        if not self._are_alike:
            notes = _digest(json.dumps(self._remembered()).encode(), {})
            changed = _changed(self._before, self._replica.state())
            state = _digest(b"", {**changed, **self._states.tensors()})
        return Effects(bool(self._model.stop_training), notes, state)

    def message(self) -> bytes:
        """Return the lengths of growing files, if this is the first worker."""
        if not self._files.is_first:
            return b""
        lengths = self._files.measure()
        self._events.measure(lengths)
        return json.dumps(lengths).encode()

    def agreed(self, message: bytes) -> None:
        """Hear that all have the same effects, and the message of the first worker."""
        found: dict[str, Any] = json.loads(message)
        self._files.agreed({path: Length(*length) for path, length in found.items()})
        self._events.agreed()
        self._before = {}
        self.is_due = False

    def close(self) -> None:
        """Give private files back; the training is over."""
        self._events.close()

    def _once(self, key: Hashable, find: Callable[[], _Found]) -> _Found:
        """Return what ``find`` has found since the last hook."""
        if key not in self._known:
            self._known[key] = find()
        found: _Found = self._known[key]
        return found

    def _run_hooks(self, hook: str, run: Any) -> None:
        is_due = any(acts(callback, hook) for callback in self.kept)
        self.is_due = self.is_due or is_due
        if is_due and not self._are_alike and not self._before:
            self._before = dict(self._replica.state())
        with self.guarded():
            run()

    @contextlib.contextmanager
    def guarded(self) -> Iterator[None]:
        """Let code of the script run as a hook does: its files are real on the first worker."""
        self._known.clear()  # what runs may give a callback other hooks
        with guarding(self._files), self._saving_hooks(self._files):
            yield

    @contextlib.contextmanager
    def _saving_hooks(self, files: Overlay | None) -> Iterator[None]:
        before, self._saves.hooks = self._saves.hooks, files
        try:
            yield
        finally:
            self._saves.hooks = before


def _history_in(callbacks: list[Any]) -> Any:
    """Return the ``History`` among the callbacks, None if there is none."""
    found = (callback for callback in callbacks if isinstance(callback, keras.callbacks.History))
    return next(found, None)


def _changed(before: Tensors, after: Tensors) -> dict[str, Any]:
    """Return the tensors that lie elsewhere: TensorFlow writes no buffer that is held."""
    return {
        name: array
        for name, array in after.items()
        if name not in before or array.ctypes.data != before[name].ctypes.data
    }


def _digest(text: bytes, tensors: Tensors) -> bytes:
    digest = Digest()
    digest.update(text)
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(tensors[name]).view(np.uint8).reshape(-1).data)
    return bytes.fromhex(digest.hexdigest())
