"""Fixtures that start real agents; the modules beside this file can be imported by name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from agent_harness import AgentHarness, agent_running


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[AgentHarness]:
    """An agent whose tiny workers need no MPI."""
    with agent_running(tmp_path) as harness:
        yield harness
