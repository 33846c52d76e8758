"""What callbacks remember, as JSON notes and arrays: patience, best values, counters, weights.

A callback is an object of the script.  Its attributes are its state, but for those that never
change (its settings), that refer to other things (the model, functions, files), and that Keras sets
anew; DESIGN.md has the walk.

A callback with ``get_state`` and ``set_state`` keeps what it says instead.  The same methods count
for an object that stands in an attribute, such as a random generator.

A dataset that gives batches by their numbers is kept in the same way, with the objects of the
script that it holds and the global names that its methods read: a level may stand in any of them.
Of what is too large the digest is kept: hooks at epochs make it again, or the training is refused.

The layout of a checkpoint must not change during a run.  But a callback such as ``EarlyStopping``
has no best weights at first, and later has some.  So each callback that may keep weights gets
places with the shapes of the model's weights at the start.  A place that holds nothing is zeros.
"""

from __future__ import annotations

import dis
import json
import random
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

import numpy as np

from holdfast.checkpoint.tensor import Tensors, digest_of
from holdfast.runtime.errors import ProgramError
from holdfast.runtime.keras.plain_values import (
    INLINE_BYTES,
    Array,
    Decoder,
    Encoder,
    Json,
    NotPlain,
    is_tensor,
)

_READS_WEIGHTS = frozenset({"get_weights", "get_weight_paths", "trainable_weights", "weights"})


class WeightPlaces:
    """The places of one callback: as many sets of the model's weights as it may keep.

    Args:
        sets: how many sets of weights the callback may keep at one time.
        weights: the model's weights; only shapes and dtypes are looked at.
    """

    def __init__(self, sets: int, weights: Sequence[Array]) -> None:
        self._empty: list[Array] = [np.zeros_like(found) for _ in range(sets) for found in weights]
        self.empty()

    def empty(self) -> None:
        """Take everything out of the places."""
        self._held = list(self._empty)
        self._free = list(range(len(self._held)))

    def keep(self, array: Array) -> int | None:
        """Put an array into a free place of its shape; return the number, None without one."""
        for place in self._free:
            if self._held[place].shape == array.shape and self._held[place].dtype == array.dtype:
                self._free.remove(place)
                self._held[place] = array
                return place
        return None

    def tensors(self) -> dict[str, Array]:
        """Return what the places hold, zeros where they hold nothing, by number."""
        return {f"{place:05d}": array for place, array in enumerate(self._held)}


def sets_of(callback: Any) -> int:
    """Return how many sets of the model's weights the callback may keep at one time.

    For Keras's own it is known.  In others each place in the code that reads weights counts.
    """
    is_stopping = any(
        kind.__name__ == "EarlyStopping" and kind.__module__.partition(".")[0] == "keras"
        for kind in type(callback).__mro__
    )
    own = is_stopping and bool(getattr(callback, "restore_best_weights", False))
    return own + sum(
        name in _READS_WEIGHTS
        for kind in type(callback).__mro__
        if kind.__module__.partition(".")[0] not in {"keras", "builtins"}
        for function in vars(kind).values()
        if hasattr(function, "__code__")
        for name in _names(function.__code__)
    )


def _names(code: Any) -> Iterator[str]:
    """Yield the attributes that code reads, also in inner functions, once for each instruction."""
    for instruction in dis.get_instructions(code):
        if instruction.opname in {"LOAD_METHOD", "LOAD_ATTR"}:
            yield str(instruction.argval)
        elif instruction.opname == "LOAD_CONST" and hasattr(instruction.argval, "co_code"):
            yield from _names(instruction.argval)


_NOT_STATE = {
    "Callback": {"_model", "params"},
    "ProgbarLogger": {"seen", "progbar", "target", "verbose", "epochs", "_called_in_fit"},
    "CSVLogger": {"writer", "csv_file", "append_header"},
    "TensorBoard": {
        *("_writers", "_prev_summary_state", "_summary_module", "_is_tracing"),
        *("_profiler_started", "_batch_trace_context", "_batch_start_time", "_epoch_start_time"),
        *("_train_dir", "_val_dir", "_log_write_dir", "_previous_epoch_iterations"),
        "_train_accumulated_time",
    },
    "BackupAndRestore": {"_training_state", "_current_epoch", "_last_batch_seen"},
}
"""Attributes of Keras's callbacks that are no state: Keras sets them anew, or they are clocks."""

