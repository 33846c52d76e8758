"""Plain values come back from JSON as they were, and nothing else is taken."""

from __future__ import annotations

import json
import math
import operator
import os
import random
from collections import Counter, defaultdict, deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from plain import VALUES, is_same, through_json

from holdfast.runtime.keras.plain_values import INLINE_BYTES, Decoder, Encoder, NotPlain

ENDLESS: list[object] = []
ENDLESS.append(ENDLESS)


@given(VALUES)
def test_plain_value_comes_back_with_its_type_and_bits(value: object) -> None:
    assert is_same(through_json(value), value)


@pytest.mark.parametrize(
    "value",
    [
        -0.0,
        math.inf,
        -math.inf,
        math.nan,
        1 << 200,
        "\ud800",
        Path("a/b"),
        Counter("hello"),
        deque([1], maxlen=None),
        np.datetime64("2026-01-02"),
        np.array(["a", "bc"]),
        np.zeros((0, 3)),
        {1: "a", "1": "b", (1, 2): [None]},
    ],
    ids=repr,
)
def test_unusual_value_comes_back(value: object) -> None:
    assert is_same(through_json(value), value)


@pytest.mark.parametrize("function", [np.less, np.mean, operator.lt], ids=lambda f: f.__name__)
def test_function_of_a_known_library_comes_back_as_itself(function: object) -> None:
    assert through_json({"f": function})["f"] is function


def test_function_of_the_scripts_module_comes_back_if_it_is_trusted() -> None:
    assert through_json(is_same, modules={is_same.__module__}) is is_same
    with pytest.raises(NotPlain, match="a function"):
        Encoder().encode(is_same)


@pytest.mark.parametrize(
    ("module", "name"),
    [("os", "system"), ("builtins", "eval"), ("numpy.os", "system"), ("numpy", "no_such_name")],
)
def test_forged_name_of_a_function_is_refused(module: str, name: str) -> None:
    with pytest.raises(ValueError, match="is not there"):
        Decoder().decode({"function": [module, name]})


@pytest.mark.parametrize("found", [{"pickle": "x"}, {}, {"tuple": [], "list": []}, {"kept": 0}])
def test_forged_value_is_refused(found: object) -> None:
    with pytest.raises(ValueError, match="kind"):
        Decoder().decode(found)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (object(), "an object"),
        (lambda: None, "a function"),
        (os.system, "a builtin_function_or_method"),
        (random.Random(1), "a Random"),
        ([1, {2: object()}], "an object"),
        (np.array([object()]), "an? ndarray of object"),
        (np.zeros(INLINE_BYTES + 1, np.uint8), "an array of 65537 bytes"),
        (defaultdict(lambda: 3), "defaultdict"),
        (np.ma.masked_array([1]), "MaskedArray"),
        (ENDLESS, "holds itself"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_value_of_another_kind_is_refused_by_its_kind(value: object, reason: str) -> None:
    with pytest.raises(NotPlain, match=reason):
        Encoder().encode(value)


def test_array_goes_to_the_place_that_takes_it() -> None:
    kept: list[Any] = []

    def keep(array: Any) -> int | None:
        if array.ndim != 2:
            return None
        kept.append(array)
        return len(kept) - 1

    value = [np.zeros((300, 300)), np.ones(2), np.ones((2, 2))]
    text = json.dumps(Encoder(keep_array=keep).encode(value))

    assert len(text) < 200
    assert is_same(Decoder(kept_array=kept.__getitem__).decode(json.loads(text)), value)


@pytest.mark.tensorflow
def test_tensors_of_numbers_are_kept_as_arrays_are() -> None:
    import tensorflow as tf

    value = [tf.constant([0.1, 2.0]), {"a": tf.constant(3, tf.int64)}, tf.constant(True)]
    found = Decoder().decode(json.loads(json.dumps(Encoder().encode(value))))

    assert [tensor.dtype for tensor in (found[0], found[1]["a"], found[2])] == [
        tf.float32,
        tf.int64,
        tf.bool,
    ]
    assert found[0].numpy().tobytes() == value[0].numpy().tobytes()
    for refused in (tf.zeros(20_000), tf.constant(1.0, tf.bfloat16), tf.constant("text")):
        with pytest.raises(NotPlain, match="a tensor of"):
            Encoder().encode(refused)
