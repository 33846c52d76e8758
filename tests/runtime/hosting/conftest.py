"""Fixtures that start real agents; the modules beside this file can be imported by name."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from agent_harness import AgentHarness


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[AgentHarness]:
    """An agent whose tiny workers need no MPI."""
    harness = AgentHarness(tmp_path, "tiny_worker:main")
    yield harness
    harness.close()