_NEVER_STATE = frozenset(
    {"keras", "tensorflow", "numpy", "pandas", "logging", "threading", "_io", "_csv", "csv"}
    | {"matplotlib", "builtins", "_thread", "types", "functools", "concurrent", "tqdm", "rich"}
)
"""Where types come from whose objects are data, tools or parts of the model."""

_MISSING = object()

_MOST_REACHED = 64
"""Objects that are looked at from a dataset."""

MOST_KEPT = 1 << 18
"""Characters of an attribute of a dataset that is kept."""

_MOST_DIGESTED = 1 << 28
"""Bytes of an array of a dataset that are digested; of a larger one it is each second or so."""

_KEPT = '{"kept": '
"""Stands in the text of an attribute for a large array, with its digest."""

_OBJECT = "object "
"""Begins the text of a value that is not plain; no JSON begins so."""


class _Names:
    """Some global names of a module of the script, as the attributes of an object."""

    __slots__ = ("_found", "_names")

    def __init__(self, found: dict[str, Any], names: Iterable[str]) -> None:
        object.__setattr__(self, "_found", found)
        object.__setattr__(self, "_names", frozenset(names))

    @property
    def __dict__(self) -> dict[str, Any]:  # type: ignore[override]  # for vars()
        return {name: self._found[name] for name in sorted(self._names & self._found.keys())}

    def __getattr__(self, name: str) -> Any:
        return self._found.get(name, _MISSING)

    def __setattr__(self, name: str, value: Any) -> None:
        self._found[name] = value

    def __delattr__(self, name: str) -> None:
        del self._found[name]


def reached_from(dataset: Any) -> list[Any]:
    """Return a dataset, the objects of the script that it holds, and the names that these read."""
    found: list[Any] = []
    pending = [dataset]
    while pending and len(found) < _MOST_REACHED:
        owner = pending.pop(0)
        is_known = any(owner is other for other in found)
        if is_known or not hasattr(owner, "__dict__"):
            continue
        if owner is not dataset and _is_never_state(owner):
            continue
        found.append(owner)
        pending += vars(owner).values()
        for kind in type(owner).__mro__:
            if kind.__module__.partition(".")[0] not in _NEVER_STATE | {"holdfast"}:
                methods = (m for m in vars(kind).values() if isinstance(m, FunctionType))
                pending += [_Names(m.__globals__, m.__code__.co_names) for m in methods]
    return found


def named(callbacks: Iterable[Any]) -> dict[str, Any]:
    """Return callbacks by the names of their classes, each with its number among these."""
    numbers: Counter[str] = Counter()
    found: dict[str, Any] = {}
    for callback in callbacks:
        kind = type(callback).__name__
        numbers[kind] += 1
        found[f"{kind}-{numbers[kind]}"] = callback
    return found


@dataclass(slots=True)
class _Kept:
    """One callback, and what its attributes were before the training and at its start."""

    callback: Any
    places: WeightPlaces
    before: dict[str, str]
    begun: dict[str, str]
    most: int | None = None
    """Characters of an attribute, None for any number."""
    lost: list[str] = field(default_factory=list)
    """Containers that were too large to be kept, and are others now."""


class CallbackStates:
    """The states of a list of callbacks, in their order.

    It is made before ``on_train_begin``.  ``weights`` returns the model's weights; it is
    called only if a callback may keep some.  An attribute of more than ``most`` characters is not
    kept.
    """

    def __init__(
        self,
        callbacks: Iterable[Any],
        weights: Callable[[], Sequence[Array]] = tuple,
        most: int | None = None,
    ) -> None:
        self._kept: dict[str, _Kept] = {}
        for name, callback in named(callbacks).items():
            sets = sets_of(callback)
            places = WeightPlaces(sets, weights() if sets else ())
            before = _picture(callback, most)
            self._kept[name] = _Kept(callback, places, before, begun=before, most=most)

    def begun(self) -> None:
        """Note what the callbacks are after ``on_train_begin``."""
        for kept in self._kept.values():
            kept.begun = _picture(kept.callback, kept.most)

    def unkept(self) -> list[str]:
        """Return the attributes that cannot be kept, each with its kind, in a few words."""
        return [
            f"{name.rpartition('-')[0]}.{attribute} ({reason})"
            for name, kept in self._kept.items()
            for attribute, reason in _unkept(kept)
        ]

    def lost(self) -> list[str]:
        """Return what was too large to be kept and is not as it was, in a few words."""
        return [what for kept in self._kept.values() for what in kept.lost]

    def notes(self) -> dict[str, Json]:
        """Return what the callbacks remember, but for weights, as a JSON object."""
        return {name: _encode(kept) for name, kept in self._kept.items()}

    def tensors(self) -> dict[str, Array]:
        """Return the weights that callbacks keep; names, shapes and dtypes never change."""
        found: dict[str, Array] = {}
        for name, kept in self._kept.items():
            _encode(kept)
            for place, array in kept.places.tensors().items():
                found[f"{name}/{place}"] = array
        return found

    def restore(self, notes: Mapping[str, Json], tensors: Tensors) -> None:
        """Let the callbacks remember what ``notes`` and ``tensors`` hold, after ``begun``.

        Raises:
            ValueError: the notes are not those of these callbacks.
            ProgramError: an attribute was too large to be kept, and nothing has made it again.
        """
        for name, kept in self._kept.items():
            if name not in notes:
                continue
            prefix = f"{name}/"
            own = {
                int(place.removeprefix(prefix)): np.array(array)
                for place, array in tensors.items()
                if place.startswith(prefix)
            }
            _decode(kept, notes[name], own)


