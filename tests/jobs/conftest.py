"""Fixtures for tests of whole jobs; the modules beside this file can be imported by name."""

from __future__ import annotations

import pytest
from workload import Undisturbed, remembering


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    """The digest that a workload must end with."""
    return remembering(tmp_path_factory.mktemp)
