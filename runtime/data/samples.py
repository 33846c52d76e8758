"""Samples, read by number: a seam of two methods, arrays in memory, and data made of other data."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

from holdfast.checkpoint.tensor import Digest
from holdfast.runtime.errors import ProgramError
from holdfast.runtime.exchange.memory import aligned_array
from holdfast.runtime.model.replica import (
    Array,
    Microbatch,
    Nest,
    dict_like,
    is_nest_of_arrays,
    leaves,
    map_leaves,
    named_leaves,
)

SampleIds: TypeAlias = npt.NDArray[np.int64]
Samples: TypeAlias = tuple[Nest, Nest] | tuple[Nest, Nest, Nest]
"""Inputs, targets and, if there are any, sample weights."""

MOST_PARTS = 3
"""Inputs, targets and weights."""

_PROBED_SAMPLES = 512


@runtime_checkable
class Fingerprinted(Protocol):
    """Data that tell whether they are the same on two workers, or in two launches."""

    def fingerprint(self) -> str:
        """Return a text that is the same for the same samples in the same order."""


@runtime_checkable
class Data(Protocol):
    """Samples that are read by number."""

    def __len__(self) -> int:
        """Return the number of samples; it may not change during a job."""

    def read(self, ids: SampleIds) -> Samples:
        """Return inputs, targets and perhaps weights of these samples, in the order of ``ids``.

        Each part is an array, or dicts, lists and tuples of arrays.  The first axis of each
        array counts samples.  Targets and weights may be None.

        The same ids must give the same bytes on every worker and at any time.
        The arrays may be views; the trainer never writes to them.
        """


class ArrayData:
    """Samples in arrays, or in anything that ``np.asarray`` takes.

    Each argument is one array, or a dict, list or tuple of arrays for a model of several
    inputs or outputs.  Arrays of different types may stand side by side.

    Memory-mapped arrays stay on disk: only the samples read are loaded.

    Raises:
        ProgramError: an array has no samples, or another number of them than the first one.
    """

    def __init__(self, x: Nest, y: Nest = None, sample_weight: Nest = None) -> None:
        given = {"x": x, "y": y, "sample_weight": sample_weight}
        parts = {name: _arrays(name, nest) for name, nest in given.items()}
        self._x, self._y, self._weights = parts.values()
        self._samples = count_samples(parts)

    def __len__(self) -> int:
        return self._samples

    def fingerprint(self) -> str:
        """Return a digest of names, shapes, dtypes and some hundred samples, evenly spaced.

        Equal data have the same one.  Data from another seed, or in another order, have
        another one.  Large arrays on disk are not read for it, and it is made once.
        """
        return self._fingerprint

    @functools.cached_property
    def _fingerprint(self) -> str:
        rows = np.unique(np.linspace(0, self._samples - 1, _PROBED_SAMPLES).astype(np.int64))
        digest = Digest()
        parts = {"x": self._x, "y": self._y, "sample_weight": self._weights}
        for name, leaf in _leaves_of(parts):
            digest.update(f"{name} {leaf.shape} {leaf.dtype}\n".encode())
            digest.update(plain_bytes(leaf[rows]))
        return digest.hexdigest()

    def read(self, ids: SampleIds) -> Samples:
        """Return these samples, with weights if there are any; views of consecutive ids."""
        rows = _rows(ids, len(self))
        # As uint64 a negative one is huge.
        is_within = isinstance(rows, slice) or rows.astype(np.uint64).max() < len(self)
        x, y, weights = (
            map_leaves(lambda array: _taken(array, rows, is_within=bool(is_within)), part)
            for part in (self._x, self._y, self._weights)
        )
        return (x, y) if weights is None else (x, y, weights)


def check_data(name: str, data: object) -> None:
    """Raise ProgramError unless ``data`` can be read by number; ``name`` is the argument's."""
    if isinstance(data, Data):
        return
    advice = (
        "give ArrayData(x, y)"
        if isinstance(data, (np.ndarray, Mapping, list, tuple))
        else "give ArrayData(x, y), or an object with the methods __len__() and read(ids)"
    )
    raise ProgramError(
        f"{name} is a {type(data).__name__}, whose samples cannot be read by number: {advice}"
    )


