"""The modules beside this file can be imported by name; fake worlds run on one core."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def _fake_worlds_on_one_core(request: pytest.FixtureRequest) -> None:
    """Real MPI jobs would inherit it, so they are left alone."""
    if request.node.get_closest_marker("mpi") is None:
        request.getfixturevalue("one_core")
