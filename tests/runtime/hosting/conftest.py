"""Fixtures that start real agents; the modules beside this file can be imported by name."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from agent_harness import AgentHarness, agent_running


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[AgentHarness]:
    """An agent whose tiny workers need no MPI."""
    with agent_running(tmp_path) as harness:
        yield harness
