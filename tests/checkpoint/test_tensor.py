"""The bytes of a tensor do not depend on how the array lies in memory."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from holdfast.checkpoint.errors import StateUnsupported
from holdfast.checkpoint.tensor import (
    DTYPES,
    bytes_of,
    empty_tensor,
    logical_dtype,
    storage_dtype,
    whole_bytes_of,
)


def test_contiguous_array_is_aliased_not_copied() -> None:
    tensor = np.arange(60, dtype=np.float32).reshape(3, 20)

    view = bytes_of(tensor, 7, 33)

    assert np.shares_memory(np.frombuffer(view, np.uint8), tensor)
    assert bytes(view) == tensor.tobytes()[28:132]


@pytest.mark.parametrize(
    "tensor",
    [
        np.asfortranarray(np.arange(60.0).reshape(3, 4, 5)),
        np.arange(240, dtype=np.int32).reshape(6, 8, 5)[::2, ::-2],
        np.broadcast_to(np.arange(5, dtype=np.float16), (12, 5)),
        np.arange(60, dtype=">i8").reshape(12, 5),
        np.arange(60).astype(ml_dtypes.bfloat16).reshape(5, 12).T,
    ],
    ids=["fortran", "strided", "broadcast", "big-endian", "bfloat16"],
)
def test_any_memory_layout_gives_the_bytes_of_the_plain_array(tensor: np.ndarray) -> None:
    plain = np.ascontiguousarray(tensor)
    plain = plain.astype(plain.dtype.newbyteorder("<"))
    size = tensor.dtype.itemsize

    for start, stop in ((0, tensor.size), (7, 29), (0, 1), (tensor.size - 1, tensor.size), (5, 5)):
        assert bytes(bytes_of(tensor, start, stop)) == plain.tobytes()[start * size : stop * size]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "bool"])
def test_large_tensor_begins_at_a_huge_page_and_is_an_ordinary_array(dtype: str) -> None:
    shape = (3, 2**21 + 1)

    tensor = empty_tensor(dtype, shape)

    assert tensor.ctypes.data % 2**21 == 0
    assert (tensor.dtype.name, tensor.shape) == (dtype, shape)
    assert tensor.flags.c_contiguous
    assert tensor.flags.writeable


def test_tensor_too_large_for_memory_is_refused_by_numpy() -> None:
    with pytest.raises((MemoryError, ValueError)):
        empty_tensor("float64", (2**40, 2**20))


def test_scalars_and_empty_tensors_have_bytes() -> None:
    scalar = np.array(1.5, np.float32)

    assert bytes(whole_bytes_of(scalar)) == scalar.tobytes()
    assert bytes(whole_bytes_of(np.zeros((0, 3)))) == b""
    assert bytes(whole_bytes_of(np.zeros((3, 0)))) == b""


def test_read_only_array_has_bytes() -> None:
    tensor = np.arange(5)
    tensor.flags.writeable = False

    assert bytes(whole_bytes_of(tensor)) == tensor.tobytes()


@pytest.mark.parametrize("name", DTYPES)
def test_every_dtype_can_be_made_empty(name: str) -> None:
    tensor = empty_tensor(name, (2, 3))

    assert tensor.dtype.name == name
    assert tensor.shape == (2, 3)
    assert storage_dtype(name).itemsize == logical_dtype(name).itemsize


@pytest.mark.parametrize("name", ["object", "str32", "complex64", "datetime64[s]", "void64", ""])
def test_dtypes_that_cannot_be_stored_are_refused(name: str) -> None:
    with pytest.raises(StateUnsupported, match="use one of bool, int8"):
        storage_dtype(name)
