"""One batch of a pipeline: its place, its arrays, the digest of all its bytes, and itself as bytes.

The bytes are a description in JSON, then the arrays one after the other.  Each array begins at a
multiple of 64 bytes, so TensorFlow can use it where it is.
"""

from __future__ import annotations

import json
import struct
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from holdfast.checkpoint.tensor import Digest
from holdfast.runtime.data.samples import MOST_PARTS
from holdfast.runtime.errors import ProgramError
from holdfast.runtime.exchange.memory import ALIGNMENT_BYTES
from holdfast.runtime.model.replica import Nest, leaves, map_leaves, named_leaves

Parts: TypeAlias = tuple[Nest, Nest, Nest]
"""Inputs, targets and sample weights."""

Ranges: TypeAlias = Callable[[int], Sequence[tuple[int, int]]]
"""Which rows ``start <= row < stop`` are made of a batch of so many samples; none is empty."""

NO_TARGETS: Nest = ()
"""Targets of an element ``(x,)``: a step of the script's own gets it as it is, and not x."""

_LENGTH = struct.Struct("<q")


@dataclass(frozen=True, slots=True, eq=False)
class WholeBatch:
    """Batch ``number`` of a pass, from 0; the first array of ``parts`` has ``samples`` rows."""

    number: int
    parts: Parts
    samples: int
    digest: int

    @property
    def is_even(self) -> bool:
        """Whether all arrays have the same number of rows, so that it can be divided."""
        return all(len(leaf) == self.samples for leaf in leaves(self.parts))

    def rows(self, start: int, stop: int) -> Parts:
        """Return views of the samples ``start <= sample < stop``.

        Raises:
            ProgramError: some samples are wanted of arrays that count several things.
        """
        if (start, stop) == (0, self.samples):
            return self.parts
        if not self.is_even:
            raise ProgramError(
                f"batch {self.number + 1} of the pipeline holds {_shapes(self.parts)}, whose first "
                "axes differ, so that it has no parts: keep each batch whole with --microbatches "
                "1, or call .batch(...) on a tf.data.Dataset of single samples"
            )
        return _rows_of(self.parts, slice(start, stop))


@dataclass(frozen=True, slots=True, eq=False)
class OwnRows:
    """Some rows of a batch of ``samples``: all that this worker has made of it."""

    samples: int
    pieces: Mapping[tuple[int, int], Parts]

    def rows(self, start: int, stop: int) -> Parts:
        """Return the samples ``start <= sample < stop``, which are one of the pieces."""
        return self.pieces[start, stop]


def as_array(leaf: Any) -> npt.NDArray[Any]:
    """Return a leaf of a batch that Python gave as an array; a sparse one is filled with zeros.

    Raises:
        ProgramError: it is ragged.
    """
    kind = type(leaf)
    if kind.__module__.startswith("scipy.sparse"):
        dense: npt.NDArray[Any] = leaf.toarray()
        return dense
    if kind.__name__ == "SparseTensor":
        dense = np.zeros(tuple(leaf.dense_shape), np.asarray(leaf.values).dtype)
        dense[tuple(np.asarray(leaf.indices).T)] = np.asarray(leaf.values)
        return dense
    if kind.__name__ == "RaggedTensor":
        raise ProgramError(
            "a batch of the pipeline holds a RaggedTensor, and the parts of a batch need one "
            "shape: give .to_tensor() of it"
        )
    return np.asarray(leaf)


def make_batch(number: int, element: Any, convert: Callable[[Any], Any] = as_array) -> WholeBatch:
    """Return the batch that ``element`` of a pipeline holds, as ``fit`` reads it.

    Args:
        number: the batch's number in its pass, from 0.
        element: ``(x,)``, ``(x, y)``, ``(x, y, sample_weight)``, or x alone.
        convert: makes an array of a leaf.

    Raises:
        ProgramError: the element is no batch; the message names the array.
    """
    parts = parts_of(number, element, convert)
    return WholeBatch(number, parts, _samples_of(number, parts), digest_of(parts))


def parts_of(number: int, element: Any, convert: Callable[[Any], Any]) -> Parts:
    """Return inputs, targets and weights of an element, as `make_batch` takes it."""
    x, y, weights = (map_leaves(convert, part) for part in _split(number, element))
    return x, y, weights


def own_rows(
    elements: Iterator[Any],
    pieces: Iterable[Sequence[int]],
    ranges: Ranges,
) -> Iterator[OwnRows]:
    """Yield each batch of elements that hold the rows ``ranges(samples)`` of several batches.

    ``pieces`` has the samples of each batch, a list for each element.  Without rows there is none.
    """
    for sizes in pieces:
        element = next(elements) if any(map(ranges, sizes)) else None
        parts: Parts = parts_of(0, element, np.asarray) if element is not None else ((), (), None)
        first = 0
        for size in sizes:
            found: dict[tuple[int, int], Parts] = {}
            for start, stop in ranges(size):
                found[start, stop] = _rows_of(parts, slice(first, first + stop - start))
                first += stop - start
            yield OwnRows(size, found)


def _rows_of(parts: Parts, rows: slice) -> Parts:
    x, y, weights = (map_leaves(lambda leaf: leaf[rows], part) for part in parts)
    return x, y, weights


def digest_of(parts: tuple[Nest, ...]) -> int:
    """Return 64 bits of the digest over name, dtype, shape and bytes of every array."""
    state = Digest()
    for name, array in zip(("x", "y", "sample_weight"), parts, strict=True):
        for path, leaf in named_leaves(array, name):
            state.update(f"{path} {leaf.dtype.str} {leaf.shape}".encode())
            for piece in bytes_of(leaf):
                state.update(piece)
    return int(state.hexdigest()[:16], 16)