def read_microbatch(data: Data, ids: SampleIds, seed: int, batch_samples: int = 0) -> Microbatch:
    """Read the samples of one microbatch, at least one, of a batch of so many (0: unknown).

    Raises:
        ProgramError: ``data`` gave something else than the samples that were asked for.
    """
    parts: Any = data.read(ids)
    if type(data) is not ArrayData:
        _check_read(parts, len(ids), type(data).__name__)
    x, y, weights = (*parts, None, None)[:MOST_PARTS]
    return Microbatch(x, y, seed, weights, batch_samples)


def _check_read(parts: Any, samples: int, kind: str) -> None:
    if not isinstance(parts, (tuple, list)) or not 1 <= len(parts) <= MOST_PARTS:
        raise ProgramError(
            f"{kind}.read(ids) returned {_described(parts)}: return (x, y), "
            "or (x, y, sample_weight); each may be a dict, list or tuple of arrays"
        )
    x, y, weights = (*parts, None, None)[:MOST_PARTS]
    for name, leaf in _leaves_of({"x": x, "y": y, "sample_weight": weights}):
        if len(leaf) != samples:
            raise ProgramError(
                f"{kind}.read(ids) returned {len(leaf)} samples in {name} for {samples} ids: "
                "return one entry for each id, along the first axis"
            )


def _arrays(name: str, nest: Nest) -> Nest:
    """Return the nest with each leaf as an array that has samples."""
    if nest is None:
        if name == "x":
            raise ProgramError("x is None: give the inputs of the samples")
        return None
    found = (
        dict_like(nest, {k: _arrays(f"{name}[{k!r}]", value) for k, value in nest.items()})
        if isinstance(nest, Mapping)
        else tuple(_arrays(f"{name}[{i}]", value) for i, value in enumerate(nest))
        if is_nest_of_arrays(nest)
        else _array(name, nest)
    )
    if not leaves(found):
        raise ProgramError(f"{name} is an empty {type(nest).__name__}: give at least one array")
    return found


def _array(name: str, value: npt.ArrayLike) -> Array:
    way = _way_to_plain(value)
    if way is not None:
        rest = ", or a keras.utils.PyDataset: its sparse batches are filled with zeros one by one"
        rest = "" if way == ".to_tensor()" else rest
        raise ProgramError(
            f"{name} is a {type(value).__name__}, which is no plain array: give {way} of it{rest}"
        )
    array: Array = np.asarray(value)
    if array.ndim == 0 and array.dtype == object:
        raise ProgramError(
            f"{name} is a {type(value).__name__}, whose samples cannot be read: give arrays, a "
            "tf.data.Dataset, a keras.utils.PyDataset or a generator of batches; any loader "
            "becomes one by ((x.numpy(), y.numpy()) for x, y in loader)"
        )
    if array.ndim == 0 or len(array) == 0:
        raise ProgramError(
            f"{name} has the shape {array.shape} and holds no samples: "
            "give an array with at least one sample along its first axis"
        )
    if array.dtype == object and not all(isinstance(item, (str, bytes)) for item in array.flat):
        raise ProgramError(
            f"{name} is an array of Python objects: its samples differ in shape or type; "
            "give them all the same shape and a numeric type, or strings"
        )
    return array


def _way_to_plain(value: object) -> str | None:
    """Return how sparse and ragged values become arrays, None for what is one already."""
    match type(value).__name__:
        case "SparseTensor":
            return "tf.sparse.to_dense"
        case "RaggedTensor":
            return ".to_tensor()"
    is_scipy = type(value).__module__.startswith("scipy.sparse")
    return ".toarray()" if is_scipy else None


def count_samples(parts: dict[str, Nest]) -> int:
    """Return the number of samples of x, y and so on, by name; all arrays must have the same.

    Raises:
        ProgramError: they have not.
    """
    (first, leaf), *others = _leaves_of(parts)
    for name, other in others:
        if len(other) != len(leaf):
            several = f"; x is taken as {len(leaves(parts['x']))} inputs" if "[" in first else ""
            raise ProgramError(
                f"{first} has {len(leaf)} samples but {name} has {len(other)}: "
                f"all need one entry for each sample{several}"
            )
    return len(leaf)


def _leaves_of(parts: dict[str, Nest]) -> list[tuple[str, Any]]:
    return [leaf for name, nest in parts.items() for leaf in named_leaves(nest, name)]