def _attributes(callback: Any) -> Iterator[tuple[str, Any]]:
    """Yield the attributes that may be state."""
    ignored: set[str] = set()
    for kind in type(callback).__mro__:
        if kind.__module__.partition(".")[0] == "keras":
            ignored |= _NOT_STATE.get(kind.__name__, set())
    for name, value in list(vars(callback).items()):
        if name not in ignored:
            yield name, value


def _picture(callback: Any, most: int | None = None) -> dict[str, str]:
    """Return a text for each attribute, which is another one when the attribute has changed."""
    encoder = _painter(callback, most)
    return {name: _text(encoder, value) for name, value in _attributes(callback)}


def _painter(callback: Any, most: int | None) -> Encoder:
    """Return what makes texts of attributes; with a limit, a large array shows its digest."""
    modules = {type(callback).__module__}
    return Encoder(modules) if most is None else _Painter(modules, _digest_of_large)


class _Painter(Encoder):
    def _tensor(self, value: Any) -> Json:
        try:
            return super()._tensor(value)
        except NotPlain:
            return self._array(np.asarray(value))


def _digest_of_large(array: Array) -> Any:
    if array.nbytes <= INLINE_BYTES:
        return None
    step = 1 + array.nbytes // _MOST_DIGESTED
    return digest_of(np.ascontiguousarray(array.reshape(-1)[::step]).view(np.uint8).data)


def _is_too_large(kept: _Kept, text: str) -> bool:
    """Return whether only the digest of an attribute with this text is kept."""
    return kept.most is not None and (len(text) > kept.most or _KEPT in text)


def _text(encoder: Encoder, value: Any) -> str:
    try:
        return json.dumps(_encode_value(encoder, value), allow_nan=False)
    except NotPlain:
        return f"{_OBJECT}{id(value)}"


def _encode(kept: _Kept) -> Json:
    """Return what a callback remembers, and put its weights into its places."""
    kept.places.empty()
    encoder = Encoder({type(kept.callback).__module__}, kept.places.keep)
    if _has_own_state(kept.callback):
        return {"state": encoder.encode(kept.callback.get_state())}
    found: dict[str, Json] = {}
    digests: dict[str, str] = {}
    painter = _painter(kept.callback, kept.most)
    for name, value in _attributes(kept.callback):
        text = _text(painter, value)
        if text == kept.before.get(name) == kept.begun.get(name, text):
            continue
        try:
            if _is_too_large(kept, text):
                digests[name] = digest_of(text.encode())
            else:
                found[name] = _encode_value(encoder, value)
        except NotPlain:
            continue
    gone = sorted(kept.begun.keys() - dict(_attributes(kept.callback)).keys())
    noted = {"attributes": found, "gone": gone}
    return noted | {"digests": digests} if digests else noted


def _encode_value(encoder: Encoder, value: Any) -> Json:
    """Return an attribute as JSON; that of an object with a state of its own is that state."""
    if isinstance(value, np.random.Generator):
        return {"inner": encoder.encode(value.bit_generator.state)}
    if isinstance(value, random.Random):
        return {"inner": encoder.encode(value.getstate())}
    if _has_own_state(value):
        return {"inner": encoder.encode(value.get_state())}
    return encoder.encode(value)


