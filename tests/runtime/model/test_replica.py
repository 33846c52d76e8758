"""Nests of arrays, and the sums of an epoch or a pass from the metrics of batches."""

from __future__ import annotations

from collections import OrderedDict
from types import MappingProxyType, SimpleNamespace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.runtime.model.replica import (
    EpochSums,
    PassLayout,
    is_nest_of_arrays,
    leaves,
    map_leaves,
    named_leaves,
    pack,
    pass_sums,
    structure_key,
)


class Pair(NamedTuple):
    left: object
    right: object


A, B = np.zeros(3), np.ones((3, 2), np.int64)


def test_leaves_are_named_by_the_expression_that_leads_to_them() -> None:
    nest = {"age": A, "words": [B, None, (A,)]}

    assert [name for name, _ in named_leaves(nest, "x")] == [
        "x['age']",
        "x['words'][0]",
        "x['words'][2][0]",
    ]


def test_lists_become_tuples_and_named_tuples_stay() -> None:
    doubled = map_leaves(lambda a: a * 2, {"p": Pair(B, None), "l": [B]})

    assert isinstance(doubled["p"], Pair)
    assert doubled["p"].right is None
    assert isinstance(doubled["l"], tuple)
    assert doubled["l"][0].sum() == 12


def test_ordered_dicts_stay_and_other_mappings_become_dicts() -> None:
    """Keras flattens the first ones in their own order."""
    ordered = OrderedDict([("z", A), ("a", OrderedDict(b=B))])

    mapped = map_leaves(lambda a: a, {"x": ordered, "y": MappingProxyType({"c": A})})

    assert type(mapped["x"]) is OrderedDict
    assert type(mapped["x"]["a"]) is OrderedDict
    assert list(mapped["x"]) == ["z", "a"]
    assert type(mapped["y"]) is dict


nests = st.recursive(
    st.integers() | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner),
    max_leaves=8,
)


@given(nests)
def test_packing_the_leaves_gives_the_nest(nest: object) -> None:
    as_tuples = map_leaves(lambda leaf: leaf, nest)

    assert pack(nest, iter(leaves(nest))) == as_tuples
    assert leaves(as_tuples) == leaves(nest)


def test_keys_tell_structure_shape_and_type_apart() -> None:
    keys = {
        structure_key(nest)
        for nest in ((A, None), (None, A), (A, A), (A, {"a": A}), (A[:2], None), (B, None))
    }

    assert len(keys) == 6


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"a": [1, 2]}, True),
        ([A, A], True),
        ((A, [B]), True),
        ([[1.0], [2.0]], False),
        (["a", "b"], False),
        (A, False),
        ([], False),
    ],
)
def test_a_list_of_numbers_is_one_array(value: object, *, expected: bool) -> None:
    assert is_nest_of_arrays(value) is expected


METRICS = 2


class Quotient(EpochSums):
    """A loss that is a numerator by a denominator, as under a mask."""

    is_additive = False

    def settle(self, sums: npt.NDArray[np.float64], samples: int) -> npt.NDArray[np.float64]:
        return np.array([samples * sums[0] / sums[1], samples])


def leaf_of(layout: PassLayout) -> npt.NDArray[np.float32]:
    return np.zeros(layout.size, np.float32)


def metrics_of(*values: float) -> npt.NDArray[np.float32]:
    return np.array(values, np.float32)


def test_batches_are_numbered_on_from_pass_to_pass() -> None:
    layout = PassLayout(MASKED, METRICS, batches=3)
    leaf = leaf_of(layout)

    layout.add(leaf, 3 * 8 + 1, metrics_of(6.0, 3.0), samples=4)

    assert np.flatnonzero(leaf).tolist() == [3, 4, 5]


def test_pass_without_any_samples_has_sums_of_zero() -> None:
    leaf = leaf_of(PassLayout(MASKED, METRICS, batches=2))

    assert pass_sums(MASKED, METRICS, leaf).tolist() == [0.0, 0.0]


MASKED = SimpleNamespace(measures=Quotient())
"""What tells a replica of such a loss."""

PARTS = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.integers(-50, 50),
        st.integers(1, 9),
        st.integers(1, 9),
        st.integers(0, 2),
    ),
    min_size=1,
    max_size=20,
)
"""Microbatches: batch, numerator, denominator, samples, and the worker that computes it."""


@given(PARTS)
def test_pass_depends_on_batches_and_not_on_who_computes_what(
    parts: list[tuple[int, int, int, int, int]],
) -> None:
    layout = PassLayout(MASKED, METRICS, batches=4)
    leaves = [leaf_of(layout) for _ in range(3)]
    for batch, above, below, samples, worker in parts:
        layout.add(leaves[worker], batch, metrics_of(above, below), samples)

    found = pass_sums(MASKED, METRICS, leaves[0] + leaves[1] + leaves[2])

    expected = np.zeros(METRICS)
    for batch in {part[0] for part in parts}:
        _, above, below, samples, _ = np.sum([p for p in parts if p[0] == batch], axis=0)
        expected += samples * above / below, samples
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)