def _described(parts: object) -> str:
    if isinstance(parts, (tuple, list)):
        return f"{len(parts)} parts"
    return f"a {type(parts).__name__}"


def _rows(ids: SampleIds, samples: int) -> slice | SampleIds:
    """Return a slice for consecutive ids, which NumPy reads without a copy."""
    if len(ids) == 0:
        return slice(0, 0)
    first, last = int(ids[0]), int(ids[-1])
    is_run = last - first == len(ids) - 1 and bool((np.diff(ids) == 1).all())
    # NumPy silently cuts a slice at the end of the data, but ids that are too high must raise.
    return slice(first, last + 1) if is_run and first >= 0 and last < samples else ids


def _taken(array: Array, rows: slice | SampleIds, *, is_within: bool) -> Array:
    """Return some samples: a view, or a copy that TensorFlow can use where it lies."""
    if isinstance(rows, slice) or array.dtype.hasobject or not is_within:
        return array[rows]
    found: Array = aligned_array((len(rows), *array.shape[1:]), array.dtype)
    return array.take(rows, axis=0, out=found, mode="clip")  # without a second copy


def plain_bytes(samples: Array) -> bytes:
    """Return the bytes of samples; texts are Python objects, whose bytes are addresses."""
    return repr(samples.tolist()).encode() if samples.dtype == object else samples.tobytes()


class SampleRange:
    """The samples ``start <= sample < stop`` of other data, counted from 0 again."""

    def __init__(self, data: Data, start: int, stop: int) -> None:
        self._data = data
        self._start = start
        self._stop = stop

    def __len__(self) -> int:
        return self._stop - self._start

    def fingerprint(self) -> str:
        """Return that of the other data, if they have one, and the range."""
        return f"{_fingerprint_of(self._data)} {self._start}:{self._stop}"

    def read(self, ids: SampleIds) -> Samples:
        """Return these samples of the range."""
        return self._data.read(ids + self._start)


class WeighedByClass:
    """Other data, whose samples weigh what ``class_weight`` says of their targets."""

    def __init__(self, data: Data, class_weight: Mapping[int, float]) -> None:
        self._data = data
        self._class_weight = class_weight

    def __len__(self) -> int:
        return len(self._data)

    def fingerprint(self) -> str:
        """Return that of the other data, if they have one, and the weights."""
        return f"{_fingerprint_of(self._data)} {sorted(self._class_weight.items())}"

    def read(self, ids: SampleIds) -> Samples:
        """Return these samples with their weights.

        Raises:
            ProgramError: they have weights of their own, or targets that are no classes.
        """
        x, y, *weights = self._data.read(ids)
        if any(weight is not None for weight in weights):
            raise ProgramError(
                "fit() got class_weight, and data with sample weights: multiply them in the data"
            )
        return x, y, class_weights_of(y, self._class_weight)


def _fingerprint_of(data: Data) -> str:
    return data.fingerprint() if isinstance(data, Fingerprinted) else "unknown"


def no_classes(class_weight: Mapping[Any, float] | None) -> list[Any]:
    """Return the keys that name no class, such as strings: Keras looks up integers."""
    return [key for key in class_weight or () if not _is_number(key)]


def class_weights_of(y: Any, class_weight: Mapping[Any, float]) -> npt.NDArray[np.float32]:
    """Return the weight of each entry of ``y``: class numbers, or one-hot rows.

    A class that ``class_weight`` does not name weighs 1.

    Raises:
        ProgramError: ``y`` is more than one array, or none.
    """
    targets = leaves(y)
    if len(targets) != 1:
        raise ProgramError(
            f"fit(class_weight=...) needs one array of targets, got {len(targets)}: "
            "give sample_weight for each output"
        )
    classes = np.asarray(targets[0])
    if classes.ndim > 1:
        is_one_hot = classes.shape[-1] > 1
        classes = classes.argmax(-1) if is_one_hot else np.rint(classes[..., 0])
    numbers = np.rint(classes).astype(np.int64)
    found = np.ones(numbers.shape, np.float32)
    for key, weight in class_weight.items():
        if _is_number(key):
            found[numbers == key] = weight
    return found


def _is_number(key: object) -> bool:
    return isinstance(key, (int, float, np.number, np.bool_))
