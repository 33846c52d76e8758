"""Plain Python values as JSON and back: exact, and nothing is ever executed.

JSON itself has no tuples, bytes, NaN, NumPy scalars and arrays, and its keys are strings.  Lists,
strings, finite numbers, booleans and None stay.  Each other value becomes an object with one field,
whose name says the kind: ``{"tuple": [1, 2]}``.  Dictionaries are lists of pairs, in their order.

A function is kept by its name, and only if it is one of Keras, NumPy or `operator`, or of a
module that the caller trusts.  Nothing is imported to find it.
"""

from __future__ import annotations

import base64
import math
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection
from pathlib import Path
from types import FunctionType
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Json: TypeAlias = Any
"""A value that ``json.dumps`` takes with ``allow_nan=False``."""

Array: TypeAlias = npt.NDArray[np.generic]

INLINE_BYTES = 1 << 16
"""The largest array that stands in the JSON itself, which a manifest has little room for."""

_KINDS = frozenset("biufc")
"""NumPy's own kinds of numbers; bfloat16 is none of them, and has no name in JSON."""

_SAFE_MODULES = frozenset({"keras", "numpy", "operator"})
_FACTORIES = {kind.__name__: kind for kind in (list, dict, set, int, float, str, bool)}


class NotPlain(Exception):
    """A value of a kind that is not kept; its text names the kind."""


class Encoder:
    """Turns values into JSON.

    Args:
        modules: modules, beside Keras and NumPy, whose functions are kept by name.
        keep_array: returns the number of the place where it keeps an array, None if it has
            no place for it.
    """

    def __init__(
        self, modules: Collection[str] = (), keep_array: Callable[[Array], int | None] | None = None
    ) -> None:
        self._modules = frozenset(modules)
        self._keep_array = keep_array

    def encode(self, value: object) -> Json:
        """Return ``value`` as JSON.

        Raises:
            NotPlain: it is, or holds, a value that is not plain.
        """
        try:
            return self._encode(value)
        except RecursionError:
            raise NotPlain("a value that holds itself") from None

    def _encode(self, value: object) -> Json:
        encode = _ENCODERS.get(type(value))
        if encode is not None:
            return encode(self, value)
        if isinstance(value, np.generic):
            return {"scalar": _array_json(np.asarray(value))}
        if isinstance(value, np.ndarray):
            return self._array(value)
        if is_tensor(value):
            return self._tensor(value)
        if callable(value) and not isinstance(value, type):
            return self._function(value)
        raise NotPlain(_kind_of(value))

    def items(self, values: Any) -> list[Json]:
        """Return the elements of an iterable as JSON."""
        return [self._encode(item) for item in values]

    def pairs(self, values: Any) -> list[Json]:
        """Return the pairs of a dictionary as JSON."""
        return [[self._encode(key), self._encode(value)] for key, value in values.items()]

    def _array(self, value: Array) -> Json:
        if value.dtype.hasobject or type(value) is not np.ndarray:
            raise NotPlain(f"{_kind_of(value)} of {value.dtype}")
        place = None if self._keep_array is None else self._keep_array(value)
        if place is not None:
            return {"kept": place}
        if value.nbytes > INLINE_BYTES:
            raise NotPlain(f"an array of {value.nbytes} bytes")
        return {"array": _array_json(value)}

    def _tensor(self, value: Any) -> Json:
        size = int(np.prod(value.shape)) * int(value.dtype.size)
        if np.dtype(value.dtype.as_numpy_dtype).kind not in _KINDS or size > INLINE_BYTES:
            raise NotPlain(f"a tensor of {size} bytes of {value.dtype.name}")
        return {"tensor": _array_json(np.asarray(value))}

    def _function(self, value: Any) -> Json:
        module, name = _name_of(value)
        if _found(module, name, self._modules) is not value:
            raise NotPlain(_kind_of(value))
        return {"function": [module, name]}


class Decoder:
    """Turns JSON into the values that it was made of; the arguments are those of `Encoder`."""

    def __init__(
        self, modules: Collection[str] = (), kept_array: Callable[[int], Array] | None = None
    ) -> None:
        self._modules = frozenset(modules)
        self._kept_array = kept_array

    def decode(self, found: Json) -> Any:
        """Return the value that ``found`` encodes.

        Raises:
            ValueError: no encoder has made ``found``.
        """
        if isinstance(found, list):
            return [self.decode(item) for item in found]
        if not isinstance(found, dict):
            return found
        if len(found) != 1:
            raise ValueError(f"a value with the fields {sorted(found)} has no kind")
        ((kind, content),) = found.items()
        if kind == "kept" and self._kept_array is not None:
            return self._kept_array(content)
        if kind == "function":
            return self._function(*content)
        if kind not in _DECODERS:
            raise ValueError(f"a value of the kind {kind!r} is not known")
        return _DECODERS[kind](self, content)

    def items(self, found: list[Json]) -> list[Any]:
        """Return the elements of an encoded iterable."""
        return [self.decode(item) for item in found]

    def pairs(self, found: list[Json]) -> list[tuple[Any, Any]]:
        """Return the pairs of an encoded dictionary."""
        return [(self.decode(key), self.decode(value)) for key, value in found]

    def _function(self, module: str, name: str) -> Any:
        found = _found(module, name, self._modules)
        if found is None:
            raise ValueError(f"the function {name} of {module} is not there any more")
        return found


