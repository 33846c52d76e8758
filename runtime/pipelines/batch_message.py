"""A batch as bytes: a description in JSON, then the arrays one after the other.

Each array begins at a multiple of 64 bytes, so TensorFlow can use it where it is.
"""

from __future__ import annotations

import json
import struct
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from holdfast.runtime.exchange.vector import ALIGNMENT_BYTES
from holdfast.runtime.model.nest import Nest
from holdfast.runtime.pipelines.batch import Batch, bytes_of

_LENGTH = struct.Struct("<q")


def encode(batch: Batch) -> npt.NDArray[np.uint8]:
    """Return the batch as one array of bytes."""
    pieces: list[Any] = []
    structure = [_describe(part, pieces) for part in batch.parts]
    head = {"number": batch.number, "samples": batch.samples, "digest": batch.digest}
    text = json.dumps(head | {"parts": structure}).encode()
    blocks = [_LENGTH.pack(len(text)) + text, *pieces]
    stops = np.cumsum([_padded(len(block)) for block in blocks])
    message = np.zeros(int(stops[-1]), np.uint8)
    for block, stop in zip(blocks, stops, strict=True):
        start = int(stop) - _padded(len(block))
        message[start : start + len(block)] = np.frombuffer(block, np.uint8)
    return message


def decode(message: npt.NDArray[np.uint8]) -> Batch:
    """Return the batch that ``encode`` has made into bytes; its arrays are views of them."""
    (length,) = _LENGTH.unpack(message[: _LENGTH.size].tobytes())
    text = message[_LENGTH.size : _LENGTH.size + length].tobytes()
    head = json.loads(text)
    blocks = _Blocks(message, _padded(_LENGTH.size + length))
    x, y, weights = (_restore(part, blocks) for part in head["parts"])
    return Batch(head["number"], (x, y, weights), head["samples"], head["digest"])


class _Blocks:
    """Takes one block after the other from a message."""

    def __init__(self, message: npt.NDArray[np.uint8], start: int) -> None:
        self._message = message
        self._start = start

    def take(self, length: int) -> npt.NDArray[np.uint8]:
        """Return the next block, which has ``length`` bytes."""
        block = self._message[self._start : self._start + length]
        self._start += _padded(length)
        return block


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
    return {"dtype": nest.dtype.str, "shape": nest.shape, "bytes": lengths}


def _restore(described: Any, blocks: _Blocks) -> Nest:
    match described:
        case None:
            return None
        case {"dict": items}:
            return {key: _restore(value, blocks) for key, value in items}
        case {"ordered dict": items}:
            return OrderedDict((key, _restore(value, blocks)) for key, value in items)
        case {"tuple": items}:
            return tuple(_restore(value, blocks) for value in items)
    shape, found = described["shape"], [blocks.take(length) for length in described["bytes"]]
    if len(found) == 1:
        return found[0].view(np.dtype(described["dtype"])).reshape(shape)
    array = np.empty(int(np.prod(shape)), object)
    array[:] = list(_texts(*found))
    return array.reshape(shape)


def _texts(lengths: npt.NDArray[np.uint8], content: npt.NDArray[np.uint8]) -> Iterator[bytes]:
    start = 0
    for length in lengths.view(np.int64).tolist():
        yield content[start : start + length].tobytes()
        start += length
