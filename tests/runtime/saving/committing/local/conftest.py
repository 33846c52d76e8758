"""What the tests of a local directory share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from local_saves import Saves


@pytest.fixture
def saves(tmp_path: Path) -> Iterator[Saves]:
    found = Saves(tmp_path)
    yield found
    found.close()
