"""The modules beside this file can be imported by name; fake worlds run on one core."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _fake_worlds_on_one_core(request: pytest.FixtureRequest) -> None:
    """Real MPI jobs would inherit it, so they are left alone."""
    if request.node.get_closest_marker("mpi") is None:
        request.getfixturevalue("one_core")