def _unkept(kept: _Kept) -> Iterator[tuple[str, str]]:
    """Yield the attributes that are, or may be, state and cannot be kept."""
    if _has_own_state(kept.callback):
        return
    encoder = Encoder({type(kept.callback).__module__}, kept.places.keep)
    for name, value in _attributes(kept.callback):
        kept.places.empty()
        try:
            _encode_value(encoder, value)
        except NotPlain as reason:
            has_changed = kept.before.get(name) != f"{_OBJECT}{id(value)}"
            is_array = isinstance(value, np.ndarray) or is_tensor(value)
            if not _is_never_state(value) or (has_changed and is_array):
                yield name, str(reason)


def _is_never_state(value: Any) -> bool:
    if isinstance(value, (list, tuple, dict, set)):
        members = value.values() if isinstance(value, dict) else value
        return all(_is_never_state(member) for member in members)
    if isinstance(value, type) or type(value).__module__ == "builtins":
        return True
    roots = (kind.__module__.partition(".")[0] for kind in type(value).__mro__[:-1])
    return any(root in _NEVER_STATE for root in roots)


def _has_own_state(value: Any) -> bool:
    names = ("get_state", "set_state")
    return not isinstance(value, type) and all(callable(getattr(value, n, None)) for n in names)


def _decode(kept: _Kept, notes: Json, places: Mapping[int, Array]) -> None:
    """Let a callback remember what ``_encode`` has returned."""
    callback = kept.callback
    decoder = Decoder({type(callback).__module__}, places.__getitem__)
    if "state" in notes:
        callback.set_state(decoder.decode(notes["state"]))
        return
    attributes = _as_begun(kept) | notes["attributes"]
    for name in notes["gone"]:
        vars(callback).pop(name, None)
        attributes.pop(name, None)
    for name, value in attributes.items():
        now = getattr(callback, name, _MISSING)
        if isinstance(value, dict) and "inner" in value:
            _set_inner(now, decoder.decode(value["inner"]))
        elif not _is_refilled(now, found := decoder.decode(value)):
            setattr(callback, name, found)
    _check_digests(kept, notes.get("digests", {}))


def _check_digests(kept: _Kept, digests: Mapping[str, str]) -> None:
    """Raise ProgramError if an attribute that was too large to be kept is another one now."""
    painter, kind = _painter(kept.callback, kept.most), type(kept.callback).__name__
    attributes = dict(_attributes(kept.callback))
    for name, digest in digests.items():
        value = attributes.get(name)
        if digest_of(_text(painter, value).encode()) == digest:
            continue
        if isinstance(value, dict | list):
            kept.lost.append(f"{kind}.{name} (a large {type(value).__name__}; a cache may be lost)")
            continue
        what = f"the global name {name}" if kind == _Names.__name__ else f"{kind}.{name}"
        raise ProgramError(
            f"{what}, which the dataset holds or reads, was changed by the training; it is too "
            f"large to be kept in a checkpoint (more than {MOST_KEPT >> 10} KiB as text, or an "
            f"array of more than {INLINE_BYTES >> 10} KiB), and on_epoch_end() has not made it "
            "again: let on_epoch_end() make it, or hold it in an object with get_state() and "
            "set_state() that give and take lists in place of arrays"
        )


def _as_begun(kept: _Kept) -> dict[str, Json]:
    """Return the attributes that the training has changed as they were at its start.

    Plain ones that did not exist then are removed at once.  A worker that trains already takes
    over the state of another one in this way.
    """
    encoder = _painter(kept.callback, kept.most)
    changed: dict[str, Json] = {}
    for name, value in _attributes(kept.callback):
        begun = kept.begun.get(name)
        text = _text(encoder, value)
        if _is_too_large(kept, text if begun is None else begun):
            continue
        if begun is None and not text.startswith(_OBJECT):
            delattr(kept.callback, name)
        elif begun is not None and begun != text and not begun.startswith(_OBJECT):
            changed[name] = json.loads(begun)
    return changed


def _set_inner(value: Any, state: Any) -> None:
    if isinstance(value, np.random.Generator):
        value.bit_generator.state = state
    elif isinstance(value, random.Random):
        value.setstate(state)
    elif _has_own_state(value):
        value.set_state(state)


def _is_refilled(now: Any, found: Any) -> bool:
    """Return whether a container took over the content, so that all who refer to it see it."""
    if type(now) is not type(found):
        return False
    if isinstance(now, (list, deque)):
        now.clear()
        now.extend(found)
    elif isinstance(now, (dict, OrderedDict, set)):
        now.clear()
        now.update(found)
    elif (
        isinstance(now, np.ndarray)
        and (now.shape, now.dtype) == (found.shape, found.dtype)
        and now.flags.writeable
    ):
        now[...] = found
    else:
        return False
    return True
