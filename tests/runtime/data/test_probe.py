"""A digest of some samples: the same for the same data, and another one for any others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.runtime.data.array_data import probe_of, probed_ids
from holdfast.runtime.model.data import ArrayData, SampleIds, Samples

MOST = 64
X = np.arange(24, dtype=np.int32).reshape(4, 6)


class Repeated:
    """Any number of samples, all of them zero."""

    def __init__(self, samples: int) -> None:
        self._samples = samples

    def __len__(self) -> int:
        return self._samples

    def read(self, ids: SampleIds) -> Samples:
        return np.zeros((len(ids), 2)), None


@given(st.integers(1, 10**12))
def test_probed_samples_are_few_with_the_first_and_the_last(samples: int) -> None:
    ids = probed_ids(samples)

    assert ids[0] == 0
    assert ids[-1] == samples - 1
    assert len(ids) == min(samples, MOST)
    assert (np.diff(ids) > 0).all()


@given(st.integers(MOST, 10**9))
def test_probed_samples_leave_no_large_gap(samples: int) -> None:
    assert np.diff(probed_ids(samples)).max() <= -(-samples // (MOST - 1))


def texts(*found: str) -> Any:
    return np.array(found, object)


SAME = {
    "array": lambda: ArrayData(X.copy(), X[:, 0]),
    "dict": lambda: ArrayData({"a": X.copy(), "b": X + 1}),
    "texts": lambda: ArrayData(texts("one", "".join(["t", "w", "o"]))),
    "weights": lambda: ArrayData(X.copy(), X[:, 0], X[:, 1]),
}


@pytest.mark.parametrize("name", SAME)
def test_equal_data_have_one_digest(name: str) -> None:
    assert probe_of(SAME[name]()) == probe_of(SAME[name]())


OTHERS: dict[str, tuple[Any, Any]] = {
    "value": (ArrayData(X), ArrayData(X + (X == 23))),
    "type": (ArrayData(X * 0), ArrayData((X * 0).astype(np.float32))),
    "shape": (ArrayData(X), ArrayData(X.reshape(4, 2, 3))),
    "name": (ArrayData({"a": X}), ArrayData({"b": X})),
    "order": (ArrayData(X), ArrayData(X[::-1])),
    "part": (ArrayData(X, X), ArrayData(X)),
    "place": (ArrayData((X, X + 1)), ArrayData(X, X + 1)),
    "texts": (ArrayData(texts("one", "two")), ArrayData(texts("one", "too"))),
    "number": (Repeated(500), Repeated(501)),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_data_have_another_digest(name: str) -> None:
    one, other = OTHERS[name]

    assert probe_of(one) != probe_of(other)
