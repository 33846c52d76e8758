"""Connections that the tests of channels and of the reactor share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from holdfast.runtime.system.channel import Channel, pair


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    left, right = pair()
    yield left, right
    left.close()
    right.close()
