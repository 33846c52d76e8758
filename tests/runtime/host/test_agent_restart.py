from __future__ import annotations

from pathlib import Path

import pytest
from agent_harness import AgentHarness, agent_running

pytestmark = pytest.mark.process


def test_agent_can_follow_one_that_was_killed(harness: AgentHarness, tmp_path: Path) -> None:
    harness.launch([0], "wait")
    guard = harness.guard(0)
    harness.wait_for_report(0, "joined")
    harness.process.kill()
    guard.wait()

    with agent_running(tmp_path) as successor:
        successor.launch([0], "leave", generation=2)

        assert successor.guard(0, generation=2).wait() == 0


def test_private_directory_goes_when_the_supervisor_is_lost(tmp_path: Path) -> None:
    directory = tmp_path / "private"
    directory.mkdir()
    with agent_running(directory, "--private") as harness:
        harness.launch([0], "leave_when_asked")
        guard = harness.guard(0)
        harness.wait_for_report(0, "joined")
        harness.send("request", what="stop")

        harness.channel.close()

        assert guard.wait() == 0
        assert harness.process.wait() == 0
    assert not directory.exists()


def test_private_directory_is_left_to_a_supervisor_that_lives(tmp_path: Path) -> None:
    with agent_running(tmp_path, "--private") as harness:
        harness.send("shutdown")

        assert harness.process.wait() == 0
    assert tmp_path.exists()