def bytes_of(leaf: npt.NDArray[Any]) -> tuple[Any, ...]:
    """Return the bytes of an array; strings of any length as lengths and contents."""
    if leaf.dtype != object:
        return (np.ascontiguousarray(leaf).reshape(-1).view(np.uint8),)
    texts = [bytes(text) for text in leaf.reshape(-1)]
    return b"".join(_LENGTH.pack(len(text)) for text in texts), b"".join(texts)


def _split(number: int, element: Any) -> tuple[Any, Any, Any]:
    """Return the three parts of an element; a list of parts is a tuple, as in Keras."""
    parts = tuple(element) if isinstance(element, (list, tuple)) else (element,)
    if not 1 <= len(parts) <= MOST_PARTS:
        raise ProgramError(
            f"batch {number + 1} of the pipeline has {len(parts)} parts: give (x,), (x, y) or "
            "(x, y, sample_weight); several inputs belong into one tuple or dict, x"
        )
    if len(parts) == 1 and isinstance(element, (list, tuple)):
        return parts[0], NO_TARGETS, None
    x, y, weights = (*parts, None, None)[:MOST_PARTS]
    return x, y, weights


def _samples_of(number: int, parts: tuple[Nest, ...]) -> int:
    first = leaves(parts[0])
    if not first or any(not leaf.ndim for leaf in leaves(parts)):
        raise ProgramError(
            f"batch {number + 1} of the pipeline holds {_shapes(parts)}: all of its arrays need a "
            "first axis, with one entry for each sample; call .batch(...) on a tf.data.Dataset of "
            "single samples"
        )
    samples = len(first[0])
    if not all(map(len, leaves(parts))):
        raise ProgramError(f"batch {number + 1} of the pipeline has no samples: leave it out")
    return samples


def _shapes(parts: tuple[Nest, ...]) -> str:
    """Return names and shapes of all arrays, in words."""
    named = zip(("x", "y", "sample_weight"), parts, strict=True)
    found = [leaf for name, part in named for leaf in named_leaves(part, name)]
    return ", ".join(f"{path} {leaf.shape}" for path, leaf in found) or "nothing"


def encode(batch: WholeBatch) -> npt.NDArray[np.uint8]:
    """Return the batch as one array of bytes."""
    pieces: list[Any] = []
    head = {"number": batch.number, "samples": batch.samples, "digest": batch.digest}
    structure = [_describe(part, pieces) for part in batch.parts]
    text = json.dumps(head | {"parts": structure}).encode()
    blocks = [_LENGTH.pack(len(text)) + text, *pieces]
    stops = np.cumsum([_padded(len(block)) for block in blocks])
    message = np.zeros(int(stops[-1]), np.uint8)
    for block, stop in zip(blocks, stops, strict=True):
        start = int(stop) - _padded(len(block))
        message[start : start + len(block)] = np.frombuffer(block, np.uint8)
    return message


def decode(message: npt.NDArray[np.uint8]) -> WholeBatch:
    """Return the batch that ``encode`` has made into bytes; its arrays are views of them."""
    (length,) = _LENGTH.unpack(message[: _LENGTH.size].tobytes())
    text = message[_LENGTH.size : _LENGTH.size + length].tobytes()
    head = json.loads(text)
    start = _padded(_LENGTH.size + length)

    def take(length: int) -> npt.NDArray[np.uint8]:
        """Return the next block, which has ``length`` bytes."""
        nonlocal start
        block = message[start : start + length]
        start += _padded(length)
        return block

    x, y, weights = (_restore(part, take) for part in head["parts"])
    return WholeBatch(head["number"], (x, y, weights), head["samples"], head["digest"])


def _padded(length: int) -> int:
    return -(-length // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def _describe(nest: Nest, pieces: list[Any]) -> Any:
    """Return the structure as JSON, and append the arrays' bytes to ``pieces``."""
    if nest is None:
        return None
    if isinstance(nest, dict):
        kind = "ordered dict" if isinstance(nest, OrderedDict) else "dict"
        return {kind: [[key, _describe(value, pieces)] for key, value in nest.items()]}
    if isinstance(nest, tuple):
        return {"tuple": [_describe(value, pieces) for value in nest]}
    found = bytes_of(nest)
    pieces.extend(found)
    lengths = [len(piece) for piece in found]
    # NumPy's own text of bfloat16 and its kin is that of bytes without a meaning.
    dtype = nest.dtype.name if nest.dtype.kind == "V" else nest.dtype.str
    return {"dtype": dtype, "shape": nest.shape, "bytes": lengths}


def _restore(described: Any, take: Callable[[int], npt.NDArray[np.uint8]]) -> Nest:
    match described:
        case None:
            return None
        case {"dict": items}:
            return {key: _restore(value, take) for key, value in items}
        case {"ordered dict": items}:
            return OrderedDict((key, _restore(value, take)) for key, value in items)
        case {"tuple": items}:
            return tuple(_restore(value, take) for value in items)
    shape, found = described["shape"], [take(length) for length in described["bytes"]]
    if len(found) == 1:
        return found[0].view(_dtype_of(described["dtype"])).reshape(shape)
    array = np.empty(int(np.prod(shape)), object)
    array[:] = list(_texts(*found))
    return array.reshape(shape)


def _dtype_of(text: str) -> np.dtype[Any]:
    try:
        return np.dtype(text)
    except TypeError:  # bfloat16 and its kin: a worker that sends such a batch has the package
        import ml_dtypes

        extended: np.dtype[Any] = np.dtype(getattr(ml_dtypes, text))
        return extended


def _texts(lengths: npt.NDArray[np.uint8], content: npt.NDArray[np.uint8]) -> Iterator[bytes]:
    start = 0
    for length in lengths.view(np.int64).tolist():
        yield content[start : start + length].tobytes()
        start += length
