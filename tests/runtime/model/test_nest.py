"""Nests of arrays, whose structure Keras and the exchange of gradients see."""

from __future__ import annotations

from collections import OrderedDict
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.runtime.model.replica import (
    is_nest_of_arrays,
    leaves,
    map_leaves,
    named_leaves,
    pack,
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
