"""Plain values for property tests, and a comparison that sees types and bits."""

from __future__ import annotations

import json
import math
from collections import OrderedDict, defaultdict, deque
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from holdfast.runtime.keras.plain_values import Decoder, Encoder

ATOMS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.binary()
    | st.complex_numbers(allow_nan=False)
    | st.floats(width=32).map(np.float32)
    | st.integers(0, 255).map(np.uint8)
    | arrays.arrays(arrays.floating_dtypes(), arrays.array_shapes(max_side=3))
    | arrays.arrays(arrays.integer_dtypes(), arrays.array_shapes(min_dims=0, max_side=3))
)
KEYS = st.text() | st.integers() | st.booleans() | st.tuples(st.integers(), st.text())
VALUES = st.recursive(
    ATOMS,
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(KEYS, inner)
        | st.dictionaries(KEYS, inner).map(OrderedDict)
        | st.dictionaries(KEYS, inner).map(lambda found: defaultdict(list, found))
        | st.lists(inner).map(lambda found: deque(found, maxlen=3))
        | st.sets(KEYS)
        | st.frozensets(KEYS)
    ),
    max_leaves=6,
)

FEW_VALUES = st.none() | st.integers() | st.floats() | st.lists(st.text(), max_size=2)


def through_json(value: object, **arguments: Any) -> Any:
    text = json.dumps(Encoder(**arguments).encode(value), allow_nan=False)
    return Decoder(**arguments).decode(json.loads(text))


def is_same(one: Any, other: Any) -> bool:
    """Compare types and bits, of all members."""
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray):
        return (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())
    if isinstance(one, np.generic):
        return one.tobytes() == other.tobytes()
    if isinstance(one, dict):
        return is_same(list(one.items()), list(other.items()))
    if isinstance(one, (list, tuple, deque)):
        return len(one) == len(other) and all(map(is_same, one, other))
    is_nan = isinstance(one, float) and math.isnan(one)
    return math.isnan(other) if is_nan else bool(one == other)
