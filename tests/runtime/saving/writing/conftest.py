"""What the tests of the writer's process share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from process_agent import AgentOfProcess


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[AgentOfProcess]:
    agent = AgentOfProcess(tmp_path)
    yield agent
    agent.close()
