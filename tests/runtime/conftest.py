"""What the simulations in this folder share."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest


@pytest.fixture
def one_core() -> Iterator[None]:
    """Keep the threads that a test starts on one core.

    Members of a fake world take turns, so a second core does not help them.  Waking a thread
    on another core takes several times as long as on the same core.
    """
    granted = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(granted)})
    yield
    os.sched_setaffinity(0, granted)