def is_tensor(value: object) -> bool:
    """Return whether ``value`` is a tensor of TensorFlow with a value."""
    return type(value).__name__ == "EagerTensor"


def _array_json(value: Array) -> list[Json]:
    data = base64.b64encode(np.ascontiguousarray(value).tobytes()).decode()
    return [value.dtype.str, list(value.shape), data]


def _array_of(found: Json) -> Array:
    dtype, shape, data = found
    array: Array = np.frombuffer(base64.b64decode(data), np.dtype(dtype)).reshape(shape).copy()
    return array


def _tensor_of(found: Json) -> Any:
    import tensorflow as tf

    return tf.constant(_array_of(found))


def _name_of(function: Any) -> tuple[str, str]:
    name = getattr(function, "__qualname__", None) or getattr(function, "__name__", "")
    module = getattr(function, "__module__", None)
    if module is None and isinstance(function, np.ufunc):
        module = "numpy"
    return str(module), str(name)


def _found(module: str, name: str, trusted: Collection[str]) -> Any:
    """Return the function of this name in a module that is trusted and loaded, else None."""
    is_trusted = module in trusted or module.lstrip("_").partition(".")[0] in _SAFE_MODULES
    if not is_trusted or module not in sys.modules or "." in name:
        return None
    found = getattr(sys.modules[module], name, None)
    is_function = isinstance(found, (FunctionType, np.ufunc, type(len)))
    return found if is_function or hasattr(found, "__wrapped__") else None


def _kind_of(value: object) -> str:
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


_ENCODERS: dict[type, Callable[[Encoder, Any], Json]] = {
    **dict.fromkeys((type(None), bool, int, str), lambda encoder, value: value),
    float: lambda encoder, value: value if math.isfinite(value) else {"float": repr(value)},
    list: lambda encoder, value: encoder.items(value),
    tuple: lambda encoder, value: {"tuple": encoder.items(value)},
    dict: lambda encoder, value: {"dict": encoder.pairs(value)},
    OrderedDict: lambda encoder, value: {"ordered": encoder.pairs(value)},
    Counter: lambda encoder, value: {"counter": encoder.pairs(value)},
    defaultdict: lambda encoder, value: {"default": [_factory_of(value), encoder.pairs(value)]},
    deque: lambda encoder, value: {"deque": [value.maxlen, encoder.items(value)]},
    set: lambda encoder, value: {"set": sorted(encoder.items(value), key=repr)},
    frozenset: lambda encoder, value: {"frozenset": sorted(encoder.items(value), key=repr)},
    type(Path()): lambda encoder, value: {"path": str(value)},
    bytes: lambda encoder, value: {"bytes": base64.b64encode(value).decode()},
    complex: lambda encoder, value: {"complex": encoder.items((value.real, value.imag))},
}

_DECODERS: dict[str, Callable[[Decoder, Any], Any]] = {
    "float": lambda decoder, found: float(found),
    "tuple": lambda decoder, found: tuple(decoder.items(found)),
    "dict": lambda decoder, found: dict(decoder.pairs(found)),
    "ordered": lambda decoder, found: OrderedDict(decoder.pairs(found)),
    "counter": lambda decoder, found: Counter(dict(decoder.pairs(found))),
    "default": lambda decoder, found: defaultdict(
        _FACTORIES.get(found[0]), decoder.pairs(found[1])
    ),
    "deque": lambda decoder, found: deque(decoder.items(found[1]), found[0]),
    "set": lambda decoder, found: set(decoder.items(found)),
    "frozenset": lambda decoder, found: frozenset(decoder.items(found)),
    "path": lambda decoder, found: Path(found),
    "bytes": lambda decoder, found: base64.b64decode(found),
    "complex": lambda decoder, found: complex(*decoder.items(found)),
    "array": lambda decoder, found: _array_of(found),
    "tensor": lambda decoder, found: _tensor_of(found),
    "scalar": lambda decoder, found: _array_of(found)[()],
}


def _factory_of(value: defaultdict[Any, Any]) -> str | None:
    factory = value.default_factory
    if factory is None:
        return None
    if _FACTORIES.get(getattr(factory, "__name__", "")) is not factory:
        raise NotPlain("a defaultdict whose factory is a function")
    return str(getattr(factory, "__name__", ""))
