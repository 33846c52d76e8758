"""Functions of a module are others for a while, and are the old ones afterwards."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.runtime.model.random_ops import replaced

pytestmark = pytest.mark.tensorflow


def _one() -> int:
    return 1


def _two() -> int:
    return 2


def owner_of_two() -> Any:
    return SimpleNamespace(first=_one, second=_two)


def test_functions_are_others_within_and_the_old_ones_afterwards() -> None:
    owner = owner_of_two()

    with replaced(owner, {"first": _two}):
        within = owner.first(), owner.second()

    assert within == (2, 2)
    assert (owner.first, owner.second) == (_one, _two)


def test_old_functions_come_back_after_an_error() -> None:
    owner = owner_of_two()

    with pytest.raises(ZeroDivisionError), replaced(owner, {"first": _two, "second": _one}):
        raise ZeroDivisionError

    assert (owner.first, owner.second) == (_one, _two)


def test_inner_replacement_gives_back_the_outer_one() -> None:
    owner = owner_of_two()

    with replaced(owner, {"first": _two}):
        with replaced(owner, {"first": lambda: 3}):
            inner = owner.first()
        outer = owner.first()

    assert (inner, outer, owner.first()) == (3, 2, 1)


def test_function_that_is_not_there_leaves_the_others_alone() -> None:
    owner = owner_of_two()

    with (
        pytest.raises(AttributeError, match="third"),
        replaced(owner, {"first": _two, "third": _two}),
    ):
        pass

    assert owner.first is _one
    assert not hasattr(owner, "third")
