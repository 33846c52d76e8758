"""Parameters of tests of which ``ci/test`` takes some, and ``ci/extended`` the others."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def extended(*values: Any, **settings: Any) -> Any:
    """Return a parameter of a test that is a larger form of the same test with another one."""
    return pytest.param(*values, marks=pytest.mark.extended, **settings)


def shortened(values: Iterable[Any], here: Collection[Any]) -> list[Any]:
    """Return all values as parameters, those outside ``here`` as extended ones."""
    every = list(values)
    assert [value for value in here if value not in every] == []
    return [value if value in here else extended(value) for value in every]
