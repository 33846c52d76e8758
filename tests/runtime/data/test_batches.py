"""Batches as elements and as bytes."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np
import pytest

from holdfast.runtime.data.batch import decode, encode, make_batch
from holdfast.runtime.errors import ProgramError

X = np.arange(6, dtype="float32").reshape(3, 2)
Y = np.array([0, 1, 2])
TEXTS = np.array([b"a", b"", b"tail\0"], object)


@pytest.mark.parametrize(
    "element",
    [
        X,
        (X,),
        (X, Y),
        [X, Y, Y],
        ({"age": X, "name": TEXTS}, (Y, [Y, X])),
        (np.zeros((3, 0)), np.zeros(3, bool)),
        (OrderedDict(b=X, a=OrderedDict(c=Y)), Y),
    ],
)
def test_batch_comes_back_from_its_bytes(element: Any) -> None:
    batch = make_batch(4, element)
    found = decode(encode(batch))
    assert (found.number, found.samples, found.digest) == (4, 3, batch.digest)
    again = make_batch(4, found.parts[: len(element)] if isinstance(element, tuple) else element)
    assert again.digest == batch.digest
    assert str(found.parts) == str(batch.parts)


def test_arrays_of_a_message_begin_where_tensorflow_needs_no_copy() -> None:
    message = encode(make_batch(0, (X, Y)))
    found = decode(message)
    offsets = [leaf.ctypes.data - message.ctypes.data for leaf in found.parts[:2]]
    assert [offset % 64 for offset in offsets] == [0, 0]


@pytest.mark.parametrize(
    "other", [(X + 1, Y), (X, Y.astype("int32")), (X.reshape(3, 1, 2), Y), (Y, X), (X, None, Y)]
)
def test_digest_sees_values_types_shapes_and_places(other: Any) -> None:
    assert make_batch(0, other).digest != make_batch(0, (X, Y)).digest


def test_digest_sees_where_a_text_ends() -> None:
    one, two = (np.array(texts, object) for texts in ([b"ab", b"c"], [b"a", b"bc"]))
    assert make_batch(0, one).digest != make_batch(0, two).digest


@pytest.mark.parametrize(
    ("element", "words"),
    [
        ((X, Y, Y, Y), "has 4 parts"),
        ((np.float32(1), Y), r"x \(\), y \(3,\): .*\.batch"),
        ((X[:0],), "has no samples"),
        ((X, Y[:0]), "has no samples"),
        ((None, Y), "need a first axis"),
    ],
)
def test_what_is_no_batch_is_named(element: Any, words: str) -> None:
    with pytest.raises(ProgramError, match=rf"batch 8 of the pipeline .*{words}"):
        make_batch(7, element)


def test_streams_of_several_sizes_are_whole_or_refused() -> None:
    batch = make_batch(7, (X, {"few": Y[:2]}))

    assert decode(encode(batch)).rows(0, 3)[1]["few"].tolist() == [0, 1]
    with pytest.raises(ProgramError, match=r"x \(3, 2\), y\['few'\] \(2,\), .*--microbatches 1"):
        batch.rows(0, 2)


class SparseTensor:
    """As TensorFlow's, which this test need not load."""

    indices, values, dense_shape = np.array([[0, 1], [2, 0]]), np.array([1.5, 2.0]), (3, 2)


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "int4"])
def test_array_of_a_dtype_that_numpy_has_not_itself_keeps_it(name: str) -> None:
    """The workers that have not read the batch could make no tensor of raw bytes."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = np.arange(6).reshape(3, 2).astype(getattr(ml_dtypes, name))

    found = decode(encode(make_batch(0, (x,)))).parts[0]

    assert found.dtype == x.dtype
    assert found.tolist() == x.tolist()


def test_sparse_leaves_are_filled_and_ragged_ones_named() -> None:
    assert make_batch(0, (SparseTensor(), Y)).parts[0].tolist() == [[0, 1.5], [0, 0], [2, 0]]
    with pytest.raises(ProgramError, match=r"holds a RaggedTensor.*\.to_tensor\(\)"):
        make_batch(0, (type("RaggedTensor", (), {})(), Y))


def test_rows_are_views_of_all_parts() -> None:
    x, y, weights = make_batch(0, ({"a": X, "b": X}, Y)).rows(1, 3)
    assert (x["a"].tolist(), y.tolist(), weights) == (X[1:].tolist(), [1, 2], None)
    assert x["b"].base is not None


def test_step_of_the_scripts_own_gets_x_alone_as_the_pipeline_gives_it() -> None:
    alone, packed = make_batch(0, X), make_batch(0, (X,))

    assert (alone.parts[1], packed.parts[1]) == (None, ())
    assert decode(encode(packed)).parts[1] == ()
    assert packed.rows(0, 1)[1] == ()
    assert alone.digest == packed.digest
